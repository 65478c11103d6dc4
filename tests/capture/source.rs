//! Sources of captures: records that own their bytes, and sources that are slow, packed or broken.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use roce::capture::{Error, Offset, Reader, Record};
use roce::time::Instant;

/// A record that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owned {
    /// Nanoseconds.
    pub(crate) time: Option<u64>,
    pub(crate) link: u16,
    pub(crate) len: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) section: u32,
    pub(crate) interface: Option<u32>,
}

impl From<Record<'_>> for Owned {
    fn from(record: Record<'_>) -> Self {
        Self {
            time: record.time.map(Instant::as_nanos),
            link: record.link.0,
            len: record.len,
            data: record.data.to_vec(),
            section: record.section,
            interface: record.interface.map(u32::from),
        }
    }
}

/// An Ethernet packet of a pcap, all of it captured.
pub(crate) fn packet(time: u64, data: &[u8]) -> Owned {
    Owned {
        time: Some(time),
        link: 1,
        len: u32::try_from(data.len()).expect("short"),
        data: data.to_vec(),
        section: 0,
        interface: None,
    }
}

/// Creates a packet of the first interface of a pcapng.
pub(crate) fn packet_ng(time: u64, data: &[u8]) -> Owned {
    let interface = Some(0);
    Owned { interface, ..packet(time, data) }
}

/// Reads a source to its end: records, then perhaps an error.
pub(crate) fn read_source(source: impl Read) -> (Vec<Owned>, Option<Error>) {
    let mut records = Vec::new();
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(error)),
    };
    let error = loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.number, records.len() as u64 + 1);
                records.push(record.into());
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    for _ in 0..3 {
        assert!(matches!(reader.next(), Ok(None)), "after the end or an error comes nothing");
    }
    (records, error)
}

/// Reads a file in memory to its end, in batches too.
pub(crate) fn read_all(file: &[u8]) -> (Vec<Owned>, Option<Error>) {
    super::batch::check(file);
    read_source(file)
}

/// The records of a file that must be flawless.
pub(crate) fn read_good(file: &[u8]) -> Vec<Owned> {
    flawless(read_source(file))
}

pub(crate) fn flawless((records, error): (Vec<Owned>, Option<Error>)) -> Vec<Owned> {
    if let Some(error) = error {
        panic!("after {} records: {error}", records.len());
    }
    records
}

/// The number of records before a file's error, and the error.
pub(crate) fn read_bad(file: &[u8]) -> (usize, Error) {
    faulty(read_source(file))
}

pub(crate) fn faulty((records, error): (Vec<Owned>, Option<Error>)) -> (usize, Error) {
    (records.len(), error.expect("an error"))
}

/// The records of a flawless file that comes in small pieces.
pub(crate) fn read_slowly(file: &[u8], step: usize) -> Vec<Owned> {
    let interrupted = false;
    flawless(read_source(Dribble { bytes: file, step, interrupted }))
}

/// A place in an uncompressed capture.
pub(crate) fn at(bytes: u64) -> Offset {
    Offset { bytes, decompressed: false }
}

pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures").join(name)
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).expect("in memory")
}

/// A source that yields at most `step` bytes a read, each time after an interruption.
pub(crate) struct Dribble<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) step: usize,
    pub(crate) interrupted: bool,
}

impl Read for Dribble<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let step = self.step.min(out.len());
        self.bytes.read(&mut out[..step])
    }
}

/// A source that fails after its bytes.
pub(crate) struct Failing<'a>(pub(crate) &'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(io::Error::other("the disk is on fire")),
            count => Ok(count),
        }
    }
}
