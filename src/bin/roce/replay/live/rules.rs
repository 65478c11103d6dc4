//! Answers of a live peer, held against the engine: what was sent and received is a capture.

use anyhow::Result;
use roce::capture::{LinkType, PcapngWriter};
use roce::replay::{Options, ReplayReport, Sink, Step, Subject, replay_capture};
use roce::time::Instant;
use roce::wire::Gid;

/// Takes the verdicts on answers; requests are this side's own.
struct Answers(ReplayReport);

impl Sink for Answers {
    fn step(&mut self, step: Step) {
        if step.subject == Subject::Response {
            self.0.step(step);
        }
    }
}

/// Judges the answers among frames that were sent and received at `own`.
pub(super) fn judge(
    frames: &[(Instant, Vec<u8>)],
    options: &Options,
    own: Gid,
) -> Result<ReplayReport> {
    let mut writer = PcapngWriter::new(Vec::new())?;
    let interface = writer.add_interface(LinkType::ETHERNET, "replay")?;
    for (time, frame) in frames {
        writer.write(interface, *time, u32::try_from(frame.len())?, frame)?;
    }
    let options = Options { point: Some(own), ..options.clone() };
    let mut answers = Answers(ReplayReport::default());
    let survey = replay_capture(&writer.into_inner(), &options, &mut answers)?;
    answers.0.finish(&survey);
    Ok(answers.0)
}
