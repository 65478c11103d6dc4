//! The half that receives.

use std::io;

use super::Injector;
use super::lane::Lane;
use crate::capture::Direction;
use crate::link::{Receiver, forward_to_receiver};
use crate::time::Instant;
use crate::wire::{Gid, Received};

pub(super) struct FaultReceiver {
    inner: Box<dyn Receiver>,
    lane: Lane<Kept>,
    arrived: Vec<Kept>,
}

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

impl FaultReceiver {
    pub(super) fn new(inner: Box<dyn Receiver>, injector: Injector) -> Self {
        Self { inner, lane: Lane::new(injector), arrived: Vec::new() }
    }
}

impl Kept {
    fn new(received: &Received<'_>) -> Self {
        let Received { source, destination, source_port, ecn, network, packet, .. } = *received;
        let (network, packet) = (network.to_vec(), packet.to_vec());
        Self { source, destination, source_port, ecn, network, packet }
    }

    fn as_received(&self) -> Received<'_> {
        let Self { source, destination, source_port, ecn, ref network, ref packet } = *self;
        Received { source, destination, source_port, ecn, network, packet, payload: None }
    }
}

impl Receiver for FaultReceiver {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.arrived.clear();
        if self.inner.receive(now)? > 0 {
            let lane = &mut self.lane;
            self.inner.for_each(&mut |received| {
                lane.pass(now, Direction::Inbound, received.packet, || Kept::new(received));
            });
        }
        while let Some(due) = self.lane.pop(now) {
            // A packet whose ICRC is wrong does not arrive.
            if due.corrupt.is_none() {
                let ecn = if due.mark { 3 } else { due.packet.ecn };
                self.arrived.push(Kept { ecn, ..due.packet });
            }
        }
        Ok(self.arrived.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.arrived.iter().for_each(|kept| each(&kept.as_received()));
    }

    forward_to_receiver!(inner);

    fn poll_timeout(&self) -> Option<Instant> {
        self.lane.timeout().into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}
