//! What several capture points say about one packet, and about the network between them.

use serde::Serialize;

use super::statistics::Distribution;

/// What the other files of a capture say about a packet. With one file nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Where it was lost, if one capture point saw it and the next one on its way did not.
    pub lost: Option<LostBetween>,
    /// The last capture point on its way saw it.
    pub is_delivered: bool,
    /// The network made it of a packet that was sent once.
    pub is_copy: bool,
    /// A packet of the same flow that was sent later arrived earlier at the last capture point.
    pub is_overtaken: bool,
    /// It was lost because it was damaged: the next capture point saw it with a wrong ICRC.
    pub is_damaged_later: bool,
    /// It is the damaged form of a packet that another file has whole.
    pub is_damaged_copy: bool,
}

/// Two capture points between which a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBetween {
    /// The last file that has it.
    pub from: u16,
    /// The first file on its way that does not.
    pub to: u16,
    /// Its frame in the last file that has it.
    pub frame: u64,
}

/// How long packets took from one capture point to the next.
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
    /// How long.
    pub nanos: u64,
    /// Its frames in both files.
    pub frames: [u64; 2],
}
