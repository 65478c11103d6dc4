//! The objects of one side: created before an instance, destroyed after it.

use std::collections::BTreeMap;

use super::Side;
use super::control::{Place, Reach};
use super::expand::Instance;
use super::memory;
use super::scenario::{ALL_RIGHTS, Kind, QpSpec, access_of};
use crate::device::Device;
use crate::memory::Buffer;
use crate::verbs::{
    AckTimeout, AhAttr, AhHandle, Connect, CqHandle, Endpoint, Errno, MrHandle, Mtu, MwHandle,
    MwType, PdHandle, QpCap, QpCreate, QpHandle, QpInitAttr, QpType, RetryCount, RnrRetry,
    SrqCreate, SrqHandle,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, QKey, Qpn};

/// Why a side cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The device does not do this.
    Unable(String),
    /// Something went wrong.
    Trouble(String),
}

impl Stop {
    /// Something that a device refused, by the number that C programs get.
    pub(super) fn refused(what: &str, errno: Errno, error: &dyn std::fmt::Display) -> Self {
        let text = format!("{what}: {error}");
        if errno == Errno::EOPNOTSUPP { Self::Unable(text) } else { Self::Trouble(text) }
    }

    pub(super) fn trouble(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Trouble(format!("{what}: {error}"))
    }
}

/// Default first PSN of a requester, and of a responder.
const PSN: [u32; 2] = [100, 5000];

/// How many completions a queue holds.
const CQ_ROOM: usize = super::scenario::limits::COMPLETIONS_MAX;

/// How many receives a shared queue holds.
const SRQ_ROOM: u32 = 128;

/// A registered buffer.
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) buffer: Buffer,
    pub(super) mr: MrHandle,
}

/// The objects of one side.
pub(super) struct Objects<'d> {
    pub(super) device: &'d dyn Device,
    pub(super) kind: QpType,
    gid: (u8, Gid),
    how: Connect,
    pds: [PdHandle; 2],
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq: Option<SrqHandle>,
    pub(super) qps: Vec<QpHandle>,
    pub(super) numbers: Vec<Qpn>,
    pub(super) buffers: Vec<Registered>,
    /// Windows with their types and the keys that they were last given.
    pub(super) windows: BTreeMap<String, (MwHandle, MwType, u32)>,
    pub(super) ahs: Vec<AhHandle>,
}

