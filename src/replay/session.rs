//! The second pass: every packet goes to the judges.

use std::collections::HashMap;
use std::sync::Arc;

use super::datagram::Datagrams;
use super::deviations::Profiles;
use super::judge::{Input, Judge, Sink};
use super::limits::PAIRING_PROOF;
use super::management::Management;
use super::requester::{self, Requesters};
use super::responder::{self, Responders};
use super::survey::{Survey, Surveyor, config};
use super::verdict::{Step, Subject, Undecided, Verdict};
use crate::analysis::{self, Analysis, FlowNumber, LossNote, PacketFacts, PacketNote};
use crate::capture::{self, Reader};
use crate::decode::{Context, Decoder};
use crate::verbs::Mtu;
use crate::wire::{Gid, PKey, Psn, Qpn, RKey, ROCE_PORT};

/// What a user knows and the capture does not say. Set the fields of the default.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Deviations that are known, by device.
    pub profiles: Profiles,
    /// Programs write to their registered memory without any sign of it on the wire: then only what one READ returns
    /// is held against what was written in between, on the same connection.
    pub program_writes: bool,
    /// The capture was made at the host with this address: all that it sent is in the capture, and all that the capture
    /// has for it reached it.
    pub point: Option<Gid>,
    /// Memory that hosts registered. Of a key that is named here every access is decided.
    pub regions: Vec<Registered>,
    /// Connections whose first request is in the capture, and how they were set up. A connection that is not named here is
    /// what its packets imply.
    pub connections: Vec<Established>,
}

/// How a reliable connection was set up.
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
    /// What peers may do.
    pub access: crate::verbs::Access,
}

/// The judges of all kinds of packets. Each takes the packets that are its own, and ignores the others.
fn judges(survey: &Arc<Survey>, options: &Options) -> Vec<Box<dyn Judge>> {
    vec![
        Box::new(Responders::new(Arc::clone(survey), options)),
        Box::new(Requesters::new(Arc::clone(survey), options.point)),
        Box::new(Datagrams::new(Arc::clone(survey), options.point)),
        Box::new(Management::new(Arc::clone(survey))),
    ]
}

/// A replay in its second pass: told every frame of the capture in order, it tells a [`Sink`] the verdicts.
pub struct Session {
    survey: Arc<Survey>,
    profiles: Profiles,
    analysis: Analysis,
    judges: Vec<Box<dyn Judge>>,
    agreed: HashMap<FlowNumber, u32>,
    /// Packets that the analysis holds until it has seen those of the other files, by frame and
    /// position in a train; see
    /// [`VANTAGE_PACKETS_MAX`](analysis::limits::VANTAGE_PACKETS_MAX).
    held: Option<HashMap<(u64, u16), Vec<u8>>>,
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// At the start of the capture that was surveyed.
    pub fn new(survey: Survey, options: &Options) -> Self {
        let survey = Arc::new(survey);
        let analysis = Analysis::new(config(&survey.files));
        let held = (survey.files.len() > 1).then(HashMap::new);
        let judges = judges(&survey, options);
        let agreed = HashMap::new();
        Self { survey, profiles: options.profiles.clone(), analysis, judges, agreed, held }
    }

    /// What the first pass found.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Takes a frame.
    pub fn frame(&mut self, context: &Context<'_>, file: u16, out: &mut dyn Sink) {
        let Some(facts) = PacketFacts::new(context, file) else {
            return self.analysis.handle_other_frame(context.time, context.wire_len, file);
        };
        let packet = context.frame.packet().map(|packet| packet.bytes()).unwrap_or_default();
        if let Some(held) = &mut self.held {
            held.insert(facts.identity(), packet.to_vec());
        }
        let (profiles, agreed) = (&self.profiles, &mut self.agreed);
        let out = &mut Explained { profiles, survey: &self.survey, agreed, out };
        let judges = &mut self.judges;
        let mut pass = Pass { survey: &self.survey, judges, held: &mut self.held, packet, out };
        self.analysis.handle_packet(&facts, &mut pass);
    }

    /// The capture is over. Returns what the first pass found.
    pub fn finish(self, out: &mut dyn Sink) -> Arc<Survey> {
        let Self { survey, profiles, analysis, mut judges, mut agreed, mut held } = self;
        let agreed = &mut agreed;
        let out = &mut Explained { profiles: &profiles, survey: &survey, agreed, out };
        let (judges, held) = (&mut judges, &mut held);
        analysis.finish(&mut Pass { survey: &survey, judges, held, packet: &[], out });
        judges.iter_mut().for_each(|judge| judge.finish(out));
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
    for_each_frame(bytes, |context| session.frame(context, 0, out))?;
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

/// Takes the packets from the analysis, and gives them to the judges.
struct Pass<'a, 'o> {
    survey: &'a Survey,
    judges: &'a mut Vec<Box<dyn Judge>>,
    held: &'a mut Option<HashMap<(u64, u16), Vec<u8>>>,
    /// The packet that the analysis was told last; the one that it tells of, if there is one file.
    packet: &'a [u8],
    out: &'a mut Explained<'o>,
}

impl analysis::Sink for Pass<'_, '_> {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let held = self.held.as_mut().map(|held| held.remove(&facts.identity()));
        let packet = match &held {
            Some(held) => held.as_deref().unwrap_or_default(),
            None => self.packet,
        };
        let Some((flow, swapped)) = self.survey.flow_of(note.flow) else { return };
        let note = PacketNote { flow, sender: note.sender ^ u8::from(swapped), ..*note };
        let input = Input { facts, note: &note, packet };
        self.judges.iter_mut().for_each(|judge| judge.packet(&input, self.out));
    }

    fn sighting(&mut self, facts: &PacketFacts, _: &PacketNote) {
        if let Some(held) = &mut *self.held {
            held.remove(&facts.identity());
        }
    }

    fn loss(&mut self, _: &LossNote) {}
}

/// Turns differences that the table of the sender's device explains into known deviations, and those that a wrong pairing
/// may explain into undecided ones.
struct Explained<'a> {
    profiles: &'a Profiles,
    survey: &'a Survey,
    /// Of each connection that may be paired wrongly: responses that agree.
    agreed: &'a mut HashMap<FlowNumber, u32>,
    out: &'a mut dyn Sink,
}

impl Explained<'_> {
    /// Whether a difference may come from a wrong pairing. In the same turn counts what speaks for the pairing.
    fn is_pairing_doubted(&mut self, step: &Step) -> bool {
        if !self.survey.ambiguous.contains(&step.flow) {
            return false;
        }
        let agreed = self.agreed.entry(step.flow).or_default();
        match (&step.verdict, step.subject) {
            (Verdict::Agreed, Subject::Response) => *agreed = agreed.saturating_add(1),
            (Verdict::Different(difference), Subject::Response) => {
                return *agreed < PAIRING_PROOF
                    && responder::rules::may_come_from_missing(difference.rule);
            }
            (Verdict::Different(difference), Subject::Request) => {
                return *agreed < PAIRING_PROOF
                    && requester::rules::needs_responses(difference.rule);
            }
            _ => {}
        }
        false
    }
}

impl Sink for Explained<'_> {
    fn step(&mut self, mut step: Step) {
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
        self.out.step(step);
    }
}
