//! Reaction of every state to every packet and every post, as tables to read:
//! `testdata/engine/*.txt`.
//!
//! `ROCE_BLESS=1 cargo test --test engine` writes them anew.

use std::fmt::Write;
use std::path::Path;

use roce::engine::{AsyncEvent, Counter, Disposition, Event, QpCreate, SrqCreate, SrqHandle};
use roce::verbs::{
    AhAttr, Data, FlushLevel, FlushPlacement, MwBind, PostError, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Target, UdTarget, WrId, WrOpcode,
};
use roce::wire::{Opcode, OpcodeInfo, Operation, Position, QKey, RKey, Role, Service, XrcSrqn};

use super::script::*;
use super::states::in_state;

#[track_caller]
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/engine").join(name);
    if std::env::var_os("ROCE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (kept, new)) in kept.lines().zip(text.lines()).enumerate() {
        assert_eq!(kept, new, "{name} line {}; ROCE_BLESS=1 accepts the new", line + 1);
    }
    assert_eq!(kept.lines().count(), text.lines().count(), "{name}; ROCE_BLESS=1 accepts the new");
}

/// Time at which a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Expected,
    Duplicate,
    Future,
}

/// An engine in a state, what came before the packet, and the packet.
struct Scene {
    s: Script,
    srq: Option<(SrqHandle, roce::engine::CqHandle)>,
    /// A key that the peer may invalidate, where there can be one.
    window: Option<RKey>,
}

/// Binds a window through the script's queue pair.
fn bind(s: &mut Script) -> RKey {
    let mw = s.engine.create_mw(s.pd, roce::verbs::MwType::Type2).unwrap();
    let rkey = s.engine.mw_key(mw).unwrap();
    let access = roce::verbs::Access::REMOTE_READ;
    let bind = MwBind { mr: s.mr.lkey(), addr: s.va(0), length: 8, access };
    s.post(0, SendOp::BindMw { mw: rkey, rkey, bind }, 0);
    s.expect_nothing();
    rkey
}

