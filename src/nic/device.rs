//! [`SoftNic`] as a [`Device`].

use std::any::Any;
use std::io;
use std::sync::Arc;

use super::failure::Refusal;
use super::{EventQueue, SoftNic, SpinPolicy};
use crate::device::sealed::Sealed;
use crate::device::{Channel, Device, Events};
use crate::engine::{Engine, Limits};
use crate::link::GROUPS_MAX;
use crate::link::interface::speed;
use crate::time::Instant;
use crate::verbs::{
    AhAttr, AhHandle, AsyncEvent, AtomicCap, AttrMask, CqHandle, CreateError, DestroyError,
    DeviceAttr, DeviceCaps, Guid, KeyError, LinkRate, ModifyError, MrAttr, MrHandle, MwHandle,
    MwType, Notify, PdHandle, PhysState, PortAttr, PortState, PostError, QpAttr, QpCreate,
    QpHandle, QpState, QpType, RecvWr, SendWr, SrqCreate, SrqHandle, Wc, XrcdHandle,
};
use crate::wire::{Gid, Psn, Qpn, RKey, XrcSrqn};

impl Sealed for SoftNic {}

impl Device for SoftNic {
    fn name(&self) -> &str {
        &self.port.name
    }

    fn query_device(&self) -> io::Result<DeviceAttr> {
        let guid = self.guid();
        let core = self.shared.core();
        let config = core.engine.config();
        let attr = device_attr(&config.limits);
        let max_pkeys = u16::try_from(config.pkeys.len()).unwrap_or(u16::MAX);
        Ok(DeviceAttr { node_guid: guid, sys_image_guid: guid, max_pkeys, ..attr })
    }

    fn query_port(&self) -> io::Result<PortAttr> {
        let (state, phys_state) = match self.shared.refresh_port() {
            true => (PortState::Active, PhysState::LinkUp),
            false => (PortState::Down, PhysState::Disabled),
        };
        let speed = self.port.interface.as_deref().and_then(speed);
        let LinkRate { width: active_width, speed: active_speed } = LinkRate::of_ethernet(speed);
        let core = self.shared.core();
        let config = core.engine.config();
        Ok(PortAttr {
            active_width,
            active_speed,
            state,
            phys_state,
            active_mtu: config.port_mtu,
            gid_tbl_len: u32::try_from(config.gids.len()).unwrap_or(u32::MAX),
            pkey_tbl_len: u16::try_from(config.pkeys.len()).unwrap_or(u16::MAX),
            ..PortAttr::default()
        })
    }

    fn gids(&self) -> Vec<Gid> {
        self.shared.core().engine.config().gids.clone()
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        let engine = self.counters();
        let engine = engine.iter().map(|(counter, count)| (counter.name().to_owned(), count));
        let link = self.link_counters().into_iter();
        engine.chain(link.map(|(name, count)| (format!("link_{name}"), count))).collect()
    }

    fn broken(&self) -> Option<io::Error> {
        let core = self.shared.core();
        // The progress thread is about to set it.
        if core.broken.is_none() && self.has_failed() {
            return Some(io::Error::other("a thread panicked while it worked on the NIC"));
        }
        core.broken.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }

    fn async_events(&self) -> &dyn Events<AsyncEvent> {
        &*self.async_events
    }

    fn create_pd(&self) -> Result<PdHandle, CreateError> {
        self.command(Engine::create_pd)
    }

