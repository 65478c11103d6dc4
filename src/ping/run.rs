//! Prober and responder on a device.

use core::time::Duration;
use std::io;

use super::packet::ProbeId;
use super::prober::{Event, Prober, ProberConfig, ProberCounters, Transmit};
use super::qp::{Address, Done, ProbeQp};
use super::responder::{Answer, Responder, ResponderConfig, ResponderCounters};
use crate::time::Instant;
use crate::wire::Bits;

/// Marks the send of a second acknowledgement, which need not be reported to the responder.
const UNREPORTED: u64 = 1 << 63;

/// Probes targets from a queue pair of its own.
///
/// ```
/// use std::time::Duration;
/// use roce::device::Context;
/// use roce::link::cable;
/// use roce::nic::SoftNic;
/// use roce::ping::{Answerer, Ending, Event, Pinger, ProbeQp, ProberConfig, Role};
/// use roce::wire::Gid;
///
/// let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// let (a, b) = cable(gids[0], gids[1])?;
/// let (a, b) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
///
/// // Each side learns the other's address out of band.
/// let (near, far) = (ProbeQp::new(&a, 0, Role::Prober)?, ProbeQp::new(&b, 0, Role::Responder)?);
/// let (from, to) = (near.address(), far.address());
/// let mut answerer = Answerer::new(far, 1, from);
/// let answering = std::thread::spawn(move || answerer.run(Duration::from_secs(10), |it| it.answered == 3));
///
/// let config = ProberConfig::new(7).interval(Duration::from_millis(1)).timeout(Duration::from_secs(10)).count(3);
/// let mut pinger = Pinger::new(near, config, &[to]);
/// let mut answered = 0;
/// while !pinger.is_done() {
///     if let Some(Event::Ended { ending: Ending::Answered(stamps), .. }) = pinger.next(Duration::from_secs(1))? {
///         println!("network {:?}, prober {:?}, responder {:?}", stamps.network(), stamps.prober(), stamps.responder);
///         answered += 1;
///     }
/// }
/// assert_eq!(answered, 3);
/// # answering.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pinger {
    qp: ProbeQp,
    prober: Prober,
    targets: Vec<Address>,
}

impl Pinger {
    /// Begins to probe targets.
    pub fn new(qp: ProbeQp, config: ProberConfig, targets: &[Address]) -> Self {
        let gids: Vec<_> = targets.iter().map(|target| target.gid).collect();
        let prober = Prober::new(config, &gids, qp.now());
        Self { qp, prober, targets: targets.to_vec() }
    }

    /// Returns what responders must be told.
    pub fn address(&self) -> Address {
        self.qp.address()
    }

    /// Tells that a responder has restarted with another queue pair at the same GID.
    pub fn set_target(&mut self, target: usize, address: Address) {
        if let Some(known) = self.targets.get_mut(target).filter(|it| it.gid == address.gid) {
            *known = address;
        }
    }

    /// Returns what was counted of packets that ended no probe.
    pub fn counters(&self) -> &ProberCounters {
        self.prober.counters()
    }

    /// Whether the device tells times of completions.
    pub fn has_device_times(&self) -> bool {
        self.qp.has_device_times()
    }

    /// Whether every probe has ended. What happened last may still wait for [`next`](Self::next).
    pub fn is_done(&self) -> bool {
        self.prober.is_done() && !self.prober.has_events()
    }

    /// Sends no more probes.
    pub fn stop(&mut self) {
        self.prober.stop();
    }

    /// Probes until something has happened, all is done, or `wait` has passed.
    pub fn next(&mut self, wait: Duration) -> io::Result<Option<Event>> {
        let deadline = self.qp.now().saturating_add(wait);
        loop {
            let now = self.qp.now();
            self.prober.handle_timeout(now);
            while let Some(probe) = self.prober.poll_transmit(self.qp.now()) {
                self.post(&probe);
            }
            if let Some(event) = self.prober.poll_event() {
                return Ok(Some(event));
            }
            if now >= deadline || self.prober.is_done() {
                return Ok(None);
            }
            let until = self.prober.poll_timeout().map_or(deadline, |at| at.min(deadline));
            if let Some(done) = self.qp.wait(until.saturating_since(now))? {
                self.handle(&done);
            }
            while let Some(done) = self.qp.poll()? {
                self.handle(&done);
            }
        }
    }