/// Binds a window for an XRC target, which takes an initiator.
fn bind_for_target(s: &mut Script) -> RKey {
    let cap = roce::verbs::QpCap { max_send_wr: 1, ..Default::default() };
    let init = roce::verbs::QpInitAttr { qp_type: QpType::XrcSend, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
    let (target, kind) = (s.qp, s.kind);
    (s.qp, s.kind) = (s.engine.create_qp(s.pd, create).unwrap(), QpType::XrcSend);
    s.climb(s.qp, QpState::Rts);
    let rkey = bind(s);
    (s.qp, s.kind) = (target, kind);
    rkey
}

fn scene(kind: QpType, state: QpState) -> Option<Scene> {
    // A window is bound by the queue pair itself, in RTS, or for a target by an initiator.
    let binds = kind == QpType::Rc && matches!(state, QpState::Rts | QpState::Sqd);
    let mut s = in_state(kind, if binds { QpState::Rts } else { state })?;
    let window = match kind {
        QpType::XrcRecv => Some(bind_for_target(&mut s)),
        _ => binds.then(|| bind(&mut s)),
    };
    if state == QpState::Sqd && binds {
        s.enter(state);
    }
    let srq = (kind == QpType::XrcRecv).then(|| {
        let xrcd = s.xrcd.unwrap();
        let cq = s.engine.create_cq(16).unwrap();
        let create = SrqCreate { max_wr: 8, max_sge: 1, limit: 0, xrc: Some((xrcd, cq)) };
        (s.engine.create_srq(s.pd, create).unwrap(), cq)
    });
    for id in 1..3 {
        let sges = [s.sge(1024 * id, 1024)];
        let wr = RecvWr { id: WrId(id), sges: &sges };
        // Where it is refused, there is nothing to receive.
        let _refused = match srq {
            Some((srq, _)) => s.engine.post_srq_recv(srq, &wr),
            None => s.engine.post_recv(s.qp, &wr),
        };
    }
    s.poll(s.recv_cq);
    s.poll(s.cq);
    s.take_events();
    Some(Scene { s, srq, window })
}

impl Scene {
    /// A request that is right in every way.
    fn request(&self, info: &OpcodeInfo, psn: u32) -> Pkt {
        let s = &self.s;
        let headers = info.headers;
        let mut packet = pkt(info.opcode, psn).ack_req();
        use roce::wire::Headers;
        let len = match (info.operation, info.position) {
            (Operation::Send | Operation::Write, Position::First | Position::Middle) => 256,
            (Operation::Send | Operation::Write, _) => 16,
            (Operation::AtomicWrite, _) => 8,
            _ => 0,
        };
        packet = packet.fill(len);
        if headers.contains(Headers::XRCETH) {
            let number = self.srq.map_or(XrcSrqn::new(0), |(srq, _)| s.engine.srq_number(srq));
            packet = packet.xrc(number);
        }
        if headers.contains(Headers::DETH) {
            let qkey = if s.kind == QpType::Gsi { QKey::GSI.get() } else { 0x1111 };
            packet = packet.deth(qkey, PEER);
        }
        if headers.contains(Headers::RETH) {
            let total = match (info.operation, info.position) {
                // Room for a middle and a last packet behind it.
                (Operation::Write, Position::First) => 256 + 16,
                (Operation::ReadRequest, _) => 300,
                (Operation::Flush, _) => 64,
                _ => len as u32,
            };
            packet = packet.reth(s.va(0), s.rkey(), total);
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            packet = packet.atomic(s.va(8), s.rkey(), 5, 0);
        }
        if headers.contains(Headers::IMM_DT) {
            packet = packet.imm(*b"imm!");
        }
        if headers.contains(Headers::IETH) {
            packet = packet.inv(self.window.unwrap_or_else(|| s.rkey()));
        }
        if headers.contains(Headers::FETH) {
            packet = packet.feth(1, 0);
        }
        if headers.contains(Headers::SACK_ETH) {
            packet = packet.sack(psn.wrapping_add(1), 1).fill(8);
        }
        packet
    }

    /// Sends the packets before one that does not begin its message; returns its PSN.
    fn begin(&mut self, info: &OpcodeInfo) -> u32 {
        if info.position.begins() {
            return RQ;
        }
        let first = Opcode::assigned().find(|first| {
            first.service == info.service
                && first.operation == info.operation
                && first.position == Position::First
        });
        let mut packet = self.request(first.unwrap(), RQ);
        if info.operation == Operation::Write && info.position == Position::Middle {
            let (va, key) = (self.s.va(0), self.s.rkey());
            packet = packet.reth(va, key, 2 * 256 + 16);
        }
        packet.bth.ack_req = false;
        self.s.send(packet);
        RQ + 1
    }

    /// Describes the effect of a packet.
    fn outcome(&mut self, packet: Pkt) -> String {
        self.s.take_events();
        self.s.poll(self.s.recv_cq);
        self.s.poll(self.s.cq);
        let before: Vec<_> = self.s.engine.counters().iter().collect();
        let state = self.s.engine.qp_state(self.s.qp).unwrap();
        let got = self.s.send(packet);
        let mut out = Vec::new();
        if let Disposition::Dropped(reason) = got {
            return format!("dropped: {}", reason.name());
        }
        let quiet = [Counter::Received, Counter::Sent];
        for ((counter, now), (_, before)) in self.s.engine.counters().iter().zip(&before) {
            if now != *before && !quiet.contains(&counter) {
                out.push(format!("counts {}", counter.name()));
            }
        }
        for packet in self.s.sent() {
            out.push(format!("sends {}", packet.words()));
        }
        let mut cqs = vec![self.s.recv_cq, self.s.cq];
        cqs.extend(self.srq.map(|(_, cq)| cq));
        for cq in cqs {
            for wc in self.s.poll(cq) {
                out.push(format!("completes {} {}: {}", wc.opcode, wc.id.0, wc.status));
            }
        }
        for event in self.s.take_events() {
            if let Event::Async(AsyncEvent::Qp(event, _)) = event {
                out.push(format!("tells {}", event.name()));
            }
        }
        let after = self.s.engine.qp_state(self.s.qp).unwrap();
        if after != state {
            out.push(format!("goes to {after}"));
        }
        if out.is_empty() { "nothing to see".into() } else { out.join("; ") }
    }

    /// Posts what a response would answer; returns how many PSNs it takes.
    fn ask(&mut self, info: &OpcodeInfo) -> u32 {
        let (op, len) = match (info.operation, info.position) {
            (Operation::ReadResponse, Position::Only) => (READ, 8),
            (Operation::ReadResponse, _) => (READ, 3 * 256),
            (Operation::AtomicAcknowledge, _) => (ADD, 8),
            _ => (SEND, 8),
        };
        if self.s.try_post(9, op, &[self.s.sge(0, len)], SendFlags::SIGNALED).is_ok() {
            self.s.sent();
        }
        len.div_ceil(256)
    }
}

fn answer(kind: QpType, state: QpState, info: &OpcodeInfo, when: When) -> Option<String> {
    if info.role == Role::Response {
        return response_to(kind, state, info, when);
    }
    let mut scene = scene(kind, state)?;
    let psn = scene.begin(info);
    let packet = scene.request(info, psn);
    if when == When::Duplicate {
        scene.s.send(packet.clone());
        scene.s.sent();
        if let Some((_, cq)) = scene.srq {
            scene.s.poll(cq);
        }
    }
    let ahead = if when == When::Future { 1 } else { 0 };
    let mut packet = packet;
    packet.bth.psn = packet.bth.psn.plus(ahead);
    Some(scene.outcome(packet))
}

/// A response: what it answers was sent before the queue pair got into the state.
fn response_to(kind: QpType, state: QpState, info: &OpcodeInfo, when: When) -> Option<String> {
    let reachable = matches!(state, QpState::Rts | QpState::Sqd) && kind.has_send_queue();
    let mut scene = scene(kind, if reachable { QpState::Rts } else { state })?;
    let psns = if reachable { scene.ask(info) } else { 1 };
    if reachable && state == QpState::Sqd {
        scene.s.enter(state);
    }
    let at = match info.position {
        Position::Only | Position::First => 0,
        Position::Middle => 1,
        Position::Last => 2,
    };
    let make = |opcode: Opcode, psn: u32| {
        let aeth = opcode.info().unwrap().headers.contains(roce::wire::Headers::AETH);
        let packet = if aeth { response(opcode, psn, 1) } else { pkt(opcode, psn) };
        match (info.operation, info.position) {
            (Operation::ReadResponse, Position::Only) => packet.fill(8),
            (Operation::ReadResponse, _) => packet.fill(256),
            (Operation::AtomicAcknowledge, _) => packet.original(3),
            (Operation::SelectiveAcknowledge, _) => packet.sack(psn + 1, 1).fill(8),
            _ => packet,
        }
    };
    for before in 0..at {
        let class = info.opcode.0 & 0xe0;
        let rc = if before == 0 {
            Opcode::RC_RDMA_READ_RESPONSE_FIRST
        } else {
            Opcode::RC_RDMA_READ_RESPONSE_MIDDLE
        };
        scene.s.send(make(Opcode(rc.0 | class), SQ + before));
    }
    let packet = make(info.opcode, SQ + at);
    if when == When::Duplicate {
        scene.s.send(packet.clone());
    }
    let mut packet = packet;
    if when == When::Future {
        packet.bth.psn = roce::wire::Psn::new(SQ + psns);
    }
    Some(scene.outcome(packet))
}

fn service(kind: QpType) -> Service {
    match kind {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::XrcRecv | QpType::XrcSend => Service::Xrc,
        _ => Service::Ud,
    }
}

/// Describes the treatment of a packet by the time at which it comes; states where it is the same
/// stand together.
fn by_state(mut answer: impl FnMut(QpState, When) -> Option<String>) -> String {
    let mut text = String::new();
    for when in [When::Expected, When::Duplicate, When::Future] {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for state in QpState::ALL {
            let Some(answer) = answer(*state, when) else { continue };
            match groups.iter_mut().find(|(old, _)| *old == answer) {
                Some((_, states)) => states.push(state.text()),
                None => groups.push((answer, vec![state.text()])),
            }
        }
        for (answer, states) in groups {
            let when = format!("{when:?}").to_lowercase();
            writeln!(text, "    {when:9} {:27} {answer}", states.join(" ")).unwrap();
        }
    }
    text
}

/// Describes the treatment of packets whose opcode is not of the kind's own service, or of none:
/// opcodes that are treated alike stand together.
fn others(kind: QpType) -> String {
    let mut groups: Vec<(String, Vec<u8>)> = Vec::new();
    let mut scenes: Vec<_> = QpState::ALL.iter().map(|state| scene(kind, *state)).collect();
    for opcode in 0..=255 {
        let info = Opcode(opcode).info();
        if info.is_some_and(|info| info.service == service(kind)) {
            continue;
        }
        let outcome = by_state(|state, when| {
            let slot = &mut scenes[state.code() as usize];
            let scene = slot.as_mut()?;
            let psn = match when {
                When::Expected => RQ,
                When::Duplicate => RQ - 1,
                When::Future => RQ + 1,
            };
            let mut packet = match info {
                Some(info) => scene.request(info, psn),
                None => pkt(Opcode(opcode), psn),
            };
            let headers = info.map_or(roce::wire::Headers::empty(), |info| info.headers);
            if headers.contains(roce::wire::Headers::AETH) {
                packet = packet.syndrome(0x1f, 1);
            }
            if headers.contains(roce::wire::Headers::ATOMIC_ACK_ETH) {
                packet = packet.original(3);
            }
            if headers.contains(roce::wire::Headers::RDETH) {
                let ee_context = roce::wire::EeContext::new(1);
                packet.ext.rdeth = Some(roce::wire::RdethRepr { ee_context });
            }
            let outcome = scene.outcome(packet);
            if !outcome.starts_with("dropped") {
                *slot = self::scene(kind, state);
            }
            Some(outcome)
        });
        match groups.iter_mut().find(|(old, _)| *old == outcome) {
            Some((_, opcodes)) => opcodes.push(opcode),
            None => groups.push((outcome, vec![opcode])),
        }
    }
    let ranges = |opcodes: &[u8]| {
        let runs = opcodes.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| match run {
            [one] => format!("{one:#04x}"),
            run => format!("{:#04x}-{:#04x}", run[0], run[run.len() - 1]),
        })
        .collect::<Vec<_>>()
        .join(" ")
    };
    groups.iter().map(|(outcome, opcodes)| format!("  {}\n{outcome}", ranges(opcodes))).collect()
}

