//! The second pass: every packet goes to the judges of the hosts that sent it and that it is for.
//!
//! ```text
//! batch of packets ─► Router: notes ─► Judges: some of the shards ─┐
//!                                  └─► Judges: the others        ─┴─► Verdicts: in the order of packets ─► Sink
//! ```
//!
//! A shard follows some hosts: what they send, what they receive, their memory. What a host does
//! depends on no packet between others, so shards can be judged on different threads. How many
//! shards there are depends on the capture alone; so do the verdicts and their order.

use std::collections::HashMap;
use std::sync::Arc;

use super::batch::PacketBatch;
use super::deviations::Profiles;
use super::judge::Sink;
use super::limits::PAIRING_PROOF;
use super::router::Router;
use super::shard::{Judges, Shard, shard_count};
use super::survey::{Survey, Surveyor};
use super::verdict::{Step, Subject, Undecided, Verdict};
use super::{requester, responder};
use crate::analysis::FlowNumber;
use crate::capture::{self, Reader};
use crate::decode::{Context, Decoder};
use crate::verbs::Mtu;
use crate::wire::{Gid, PKey, Psn, Qpn, RKey, ROCE_PORT};

/// Facts that a user knows and the capture does not show. Set the fields of the default.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Deviations that are known, by device.
    pub profiles: Profiles,
    /// Programs write to their registered memory without any sign of it on the wire: then only what
    /// one READ returns is held against what was written in between, on the same connection.
    pub program_writes: bool,
    /// The capture was made at the host with this address: all that it sent is in the capture, and
    /// all that the capture has for it reached it.
    pub point: Option<Gid>,
    /// Memory that hosts registered. Of a key that is named here every access is decided.
    pub regions: Vec<Registered>,
    /// Connections whose first request is in the capture, and how they were set up. A connection
    /// that is not named here is what its packets imply.
    pub connections: Vec<Established>,
}

/// Set-up of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// Address and queue pair of the requester.
    pub requester: (Gid, Qpn),
    /// Address and queue pair of the responder.
    pub responder: (Gid, Qpn),
    /// The PSN that the responder expects first.
    pub first_psn: Psn,
    /// The path MTU.
    pub mtu: Mtu,
    /// The partition of both.
    pub pkey: PKey,
}

/// Memory that a host registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The host.
    pub host: Gid,
    /// The key.
    pub rkey: RKey,
    /// The address of its first byte, as requests name it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Rights of peers.
    pub access: crate::verbs::Access,
}

/// Packets that are judged at a time.
const BATCH_PACKETS: usize = 256;

/// A replay in its second pass: told every packet of the capture in order, it tells a [`Sink`] the
/// verdicts.
#[derive(Debug)]
pub struct Session {
    /// Gives packets to the judges.
    pub router: Router,
    /// Judge them.
    pub judges: Judges,
    /// Says the verdicts.
    pub verdicts: Verdicts,
}

impl Session {
    /// Returns a session at the start of the capture that was surveyed.
    pub fn new(mut survey: Survey, options: &Options) -> Self {
        survey.set_point(options.point);
        let survey = Arc::new(survey);
        let count = shard_count(&survey);
        let shards = (0..count).map(|_| Shard::new(&survey, options, count));
        let judges = Judges::new(shards.collect());
        let profiles = options.profiles.clone();
        let verdicts = Verdicts { profiles, survey: Arc::clone(&survey), agreed: HashMap::new() };
        Self { router: Router::new(survey), judges, verdicts }
    }

    /// Takes the next packets.
    pub fn packets(&mut self, batch: &mut PacketBatch, out: &mut dyn Sink) {
        self.router.route(batch);
        let mut steps = Vec::new();
        self.judges.judge(batch, &mut steps);
        self.verdicts.tell(&mut steps, out);
    }

    /// The capture is over. Returns what both passes found.
    pub fn finish(self, out: &mut dyn Sink) -> Arc<Survey> {
        let Self { router, mut judges, mut verdicts } = self;
        let (mut batch, mut steps) = (PacketBatch::default(), Vec::new());
        let survey = router.finish(&mut batch);
        judges.judge(&batch, &mut steps);
        verdicts.tell(&mut steps, out);
        judges.finish(&mut steps);
        verdicts.tell(&mut steps, out);
        survey
    }
}

/// Replays a whole capture that is in memory: both passes.
pub fn replay_capture(
    bytes: &[u8],
    options: &Options,
    out: &mut dyn Sink,
) -> Result<Arc<Survey>, capture::Error> {
    let mut surveyor = Surveyor::new(vec![String::from("capture")]);
    for_each_frame(bytes, |context| surveyor.frame(context, 0))?;
    let mut session = Session::new(surveyor.finish(), options);
    let mut batch = PacketBatch::default();
    for_each_frame(bytes, |context| {
        batch.push(context, 0);
        if batch.len() >= BATCH_PACKETS {
            session.packets(&mut batch, out);
            batch.clear();
        }
    })?;
    session.packets(&mut batch, out);
    Ok(session.finish(out))
}

fn for_each_frame(bytes: &[u8], mut each: impl FnMut(&Context<'_>)) -> Result<(), capture::Error> {
    let mut reader = Reader::new(bytes)?;
    let mut decoder = Decoder::new(ROCE_PORT);
    while let Some(record) = reader.next()? {
        decoder.decode_with(&record, |packet| each(packet));
    }
    Ok(())
}

/// Puts verdicts in order, turns differences that the table of the sender's device explains into
/// known deviations, and those that a wrong pairing may explain into undecided ones.
#[derive(Debug)]
pub struct Verdicts {
    profiles: Profiles,
    survey: Arc<Survey>,
    /// Responses that agree, of each connection that may be paired wrongly.
    agreed: HashMap<FlowNumber, u32>,
}

impl Verdicts {
    /// Returns the findings of the first pass.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Tells the verdicts on one batch, of all judges.
    pub fn tell(&mut self, steps: &mut Vec<(u32, Step)>, out: &mut dyn Sink) {
        steps.sort_by_key(|(order, _)| *order);
        steps.drain(..).for_each(|(_, step)| out.step(self.explain(step)));
    }

    fn explain(&mut self, mut step: Step) -> Step {
        if self.is_pairing_doubted(&step) {
            step.verdict = Verdict::Undecided(Undecided::Pairing);
        }
        if let Verdict::Different(difference) = &step.verdict
            && let Some(address) = self.survey.address(step.flow, step.sender)
            && let Some(reason) = self.profiles.explain(address, difference)
        {
            let (difference, reason) = (difference.clone(), reason.to_owned());
            step.verdict = Verdict::Known { difference, reason };
        }
        step
    }

    /// Whether a difference may come from a wrong pairing. In the same turn counts what speaks for
    /// the pairing.
    fn is_pairing_doubted(&mut self, step: &Step) -> bool {
        let rule_depends = match (&step.verdict, step.subject) {
            (Verdict::Agreed, Subject::Response) => false,
            (Verdict::Different(difference), Subject::Response) => {
                responder::rules::may_come_from_missing(difference.rule)
            }
            (Verdict::Different(difference), Subject::Request) => {
                requester::rules::needs_responses(difference.rule)
            }
            _ => return false,
        };
        if !self.survey.is_ambiguous(step.flow) {
            return false;
        }
        let agreed = self.agreed.entry(step.flow).or_default();
        *agreed = agreed.saturating_add(u32::from(step.verdict == Verdict::Agreed));
        rule_depends && *agreed < PAIRING_PROOF
    }
}