    fn post(&mut self, probe: &Transmit) {
        let Some(target) = self.targets.get(probe.target) else { return };
        let id = u64::from(probe.id.sequence) | u64::from(probe.id.flow_label.get()) << 32;
        if self.qp.send(id, &probe.bytes, (*target, probe.id.flow_label)).is_err() {
            self.prober.handle_not_sent(probe.id);
        }
    }

    fn handle(&mut self, done: &Done) {
        match done {
            Done::Sent { id, is_success, at } => {
                let probe = self.probe_id(*id);
                match is_success {
                    true => self.prober.handle_sent(probe, *at),
                    false => self.prober.handle_not_sent(probe),
                }
            }
            Done::Received { source, bytes, len, at } => {
                let bytes = bytes.get(..*len).unwrap_or_default();
                self.prober.handle_packet(source.gid, bytes, *at, self.qp.now());
            }
            Done::NoSource => {
                self.prober.handle_packet(Default::default(), &[], Instant::ZERO, self.qp.now())
            }
        }
    }

    fn probe_id(&self, id: u64) -> ProbeId {
        #[expect(clippy::cast_possible_truncation, reason = "both halves in turn")]
        let (sequence, label) = (id as u32, (id >> 32) as u32);
        ProbeId { session: self.prober.config().session, sequence, flow_label: Bits::low(label) }
    }
}

/// Answers the probes of one prober from a queue pair of its own. [`Pinger`] has an example.
#[derive(Debug)]
pub struct Answerer {
    qp: ProbeQp,
    responder: Responder,
    peer: Address,
}

impl Answerer {
    /// Begins to answer `peer`. `instance` is a random number that tells this run from others.
    pub fn new(qp: ProbeQp, instance: u64, peer: Address) -> Self {
        Self::with_config(qp, ResponderConfig::new(instance, peer.source()), peer)
    }

    /// Creates an answerer with a rate of its own. Whatever `config` says, only `peer` is answered.
    pub fn with_config(qp: ProbeQp, config: ResponderConfig, peer: Address) -> Self {
        let config = ResponderConfig { peer: Some(peer.source()), ..config };
        let responder = Responder::new(config, qp.now());
        Self { qp, responder, peer }
    }

    /// Returns what the prober must be told.
    pub fn address(&self) -> Address {
        self.qp.address()
    }

    /// Returns what it counted.
    pub fn counters(&self) -> &ResponderCounters {
        self.responder.counters()
    }

    /// Answers until `is_done` returns true or `wait` has passed.
    pub fn run(
        &mut self,
        wait: Duration,
        is_done: impl Fn(&ResponderCounters) -> bool,
    ) -> io::Result<()> {
        let deadline = self.qp.now().saturating_add(wait);
        loop {
            let now = self.qp.now();
            if now >= deadline || is_done(self.counters()) && !self.responder.has_unsent() {
                return Ok(());
            }
            if let Some(done) = self.qp.wait(deadline.saturating_since(now))? {
                self.handle(&done);
            }
            while let Some(done) = self.qp.poll()? {
                self.handle(&done);
            }
        }
    }

    fn handle(&mut self, done: &Done) {
        let answer = match done {
            Done::Sent { id, .. } if id & UNREPORTED != 0 => None,
            Done::Sent { id, is_success: true, at } => self.responder.handle_sent(*id, *at),
            Done::Sent { id, .. } => {
                self.responder.handle_not_sent(*id);
                None
            }
            Done::Received { source, bytes, len, at } => {
                let bytes = bytes.get(..*len).unwrap_or_default();
                self.responder.handle_packet(*source, bytes, *at, self.qp.now())
            }
            // It is counted as no probe.
            Done::NoSource => {
                let now = self.qp.now();
                self.responder.handle_packet(self.peer.source(), &[], now, now)
            }
        };
        if let Some(answer) = answer {
            self.post(&answer);
        }
    }

    fn post(&mut self, answer: &Answer) {
        let id = answer.id.unwrap_or(UNREPORTED);
        let to = Address { qkey: self.peer.qkey, gid: answer.to.gid, qpn: answer.to.qpn };
        if self.qp.send(id, &answer.bytes, (to, answer.flow_label)).is_err()
            && let Some(id) = answer.id
        {
            self.responder.handle_not_sent(id);
        }
    }
}
