//! `--write`: the rewritten capture.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use roce::capture::{LinkType, PcapWriter, PcapngWriter};
use roce::replay::live::{Event, Script, Target};
use roce::time::Instant;

use super::read::describe;
use crate::outfile::WholeFile;
use crate::output::{counted, say};

/// Writes the requests and answers of all scripts, mapped, in the order of their times.
pub(super) fn write(out: &Path, scripts: &[Script], targets: &[Target], rounds: u32) -> Result<()> {
    let mut frames: Vec<(Instant, Vec<u8>)> = Vec::new();
    let times = || scripts.iter().flat_map(|it| &it.events).map(|event| event.packet().time);
    let (first, last) = (times().min(), times().max());
    let length =
        last.zip(first).map_or(Duration::ZERO, |(last, first)| last.saturating_since(first));
    for (script, target) in scripts.iter().zip(targets) {
        for round in 0..rounds {
            let shift = script.span().wrapping_mul(round);
            for event in &script.events {
                let (captured, out) = match event {
                    Event::Request(it) => (it, target.request(script, it, shift)),
                    Event::Answer(it) => (it, target.answer(script, it, shift)),
                };
                frames.push((captured.time.saturating_add(length * round), out.emit()));
            }
        }
    }
    frames.sort_by_key(|(time, _)| *time);
    write_frames(out, &frames)?;
    for script in scripts {
        let requests = script.requests().count();
        let requests = counted(requests as u64, "request");
        let answers = counted(script.answers().count() as u64, "answer");
        say!("{}: {requests}, {answers}", describe(script));
    }
    Ok(())
}

/// Writes Ethernet frames, in the format that the name asks for.
pub(super) fn write_frames(out: &Path, frames: &[(Instant, Vec<u8>)]) -> Result<()> {
    let file = WholeFile::create(format!("cannot write {}", out.display()), out)?;
    if out.extension().is_some_and(|ending| ending == "pcap") {
        let mut writer = PcapWriter::new(file, LinkType::ETHERNET)?;
        for (time, frame) in frames {
            writer.write(*time, u32::try_from(frame.len())?, frame)?;
        }
        return writer.into_inner().finish();
    }
    let mut writer = PcapngWriter::closing(file)?;
    let interface = writer.add_interface(LinkType::ETHERNET, "replay")?;
    for (time, frame) in frames {
        writer.write(interface, *time, u32::try_from(frame.len())?, frame)?;
    }
    writer.close(0)?;
    writer.into_inner().finish()
}
