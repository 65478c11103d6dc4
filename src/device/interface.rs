//! Interface of every RNIC, be it software or a card.

use core::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::memory::Buffer;
use crate::time::Instant;
use crate::verbs::{
    Access, AhAttr, AhHandle, AsyncEvent, AttrMask, Connect, ConnectError, CqHandle, CreateError,
    DestroyError, DeviceAttr, Endpoint, KeyError, ModifyError, MrAttr, MrHandle, MwHandle, MwType,
    Notify, PdHandle, PortAttr, PostError, QpAttr, QpCap, QpCreate, QpHandle, QpInitAttr, QpState,
    QpType, RecvWr, SendWr, SrqCreate, SrqHandle, Wc, XrcdHandle, bring_up,
};
use crate::wire::{Gid, Psn, Qpn, RKey, XrcSrqn};

/// Events to wait for, by a call or by `poll` on the descriptor, which is readable while there is
/// an event to take.
pub trait Events<T>: AsFd + Any + Send + Sync + fmt::Debug {
    /// The oldest one, or the first that comes within `timeout`; without a timeout, the first that
    /// comes.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<T>>;
}

/// A completion channel: wakes a program that sleeps until a completion comes. The file descriptor
/// is readable while there is something to take.
#[derive(Clone, Debug)]
pub struct Channel(pub(crate) Arc<dyn Events<CqHandle>>);

impl Channel {
    /// The next completion queue that has what an event was asked for.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<CqHandle>> {
        self.0.wait(timeout)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Keeps the trait to this crate: a method can be added without breaking anything.
pub(crate) mod sealed {
    /// Implemented by the devices of this crate.
    #[expect(unnameable_types, reason = "that seals the trait")]
    pub trait Sealed {}
}

/// An RNIC with one port, which any number of threads may use.
///
/// A program that is written against this trait runs on a [`SoftNic`](crate::nic::SoftNic) and on a
/// card alike. Objects are named by handles here, and destroyed by calls;
/// [`Context`](super::Context) has objects that own what they name. The trait cannot be implemented
/// outside of this crate.
pub trait Device: sealed::Sealed + Any + Send + Sync + fmt::Debug {
    /// Returns the name: `udp:192.0.2.1`, `verbs:mlx5_0`.
    fn name(&self) -> &str;

    /// Returns the attributes of the device.
    fn query_device(&self) -> io::Result<DeviceAttr>;

    /// Returns the attributes of the port.
    fn query_port(&self) -> io::Result<PortAttr>;

    /// The identifiers of its port, by index: those that speak RoCEv2. A place that is empty is
    /// zero.
    fn gids(&self) -> Vec<Gid>;

    /// Returns the counters of the device by name.
    fn statistics(&self) -> Vec<(String, u64)>;

    /// Returns the reason for which nothing can be sent or received any more, if that is so.
    fn broken(&self) -> Option<io::Error> {
        None
    }

    /// Returns the asynchronous events: queue pairs that fail, shared queues that run low.
    fn async_events(&self) -> &dyn Events<AsyncEvent>;

    /// Makes a protection domain.
    fn create_pd(&self) -> Result<PdHandle, CreateError>;

    /// Destroys a protection domain that nothing belongs to.
    fn destroy_pd(&self, pd: PdHandle) -> Result<(), DestroyError>;

    /// Registers memory of any kind, under any address: from then on work requests and, by its
    /// rights, peers may use it.
    fn register_region(&self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError>;

    /// Registers a buffer.
    fn register(
        &self,
        pd: PdHandle,
        buffer: &Buffer,
        access: Access,
    ) -> Result<MrHandle, KeyError> {
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access };
        self.register_region(pd, attr)
    }

    /// Deregisters a region. Neither the program nor a peer can reach the memory through it
    /// afterwards.
    fn deregister(&self, mr: MrHandle) -> Result<(), KeyError>;

    /// Makes a memory window.
    fn create_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError>;

    /// The key of a memory window as it is now.
    fn mw_key(&self, mw: MwHandle) -> Option<RKey>;

