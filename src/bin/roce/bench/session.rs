//! A whole run, from the first line on TCP to the last.

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use roce::verbs::Device;
use roce::verbs::Mtu;
use roce::wire::Gid;

use super::bandwidth::{self, Outcome};
use super::exchange::{self, Control, Counted, Seen};
use super::latency::{self, Summary};
use super::plan::{Metric, Op, Plan};
use super::side::Side;
use super::watch::Watch;

/// What was measured with one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) size: u32,
    pub(crate) outcome: Outcome,
    /// What the peer saw of the messages from here.
    pub(crate) peer_saw: Seen,
    pub(crate) latency: Option<Summary>,
}

impl Step {
    /// How many things arrived other than they were sent.
    pub(crate) fn wrong(&self) -> u64 {
        self.outcome.seen.wrong + self.peer_saw.wrong
    }

    /// How many messages were sent and did not arrive, both ways, if the operation tells.
    pub(crate) fn lost(&self, plan: &Plan) -> u64 {
        if plan.op != Op::Send || plan.metric == Metric::Lat {
            return 0;
        }
        let Outcome { own, peer, seen } = self.outcome;
        own.messages.saturating_sub(self.peer_saw.received)
            + peer.messages.saturating_sub(seen.received)
    }
}

/// What a run was, besides its steps.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) plan: Plan,
    pub(crate) device: String,
    pub(crate) gid: Gid,
    pub(crate) peer_gid: Gid,
}

/// What both NICs counted during a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) own: Counted,
    pub(crate) peer: Counted,
}

/// Who wants to know what goes on.
pub(crate) trait Audience {
    /// Both sides have met.
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()>;
    /// Something is measured from now on.
    fn bar(&mut self, plan: &Plan, size: u32) -> ProgressBar;
    /// It has been measured.
    fn step(&mut self, plan: &Plan, step: &Step) -> anyhow::Result<()>;
}

/// Runs the client's side. `mtu` is what the plan must have, if it must have one.
pub(crate) fn client(
    nic: &dyn Device,
    control: &mut Control,
    plan: &Plan,
    options: ClientOptions,
    audience: &mut dyn Audience,
) -> anyhow::Result<Counts> {
    let done = run_client(nic, control, plan, options, audience);
    if let Err(error) = &done {
        control.send_error(error);
    }
    done
}

/// What a client knows and a server need not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientOptions {
    pub(crate) gid_index: u8,
    /// The MTU, if no other will do.
    pub(crate) mtu: Option<Mtu>,
}

fn run_client(
    nic: &dyn Device,
    control: &mut Control,
    plan: &Plan,
    options: ClientOptions,
    audience: &mut dyn Audience,
) -> anyhow::Result<Counts> {
    let before = counted(nic);
    let mut side = Side::new(nic, plan, options.gid_index)?;
    let own = side.reach();
    control.send(&exchange::hello(plan, &own))?;
    let (mtu, peer) = exchange::read_answer(control, plan)?;
    if let Some(wanted) = options.mtu {
        ensure!(mtu == wanted, "-m: the server can do an MTU of {mtu}, not {wanted}");
    }
    side.set_mtu(mtu)?;
    let gid_of = |reach: &exchange::Reach| reach.qps.first().map(|qp| qp.gid).unwrap_or_default();
    audience.begin(&Setting {
        plan: side.plan().clone(),
        device: nic.name().to_owned(),
        gid: gid_of(&own),
        peer_gid: gid_of(&peer),
    })?;
    side.connect(peer)?;
    for &size in &plan.sizes {
        side.prepare()?;
        let bar = audience.bar(side.plan(), size);
        let step = step(&mut side, control, &bar, size, Role::Client);
        bar.finish_and_clear();
        audience.step(side.plan(), &step?)?;
    }
    control.send("bye\n")?;
    let peer = exchange::read_counters(control).context("at the end")?;
    Ok(Counts { own: since(&before, counted(nic)), peer })
}

/// Runs the server's side; returns what the client wanted.
pub(crate) fn server(
    nic: &dyn Device,
    control: &mut Control,
    gid_index: u8,
) -> anyhow::Result<Plan> {
    server_with(nic, control, gid_index, |_| {})
}

/// The same, and `meddle` may do something with the memory of this side before anything is measured.
pub(crate) fn server_with(
    nic: &dyn Device,
    control: &mut Control,
    gid_index: u8,
    meddle: impl Fn(&Side<'_>),
) -> anyhow::Result<Plan> {
    let done = run_server(nic, control, gid_index, meddle);
    if let Err(error) = &done {
        control.send_error(error);
    }
    done
}

fn run_server(
    nic: &dyn Device,
    control: &mut Control,
    gid_index: u8,
    meddle: impl Fn(&Side<'_>),
) -> anyhow::Result<Plan> {
    let before = counted(nic);
    let (mut plan, peer) = exchange::read_hello(control)?;
    plan.mtu = plan.mtu.min(nic.query_port()?.active_mtu);
    plan.check()?;
    let mut side = Side::new(nic, &plan, gid_index)?;
    let own = side.reach();
    side.connect(peer)?;
    control.send(&exchange::answer(plan.mtu, &own))?;
    for &size in &plan.sizes {
        side.prepare()?;
        meddle(&side);
        step(&mut side, control, &ProgressBar::hidden(), size, Role::Server)?;
    }
    control.expect("bye")?;
    exchange::send_counters(control, &since(&before, counted(nic)))?;
    Ok(plan)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// Measures with one size.
fn step(
    side: &mut Side<'_>,
    control: &mut Control,
    bar: &ProgressBar,
    size: u32,
    role: Role,
) -> anyhow::Result<Step> {
    let mut watch = Watch::begin(control, bar, side.plan().extent)?;
    let (metric, op) = (side.plan().metric, side.plan().op);
    let (samples, mut outcome) = match (metric, role) {
        (Metric::Bw, _) => {
            let sends = role == Role::Client || side.plan().bidirectional;
            (None, bandwidth::run(side, &mut watch, size, sends)?)
        }
        (Metric::Lat, Role::Client) => {
            let (samples, outcome) = latency::measure(side, &mut watch, size)?;
            (Some(samples), outcome)
        }
        (Metric::Lat, Role::Server) => (None, latency::answer(side, &mut watch, size)?),
    };
    let control = watch.end()?;
    let varied = metric == Metric::Lat && op == Op::Write;
    let (sent, came) = (outcome.own.messages, outcome.peer.messages);
    outcome.seen.wrong += side.mistakes(size, sent, came, varied)?;
    control.send(&outcome.seen.to_line())?;
    let peer_saw = Seen::read(control)?;
    let latency = samples.map(|samples| samples.summary(latency::share(op)));
    Ok(Step { size, outcome, peer_saw, latency })
}

/// All that a NIC counts.
fn counted(nic: &dyn Device) -> Counted {
    nic.statistics().into_iter().collect()
}

/// What was counted since, as far as there was any, and always how often anything was sent again.
fn since(before: &Counted, after: Counted) -> Counted {
    let grown = after.into_iter().map(|(name, count)| {
        let was = before.iter().find(|(other, _)| *other == name).map_or(0, |(_, was)| *was);
        (name, count.saturating_sub(was))
    });
    grown.filter(|(name, count)| *count > 0 || name == RETRIES).collect()
}

/// The counter of what was sent again.
pub(crate) const RETRIES: &str = "retry_count";
