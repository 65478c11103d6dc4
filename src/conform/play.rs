//! One side of an instance while it runs: objects, steps, completions, and the outcome.

use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agent::{Agent, REPLY_TIMEOUT, Terms};
use super::connect::CmRole;
use super::control::{Hello, Message, Reach, check_windows, receive};
use super::expand::Instance;
use super::normalize::Names;
use super::objects::{Objects, Stop};
use super::post::Poster;
use super::scenario::{Action, Done, Step, word};
use super::trace::{Completion, Outcome};
use super::turns::{Turn, Turns};
use super::wire::{Seen, Wire};
use super::{Side, memory, now};
use crate::control::{Channel, ControlError};
use crate::device::AnyQp;
use crate::link::fault::{Direction, Rule};
use crate::verbs::{AsyncEvent, QpState, Wc, WcFlags, WcOpcode};
use crate::wire::Psn;

/// Time that a client waits until the device of the server is free: other clients may be before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(120);

/// Replacement for [`REPLY_TIMEOUT`] while other clients wait for the device.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(1);

/// Reason of an instance that ends early.
const WAITED_FOR: &str = "other clients wait for the device";

/// Interval at which an agent checks whether the peer is gone or other clients wait for the device.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Time that states, events and memory may take to become as expected after the last completion.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// Minimum number of polls in that time.
const SETTLE_POLLS_MIN: u32 = 100;

/// Time to wait for completions that are not expected.
const UNEXPECTED_WAIT: Duration = Duration::from_millis(2);

/// Time to wait for a packet that cannot be observed.
const UNSEEN_WAIT: Duration = Duration::from_millis(20);

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Waits until the device of a server is free. A client sends ready at once, and the server answers
/// when it has the device, so that a silent client does not hold it.
fn wait_turn<'t>(turns: &'t Turns, line: &mut Channel) -> Result<Turn<'t>, Stop> {
    wait_ready(line, REPLY_TIMEOUT)?;
    let busy = || Stop::Trouble(format!("the device was busy for {} s", QUEUE_TIMEOUT.as_secs()));
    turns.wait(QUEUE_TIMEOUT, || line.is_closed()).ok_or_else(busy)
}

/// Waits until the other agent is ready.
fn wait_ready(line: &mut Channel, within: Duration) -> Result<(), ControlError> {
    const READY: &str = "ready";
    match receive(line, within, READY)? {
        Message::Ready => Ok(()),
        other => Err(line.unexpected(&other, READY)),
    }
}

impl From<ControlError> for Stop {
    fn from(error: ControlError) -> Self {
        Self::Trouble(error.to_string())
    }
}

/// One side of an instance while it runs.
pub(super) struct Play<'a> {
    agent: &'a Agent,
    instance: &'a Instance,
    side: Side,
    /// Connections, which end before the queue pairs are destroyed.
    connections: Vec<crate::connect::Connection>,
    objects: Objects,
    names: Names,
    completions: Vec<Completion>,
    events: Vec<String>,
    /// Number of requests that were posted, and of completions that were waited for.
    posted: u64,
    awaited: usize,
    /// Expected contents of each buffer at the end.
    images: Vec<memory::Image>,
    /// Indices of the faults that this side injects.
    injected: Vec<usize>,
    /// Right to the device, which is limited in time while other clients wait.
    turn: Option<Turn<'a>>,
    /// Time limit.
    until: Instant,
    /// Next time to check whether the peer is gone or other clients wait for the device.
    next_check: Instant,
}

impl Drop for Play<'_> {
    /// Removes the fault rules: they are for this instance only.
    fn drop(&mut self) {
        if let Some(wire) = &self.agent.wire {
            wire.arm(Vec::new());
        }
        // A scenario may leave requests that no peer will ever answer.
        self.connections.drain(..).for_each(crate::connect::Connection::abort);
    }
}

