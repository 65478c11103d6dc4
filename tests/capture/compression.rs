//! Damaged compression.

use std::io::Write;

use roce::capture::Error;

use super::build::*;
use super::source::*;

#[test]
fn damaged_gzip_yields_everything_before_the_damage() {
    // Two members; the second starts with a block of the reserved type. Exactly the records of the
    // first come out, whatever size of output the decoder was given.
    let plain = noise(3000);
    let cut = 24 + 1234 * 116;
    let mut bad = gzip(&plain[cut..]);
    bad[10] = 0b111;
    let (before, error) = read_bad(&[gzip(&plain[..cut]), bad].concat());
    assert_eq!(before, 1234);
    assert_eq!(
        error.to_string(),
        format!("gzip data damaged at offset {cut} of the decompressed data: invalid deflate data")
    );

    // The same within one deflate stream: stored blocks, of which the second contradicts itself.
    let stored = |last: u8, data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap();
        [&[last][..], &length.to_le_bytes(), &(!length).to_le_bytes(), data].concat()
    };
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut second = stored(1, &plain[24 + 200 * 116..][..9]);
    second[3] ^= 1;
    let file = [&head[..], &stored(0, &plain[..24 + 200 * 116]), &second].concat();
    let (before, error) = read_bad(&file);
    assert_eq!((before, error.offset().unwrap().bytes), (200, 24 + 200 * 116));
}

#[test]
fn gzip_headers_and_trailers() {
    let plain = noise(3);
    let expected = read_good(&plain);
    let packed = gzip(&plain);
    // Extra field, name, comment and header check, all at once.
    let full =
        [&packed[..3], &[0x1e], &packed[4..10], b"\x03\0xyzname\0comment\0hc", &packed[10..]];
    assert_eq!(read_good(&full.concat()), expected);

    let damage = |index: usize, reason: &str| {
        let mut bad = packed.clone();
        bad[index] ^= 0x80;
        let (records, error) = read_all(&bad);
        let error = error.unwrap().to_string();
        assert!(error.ends_with(reason), "{error}");
        records
    };
    assert_eq!(damage(packed.len() - 8, "the checksum does not match"), expected);
    assert_eq!(damage(packed.len() - 1, "the length does not match"), expected);
    assert_eq!(damage(2, "unknown compression method"), []);
    assert_eq!(damage(3, "unknown flags"), []);
    let (before, error) = read_bad(&[packed.as_slice(), b"trailing rubbish"].concat());
    assert_eq!(before, 3);
    assert!(error.to_string().ends_with("something else follows the compressed data"), "{error}");
}

/// A zstd frame of raw blocks with a window descriptor, and no checksum.
fn zstd_frame(window: u8, blocks: &[&[u8]]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    for (index, block) in blocks.iter().enumerate() {
        let last = u32::from(index + 1 == blocks.len());
        let header = u32::try_from(block.len()).expect("short") << 3 | last;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

#[test]
fn damaged_zstd_yields_every_block_before_the_damage() {
    let plain = noise(3000);
    let blocks: Vec<&[u8]> = plain.chunks(50_000).collect();
    let good = zstd_frame(7 << 3, &blocks);
    assert_eq!(read_good(&good).len(), 3000);
    for block in 1..blocks.len() {
        // The header of this block gets the reserved type.
        let mut bad = good.clone();
        bad[6 + block * 50_003] |= 0b110;
        let (before, error) = read_bad(&bad);
        assert_eq!(before, (block * 50_000 - 24) / 116, "block {block}");
        assert!(matches!(error, Error::Zstd { .. }), "{error}");
        assert_eq!(error.offset().unwrap().bytes, block as u64 * 50_000);
    }
    // Compressed blocks and a checksum that is wrong: all of it comes out, and then the error.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(&std::fs::read(testdata("rxe_lossy.pcap")).unwrap()).unwrap();
    let mut packed = encoder.finish().unwrap();
    *packed.last_mut().unwrap() ^= 1;
    let (before, error) = read_bad(&packed);
    assert_eq!(before, 2062);
    assert_eq!(
        error.to_string(),
        "zstd data damaged at offset 1679501 of the decompressed data: \
         Restored data doesn't match checksum"
    );

    let (before, error) = read_bad(&[zstd(&plain).as_slice(), b"trailing rubbish"].concat());
    assert_eq!(before, 3000);
    assert!(
        error
            .to_string()
            .starts_with("zstd data damaged at offset 348024 of the decompressed data")
    );
}

#[test]
fn damaged_zstd_yields_what_the_decoder_still_held() {
    // A record so long that its end leaves the decoder only 40 bytes of room for a whole block, the
    // rest of which it has to hold back; and then a block of the reserved type.
    let mut file = Build::little().pcap(0xa1b2_c3d4, 1).record(0, 0, 300_000, &[7; 300_000]);
    for second in 0..200 {
        file = file.record(second, 0, 100, &[1; 100]);
    }
    let blocks: Vec<&[u8]> = file.bytes.chunks(50_000).collect();
    let mut frame = zstd_frame(9 << 3, &[&blocks[..], &[b"damaged"]].concat());
    let header = frame.len() - 10;
    frame[header] |= 0b110;
    let (before, error) = read_bad(&frame);
    assert_eq!(before, 201);
    assert_eq!(error.offset().unwrap().bytes, file.bytes.len() as u64);
}

#[test]
fn zstd_windows_have_a_limit() {
    let plain = noise(3);
    // A window of 2^(10 + exponent) bytes.
    assert_eq!(read_good(&zstd_frame(15 << 3, &[&plain])).len(), 3);
    for window in [15 << 3 | 1, 16 << 3, 21 << 3] {
        let (_, error) = read_bad(&zstd_frame(window, &[&plain]));
        assert_eq!(
            error.to_string(),
            "zstd frame at offset 0 of the decompressed data needs a window of more than 32 MiB; \
             decompress it first with `zstd -d --long=31`"
        );
    }
}
