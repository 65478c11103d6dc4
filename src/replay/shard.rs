//! The judges of some hosts.

use std::sync::Arc;

use super::batch::PacketBatch;
use super::datagram::Datagrams;
use super::judge::{Input, Judge, Sink};
use super::limits::SHARDS_MAX;
use super::management::Management;
use super::memory::HostId;
use super::requester::Requesters;
use super::responder::Responders;
use super::session::Options;
use super::survey::Survey;
use super::verdict::Step;

/// Returns the number of shards into which the hosts of a capture are divided.
pub(super) fn shard_count(survey: &Survey) -> usize {
    survey.host_count().clamp(1, SHARDS_MAX)
}

/// The judges of the hosts of one shard. Each takes the packets that are its own, and ignores the
/// others.
#[derive(Debug)]
pub(super) struct Shard {
    responders: Responders,
    requesters: Requesters,
    datagrams: Datagrams,
    management: Management,
}

impl Shard {
    /// Returns one of `count` shards at the start of the capture.
    pub(super) fn new(survey: &Arc<Survey>, options: &Options, count: usize) -> Self {
        Self {
            responders: Responders::new(Arc::clone(survey), options, count),
            requesters: Requesters::new(Arc::clone(survey), count),
            datagrams: Datagrams::new(Arc::clone(survey), count),
            management: Management::new(Arc::clone(survey)),
        }
    }

    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        self.responders.packet(input, out);
        self.requesters.packet(input, out);
        self.datagrams.packet(input, out);
        self.management.packet(input, out);
    }

    fn finish(&mut self, out: &mut dyn Sink) {
        self.responders.finish(out);
        self.requesters.finish(out);
        self.datagrams.finish(out);
        self.management.finish(out);
    }
}

/// Some of the shards, or all: what one thread judges.
#[derive(Debug)]
pub struct Judges {
    /// Shards by number, without those of other threads.
    shards: Vec<Option<Box<Shard>>>,
}

impl Judges {
    pub(super) fn new(shards: Vec<Shard>) -> Self {
        Self { shards: shards.into_iter().map(|shard| Some(Box::new(shard))).collect() }
    }

    /// Divides them among at most so many threads.
    pub fn split(self, threads: usize) -> Vec<Self> {
        let count = self.shards.len();
        let parts = threads.clamp(1, count.max(1));
        let empty = || Self { shards: (0..count).map(|_| None).collect() };
        let mut all: Vec<Self> = (0..parts).map(|_| empty()).collect();
        for (number, shard) in self.shards.into_iter().enumerate() {
            let part = all.get_mut(number % parts);
            if let Some(place) = part.and_then(|part| part.shards.get_mut(number)) {
                *place = shard;
            }
        }
        all
    }

    /// Judges packets that were routed. Adds verdicts, with numbers that tell their order.
    pub fn judge(&mut self, batch: &PacketBatch, out: &mut Vec<(u32, Step)>) {
        let count = self.shards.len().max(1);
        let shard_of = |host: HostId| host as usize % count;
        for (at, packet) in batch.packets.iter().enumerate() {
            let Some((note, [source, destination])) = packet.routed else { continue };
            let (from, to) = (shard_of(source), shard_of(destination));
            let bytes = batch.bytes_of(packet);
            let input = Input {
                facts: &packet.facts,
                note,
                packet: bytes,
                source: None,
                destination: None,
            };
            let order = 2 * u32::try_from(at).unwrap_or(u32::MAX / 2);
            if let Some(Some(shard)) = self.shards.get_mut(from) {
                let destination = (from == to).then_some(destination);
                let input = Input { source: Some(source), destination, ..input };
                shard.packet(&input, &mut Ordered { order, out });
            }
            if from != to
                && let Some(Some(shard)) = self.shards.get_mut(to)
            {
                let input = Input { destination: Some(destination), ..input };
                shard.packet(&input, &mut Ordered { order: order + 1, out });
            }
        }
    }

    /// The capture is over: adds verdicts on all packets that still wait.
    pub fn finish(&mut self, out: &mut Vec<(u32, Step)>) {
        for (order, shard) in (0..).zip(&mut self.shards) {
            if let Some(shard) = shard {
                shard.finish(&mut Ordered { order, out });
            }
        }
    }
}

/// Numbers verdicts by their order.
struct Ordered<'a> {
    order: u32,
    out: &'a mut Vec<(u32, Step)>,
}

impl Sink for Ordered<'_> {
    fn step(&mut self, step: Step) {
        self.out.push((self.order, step));
    }
}
