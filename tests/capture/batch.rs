//! Batches hold what is lent one by one.

use roce::capture::{Batch, Error, Merge, Reader, Record, Surroundings};

use super::source::*;

fn real_captures() -> [Vec<u8>; 4] {
    ["rxe_all_ops.pcap", "rxe_lossy.pcap", "rxe_cm.pcap", "odd.pcapng"]
        .map(|name| std::fs::read(testdata(name)).unwrap())
}

/// Reads a file in batches, alone and merged with itself, and compares with what it yields one by
/// one.
pub(crate) fn check(file: &[u8]) {
    let Ok(mut reader) = Reader::new(file) else { return };
    let (mut records, mut offsets) = (Vec::new(), Vec::new());
    let error = loop {
        match reader.next() {
            Ok(Some(record)) => {
                offsets.push((record.number, record.offset));
                records.push(Owned::from(record));
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let mut reader = Reader::new(file).unwrap();
    let (mut batch, mut at) = (Batch::default(), 0);
    let failed: Option<Error> = loop {
        match reader.next_batch(&mut batch) {
            Ok(true) => assert!(!batch.is_empty()),
            Ok(false) => break None,
            Err(error) => break Some(error),
        }
        for record in batch.records() {
            assert_eq!((record.number, record.offset), offsets[at]);
            assert_eq!(Owned::from(record), records[at]);
            at += 1;
        }
    };
    assert_eq!((at, failed.map(|error| error.to_string())), (records.len(), error.clone()));
    let twice = || Merge::new([Reader::new(file).unwrap(), Reader::new(file).unwrap()]);
    let (mut one, mut batches) = (twice(), twice());
    loop {
        match batches.next_batch(&mut batch) {
            Ok(true) => {}
            Ok(false) => break assert!(matches!(one.next(), Ok(None))),
            Err(failed) => {
                let expected = one.next().unwrap_err();
                assert_eq!(failed.file, expected.file);
                assert_eq!(failed.to_string(), expected.to_string());
                assert!(batch.is_empty());
                continue;
            }
        }
        for record in batch.records() {
            // A batch does not keep what stands around its records.
            let expected = one.next().unwrap().unwrap();
            assert_eq!(record, Record { around: Surroundings::default(), ..expected });
        }
    }
}

#[test]
fn batches_of_large_captures_hold_what_is_lent_one_by_one() {
    for file in real_captures() {
        check(&file);
        check(&file[..file.len() / 2]);
    }
}

#[test]
fn records_of_any_length_fit_between_batches() {
    let mut file = super::build::Build::little().pcap(0xa1b2_3c4d, 1);
    let lengths = [0, 1, 255 << 10, 256 << 10, 1 << 20, 0, 100_000, 200_000, 16, 300_000];
    for (i, length) in lengths.into_iter().cycle().take(40).enumerate() {
        let data: Vec<u8> = (0..length).map(|n| u8::try_from((n + i) % 251).unwrap()).collect();
        file = file.record(u32::try_from(i).unwrap(), 0, u32::try_from(length).unwrap(), &data);
    }
    // More records than a batch has, without a byte each.
    for i in 0..20_000 {
        file = file.record(i, 0, 0, b"");
    }
    check(&file.bytes);
    check(&file.bytes[..file.bytes.len() - 7]);
}

#[test]
fn batches_and_single_records_can_alternate() {
    let [file, ..] = real_captures();
    let expected = read_good(&file);
    let mut merge = Merge::new([Reader::new(&file[..]).unwrap()]);
    let (mut batch, mut seen) = (Batch::default(), Vec::new());
    let owned = |record: Record<'_>| Owned::from(record);
    loop {
        if let Some(record) = merge.next().unwrap() {
            seen.push(owned(record));
        }
        if !merge.next_batch(&mut batch).unwrap() {
            break;
        }
        seen.extend(batch.records().map(owned));
    }
    assert_eq!(seen, expected);
}
