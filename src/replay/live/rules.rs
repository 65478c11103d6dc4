//! Answers of a live peer, held against the engine: what was sent and received is a capture.

use crate::capture::{LinkType, PcapngWriter};
use crate::replay::{Options, ReplayReport, Sink, Step, Subject, replay_capture};
use crate::time::Instant;
use crate::wire::Gid;

/// Error: the frames make no capture, so answers cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// Frames cannot be written as one.
    #[error(transparent)]
    Write(#[from] crate::capture::WriteError),
    /// The capture cannot be read.
    #[error(transparent)]
    Read(#[from] crate::capture::Error),
}

/// Judges the answers among frames that were sent and received at `own`.
pub fn judge_answers(
    frames: &[(Instant, Vec<u8>)],
    options: &Options,
    own: Gid,
) -> Result<ReplayReport, RulesError> {
    let mut writer = PcapngWriter::new(Vec::new())?;
    let interface = writer.add_interface(LinkType::ETHERNET, "replay")?;
    for (time, frame) in frames {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        writer.write(interface, *time, len, frame)?;
    }
    let options = Options { point: Some(own), ..options.clone() };
    let mut steps: Vec<Step> = Vec::new();
    let survey = replay_capture(&writer.into_inner(), &options, &mut steps)?;
    // Requests are this side's own, and mutated ones can look like answers.
    let is_own = |step: &Step| survey.address(step.flow, step.sender) == Some(own);
    let mut report = ReplayReport::default();
    let answers = steps.into_iter().filter(|step| step.subject == Subject::Response);
    answers.filter(|step| !is_own(step)).for_each(|step| report.step(step));
    report.finish(&survey);
    Ok(report)
}
