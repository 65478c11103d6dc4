//! A connection as the report shows it.

use serde::Serialize;

use super::cause::Retransmissions;
use super::finding::KindSet;
use super::limits::STALLS_MAX;
use super::message::OperationStatistics;
use super::requester::operation_mut;
use super::series::Series;
use super::statistics::Distribution;
use super::{
    FlowNumber, Lateness, RetransmissionCause, Setup, TunnelFacts, serialize, service_name,
};
use crate::decode::address_text;
use crate::time::Instant;
use crate::wire::{Gid, Qpn, Service};

/// Two queue pairs and what passed between them; or one side of a UD conversation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Connection {
    /// Number of the connection: `roce.flow`.
    pub flow: FlowNumber,
    /// The transport service.
    #[serde(serialize_with = "serialize::service")]
    pub service: Service,
    /// The two ends. The first is the one that sent the first request, or the CM's active side.
    pub ends: [Endpoint; 2],
    /// Tunnel that carries the packets of the first end, if one does.
    pub tunnel: Option<TunnelFacts>,
    /// Evidence by which the two queue pairs were paired.
    pub pairing: Pairing,
    /// Set-up by the connection manager, if its messages were captured.
    pub setup: Option<Setup>,
    /// The path MTU in bytes, worked out from the packets or from the set-up.
    pub path_mtu: Option<u16>,
    /// Time of the first packet.
    #[serde(serialize_with = "serialize::instant")]
    pub first_time: Instant,
    /// Time of the last packet.
    #[serde(serialize_with = "serialize::instant")]
    pub last_time: Instant,
    /// Frame of the first packet.
    pub first_frame: u64,
    /// Frame of the last packet.
    pub last_frame: u64,
    /// Traffic by requester: `directions[i]` are the requests of `ends[i]` and the responses to
    /// them.
    pub directions: [Direction; 2],
    /// Kinds of findings about the requests of each end.
    pub findings: [KindSet; 2],
    /// Packets and bytes per interval.
    pub series: Series,
}

impl Connection {
    /// A name that is the same in captures of different hosts: the service and both ends, the lower
    /// address first, as in `RC 10.0.0.1/0x11 10.0.0.2/0x12`. A queue pair that is not known is
    /// `?`.
    pub fn key(&self) -> String {
        let mut ends = self.ends.each_ref().map(|end| (end.address.0, end.qpn.map(Qpn::get)));
        ends.sort_unstable();
        let [a, b] = ends.map(|(address, qpn)| {
            let qpn = qpn.map_or_else(|| "?".into(), |qpn| format!("{qpn:#x}"));
            format!("{}/{qpn}", address_text(Gid(address)))
        });
        format!("{} {a} {b}", service_name(self.service))
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Endpoint {
    /// Address of the host.
    #[serde(serialize_with = "serialize::address")]
    pub address: Gid,
    /// Queue pair number; `None` if no packet was sent to the queue pair and no set-up names it.
    #[serde(serialize_with = "serialize::qpn")]
    pub qpn: Option<Qpn>,
    /// The UDP source port of its packets (the last one seen).
    pub source_port: Option<u16>,
    /// The DSCP of its packets (the last one seen).
    pub dscp: Option<u8>,
}

/// Evidence by which the two queue pairs of a connection were paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// The connection manager's REQ and REP name both.
    ConnectionManager,
    /// Responses acknowledge PSNs that only the other one's peer had in flight.
    Acknowledgements,
    /// Both have the UDP source port that Linux derives from the numbers of these two queue pairs.
    SourcePort,
    /// No other queue pairs communicate over these two addresses.
    OnlyCandidates,
    /// The best of several candidates: UDP source ports and the order of packets suggest it.
    Likely,
    /// UD: the DETH names the sender.
    Datagram,
    /// Only one direction was captured.
    Unpaired,
}

/// The requests of one end, and the responses to them.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Direction {
    /// Request packets as captured, retransmissions included, copies of the network not.
    pub request_packets: u64,
    /// Response packets as captured: ACKs, NAKs, READ responses, ATOMIC acknowledgements.
    pub response_packets: u64,
    /// Bytes of all these packets on the wire.
    pub wire_bytes: u64,
    /// Payload bytes of messages that completed, each counted once.
    pub goodput_bytes: u64,
    /// Messages by operation.
    pub operations: Vec<OperationStatistics>,
    /// Retransmissions by cause.
    pub retransmissions: Retransmissions,
    /// Packets (requests and responses) that the network delivered twice.
    pub duplicate_packets: u64,
    /// Lost request packets.
    pub lost_requests: u64,
    /// Lost response packets, as far as it can be known.
    pub lost_responses: u64,
    /// Packets that were lost or late: requests that a NAK named where others were late, responses
    /// that a later one overtook, and requests that had no answer, of which the request or the
    /// answer was. The counts of lost packets have none of them.
    pub lost_or_late: u64,
    /// Whether the requester repeated one request until it fell silent: what it does shows that it
    /// gave up, without the answers.
    #[serde(skip)]
    pub(super) is_given_up: bool,
    /// Answers that came so long after the last retransmission that the responder had the request
    /// before.
    pub slow_answers: SlowAnswers,
    /// Packets that the receiver got, by its acknowledgements, and that the capture missed.
    pub not_captured: u64,
    /// Packets that arrived out of order: the fewest that explain the order of all.
    pub reordered: u64,
    /// Greatest lateness of these packets.
    pub lateness: Lateness,
    /// NAKs by code, in the order of the codes: PSN sequence error, invalid request, remote access
    /// error, remote operational error, invalid RD request.
    pub naks: [u64; 5],
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Time from each RNR NAK to the retransmission that was accepted or refused next, in
    /// nanoseconds, in all.
    pub rnr_wait_nanos: u64,
    /// Positive acknowledgements without payload.
    pub acks: u64,
    /// Request packets per ACK.
    pub packets_per_ack: f64,
    /// The fewest credits that an ACK advertised; nothing if the responder does not advertise.
    pub least_credits: Option<u32>,
    /// READs and ATOMICs in flight at the most.
    pub read_atomic_depth: u32,
    /// Packets of this direction marked CE by a switch.
    pub ce_marked: u64,
    /// CNPs that the receiver of marked packets sent.
    pub cnps: u64,
    /// Latency of messages in nanoseconds: from the first packet to the completing ACK or the last
    /// response.
    pub latency: Distribution,
    /// Round-trip times in nanoseconds: from the transmission of a packet that requests an ACK to
    /// that ACK. Retransmitted packets do not count.
    pub rtt: Distribution,
    /// The longest silences while requests were in flight.
    pub stalls: Vec<Stall>,
    /// Packets whose ICRC is wrong.
    pub icrc_errors: u64,
    /// PSNs that were skipped. UC: lost packets. UD: lost packets, or packets to other
    /// destinations, because a UD queue pair has one PSN space for all of them.
    pub psn_gaps: u64,
    /// Payload bytes of the largest packet that fills the path MTU: requests, responses. 0 where
    /// there was none.
    pub full_payload: [u32; 2],
    /// Reaction of the requester's rate to CNPs: wire bytes in the millisecond before each CNP, and
    /// in the one after.
    pub cnp_reaction_bytes: [u64; 2],
}