impl<'d> Objects<'d> {
    /// Makes all that a side needs.
    pub(super) fn new(
        device: &'d dyn Device,
        gid_index: Option<u8>,
        instance: &Instance,
        side: Side,
    ) -> Result<Self, Stop> {
        let create = |what: &'static str| {
            move |error: crate::verbs::CreateError| Stop::refused(what, error.errno(), &error)
        };
        let spec = instance.scenario.side(side);
        // What can fail without the device comes first: from here on everything that was made is destroyed again.
        let gid = choose_gid(device, gid_index)?;
        let how = manner(instance, side, &spec.qp.or(&instance.scenario.qp))?;
        let pds = [device.create_pd(), device.create_pd()];
        let cqs = [device.create_cq(CQ_ROOM), device.create_cq(CQ_ROOM)];
        let (&[Ok(own), Ok(other)], &[Ok(send_cq), Ok(recv_cq)]) = (&pds, &cqs) else {
            for pd in pds.into_iter().flatten() {
                let _ = device.destroy_pd(pd);
            }
            for cq in cqs.into_iter().flatten() {
                let _ = device.destroy_cq(cq);
            }
            return Err(Stop::Trouble("no protection domains and completion queues".to_owned()));
        };
        let mut objects = Self {
            device,
            kind: match instance.scenario.kind {
                Kind::Rc => QpType::Rc,
                Kind::Uc => QpType::Uc,
                Kind::Ud => QpType::Ud,
            },
            gid,
            how,
            pds: [own, other],
            send_cq,
            recv_cq,
            srq: None,
            qps: Vec::new(),
            numbers: Vec::new(),
            buffers: Vec::new(),
            windows: BTreeMap::new(),
            ahs: Vec::new(),
        };
        objects.register(instance, side)?;
        for window in &spec.windows {
            let kind = if window.kind == 1 { MwType::Type1 } else { MwType::Type2 };
            let made = device.create_mw(own, kind);
            let made =
                made.map_err(|error| Stop::refused("memory window", error.errno(), &error))?;
            let key = device.mw_key(made).map_or(0, |key| key.get());
            objects.windows.insert(window.name.clone(), (made, kind, key));
        }
        if let Some(limit) = spec.srq_limit {
            let create = SrqCreate { max_wr: SRQ_ROOM, max_sge: 4, limit, xrc: None };
            let made = device.create_srq(own, create);
            objects.srq = Some(made.map_err(|error| Stop::refused("SRQ", error.errno(), &error))?);
        }
        for _ in 0..instance.scenario.qps {
            objects.create_qp().map_err(create("queue pair"))?;
        }
        Ok(objects)
    }

    fn register(&mut self, instance: &Instance, side: Side) -> Result<(), Stop> {
        for spec in instance.scenario.buffers(side) {
            let bytes = memory::initial(instance, side, &spec.name).map_err(Stop::Trouble)?;
            let buffer = Buffer::from_bytes(&bytes);
            let access = spec.access.as_deref().map_or(Ok(ALL_RIGHTS), access_of);
            let access = access.map_err(Stop::Trouble)?;
            let [own, other] = self.pds;
            let pd = if spec.stranger { other } else { own };
            let mr = self.device.register(pd, &buffer, access);
            let mr = mr.map_err(|error| Stop::refused("memory region", error.errno(), &error))?;
            self.buffers.push(Registered { name: spec.name, buffer, mr });
        }
        Ok(())
    }

    fn create_qp(&mut self) -> Result<(), crate::verbs::CreateError> {
        let init = QpInitAttr { qp_type: self.kind, cap: QpCap::ORDINARY, sq_sig_all: false };
        let (send_cq, recv_cq, srq) = (self.send_cq, self.recv_cq, self.srq);
        let create = QpCreate { init, send_cq, recv_cq, srq, xrcd: None };
        let [own, _] = self.pds;
        let qp = self.device.create_qp(own, create)?;
        self.qps.push(qp);
        self.numbers.push(self.device.qp_number(qp).unwrap_or_default());
        Ok(())
    }

    /// How they are called, for the peer.
    pub(super) fn reach(&self) -> Reach {
        let buffers = self.buffers.iter().map(|it| Place {
            name: it.name.clone(),
            addr: it.buffer.addr(),
            len: it.buffer.len() as u64,
            rkey: it.mr.rkey().get(),
        });
        Reach {
            gid: self.gid.1.0,
            qps: self
                .numbers
                .iter()
                .map(|qpn| (qpn.get(), self.how.psn.unwrap_or_default().get()))
                .collect(),
            buffers: buffers.collect(),
            windows: self.window_keys(),
        }
    }

    /// The keys of its windows as they are.
    pub(super) fn window_keys(&self) -> BTreeMap<String, u32> {
        let key = |(mw, kind, given): &(MwHandle, MwType, u32)| match kind {
            // The device chooses, or has been told, and knows either way.
            MwType::Type1 => self.device.mw_key(*mw).map_or(*given, |key| key.get()),
            MwType::Type2 => *given,
        };
        self.windows.iter().map(|(name, window)| (name.clone(), key(window))).collect()
    }

    /// Takes every queue pair to RTS.
    pub(super) fn connect(&mut self, peer: &Reach) -> Result<(), Stop> {
        for (at, &qp) in self.qps.iter().enumerate() {
            let &(qpn, psn) =
                peer.qps.get(at).ok_or_else(|| Stop::Trouble("no peer".to_owned()))?;
            let end = Endpoint { gid: Gid(peer.gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) };
            let how = Connect { gid_index: self.gid.0, ..self.how };
            let done = if self.kind == QpType::Ud {
                let attr = AhAttr::new(Gid(peer.gid), self.gid.0);
                let [own, _] = self.pds;
                let ah = self.device.create_ah(own, attr);
                self.ahs.push(ah.map_err(|error| Stop::trouble("address handle", error))?);
                self.device.open_datagram(qp, &how)
            } else {
                self.device.connect(qp, &end, &how)
            };
            done.map_err(|error| Stop::trouble("connecting", error))?;
        }
        Ok(())
    }

    /// The attributes that its queue pairs were brought up with.
    pub(super) fn how(&self) -> &Connect {
        &self.how
    }

    /// The buffer of this name.
    pub(super) fn buffer(&self, name: &str) -> Result<&Registered, Stop> {
        let found = self.buffers.iter().find(|buffer| buffer.name == name);
        found.ok_or_else(|| Stop::Trouble(format!("there is no buffer {name}")))
    }
}