impl<'a> Play<'a> {
    /// Creates all objects, connects the queue pairs, and waits for the device.
    pub(super) fn begin(
        agent: &'a Agent,
        instance: &'a Instance,
        side: Side,
        peer: &Hello,
        line: &mut Channel,
        terms: &Terms<'a>,
    ) -> Result<Self, Stop> {
        let mut objects =
            Objects::new(&Arc::clone(&agent.device).into(), agent.gid_index, instance, side)?;
        let mut own = objects.reach();
        let role = match &agent.manager {
            Some(manager) => CmRole::new(manager, side, &objects, &mut own)?,
            None => None,
        };
        line.send(&Message::Reach(own.clone()))?;
        let theirs = Self::reach(instance, side, line, terms.address)?;
        if own.cm_port.is_some() != theirs.cm_port.is_some() {
            let why = "one side wants the connection manager, the other does not: use -R on both or on neither";
            return Err(Stop::Trouble(why.to_owned()));
        }
        let connections = match role {
            Some(role) => role.connect(&objects, &own, &theirs)?,
            None => Vec::new(),
        };
        objects.connect(&theirs)?;
        let turn = terms.turns.map(|turns| wait_turn(turns, line)).transpose()?;
        while let Ok(Some(_)) = agent.device.async_events().wait(Some(Duration::ZERO)) {}
        let names = match side {
            Side::Requester => Names::new(objects.reach(), theirs),
            Side::Responder => Names::new(theirs, objects.reach()),
        };
        let images = objects.buffers.iter().map(|it| memory::image(instance, side, &it.name));
        let mut play = Self {
            agent,
            instance,
            side,
            images: images.collect::<Result<_, _>>().map_err(Stop::Trouble)?,
            connections,
            objects,
            names,
            completions: Vec::new(),
            events: Vec::new(),
            posted: 0,
            awaited: 0,
            injected: Vec::new(),
            turn,
            until: now(),
            next_check: now(),
        };
        if let Some(wire) = &agent.wire {
            let (injected, rules) = play.rules(peer.wire).into_iter().unzip();
            play.injected = injected;
            wire.arm(rules);
        }
        line.send(&Message::Ready)?;
        if terms.turns.is_none() {
            wait_ready(line, QUEUE_TIMEOUT + REPLY_TIMEOUT)?;
        }
        play.until = now() + Duration::from_secs(instance.scenario.limit);
        Ok(play)
    }

    /// Receives the numbers and keys of the other side's objects.
    fn reach(
        instance: &Instance,
        side: Side,
        line: &mut Channel,
        address: Option<IpAddr>,
    ) -> Result<Reach, Stop> {
        const WHAT: &str = "its objects";
        let theirs = match receive(line, REPLY_TIMEOUT, WHAT)? {
            Message::Reach(reach) => reach,
            other => return Err(line.unexpected(&other, WHAT).into()),
        };
        let unsound = |why| line.unsound("its objects", why);
        theirs.check(instance, side.other()).map_err(unsound)?;
        if let Some(address) = address {
            theirs.check_address(address).map_err(unsound)?;
        }
        Ok(theirs)
    }

    /// Returns the fault rules of this side: for its own packets, and for the other's if the other
    /// has no wire. Each has the index of its fault.
    fn rules(&self, peer_has_wire: bool) -> Vec<(usize, Rule)> {
        let faults = self.instance.scenario.faults.iter().enumerate();
        let own = faults.filter(|(_, fault)| fault.from == self.side || !peer_has_wire);
        let rule = |(at, fault): (usize, &super::scenario::Fault)| {
            let to = self.names.of(fault.from.other());
            // Responses have the PSNs of their requests, and only the requester sends requests.
            let base = self.names.of(Side::Requester).qps.first().map_or(0, |(_, psn)| psn.get());
            let from_here = fault.from == self.side;
            let direction = if from_here { Direction::Outbound } else { Direction::Inbound };
            let mut rule = Rule::new(fault.effect.action())
                .direction(direction)
                .qps(to.qps.iter().map(|(qpn, _)| *qpn));
            if let Some(psn) = fault.psn {
                rule = rule.psn(Psn::new(base).plus(psn));
            }
            if let Some(word) = &fault.packet {
                // `check` has made sure that the opcode exists.
                rule = rule.opcode(word)?;
            }
            rule = if fault.nth == 0 { rule.every_time() } else { rule.nth(fault.nth) };
            Some((at, rule))
        };
        own.filter_map(rule).collect()
    }

