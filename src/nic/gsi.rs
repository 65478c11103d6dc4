//! Queue pair 1 of a NIC, for a connection manager: the GSI (general services interface).
//!
//! It has memory, completion queues and address handles of its own, which a program neither sees
//! nor pays for: they do not count towards its limits. A NIC has no queue pair 1 until it is
//! [opened](SoftNic::open_gsi).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::SoftNic;
use super::driver::Signals;
use super::shared::Shared;
use crate::engine::{Engine, Event};
use crate::memory::Buffer;
use crate::verbs::{
    Access, AhAttr, AhHandle, AsyncEvent, AttrMask, CqHandle, CreateError, Data, LKey, MrAttr,
    MrHandle, Notify, PdHandle, QpAttr, QpCap, QpCreate, QpHandle, QpInitAttr, QpState, QpType,
    RecvWr, SendFlags, SendOp, SendWr, Sge, Target, UdTarget, Wc, WrId, limits,
};
use crate::wire::mad::MAD_LEN;
use crate::wire::{Gid, QKey, Qpn};

/// Receives that are posted: a burst of 1,000 requests finds a buffer each, and as many answers do.
const RECEIVES: u32 = 2048;

/// MADs that wait in the send queue.
const SENDS: u32 = 1024;

/// Completions that are taken with one lock.
const BATCH: usize = 64;

/// Length of the network header area before a datagram.
const GRH_LEN: usize = limits::GRH_BYTES as usize;

/// Length of a MAD.
const MAD_BYTES: u32 = 256;
const _: () = assert!(MAD_BYTES as usize == MAD_LEN);

/// Length of a receive buffer.
const SLOT_BYTES: u32 = limits::GRH_BYTES + MAD_BYTES;
const SLOT_LEN: usize = SLOT_BYTES as usize;

/// A MAD that came to queue pair 1, and the addresses of its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GsiDatagram {
    /// The sender's GID.
    pub source: Gid,
    /// The GID that it was sent to.
    pub destination: Gid,
    /// The traffic class of its packet.
    pub traffic_class: u8,
    len: usize,
    mad: [u8; MAD_LEN],
}

impl GsiDatagram {
    /// The bytes of the datagram: 256 if it is a MAD.
    pub fn mad(&self) -> &[u8] {
        self.mad.get(..self.len).unwrap_or(&self.mad)
    }

    /// Reads a datagram from a receive buffer: the network header fills the last bytes of the area
    /// before it.
    fn parse(slot: &[u8; SLOT_LEN], wc: &Wc) -> Option<Self> {
        let (area, mad) = slot.split_first_chunk::<GRH_LEN>()?;
        let len = (wc.byte_len as usize).checked_sub(GRH_LEN)?.min(MAD_LEN);
        let mad = *mad.first_chunk::<MAD_LEN>()?;
        let gid = |at: usize| area.get(at..)?.first_chunk::<16>().map(|bytes| Gid(*bytes));
        let v4 = |at: usize| {
            let bytes = area.get(at..)?.first_chunk::<4>()?;
            Some(Gid::from(core::net::Ipv4Addr::from(*bytes)))
        };
        // An IPv4 header begins at offset 20, an IPv6 header at 0. A NIC tells by the service level
        // which it is.
        let is_v4 = wc.sl & 2 != 0;
        let (source, destination, traffic_class) = if is_v4 {
            (v4(32)?, v4(36)?, area[21])
        } else {
            (gid(8)?, gid(24)?, area[0] << 4 | area[1] >> 4)
        };
        Some(Self { source, destination, traffic_class, len, mad })
    }
}

/// Error of sending a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GsiSendError {
    /// The send queue is full: transmit, and try once more.
    #[error("the send queue of QP 1 is full")]
    Full,
    /// The NIC is closed or has failed.
    #[error("the NIC is closed")]
    Closed,
    /// The path does not exist: the NIC lost its address.
    #[error("the NIC has no path to this peer")]
    NoPath,
}

/// Takes the events of queue pair 1. The core delivers them here, and not to the program.
pub(super) struct GsiEvents {
    qp: QpHandle,
    recv_cq: CqHandle,
    send_cq: CqHandle,
    user: Arc<GsiUser>,
    signals: Arc<Signals>,
}

/// The user of queue pair 1.
pub(super) struct GsiUser {
    /// Whether something came since the last [`Gsi::receive`] that found nothing.
    is_readable: AtomicBool,
    serve: Box<dyn Fn() + Send + Sync>,
}

impl GsiUser {
    fn set_readable(&self) {
        self.is_readable.store(true, Ordering::Release);
    }

