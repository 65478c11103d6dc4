//! The wire of a device: it sees every packet that leaves and arrives, and does to some what a scenario says.
//!
//! That of a soft device is around its link ([`watch`]); a card's is a bump in its cable ([`behind`]).
//!
//! Packets are seen before anything is done to them, where they leave the device or before they reach it: what is
//! compared is what a device did, and not what became of it on the way. Faults are injected by rule, and rules are
//! made anew for every instance, when queue pairs have their numbers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
#[cfg(target_os = "linux")]
use std::sync::Weak;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::scenario::Deed;
#[cfg(target_os = "linux")]
use crate::link::raw::bump::{Bump, Frame};
use crate::link::{Link, Receiver, Sender};
use crate::time::Instant;
use crate::wire::{Batch, Bth, Gid, ICRC_ROOM, Path, Qpn, Received, view};

/// How much later a delayed packet comes.
const DELAY: Duration = Duration::from_millis(10);

/// How long a packet waits for the one that is to pass it.
const SWAP_TIMEOUT: Duration = Duration::from_millis(50);

/// The most packets that are remembered of one instance; further ones are not seen.
pub(super) const SEEN_MAX: usize = 1 << 16;

/// The most bytes of packets that are remembered of one instance.
const SEEN_BYTES_MAX: usize = 64 << 20;

/// How many packets are passed on at once.
const PASSED_ON_MAX: usize = 64;

/// A packet that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it left the device.
    pub outbound: bool,
    /// From its BTH to its last pad byte.
    pub packet: Vec<u8>,
}

/// A fault rule for one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether it is for packets that leave.
    pub outbound: bool,
    /// The queue pairs that the packet may be for.
    pub qps: Vec<u32>,
    /// Its PSN.
    pub psn: Option<u32>,
    /// A word of the name of its opcode.
    pub word: Option<String>,
    /// Which time, from 1; 0 is every time.
    pub nth: u32,
    /// What is done to it.
    pub deed: Deed,
}

impl Rule {
    fn means(&self, outbound: bool, bth: &Bth) -> bool {
        let word = self.word.as_ref();
        self.outbound == outbound
            && self.qps.contains(&bth.dest_qp().get())
            && self.psn.is_none_or(|psn| psn == bth.psn().get())
            && word.is_none_or(|word| bth.opcode().to_string().contains(word.as_str()))
    }
}

/// Holds the wire of a device: what passed, and what is to happen.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    seen_bytes: usize,
    rules: Vec<Armed>,
}

/// A rule, and how many packets it meant so far.
#[derive(Debug)]
struct Armed {
    rule: Rule,
    matched: u32,
    /// How often something was done.
    fired: u32,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what passed, and makes appointments.
    pub fn arm(&self, rules: Vec<Rule>) {
        let mut state = self.lock();
        state.seen.clear();
        state.seen_bytes = 0;
        let armed = |rule| Armed { rule, matched: 0, fired: 0 };
        state.rules = rules.into_iter().map(armed).collect();
    }

    /// How often something was done by each rule, in the order in which they were given.
    pub fn fired(&self) -> Vec<u32> {
        self.lock().rules.iter().map(|armed| armed.fired).collect()
    }

    /// What passed since.
    pub fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    /// Whether a packet has arrived whose opcode has this word in its name.
    pub fn has_arrived(&self, word: &str) -> bool {
        let named = |packet: &[u8]| {
            view::<Bth>(packet, 0).is_ok_and(|bth| bth.opcode().to_string().contains(word))
        };
        self.lock().seen.iter().any(|seen| !seen.outbound && named(&seen.packet))
    }