    /// Runs all steps in order, and waits until everything is as expected.
    pub(super) fn run(&mut self, line: &mut Channel) -> Result<(), Stop> {
        let instance = self.instance;
        let steps = &instance.scenario.steps;
        let limit = Duration::from_secs(instance.scenario.limit) + REPLY_TIMEOUT;
        let who = |at: usize| steps.get(at).and_then(Step::who).map(|(side, _)| side);
        for (at, step) in steps.iter().enumerate() {
            let Some((side, action)) = step.who() else { continue };
            let other_is_next = who(at + 1) == Some(side.other());
            if side == self.side {
                let action = if action == Action::Op { instance.op } else { action };
                self.step(step, action, line).map_err(|stop| match stop {
                    Stop::Trouble(why) => Stop::Trouble(format!("step {}: {why}", at + 1)),
                    stop => stop,
                })?;
                if other_is_next {
                    let windows = self.objects.window_keys();
                    self.learn(self.side, &windows);
                    line.send(&Message::Done { step: at, windows })?;
                }
            } else if other_is_next {
                match self.receive(line, limit, "the end of a step")? {
                    Message::Done { step, windows } if step == at => {
                        check_windows(&windows, instance, self.side.other())
                            .map_err(|why| line.unsound("the end of its step", why))?;
                        self.learn(self.side.other(), &windows);
                    }
                    other => return Err(line.unexpected(&other, "the end of a step").into()),
                }
            }
        }
        // The requests of either side have changed the other one when they have completed.
        self.wait(self.expected(), line)?;
        self.meet(Message::Completed, line)?;
        self.settle(line)?;
        self.meet(Message::Settled, line)?;
        self.rest(UNEXPECTED_WAIT, line)
    }

    /// Tells the other agent how far this one is, and waits until it is as far.
    fn meet(&mut self, milestone: Message, line: &mut Channel) -> Result<(), Stop> {
        let limit = Duration::from_secs(self.instance.scenario.limit) + REPLY_TIMEOUT;
        let (kind, what) = (discriminant(&milestone), "the end of its steps");
        line.send(&milestone)?;
        match self.receive(line, limit, what)? {
            reached if discriminant(&reached) == kind => Ok(()),
            other => Err(line.unexpected(&other, what).into()),
        }
    }

    /// Receives a message of the other agent, unless the device must be given up meanwhile.
    fn receive(
        &mut self,
        line: &mut Channel,
        within: Duration,
        what: &'static str,
    ) -> Result<Message, Stop> {
        let start = now();
        let until = start + within;
        let crowded = start + Duration::from_secs(self.instance.scenario.limit) + CROWDED_TIMEOUT;
        loop {
            let received = receive(line, CHECK_INTERVAL.min(within), what);
            let contended = self.turn.as_ref().is_some_and(Turn::is_contended);
            match received {
                Err(ControlError::Silent { .. }) if contended && now() >= crowded => {
                    return Err(Stop::Trouble(WAITED_FOR.to_owned()));
                }
                Err(ControlError::Silent { .. }) if now() < until => self.go_on(line)?,
                received => return Ok(received?),
            }
        }
    }

    /// Whether to continue: the peer is connected, and no other client has waited for the device
    /// for long.
    fn go_on(&mut self, line: &mut Channel) -> Result<(), Stop> {
        if now() < self.next_check {
            return Ok(());
        }
        self.next_check = now() + CHECK_INTERVAL;
        if self.turn.as_ref().is_some_and(Turn::is_over) {
            return Err(Stop::Trouble(WAITED_FOR.to_owned()));
        }
        if line.is_closed() { Err(ControlError::Closed(line.peer()).into()) } else { Ok(()) }
    }

