//! The half of a link by AF_XDP that sends where the driver has no zero copy: trains of packets
//! leave by a packet socket.
//!
//! For a ring the kernel makes each frame a packet of its own and passes it to the driver before
//! the next, some two microseconds each on a veth. A train is one packet until it leaves.

use std::io;
use std::sync::Arc;

use super::Own;
use super::send::{Looped, loop_back};
use crate::link::Sender;
use crate::link::framing::Framer;
use crate::link::raw::send::RawSender;
use crate::time::Instant;
use crate::wire::{Batch, MacAddr};

/// The half that sends trains.
#[derive(Debug)]
pub(super) struct TrainSender {
    packets: RawSender,
    /// Makes frames of packets that come back without touching the interface.
    framer: Framer,
    mac: MacAddr,
    own: Arc<Own>,
    looped: Looped,
}

impl TrainSender {
    pub(super) fn new(packets: RawSender, mac: MacAddr, own: Arc<Own>) -> Self {
        Self { packets, framer: Framer::new(mac), mac, own, looped: Looped::default() }
    }

    /// Sends trains of which some come back to the link.
    #[cold]
    fn send_and_loop(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let Self { packets, framer, own, looped, .. } = self;
        for train in batch.trains_mut().filter(|train| !own.is_own(train.path.destination)) {
            packets.send_train(now, train)?;
        }
        for mut train in batch.trains_mut().filter(|train| own.receives(train.path.destination)) {
            framer.for_each(&mut train, self.mac, |framed| loop_back(own, looped, framed));
        }
        own.bell.ring();
        Ok(())
    }
}

impl Sender for TrainSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        if batch.trains_mut().any(|train| self.own.receives(train.path.destination)) {
            return self.send_and_loop(now, batch);
        }
        self.packets.send(now, batch)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.packets.counters();
        counters.extend(self.looped.counters());
        counters
    }
}
