//! Runs instances of scenarios on a pair of devices, and compares the traces with expectations and
//! a reference.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::Agent;
use super::control::{self, Hello, Message};
use super::deviation::Table;
use super::diff::{Difference, compare};
use super::expand::Instance;
use super::trace::{Outcome, Trace};
use super::wire::watch;
use super::{Side, expect, now};
use crate::control::channel::pair;
use crate::control::{Channel, ControlError, Token};
use crate::link::cable;
use crate::nic::SoftNic;
use crate::wire::Gid;

/// Time to wait for the outcome of the other agent, beyond the time limit of the scenario.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(90);

/// Two agents, one of them in this thread.
pub struct Pair {
    own: Agent,
    line: Channel,
    peer: Hello,
    /// The only address that packets may be sent to, if it is restricted.
    address: Option<IpAddr>,
    /// Thread of the other agent, if it runs in this process.
    thread: Option<JoinHandle<()>>,
}

impl Pair {
    /// Two soft NICs on a cable.
    pub fn in_memory() -> io::Result<Self> {
        let gids = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
        let [a, b] = gids;
        let (a, b) = cable(a, b)?;
        let agent = |link| -> io::Result<Agent> {
            let (link, wire) = watch(link);
            let device = Arc::new(SoftNic::start(link)?);
            Ok(Agent { device, wire: Some(wire), gid_index: None, manager: None })
        };
        Self::local(agent(a)?, agent(b)?).map_err(io::Error::other)
    }

    /// Two agents in this process: the other one runs in a thread.
    pub fn local(own: Agent, other: Agent) -> Result<Self, ControlError> {
        let [mut line, mut far] = pair(["the peer"; 2]);
        let thread = std::thread::spawn(move || {
            // An error is reported at the other end of the control connection.
            let _ = other.serve(&mut far);
        });
        let peer = own.meet(&mut line)?;
        Ok(Self { own, line, peer, address: None, thread: Some(thread) })
    }

    /// A local agent, and a remote one at the other end of a control connection.
    /// With `any_gid`, the remote device may be at another address.
    pub fn remote(
        own: Agent,
        stream: TcpStream,
        token: Option<&Token>,
        any_gid: bool,
    ) -> Result<Self, ControlError> {
        let address = stream.peer_addr()?.ip().to_canonical();
        let mut line = control::open(stream, token)?;
        let peer = own.meet(&mut line)?;
        let address = (!any_gid).then_some(address);
        Ok(Self { own, line, peer, address, thread: None })
    }

    /// Returns the names of the devices, requester first, if the local agent is on side `own`.
    pub fn names(&self, own: Side) -> [String; 2] {
        let (here, there) = (self.own.hello().device, self.peer.device.clone());
        if own == Side::Requester { [here, there] } else { [there, here] }
    }

    /// Returns why an instance cannot be run on these devices, and what would help; `None` if it
    /// can.
    pub fn cannot(&self, instance: &Instance) -> Option<String> {
        let here = self.own.hello();
        for hello in [&here, &self.peer] {
            if hello.mtu < instance.mtu {
                return Some(format!("{} has an MTU of {}", hello.device, hello.mtu));
            }
        }
        let faults = !instance.scenario.faults.is_empty();
        (faults && !here.wire && !self.peer.wire)
            .then(|| "faults need a soft device on one side, or a bridge (`--wire`)".to_owned())
    }

    /// Runs an instance; the local agent is on side `own`.
    pub fn play(&mut self, instance: &Instance, own: Side) -> Result<Trace, ControlError> {
        let begin = Message::Begin { instance: Box::new(instance.clone()), play: own.other() };
        self.line.send(&begin)?;
        let here = self.own.play(instance, own, &self.peer, &mut self.line, self.address);
        let there = self.outcome(Duration::from_secs(instance.scenario.limit) + OUTCOME_TIMEOUT)?;
        Ok(match own {
            Side::Requester => Trace { requester: here, responder: there },
            Side::Responder => Trace { requester: there, responder: here },
        })
    }

