//! The parts of a replay, each of which judges packets of one kind.

use super::verdict::Step;
use crate::analysis::{PacketFacts, PacketNote};

/// One packet of the capture, in the order in which the analysis tells of them.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What the analysis needed to know of it.
    pub facts: &'a PacketFacts,
    /// What the analysis found it to be, its connection numbered as in the final report.
    pub note: &'a PacketNote,
    /// The packet from its BTH on, without ICRC; shorter than on the wire if the capture cut it.
    pub packet: &'a [u8],
}

/// Judges packets of one kind.
pub trait Judge {
    /// Takes a packet. Tells `out` what became clear by it, about this packet or earlier ones.
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink);

    /// The capture is over: tells `out` about every packet that still waits for its verdict.
    fn finish(&mut self, out: &mut dyn Sink);
}

/// Takes the verdicts of a replay.
pub trait Sink {
    /// One verdict.
    fn step(&mut self, step: Step);
}

impl Sink for Vec<Step> {
    fn step(&mut self, step: Step) {
        self.push(step);
    }
}