#[test]
fn responses_to_every_packet_in_every_state_match_the_snapshot() {
    let mut text = String::from(
        "What becomes of a packet, by opcode, by when it comes and by the state it finds.\n\
         Two receives are posted. What must come before the packet has come: the first packet of its message, or the\n\
         request that it answers. A duplicate is the same packet again; the PSN of a future one is one too high, or\n\
         was never used. It asks only for what the peer may have, but for a key to invalidate: there is one only where\n\
         the queue pair could bind a window, RC in RTS or SQD, or an initiator for it, XRC.\n\
         The path MTU is 256; requests begin at PSN 100, answers at PSN 5000.\n\
         Behind each kind: all other opcodes, by number.\n",
    );
    let kinds = [QpType::Rc, QpType::XrcRecv, QpType::XrcSend, QpType::Uc, QpType::Ud, QpType::Gsi];
    for kind in kinds {
        let service = service(kind);
        writeln!(text, "\n{kind}").unwrap();
        for info in Opcode::assigned().filter(|info| info.service == service) {
            writeln!(text, "  {}", info.name).unwrap();
            text += &by_state(|state, when| answer(kind, state, info, when));
        }
        text += &others(kind);
    }
    compare("answers.txt", &text);
}

/// One request of each kind, and how many bytes of local data it has.
fn requests(s: &mut Script) -> Vec<(SendOp, u32)> {
    let (remote_addr, rkey) = (REMOTE, REMOTE_KEY);
    let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::Range);
    let mw = s.engine.create_mw(s.pd, roce::verbs::MwType::Type1).unwrap();
    let mw = s.engine.mw_key(mw).unwrap();
    let access = roce::verbs::Access::REMOTE_READ;
    let bind = MwBind { mr: s.mr.lkey(), addr: s.va(0), length: 8, access };
    vec![
        (SEND, 8),
        (SendOp::Send { imm: Some([1; 4]) }, 8),
        (SendOp::SendWithInv { rkey }, 8),
        (WRITE, 8),
        (SendOp::Write { remote_addr, rkey, imm: Some([1; 4]) }, 8),
        (READ, 8),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 }, 8),
        (ADD, 8),
        (SendOp::AtomicWrite { remote_addr, rkey }, 8),
        (SendOp::Flush { remote_addr, rkey, length: 8, placement, level }, 0),
        (SendOp::LocalInv { rkey }, 0),
        (SendOp::BindMw { mw, rkey: mw, bind }, 0),
    ]
}