    fn is_readable(&self) -> bool {
        self.is_readable.load(Ordering::Acquire)
    }
}

impl Shared {
    fn set_gsi_user(&self, user: Option<Arc<GsiUser>>) {
        *self.gsi.lock().unwrap_or_else(PoisonError::into_inner) = user;
    }

    /// Lets the user of queue pair 1 take what has come. The progress thread calls it after
    /// everything that it does, with no lock held.
    pub(super) fn serve_gsi(&self) {
        let user = self.gsi.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(user) = user.filter(|user| user.is_readable()) {
            (user.serve)();
            if user.is_readable() {
                // The rest follows when the NIC has had its turn.
                self.signals.wake();
            }
        }
    }
}

impl GsiEvents {
    /// Takes an event that belongs to queue pair 1; returns whether it did.
    pub(super) fn take(&self, event: Event) -> bool {
        match event {
            Event::Completion(cq) if cq == self.recv_cq => {
                self.set_readable();
                true
            }
            Event::Completion(cq) => cq == self.send_cq,
            Event::Async(AsyncEvent::Qp(_, qp)) => qp == self.qp,
            Event::Async(AsyncEvent::Cq(_, cq)) => cq == self.recv_cq || cq == self.send_cq,
            // The program is told, too.
            Event::Async(AsyncEvent::Port(_) | AsyncEvent::Device(_)) => {
                self.set_readable();
                false
            }
            Event::Async(AsyncEvent::Srq(..)) => false,
        }
    }

    /// The progress thread serves the user, next if it is the one that calls this.
    fn set_readable(&self) {
        self.user.set_readable();
        self.signals.wake_from_other();
    }
}

/// Queue pair 1 of a NIC. It is closed when it is dropped, or with its NIC.
///
/// Lock order: its user's own locks, then this, then the NIC's.
pub struct Gsi {
    /// Written when it is closed. Its users read: one may transmit while another receives.
    open: Arc<RwLock<Option<Open>>>,
    user: Arc<GsiUser>,
}

/// The NIC's handle to its queue pair 1, to close it.
#[derive(Clone)]
pub(super) struct GsiCloser(Arc<RwLock<Option<Open>>>, Arc<GsiUser>);

impl GsiCloser {
    /// The NIC is going: nothing holds its link any more, and the user is served to learn of it.
    pub(super) fn close(&self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take());
        self.1.set_readable();
        (self.1.serve)();
    }
}

struct Open {
    shared: Arc<Shared>,
    objects: Objects,
    buffer: Buffer,
}

#[derive(Clone, Copy)]
struct Objects {
    pd: PdHandle,
    recv_cq: CqHandle,
    send_cq: CqHandle,
    qp: QpHandle,
    mr: MrHandle,
    lkey: LKey,
}

impl SoftNic {
    /// Opens queue pair 1. `serve` is called when datagrams have come, when the port has changed or
    /// failed, and when the NIC closes: by the NIC's own thread or, when it closes, by the thread
    /// that drops it, and without a lock of the NIC. The NIC waits for it to return.
    pub fn open_gsi(&self, serve: impl Fn() + Send + Sync + 'static) -> Result<Gsi, CreateError> {
        let buffer = Buffer::try_new(SLOT_LEN * RECEIVES as usize)
            .map_err(|_| CreateError::Refused(crate::verbs::Errno::ENOMEM))?;
        let is_readable = AtomicBool::new(true);
        let user = Arc::new(GsiUser { is_readable, serve: Box::new(serve) });
        let objects = {
            let mut core = self.shared.core();
            if self.has_failed() {
                return super::failure::Refusal::refused();
            }
            core.engine.reserve_gsi(SENDS, RECEIVES);
            let objects = Objects::create(&mut core.engine, &buffer)?;
            let Objects { qp, recv_cq, send_cq, .. } = objects;
            let (user, signals) = (Arc::clone(&user), Arc::clone(&self.shared.signals));
            core.gsi = Some(GsiEvents { qp, recv_cq, send_cq, user, signals });
            objects
        };
        self.shared.set_gsi_user(Some(Arc::clone(&user)));
        self.shared.set_qpn_filter();
        let shared = Arc::clone(&self.shared);
        let open = Arc::new(RwLock::new(Some(Open { shared, objects, buffer })));
        let closer = GsiCloser(Arc::clone(&open), Arc::clone(&user));
        *self.gsi.lock().unwrap_or_else(PoisonError::into_inner) = Some(closer);
        Ok(Gsi { open, user })
    }
}