    /// Destroys a memory window.
    fn destroy_mw(&self, mw: MwHandle) -> Result<(), KeyError>;

    /// Makes a completion queue that is polled.
    fn create_cq(&self, capacity: usize) -> Result<CqHandle, CreateError>;

    /// Makes a channel for events of completion queues.
    fn create_channel(&self) -> io::Result<Channel>;

    /// Makes a completion queue whose events go to a channel of the same device.
    fn create_cq_on(&self, capacity: usize, channel: &Channel) -> Result<CqHandle, CreateError>;

    /// Asks for an event when a completion comes. One that is there already does not count: poll
    /// once more.
    fn request_notify(&self, cq: CqHandle, notify: Notify);

    /// Destroys a completion queue that no QP and no SRQ completes to.
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DestroyError>;

    /// Moves completions of a queue to `out`, oldest first; returns how many.
    fn poll_cq(&self, cq: CqHandle, out: &mut [Wc]) -> usize;

    /// Makes a completion queue whose completions have the time at which the device reported them,
    /// by its own clock, if the device can tell it; its events go to a channel of the same device.
    /// It is polled by [`poll_cq_timed`](Self::poll_cq_timed) alone.
    fn create_timed_cq_on(
        &self,
        capacity: usize,
        channel: &Channel,
    ) -> Result<CqHandle, CreateError> {
        self.create_cq_on(capacity, channel)
    }

    /// Takes the oldest completion of a [timed](Self::create_timed_cq_on) queue, with its time if
    /// the device tells it.
    fn poll_cq_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let mut wc = [Wc::default()];
        (self.poll_cq(cq, &mut wc) == 1).then_some((wc[0], None))
    }

    /// Waits for the next completion of a queue, polling.
    fn wait_cq(&self, cq: CqHandle) -> io::Result<Wc> {
        let mut wc = [Wc::default()];
        loop {
            if self.poll_cq(cq, &mut wc) == 1 {
                let [wc] = wc;
                return Ok(wc);
            }
            if let Some(error) = self.broken() {
                return Err(error);
            }
            std::thread::yield_now();
        }
    }

    /// Makes an XRC domain.
    fn create_xrcd(&self) -> Result<XrcdHandle, CreateError>;

    /// Destroys an XRC domain that nothing belongs to.
    fn destroy_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DestroyError>;

    /// Makes a shared receive queue.
    fn create_srq(&self, pd: PdHandle, create: SrqCreate) -> Result<SrqHandle, CreateError>;

