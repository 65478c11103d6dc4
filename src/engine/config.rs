//! Configuration of an engine, and its limits.

use core::time::Duration;

use super::congestion::Congestion;
use super::cq::Cq;
use super::recovery::{ReceiveMode, Recovery, ReorderThreshold};
use super::recv_queue::RecvQueue;
use super::reorder::SPAN;
use super::send_queue::SendQueue;
use crate::table::TABLE_MAX;
use crate::verbs::{Mtu, QpCap, QpnShare};
use crate::wire::{Gid, PKey};

/// Configuration of an engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// GIDs of the port, by index.
    pub gids: Vec<Gid>,
    /// P_Keys of the port, by index.
    pub pkeys: Vec<PKey>,
    /// MTU of the port.
    pub port_mtu: Mtu,
    /// Maximum number of packets of a queue pair in flight. They must not overrun a receiver with
    /// an ordinary socket buffer.
    pub window_packets: u32,
    /// Maximum number of payload bytes of a queue pair in flight.
    pub window_bytes: u32,
    /// Loss window: the maximum for a while after a loss, because the peer's receive buffer may be
    /// smaller than `window_bytes`.
    pub loss_window_bytes: u32,
    /// Peer window: maximum number of bytes of all queue pairs together in flight to one peer,
    /// including the overhead of a receive buffer for each packet; `None` if only the window of
    /// each queue pair applies.
    pub peer_window_bytes: Option<u32>,
    /// Whether ACKs advertise credits: the number of receives that are posted.
    pub advertise_credits: bool,
    /// Delayed ACK: maximum delay of an ACK behind a message to the same peer, when the caller
    /// calls [`poll_transmit_delaying_acks`](super::Engine::poll_transmit_delaying_acks); zero
    /// disables it.
    pub ack_delay: Duration,
    /// Whether packets of a connection are accepted only from the UDP source port that its peer
    /// uses: another process at the peer's address cannot have that port. After [`PORT_SILENCE`]
    /// without a packet from it, the peer may use another. Turn it off for a peer that sends one
    /// connection's packets from several ports.
    pub pin_source_port: bool,
    /// Congestion control: the reaction point. CNPs are sent and counted without it, too.
    pub congestion: Congestion,
    /// Rate of the line, in bit/s: queue pairs that are controlled are paced at it from their first
    /// packet, and never exceed it. `None`: DCQCN paces none before its first CNP, and begins at
    /// 100 Gb/s then.
    pub line_rate: Option<u64>,
    /// Time for which a paced queue pair that was late may send faster, to catch up. A live NIC
    /// sends trains and wakes late; a simulation has zero.
    pub pacing_burst: Duration,
    /// Whether data of connected queue pairs is ECN-capable.
    pub ect: Ect,
    /// Minimum time between two CNPs of one scope.
    pub cnp_interval: Duration,
    /// Scope of that interval.
    pub cnp_scope: CnpScope,
    /// Differentiated services code point of CNPs if congestion control is on; otherwise they have
    /// that of their queue pair.
    pub cnp_dscp: u8,
    /// Priority (service level) of CNPs if congestion control is on.
    pub cnp_priority: u8,
    /// Recovery from loss.
    pub recovery: Recovery,
    /// Treatment of packets that come before others.
    pub receive: ReceiveMode,
    /// Threshold from which a gap counts as a loss, where packets that come before others are held.
    pub reorder: ReorderThreshold,
    /// Number of UDP source ports over which the packets of a reliable connection are sprayed; 1
    /// sprays nothing. The peer must hold packets that come before others, and accept packets from
    /// all these ports: [`receive`](Self::receive) and [`pin_source_port`](Self::pin_source_port)
    /// there.
    pub paths: u8,
    /// Maximum number of packets that one queue pair sends before the others, in round-robin order.
    pub quantum: usize,
    /// Maximum length of a raw frame, from its Ethernet header on; zero if there are no raw packet
    /// queue pairs.
    pub frame_max: usize,
    /// QPNs that its queue pairs may have.
    pub qpns: QpnShare,
    /// Limits of objects and queues.
    pub limits: Limits,
}

/// Scope of the interval between CNPs. NICs differ in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CnpScope {
    /// One CNP of each queue pair in an interval.
    #[default]
    Qp,
    /// One CNP to each peer.
    Peer,
    /// One CNP of the port.
    Port,
}

/// Whether data of connected queue pairs is ECN-capable: switches mark no other packets. Datagrams
/// have what their address handle says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ect {
    /// ECT(0) if congestion control is on.
    #[default]
    Controlled,
    /// ECT(0).
    Always,
    /// Traffic class as the program set it.
    Never,
}

/// Time without a packet from a peer's source port after which another port is accepted. Less than
/// the retransmission timeout that programs mostly set, so that a peer whose port changes loses one
/// timeout.
pub const PORT_SILENCE: Duration = Duration::from_millis(50);

