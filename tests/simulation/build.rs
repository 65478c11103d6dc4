//! Construction of a story's objects in engines.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use roce::engine::{
    Batch, Config, CqHandle, EarlyTimeouts, Engine, MrAttr, QpCreate, QpHandle, Recovery,
    ReorderThreshold, SrqCreate,
};
use roce::link::fault::Rule;
use roce::memory::Buffer;
use roce::verbs::{
    AckTimeout, AhAttr, QpAttr, QpCap, QpInitAttr, QpState, QpType, RetryCount, RnrRetry,
    transition,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Gid, Psn, QKey};

use super::author::{INLINE, OPS_MAX};
use super::dice::Dice;
use super::names::BASE;
use super::plan::{ALL, Key, Mode, Plan};
use super::world::{EndAction, Nic, Runner, World, group};

impl World<'_> {
    pub fn register(&mut self) {
        for key in &self.plan.keys {
            match key {
                Key::Region { nic, rights, bytes } => {
                    let buffer = Buffer::from_bytes(bytes);
                    let Nic { engine, pd, .. } = &mut self.net.hosts[*nic];
                    let attr = MrAttr { region: buffer.region(), base: BASE, access: *rights };
                    self.names.add_region(engine.register(*pd, attr).unwrap());
                    self.buffers.push(buffer);
                }
                Key::Window { nic, kind } => {
                    let Nic { engine, pd, .. } = &mut self.net.hosts[*nic];
                    let window = engine.create_mw(*pd, *kind).unwrap();
                    self.names.add_window(engine.mw_key(window).unwrap());
                    self.buffers.push(Buffer::new(0));
                }
            }
        }
    }

    pub fn share(&mut self) {
        for plan in &self.plan.srqs {
            let Nic { engine, pd, xrcd, .. } = &mut self.net.hosts[plan.nic];
            let made = (!plan.recvs.is_empty()).then(|| {
                let cq = engine.create_cq(plan.recvs.len()).unwrap();
                let (max_wr, xrc) = (plan.recvs.len() as u32, plan.xrc.then_some((*xrcd, cq)));
                let create = SrqCreate { max_wr, max_sge: 3, limit: 0, xrc };
                (engine.create_srq(*pd, create).unwrap(), cq)
            });
            self.srqs.push(made);
        }
    }

    /// Makes both ends of a link and connects them.
    pub fn connect(&mut self, number: usize) {
        let link = &self.plan.links[number];
        let runners = [0, 1].map(|side| self.runner(number, side));
        for side in [0, 1] {
            let (end, peer) = (&link.ends[side], &link.ends[1 - side]);
            let attr = QpAttr {
                qp_access_flags: end.rights,
                path_mtu: link.mtu,
                dest_qp_num: runners[1 - side].qpn,
                rq_psn: Psn::new(peer.psn),
                sq_psn: Psn::new(end.psn),
                ah_attr: AhAttr::new(self.net.hosts[peer.nic].gid, 0),
                max_rd_atomic: link.reads,
                max_dest_rd_atomic: link.reads,
                min_rnr_timer: RnrTimer(Bits::low(4)),
                // Longer than a full queue takes to drain at the lowest rate, or the retries are
                // used up for no fault of the engine's.
                timeout: AckTimeout(Bits::low(13)),
                retry_cnt: RetryCount::MAX,
                rnr_retry: RnrRetry(Bits::low(end.rnr_retry)),
                ..QpAttr::default()
            };
            let engine = &mut self.net.hosts[end.nic].engine;
            engine.agree_selective_repeat(runners[side].qp, true);
            bring_up(engine, runners[side].qp, &attr);
            if end.cut_off {
                self.cut_off.push(runners[side].qpn);
            }
            if let Some((at, until)) = end.drain {
                self.agenda.push((self.start.saturating_add(at), number, side, EndAction::Drain));
                self.agenda.push((
                    self.start.saturating_add(until),
                    number,
                    side,
                    EndAction::Resume,
                ));
            }
            if let Some((at, kill)) = end.kill {
                self.agenda.push((
                    self.start.saturating_add(at),
                    number,
                    side,
                    EndAction::Kill(kill),
                ));
            }
        }
        for &(to, offset, nth, action) in &link.rules {
            // Requests to one end have the PSNs of the other, and so have their answers.
            for side in [0, 1] {
                let psn = Psn::new(link.ends[side].psn).plus(offset);
                let rule = Rule::new(action).qp(runners[to].qpn).psn(psn).nth(nth);
                self.net.network.add_rule(rule);
            }
        }
        self.runners.push(runners);
    }

    pub fn runner(&mut self, number: usize, side: usize) -> Runner {
        let link = &self.plan.links[number];
        let end = &link.ends[side];
        let shared = end.srq.map(|srq| self.plan.srqs[srq].recvs.len());
        let srq = end.srq.and_then(|srq| self.srqs[srq]);
        let Nic { engine, pd, xrcd, .. } = &mut self.net.hosts[end.nic];
        // No larger than it must be.
        let (send, recv) = (end.send_depth, shared.unwrap_or(end.recv_depth).max(1));
        let (send_cq, recv_cq) = if end.one_cq {
            let cq = engine.create_cq(send + recv).unwrap();
            (cq, cq)
        } else {
            (engine.create_cq(send).unwrap(), engine.create_cq(recv).unwrap())
        };
        let cap = QpCap {
            max_send_wr: end.send_depth as u32,
            max_recv_wr: end.recv_depth as u32,
            max_send_sge: 3,
            max_recv_sge: 3,
            max_inline_data: INLINE as u32,
        };
        let target = link.kind == QpType::XrcSend && side == 1;
        let qp_type = if target { QpType::XrcRecv } else { link.kind };
        let init = QpInitAttr { qp_type, cap, sq_sig_all: end.sig_all };
        let create = QpCreate {
            init,
            send_cq,
            recv_cq,
            srq: if target { None } else { srq.map(|(srq, _)| srq) },
            xrcd: target.then_some(*xrcd),
        };
        let qp = engine.create_qp(*pd, create).unwrap();
        let recv_cq = srq.filter(|_| target).map_or(recv_cq, |(_, cq)| cq);
        if let Some(notify) = end.notify {
            engine.request_notify(recv_cq, notify);
        }
        Runner {
            nic: end.nic,
            qp,
            qpn: engine.qp_number(qp).unwrap(),
            send_cq,
            recv_cq,
            posted: 0,
            received: 0,
            gone: false,
            sent: Vec::new(),
            got: Vec::new(),
        }
    }
}

