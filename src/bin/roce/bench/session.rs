//! A whole run, from the first line on TCP to the last.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use roce::connect::ConnectionManager;
use roce::control::{Channel, Protocol, Token};
use roce::device::{Context as Nic, Device};
use roce::verbs::Mtu;
use roce::wire::Gid;

use super::bandwidth::{self, Outcome};
use super::cm;
use super::control::messages::{self, Answer, Counted, Hello, Message, Reach, Seen};
use super::control::plan::{Connection, Metric, Op, Plan};
use super::control::rendezvous::Rendezvous;
use super::latency::{self, Summary};
use super::path;
use super::side::Side;
use super::watch::Watch;

/// Result of a measurement with one size.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) size: u32,
    pub(crate) outcome: Outcome,
    /// The peer's count of the messages from here, if it sent it before it was gone.
    pub(crate) peer_saw: Option<Seen>,
    /// Packets that the NIC here sent, if it counts them.
    pub(crate) packets_sent: Option<u64>,
    pub(crate) latency: Option<Summary>,
}

/// Messages that arrived of those that one side sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) messages: u64,
    /// Time that the receiver took.
    pub(crate) nanos: u64,
}

impl Step {
    /// Returns the number of messages with wrong contents.
    pub(crate) fn wrong(&self) -> u64 {
        self.outcome.seen.wrong + self.peer_saw.map_or(0, |saw| saw.wrong)
    }

    /// Returns the messages that arrived, those from here and those from the peer, if that is
    /// known.
    pub(crate) fn arrived(&self, plan: &Plan) -> [Option<Arrived>; 2] {
        let Outcome { own, peer, seen } = self.outcome;
        let arrived = |sent: messages::Done, saw: Option<Seen>, packets: Option<u64>| {
            let whole = Arrived { messages: sent.messages, nanos: sent.nanos };
            // Reliable messages are complete when they are acknowledged.
            if plan.connection == Connection::Rc || sent.messages == 0 {
                return Some(whole);
            }
            let saw = saw?;
            let messages = match (saw.received, saw.packets, packets) {
                (Some(messages), ..) => messages.min(sent.messages),
                // Without a count of messages, the count of packets tells how many may have
                // arrived.
                (None, Some(came), Some(left)) => share(sent.messages, came, left),
                _ => return None,
            };
            Some(Arrived { messages, nanos: if saw.nanos > 0 { saw.nanos } else { sent.nanos } })
        };
        [arrived(own, self.peer_saw, self.packets_sent), arrived(peer, Some(seen), None)]
    }

    /// Returns the number of messages that were lost, both ways, if that is known.
    pub(crate) fn lost(&self, plan: &Plan) -> Option<u64> {
        if plan.metric == Metric::Lat {
            return Some(0);
        }
        let Outcome { own, peer, .. } = self.outcome;
        let [there, here] = self.arrived(plan);
        Some(own.messages - there?.messages + (peer.messages - here?.messages))
    }

    /// Whether messages were sent, and none arrived.
    pub(crate) fn is_all_lost(&self, plan: &Plan) -> bool {
        let sent = self.outcome.own.messages + self.outcome.peer.messages;
        sent > 0 && self.lost(plan) == Some(sent)
    }
}

/// `messages`, as far as `came` of `left` packets have come.
fn share(messages: u64, came: u64, left: u64) -> u64 {
    let part = u128::from(messages) * u128::from(came.min(left)) / u128::from(left.max(1));
    u64::try_from(part).unwrap_or(messages)
}

/// Plan, device and addresses of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) plan: Plan,
    pub(crate) device: String,
    pub(crate) gid: Gid,
    pub(crate) peer_gid: Gid,
}

/// Counters of both NICs during a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) own: Counted,
    pub(crate) peer: Counted,
}

/// Observer of a run.
pub(crate) trait Observer {
    /// Called when both sides are connected.
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()>;
    /// Called when a measurement begins.
    fn bar(&mut self, plan: &Plan, size: u32) -> ProgressBar;
    /// Called when a measurement has ended.
    fn step(&mut self, plan: &Plan, step: &Step) -> anyhow::Result<()>;
}

/// Options of a client that its server need not know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientOptions<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) token: Option<&'a Token>,
    pub(crate) gid_index: u8,
    /// The MTU, if no other will do.
    pub(crate) mtu: Option<Mtu>,
    /// The address of the server on TCP.
    pub(crate) server: IpAddr,
    /// Whether the server's queue pairs may be at another address.
    pub(crate) any_gid: bool,
    /// Set when the run is to end and to tell what it has.
    pub(crate) interrupt: &'a AtomicBool,
    /// Connects the queue pairs, if the two sides do not do that themselves.
    pub(crate) manager: Option<&'a ConnectionManager>,
}

