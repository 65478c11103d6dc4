//! Several captures merged by time.

use std::io::Read;

use roce::capture::{Error, Merge, Reader};
use roce::time::Instant;

use super::build::*;
use super::source::*;

/// A pcap whose records have these times, and their position as their only byte.
fn pcap(times: &[u32]) -> Vec<u8> {
    let start = Build::little().pcap(0xa1b2_c3d4, 1);
    let file = times.iter().zip(0..).fold(start, |file, (&time, n)| file.record(time, 0, 1, &[n]));
    file.bytes
}

/// `file.position` of every record, in the order of a merge, and its errors as `file!`.
fn merged<R: Read>(readers: Vec<Reader<R>>) -> Vec<String> {
    let mut merge = Merge::new(readers);
    let mut all = Vec::new();
    let mut count = 0;
    loop {
        match merge.next() {
            Ok(Some(record)) => {
                count += 1;
                assert_eq!(record.number, count, "numbers count the merged stream");
                all.push(format!("{}.{}", record.file, record.data[0]));
            }
            Ok(None) => break,
            Err(error) => all.push(format!("{}!", error.file)),
        }
    }
    assert!(matches!(merge.next(), Ok(None)), "after the end comes nothing");
    all
}

fn merged_files(files: &[Vec<u8>]) -> Vec<String> {
    merged(files.iter().map(|file| Reader::new(&file[..]).unwrap()).collect())
}

#[test]
fn records_are_merged_by_time_and_ties_by_file() {
    let files = [pcap(&[1, 4, 4, 9]), pcap(&[0, 4, 5]), pcap(&[]), pcap(&[4])];
    assert_eq!(merged_files(&files), ["1.0", "0.0", "0.1", "0.2", "1.1", "3.0", "1.2", "0.3"]);
    assert_eq!(merged_files(&files[..1]), ["0.0", "0.1", "0.2", "0.3"]);
    assert!(merged_files(&[]).is_empty());
}

#[test]
fn file_that_goes_back_in_time_keeps_its_order() {
    let files = [pcap(&[10, 3, 4, 11]), pcap(&[2, 9, 10, 12])];
    assert_eq!(merged_files(&files), ["1.0", "1.1", "0.0", "0.1", "0.2", "1.2", "0.3", "1.3"]);
}

#[test]
fn records_without_time_follow_their_predecessor() {
    let simple = |file: Build, data: &[u8]| {
        let body = file.part().u32(1).padded(data);
        file.block(3, body)
    };
    let file = Build::little().section().interface(1, 1, Build::little());
    let file = simple(file, &[0]);
    let file = simple(file.enhanced(0, 5_000_000, 1, &[1]), &[2]).enhanced(0, 7_000_000, 1, &[3]);
    let files = [pcap(&[1, 5, 6, 7]), file.bytes];
    assert_eq!(
        merged_files(&files),
        ["1.0", "0.0", "0.1", "1.1", "1.2", "0.2", "0.3", "1.3"],
        "the first has no predecessor and so comes first"
    );
}

#[test]
fn damaged_file_ends_and_the_others_go_on() {
    let mut cut = pcap(&[1, 3, 5]);
    cut.pop();
    let mut damaged = pcap(&[2, 4, 6]);
    let third = 24 + 2 * 17;
    damaged[third + 8..third + 12].fill(0xff);
    let files = [cut, damaged, pcap(&[1, 2, 9])];
    assert_eq!(merged_files(&files), ["0.0", "2.0", "1.0", "2.1", "0.1", "0!", "1.1", "1!", "2.2"]);
}

#[test]
fn failing_first_read_is_reported_once() {
    let good = pcap(&[1]);
    let failing: Box<dyn Read> = Box::new(Failing(&good[..24]));
    let readers =
        vec![Reader::new(failing).unwrap(), Reader::new(Box::new(&good[..]) as _).unwrap()];
    assert_eq!(merged(readers), ["0!", "1.0"]);
}

#[test]
fn error_names_its_file() {
    let good = pcap(&[1]);
    let readers = [Reader::new(&good[..]).unwrap(), Reader::new(&good[..30]).unwrap()];
    let mut merge = Merge::new(readers);
    let error = merge.next().unwrap_err();
    assert!(matches!((error.file, &error.error), (1, Error::Cut { .. })));
    assert_eq!(error.to_string(), "record cut at offset 24: need 16 bytes, have 6");
    assert_eq!(merge.next().unwrap().unwrap().time, Some(Instant::from_nanos(1_000_000_000)));
}

proptest::proptest! {
    /// Against sorting: files whose times go up, merged, are all records sorted by time and then by
    /// file.
    #[test]
    fn merge_of_sorted_files_is_a_stable_sort(
        files in proptest::collection::vec(proptest::collection::vec(0_u32..20, 0..12), 0..6)
    ) {
        let sorted = |mut times: Vec<u32>| { times.sort_unstable(); times };
        let files: Vec<_> = files.into_iter().map(sorted).collect();
        let mut expected = Vec::new();
        for (file, times) in files.iter().enumerate() {
            expected.extend(times.iter().enumerate().map(|(n, &time)| (time, file, n)));
        }
        expected.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|(_, file, n)| format!("{file}.{n}")).collect();
        let files: Vec<_> = files.iter().map(|times| pcap(times)).collect();
        proptest::prop_assert_eq!(merged_files(&files), expected);
    }
}
