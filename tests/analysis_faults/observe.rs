//! The analysis of the captures of some of the points.

use std::collections::BTreeMap;

use roce::analysis::{
    Analysis, Config, Connection, LossNote, Message, PacketFacts, PacketNote, Report, Sink,
};
use roce::capture::{PcapWriter, Reader};
use roce::decode::Decoder;
use roce::wire::{Gid, LinkType, ROCE_PORT};

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

#[derive(Default)]
struct Log {
    notes: BTreeMap<u64, PacketNote>,
    losses: Vec<LossNote>,
    messages: Vec<Message>,
}

impl Sink for Log {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        assert!(self.notes.insert(facts.frame, *note).is_none(), "frame {} twice", facts.frame);
    }

    fn loss(&mut self, note: &LossNote) {
        self.losses.push(*note);
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

/// The frames of one point, through a capture file in memory.
fn facts_of(captured: &[Captured], file: u16) -> Vec<PacketFacts> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    for frame in captured {
        writer.write(frame.time, frame.bytes.len() as u32, &frame.bytes).unwrap();
    }
    let bytes = writer.into_inner();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    let mut all = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        all.push(PacketFacts::new(&decoder.decode(&record), file).unwrap());
    }
    all
}

/// Analyzes the captures of these points.
pub fn observe<'t>(truth: &'t Truth, points: &[usize]) -> Observed<'t> {
    let mut all: Vec<(PacketFacts, usize, &Captured)> = Vec::new();
    for (file, &point) in points.iter().enumerate() {
        let captured = &truth.captured[point];
        let facts = facts_of(captured, file as u16);
        assert_eq!(facts.len(), captured.len());
        all.extend(facts.into_iter().zip(captured).map(|(facts, frame)| (facts, point, frame)));
    }
    all.sort_by_key(|(facts, ..)| (facts.time, facts.file));
    let mut config = Config::default();
    config.files = points.iter().map(|&point| ["a", "switch", "b"][point].to_owned()).collect();
    let (mut analysis, mut log) = (Analysis::new(config), Log::default());
    let mut frames = Vec::with_capacity(all.len());
    for (number, (facts, point, captured)) in all.into_iter().enumerate() {
        let facts = PacketFacts { frame: number as u64 + 1, ..facts };
        analysis.handle_packet(&facts, &mut log);
        frames.push((point, captured));
    }
    let report = analysis.finish(&mut log);
    let Log { notes, losses, messages } = log;
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
