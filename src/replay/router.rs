//! Routing of packets to connections and hosts, in the second pass.

use core::fmt;
use std::collections::HashMap;
use std::sync::Arc;

use super::batch::PacketBatch;
use super::survey::{Survey, config};
use crate::analysis::{Analysis, PacketFacts, PacketNote, Sink};
use crate::wire::IcrcVerdict;

/// Finds the connection of every packet.
pub struct Router {
    survey: Arc<Survey>,
    source: Source,
}

/// Source of the notes on packets.
enum Source {
    /// The first pass kept them. The next packet is this one of all, the next damaged one this one
    /// of those.
    Log(usize, usize),
    /// The analysis tells them once more.
    Analysis(Box<Analysis>, Held),
}

/// Packets that the analysis holds until it has seen those of the other files, by frame and
/// position in a train; see [`VANTAGE_PACKETS_MAX`](crate::analysis::limits::VANTAGE_PACKETS_MAX).
type Held = HashMap<(u64, u16), Vec<u8>>;

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").finish_non_exhaustive()
    }
}

impl Router {
    pub(super) fn new(survey: Arc<Survey>) -> Self {
        let source = match survey.notes() {
            Some(_) => Source::Log(0, 0),
            None => {
                let analysis = Analysis::new(config(&survey.files));
                Source::Analysis(Box::new(analysis), HashMap::new())
            }
        };
        Self { survey, source }
    }

    /// Finds the connections of the next packets. Those of several files may come in a later batch.
    pub fn route(&mut self, batch: &mut PacketBatch) {
        let survey = &self.survey;
        match &mut self.source {
            Source::Log(next, damaged) => {
                let Some(notes) = survey.notes() else { return };
                for packet in &mut batch.packets {
                    if notes.damaged().get(*damaged) == Some(&*next) {
                        packet.facts.icrc = IcrcVerdict::Bad;
                        *damaged += 1;
                    }
                    packet.routed = notes.get(*next).and_then(|note| survey.resolve(note));
                    *next += 1;
                }
            }
            Source::Analysis(analysis, held) => {
                let told = core::mem::take(batch);
                for packet in &told.packets {
                    held.insert(packet.facts.identity(), told.bytes_of(packet).to_vec());
                    analysis.handle_packet(&packet.facts, &mut Told { survey, held, batch });
                }
            }
        }
    }

    /// The capture is over: adds the packets that were held to `batch`. Returns what the first pass
    /// found.
    pub fn finish(self, batch: &mut PacketBatch) -> Arc<Survey> {
        if let Source::Analysis(analysis, mut held) = self.source {
            analysis.finish(&mut Told { survey: &self.survey, held: &mut held, batch });
        }
        self.survey
    }
}

/// Takes packets from the analysis.
struct Told<'a> {
    survey: &'a Survey,
    held: &'a mut Held,
    batch: &'a mut PacketBatch,
}

impl Sink for Told<'_> {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let bytes = self.held.remove(&facts.identity()).unwrap_or_default();
        if let Some(routed) = self.survey.resolve(note.into()) {
            self.batch.push_routed(facts, &bytes, routed);
        }
    }

    fn sighting(&mut self, facts: &PacketFacts, _: &PacketNote) {
        self.held.remove(&facts.identity());
    }
}