/// Runs the client's side. What was measured before an error, the observer knows.
pub(crate) fn client(
    nic: &Nic,
    control: &mut Channel,
    plan: &Plan,
    options: ClientOptions<'_>,
    observer: &mut dyn Observer,
) -> anyhow::Result<Counts> {
    let done = run_client(nic, control, plan, options, observer);
    if let Err(error) = &done {
        control.send_error(&format_args!("{error:#}"));
    }
    done
}

fn run_client(
    nic: &Nic,
    control: &mut Channel,
    plan: &Plan,
    options: ClientOptions<'_>,
    observer: &mut dyn Observer,
) -> anyhow::Result<Counts> {
    let before = counted(nic.device());
    let mut side = Side::new(nic, plan, options.gid_index)?;
    let own = side.reach();
    let hello = Hello { plan: plan.clone(), client: own.clone() };
    control.open(options.protocol, options.token, &hello)?;
    let Answer { mtu, server: peer } = Answer::receive(control, plan)?;
    path::check_responder(peer.address(), options.server, options.any_gid)?;
    if let Some(wanted) = options.mtu {
        ensure!(mtu == wanted, "-m: the server can do an MTU of {mtu}, not {wanted}");
    }
    path::check(&own, &peer, options.server)?;
    match options.manager {
        None => side.set_mtu(mtu)?,
        Some(manager) => {
            let (rendezvous, server) = (Rendezvous::receive(control)?, peer.address());
            side.connect_with(&peer, |q, qp| cm::connect(manager, server, rendezvous, (q, qp)))?;
        }
    }
    let gid_of = |reach: &Reach| reach.qps.first().map(|qp| qp.gid).unwrap_or_default();
    observer.begin(&Setting {
        plan: side.plan().clone(),
        device: nic.name().to_owned(),
        gid: gid_of(&own),
        peer_gid: gid_of(&peer),
    })?;
    if options.manager.is_none() {
        side.connect(&peer)?;
    }
    side.begin(peer)?;
    for &size in &plan.sizes {
        if options.interrupt.load(Ordering::SeqCst) {
            break;
        }
        side.prepare()?;
        control.send(&Message::Ready)?;
        messages::expect_ready(control)?;
        let bar = observer.bar(side.plan(), size);
        let (step, result) = step(&mut side, control, &bar, size, Role::Client, options.interrupt);
        bar.finish_and_clear();
        observer.step(side.plan(), &step)?;
        result?;
    }
    control.send(&Message::Bye)?;
    let peer = messages::receive_counters(control).context("at the end")?;
    Ok(Counts { own: since(&before, counted(nic.device())), peer })
}

/// Runs the server's side with a client whose plan was admitted.
pub(crate) fn server(
    nic: &Nic,
    control: &mut Channel,
    plan: &Plan,
    peer: Reach,
    options: ServerOptions<'_>,
) -> anyhow::Result<()> {
    server_with(nic, control, plan, peer, options, |_| {})
}

/// Options of a server besides the client's plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerOptions<'a> {
    pub(crate) gid_index: u8,
    /// The address of the client on TCP.
    pub(crate) client: IpAddr,
    /// Whether the client's queue pairs may be at another address.
    pub(crate) any_gid: bool,
    /// Connects the queue pairs, if the client wants that.
    pub(crate) manager: Option<&'a ConnectionManager>,
}

