//! The objects of one side: created before an instance, destroyed after it.

use std::collections::BTreeMap;

use super::Side;
use super::control::{Reach, RemoteBuffer};
use super::expand::Instance;
use super::memory;
use super::scenario::{ALL_RIGHTS, Kind, QpSpec, access_of};
use crate::device::{Ah, AnyQp, Context, Cq, Device, Mr, Mw, Pd, Srq};
use crate::memory::Buffer;
use crate::verbs::{
    AckTimeout, AhAttr, Connect, Endpoint, Errno, Mtu, MwType, QpType, RetryCount, RnrRetry,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, QKey};

/// Reason for which a side cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The device does not support an operation.
    Unable(String),
    /// An operation failed.
    Trouble(String),
}

impl Stop {
    /// Error of an operation that a device refused, with the error number that C programs get.
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

/// Capacity of a completion queue.
const CQ_ROOM: usize = super::scenario::limits::COMPLETIONS_MAX;

/// Capacity of a shared receive queue.
const SRQ_ROOM: u32 = 128;

/// A registered buffer.
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) mr: Mr,
}

/// The objects of one side.
pub(super) struct Objects {
    // They are destroyed in this order. A window that is bound depends on its queue pair: rxe waits
    // a minute for it if the queue pair goes first, and then gives up both.
    /// Windows with their types and the keys that they were last given.
    pub(super) windows: BTreeMap<String, (Mw, MwType, u32)>,
    pub(super) qps: Vec<AnyQp>,
    pub(super) ahs: Vec<Ah>,
    pub(super) srq: Option<Srq>,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) buffers: Vec<Registered>,
    pds: [Pd; 2],
    pub(super) kind: QpType,
    gid: (u8, Gid),
    how: Connect,
}

impl Objects {
    /// Creates all objects of a side.
    pub(super) fn new(
        device: &Context,
        gid_index: Option<u8>,
        instance: &Instance,
        side: Side,
    ) -> Result<Self, Stop> {
        let spec = instance.scenario.side(side);
        let gid = choose_gid(device.device(), gid_index)?;
        let how = connect_attr(instance, side, &spec.qp.or(&instance.scenario.qp))?;
        let created = |error| Stop::trouble("protection domains and completion queues", error);
        let pd = || device.create_pd().map_err(created);
        let cq = || device.create_cq(CQ_ROOM).map_err(created);
        let mut objects = Self {
            windows: BTreeMap::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            srq: None,
            send_cq: cq()?,
            recv_cq: cq()?,
            buffers: Vec::new(),
            pds: [pd()?, pd()?],
            kind: match instance.scenario.kind {
                Kind::Rc => QpType::Rc,
                Kind::Uc => QpType::Uc,
                Kind::Ud => QpType::Ud,
            },
            gid,
            how,
        };
        objects.register(instance, side)?;
        let [own, _] = &objects.pds;
        for window in &spec.windows {
            let kind = if window.kind == 1 { MwType::Type1 } else { MwType::Type2 };
            let made = own.create_mw(kind);
            let made =
                made.map_err(|error| Stop::refused("memory window", error.errno(), &error))?;
            let key = made.rkey().map_or(0, |key| key.get());
            objects.windows.insert(window.name.clone(), (made, kind, key));
        }
        let refused = |what: &'static str| {
            move |error: crate::verbs::CreateError| Stop::refused(what, error.errno(), &error)
        };
        if let Some(limit) = spec.srq_limit {
            let srq = own.create_srq(SRQ_ROOM, 4).map_err(refused("SRQ"))?;
            if limit > 0 {
                srq.set_limit(limit).map_err(refused("SRQ"))?;
            }
            objects.srq = Some(srq);
        }
        for _ in 0..instance.scenario.qps {
            let mut qp = own.qp(&objects.send_cq).recv_cq(&objects.recv_cq);
            if let Some(srq) = &objects.srq {
                qp = qp.srq(srq);
            }
            objects.qps.push(qp.build_any(objects.kind).map_err(refused("queue pair"))?);
        }
        Ok(objects)
    }

    fn register(&mut self, instance: &Instance, side: Side) -> Result<(), Stop> {
        for spec in instance.scenario.buffers(side) {
            let bytes = memory::initial(instance, side, &spec.name).map_err(Stop::Trouble)?;
            let buffer = Buffer::from_bytes(&bytes);
            let access = spec.access.as_deref().map_or(Ok(ALL_RIGHTS), access_of);
            let access = access.map_err(Stop::Trouble)?;
            let [own, other] = &self.pds;
            let pd = if spec.stranger { other } else { own };
            let mr = pd.register(&buffer, access);
            let mr = mr.map_err(|error| Stop::refused("memory region", error.errno(), &error))?;
            self.buffers.push(Registered { name: spec.name, mr });
        }
        Ok(())
    }

    /// Returns the numbers, addresses and keys that the peer needs.
    pub(super) fn reach(&self) -> Reach {
        let buffers = self.buffers.iter().map(|it| RemoteBuffer {
            name: it.name.clone(),
            addr: it.mr.addr(),
            len: it.mr.len() as u64,
            rkey: it.mr.rkey().get(),
        });
        let psn = self.how.psn.unwrap_or_default();
        Reach {
            gid: self.gid.1,
            qps: self.qps.iter().map(|qp| (qp.number(), psn)).collect(),
            buffers: buffers.collect(),
            windows: self.window_keys(),
            cm_port: None,
        }
    }

    /// The keys of its windows as they are.
    pub(super) fn window_keys(&self) -> BTreeMap<String, u32> {
        let key = |(mw, kind, given): &(Mw, MwType, u32)| match kind {
            // The device chooses, or has been told, and knows either way.
            MwType::Type1 => mw.rkey().map_or(*given, |key| key.get()),
            MwType::Type2 => *given,
        };
        self.windows.iter().map(|(name, window)| (name.clone(), key(window))).collect()
    }

    /// Takes every queue pair to RTS.
    pub(super) fn connect(&mut self, peer: &Reach) -> Result<(), Stop> {
        for (at, qp) in self.qps.iter().enumerate() {
            let &(qpn, psn) =
                peer.qps.get(at).ok_or_else(|| Stop::Trouble("no peer".to_owned()))?;
            let end = Endpoint { gid: peer.gid, qpn, psn };
            let how = Connect { gid_index: self.gid.0, ..self.how };
            let done = if self.kind == QpType::Ud {
                let attr = AhAttr::new(peer.gid, self.gid.0);
                let [own, _] = &self.pds;
                let ah = own.create_ah(attr);
                self.ahs.push(ah.map_err(|error| Stop::trouble("address handle", error))?);
                qp.open_datagram(&how)
            } else {
                qp.connect(&end, &how)
            };
            done.map_err(|error| Stop::trouble("connecting", error))?;
        }
        Ok(())
    }

    /// The attributes that its queue pairs were brought up with.
    pub(super) fn how(&self) -> &Connect {
        &self.how
    }

    /// Returns the buffer of this name.
    pub(super) fn buffer(&self, name: &str) -> Result<&Registered, Stop> {
        let found = self.buffers.iter().find(|buffer| buffer.name == name);
        found.ok_or_else(|| Stop::Trouble(format!("there is no buffer {name}")))
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

/// Returns the attributes by which the queue pairs of a side are connected. They are patient, so
/// that a busy machine does not look like loss.
fn connect_attr(instance: &Instance, side: Side, spec: &QpSpec) -> Result<Connect, Stop> {
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
