//! What several tests need.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};

/// The bytes that a string of hexadecimal digits stands for.
pub fn unhex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2));
    let pair = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// A file in `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The captures in `testdata/captures`, in the order of their names.
pub fn captures() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(testdata("captures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files
}

/// Every frame of a classic little-endian microsecond pcap of Ethernet frames. Eight lines instead of the crate's
/// own reader, so that tests of the wire do not depend on it.
pub fn captured_frames(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "{path:?}");
    assert_eq!(file[20], 1, "{path:?} is Ethernet");
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}