impl Objects {
    /// Creates all objects, or none.
    fn create(engine: &mut Engine, buffer: &Buffer) -> Result<Self, CreateError> {
        let pd = engine.create_pd()?;
        let created = Self::create_in(engine, pd, buffer);
        if created.is_err() {
            let _ = engine.destroy_pd(pd);
        }
        created
    }

    fn create_in(engine: &mut Engine, pd: PdHandle, buffer: &Buffer) -> Result<Self, CreateError> {
        let attr =
            MrAttr { region: buffer.region(), base: buffer.addr(), access: Access::LOCAL_WRITE };
        let recv_cq = engine.create_cq(RECEIVES as usize)?;
        let send_cq = engine.create_cq(SENDS as usize).inspect_err(|_| {
            let _ = engine.destroy_cq(recv_cq);
        })?;
        let mr = engine.register(pd, attr);
        let cap = QpCap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MAD_BYTES,
        };
        let init = QpInitAttr { qp_type: QpType::Gsi, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq, recv_cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create);
        match (mr, qp) {
            (Ok(mr), Ok(qp)) => {
                let objects = Self { pd, recv_cq, send_cq, qp, mr, lkey: mr.lkey() };
                objects.bring_up(engine);
                objects.post_all(engine, buffer);
                Ok(objects)
            }
            (mr, qp) => {
                let _ = qp.map(|qp| engine.destroy_qp(qp));
                let _ = mr.map(|mr| engine.deregister(mr));
                let _ = engine.destroy_cq(send_cq);
                let _ = engine.destroy_cq(recv_cq);
                Err(match qp {
                    Err(error) => error,
                    Ok(_) => CreateError::Full,
                })
            }
        }
    }

    /// Takes the QP to RTS, from RESET or from an error.
    fn bring_up(&self, engine: &mut Engine) {
        let steps = [
            (QpState::Init, AttrMask::PKEY_INDEX.union(AttrMask::QKEY)),
            (QpState::Rtr, AttrMask::empty()),
            (QpState::Rts, AttrMask::SQ_PSN),
        ];
        for (qp_state, mask) in steps {
            let attr = QpAttr { qp_state, qkey: QKey::GSI, ..QpAttr::default() };
            let _ = engine.modify_qp(self.qp, &attr, mask | AttrMask::STATE);
        }
    }

    fn post_all(&self, engine: &mut Engine, buffer: &Buffer) {
        for slot in 0..u64::from(RECEIVES) {
            self.post_recv(engine, buffer, slot);
        }
        engine.request_notify(self.recv_cq, Notify::Next);
    }

    fn post_recv(&self, engine: &mut Engine, buffer: &Buffer, slot: u64) {
        let addr = buffer.addr() + slot * u64::from(SLOT_BYTES);
        let sges = [Sge { addr, length: SLOT_BYTES, lkey: self.lkey }];
        // As many receives are posted as the queue takes, and one is posted for each that
        // completes.
        let _ = engine.post_recv(self.qp, &RecvWr { id: WrId(slot), sges: &sges });
    }

    /// Destroys the address handles of datagrams that were sent. A send can fail only because the
    /// NIC lost the address that it came from: then QP 1 starts anew.
    fn retire_sends(&self, engine: &mut Engine, buffer: &Buffer) {
        let mut wcs = [Wc::default(); BATCH];
        loop {
            let count = engine.poll_cq(self.send_cq, &mut wcs);
            for wc in wcs.iter().take(count) {
                #[expect(clippy::cast_possible_truncation, reason = "it is the handle's number")]
                let _ = engine.destroy_ah(AhHandle::from_c(wc.id.0 as u32));
            }
            if count < BATCH {
                break;
            }
        }
        if engine.qp_state(self.qp) != Some(QpState::Rts) {
            self.restart(engine, buffer);
        }
    }

    fn restart(&self, engine: &mut Engine, buffer: &Buffer) {
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        let _ = engine.modify_qp(self.qp, &reset, AttrMask::STATE);
        let mut wcs = [Wc::default(); BATCH];
        while engine.poll_cq(self.recv_cq, &mut wcs) > 0 {}
        self.bring_up(engine);
        self.post_all(engine, buffer);
    }

    fn send(&self, engine: &mut Engine, attr: AhAttr, mad: &[u8]) -> Result<(), GsiSendError> {
        let ah = engine.create_ah(self.pd, attr).map_err(|error| match error {
            CreateError::Full => GsiSendError::Full,
            _ => GsiSendError::NoPath,
        })?;
        let target = Target::Ud(UdTarget { ah, qpn: Qpn::GSI, qkey: QKey::GSI });
        let wr = SendWr {
            id: WrId(u64::from(ah.to_c())),
            data: Data::Inline(mad),
            flags: SendFlags::empty(),
            target,
            op: SendOp::Send { imm: None },
        };
        engine.post_send(self.qp, &wr, &[]).map_err(|_| {
            let _ = engine.destroy_ah(ah);
            GsiSendError::Full
        })
    }

    fn destroy(&self, engine: &mut Engine, buffer: &Buffer) {
        self.retire_sends(engine, buffer);
        let _ = engine.destroy_qp(self.qp);
        let _ = engine.deregister(self.mr);
        let _ = engine.destroy_cq(self.send_cq);
        let _ = engine.destroy_cq(self.recv_cq);
        let _ = engine.destroy_pd(self.pd);
    }
}