    fn outcome(&mut self, within: Duration) -> Result<Outcome, ControlError> {
        loop {
            // Messages that are left over from an instance that failed are skipped.
            match control::receive(&mut self.line, within, "its outcome") {
                Ok(Message::Outcome(outcome)) => {
                    let unsound = |why| self.line.unsound("its outcome", why);
                    return outcome.received().map_err(unsound);
                }
                Ok(_) | Err(ControlError::Failed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.line.send(&Message::Bye);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("own", &self.own)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Traces of a pair of devices, kept as a reference.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// Names of the devices, requester first.
    pub devices: [String; 2],
    /// Trace of each instance, by name.
    pub traces: BTreeMap<String, Trace>,
}

/// Reference that traces are compared with.
#[derive(Debug)]
pub enum Reference {
    /// A second pair of devices, which runs each instance too.
    Live(Box<Pair>),
    /// Recorded traces of another pair.
    Recorded(Record),
}

impl Reference {
    fn trace(&mut self, instance: &Instance) -> Result<Option<Trace>, ControlError> {
        match self {
            Self::Live(pair) => pair.play(instance, Side::Requester).map(Some),
            Self::Recorded(record) => Ok(record.traces.get(&instance.name).cloned()),
        }
    }
}

/// Verdict about an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The trace is as expected, and as that of the reference.
    Agree,
    /// The result differs, and every difference is a known deviation.
    Known,
    /// The result differs.
    Difference,
    /// The instance could not be run.
    NotRun(String),
}

/// Result of an instance.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the instance.
    pub name: String,
    /// Purpose of the scenario.
    pub about: String,
    /// Names of the devices, requester first.
    pub devices: [String; 2],
    /// Verdict.
    pub verdict: Verdict,
    /// Differences that are no known deviations.
    pub differences: Vec<Difference>,
    /// Known deviations, with their reasons.
    pub known: Vec<(Difference, String)>,
    /// Trace.
    #[serde(skip)]
    pub trace: Trace,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Finding {
    /// Whether there is no difference.
    pub fn agrees(&self) -> bool {
        self.verdict == Verdict::Agree
    }
}

/// Runs instances on a pair of devices, and gives verdicts.
#[derive(Debug)]
pub struct Judge {
    pair: Pair,
    /// Side of the local agent.
    plays: Side,
    reference: Reference,
    /// Known deviations of the requester's device, and of the responder's.
    tables: [Option<Table>; 2],
    /// Entries of the tables that explained a difference.
    met: Vec<(Side, usize)>,
    /// Entries of the tables whose scenario was run.
    tried: Vec<(Side, usize)>,
}

impl Judge {
    /// Compares a pair, whose local agent is on side `plays`, with a reference.
    pub fn new(pair: Pair, plays: Side, reference: Reference, tables: [Option<Table>; 2]) -> Self {
        Self { pair, plays, reference, tables, met: Vec::new(), tried: Vec::new() }
    }

    /// Compares two soft NICs on a cable with two others.
    pub fn in_memory() -> io::Result<Self> {
        let reference = Reference::Live(Box::new(Pair::in_memory()?));
        Ok(Self::new(Pair::in_memory()?, Side::Requester, reference, [None, None]))
    }

    /// Returns the names of the devices, requester first.
    pub fn names(&self) -> [String; 2] {
        self.pair.names(self.plays)
    }

    /// Runs an instance and gives a verdict. After an error, no further instance can be run.
    pub fn run(&mut self, instance: &Instance) -> Result<Finding, ControlError> {
        let start = now();
        let mut finding = Finding {
            name: instance.name.clone(),
            about: instance.scenario.about.clone(),
            devices: self.names(),
            verdict: Verdict::Agree,
            differences: Vec::new(),
            known: Vec::new(),
            trace: Trace::default(),
            seconds: 0.0,
        };
        if let Some(why) = self.pair.cannot(instance) {
            finding.verdict = Verdict::NotRun(why);
            return Ok(finding);
        }
        finding.trace = self.pair.play(instance, self.plays)?;
        let unable =
            Side::BOTH.into_iter().find_map(|side| finding.trace.side(side).unable.clone());
        if let Some(why) = unable {
            finding.verdict = Verdict::NotRun(why);
            return Ok(finding);
        }
        let mut differences = expect::check(instance, &finding.trace);
        if let Some(reference) = self.reference.trace(instance)? {
            // A subject that does not meet the expectations is reported once.
            let more = compare(&finding.trace, &reference);
            let told = |more: &Difference| {
                differences.iter().any(|it| (it.side, it.subject) == (more.side, more.subject))
            };
            let more: Vec<Difference> = more.into_iter().filter(|it| !told(it)).collect();
            differences.extend(more);
        }
        self.sort(&mut finding, differences);
        finding.seconds = start.elapsed().as_secs_f64();
        Ok(finding)
    }

    /// Separates known deviations from other differences.
    fn sort(&mut self, finding: &mut Finding, differences: Vec<Difference>) {
        let mut entries = Vec::new();
        for (side, table) in Side::BOTH.into_iter().zip(&self.tables) {
            let deviations = table.iter().flat_map(|table| table.deviations.iter().enumerate());
            entries.extend(
                deviations
                    .filter(|(_, it)| it.applies(&finding.name, side))
                    .map(|(at, it)| (side, at, it)),
            );
        }
        self.tried.extend(entries.iter().map(|(side, at, _)| (*side, *at)));
        for difference in differences {
            match entries.iter().find(|(.., it)| it.explains(&difference)) {
                Some((side, at, it)) => {
                    self.met.push((*side, *at));
                    finding.known.push((difference, it.reason.clone()));
                }
                None => finding.differences.push(difference),
            }
        }
        finding.verdict = match (&finding.differences[..], &finding.known[..]) {
            ([], []) => Verdict::Agree,
            ([], _) => Verdict::Known,
            _ => Verdict::Difference,
        };
    }

    /// Returns the known deviations that did not occur although their scenario was run: scenario
    /// and reason.
    pub fn gone(&self) -> Vec<(String, String)> {
        let mut tried = self.tried.clone();
        tried.sort();
        tried.dedup();
        let missing = tried.into_iter().filter(|entry| !self.met.contains(entry));
        let entry = |(side, at): (Side, usize)| {
            let table = self.tables.get(side as usize)?.as_ref()?;
            let it = table.deviations.get(at)?;
            Some((it.scenario.clone(), it.reason.clone()))
        };
        missing.filter_map(entry).collect()
    }
}
