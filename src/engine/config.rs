//! What an engine is told when it is made, and every bound it keeps.

use core::time::Duration;

use super::cq::Cq;
use super::ids::TABLE_MAX;
use super::queue::{RecvQueue, SendQueue};
use crate::verbs::{Mtu, QpCap};
use crate::wire::{Gid, PKey};

/// What an engine is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identifiers of its port, by index.
    pub gids: Vec<Gid>,
    /// The partitions of its port, by index.
    pub pkeys: Vec<PKey>,
    /// The largest payload its port takes.
    pub port_mtu: Mtu,
    /// How many packets of a queue pair may be unacknowledged. A receiver with an ordinary socket buffer must not be
    /// overrun.
    pub window_packets: u32,
    /// How many payload bytes of a queue pair may be unacknowledged.
    pub window_bytes: u32,
    /// How many bytes of all queue pairs together may be unacknowledged on the way to one peer, with what a buffer needs
    /// for each packet besides; `None` if only each queue pair is to keep to its window.
    pub path_bytes: Option<u32>,
    /// Whether acknowledgements count the receives that are posted, or leave the requester to find out.
    pub advertise_credits: bool,
    /// How long an acknowledgement may be held back behind a message to the same peer, by who calls
    /// [`poll_transmit_first`](super::Engine::poll_transmit_first); zero is not at all.
    pub ack_hold: Duration,
    /// Whether packets of a connection are taken only from the UDP source port that its peer uses: another process at the
    /// peer's address cannot have that port. After [`PORT_SILENCE`] without a packet from it, the peer may use another.
    /// Turn it off for a peer that sends one connection's packets from several ports.
    pub pin_source_port: bool,
    /// How much time lies between two congestion notifications to one queue pair, at the least.
    pub cnp_interval: Duration,
    /// How many packets one queue pair may send before others have their turn.
    pub quantum: usize,
    /// The longest frame of raw packets, from its Ethernet header on; zero if there are none.
    pub frame_max: usize,
    /// Whether sent frames do not come back from the wire. Then each goes onto the wire, and a raw packet queue pair of this
    /// port whose rule asks for it gets a copy here; otherwise a frame with such a rule is handed over here alone.
    pub frames_hairpin: bool,
    /// The most objects of each kind.
    pub limits: Limits,
}

/// For how long nothing must come from a peer's source port before another is accepted. Less than the retransmission
/// timeout that programs mostly ask for, so that a peer whose packets take another port loses one timeout.
pub const PORT_SILENCE: Duration = Duration::from_millis(50);

/// The most objects of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Protection domains.
    pub pds: usize,
    /// Memory regions and windows together.
    pub keys: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Completions a queue can hold.
    pub cqes: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Address handles.
    pub ahs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Work requests a queue can hold.
    pub wrs: u32,
    /// Entries of a gather or scatter list.
    pub sges: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// Reads and atomics under way, each way.
    pub rd_atomic: u8,
    /// Queue pairs attached to one multicast group.
    pub group_members: usize,
    /// Bytes that all queues together may take, with all the work requests and completions that they may hold.
    pub bytes: u64,
}

impl Limits {
    /// What rxe has, or more.
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
    };

    /// The same, or fewer: what fits into so many bytes. Of each kind there may be as many as fit if they are of an
    /// ordinary size and there is nothing else.
    #[must_use]
    pub fn within(self, bytes: u64) -> Self {
        let fit = |most: usize, each: u64| {
            let fit = usize::try_from(bytes / each).unwrap_or(usize::MAX).max(FEWEST);
            // A power of two, so that machines of nearly the same size promise the same.
            most.min(1 << fit.ilog2())
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

/// About what an object takes besides its queues, here and with who holds it.
pub(super) const OBJECT_BYTES: u64 = 4096;

/// However little memory there is, so many objects of a kind can be tried.
const FEWEST: usize = 1024;

// A gather list's length has six bits in a queued work request.
const _: () = assert!(Limits::DEFAULT.sges < 64);

impl Config {
    /// A port with this identifier, and what suits most.
    pub fn new(gid: Gid) -> Self {
        Self {
            gids: vec![gid],
            pkeys: vec![PKey::DEFAULT],
            port_mtu: Mtu::M4096,
            window_packets: 128,
            window_bytes: 192 * 1024,
            path_bytes: None,
            advertise_credits: false,
            ack_hold: Duration::ZERO,
            pin_source_port: true,
            cnp_interval: Duration::from_micros(50),
            quantum: 16,
            frame_max: 0,
            frames_hairpin: true,
            limits: Limits::DEFAULT,
        }
    }
}