    /// A packet passes; what is done to it?
    pub fn pass(&self, outbound: bool, packet: &[u8]) -> Option<Deed> {
        let mut state = self.lock();
        if state.seen.len() < SEEN_MAX && state.seen_bytes + packet.len() <= SEEN_BYTES_MAX {
            state.seen_bytes += packet.len();
            state.seen.push(Seen { outbound, packet: packet.to_vec() });
        }
        let bth = view::<Bth>(packet, 0).ok()?;
        let mut deed = None;
        for armed in state.rules.iter_mut().filter(|armed| armed.rule.means(outbound, bth)) {
            armed.matched = armed.matched.saturating_add(1);
            if armed.rule.nth == 0 || armed.matched == armed.rule.nth {
                armed.fired = armed.fired.saturating_add(1);
                deed = deed.or(Some(armed.rule.deed));
            }
        }
        deed
    }
}

/// A link whose packets pass a wire.
#[must_use]
pub fn watch(link: Link) -> (Link, Wire) {
    let wire = Wire::default();
    let sender = Watched {
        inner: link.sender,
        wire: wire.clone(),
        way: Way::default(),
        passing: Batch::new(PASSED_ON_MAX),
    };
    let receiver = Watching {
        inner: link.receiver,
        wire: wire.clone(),
        way: Way::default(),
        arrived: Vec::new(),
    };
    let watched = Link {
        sender: Box::new(sender),
        receiver: Box::new(receiver),
        port: link.port,
        frames: link.frames,
        monitor: link.monitor,
    };
    (watched, wire)
}

/// The wire of a device that is behind a bump. Frames are passed on until the last handle of the wire is dropped.
#[cfg(target_os = "linux")]
pub fn behind(bump: Bump) -> io::Result<Wire> {
    let wire = Wire::default();
    let watched = Arc::downgrade(&wire.0);
    let name = "roce-bump".to_owned();
    std::thread::Builder::new().name(name).spawn(move || pass_on(bump, &watched))?;
    Ok(wire)
}

/// How often the bump checks for handles of the wire.
#[cfg(target_os = "linux")]
const ROUND: Duration = Duration::from_millis(100);

/// Passes frames on, as long as there is a handle of the wire and the network takes them.
#[cfg(target_os = "linux")]
fn pass_on(mut bump: Bump, watched: &Weak<Mutex<State>>) {
    let start = super::now();
    let clock = || {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    };
    let mut ways: [Way<Frame>; 2] = Default::default();
    while let Some(wire) = watched.upgrade().map(Wire) {
        let now = clock();
        let [outward, inward] = &mut ways;
        let received = bump.receive(&mut |frame| {
            let deed = frame.packet().and_then(|packet| wire.pass(frame.outbound, packet));
            let way = if frame.outbound { &mut *outward } else { &mut *inward };
            way.take(now, frame, deed);
        });
        drop(wire);
        let mut sent = received;
        for way in &mut ways {
            way.release(now);
            for (mut frame, damaged) in way.due.drain(..) {
                if damaged {
                    frame.damage();
                }
                sent = sent.and_then(|()| bump.send(&frame));
            }
        }
        let next = ways.iter().filter_map(Way::timeout).min();
        let wait = next.map_or(ROUND, |next| {
            Duration::from_nanos(next.as_nanos().saturating_sub(clock().as_nanos())).min(ROUND)
        });
        // Without the network the scenario says what does not happen.
        if sent.and_then(|()| bump.wait(wait)).is_err() {
            return;
        }
    }
}

/// One direction: what is due, what is held back.
struct Way<P> {
    due: VecDeque<(P, bool)>,
    held: Vec<(Instant, P)>,
    /// Waits for the next to pass it.
    overtaken: Option<(Instant, P)>,
}

impl<P> Default for Way<P> {
    fn default() -> Self {
        Self { due: VecDeque::new(), held: Vec::new(), overtaken: None }
    }
}