/// Describes the reason of a refusal, without what the table says anyway.
fn refused(error: PostError) -> String {
    match error {
        PostError::WrongState(_) => "refused: wrong state".into(),
        PostError::NotAllowedOnQpType { .. } => "refused: not on this kind".into(),
        error => format!("refused: {error}"),
    }
}

/// Describes the result of one request.
fn posted(s: &mut Script, op: SendOp, len: u32) -> String {
    let target = match s.kind {
        QpType::Ud | QpType::Gsi => {
            let ah = s.engine.create_ah(s.pd, AhAttr::new(peer_gid(), 0)).unwrap();
            Target::Ud(UdTarget { ah, qpn: PEER, qkey: QKey::new(0x1111) })
        }
        _ => s.target(),
    };
    let sges = [s.sge(0, len)];
    let sges = if len == 0 { &[][..] } else { &sges[..] };
    let wr = SendWr { target, ..SendWr::new(WrId(1), op, Data::Gather(sges)) };
    if let Err(error) = s.engine.post_send(s.qp, &wr, &[]) {
        return refused(error);
    }
    let mut out: Vec<_> =
        s.sent().iter().map(|packet| format!("sends {}", packet.bth.opcode)).collect();
    out.extend(s.poll(s.cq).iter().map(|wc| format!("completes: {}", wc.status)));
    if out.is_empty() { "waits".into() } else { out.join("; ") }
}

