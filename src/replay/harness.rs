//! Captures made by hand, for tests: packets, through a capture file in memory and both passes,
//! into judges.

use core::net::Ipv4Addr;

use super::{Options, Step, Subject, Verdict, replay_capture};
use crate::capture::PcapWriter;
use crate::time::Instant;
use crate::wire::{BthRepr, Extensions, Gid, ICRC_ROOM, LinkType, PacketRepr, Path};

/// The address of a host.
pub(super) fn host(number: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, number))
}

/// A capture that is being written.
#[derive(Default)]
pub(super) struct Script {
    frames: Vec<(u64, Vec<u8>)>,
    /// Nanoseconds of the next frame.
    pub(super) now: u64,
}

impl Script {
    pub(super) fn new() -> Self {
        Self { frames: Vec::new(), now: 1_000_000_000 }
    }

    /// Lets time pass.
    pub(super) fn wait_micros(&mut self, micros: u64) -> &mut Self {
        self.now += micros * 1000;
        self
    }

    /// Captures a packet from host `from` to host `to`, a microsecond after the last. Returns its
    /// frame number.
    pub(super) fn put(
        &mut self,
        from: u8,
        to: u8,
        bth: BthRepr,
        extensions: Extensions,
        payload: &[u8],
    ) -> u64 {
        let mut packet = Vec::new();
        PacketRepr::new(bth, extensions, payload).unwrap().emit(&mut packet);
        self.put_bytes(from, to, packet)
    }

    /// Captures a packet that may be wrong in any way.
    pub(super) fn put_bytes(&mut self, from: u8, to: u8, mut packet: Vec<u8>) -> u64 {
        packet.resize(packet.len() + ICRC_ROOM, 0);
        let path = Path { source: host(from), destination: host(to), ..Path::NOWHERE };
        let headers = path.seal(&mut packet);
        let (ip, udp) = headers.as_bytes();
        self.now += 1000;
        self.frames.push((self.now, [ip, udp, &packet[..]].concat()));
        self.frames.len() as u64
    }

    /// The capture as a file.
    pub(super) fn file(&self) -> Vec<u8> {
        let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
        for (time, bytes) in &self.frames {
            let len = u32::try_from(bytes.len()).unwrap();
            writer.write(Instant::from_nanos(*time), len, bytes).unwrap();
        }
        writer.into_inner()
    }

    /// Returns the verdicts on packets of some kind, in the order of frames, if the capture was
    /// taken at host `point`.
    pub(super) fn judge(&self, subject: Subject, point: Option<u8>) -> Vec<Step> {
        let options = Options { point: point.map(host), ..Options::default() };
        let mut steps: Vec<Step> = Vec::new();
        replay_capture(&self.file(), &options, &mut steps).unwrap();
        steps.retain(|step| step.subject == subject);
        steps.sort_by_key(|step| step.frame);
        steps
    }

    /// Damages the last packet, so that its ICRC is wrong.
    pub(super) fn damage_last(&mut self) {
        let (_, bytes) = self.frames.last_mut().unwrap();
        *bytes.last_mut().unwrap() ^= 0x55;
    }
}

/// The frames that are different, with the rules that they break.
pub(super) fn differences(steps: &[Step]) -> Vec<(u64, &'static str)> {
    let all = steps.iter().filter_map(|step| match &step.verdict {
        Verdict::Different(difference) => Some((step.frame, difference.rule.id)),
        _ => None,
    });
    all.collect()
}

/// The frames that are neither agreed nor different.
pub(super) fn undecided(steps: &[Step]) -> Vec<(u64, super::Undecided)> {
    let all = steps.iter().filter_map(|step| match step.verdict {
        Verdict::Undecided(undecided) => Some((step.frame, undecided)),
        _ => None,
    });
    all.collect()
}
