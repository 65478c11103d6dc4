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

/// How the captures are read.
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
        let take = |part: &mut Part<Frames>| {
            for frame in &part.made.frames {
                match frame {
                    Frame::Packet(packet) => analysis.handle_packet(packet, sink),
                    &Frame::Other { time, wire_len, file } => {
                        analysis.handle_other_frame(time, wire_len, file);
                    }
                }
            }
            unknown.append(&mut part.made.unknown);
            bar.set_position(part.bytes_read);
            step(sink)?;
            if self.stop.load(Ordering::Relaxed) { Err(End::Stopped) } else { Ok(()) }
        };
        let work = |part: &mut Part<Frames>| {
            let Part { batch, decoder, made, .. } = part;
            made.frames.clear();
            for record in batch.records() {
                made.unknown.note(&record);
                push_frame(decoder, &record, self.filter, &mut made.frames);
            }
        };
        let ended = batches::decode(self.threads, inputs, self.port, Frames::default, work, take);
        if let Err(End::Failed(error)) = ended {
            return Err(error);
        }
        bar.finish_and_clear();
        inputs.problems.finish();
        unknown.report(&mut inputs.problems);
        let report = analysis.finish(sink);
        step(sink)?;
        Ok(report)
    }
}

/// Why a pass ends before its input does.
enum End {
    Stopped,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What was made of a batch of records.
#[derive(Default)]
struct Frames {
    frames: Vec<Frame>,
    unknown: UnknownLinks,
}

/// What the analysis is told of a frame.
enum Frame {
    Packet(PacketFacts),
    Other { time: Option<Instant>, wire_len: u32, file: u16 },
}

/// Adds what the analysis is told of a record; nothing if the filter does not let it through.
#[inline]
fn push_frame(
    decoder: &mut Decoder,
    record: &Record<'_>,
    filter: Option<&Filter>,
    frames: &mut Vec<Frame>,
) {
    let context = decoder.decode(record);
    if filter.is_some_and(|filter| !filter.matches(&context)) {
        return;
    }
    let file = u16::try_from(record.file).unwrap_or(u16::MAX);
    frames.push(match PacketFacts::new(&context, file) {
        Some(packet) => Frame::Packet(packet),
        None => Frame::Other { time: context.time, wire_len: context.wire_len, file },
    });
}