/// Rate of the line that controllers begin with unless it is set, in bit/s.
pub(super) const LINE_RATE: u64 = 100_000_000_000;

/// Limits of objects and queues.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Protection domains.
    pub pds: usize,
    /// Memory regions and windows together.
    pub keys: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Completions in a completion queue.
    pub cqes: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Address handles.
    pub ahs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Work requests in a queue.
    pub wrs: u32,
    /// Entries of a scatter/gather list.
    pub sges: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// READs and atomics in flight, in each direction.
    pub rd_atomic: u8,
    /// Queue pairs attached to one multicast group.
    pub group_members: usize,
    /// Bytes of all queues together when they are full.
    pub bytes: u64,
    /// Bytes of packets that came before others and are held, of all queue pairs together.
    pub reorder_bytes: u64,
    /// Bytes of such packets in each direction of one queue pair.
    pub reorder_qp_bytes: u64,
}

impl Limits {
    /// The limits of rxe, or more.
    pub const DEFAULT: Self = Self {
        pds: 1 << 16,
        keys: TABLE_MAX,
        cqs: 1 << 18,
        cqes: 1 << 20,
        srqs: 1 << 16,
        ahs: 1 << 18,
        qps: TABLE_MAX,
        wrs: 1 << 16,
        sges: 32,
        inline: 1024,
        rd_atomic: 128,
        group_members: 56,
        bytes: u64::MAX,
        reorder_bytes: 16 << 20,
        reorder_qp_bytes: 1 << 20,
    };

    /// Returns these limits, lowered to what fits into `bytes`: of each kind as many objects of
    /// ordinary size as fit if there is nothing else.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        let fit = |limit: usize, each: u64| {
            let fit = usize::try_from(bytes / each).unwrap_or(usize::MAX).max(LIMIT_MIN);
            // A power of two, so that machines of nearly the same size have the same limits.
            limit.min(1 << fit.ilog2())
        };
        let cap = QpCap::ORDINARY;
        let receives = RecvQueue::bytes(cap.max_recv_wr, cap.max_recv_sge);
        let qp = SendQueue::bytes(cap.max_send_wr, &cap) + receives + OBJECT_BYTES;
        Self {
            pds: fit(self.pds, OBJECT_BYTES),
            keys: fit(self.keys, OBJECT_BYTES),
            cqs: fit(self.cqs, Cq::bytes(cap.max_send_wr as usize) + OBJECT_BYTES),
            srqs: fit(self.srqs, receives + OBJECT_BYTES),
            ahs: fit(self.ahs, OBJECT_BYTES),
            qps: fit(self.qps, qp),
            bytes: self.bytes.min(bytes),
            ..self
        }
    }
}

/// Approximate number of bytes of an object besides its queues, here and in its user.
pub(super) const OBJECT_BYTES: u64 = 4096;

/// Minimum of each limit, however little memory there is.
const LIMIT_MIN: usize = 1024;

// A gather list's length has six bits in a queued work request.
const _: () = assert!(Limits::DEFAULT.sges < 64);

impl Config {
    /// Whether queue pairs have controllers from their first packet on.
    pub(super) fn paces_from_start(&self) -> bool {
        self.congestion.is_on() && self.line_rate.is_some() || self.congestion.starts_with_packet()
    }

    /// Whether data of connected queue pairs is made ECN-capable.
    pub(super) fn is_ect(&self) -> bool {
        match self.ect {
            Ect::Controlled => self.congestion.is_on(),
            Ect::Always => true,
            Ect::Never => false,
        }
    }

    /// Number of PSNs by which packets of a peer may come before others, out of several source
    /// ports; 0 if these are dropped.
    pub(crate) fn reorder_span(&self) -> u32 {
        let drops = self.receive == ReceiveMode::InOrder || self.pin_source_port;
        if drops { 0 } else { SPAN }
    }

    /// Default configuration of a port with one GID.
    pub fn new(gid: Gid) -> Self {
        Self {
            gids: vec![gid],
            pkeys: vec![PKey::DEFAULT],
            port_mtu: Mtu::M4096,
            window_packets: 128,
            window_bytes: 192 * 1024,
            loss_window_bytes: 192 * 1024,
            peer_window_bytes: None,
            advertise_credits: false,
            ack_delay: Duration::ZERO,
            pin_source_port: true,
            congestion: Congestion::None,
            line_rate: None,
            pacing_burst: Duration::ZERO,
            ect: Ect::default(),
            cnp_interval: Duration::from_micros(50),
            cnp_scope: CnpScope::default(),
            cnp_dscp: 48,
            cnp_priority: 6,
            recovery: Recovery::GoBackN,
            receive: ReceiveMode::InOrder,
            reorder: ReorderThreshold { packets: 0, time: Duration::ZERO },
            paths: 1,
            quantum: 16,
            frame_max: 0,
            qpns: QpnShare::ALL,
            limits: Limits::DEFAULT,
        }
    }
}
