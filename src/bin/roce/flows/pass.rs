//! A pass over the captures: all cores decode, and a follower is told every frame in order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Error;
use roce::analysis::{Analysis, Config, PacketFacts, Report, Sink};
use roce::capture::Record;
use roce::decode::{Decoder, Filter};
use roce::time::Instant;

use crate::batches::{self, Part};
use crate::input::Inputs;
use crate::links::UnknownLinks;
use crate::progress::Progress;

/// Options of reading the captures.
pub(crate) struct Pass<'a> {
    pub(crate) port: u16,
    pub(crate) filter: Option<&'a Filter>,
    pub(crate) threads: usize,
    /// Ends the pass early.
    pub(crate) stop: &'a AtomicBool,
}

/// Takes the frames of a pass in order.
pub(crate) trait Follower {
    /// A packet.
    fn packet(&mut self, packet: &PacketFacts);

    /// A frame that holds no packet.
    fn other(&mut self, frame: &OtherFrame);

    /// Called after every part. May end the pass with an error.
    fn step(&mut self) -> Result<(), Error>;
}

impl Pass<'_> {
    /// Analyzes all captures. `step` is called after every part, and may end the pass with an
    /// error.
    pub(super) fn run<S: Sink + Send>(
        &self,
        inputs: &mut Inputs,
        config: Config,
        sink: &mut S,
        step: impl FnMut(&mut S) -> Result<(), Error> + Send,
    ) -> Result<Report, Error> {
        let mut analyst = Analyst { analysis: Analysis::new(config), sink, step };
        self.read(inputs, &mut analyst)?;
        let Analyst { mut analysis, sink, mut step } = analyst;
        analysis.handle_drops(inputs.dropped());
        let report = analysis.finish(sink);
        step(sink)?;
        Ok(report)
    }

    /// Reads all captures, and tells `follower` every frame.
    pub(crate) fn read<F: Follower + Send>(
        &self,
        inputs: &mut Inputs,
        follower: &mut F,
    ) -> Result<(), Error> {
        let bar = Progress::new(inputs.size(), false);
        let mut unknown = UnknownLinks::default();
        let take = |part: &mut Part<Frames>| {
            let Frames { packets, others, unknown: links } = &mut part.made;
            let mut others = others.iter().peekable();
            for (at, packet) in packets.iter().enumerate() {
                while let Some(other) = others.next_if(|other| other.packets_before == at) {
                    follower.other(other);
                }
                follower.packet(packet);
            }
            others.for_each(|other| follower.other(other));
            unknown.append(links);
            bar.set_position(part.bytes_read);
            follower.step()?;
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
        Ok(())
    }
}

/// Tells an analysis every frame.
struct Analyst<'s, S, F> {
    analysis: Analysis,
    sink: &'s mut S,
    step: F,
}

impl<S: Sink, F: FnMut(&mut S) -> Result<(), Error>> Follower for Analyst<'_, S, F> {
    #[inline]
    fn packet(&mut self, packet: &PacketFacts) {
        self.analysis.handle_packet(packet, self.sink);
    }

    fn other(&mut self, frame: &OtherFrame) {
        self.analysis.handle_other_frame(frame.time, frame.wire_len, frame.file);
    }

    fn step(&mut self) -> Result<(), Error> {
        (self.step)(self.sink)
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
pub(crate) struct OtherFrame {
    /// Number of packets of the batch that are before it.
    packets_before: usize,
    pub(crate) time: Option<Instant>,
    pub(crate) wire_len: u32,
    pub(crate) file: u16,
    /// The capture cut it before the end of its BTH, so that it is not known whether it is RoCE.
    pub(crate) is_cut: bool,
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
                    is_cut: context.frame.is_cut() && context.frame.packet().is_none(),
                }),
            }
        });
    }
}