impl Gsi {
    fn with<T>(&self, run: impl FnOnce(&Open) -> T) -> Option<T> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(run)
    }

    /// Whether the NIC is there and works.
    pub fn is_open(&self) -> bool {
        self.with(|open| !open.shared.signals.has_failed()).unwrap_or(false)
    }

    /// Whether [`receive`](Self::receive) may find something.
    pub fn is_readable(&self) -> bool {
        self.user.is_readable()
    }

    /// Takes datagrams that have come, a batch at most, and posts their buffers anew before it
    /// returns. There may be more if it is still [readable](Self::is_readable).
    pub fn receive(&self, datagrams: &mut Vec<GsiDatagram>) {
        self.user.is_readable.store(false, Ordering::Release);
        self.with(|Open { shared, objects, buffer }| {
            let mut core = shared.core();
            let engine = &mut core.engine;
            let mut wcs = [Wc::default(); BATCH];
            let count = engine.poll_cq(objects.recv_cq, &mut wcs);
            for wc in wcs.iter().take(count) {
                let mut bytes = [0; SLOT_LEN];
                #[expect(clippy::cast_possible_truncation, reason = "it numbers a buffer")]
                let read = buffer.read(wc.id.0 as usize * SLOT_LEN, &mut bytes);
                if wc.is_success() && read.is_ok() {
                    datagrams.extend(GsiDatagram::parse(&bytes, wc));
                }
                objects.post_recv(engine, buffer, wc.id.0);
            }
            if count < BATCH {
                // Nothing can come between the last poll and this: the NIC is locked.
                engine.request_notify(objects.recv_cq, Notify::Next);
            } else {
                // Another NIC's thread may have called this: this one's may be asleep.
                self.user.set_readable();
                shared.signals.wake_from_other();
            }
        });
    }

    /// Queues a MAD for queue pair 1 of a peer. [`transmit`](Self::transmit) sends it.
    pub fn send(&self, attr: AhAttr, mad: &[u8]) -> Result<(), GsiSendError> {
        let sent = self.with(|Open { shared, objects, buffer }| {
            if shared.signals.has_failed() {
                return Err(GsiSendError::Closed);
            }
            let mut core = shared.core();
            objects.send(&mut core.engine, attr, mad).or_else(|error| {
                objects.retire_sends(&mut core.engine, buffer);
                if error == GsiSendError::Full {
                    objects.send(&mut core.engine, attr, mad)
                } else {
                    Err(error)
                }
            })
        });
        sent.unwrap_or(Err(GsiSendError::Closed))
    }

    /// Transmits what is queued.
    pub fn transmit(&self) {
        self.with(|Open { shared, objects, buffer }| {
            // Not left to a busy poller: a peer waits, and the program may be about to stop
            // polling.
            shared.transmit(shared.now());
            objects.retire_sends(&mut shared.core().engine, buffer);
        });
    }

    /// Transmits what is queued, also what another thread is about to transmit: the process may end
    /// afterwards.
    pub fn flush(&self) {
        self.with(|open| open.shared.flush());
    }

    /// Returns the GIDs that the port has now, by index. One that is missing is zero.
    pub fn gids(&self) -> Vec<Gid> {
        self.with(|open| open.shared.core().engine.config().gids.clone()).unwrap_or_default()
    }
}

impl Drop for Gsi {
    fn drop(&mut self) {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Open { shared, objects, buffer }) = open
            && !shared.signals.has_failed()
        {
            shared.flush();
            let mut core = shared.core();
            objects.destroy(&mut core.engine, &buffer);
            core.gsi = None;
            drop(core);
            shared.set_gsi_user(None);
            shared.set_qpn_filter();
        }
    }
}

impl std::fmt::Debug for Gsi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gsi").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
