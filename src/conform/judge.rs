//! Runs instances on a pair of devices, and decides.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::Agent;
use super::control::{self, ControlError, Hello, Line, Message};
use super::deviation::Table;
use super::diff::{Difference, compare};
use super::expand::Instance;
use super::trace::{Outcome, Trace};
use super::wire::watch;
use super::{Side, expect, now};
use crate::link::cable;
use crate::nic::SoftNic;
use crate::wire::Gid;

/// How long one waits for what came of an instance at the other side, beyond what it may take.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(90);

/// Two agents, of which one is here.
pub struct Pair {
    own: Agent,
    line: Box<dyn Line>,
    peer: Hello,
    /// The other one's thread, if it has one here.
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
            Ok(Agent { device, wire: Some(wire), gid_index: None })
        };
        Self::local(agent(a)?, agent(b)?).map_err(io::Error::other)
    }

    /// Two agents here: the other one has a thread.
    pub fn local(own: Agent, other: Agent) -> Result<Self, ControlError> {
        let (mut line, mut far) = control::pair();
        let thread = std::thread::spawn(move || {
            // What goes wrong here shows at the other end of the line.
            let _ = other.serve(&mut *far);
        });
        let peer = own.meet(&mut *line)?;
        Ok(Self { own, line, peer, thread: Some(thread) })
    }

    /// One agent here, the other behind a connection.
    pub fn remote(own: Agent, stream: TcpStream) -> Result<Self, ControlError> {
        let mut line = control::over(stream)?;
        let peer = own.meet(&mut *line)?;
        Ok(Self { own, line, peer, thread: None })
    }

    /// Who plays a side if the agent here plays `own`: device names, requester first.
    pub fn names(&self, own: Side) -> [String; 2] {
        let (here, there) = (self.own.hello().device, self.peer.device.clone());
        if own == Side::Requester { [here, there] } else { [there, here] }
    }

    /// Why an instance cannot be run with these two, and what would help.
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

    /// Plays an instance; the agent here plays `own`.
    pub fn play(&mut self, instance: &Instance, own: Side) -> Result<Trace, ControlError> {
        let begin = Message::Begin { instance: Box::new(instance.clone()), play: own.other() };
        self.line.send(&begin)?;
        let here = self.own.play(instance, own, &self.peer, &mut *self.line);
        let there = self.outcome(Duration::from_secs(instance.scenario.limit) + OUTCOME_TIMEOUT)?;
        Ok(match own {
            Side::Requester => Trace { requester: here, responder: there },
            Side::Responder => Trace { requester: there, responder: here },
        })
    }

    fn outcome(&mut self, within: Duration) -> Result<Outcome, ControlError> {
        loop {
            // What is left of an instance that failed is skipped.
            match self.line.receive(within, "its outcome") {
                Ok(Message::Outcome(outcome)) => {
                    let unsound = |why| ControlError::Unsound("its outcome", why);
                    return outcome.received().map_err(unsound);
                }
                Ok(_) | Err(ControlError::Failed(_)) => {}
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

/// Traces that were kept: those of a pair that others are compared with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// Who played, requester first.
    pub devices: [String; 2],
    /// What came of each instance, by name.
    pub traces: BTreeMap<String, Trace>,
}

/// What traces are compared with.
#[derive(Debug)]
pub enum Reference {
    /// Two soft NICs on a cable, which play everything first.
    Live(Box<Pair>),
    /// What another pair did.
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

/// What is thought of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is as expected, and as with the reference.
    Agree,
    /// It is not, and that is known.
    Known,
    /// It is not.
    Difference,
    /// It could not be run.
    NotRun(String),
}

/// What came of an instance.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// Who played, requester first.
    pub devices: [String; 2],
    /// What is thought of it.
    pub verdict: Verdict,
    /// Values that are unknown.
    pub differences: Vec<Difference>,
    /// What was known, and why.
    pub known: Vec<(Difference, String)>,
    /// What came of it.
    #[serde(skip)]
    pub trace: Trace,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Finding {
    /// Whether all is as it should be.
    pub fn agrees(&self) -> bool {
        self.verdict == Verdict::Agree
    }
}

/// Runs instances on a pair, and decides.
#[derive(Debug)]
pub struct Judge {
    pair: Pair,
    /// Whom the agent here plays.
    plays: Side,
    reference: Reference,
    /// What is known of the requester's device, and of the responder's; and which entries were met.
    tables: [Option<Table>; 2],
    met: Vec<(Side, usize)>,
    tried: Vec<(Side, usize)>,
}

impl Judge {
    /// Judges a pair, whose agent here plays a side, by a reference.
    pub fn new(pair: Pair, plays: Side, reference: Reference, tables: [Option<Table>; 2]) -> Self {
        Self { pair, plays, reference, tables, met: Vec::new(), tried: Vec::new() }
    }

    /// Judges two soft NICs on a cable by two others.
    pub fn in_memory() -> io::Result<Self> {
        let reference = Reference::Live(Box::new(Pair::in_memory()?));
        Ok(Self::new(Pair::in_memory()?, Side::Requester, reference, [None, None]))
    }

    /// Who plays, requester first.
    pub fn names(&self) -> [String; 2] {
        self.pair.names(self.plays)
    }

    /// Runs an instance, and decides. An error means that nothing further can be run.
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
            // What the scenario forbids has been told already.
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

    /// Tells what is known from what is not.
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

    /// What is said of the devices and no scenario showed, though it was run: scenario, and reason.
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
