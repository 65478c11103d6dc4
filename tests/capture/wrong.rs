//! Errors of captures, each by its name.

use std::path::Path;

use roce::capture::{BlockType, Error, OptionLength, open};

use super::build::*;
use super::source::*;

/// A file, how many records come before the error, and the error's text.
fn check(file: &[u8], before: usize, text: &str) -> Error {
    let (records, error) = read_bad(file);
    assert_eq!((records, error.to_string().as_str()), (before, text));
    error
}

#[test]
fn no_capture_at_all() {
    let error = check(b"", 0, "the file is empty: nothing at offset 0");
    assert!(matches!(error, Error::Empty { .. }));
    check(b"\xd4\xc3", 0, "file header cut at offset 0: need 4 bytes, have 2");
    let error = check(
        b"hello, world",
        0,
        "the file is not a pcap or pcapng capture: offset 0 has 68 65 6c 6c",
    );
    assert!(matches!(error, Error::NotACapture { magic: [0x68, 0x65, 0x6c, 0x6c], .. }));
    check(
        b"\xfd7zXZ\0",
        0,
        "the file is not a pcap or pcapng capture: offset 0 has fd 37 7a 58; \
         it is xz, decompress it first",
    );
    check(&gzip(b""), 0, "the decompressed data are empty: nothing at offset 0");
    check(&zstd(b""), 0, "the decompressed data are empty: nothing at offset 0");
    check(
        &gzip(b"hello"),
        0,
        "the decompressed data are not a pcap or pcapng capture: offset 0 has 68 65 6c 6c",
    );
}

#[test]
fn pcapng_headers_that_make_no_sense() {
    let mut file = Build::little().section().bytes;
    file[8] = 0;
    let error = check(
        &file,
        0,
        "section header at offset 0 has byte-order magic 0x003c2b1a instead of 0x1a2b3c4d",
    );
    assert!(matches!(error, Error::ByteOrder { .. }));

    let mut file = Build::big().section().bytes;
    file[13] = 2;
    check(&file, 0, "pcapng version 2.0 at offset 0 is not supported");
    file[13] = 1;
    file[15] = 2;
    assert_eq!(read_good(&file), []);

    // In a second section, after a record.
    let first = Build::little().section().ethernet(9).enhanced(0, 1, 1, b"x").bytes;
    let mut second = Build::big().section().bytes;
    second[11] = 0x4e;
    check(
        &[first, second].concat(),
        1,
        "section header at offset 96 has byte-order magic 0x1a2b3c4e instead of 0x1a2b3c4d",
    );
}

#[test]
fn pcapng_lengths_that_make_no_sense() {
    let start = Build::little().section().ethernet(9).enhanced(0, 1, 1, b"x");
    for (kind, least, name) in [
        (6, 32, "enhanced packet block"),
        (3, 16, "simple packet block"),
        (2, 32, "obsolete packet block"),
        (1, 20, "interface description"),
        (0xbad, 12, "block of type 0xbad"),
    ] {
        for claim in [0, least - 4, least - 1] {
            let file = start.clone().u32(kind).u32(claim).raw(&[0; 64]).bytes;
            let text =
                format!("{name} at offset 96 claims {claim} bytes, it needs at least {least}");
            let error = check(&file, 1, &text);
            assert!(matches!(error, Error::BlockTooShort { block: BlockType(k), .. } if k == kind));
        }
        let file = start.clone().u32(kind).u32(least + 1).raw(&[0; 64]).bytes;
        let claim = least + 1;
        let text =
            format!("{name} at offset 96 claims {claim} bytes, which is not a multiple of 4");
        assert!(matches!(check(&file, 1, &text), Error::BlockUnaligned { .. }));

        let body = vec![0; least as usize - 12];
        let file = start.clone().u32(kind).u32(least).raw(&body).u32(least + 4).bytes;
        let text = format!(
            "{name} at offset 96 starts with length {least} but ends with length {}",
            least + 4
        );
        assert!(matches!(check(&file, 1, &text), Error::BlockLengths { .. }));
    }
    let mut file = Build::little().section().bytes;
    file[4] = 24;
    check(&file, 0, "section header at offset 0 claims 24 bytes, it needs at least 28");
}

