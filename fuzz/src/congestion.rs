//! Congestion control: any parameters as text, and any events at any times. Nothing panics, a rate
//! stays between nothing and the line's, deadlines are later than the time, and a queue pair that
//! gets CNPs keeps its promises to its caller.

use std::net::Ipv4Addr;
use std::time::Duration;

use roce::engine::congestion::{
    AckSample, Allowance, Congestion, Controller, FlowInfo, Hop, Loss, Profile, Settings,
};
use roce::engine::{
    Batch, Config, CqHandle, Engine, QpCreate, QpHandle, Received, TransmitClasses,
};
use roce::time::Instant;
use roce::verbs::{Connect, Data, Endpoint, QpCap, QpInitAttr, QpType, SendOp, SendWr, Wc, WrId};
use roce::wire::{BthRepr, Extensions, Gid, Opcode, PacketRepr, Psn, Qpn};

/// Maximum number of events of an input.
const EVENTS_MAX: usize = 2_000;

/// The input, taken byte by byte; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number of any size, small ones more often.
    fn number(&mut self) -> u64 {
        let mantissa = u64::from(self.byte()) << 8 | u64::from(self.byte());
        mantissa << (self.byte() % 49)
    }
}

/// A line of text, and events behind it.
pub fn congestion(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (text, events) = input.split_at(end);
    let text = core::str::from_utf8(text).unwrap_or("dcqcn");
    for name in Settings::NAMES {
        let _ = Settings::read(|asked| (asked == name).then(|| text.to_owned()));
    }
    let profile = if events.len() % 2 == 0 { Profile::Paper } else { Profile::Nvidia };
    let found = Congestion::parse(text, profile);
    let congestion = found.unwrap_or_else(|_| match events.len() % 6 {
        0 | 1 => Congestion::dcqcn(),
        2 => Congestion::nvidia(),
        3 => Congestion::timely(),
        4 => Congestion::swift(),
        _ => Congestion::hpcc(),
    });
    control(&congestion, &mut Script(events));
    engine(congestion, &mut Script(events));
}

fn check(now: Instant, controller: &mut dyn Controller, line: u64) {
    let Allowance { rate, window } = controller.advance(now);
    assert!(rate > 0 && window > 0, "{rate} {window}");
    assert!(rate <= line, "{rate} of {line}");
    if let Some(deadline) = controller.deadline() {
        assert!(deadline > now || now.as_nanos() > 1 << 62, "{deadline} at {now}");
    }
}

/// Tells a controller events.
fn control(congestion: &Congestion, script: &mut Script<'_>) {
    let info = FlowInfo { line_rate: script.number().clamp(1, 1 << 42), packet: 1090 };
    let Some(mut controller) = congestion.start(Instant::ZERO, &info) else { return };
    let mut now = 0_u64;
    for _ in 0..EVENTS_MAX {
        if script.0.is_empty() {
            break;
        }
        now = now.saturating_add(script.number() % (1 << 30));
        let at = Instant::from_nanos(now);
        match script.byte() % 6 {
            0 | 1 => controller.on_cnp(at),
            2 => controller.on_sent(at, script.number() as u32 % 70_000),
            3 => {
                let loss = [Loss::Nak, Loss::Timeout, Loss::Rnr][usize::from(script.byte() % 3)];
                controller.on_loss(at, loss);
            }
            4 => {
                let mut hop = || Hop {
                    time: Instant::from_nanos(script.number()),
                    sent: script.number(),
                    queue: script.number(),
                    rate: script.number(),
                };
                let telemetry = [hop(), hop()];
                let ack = AckSample {
                    packets: script.number() as u32,
                    bytes: script.number() as u32,
                    in_flight: script.number(),
                    rtt: Some(Duration::from_nanos(script.number())),
                    ecn: false,
                    telemetry: &telemetry[..usize::from(script.byte() % 3)],
                };
                controller.on_ack(at, &ack);
            }
            _ => {}
        }
        let fixed = if let Congestion::Fixed(rate) = congestion { *rate } else { 0 };
        check(at, &mut *controller, info.line_rate.max(fixed));
    }
}

fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, last))
}

/// Returns an engine with one queue pair that can send without a peer: UC is not acknowledged.
fn sender(congestion: Congestion, is_paced: bool) -> Option<(Engine, QpHandle, CqHandle)> {
    let mut config = Config::new(gid(1));
    config.congestion = congestion;
    config.line_rate = is_paced.then_some(1_000_000_000);
    let mut engine = Engine::new(config, 7);
    let (pd, cq) = (engine.create_pd().ok()?, engine.create_cq(64).ok()?);
    let cap = QpCap { max_send_wr: 16, max_inline_data: 64, ..QpCap::default() };
    let init = QpInitAttr { qp_type: QpType::Uc, cap, sq_sig_all: true };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let qp = engine.create_qp(pd, create).ok()?;
    let end = Endpoint { gid: gid(2), qpn: Qpn::new(0x17), psn: Psn::new(0) };
    engine.connect(qp, &end, &Connect::default().psn(Psn::new(0))).ok()?;
    Some((engine, qp, cq))
}

/// Hands the engine a CNP.
fn cnp(engine: &mut Engine, now: Instant, source: Gid, qpn: Qpn) {
    let bth = BthRepr { becn: true, ..BthRepr::new(Opcode::CNP, qpn, Psn::new(0)) };
    let mut packet = Vec::new();
    let Ok(repr) = PacketRepr::new(bth, Extensions::default(), &[0; 16]) else { return };
    repr.emit(&mut packet);
    let (destination, packet) = (gid(1), &packet[..]);
    let received = Received {
        source,
        destination,
        source_port: 0xc000,
        ecn: 0,
        network: &[],
        packet,
        payload: None,
    };
    engine.handle_packet(now, &received);
}

/// A queue pair that sends, and gets CNPs and forged ones while its data is paused and resumed.
fn engine(congestion: Congestion, script: &mut Script<'_>) {
    let Some((mut engine, qp, cq)) = sender(congestion, script.byte().is_multiple_of(2)) else {
        return;
    };
    let Some(qpn) = engine.qp_number(qp) else { return };
    let (mut now, mut batch, mut done) = (0_u64, Batch::new(4), [Wc::default(); 8]);
    for _ in 0..EVENTS_MAX {
        if script.0.is_empty() {
            break;
        }
        let at = Instant::from_nanos(now);
        match script.byte() % 6 {
            0 => {
                let peer = gid(2 + script.byte() % 2);
                cnp(&mut engine, at, peer, Qpn::new(qpn.get() ^ u32::from(script.byte() % 2)));
            }
            1 => now = now.saturating_add(script.number() % (1 << 30)),
            2 => {
                now = now.max(engine.poll_timeout().map_or(now, Instant::as_nanos));
                engine.handle_timeout(Instant::from_nanos(now));
            }
            3 => {
                let wr = SendWr::new(WrId(0), SendOp::Send { imm: None }, Data::Inline(&[7; 64]));
                let _ = engine.post_send(qp, &wr, &[]);
            }
            4 => {
                batch.clear();
                let _ = engine.poll_transmit(at, &mut batch);
            }
            _ => {
                batch.clear();
                let classes = TransmitClasses::from_bits_retain(script.byte());
                let sent = engine.poll_transmit_class(at, &mut batch, classes);
                let is_data = classes.contains(TransmitClasses::priority(0));
                assert!(sent == 0 || is_data, "data passes only with its priority");
            }
        }
        while engine.poll_cq(cq, &mut done) > 0 {}
    }
    engine.destroy_qp(qp).expect("nothing uses it");
    assert_eq!(engine.poll_timeout(), None, "a queue pair leaves no deadline behind");
}