pub fn nic(plan: &Plan, number: usize) -> Nic {
    let gid = if plan.ipv6 {
        Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16))
    } else {
        Gid::from(Ipv4Addr::new(192, 0, 2, number as u8))
    };
    let mut config = Config::new(gid);
    let nic = &plan.nics[number];
    config.window_packets = nic.window_packets;
    config.quantum = nic.quantum;
    config.advertise_credits = nic.credits;
    config.peer_window_bytes = nic.peer_window_bytes;
    config.ack_delay = nic.ack_delay;
    let Mode { selective, receive, paths } = plan.mode;
    if selective {
        config.recovery = Recovery::SelectiveRepeat(EarlyTimeouts::IRN);
    }
    (config.receive, config.paths) = (receive, paths);
    if paths > 1 {
        config.pin_source_port = false;
        config.reorder = ReorderThreshold { packets: 8, time: Duration::from_micros(30) };
    }
    let mut engine = Engine::new(config, nic.seed);
    let pd = engine.create_pd().unwrap();
    let xrcd = engine.create_xrcd().unwrap();
    let (events, dice) = (Vec::new(), Dice::new(nic.seed));
    Nic {
        engine,
        gid,
        pd,
        xrcd,
        events,
        batch: Batch::new(nic.batch),
        defers: nic.defers,
        delays_acks: false,
        dice,
        group: group(plan),
    }
}

/// Takes a queue pair from RESET to RTS, or as far as it can go.
pub fn bring_up(engine: &mut Engine, qp: QpHandle, attr: &QpAttr) {
    let kind = engine.qp_kind(qp).unwrap();
    let has_rts = transition::find(kind, QpState::Rtr, QpState::Rts).is_some();
    let to = if has_rts { QpState::Rts } else { QpState::Rtr };
    engine.bring_up(qp, to, attr).unwrap();
}

/// A datagram queue pair.
pub fn datagram_qp(nic: &mut Nic, kind: QpType, qkey: u32, depth: usize) -> (QpHandle, CqHandle) {
    let cq = nic.engine.create_cq(depth).unwrap();
    let cap = QpCap {
        max_send_wr: (OPS_MAX * 2) as u32,
        max_recv_wr: depth as u32,
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline_data: INLINE as u32,
    };
    let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let qp = nic.engine.create_qp(nic.pd, create).unwrap();
    let attr = QpAttr { qkey: QKey::new(qkey), qp_access_flags: ALL, ..QpAttr::default() };
    bring_up(&mut nic.engine, qp, &attr);
    (qp, cq)
}