#[test]
fn pcapng_packets_that_make_no_sense() {
    let start = Build::little().section();
    let name = "enhanced packet block at offset";
    let file = start.clone().enhanced(0, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 28 names interface 0, before any was described"));
    let file = start.clone().ethernet(9).enhanced(1, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 60 names interface 1, only interface 0 was described"));
    let file = start.clone().ethernet(9).ethernet(9).enhanced(7, 0, 0, b"").bytes;
    let error = check(
        &file,
        0,
        &format!("{name} 92 names interface 7, only interfaces 0 to 1 were described"),
    );
    assert!(matches!(error, Error::UnknownInterface { interface: 7, known: 2, .. }));
    // A new section knows nothing of the interfaces before it.
    let file = start.clone().ethernet(9).section().enhanced(0, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 88 names interface 0, before any was described"));
    let simple = start.part().u32(0);
    check(
        &start.clone().block(3, simple).bytes,
        0,
        "simple packet block at offset 28 names interface 0, before any was described",
    );

    let body = start.part().u32(0).time(0).u32(9).u32(9).raw(&[0; 8]);
    let file = start.clone().ethernet(9).block(6, body).bytes;
    let error = check(&file, 0, &format!("{name} 60 claims 9 captured bytes, it has room for 8"));
    assert!(matches!(error, Error::CapturedTooLong { .. }));
    let body = start.part().u32(u32::MAX);
    check(
        &start.clone().ethernet(9).block(3, body).bytes,
        0,
        "simple packet block at offset 60 claims 4294967295 captured bytes, it has room for 0",
    );
}

#[test]
fn pcapng_options_that_make_no_sense() {
    let start = Build::little().section();
    let with = |options: Build| start.clone().interface(1, 0, options).bytes;
    let name = "interface description at offset 28: option";
    let error = check(
        &with(start.part().option(9, &[1, 2])),
        0,
        &format!("{name} 9 claims 2 bytes, it has 1"),
    );
    assert!(matches!(error, Error::BadOption { expected: OptionLength::Exactly(1), .. }));
    check(
        &with(start.part().option(14, &[1, 2, 3, 4])),
        0,
        &format!("{name} 14 claims 4 bytes, it has 8"),
    );
    check(
        &with(start.part().u16(2).u16(5).raw(b"eth0")),
        0,
        &format!("{name} 2 claims 5 bytes, its block has 4 left"),
    );
    // What follows the end mark is ignored, and the end mark itself may be missing.
    assert_eq!(read_good(&with(start.part().option(0, &[]).u16(9).u16(99))), []);
    assert_eq!(read_good(&with(start.part().option(2, b"eth0"))), []);
}

#[test]
fn a_source_that_fails_keeps_its_reason() {
    let file = Build::little().pcap(0xa1b2_c3d4, 1).record(0, 0, 1, b"x").bytes;
    let (before, error) = faulty(read_source(Failing(&file)));
    assert_eq!((before, error.to_string().as_str()), (1, "cannot read on at offset 41"));
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "the disk is on fire");

    let (before, error) = faulty(read_source(Failing(&[])));
    assert_eq!((before, error.offset()), (0, Some(at(0))));
    assert!(matches!(faulty(read_source(Failing(&gzip(&file)))).1, Error::Io { .. }));
    assert!(matches!(faulty(read_source(Failing(&zstd(&file)))).1, Error::Io { .. }));

    let error = open(Path::new("/nowhere/-")).unwrap_err();
    assert_eq!(error.to_string(), "cannot open /nowhere/-");
    assert!(std::error::Error::source(&error).is_some() && error.offset().is_none());
}