impl<P: Clone> Way<P> {
    /// Takes in a packet, to which something is done.
    fn take(&mut self, now: Instant, packet: P, deed: Option<Deed>) {
        match deed {
            Some(Deed::Drop) => return,
            Some(Deed::Delay) => return self.held.push((now.saturating_add(DELAY), packet)),
            Some(Deed::Swap) if self.overtaken.is_none() => {
                self.overtaken = Some((now.saturating_add(SWAP_TIMEOUT), packet));
                return;
            }
            Some(Deed::Duplicate) => self.due.extend([(packet.clone(), false), (packet, false)]),
            Some(Deed::Corrupt) => self.due.push_back((packet, true)),
            Some(Deed::Swap) | None => self.due.push_back((packet, false)),
        }
        if let Some((_, packet)) = self.overtaken.take() {
            self.due.push_back((packet, false));
        }
    }

    /// Moves to what is due what has been held back long enough.
    fn release(&mut self, now: Instant) {
        if self.overtaken.as_ref().is_some_and(|(until, _)| *until <= now) {
            self.held.extend(self.overtaken.take());
        }
        while let Some(at) = self.held.iter().position(|(until, _)| *until <= now) {
            let (_, packet) = self.held.remove(at);
            self.due.push_back((packet, false));
        }
    }

    fn timeout(&self) -> Option<Instant> {
        self.held.iter().chain(&self.overtaken).map(|(until, _)| *until).min()
    }
}

struct Watched {
    inner: Box<dyn Sender>,
    wire: Wire,
    way: Way<(Path, Vec<u8>)>,
    passing: Batch,
}

impl Sender for Watched {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        for (path, bytes) in batch.iter() {
            let packet = bytes.get(..bytes.len().saturating_sub(ICRC_ROOM)).unwrap_or_default();
            let deed = self.wire.pass(true, packet);
            self.way.take(now, (*path, packet.to_vec()), deed);
        }
        self.way.release(now);
        loop {
            self.passing.clear();
            while !self.passing.is_full() {
                let Some(((path, packet), damaged)) = self.way.due.pop_front() else { break };
                self.passing.push(&path, &packet);
                if damaged {
                    // A bit of the PSN, which the ICRC covers.
                    self.passing.damage_last(PSN_BIT);
                }
            }
            let more = self.passing.is_full();
            self.inner.send(now, &mut self.passing)?;
            if !more {
                return Ok(());
            }
        }
    }

    fn source_port(&self, path: &Path) -> u16 {
        self.inner.source_port(path)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.way.timeout().into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}

/// The lowest bit of the PSN in a BTH.
const PSN_BIT: u32 = 95;

/// A packet that came in, kept.
#[derive(Clone)]
struct Kept {
    source: Gid,
    destination: Gid,
    source_port: u16,
    ecn: u8,
    network: Vec<u8>,
    packet: Vec<u8>,
}

struct Watching {
    inner: Box<dyn Receiver>,
    wire: Wire,
    way: Way<Kept>,
    arrived: Vec<Kept>,
}

impl Receiver for Watching {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.arrived.clear();
        if self.inner.receive(now)? > 0 {
            let (wire, way) = (&self.wire, &mut self.way);
            self.inner.for_each(&mut |received| {
                let Received { source, destination, source_port, ecn, network, packet } = *received;
                let (network, bytes) = (network.to_vec(), packet);
                let packet = bytes.to_vec();
                let kept = Kept { source, destination, source_port, ecn, network, packet };
                way.take(now, kept, wire.pass(false, bytes));
            });
        }
        self.way.release(now);
        // A packet whose ICRC is wrong does not arrive.
        let sound = self.way.due.drain(..).filter(|(_, damaged)| !damaged);
        self.arrived.extend(sound.map(|(packet, _)| packet));
        Ok(self.arrived.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for kept in &self.arrived {
            each(&Received {
                source: kept.source,
                destination: kept.destination,
                source_port: kept.source_port,
                ecn: kept.ecn,
                network: &kept.network,
                packet: &kept.packet,
            });
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: Gid) {
        self.inner.leave(group);
    }

    fn choose(&mut self, queue_pairs: Option<&[Qpn]>) {
        self.inner.choose(queue_pairs);
    }

    fn set_gids(&mut self, gids: &[Gid]) {
        self.inner.set_gids(gids);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.way.timeout().into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}
