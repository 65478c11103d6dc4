//! Facts about a packet that only the whole capture shows: its connection, and the cause of its
//! retransmission.

use anyhow::{Result, bail};
use roce::analysis::{
    Analysis, Config, PacketFacts, PacketNote, Report, RetransmissionCause, Sink,
};
use roce::decode::{Context, Decoder};

use super::args::Args;
use crate::input::Inputs;
use crate::interrupt;

/// Fields that need the connections of the whole capture.
pub(super) const FIELDS: [&str; 2] = ["roce.flow", "roce.retransmission"];

/// Analysis of captures that are read twice.
///
/// The connection of a packet may be known only by later packets. So the captures are analyzed
/// twice in the same way: the second pass assigns flow numbers to packets, and the report of the
/// first pass says which connection each flow number belongs to. No packet has to be kept.
pub(super) struct Flows {
    report: Report,
    analysis: Analysis,
}

impl Flows {
    /// Reads the captures for the first time. Inputs that can be read only once are refused.
    pub(super) fn find(args: &Args, inputs: &Inputs) -> Result<Self> {
        if inputs.size().is_none() {
            let [flow, retransmission] = FIELDS;
            bail!(
                "{flow} and {retransmission} need a whole capture before its first packet is printed, and a pipe can be \
                 read only once: write it to a file, and decode the file"
            );
        }
        let mut analysis = Analysis::new(Config::default());
        let mut decoder = Decoder::new(args.port);
        let mut first = Inputs::reopen(&args.files, args.strict)?;
        while !interrupt::requested() {
            match first.merge.next() {
                Ok(Some(record)) => {
                    decoder.decode_with(&record, |packet| {
                        handle(&mut analysis, packet);
                    });
                }
                Ok(None) => break,
                // The second pass reports the error.
                Err(_) => {}
            }
        }
        let report = analysis.finish(&mut ());
        Ok(Self { report, analysis: Analysis::new(Config::default()) })
    }

    /// Annotates a packet with its connection and the cause of its retransmission. Must be called
    /// for every packet, in order.
    pub(super) fn annotate(&mut self, packet: &mut Context<'_>) {
        let Some(note) = handle(&mut self.analysis, packet) else { return };
        packet.annotations.flow = self.report.flow_of(note.flow).map(|(flow, _)| flow.0.into());
        packet.annotations.retransmission = note.retransmission.map(RetransmissionCause::name);
    }
}

/// Passes a packet to the analysis. Returns the analysis's note on it, if it belongs to a
/// connection.
fn handle(analysis: &mut Analysis, packet: &Context<'_>) -> Option<PacketNote> {
    let file = u16::try_from(packet.file).unwrap_or(u16::MAX);
    let Some(facts) = PacketFacts::new(packet, file) else {
        analysis.handle_other_frame(packet.time, packet.wire_len, file);
        return None;
    };
    let mut sink = NoteSink { packet: facts.identity(), note: None };
    analysis.handle_packet(&facts, &mut sink);
    sink.note
}

/// Sink that keeps the note of one packet.
struct NoteSink {
    packet: (u64, u16),
    note: Option<PacketNote>,
}

impl Sink for NoteSink {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        if facts.identity() == self.packet {
            self.note = Some(*note);
        }
    }
}
