//! The wire of a device: logs every packet that leaves or arrives, and injects the faults of a
//! scenario.
//!
//! For a soft device it wraps the link ([`watch`]); for an RNIC it is a bump in the wire
//! ([`behind`]).
//!
//! Packets are logged before faults: outbound ones as the device sent them, inbound ones before a
//! fault changes them. So the comparison is about what devices did. Fault rules name queue pairs by
//! number, so each instance sets its own.

use std::io;
use std::sync::Weak;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::link::fault::Lane;
use crate::link::fault::{Direction, Effect, Injector, Rule, Spec};
use crate::link::raw::bump::{Bump, Frame};
use crate::link::{Link, Receiver, forward_to_receiver};
use crate::time::Instant;
use crate::wire::{Bth, Qpn, Received, view};

/// Maximum number of packets in the log of one instance; further ones are not logged.
pub(super) const SEEN_MAX: usize = 1 << 16;

/// Maximum number of bytes of packets in the log of one instance.
const SEEN_BYTES_MAX: usize = 64 << 20;

/// A packet in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it left the device.
    pub outbound: bool,
    /// Packet, from its BTH to its last pad byte.
    pub packet: Vec<u8>,
    /// The effect of a fault that this wire injects.
    pub effect: Option<Effect>,
}

/// The wire of a device: its log, and its fault injector.
#[derive(Clone, Debug)]
pub struct Wire {
    injector: Injector,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    seen: Vec<Seen>,
    bytes: usize,
    /// Number of packets of `seen` that the device has handled, as far as that is known: all of a
    /// device behind a bump.
    handled: usize,
    /// Whether the link itself is wrapped, so that it is known when packets are handled.
    is_link: bool,
}

impl Log {
    /// Remembers a packet, but for those of the connection manager: they are not compared.
    fn add(&mut self, direction: Direction, packet: &[u8], effect: Option<Effect>) {
        if view::<Bth>(packet, 0).is_ok_and(|bth| bth.dest_qp() == Qpn::GSI) {
            return;
        }
        if self.seen.len() < SEEN_MAX && self.bytes + packet.len() <= SEEN_BYTES_MAX {
            self.bytes += packet.len();
            let outbound = direction == Direction::Outbound;
            self.seen.push(Seen { outbound, packet: packet.to_vec(), effect });
            if !self.is_link {
                self.handled = self.seen.len();
            }
        }
    }
}

/// The receiving half of a link, which notes the packets that the device has handled: they are
/// logged before that, and a thread may lose its core between the two.
struct Handled {
    inner: Box<dyn Receiver>,
    log: Arc<Mutex<Log>>,
}

impl Handled {
    fn note(&self) {
        let mut log = lock(&self.log);
        log.handled = log.seen.len();
    }
}

impl Receiver for Handled {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        let count = self.inner.receive(now)?;
        if count == 0 {
            // The packets that arrived were dropped.
            self.note();
        }
        Ok(count)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.inner.for_each(each);
        self.note();
    }

    forward_to_receiver!(inner);

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}

impl Wire {
    /// A wire without faults.
    fn new() -> Self {
        let (injector, log) = (Injector::new(&Spec::default()), Arc::<Mutex<Log>>::default());
        let observed = Arc::downgrade(&log);
        injector.observe(move |direction, packet, effect| {
            if let Some(log) = observed.upgrade() {
                lock(&log).add(direction, packet, effect);
            }
        });
        Self { injector, log }
    }

    /// Clears the log, and replaces the fault rules.
    pub fn arm(&self, rules: Vec<Rule>) {
        {
            let mut log = lock(&self.log);
            *log = Log { is_link: log.is_link, ..Log::default() };
        }
        self.injector.set_rules(rules);
    }

    /// Returns how often each rule was applied, in the order of [`arm`](Self::arm).
    pub fn fired(&self) -> Vec<u32> {
        self.injector.fired()
    }

    /// Returns the log.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.log).seen.clone()
    }

    /// Whether a packet has arrived, and been handled, whose opcode name contains `word`.
    pub fn has_arrived(&self, word: &str) -> bool {
        let named = |packet: &[u8]| {
            view::<Bth>(packet, 0).is_ok_and(|bth| bth.opcode().to_string().contains(word))
        };
        let log = lock(&self.log);
        log.seen.iter().take(log.handled).any(|seen| !seen.outbound && named(&seen.packet))
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a wire around a link.
#[must_use]
pub fn watch(link: Link) -> (Link, Wire) {
    let wire = Wire::new();
    lock(&wire.log).is_link = true;
    let mut link = wire.injector.wrap(link);
    link.receiver = Box::new(Handled { inner: link.receiver, log: Arc::clone(&wire.log) });
    (link, wire)
}

/// Returns the wire of a device behind a bump in the wire. A thread forwards frames until the last
/// handle is dropped.
pub fn behind(bump: Bump) -> io::Result<Wire> {
    let wire = Wire::new();
    let (injector, held) = (wire.injector.clone(), Arc::downgrade(&wire.log));
    let name = "roce-bump".to_owned();
    std::thread::Builder::new().name(name).spawn(move || forward(bump, &injector, &held))?;
    Ok(wire)
}

/// Maximum time until the thread sees that the last handle was dropped.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Forwards frames until the last handle is dropped or an interface fails.
fn forward(mut bump: Bump, injector: &Injector, held: &Weak<Mutex<Log>>) {
    let start = super::now();
    let clock = || {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    };
    let mut lanes: [Lane<Frame>; 2] = [(); 2].map(|()| Lane::new(injector.clone()));
    while held.strong_count() > 0 {
        let now = clock();
        let [outward, inward] = &mut lanes;
        let received = bump.receive(&mut |frame| {
            let (direction, lane) = match frame.outbound {
                true => (Direction::Outbound, &mut *outward),
                false => (Direction::Inbound, &mut *inward),
            };
            match frame.packet() {
                Some(packet) => lane.pass(now, direction, packet, || frame.clone()),
                None => lane.pass_untouched(now, frame),
            }
        });
        let mut sent = received;
        for lane in &mut lanes {
            while let Some(due) = lane.pop(now) {
                let mut frame = due.packet;
                if due.corrupt.is_some() {
                    frame.corrupt();
                }
                sent = sent.and_then(|()| bump.send(&frame));
            }
        }
        let next = lanes.iter().filter_map(Lane::timeout).min();
        let wait = next.map_or(CHECK_INTERVAL, |next| {
            Duration::from_nanos(next.as_nanos().saturating_sub(clock().as_nanos()))
                .min(CHECK_INTERVAL)
        });
        // The scenario then reports the completions that do not come.
        if sent.and_then(|()| bump.wait(wait)).is_err() {
            return;
        }
    }
}
