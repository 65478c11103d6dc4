//! Facts of a connection from the first pass that the judges need.

use super::memory::HostId;
use crate::analysis::{Connection, Endpoint, FlowNumber, Pairing, Setup};
use crate::observe::end::End;
use crate::verbs::Mtu;
use crate::wire::{Gid, Service};

/// The least of all path MTUs, in bytes.
const MTU_LEAST: u32 = 256;

/// A connection that the first pass found.
#[derive(Clone, Debug)]
pub(super) struct Surveyed {
    pub(super) flow: FlowNumber,
    pub(super) service: Service,
    pub(super) pairing: Pairing,
    pub(super) ends: [Endpoint; 2],
    pub(super) hosts: [HostId; 2],
    /// The requests of each end, and the responses to them.
    pub(super) directions: [Requests; 2],
    /// Terms that the connection manager negotiated.
    pub(super) setup: Setup,
    /// The path MTU in bytes, as the packets imply it.
    implied_mtu: Option<u16>,
    /// The longest payload of a packet.
    pub(super) longest_payload: u16,
    /// The two queue pairs may belong to others.
    pub(super) is_ambiguous: bool,
}

/// The requests of one end, and the responses to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub(super) is_requesting: bool,
    pub(super) is_answered: bool,
    /// The receiver got packets that the capture misses.
    pub(super) is_incomplete: bool,
    /// A request failed.
    pub(super) has_failed: bool,
    /// Payload bytes of the largest packet that fills the path MTU: requests, responses; or 0.
    full_payload: [u32; 2],
}

/// A number of bytes, if it is a path MTU.
fn path_mtu(bytes: u32) -> Option<u32> {
    Mtu::from_bytes(bytes as usize).map(|_| bytes)
}

impl Surveyed {
    pub(super) fn new(connection: &Connection, hosts: [HostId; 2], is_ambiguous: bool) -> Self {
        let directions = connection.directions.each_ref().map(|direction| Requests {
            is_requesting: direction.request_packets > 0,
            is_answered: direction.response_packets > 0,
            is_incomplete: direction.not_captured > 0,
            has_failed: direction.operations.iter().any(|operation| operation.failed > 0),
            full_payload: direction.full_payload,
        });
        Self {
            flow: connection.flow,
            service: connection.service,
            pairing: connection.pairing,
            ends: connection.ends.clone(),
            hosts,
            directions,
            setup: connection.setup.clone().unwrap_or_default(),
            implied_mtu: connection.path_mtu,
            longest_payload: 0,
            is_ambiguous,
        }
    }

    fn full_payloads(&self) -> impl Iterator<Item = u32> {
        self.directions.into_iter().flat_map(|direction| direction.full_payload)
    }

    /// The largest payload of a packet in either direction that fills the path MTU.
    pub(super) fn largest_full(&self) -> u32 {
        self.full_payloads().max().unwrap_or(0)
    }

    /// The path MTU is at least this.
    pub(super) fn least_mtu(&self) -> u32 {
        // Where packets, or the set-up, show the path MTU, it does not depend on packets that the
        // capture may miss.
        let is_shown = self.implied_mtu.is_some()
            && (self.setup.path_mtu.is_some() || self.largest_full() > 0);
        if is_shown { MTU_LEAST } else { u32::from(self.longest_payload).max(MTU_LEAST) }
    }

    /// The path MTU, where it is known.
    pub(super) fn path_mtu(&self) -> Option<Mtu> {
        let full = path_mtu(self.largest_full());
        let implied = self.implied_mtu.map(u32::from).filter(|&mtu| self.least_mtu() <= mtu);
        let bytes = self.setup.path_mtu.map(u32::from).or(full).or(implied)?;
        Mtu::from_bytes(bytes as usize)
    }

    /// Whether the path MTU is what the PSNs behind READs imply: packets that the capture misses
    /// make it wrong.
    pub(super) fn is_mtu_guessed(&self) -> bool {
        self.setup.path_mtu.is_none() && path_mtu(self.largest_full()).is_none()
    }

    /// The path MTU that packets fill: those of an end itself, or the responses to it. What the
    /// analysis guesses from PSNs behind READs, or from a peer that may be another's, a capture
    /// with gaps makes wrong.
    pub(super) fn filled_mtu(&self, end: End) -> Option<u32> {
        let is_paired = !matches!(self.pairing, Pairing::Likely | Pairing::Unpaired);
        let [own, responses] = self.directions[end].full_payload;
        let responses = path_mtu(responses).filter(|_| is_paired && !self.is_ambiguous);
        path_mtu(own).or(responses)
    }

    /// Whether the two queue pairs belong to others, it seems: the packets of both are of different
    /// sizes.
    pub(super) fn is_guessed(&self) -> bool {
        let mut sizes = self.full_payloads().filter_map(path_mtu);
        let first = sizes.next();
        self.pairing != Pairing::ConnectionManager && sizes.any(|size| Some(size) != first)
    }

    /// Whether the capture misses packets. One that was made at one of the ends, at `point`, does
    /// not.
    pub(super) fn is_incomplete(&self, point: Option<Gid>) -> bool {
        self.directions.iter().any(|direction| direction.is_incomplete) && !self.is_at(point)
    }

    /// Whether the capture has only one direction, so that it does not show what was written
    /// through it.
    pub(super) fn is_half(&self, point: Option<Gid>) -> bool {
        let is_unasked = |direction: &Requests| !direction.is_requesting && direction.is_answered;
        let is_unpaired = self.pairing == Pairing::Unpaired && self.service != Service::Uc;
        (self.directions.iter().any(is_unasked) || is_unpaired) && !self.is_at(point)
    }

    fn is_at(&self, point: Option<Gid>) -> bool {
        self.ends.iter().any(|end| point == Some(end.address))
    }
}
