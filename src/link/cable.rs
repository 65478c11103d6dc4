//! A cable between two NICs of one process: packets cross it whole, in order, and none is lost.
//!
//! For examples and tests that want live NICs and no network. Packets are sealed and checked as on
//! any other link, and those to multicast groups come back to who sent them, too.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::{Link, Port, Receiver, Sender, Sharing};
use crate::time::Instant;
use crate::verbs::Mtu;
use crate::wire::{Batch, Gid, ICRC_ROOM, Path, PathHeaders, Prefixes, Received};

/// Maximum number of packets that wait at an end before it holds up the other.
const ROOM: usize = 4096;

/// The two ends of a new cable, which go by these identifiers.
pub fn cable(a: Gid, b: Gid) -> io::Result<(Link, Link)> {
    let (to_a, to_b) = (Arc::new(End::new()?), Arc::new(End::new()?));
    Ok((link(a, "cable:a", &to_a, &to_b), link(b, "cable:b", &to_b, &to_a)))
}

fn link(gid: Gid, name: &str, own: &Arc<End>, other: &Arc<End>) -> Link {
    let name = name.to_owned();
    Link {
        sender: Box::new(Plug {
            own: Arc::clone(own),
            other: Arc::clone(other),
            prefixes: Prefixes::new(&Path::NOWHERE),
        }),
        receiver: Box::new(Socket {
            own: Arc::clone(own),
            arrived: VecDeque::new(),
            prefixes: Prefixes::new(&Path::NOWHERE),
            bad: 0,
        }),
        port: Port {
            name,
            gids: vec![gid],
            mtu: Mtu::M4096,
            interface: None,
            sharing: Sharing::Exclusive,
        },
        frames: None,
        monitor: None,
    }
}

/// Packets that wait at one end.
struct End {
    packets: Mutex<VecDeque<(Path, Vec<u8>)>>,
    /// Counts them, so that a waiting thread is woken.
    bell: OwnedFd,
}

impl End {
    fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { packets: Mutex::default(), bell })
    }

    /// Packets arrive here, and a waiting thread is woken.
    fn put<'a>(&self, arriving: impl Iterator<Item = (&'a Path, &'a [u8])>) -> io::Result<()> {
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let room = ROOM.saturating_sub(packets.len());
        packets.extend(arriving.take(room).map(|(path, packet)| (*path, packet.to_vec())));
        drop(packets);
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

struct Plug {
    own: Arc<End>,
    other: Arc<End>,
    prefixes: Prefixes,
}

impl Sender for Plug {
    fn send(&mut self, _now: Instant, batch: &mut Batch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        for mut train in batch.trains_mut() {
            self.prefixes.set_path(train.path);
            train.for_each_outbound(|packet| {
                let prefix = self.prefixes.of(packet.byte_len());
                packet.seal(&prefix);
            });
        }
        self.other.put(batch.iter())?;
        let mut to_groups =
            batch.iter().filter(|(path, _)| path.destination.is_multicast()).peekable();
        if to_groups.peek().is_some() {
            self.own.put(to_groups)?;
        }
        Ok(())
    }
}

struct Socket {
    own: Arc<End>,
    arrived: VecDeque<(Path, Vec<u8>)>,
    prefixes: Prefixes,
    bad: u64,
}

impl Receiver for Socket {
    fn receive(&mut self, _now: Instant) -> io::Result<usize> {
        // The bell is silenced before the packets are taken: one that comes in between rings again.
        let _ = rustix::io::read(&self.own.bell, &mut [0_u8; 8]);
        self.arrived.clear();
        let packets = &mut *self.own.packets.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut self.arrived, packets);
        let (prefixes, bad) = (&mut self.prefixes, &mut self.bad);
        self.arrived.retain_mut(|(path, packet)| {
            prefixes.set_path(path);
            let sound = prefixes.of(packet.len()).verifies(packet);
            *bad += u64::from(!sound);
            sound
        });
        Ok(self.arrived.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for (path, packet) in &self.arrived {
            let headers: PathHeaders = path.headers(packet.len());
            each(&Received {
                source: path.source,
                destination: path.destination,
                source_port: path.source_port,
                ecn: path.traffic_class & 3,
                network: headers.as_bytes().0,
                packet: packet.get(..packet.len() - ICRC_ROOM).unwrap_or_default(),
                payload: None,
            });
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.own.bell.as_fd()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("bad_icrc", self.bad)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{PATH, batch_of};

    #[test]
    fn packets_to_groups_come_back() {
        let (mut a, mut b) = cable(PATH.source, PATH.destination).unwrap();
        let group = Path { destination: std::net::Ipv4Addr::new(239, 0, 0, 1).into(), ..PATH };
        for (path, back) in [(PATH, 0), (group, 2), (PATH, 0)] {
            a.sender.send(Instant::ZERO, &mut batch_of(&path, &[1, 2])).unwrap();
            assert_eq!(b.receiver.receive(Instant::ZERO).unwrap(), 2);
            assert_eq!(a.receiver.receive(Instant::ZERO).unwrap(), back);
        }
    }

    #[test]
    fn packets_with_a_wrong_icrc_are_counted_and_dropped() {
        let (mut a, mut b) = cable(PATH.source, PATH.destination).unwrap();
        a.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1])).unwrap();
        assert_eq!(b.receiver.receive(Instant::ZERO).unwrap(), 1);
        assert_eq!(b.receiver.counters(), [("bad_icrc", 0)]);
        let damaged = vec![0; 32];
        let own = Arc::new(End::new().unwrap());
        own.put([(&PATH, damaged.as_slice()), (&PATH, damaged.as_slice())].into_iter()).unwrap();
        let prefixes = Prefixes::new(&Path::NOWHERE);
        let mut socket = Socket { own, arrived: VecDeque::new(), prefixes, bad: 0 };
        assert_eq!(socket.receive(Instant::ZERO).unwrap(), 0);
        assert_eq!(socket.counters(), [("bad_icrc", 2)]);
    }
}