    fn destroy_pd(&self, pd: PdHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_pd(pd))
    }

    fn register_region(&self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        self.command(|engine| engine.register(pd, attr))
    }

    fn deregister(&self, mr: MrHandle) -> Result<(), KeyError> {
        if self.has_failed() {
            // The engine does not access its memory any more.
            return Ok(());
        }
        self.command(|engine| engine.deregister(mr))?;
        self.shared.settle_references();
        Ok(())
    }

    fn create_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        self.command(|engine| engine.create_mw(pd, kind))
    }

    fn mw_key(&self, mw: MwHandle) -> Option<RKey> {
        self.shared.core().engine.mw_key(mw)
    }

    fn destroy_mw(&self, mw: MwHandle) -> Result<(), KeyError> {
        if self.has_failed() {
            return Ok(());
        }
        self.command(|engine| engine.destroy_mw(mw))
    }

    fn create_cq(&self, capacity: usize) -> Result<CqHandle, CreateError> {
        self.command(|engine| engine.create_cq(capacity))
    }

    fn create_channel(&self) -> io::Result<Channel> {
        Ok(Channel(Arc::new(EventQueue::<CqHandle>::driving(Arc::downgrade(&self.shared))?)))
    }

    fn create_cq_on(&self, capacity: usize, channel: &Channel) -> Result<CqHandle, CreateError> {
        let channel: Arc<dyn Any + Send + Sync> = channel.0.clone();
        let Ok(channel) = channel.downcast::<EventQueue<CqHandle>>() else {
            return Err(CreateError::Invalid("the channel is another device's"));
        };
        let mut core = self.shared.core();
        if self.has_failed() {
            return Refusal::refused();
        }
        let cq = core.engine.create_cq(capacity)?;
        core.channels.insert(cq, channel);
        Ok(cq)
    }

    fn create_timed_cq_on(
        &self,
        capacity: usize,
        channel: &Channel,
    ) -> Result<CqHandle, CreateError> {
        let cq = self.create_cq_on(capacity, channel)?;
        self.enable_timestamps(cq)?;
        Ok(cq)
    }

    fn poll_cq_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let taken = Self::poll_cq_timed(self, cq);
        SpinPolicy::polled(usize::from(taken.is_some()));
        taken
    }

    fn request_notify(&self, cq: CqHandle, notify: Notify) {
        self.command(|engine| engine.request_notify(cq, notify));
        self.shared.arm();
    }

    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DestroyError> {
        let mut core = self.shared.core();
        if self.has_failed() {
            return Refusal::refused();
        }
        core.engine.destroy_cq(cq)?;
        core.channels.remove(&cq);
        Ok(())
    }

    fn poll_cq(&self, cq: CqHandle, out: &mut [Wc]) -> usize {
        let count = self.shared.poll(|core| core.engine.poll_cq(cq, out));
        SpinPolicy::polled(count);
        count
    }

    fn create_xrcd(&self) -> Result<XrcdHandle, CreateError> {
        self.command(Engine::create_xrcd)
    }

    fn create_srq(&self, pd: PdHandle, create: SrqCreate) -> Result<SrqHandle, CreateError> {
        self.command(|engine| engine.create_srq(pd, create))
    }

    fn srq_number(&self, srq: SrqHandle) -> XrcSrqn {
        self.shared.core().engine.srq_number(srq)
    }

    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_srq(srq))
    }

    fn create_ah(&self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError> {
        self.command(|engine| engine.create_ah(pd, attr))
    }

    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_ah(ah))
    }

    fn create_qp(&self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError> {
        let qp = self.command(|engine| engine.create_qp(pd, create))?;
        self.shared.set_qpn_filter();
        Ok(qp)
    }

    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        self.command(|engine| engine.modify_qp(qp, attr, mask))?;
        if mask.contains(AttrMask::STATE) && matches!(attr.qp_state, QpState::Reset | QpState::Err)
        {
            self.shared.settle_references();
        }
        Ok(())
    }

    fn offers_selective_repeat(&self) -> bool {
        self.shared.core().engine.config().recovery.is_selective()
    }

    fn agree_selective_repeat(&self, qp: QpHandle, agreed: bool) -> bool {
        self.shared.core().engine.agree_selective_repeat(qp, agreed)
    }

    fn reorder_span(&self) -> u32 {
        self.shared.core().engine.config().reorder_span()
    }

    fn agree_spraying(&self, qp: QpHandle, agreed: bool) -> bool {
        self.shared.core().engine.agree_spraying(qp, agreed)
    }

    fn query_qp(&self, qp: QpHandle) -> Option<QpAttr> {
        self.shared.core().engine.query_qp(qp)
    }

    fn is_send_queue_empty(&self, qp: QpHandle) -> Option<bool> {
        self.shared.core().engine.is_send_queue_empty(qp)
    }

    fn qp_number(&self, qp: QpHandle) -> Option<Qpn> {
        self.shared.core().engine.qp_number(qp)
    }

    fn initial_psn(&self, qp: QpHandle) -> Option<Psn> {
        self.shared.core().engine.initial_psn(qp)
    }

    fn qp_state(&self, qp: QpHandle) -> Option<QpState> {
        self.shared.core().engine.qp_state(qp)
    }

    fn destroy_qp(&self, qp: QpHandle) -> Result<(), DestroyError> {
        self.steer(|steering, engine| steering.destroy_qp(engine, qp))?;
        self.shared.settle_references();
        self.shared.set_qpn_filter();
        Ok(())
    }

    fn attach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError> {
        self.shared.attach(qp, group)
    }

    fn detach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError> {
        self.shared.detach(qp, group)
    }

    fn post_sends(&self, qp: QpHandle, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post(|engine| {
            for (at, wr) in wrs.iter().enumerate() {
                engine.post_send(qp, wr, &[]).map_err(|error| (at, error))?;
            }
            Ok(())
        })
    }

    fn destroy_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_xrcd(xrcd))
    }

    fn modify_srq(
        &self,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), CreateError> {
        self.command(|engine| engine.modify_srq(srq, max_wr, limit))
    }

    fn qp_kind(&self, qp: QpHandle) -> Option<QpType> {
        self.shared.core().engine.qp_kind(qp)
    }

    fn post_recvs(&self, qp: QpHandle, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        let mut core = self.shared.core();
        if self.has_failed() {
            return Refusal::refused();
        }
        for (at, wr) in wrs.iter().enumerate() {
            core.engine.post_recv(qp, wr).map_err(|error| (at, error))?;
        }
        core.deliver();
        core.keep_work();
        Ok(())
    }

    fn post_srq_recv(&self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut core = self.shared.core();
        core.keep_work();
        if self.has_failed() { Refusal::refused() } else { core.engine.post_srq_recv(srq, wr) }
    }
}

