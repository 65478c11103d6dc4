//! Engines on a simulated network, in virtual time: the same seed gives the same packets.
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "each test is a crate of its own and uses it as it likes"
)]

use roce::engine::{Batch, Engine};
use roce::link::fault::Faults;
use roce::link::mem::Network;
use roce::time::Instant;
use roce::wire::{Gid, Path};

/// An engine of the world, with all that a test has beside it.
pub trait Host {
    fn engine(&mut self) -> &mut Engine;

    /// Returns when the engine wants to be told the time.
    fn timeout(&self) -> Option<Instant>;

    /// Returns the packets that the engine sends now; `None` if there are none.
    fn poll_transmit(&mut self, now: Instant) -> Option<&mut Batch>;

    /// Whether it takes packets to an address.
    fn takes(&self, to: Gid) -> bool;
}

/// Hosts and the network between them.
pub struct World<H> {
    pub hosts: Vec<H>,
    pub network: Network,
    pub now: Instant,
}

impl<H: Host> World<H> {
    pub fn new(hosts: Vec<H>, faults: Faults, seed: u64, now: Instant) -> Self {
        Self { hosts, network: Network::new(faults, seed), now }
    }

    /// Puts all packets that a host sends now into the network but for those that `tap` keeps back.
    /// Returns whether there were any.
    pub fn transmit(
        &mut self,
        host: usize,
        mut tap: impl FnMut(Instant, &Path, &mut [u8]) -> bool,
    ) -> bool {
        let Self { hosts, network, now } = self;
        let mut any = false;
        while let Some(batch) = hosts[host].poll_transmit(*now) {
            any = true;
            batch.for_each_mut(|path, packet| {
                if tap(*now, path, packet) {
                    network.send(*now, path, packet);
                }
            });
        }
        any
    }

    /// Returns the time of the next arrival or of the next timer.
    pub fn next(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter_map(Host::timeout);
        timers.chain(self.network.poll_timeout()).min()
    }

    /// Lets time pass: delivers what has arrived by then, and tells all engines the time.
    pub fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
        while let Some(delivery) = self.network.poll_delivery(self.now) {
            let Some(received) = delivery.received() else { continue };
            for host in self.hosts.iter_mut().filter(|host| host.takes(delivery.to)) {
                host.engine().handle_packet(self.now, &received);
            }
        }
        self.hosts.iter_mut().for_each(|host| host.engine().handle_timeout(self.now));
    }
}
