//! Sightings of one packet by several capture points.

use super::disorder::Lateness;
use crate::time::Instant;

/// Findings of the other files of a capture about a packet. With one file nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// The capture points between which it was lost: one saw it, the next one on its way did not.
    pub lost: Option<LostBetween>,
    /// The capture points between which it may have been lost: the file of the second one ends
    /// before it could have seen it.
    pub unseen: Option<LostBetween>,
    /// Whether the last capture point on its way saw it.
    pub is_delivered: bool,
    /// Whether the network made it of a packet that was sent once.
    pub is_copy: bool,
    /// Extent by which it arrived out of order at the last capture point, if it did: it is not part
    /// of the longest sequence of packets of its flow that arrived in the order in which they were
    /// sent.
    pub reordered: Option<Lateness>,
    /// Time when the capture point nearest to the responder saw it, if another one did too.
    pub far: Option<Instant>,
    /// Whether it was lost because it was damaged: the next capture point saw it with a wrong ICRC.
    pub is_damaged_later: bool,
    /// Whether it is the damaged form of a packet that another file has whole.
    pub is_damaged_copy: bool,
}

impl Sightings {
    /// Nothing found.
    pub(crate) const NONE: Self = Self {
        lost: None,
        unseen: None,
        is_delivered: false,
        is_copy: false,
        reordered: None,
        far: None,
        is_damaged_later: false,
        is_damaged_copy: false,
    };
}

/// Two capture points between which a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBetween {
    /// The last file that has it.
    pub from: u16,
    /// The first file on its way that does not.
    pub to: u16,
    /// Frame of the packet in the last file that has it.
    pub frame: u64,
}
