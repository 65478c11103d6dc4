//! Answers of a live peer, held against the engine: what was sent and received is a capture.

use anyhow::Result;
use roce::capture::{LinkType, PcapngWriter};
use roce::replay::{Options, ReplayReport, Sink, Step, Subject, replay_capture};
use roce::time::Instant;
use roce::wire::Gid;

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
    let mut steps: Vec<Step> = Vec::new();
    let survey = replay_capture(&writer.into_inner(), &options, &mut steps)?;
    // Requests are this side's own, and mutated ones can look like answers.
    let is_own = |step: &Step| {
        let connection = survey.report.connections.iter().find(|it| it.flow == step.flow);
        let end = connection.and_then(|it| it.ends.get(usize::from(step.sender)));
        end.is_some_and(|end| end.address == own)
    };
    let mut report = ReplayReport::default();
    let answers = steps.into_iter().filter(|step| step.subject == Subject::Response);
    answers.filter(|step| !is_own(step)).for_each(|step| report.step(step));
    report.finish(&survey);
    Ok(report)
}
