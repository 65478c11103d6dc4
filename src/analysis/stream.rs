//! Endpoints: what one host sends to one queue pair.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use super::congestion::Congestion;
use super::connection::{Direction, Pairing};
use super::requester::Requester;
use super::series::Series;
use super::{End, FlowNumber, PacketFacts, TunnelFacts};
use crate::time::Instant;
use crate::wire::{Gid, Service};

/// Key of a stream: the sending host and the receiving queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) source: Gid,
    pub(super) destination: Gid,
    pub(super) dest_qp: u32,
    /// UD: the sender's queue pair; else [`Key::NO_QP`].
    pub(super) source_qp: u32,
    pub(super) service: Service,
}

impl Key {
    /// A number that no queue pair has.
    pub(super) const NO_QP: u32 = u32::MAX;

    /// The key of a packet of `service`.
    #[inline]
    pub(super) fn new(packet: &PacketFacts, service: Service) -> Self {
        Self {
            source: packet.source,
            destination: packet.destination,
            dest_qp: packet.dest_qp.get(),
            source_qp: packet.source_qp.map_or(Self::NO_QP, |qpn| qpn.get()),
            service,
        }
    }

    /// Returns the key of the packets that the receiver of datagrams sends back (UD).
    pub(super) fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            dest_qp: self.source_qp,
            source_qp: self.dest_qp,
            service: self.service,
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_gid(self.source, state);
        hash_gid(self.destination, state);
        state.write_u64(u64::from(self.dest_qp) << 32 | u64::from(self.source_qp));
        state.write_u8(self.service as u8);
    }
}

/// Two addresses and a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) source: Gid,
    pub(super) destination: Gid,
    pub(super) service: Service,
}

impl Hash for Route {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_gid(self.source, state);
        hash_gid(self.destination, state);
        state.write_u8(self.service as u8);
    }
}

fn hash_gid<H: Hasher>(gid: Gid, state: &mut H) {
    let value = u128::from_le_bytes(gid.0);
    #[expect(clippy::cast_possible_truncation, reason = "the halves")]
    let (low, high) = (value as u64, (value >> 64) as u64);
    state.write_u64(low);
    state.write_u64(high);
}

/// Packets from one host to one queue pair: requests of the sending queue pair, and responses to
/// the other's requests.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) key: Key,
    /// Flow number of the stream itself.
    pub(super) number: FlowNumber,
    /// The flow number and the end that notes on its packets carry.
    pub(super) flow: FlowNumber,
    pub(super) end: End,
    /// The stream in the other direction.
    pub(super) peer: Option<u32>,
    pub(super) pairing: Pairing,
    pub(super) tunnel: Option<TunnelFacts>,
    pub(super) source_port: u16,
    pub(super) dscp: Option<u8>,
    pub(super) first_time: Instant,
    pub(super) last_time: Instant,
    pub(super) first_frame: u64,
    pub(super) last_frame: u64,
    pub(super) first_request: Option<u64>,
    pub(super) bytes: u64,
    /// The requests that it carries, and the responses to them.
    pub(super) requester: Option<Box<Requester>>,
    /// Responses that it carries whose requester is not known yet.
    pub(super) orphans: Option<Box<Orphans>>,
    pub(super) congestion: Option<Box<Congestion>>,
    /// The set-up by the connection manager.
    pub(super) setup: Option<u32>,
    pub(super) series: Series,
    /// Whether it was used since the last search for a stream to forget.
    pub(super) is_recent: bool,
}

/// Responses without a requester.
#[derive(Clone, Debug, Default)]
pub(super) struct Orphans {
    pub(super) responses: VecDeque<PacketFacts>,
    /// Streams that could be the requester's, by index and number.
    pub(super) candidates: Vec<(u32, FlowNumber)>,
    /// Counts of the responses that are not in `responses` any more.
    pub(super) statistics: Direction,
}

impl Stream {
    pub(super) fn new(key: Key, number: FlowNumber, packet: &PacketFacts) -> Self {
        let time = packet.time;
        Self {
            key,
            number,
            flow: number,
            end: End::A,
            peer: None,
            pairing: Pairing::Unpaired,
            tunnel: packet.tunnel.as_deref().copied(),
            source_port: packet.source_port,
            dscp: packet.dscp,
            first_time: time,
            last_time: time,
            first_frame: packet.frame,
            last_frame: packet.frame,
            first_request: None,
            bytes: 0,
            requester: None,
            orphans: None,
            congestion: None,
            setup: None,
            series: Series::default(),
            is_recent: true,
        }
    }

    pub(super) fn route(&self) -> Route {
        let Key { source, destination, service, .. } = self.key;
        Route { source, destination, service }
    }

    pub(super) fn reverse_route(&self) -> Route {
        let Key { source, destination, service, .. } = self.key;
        Route { source: destination, destination: source, service }
    }
}
