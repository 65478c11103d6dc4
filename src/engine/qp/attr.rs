//! Identity, state and attributes of a queue pair, which `tx`, `rx` and `ack` only read.

use super::super::env::Env;
use crate::table::SlotId;
use crate::verbs::{
    Access, AckTimeout, AsyncEvent, CqHandle, EventType, PdHandle, QpCreate, QpHandle, QpInitAttr,
    QpState, QpType, RetryCount, RnrRetry, SrqHandle, StateRules, XrcdHandle,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Opcode, PKey, Path, QKey, Qpn, Service};

/// Identity, state and attributes of a queue pair. `tx`, `rx` and `ack` get a shared reference;
/// only `Qp` and `modify` write.
#[derive(Debug)]
#[repr(C)]
pub(in crate::engine) struct Attributes {
    state: QpState,
    rules: StateRules,
    /// Transport service of its packets.
    pub(in crate::engine) service: Service,
    pub(in crate::engine) kind: QpType,
    /// Retransmission timeout.
    pub(super) timeout: AckTimeout,
    pub(super) retry_cnt: RetryCount,
    pub(super) rnr_retry: RnrRetry,
    pub(super) min_rnr_timer: RnrTimer,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    /// Whether the peer agreed to selective repeat.
    selective: bool,
    /// Whether the peer drops packets that come before others, so that none are sprayed.
    drops_early: bool,
    pub(super) pkey: PKey,
    pub(in crate::engine) slot: SlotId,
    pub(in crate::engine) qpn: Qpn,
    pub(in crate::engine) pd: PdHandle,
    pub(super) init: QpInitAttr,
    /// Path to the peer.
    pub(super) path: Path,
    /// QPN of the peer.
    pub(super) dest: Qpn,
    pub(super) mtu: u32,
    /// Maximum number of packets in flight.
    pub(super) window: u32,
    /// Maximum number of packets in flight for a while after a loss.
    pub(super) loss_window: u32,
    pub(in crate::engine) send_cq: CqHandle,
    pub(in crate::engine) recv_cq: CqHandle,
    pub(in crate::engine) srq: Option<SrqHandle>,
    pub(super) access: Access,
    pub(in crate::engine) handle: QpHandle,
    pub(super) qkey: QKey,
    pub(in crate::engine) xrcd: Option<XrcdHandle>,
}

impl Attributes {
    /// Attributes of a new queue pair in RESET. Its numbers are [assigned](Self::set_numbers) when
    /// it is in its table.
    pub(super) fn new(pd: PdHandle, create: &QpCreate) -> Self {
        let QpCreate { init, send_cq, recv_cq, srq, xrcd } = *create;
        let kind = init.qp_type;
        Self {
            state: QpState::Reset,
            rules: QpState::Reset.rules_for(kind),
            service: service_of(kind),
            kind,
            timeout: AckTimeout::default(),
            retry_cnt: RetryCount::default(),
            rnr_retry: RnrRetry::default(),
            min_rnr_timer: RnrTimer(Bits::low(0)),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            selective: false,
            drops_early: false,
            pkey: PKey::DEFAULT,
            slot: SlotId(0),
            qpn: Qpn::new(0),
            pd,
            init,
            path: Path::NOWHERE,
            dest: Qpn::new(0),
            mtu: 1024,
            window: 1,
            loss_window: 1,
            send_cq,
            recv_cq,
            srq,
            access: Access::empty(),
            handle: QpHandle(pd.0),
            qkey: QKey::new(0),
            xrcd,
        }
    }

    pub(super) fn set_numbers(&mut self, handle: QpHandle, slot: SlotId, qpn: Qpn) {
        (self.handle, self.slot, self.qpn) = (handle, slot, qpn);
    }

    /// Whether the peer agreed to selective repeat.
    #[inline]
    pub(super) fn is_selective(&self) -> bool {
        self.selective
    }

    /// Whether packets are sprayed over source ports.
    #[inline]
    pub(super) fn sprays(&self, env: &Env) -> bool {
        env.config.paths > 1 && self.kind.is_reliable() && !self.drops_early
    }

    /// Sets whether the peer drops packets that come before others.
    pub(super) fn set_drops_early(&mut self, drops_early: bool) {
        self.drops_early = drops_early;
    }

    /// Sets whether the peer agreed to selective repeat.
    pub(super) fn set_selective(&mut self, selective: bool) {
        self.selective = selective;
    }

    #[inline]
    pub(super) fn state(&self) -> QpState {
        self.state
    }

    /// Returns the behavior of the state for a queue pair of this type.
    #[inline]
    pub(super) fn rules(&self) -> &StateRules {
        &self.rules
    }

    pub(super) fn set_state(&mut self, state: QpState) {
        (self.state, self.rules) = (state, state.rules_for(self.kind));
    }

    /// Returns the QPN that owns the type 2 windows which this queue pair binds, invalidates or
    /// gives access to: its own. With XRC, an initiator binds windows and a target executes the
    /// requests that use them. They share windows, so both use a number that no queue pair has.
    #[inline]
    pub(super) fn window_owner(&self) -> Qpn {
        match self.kind {
            QpType::XrcSend | QpType::XrcRecv => Qpn::MULTICAST,
            _ => self.qpn,
        }
    }

    /// Returns the opcode of its own service for an operation that RC has too.
    #[inline]
    pub(super) fn opcode(&self, rc: Opcode) -> Opcode {
        Opcode(rc.0 | self.service.class())
    }

    /// Returns the Q_Key that datagrams to this queue pair must have.
    pub(super) fn own_qkey(&self) -> QKey {
        if self.kind == QpType::Gsi { QKey::GSI } else { self.qkey }
    }

    /// Raises an asynchronous event about the queue pair.
    pub(super) fn raise(&self, event: EventType, env: &mut Env) {
        env.raise(AsyncEvent::Qp(event, self.handle));
    }
}

/// Returns the transport service of a queue pair's packets.
fn service_of(kind: QpType) -> Service {
    match kind {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        QpType::Ud | QpType::Gsi | QpType::RawPacket | QpType::Driver => Service::Ud,
    }
}
