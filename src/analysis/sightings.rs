//! Transit times of packets from one capture point to the next.

use serde::Serialize;

use super::statistics::Distribution;

/// Transit times from one capture point to the next.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Transit {
    /// The file that saw them first.
    pub from: u16,
    /// The file that saw them next.
    pub to: u16,
    /// The one-way transit in nanoseconds, by clocks that are brought together (see
    /// [`FileFacts::clock_offset_nanos`](super::FileFacts::clock_offset_nanos)).
    pub nanos: Distribution,
    /// Packets that took much longer than most.
    pub delayed: u64,
    /// The longest of these.
    pub delays: Vec<Delay>,
}

/// A packet that took much longer than most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Delay {
    /// Transit time in nanoseconds.
    pub nanos: u64,
    /// Frames in both files.
    pub frames: [u64; 2],
}
