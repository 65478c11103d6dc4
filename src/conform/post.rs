//! Steps as work requests.

use super::Side;
use super::expand::Instance;
use super::normalize::{NO_QPN, Names};
use super::objects::{Objects, Registered, Stop};
use super::scenario::{Action, Flag, Kind, MAIN, Step, access_of};
use crate::device::AnyQp;
use crate::verbs::{
    Access, AttrMask, Data, FlushLevel, FlushPlacement, LKey, MwBind, PostError, QpAttr, QpState,
    RecvWr, SendFlags, SendOp, SendWr, Sge, Target, UdTarget, WrId, transition,
};
use crate::wire::{QKey, Qpn, RKey};

/// Default immediate data.
const IMM: u32 = 0x0102_0304;

/// Distance of the pieces of a message in memory.
const GAP: u64 = 16;

/// Bits of a key that are flipped to make it wrong: one of the part that devices check first, and
/// one of the part that programs choose.
const WRONG: u32 = 0x0040_0040;

/// Objects by which a step is posted.
pub(super) struct Poster<'a> {
    pub(super) objects: &'a mut Objects,
    pub(super) instance: &'a Instance,
    pub(super) names: &'a Names,
    pub(super) side: Side,
}

impl Poster<'_> {
    fn qp(&self, step: &Step) -> Result<&AnyQp, Stop> {
        let qp = self.objects.qps.get(step.qp);
        qp.ok_or_else(|| Stop::Trouble("no such queue pair".to_owned()))
    }

    /// Posts what a step says, once, under this name.
    pub(super) fn post(&mut self, step: &Step, action: Action, id: u64) -> Result<(), Stop> {
        self.qp(step)?;
        let sges = self.sges(step, action)?;
        let posted = match action {
            Action::Recv => self.qp(step)?.post_recv(&RecvWr { id: WrId(id), sges: &sges }),
            Action::SrqRecv => {
                let Some(srq) = &self.objects.srq else {
                    return Err(Stop::Trouble(
                        "srq_recv: `srq_limit` makes a shared queue".to_owned(),
                    ));
                };
                srq.post_recv(&RecvWr { id: WrId(id), sges: &sges })
            }
            _ => self.send(step, action, id, &sges)?,
        };
        match (posted, step.refused) {
            (Ok(()), false) | (Err(_), true) => Ok(()),
            (Ok(()), true) => {
                Err(Stop::Trouble(format!("{action} was taken, and must be refused")))
            }
            (Err(error), false) => Err(Stop::refused(&action.to_string(), error.errno(), &error)),
        }
    }

    fn send(
        &mut self,
        step: &Step,
        action: Action,
        id: u64,
        sges: &[Sge],
    ) -> Result<Result<(), PostError>, Stop> {
        let op = self.operation(step, action)?;
        let mut flags = SendFlags::SIGNALED;
        for flag in &step.flags {
            match flag {
                Flag::Fence => flags |= SendFlags::FENCE,
                Flag::Solicited => flags |= SendFlags::SOLICITED,
                Flag::Inline => flags |= SendFlags::INLINE,
                Flag::Unsignaled => flags -= SendFlags::SIGNALED,
            }
        }
        let inline =
            if flags.contains(SendFlags::INLINE) { Some(self.inline(step, sges)?) } else { None };
        let data = match (&inline, action) {
            (Some(bytes), _) => Data::Inline(bytes),
            (None, Action::Flush | Action::BindMw | Action::LocalInv) => Data::EMPTY,
            (None, _) => Data::Gather(sges),
        };
        let target = self.target(step)?;
        let wr = SendWr { id: WrId(id), data, flags, target, op };
        Ok(self.qp(step)?.post_send(&wr))
    }

    /// Returns the bytes that are sent inline.
    fn inline(&self, step: &Step, sges: &[Sge]) -> Result<Vec<u8>, Stop> {
        let local = self.local(step)?;
        let mut bytes = Vec::new();
        for sge in sges {
            let at = usize::try_from(sge.addr.wrapping_sub(local.mr.addr()));
            let at = at.map_err(|error| Stop::trouble("inline", error))?;
            let end = at.checked_add(sge.length as usize);
            if end.is_none_or(|end| end > local.mr.len()) {
                return Err(Stop::Trouble(format!("inline: not within {}", local.name)));
            }
            let mut piece = vec![0; sge.length as usize];
            local.mr.read(at, &mut piece).map_err(|error| Stop::trouble("inline", error))?;
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    fn target(&self, step: &Step) -> Result<Target, Stop> {
        if self.instance.scenario.kind != Kind::Ud {
            return Ok(Target::Peer);
        }
        let peer = self.names.of(self.side.other()).qps.get(step.qp).map(|(qpn, _)| *qpn);
        let (Some(ah), Some(qpn)) = (self.objects.ahs.get(step.qp), peer) else {
            return Err(Stop::Trouble("no such peer".to_owned()));
        };
        let qpn = if step.wrong_qpn { Qpn::new(NO_QPN) } else { qpn };
        let qkey = step.qkey.map_or_else(|| self.objects.how().qkey, QKey::new);
        Ok(Target::Ud(UdTarget { ah: ah.handle(), qpn, qkey }))
    }

    fn local(&self, step: &Step) -> Result<&Registered, Stop> {
        self.objects.buffer(step.buffer.as_deref().unwrap_or(MAIN))
    }

    fn value(&self, expr: &super::expand::Expr) -> Result<u64, Stop> {
        expr.value(self.instance.values()).map_err(Stop::Trouble)
    }

    fn sges(&self, step: &Step, action: Action) -> Result<Vec<Sge>, Stop> {
        let local = self.local(step)?;
        let lkey = local.mr.lkey();
        let lkey = if step.wrong_lkey { LKey::new(lkey.get() ^ WRONG) } else { lkey };
        let start = match &step.at {
            Some(at) => self.value(at)?,
            None => 0,
        };
        let mut addr = local.mr.addr().wrapping_add(start);
        let lens = match &step.sges {
            Some(lens) => lens.iter().map(|len| self.value(len)).collect::<Result<Vec<_>, _>>()?,
            None => vec![self.len(step, action)?],
        };
        let mut sges = Vec::new();
        for len in lens {
            let length = u32::try_from(len).map_err(|error| Stop::trouble("len", error))?;
            sges.push(Sge { addr, length, lkey });
            addr = addr.wrapping_add(len + GAP);
        }
        // A message without bytes has no pieces: some devices take a piece of none for one of 2
        // GiB.
        if step.sges.is_none() {
            sges.retain(|sge| sge.length > 0);
        }
        Ok(sges)
    }

    /// Returns the number of bytes of a step.
    fn len(&self, step: &Step, action: Action) -> Result<u64, Stop> {
        let datagram = self.instance.scenario.kind == Kind::Ud;
        match (&step.len, action) {
            (Some(len), _) => self.value(len),
            (None, Action::FetchAdd | Action::CompareSwap | Action::AtomicWrite) => Ok(8),
            (None, Action::Recv | Action::SrqRecv) if datagram => Ok(self.instance.size + 40),
            (None, _) => Ok(self.instance.size),
        }
    }

    /// The address and the key at the peer.
    fn remote(&self, step: &Step) -> Result<(u64, RKey), Stop> {
        let peer = self.names.of(self.side.other());
        let name = step.remote.as_deref().unwrap_or(MAIN);
        let main = peer.buffers.iter().find(|place| place.name == MAIN);
        let place = peer.buffers.iter().find(|place| place.name == name).or(main);
        let place = place.ok_or_else(|| Stop::Trouble(format!("the peer has no {name}")))?;
        let key = peer.windows.get(name).copied().unwrap_or(place.rkey);
        let key = if step.wrong_rkey { key ^ WRONG } else { key };
        let to = match &step.to {
            Some(to) => self.value(to)?,
            None => 0,
        };
        Ok((place.addr.wrapping_add(to), RKey::new(key)))
    }

    fn operation(&mut self, step: &Step, action: Action) -> Result<SendOp, Stop> {
        if matches!(action, Action::BindMw | Action::LocalInv) {
            return self.window(step, action);
        }
        let (remote_addr, rkey) = self.remote(step)?;
        let imm = Some(step.imm.unwrap_or(IMM).to_be_bytes());
        let value = step.value.unwrap_or(1);
        Ok(match action {
            Action::Send => SendOp::Send { imm: None },
            Action::SendImm => SendOp::Send { imm },
            Action::SendInv => SendOp::SendWithInv { rkey },
            Action::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Action::WriteImm => SendOp::Write { remote_addr, rkey, imm },
            Action::Read => SendOp::Read { remote_addr, rkey },
            Action::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: value },
            Action::CompareSwap => {
                let compare = step.compare.unwrap_or(0);
                SendOp::CompareSwap { remote_addr, rkey, compare, swap: value }
            }
            Action::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
            Action::Flush => {
                let length = u32::try_from(self.len(step, action)?).unwrap_or(u32::MAX);
                let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::Range);
                SendOp::Flush { remote_addr, rkey, length, placement, level }
            }
            _ => return Err(Stop::Trouble(format!("{action} is nothing to post"))),
        })
    }

    /// Binding a window over a local buffer, or taking it back.
    fn window(&mut self, step: &Step, action: Action) -> Result<SendOp, Stop> {
        let name = step.remote.as_deref().unwrap_or_default();
        let keys = self.objects.window_keys();
        let key = *keys.get(name).ok_or_else(|| Stop::Trouble(format!("no window {name}")))?;
        if action == Action::LocalInv {
            return Ok(SendOp::LocalInv { rkey: RKey::new(key) });
        }
        let at = match &step.at {
            Some(at) => self.value(at)?,
            None => 0,
        };
        let (mr, addr) = {
            let local = self.local(step)?;
            (local.mr.lkey(), local.mr.addr().wrapping_add(at))
        };
        let everything = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let access = step.access.as_deref().map_or(Ok(everything), access_of);
        let access = access.map_err(Stop::Trouble)?;
        let length = self.len(step, action)?;
        let next = key & !0xff | key.wrapping_add(1) & 0xff;
        if let Some((.., given)) = self.objects.windows.get_mut(name) {
            *given = next;
        }
        let bind = MwBind { mr, addr, length, access };
        Ok(SendOp::BindMw { mw: RKey::new(key), rkey: RKey::new(next), bind })
    }

    /// Takes a queue pair to another state.
    pub(super) fn modify(&self, step: &Step) -> Result<(), Stop> {
        let qp = self.qp(step)?;
        let wanted = step.state.as_deref().unwrap_or_default();
        let all = QpState::ALL.iter().copied();
        let state = all.into_iter().find(|state| state.text().eq_ignore_ascii_case(wanted));
        let state = state.ok_or_else(|| Stop::Trouble(format!("there is no state {wanted}")))?;
        let how = self.objects.how();
        let attr = QpAttr {
            qp_state: state,
            qp_access_flags: how.access,
            qkey: how.qkey,
            ..QpAttr::default()
        };
        let from = qp.state().unwrap_or(QpState::Reset);
        let way = transition::find(qp.qp_type(), from, state)
            .map_or(AttrMask::empty(), |way| way.required);
        let done = qp.modify(&attr, way | AttrMask::STATE);
        done.map_err(|error| Stop::trouble("modify", error))
    }
}
