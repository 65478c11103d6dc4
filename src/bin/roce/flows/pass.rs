//! A pass over the captures: all cores decode, and the analysis is told every frame in order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Error;
use roce::analysis::{Analysis, Config, PacketFacts, Report, Sink};
use roce::capture::Record;
use roce::decode::{Decoder, Filter};
use roce::time::Instant;

use crate::batches::{self, Part};
use crate::input::Inputs;
use crate::links::UnknownLinks;
use crate::progress::progress_bar;

/// Options of reading the captures.
pub(super) struct Pass<'a> {
    pub(super) port: u16,
    pub(super) filter: Option<&'a Filter>,
    pub(super) threads: usize,
    /// Ends the pass early.
    pub(super) stop: &'a AtomicBool,
}

impl Pass<'_> {
    /// Reads all captures. `step` is called after every part, and may end the pass with an error.
    pub(super) fn run<S: Sink + Send>(
        &self,
        inputs: &mut Inputs,
        config: Config,
        sink: &mut S,
        mut step: impl FnMut(&mut S) -> Result<(), Error> + Send,
    ) -> Result<Report, Error> {
        let mut analysis = Analysis::new(config);
        let bar = progress_bar(inputs.size(), false);
        let mut unknown = UnknownLinks::default();
        // Another core wrote them: one copy of them all waits for its cache less often than the
        // tracker would, line by line.
        let mut packets: Vec<PacketFacts> = Vec::new();
        let take = |part: &mut Part<Frames>| {
            let Frames { packets: made, others, unknown: links } = &mut part.made;
            packets.clear();
            packets.append(made);
            let mut others = others.iter().peekable();
            for (at, packet) in packets.iter().enumerate() {
                while let Some(other) = others.next_if(|other| other.packets_before == at) {
                    other.tell(&mut analysis);
                }
                analysis.handle_packet(packet, sink);
            }
            others.for_each(|other| other.tell(&mut analysis));
            unknown.append(links);
            bar.set_position(part.bytes_read);
            step(sink)?;
            if self.stop.load(Ordering::Relaxed) { Err(End::Stopped) } else { Ok(()) }
        };
        let work = |part: &mut Part<Frames>| {
            let Part { batch, decoder, made, .. } = part;
            made.packets.clear();
            made.others.clear();
            for record in batch.records() {
                made.unknown.note(&record);
                made.push(decoder, &record, self.filter);
            }
        };
        let ended = batches::decode(self.threads, inputs, self.port, Frames::default, work, take);
        if let Err(End::Failed(error)) = ended {
            return Err(error);
        }
        bar.finish_and_clear();
        inputs.finish();
        unknown.report(&mut inputs.problems);
        analysis.handle_drops(inputs.dropped());
        let report = analysis.finish(sink);
        step(sink)?;
        Ok(report)
    }
}

/// Reason for which a pass ends before its input does.
enum End {
    Stopped,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Frames of a batch of records, for the analysis.
#[derive(Default)]
struct Frames {
    packets: Vec<PacketFacts>,
    others: Vec<OtherFrame>,
    unknown: UnknownLinks,
}

/// A frame that holds no packet.
struct OtherFrame {
    /// Number of packets of the batch that are before it.
    packets_before: usize,
    time: Option<Instant>,
    wire_len: u32,
    file: u16,
}

impl OtherFrame {
    fn tell(&self, analysis: &mut Analysis) {
        analysis.handle_other_frame(self.time, self.wire_len, self.file);
    }
}

impl Frames {
    /// Adds what the analysis is told of a record; nothing if the filter does not let it through.
    #[inline]
    fn push(&mut self, decoder: &mut Decoder, record: &Record<'_>, filter: Option<&Filter>) {
        decoder.decode_with(record, |context| {
            if filter.is_some_and(|filter| !filter.matches(context)) {
                return;
            }
            let file = u16::try_from(record.file).unwrap_or(u16::MAX);
            match PacketFacts::new(context, file) {
                Some(packet) => self.packets.push(packet),
                None => self.others.push(OtherFrame {
                    packets_before: self.packets.len(),
                    time: context.time,
                    wire_len: context.wire_len,
                    file,
                }),
            }
        });
    }
}