    /// Gives a shared receive queue another size, another limit, or both.
    fn modify_srq(
        &self,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CreateError>;

    /// The number of an XRC shared receive queue on the wire.
    fn srq_number(&self, srq: SrqHandle) -> XrcSrqn;

    /// Destroys a shared receive queue that no queue pair uses.
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DestroyError>;

    /// Makes an address handle.
    fn create_ah(&self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError>;

    /// Destroys an address handle.
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DestroyError>;

    /// Makes a queue pair, in the state RESET.
    fn create_qp(&self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError>;

    /// Makes a queue pair of ordinary size with one completion queue; every send is reported.
    fn create_simple_qp(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        qp_type: QpType,
    ) -> Result<QpHandle, CreateError> {
        let init = QpInitAttr { qp_type, cap: QpCap::ORDINARY, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        self.create_qp(pd, create)
    }

    /// Changes a queue pair: the attributes of `attr` that `mask` names.
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError>;

    /// The attributes of a queue pair as they are.
    fn query_qp(&self, qp: QpHandle) -> Option<QpAttr>;

    /// The number of a queue pair on the wire.
    fn qp_number(&self, qp: QpHandle) -> Option<Qpn>;

    /// Returns the type of a queue pair.
    fn qp_kind(&self, qp: QpHandle) -> Option<QpType>;

    /// The state of a queue pair.
    fn qp_state(&self, qp: QpHandle) -> Option<QpState> {
        self.query_qp(qp).map(|attr| attr.qp_state)
    }

    /// Whether every work request that was posted to the send queue is acknowledged, or has failed;
    /// `None` if the device does not tell, or has no such queue pair.
    fn is_send_queue_empty(&self, _qp: QpHandle) -> Option<bool> {
        None
    }

    /// Destroys a queue pair. Posted work requests are discarded.
    fn destroy_qp(&self, qp: QpHandle) -> Result<(), DestroyError>;

    /// Lets a datagram queue pair receive what is sent to a multicast group, its own datagrams
    /// included. A soft NIC may open a socket for it: call it from the network namespace that the
    /// NIC is in.
    fn attach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError>;

    /// Detaches a queue pair from a multicast group.
    fn detach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError>;

    /// Posts several sends at once; an error says how many were taken before.
    fn post_sends(&self, qp: QpHandle, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)>;

    /// Posts a send.
    fn post_send(&self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_sends(qp, std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    /// Posts several receives at once; an error says how many were taken before.
    fn post_recvs(&self, qp: QpHandle, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;

    /// Posts a receive.
    fn post_recv(&self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recvs(qp, std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    /// Posts a receive to a shared queue.
    fn post_srq_recv(&self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError>;

    /// The PSN that a queue pair begins with if `psn` of [`Connect`] names no other: a random one
    /// that a stranger cannot guess, always the same for the same queue pair.
    fn initial_psn(&self, qp: QpHandle) -> Option<Psn>;

    /// Returns the endpoint of a queue pair for its peer, with the first address of the port.
    fn endpoint(&self, qp: QpHandle) -> Result<Endpoint, ConnectError> {
        let qpn = self.qp_number(qp).ok_or(ConnectError::NotFound)?;
        let gid = self.gids().first().copied().unwrap_or_default();
        let psn = self.initial_psn(qp).ok_or(ConnectError::NotFound)?;
        Ok(Endpoint { gid, qpn, psn })
    }

    /// Whether it does selective repeat with peers that do it, too.
    fn offers_selective_repeat(&self) -> bool {
        false
    }

    /// Agrees on selective repeat for a queue pair, whose peer has said whether it does it; returns
    /// whether it is used from now on.
    fn agree_selective_repeat(&self, _qp: QpHandle, _agreed: bool) -> bool {
        false
    }

    /// Number of PSNs by which packets of a peer may come before others; 0 if these are dropped.
    fn reorder_span(&self) -> u32 {
        0
    }

    /// Agrees that packets of a queue pair are sprayed over several paths, or, with a peer that
    /// drops those that come before others, take one; returns whether they are sprayed.
    fn agree_spraying(&self, _qp: QpHandle, _agreed: bool) -> bool {
        false
    }

    /// Takes a queue pair from RESET or INIT to RTS, connected to a peer.
    fn connect(&self, qp: QpHandle, peer: &Endpoint, how: &Connect) -> Result<(), ConnectError> {
        let psn = how.psn.or_else(|| self.initial_psn(qp)).ok_or(ConnectError::NotFound)?;
        let how = Connect { psn: Some(psn), ..*how };
        self.agree_selective_repeat(qp, how.selective_repeat);
        self.bring_up(qp, QpState::Rts, &how.attributes(Some(peer)))
    }

    /// Takes a datagram queue pair from RESET or INIT to RTS.
    fn open_datagram(&self, qp: QpHandle, how: &Connect) -> Result<(), ConnectError> {
        self.bring_up(qp, QpState::Rts, &how.attributes(None))
    }

    /// Takes a queue pair from RESET or INIT to a later state up to RTS.
    #[doc(hidden)]
    fn bring_up(&self, qp: QpHandle, to: QpState, attr: &QpAttr) -> Result<(), ConnectError> {
        let kind = self.qp_kind(qp).ok_or(ConnectError::NotFound)?;
        let from = self.qp_state(qp).ok_or(ConnectError::NotFound)?;
        bring_up(kind, from, to, attr, |attr, mask| self.modify_qp(qp, attr, mask))
    }
}