/// Answers of a responder that was slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlowAnswers {
    /// Number of them.
    pub count: u64,
    /// The longest time from the first transmission of the request, in nanoseconds.
    pub longest_nanos: u64,
}

/// A silence while requests were in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stall {
    /// Time of the begin.
    #[serde(serialize_with = "serialize::instant")]
    pub start: Instant,
    /// Length in nanoseconds.
    pub nanos: u64,
    /// The last frame before it.
    pub before: u64,
    /// The frame that ended it; nothing if the capture ended first.
    pub after: Option<u64>,
    /// Cause of the retransmission, if one ended the silence.
    pub cause: Option<RetransmissionCause>,
    /// The place where most of the time passed, if a response ended it and capture points at both
    /// ends tell.
    pub blame: Option<Blame>,
}

/// The place where the time of a silence passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The responder, after the request had reached it.
    Responder,
    /// The network between the capture points.
    Network,
}

impl Direction {
    /// Whether it shows by its requests alone that the requester gets no answer: they are mostly
    /// retransmissions, or it gave up.
    pub(super) fn is_dead(&self) -> bool {
        2 * self.retransmissions.total().packets > self.request_packets || self.is_given_up
    }

    /// Adds what `other` counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.request_packets += other.request_packets;
        self.response_packets += other.response_packets;
        self.wire_bytes += other.wire_bytes;
        self.goodput_bytes += other.goodput_bytes;
        for operation in &other.operations {
            operation_mut(&mut self.operations, operation.operation).add(operation);
        }
        self.retransmissions.add(&other.retransmissions);
        self.duplicate_packets += other.duplicate_packets;
        self.lost_requests += other.lost_requests;
        self.lost_responses += other.lost_responses;
        self.lost_or_late += other.lost_or_late;
        let slow = other.slow_answers;
        self.slow_answers.count += slow.count;
        self.slow_answers.longest_nanos = self.slow_answers.longest_nanos.max(slow.longest_nanos);
        self.not_captured += other.not_captured;
        self.reordered += other.reordered;
        self.lateness.widen(other.lateness);
        for (sum, count) in self.naks.iter_mut().zip(other.naks) {
            *sum += count;
        }
        self.rnr_naks += other.rnr_naks;
        self.rnr_wait_nanos += other.rnr_wait_nanos;
        let packets =
            self.packets_per_ack * as_f64(self.acks) + other.packets_per_ack * as_f64(other.acks);
        self.acks += other.acks;
        self.packets_per_ack = if self.acks == 0 { 0.0 } else { packets / as_f64(self.acks) };
        self.least_credits = match (self.least_credits, other.least_credits) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.read_atomic_depth = self.read_atomic_depth.max(other.read_atomic_depth);
        self.ce_marked += other.ce_marked;
        self.cnps += other.cnps;
        self.latency.merge(&other.latency);
        self.rtt.merge(&other.rtt);
        self.stalls.extend_from_slice(&other.stalls);
        self.stalls.sort_by_key(|stall| (core::cmp::Reverse(stall.nanos), stall.before));
        self.stalls.truncate(STALLS_MAX);
        self.icrc_errors += other.icrc_errors;
        self.psn_gaps += other.psn_gaps;
        for (most, full) in self.full_payload.iter_mut().zip(other.full_payload) {
            *most = (*most).max(full);
        }
        for (sum, bytes) in self.cnp_reaction_bytes.iter_mut().zip(other.cnp_reaction_bytes) {
            *sum += bytes;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a ratio")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
