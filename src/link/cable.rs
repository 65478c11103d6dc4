//! A cable between two NICs of one process: packets cross it whole, in order, and none is lost.
//!
//! For examples and tests that want live NICs and no network. Packets are sealed and checked as on any other link.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::{Link, Port, Receiver, Sender};
use crate::time::Instant;
use crate::verbs::Mtu;
use crate::wire::{Batch, Gid, ICRC_ROOM, Path, PathHeaders, Prefixes, Received};

/// How many packets wait at an end before it holds up the other.
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
            other: Arc::clone(other),
            prefixes: Prefixes::new(&Path::NOWHERE),
        }),
        receiver: Box::new(Socket {
            own: Arc::clone(own),
            arrived: VecDeque::new(),
            prefixes: Prefixes::new(&Path::NOWHERE),
            bad: 0,
        }),
        port: Port { name, gids: vec![gid], mtu: Mtu::M4096, interface: None },
    }
}

/// What waits at one end.
struct End {
    packets: Mutex<VecDeque<(Path, Vec<u8>)>>,
    /// Counts them, so that whoever waits is woken.
    bell: OwnedFd,
}

impl End {
    fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { packets: Mutex::default(), bell })
    }
}

struct Plug {
    other: Arc<End>,
    prefixes: Prefixes,
}

impl Sender for Plug {
    fn send(&mut self, _now: Instant, batch: &mut Batch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut packets = self.other.packets.lock().unwrap_or_else(PoisonError::into_inner);
        for mut train in batch.trains_mut() {
            let path = train.path;
            self.prefixes.set_path(path);
            train.for_each_mut(|packet| {
                self.prefixes.of(packet.len()).seal(packet);
                if packets.len() < ROOM {
                    packets.push_back((*path, packet.to_vec()));
                }
            });
        }
        drop(packets);
        rustix::io::write(&self.other.bell, &1_u64.to_ne_bytes())?;
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