#[test]
fn results_of_every_post_in_every_state_match_the_snapshot() {
    let mut text = String::from(
        "What becomes of work that is posted, by kind of queue pair, by work and by state.\n\
         The queues are empty, the buffers good, and no peer answers.\n",
    );
    let kinds = [QpType::Rc, QpType::XrcSend, QpType::XrcRecv, QpType::Uc, QpType::Ud, QpType::Gsi];
    for kind in kinds {
        writeln!(text, "\n{kind}").unwrap();
        let works = requests(&mut Script::rc()).len();
        for work in 0..=works {
            let mut groups: Vec<(String, Vec<QpState>)> = Vec::new();
            let mut name = "receive".to_owned();
            for state in QpState::ALL {
                let Some(mut s) = in_state(kind, *state) else { continue };
                let outcome = if work == 0 {
                    let wr = RecvWr { id: WrId(1), sges: &[] };
                    match s.engine.post_recv(s.qp, &wr) {
                        Err(error) => refused(error),
                        Ok(()) => match s.poll(s.recv_cq).first() {
                            Some(wc) => format!("completes: {}", wc.status),
                            None => "waits".into(),
                        },
                    }
                } else {
                    let (op, len) = requests(&mut s)[work - 1];
                    let opcode: WrOpcode = op.opcode();
                    name = opcode.to_string();
                    posted(&mut s, op, len)
                };
                match groups.iter_mut().find(|(old, _)| *old == outcome) {
                    Some((_, states)) => states.push(*state),
                    None => groups.push((outcome, vec![*state])),
                }
            }
            for (outcome, states) in groups {
                let states: Vec<_> = states.iter().map(|state| state.text()).collect();
                writeln!(text, "  {name:20} {:27} {outcome}", states.join(" ")).unwrap();
            }
        }
    }
    compare("posts.txt", &text);
}