impl Drop for Objects<'_> {
    /// In the order in which they depend on each other. What cannot be destroyed is left to the device. A window that is
    /// bound depends on its queue pair: rxe waits a minute for it if the queue pair goes first, and then gives up both.
    fn drop(&mut self) {
        let device = self.device;
        for (mw, ..) in self.windows.values() {
            let _ = device.destroy_mw(*mw);
        }
        for qp in &self.qps {
            let _ = device.destroy_qp(*qp);
        }
        for ah in &self.ahs {
            let _ = device.destroy_ah(*ah);
        }
        if let Some(srq) = self.srq {
            let _ = device.destroy_srq(srq);
        }
        for cq in [self.send_cq, self.recv_cq] {
            let _ = device.destroy_cq(cq);
        }
        for buffer in &self.buffers {
            let _ = device.deregister(buffer.mr);
        }
        for pd in self.pds {
            let _ = device.destroy_pd(pd);
        }
    }
}

/// The address to use: the one that was asked for, or the first of IPv4, or the first.
fn choose_gid(device: &dyn Device, index: Option<u8>) -> Result<(u8, Gid), Stop> {
    let gids = device.gids();
    let used = |gid: &Gid| *gid != Gid::default();
    let chosen = match index {
        Some(index) => Some(usize::from(index)),
        None => {
            let v4 = gids.iter().position(|gid| used(gid) && gid.to_ipv4().is_some());
            v4.or_else(|| gids.iter().position(used))
        }
    };
    let found = chosen.and_then(|at| Some((u8::try_from(at).ok()?, *gids.get(at)?)));
    found.filter(|(_, gid)| used(gid)).ok_or_else(|| {
        Stop::Trouble(format!(
            "{} has no address{}",
            device.name(),
            if index.is_some() { " of this index" } else { "" }
        ))
    })
}

/// How the queue pairs of a side are connected. They are patient, so that a busy machine does not look like loss.
fn manner(instance: &Instance, side: Side, spec: &QpSpec) -> Result<Connect, Stop> {
    let usual = Connect::default();
    let access = spec.access.as_deref().map_or(Ok(usual.access), access_of);
    let mtu = Mtu::from_bytes(instance.mtu as usize);
    let mtu = mtu.ok_or_else(|| Stop::Trouble(format!("there is no MTU of {}", instance.mtu)))?;
    let [requester, responder] = PSN;
    let psn = if side == Side::Requester { requester } else { responder };
    Ok(Connect {
        mtu,
        access: access.map_err(Stop::Trouble)?,
        rd_atomic: spec.rd_atomic.unwrap_or(4),
        timeout: AckTimeout(Bits::low(spec.timeout.unwrap_or(19))),
        retry_cnt: RetryCount(Bits::low(spec.retry_cnt.unwrap_or(6))),
        rnr_retry: RnrRetry(Bits::low(spec.rnr_retry.unwrap_or(6))),
        min_rnr_timer: RnrTimer(Bits::low(spec.min_rnr_timer.unwrap_or(12))),
        qkey: spec.qkey.map_or(usual.qkey, QKey::new),
        psn: Some(Psn::new(spec.psn.unwrap_or(psn))),
        ..usual
    })
}