/// Serves a client; `meddle` may change the memory of this side before anything is measured.
pub(crate) fn server_with(
    nic: &Nic,
    control: &mut Channel,
    plan: &Plan,
    peer: Reach,
    options: ServerOptions<'_>,
    meddle: impl Fn(&Side),
) -> anyhow::Result<()> {
    static NEVER: AtomicBool = AtomicBool::new(false);
    const NEXT: &str = "ready or bye";
    let before = counted(nic.device());
    let mut plan = plan.clone();
    plan.mtu = plan.mtu.min(nic.query_port()?.active_mtu);
    plan.check()?;
    let mut side = Side::new(nic, &plan, options.gid_index)?;
    let own = side.reach();
    path::check(&own, &peer, options.client)?;
    match options.manager {
        None => {
            side.connect(&peer)?;
            control.send(&Message::Answer(Answer { mtu: plan.mtu, server: own }))?;
        }
        Some(manager) => {
            let waiting = cm::Waiting::listen(manager, own.address())?;
            control.send(&Message::Answer(Answer { mtu: plan.mtu, server: own }))?;
            control.send(&Message::Rendezvous(waiting.rendezvous()))?;
            let client = (!options.any_gid).then_some(options.client);
            side.connect_with(&peer, |q, qp| waiting.accept(client, q, qp))?;
        }
    }
    side.begin(peer)?;
    let end = |control: &mut Channel| -> anyhow::Result<()> {
        Ok(control.send(&Message::Counters(since(&before, counted(nic.device()))))?)
    };
    for &size in &plan.sizes {
        side.prepare()?;
        meddle(&side);
        match messages::receive(control, NEXT)? {
            Message::Ready => control.send(&Message::Ready)?,
            Message::Bye => return end(control),
            other => return Err(control.unexpected(&other, NEXT).into()),
        }
        let bar = ProgressBar::hidden();
        step(&mut side, control, &bar, size, Role::Server, &NEVER).1?;
    }
    match messages::receive(control, "bye")? {
        Message::Bye => end(control),
        other => Err(control.unexpected(&other, "bye").into()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// Measures with one size. An error comes with what was measured until then.
fn step(
    side: &mut Side,
    control: &mut Channel,
    bar: &ProgressBar,
    size: u32,
    role: Role,
    interrupt: &AtomicBool,
) -> (Step, anyhow::Result<()>) {
    let mut step = Step {
        size,
        outcome: Outcome::default(),
        peer_saw: None,
        packets_sent: None,
        latency: None,
    };
    let result = fill(&mut step, side, control, bar, role, interrupt);
    (step, result)
}

fn fill(
    step: &mut Step,
    side: &mut Side,
    control: &mut Channel,
    bar: &ProgressBar,
    role: Role,
    interrupt: &AtomicBool,
) -> anyhow::Result<()> {
    let size = step.size;
    let before = Traffic::of(side);
    let mut watch = Watch::begin(control, bar, side.plan().extent, interrupt);
    let (metric, op) = (side.plan().metric, side.plan().op);
    match (metric, role) {
        (Metric::Bw, _) => {
            let sends = role == Role::Client || side.plan().bidirectional;
            let (outcome, result) = bandwidth::run(side, &mut watch, size, sends);
            step.outcome = outcome;
            result?;
        }
        (Metric::Lat, Role::Client) => {
            let (samples, outcome, result) = latency::measure(side, &mut watch, size);
            step.outcome = outcome;
            step.latency = Some(samples.summary(latency::share(op)));
            result?;
        }
        (Metric::Lat, Role::Server) => step.outcome = latency::answer(side, &mut watch, size)?,
    }
    let control = watch.end();
    let varied = metric == Metric::Lat && op == Op::Write;
    let (sent, came) = (step.outcome.own.messages, step.outcome.peer.messages);
    let seen = &mut step.outcome.seen;
    if let (Some(before), Some(after)) = (before, Traffic::of(side)) {
        step.packets_sent = after.sent.checked_sub(before.sent);
        seen.packets = after.received.checked_sub(before.received);
        if metric == Metric::Bw && op == Op::Write {
            let writes = after.writes.zip(before.writes);
            seen.received = writes.and_then(|(after, before)| after.checked_sub(before));
        }
    }
    seen.wrong += side.mistakes(size, sent, came, varied)?;
    control.send(&Message::Result(*seen))?;
    step.peer_saw = Some(Seen::receive(control)?);
    Ok(())
}

/// Counters of a NIC for unreliable messages: the only trace that a WRITE leaves at its receiver.
pub(crate) struct Traffic {
    sent: u64,
    pub(crate) received: u64,
    writes: Option<u64>,
}

impl Traffic {
    pub(crate) fn of(side: &Side) -> Option<Self> {
        if side.plan().connection == Connection::Rc {
            return None;
        }
        let counted = counted(side.nic());
        let get = |name| counted.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
        Some(Self {
            sent: get("sent_pkts")?,
            received: get("rcvd_pkts")?,
            writes: get("rx_write_requests"),
        })
    }
}

/// Returns the counters of a NIC.
fn counted(nic: &dyn Device) -> Counted {
    nic.statistics().into_iter().collect()
}

/// Returns the counters that changed since, and always the number of retransmissions.
fn since(before: &Counted, after: Counted) -> Counted {
    let grown = after.into_iter().map(|(name, count)| {
        let was = before.iter().find(|(other, _)| *other == name).map_or(0, |(_, was)| *was);
        (name, count.saturating_sub(was))
    });
    grown.filter(|(name, count)| *count > 0 || name == RETRIES).collect()
}

/// The counter of retransmissions.
pub(crate) const RETRIES: &str = "retry_count";