impl SoftNic {
    /// The node GUID: the lower half of the port's first GID.
    fn guid(&self) -> Guid {
        let gid = self.port.gids.first().copied().unwrap_or_default();
        let mut guid = Guid::default();
        guid.0.copy_from_slice(&gid.0[8..]);
        guid
    }
}

/// Responder resources of a device over all queue pairs, as rxe has it. More are not refused: they
/// are limited by memory.
const RESPONDER_RESOURCES_MAX: u32 = 0x3_f000;

/// Vendor id of software RNICs, as rxe has it.
const NO_VENDOR: u32 = 0xff_ffff;

/// Returns the attributes of a device with these limits.
fn device_attr(limits: &Limits) -> DeviceAttr {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let mut fw_ver = [0; 64];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    fw_ver[..version.len()].copy_from_slice(version);
    DeviceAttr {
        fw_ver,
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: NO_VENDOR,
        max_qp: number(limits.qps),
        max_qp_wr: limits.wrs,
        device_cap_flags: DeviceCaps::BAD_QKEY_CNTR
            | DeviceCaps::CURR_QP_STATE_MOD
            | DeviceCaps::RC_RNR_NAK_GEN
            | DeviceCaps::SRQ_RESIZE
            | DeviceCaps::MEM_WINDOW
            | DeviceCaps::XRC
            | DeviceCaps::MEM_MGT_EXTENSIONS
            | DeviceCaps::MEM_WINDOW_TYPE_2B,
        max_sge: limits.sges,
        max_sge_rd: limits.sges,
        max_cq: number(limits.cqs),
        max_cqe: number(limits.cqes),
        max_mr: number(limits.keys),
        max_pd: number(limits.pds),
        max_qp_rd_atom: u32::from(limits.rd_atomic),
        max_res_rd_atom: u32::from(limits.rd_atomic)
            .saturating_mul(number(limits.qps))
            .min(RESPONDER_RESOURCES_MAX),
        max_qp_init_rd_atom: u32::from(limits.rd_atomic),
        atomic_cap: AtomicCap::Glob,
        max_mw: number(limits.keys),
        max_mcast_grp: number(limits.qps.min(GROUPS_MAX)),
        max_mcast_qp_attach: number(limits.group_members),
        max_total_mcast_qp_attach: number(limits.qps.saturating_mul(limits.group_members)),
        max_ah: number(limits.ahs),
        max_srq: number(limits.srqs),
        max_srq_wr: limits.wrs,
        max_srq_sge: limits.sges,
        ..DeviceAttr::default()
    }
}
