//! The wire of a device: it sees every packet that leaves and arrives, and does to some what a scenario says.
//!
//! That of a soft device is around its link ([`watch`]); a card's is a bump in its cable ([`behind`]).
//!
//! Packets are seen before anything is done to them, where they leave the device or before they reach it: what is
//! compared is what a device did, and not what became of it on the way. Faults are injected by rule, and rules are
//! made anew for every instance, when queue pairs have their numbers.

#[cfg(target_os = "linux")]
use std::io;
#[cfg(target_os = "linux")]
use std::sync::Weak;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(target_os = "linux")]
use std::time::Duration;

use crate::link::Link;
#[cfg(target_os = "linux")]
use crate::link::fault::Lane;
use crate::link::fault::{Direction, Injector, Rule, Spec};
#[cfg(target_os = "linux")]
use crate::link::raw::bump::{Bump, Frame};
#[cfg(target_os = "linux")]
use crate::time::Instant;
use crate::wire::{Bth, view};

/// The most packets that are remembered of one instance; further ones are not seen.
pub(super) const SEEN_MAX: usize = 1 << 16;

/// The most bytes of packets that are remembered of one instance.
const SEEN_BYTES_MAX: usize = 64 << 20;

/// A packet that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it left the device.
    pub outbound: bool,
    /// From its BTH to its last pad byte.
    pub packet: Vec<u8>,
}

/// Holds the wire of a device: what passed, and what is to happen.
#[derive(Clone, Debug)]
pub struct Wire {
    injector: Injector,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    seen: Vec<Seen>,
    bytes: usize,
}

impl Log {
    fn add(&mut self, direction: Direction, packet: &[u8]) {
        if self.seen.len() < SEEN_MAX && self.bytes + packet.len() <= SEEN_BYTES_MAX {
            self.bytes += packet.len();
            let outbound = direction == Direction::Outbound;
            self.seen.push(Seen { outbound, packet: packet.to_vec() });
        }
    }
}

impl Wire {
    /// A wire on which nothing happens yet.
    fn new() -> Self {
        let (injector, log) = (Injector::new(&Spec::default()), Arc::<Mutex<Log>>::default());
        let observed = Arc::downgrade(&log);
        injector.observe(move |direction, packet| {
            if let Some(log) = observed.upgrade() {
                lock(&log).add(direction, packet);
            }
        });
        Self { injector, log }
    }

    /// Forgets what passed, and puts these rules in the place of those before.
    pub fn arm(&self, rules: Vec<Rule>) {
        *lock(&self.log) = Log::default();
        self.injector.set_rules(rules);
    }

    /// How often something was done by each rule, in the order in which they were given.
    pub fn fired(&self) -> Vec<u32> {
        self.injector.fired()
    }

    /// What passed since.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.log).seen.clone()
    }

    /// Whether a packet has arrived whose opcode has this word in its name.
    pub fn has_arrived(&self, word: &str) -> bool {
        let named = |packet: &[u8]| {
            view::<Bth>(packet, 0).is_ok_and(|bth| bth.opcode().to_string().contains(word))
        };
        lock(&self.log).seen.iter().any(|seen| !seen.outbound && named(&seen.packet))
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A link whose packets pass a wire.
#[must_use]
pub fn watch(link: Link) -> (Link, Wire) {
    let wire = Wire::new();
    (wire.injector.wrap(link), wire)
}

/// The wire of a device that is behind a bump. Frames are passed on until the last handle of the wire is dropped.
#[cfg(target_os = "linux")]
pub fn behind(bump: Bump) -> io::Result<Wire> {
    let wire = Wire::new();
    let (injector, held) = (wire.injector.clone(), Arc::downgrade(&wire.log));
    let name = "roce-bump".to_owned();
    std::thread::Builder::new().name(name).spawn(move || pass_on(bump, &injector, &held))?;
    Ok(wire)
}

/// How often the bump checks for handles of the wire.
#[cfg(target_os = "linux")]
const ROUND: Duration = Duration::from_millis(100);

/// Passes frames on, as long as there is a handle of the wire and the network takes them.
#[cfg(target_os = "linux")]
fn pass_on(mut bump: Bump, injector: &Injector, held: &Weak<Mutex<Log>>) {
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
        let wait = next.map_or(ROUND, |next| {
            Duration::from_nanos(next.as_nanos().saturating_sub(clock().as_nanos())).min(ROUND)
        });
        // Without the network the scenario says what does not happen.
        if sent.and_then(|()| bump.wait(wait)).is_err() {
            return;
        }
    }
}