    /// Sleeps, and meanwhile takes completions and events.
    fn rest(&mut self, time: Duration, line: &mut Channel) -> Result<(), Stop> {
        let until = now() + time;
        while now() < until {
            self.look();
            self.go_on(line)?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until a packet has arrived, and a moment for its effects.
    fn see(&mut self, word: &str, line: &mut Channel) -> Result<(), Stop> {
        let Some(wire) = self.agent.wire.clone() else {
            return self.rest(UNSEEN_WAIT, line);
        };
        while !wire.has_arrived(word) {
            if now() >= self.until {
                return Err(Stop::Trouble(format!("no {word} packet arrived")));
            }
            self.rest(POLL_INTERVAL, line)?;
        }
        self.rest(UNEXPECTED_WAIT, line)
    }

    /// Sets the keys of a side's windows.
    fn learn(&mut self, side: Side, windows: &std::collections::BTreeMap<String, u32>) {
        windows.iter().for_each(|(name, key)| self.names.window(side, name, *key));
    }

    fn step(&mut self, step: &Step, action: Action, line: &mut Channel) -> Result<(), Stop> {
        match action {
            Action::Wait => {
                self.awaited += step.count.unwrap_or(1) as usize;
                return self.wait(self.awaited, line);
            }
            Action::Sleep => {
                return self.rest(Duration::from_millis(step.ms.unwrap_or(1)), line);
            }
            Action::See => return self.see(step.packet.as_deref().unwrap_or_default(), line),
            Action::Modify => return self.poster().modify(step),
            _ => {}
        }
        for _ in 0..step.times.unwrap_or(1) {
            self.posted += u64::from(!step.refused);
            let id = self.posted;
            self.poster().post(step, action, id)?;
        }
        Ok(())
    }

    fn poster(&mut self) -> Poster<'_> {
        let Self { objects, instance, names, side, .. } = self;
        Poster { objects, instance, names, side: *side }
    }

    /// Waits until there are `count` completions in all.
    fn wait(&mut self, count: usize, line: &mut Channel) -> Result<(), Stop> {
        loop {
            self.look();
            if self.completions.len() >= count {
                return Ok(());
            }
            if let Some(error) = self.agent.device.broken() {
                return Err(Stop::trouble("the device is broken", error));
            }
            self.go_on(line)?;
            if now() >= self.until {
                let (has, limit) = (self.completions.len(), self.instance.scenario.limit);
                return Err(Stop::Trouble(format!("{has} of {count} completions after {limit} s")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Number of completions that are expected.
    fn expected(&self) -> usize {
        let times = |done: &Done| done.times.unwrap_or(1) as usize;
        self.instance.scenario.expect.of(self.side).iter().map(times).sum()
    }

    /// Waits until all is as expected, or has had the time to become so. A machine that was stopped
    /// meanwhile lets the device run before this thread gives up.
    fn settle(&mut self, line: &mut Channel) -> Result<(), Stop> {
        let (until, mut polls) = (now() + SETTLE_TIME, 0);
        while !self.is_settled() && (now() < until || polls < SETTLE_POLLS_MIN) {
            polls += 1;
            self.go_on(line)?;
            std::thread::sleep(POLL_INTERVAL);
            self.look();
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let expect = &self.instance.scenario.expect;
        let state = expect.state_of(self.side);
        self.events.len() >= expect.events_of(self.side).len()
            && self.states().iter().all(|is| is == state)
            && self.mismatches().is_empty()
    }

    /// Takes completions and events.
    fn look(&mut self) {
        self.poll(false);
        self.poll(true);
        while let Ok(Some(event)) = self.agent.device.async_events().wait(Some(Duration::ZERO)) {
            let own = match event {
                AsyncEvent::Qp(_, qp) => self.objects.qps.iter().any(|own| own.handle() == qp),
                AsyncEvent::Srq(_, srq) => {
                    self.objects.srq.as_ref().is_some_and(|own| own.handle() == srq)
                }
                AsyncEvent::Cq(_, cq) => {
                    let Objects { send_cq, recv_cq, .. } = &self.objects;
                    cq == send_cq.handle() || cq == recv_cq.handle()
                }
                AsyncEvent::Port(_) | AsyncEvent::Device(_) => false,
            };
            if own {
                self.events.push(word(event.event().name(), "IBV_EVENT_"));
            }
        }
    }

    fn poll(&mut self, recv: bool) {
        let mut wcs = [Wc::default(); 16];
        let cq = if recv { &self.objects.recv_cq } else { &self.objects.send_cq };
        let count = cq.poll_wcs(&mut wcs);
        for wc in wcs.iter().take(count) {
            let completion = self.completion(wc, recv);
            self.completions.push(completion);
        }
    }

    fn completion(&self, wc: &Wc, recv: bool) -> Completion {
        let qp = self.objects.qps.iter().position(|qp| qp.number() == wc.qp_num);
        let success = wc.is_success();
        let counted = recv
            || matches!(wc.opcode, WcOpcode::RdmaRead | WcOpcode::FetchAdd | WcOpcode::CompSwap);
        let key = wc.invalidated().filter(|_| success);
        let name = |key: crate::wire::RKey| {
            self.names.window_of(self.side, key.get()).unwrap_or_else(|| "no window".to_owned())
        };
        Completion {
            qp: qp.unwrap_or(usize::MAX),
            recv,
            id: wc.id.0,
            status: word(wc.status.name(), "IBV_WC_"),
            opcode: success.then(|| word(wc.opcode.name(), "IBV_WC_")),
            byte_len: (success && counted).then_some(wc.byte_len),
            imm: wc.imm().filter(|_| success).map(u32::from_be_bytes),
            invalidated: key.map(name),
            grh: success && recv && wc.flags().contains(WcFlags::GRH),
        }
    }

    fn states(&self) -> Vec<String> {
        let state = |qp: &AnyQp| qp.state().unwrap_or(QpState::Reset);
        self.objects.qps.iter().map(|qp| state(qp).text().to_ascii_lowercase()).collect()
    }

    fn mismatches(&self) -> Vec<String> {
        let buffers = self.objects.buffers.iter().zip(&self.images);
        let mismatch = |(buffer, image): (&super::objects::Registered, &memory::Image)| {
            let (at, must, is) = memory::mismatch(image, &buffer.mr.to_vec())?;
            Some(format!("{}[{at}] is {is:#04x} and must be {must:#04x}", buffer.name))
        };
        buffers.filter_map(mismatch).collect()
    }

    /// Returns the outcome.
    pub(super) fn finish(&mut self, outcome: &mut Outcome) {
        self.look();
        self.completions.sort_by_key(|it| (it.qp, it.recv));
        outcome.completions = std::mem::take(&mut self.completions);
        self.events.sort();
        outcome.events = std::mem::take(&mut self.events);
        outcome.states = self.states();
        outcome.mismatches = self.mismatches();
        for (buffer, image) in self.objects.buffers.iter().zip(&self.images) {
            let bytes = buffer.mr.to_vec();
            let counts = bytes.iter().zip(image).filter(|(_, must)| must.is_some());
            let counts: Vec<u8> = counts.map(|(byte, _)| *byte).collect();
            outcome.memory.insert(buffer.name.clone(), crc32fast::hash(&counts));
        }
        let seen = self.agent.wire.as_ref().map(Wire::seen);
        outcome.packets = seen.map(|seen| {
            let named = |seen: &Seen| Some((self.names.packet(self.side, seen)?, seen.effect));
            let (packets, effects): (Vec<_>, Vec<_>) = seen.iter().filter_map(named).unzip();
            let effects = effects.into_iter().enumerate();
            outcome.effects = effects.filter_map(|(at, effect)| Some((at, effect?))).collect();
            packets
        });
        let fired = self.agent.wire.as_ref().map(Wire::fired);
        outcome.faults = fired.map(|fired| self.injected.iter().copied().zip(fired).collect());
    }
}
