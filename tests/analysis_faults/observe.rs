//! The analysis of the captures of some of the points.

use std::collections::BTreeMap;

use roce::analysis::{Connection, LossNote, Message, PacketNote, Report};
use roce::wire::Gid;

use super::recorder::{Recorder, analyze_merged};
use super::truth::{Captured, Truth};

/// Results of an analysis.
pub struct Observed<'t> {
    pub points: Vec<usize>,
    /// The point and the captured frame, by frame number from 1.
    pub frames: Vec<(usize, &'t Captured)>,
    /// Notes by frame number.
    pub notes: BTreeMap<u64, PacketNote>,
    pub losses: Vec<LossNote>,
    pub messages: Vec<Message>,
    pub report: Report,
}

/// Analyzes the captures of these points.
pub fn observe<'t>(truth: &'t Truth, points: &[usize]) -> Observed<'t> {
    let files = points.iter().map(|&point| ["a", "switch", "b"][point].to_owned()).collect();
    let (mut frames, mut packets) = (Vec::new(), Vec::new());
    for frame in truth.merged(points) {
        frames.push((frame.point, frame.captured));
        packets.push(frame.facts);
    }
    let (report, Recorder { packets, losses, messages }) = analyze_merged(files, packets);
    let mut notes = BTreeMap::new();
    for (facts, note) in packets {
        assert!(notes.insert(facts.frame, note).is_none(), "frame {} twice", facts.frame);
    }
    Observed { points: points.to_vec(), frames, notes, losses, messages, report }
}

impl Observed<'_> {
    /// The connection of the scenario that a flow number belongs to, and whether end 0 of it is B.
    pub fn connection_of(
        &self,
        truth: &Truth,
        flow: roce::analysis::FlowNumber,
    ) -> Option<(usize, bool)> {
        let (flow, is_exchanged) = self.report.flow_of(flow)?;
        let connection = self.report.connections.iter().find(|known| known.flow == flow)?;
        let (index, is_b) = self.scenario_of(truth, connection)?;
        Some((index, is_b != is_exchanged))
    }

    /// The connection of the scenario that a connection of the report is, and whether its end 0 is
    /// B.
    pub fn scenario_of(&self, truth: &Truth, connection: &Connection) -> Option<(usize, bool)> {
        let is_b = is_b(connection.ends[0].address);
        let qpns = connection.ends.each_ref().map(|end| end.qpn.map(|qpn| qpn.get()));
        let [a, b] = if is_b { [qpns[1], qpns[0]] } else { qpns };
        let fits = |known: Option<u32>, real: u32| known.is_none_or(|known| known == real);
        let mut all = truth.qpns.iter().enumerate();
        let found = all
            .find(|(_, real)| (a.is_some() || b.is_some()) && fits(a, real[0]) && fits(b, real[1]));
        Some((found?.0, is_b))
    }

    /// The point of a frame number, and what was captured.
    pub fn frame(&self, number: u64) -> (usize, &Captured) {
        self.frames[number as usize - 1]
    }
}

/// Whether an address is host B's.
pub fn is_b(address: Gid) -> bool {
    address.0[15] == 2
}
