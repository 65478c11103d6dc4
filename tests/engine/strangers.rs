//! A stranger who can send from the peer's address, against a live connection.
//!
//! What the engine can tell from the peer's packets changes nothing: packets from another UDP
//! source port, PSNs that are not in flight or not expected, MSNs that the peer cannot have. What
//! it cannot tell is listed at the end, each with what it does; `docs/security.md` says the same in
//! prose.

use std::cell::Cell;
use std::rc::Rc;

use roce::engine::{Counter, Disposition, PORT_SILENCE, Received};
use roce::verbs::{Mtu, QpState, QpType, SendOp, WcStatus};
use roce::wire::aeth::{Answer, Credits, NakCode, Syndrome};
use roce::wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, BthRepr, Extensions, FethRepr, Headers, IethRepr,
    ImmDtRepr, Msn, Opcode, PacketRepr, Psn, RKey, RethRepr, Role,
};

use super::pair::{Pair, Side};
use super::script::*;

/// The port that the stranger's socket has.
const STRANGE_PORT: u16 = 12_345;

/// The port of the peer that a script plays.
const PORT: u16 = 0xc123;

/// A small generator of its own.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }
}

/// Every opcode that a queue pair of this service may get, the unassigned ones too, and the
/// notification of congestion.
fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..0x20).map(Opcode).chain([Opcode::CNP])
}

/// A packet with all the headers that its opcode has, and a payload where it may have one.
fn forged(bth: BthRepr, va: u64, rkey: RKey, syndrome: Syndrome, msn: u32) -> Vec<u8> {
    let info = bth.opcode.info();
    let has = |header| info.is_some_and(|info| info.headers.contains(header));
    let aeth = AethRepr { syndrome, msn: Msn::new(msn) };
    let reth = RethRepr { va, rkey, dma_len: 256 };
    let atomic = AtomicEthRepr { va, rkey, swap_or_add: 77, compare: 0 };
    let feth = FethRepr { selectivity: Default::default(), placement: roce::wire::Bits::low(1) };
    let ext = Extensions {
        reth: has(Headers::RETH).then_some(reth),
        atomic_eth: has(Headers::ATOMIC_ETH).then_some(atomic),
        aeth: has(Headers::AETH).then_some(aeth),
        atomic_ack_eth: has(Headers::ATOMIC_ACK_ETH).then_some(AtomicAckEthRepr { original: 9 }),
        imm_dt: has(Headers::IMM_DT).then_some(ImmDtRepr { data: [9; 4] }),
        ieth: has(Headers::IETH).then_some(IethRepr { rkey }),
        feth: has(Headers::FETH).then_some(feth),
        ..Extensions::default()
    };
    let payload = if info.is_some_and(|info| info.payload.allows(256, 256)) { 256 } else { 0 };
    let mut out = Vec::new();
    match PacketRepr::new(bth, ext, &vec![0xbb; payload]) {
        Ok(repr) => repr.emit(&mut out),
        Err(_) => out.extend_from_slice(bth.emit().as_bytes()),
    }
    out
}

/// Returns the peer of a side, and the source port of its packets.
fn peer_of(side: &Side) -> (roce::wire::Gid, u16) {
    let attr = side.engine.query_qp(side.qp).unwrap();
    let own = side.engine.qp_number(side.qp).unwrap();
    // As Linux has it, and the engine: see `route`.
    let mut v = u64::from(own.get()) * u64::from(attr.dest_qp_num.get());
    v ^= v >> 20;
    v ^= v >> 40;
    let label = (v & 0xf_ffff) as u32;
    (attr.ah_attr.dgid, ((label & 0x3fff) ^ (label >> 14 & 0x3f)) as u16 | 0xc000)
}

/// Hands a forged packet to a side.
fn inject(side: &mut Side, now: roce::time::Instant, port: u16, packet: &[u8]) -> Disposition {
    let (source, _) = peer_of(side);
    let (destination, network) = (side.gid, &[0x45; 20][..]);
    let source_port = port;
    let received =
        Received { source, destination, source_port, ecn: 0, network, packet, payload: None };
    side.engine.handle_packet(now, &received)
}

/// Every operation, both ways, in several rounds: all complete, and the bytes are right.
fn works(pair: &mut Pair, rounds: usize) {
    for round in 0..rounds {
        let fill = |side: &Side, at: usize, salt: usize| {
            let bytes: Vec<u8> = pattern(700).iter().map(|b| b.wrapping_add(salt as u8)).collect();
            side.buffer.write(at, &bytes).unwrap();
            bytes
        };
        let (sent, written) = (fill(&pair.a, 0, round), fill(&pair.a, 1000, round + 1));
        let (read, back) = (fill(&pair.b, 2000, round + 2), fill(&pair.b, 3000, round + 3));
        pair.b.buffer.write(4000, &5_u64.to_ne_bytes()).unwrap();
        let rkey = pair.b.mr.rkey();
        let at = |offset: u64| pair.b.buffer.addr() + offset;
        let write = SendOp::Write { remote_addr: at(5000), rkey, imm: None };
        let read_op = SendOp::Read { remote_addr: at(2000), rkey };
        let add = SendOp::FetchAdd { remote_addr: at(4000), rkey, add: 3 };
        pair.b.recv(100, 6000, 700);
        pair.a.recv(100, 6000, 700);
        pair.a.send(1, SEND, 0, 700);
        pair.a.send(2, write, 1000, 700);
        pair.a.send(3, read_op, 7000, 700);
        pair.a.send(4, add, 8000, 8);
        pair.b.send(5, SEND, 3000, 700);
        pair.run();
        let ids = |side: &mut Side| {
            let mut all = side.completions();
            all.sort_by_key(|wc| wc.id.0);
            all.iter().map(|wc| (wc.id.0, wc.status)).collect::<Vec<_>>()
        };
        assert_eq!(ids(&mut pair.a), [(1, OK), (2, OK), (3, OK), (4, OK), (100, OK)]);
        assert_eq!(ids(&mut pair.b), [(5, OK), (100, OK)]);
        let holds = |side: &Side, at: usize, want: &[u8]| {
            let mut bytes = vec![0; want.len()];
            side.buffer.read(at, &mut bytes).unwrap();
            assert!(bytes == want, "round {round}: bytes at {at} are another's");
        };
        holds(&pair.b, 6000, &sent);
        holds(&pair.b, 5000, &written);
        holds(&pair.a, 7000, &read);
        holds(&pair.a, 6000, &back);
        holds(&pair.a, 8000, &5_u64.to_ne_bytes());
        holds(&pair.b, 4000, &8_u64.to_ne_bytes());
    }
}

/// Packets from another port have no effect even with the right PSN, MSN and key, of whatever
/// opcode.
#[test]
fn packets_from_another_source_port_do_nothing() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M256);
    let (mut dice, injected) = (Dice(7), Rc::new(Cell::new(0)));
    let count = Rc::clone(&injected);
    pair.after = Box::new(move |_, now, side| {
        let attr = side.engine.query_qp(side.qp).unwrap();
        let qpn = side.engine.qp_number(side.qp).unwrap();
        let (va, rkey) = (side.buffer.addr() + 6000, side.mr.rkey());
        for opcode in opcodes() {
            let response = opcode.info().is_some_and(|info| info.role == Role::Response);
            let base = if response { attr.sq_psn } else { attr.rq_psn };
            // Expected, just sent, or anything.
            for psn in [base, base.plus(0xff_ffff), Psn::new(dice.roll())] {
                let syndrome = Syndrome(dice.roll() as u8);
                let bth = BthRepr::new(opcode, qpn, psn);
                let packet = forged(bth, va, rkey, syndrome, dice.roll() % 16);
                let became = inject(side, now, STRANGE_PORT, &packet);
                let dropped = matches!(became, Disposition::Dropped(_));
                // A notification of congestion is taken: NICs send it from any port, and it changes
                // no state.
                assert!(dropped || opcode == Opcode::CNP, "{opcode} is {became:?}");
                count.set(count.get() + 1);
            }
        }
    });
    works(&mut pair, 10);
    assert!(injected.get() > 10_000);
    assert!(pair.a.engine.counters().get(Counter::WrongPort) > 1000);
    assert!(pair.b.engine.counters().get(Counter::WrongPort) > 1000);
    assert_eq!(pair.a.engine.counters().get(Counter::Retry), 0, "nothing was even slowed down");
}

/// A stranger with the right port (it has raw sockets) that guesses PSNs delays the connection, at
/// most: everything completes, and the data are right. What it would hit by chance, it is kept from
/// here.
#[test]
fn packets_with_unexpected_psns_or_msns_break_nothing() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M256);
    // A stranger can use up retries; this test is not about them.
    let mut dice = Dice(9);
    pair.after = Box::new(move |_, now, side| {
        if !dice.roll().is_multiple_of(4) {
            return;
        }
        let attr = side.engine.query_qp(side.qp).unwrap();
        let qpn = side.engine.qp_number(side.qp).unwrap();
        let (va, rkey) = (side.buffer.addr() + 6000, side.mr.rkey());
        let (_, port) = peer_of(side);
        let opcode = Opcode((dice.roll() % 0x20) as u8);
        let response = opcode.info().is_some_and(|info| info.role == Role::Response);
        let guess = Psn::new(dice.roll());
        let syndrome = Syndrome(dice.roll() as u8);
        // In flight there are a few dozen; of requests, one is expected.
        let (psn, msn) = if response {
            let near = guess.since(attr.sq_psn);
            let in_flight = (-64..0).contains(&near);
            (guess, if in_flight { 0x80_0000 } else { dice.roll() })
        } else {
            (if guess == attr.rq_psn { guess.plus(1) } else { guess }, 0)
        };
        let packet = forged(BthRepr::new(opcode, qpn, psn), va, rkey, syndrome, msn);
        inject(side, now, port, &packet);
    });
    works(&mut pair, 200);
    let counters = pair.b.engine.counters();
    assert!(counters.get(Counter::OutOfSequence) > 10 && counters.get(Counter::Duplicate) > 10);
    assert!(pair.a.engine.counters().get(Counter::StaleResponse) > 10);
}

/// A connection that has answered the stranger's peer before.
fn known() -> Script {
    let mut s = Script::rc();
    s.source_port = PORT;
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
    s
}

/// One ACK with a guessed PSN before the first real one must not stop a queue pair.
#[test]
fn stale_ack_before_the_first_real_one_grants_and_takes_no_credits() {
    let mut s = Script::rc();
    let guess = SQ.wrapping_sub(3_000_000) & 0xff_ffff;
    s.send(pkt(Opcode::RC_ACKNOWLEDGE, guess).aeth(Answer::Ack(Credits::advertise(0)), 0xc0_0000));
    assert_eq!(s.count(Counter::StaleResponse), 1);
    s.post(1, SEND, 16);
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
}

/// Whatever credits say: when nothing is in flight, one message may go out. No other answer would
/// ever correct them.
#[test]
fn wrong_credits_do_not_stop_a_queue_pair() {
    let mut s = Script::rc();
    s.post(1, SEND, 16);
    s.expect_count(1);
    // By this count, half of all numbers away, no message may be sent for long.
    s.send(ack_credits(SQ, 0x80_0100, 0));
    s.post(2, SEND, 16);
    s.post(3, SEND, 16);
    s.expect_count(1);
    s.send(ack_credits(SQ + 1, 0x80_0101, 0));
    s.expect_count(1);
    s.send(ack_credits(SQ + 2, 0x80_0102, 0));
    s.completes(&[(1, OK), (2, OK), (3, OK)]);
}

/// A refusal must name a PSN that was sent. Of a long message most have not been.
#[test]
fn responses_to_psns_not_yet_sent_are_dropped() {
    let mut s = Script::with(|setup| setup.config.window_packets = 4);
    s.post(1, SEND, 100 * MTU as u32);
    s.expect_count(4);
    for psn in [SQ + 4, SQ + 50, SQ + 99] {
        s.send(nak(psn, NakCode::RemoteAccessError, 0));
        s.send(ack(psn, 1));
    }
    assert_eq!(s.count(Counter::StaleResponse), 6);
    s.state(QpState::Rts);
    s.completes(&[]);
    s.send(ack(SQ + 3, 0));
    s.expect_count(4);
}

/// A refusal or acknowledgement whose MSN the responder cannot have come to is not the responder's.
#[test]
fn responses_with_impossible_msns_are_dropped() {
    let mut s = known();
    s.post(2, SEND, 4);
    s.post(3, WRITE, 4);
    s.expect_count(2);
    // One was completed, three were begun: 1, 2 and 3 are possible.
    for msn in [0, 4, 5, 0xff_ffff, 0x80_0000] {
        s.send(nak(SQ + 1, NakCode::RemoteAccessError, msn));
        s.send(rnr(SQ + 1, 1, msn));
        s.send(ack(SQ + 2, msn));
        s.send(seq_nak(SQ + 1, msn));
    }
    assert_eq!(s.count(Counter::StaleResponse), 20);
    s.expect_nothing();
    s.state(QpState::Rts);
    s.send(ack(SQ + 2, 3));
    s.completes(&[(2, OK), (3, OK)]);
}

/// Some responders do not count messages; what they say there is ignored, as soon as that is clear.
#[test]
fn msns_of_a_responder_that_does_not_count_are_ignored() {
    for msn in [0, 0x12_3456] {
        let mut s = Script::rc();
        for id in 0..5_u32 {
            s.post(id.into(), SEND, 4);
            s.expect_count(1);
            s.send(ack(SQ + id, msn));
            s.completes(&[(id.into(), OK)]);
        }
        s.post(9, SEND, 4);
        s.expect_count(1);
        s.send(nak(SQ + 5, NakCode::RemoteAccessError, msn));
        s.completes(&[(9, WcStatus::RemAccessErr)]);
    }
}

/// rxe of Linux before 6.0 counts SENDs and READs, but no WRITE without immediate data and no
/// atomic operation: after a first MSN that is right, others lag behind.
#[test]
fn msns_of_a_responder_that_counts_only_some_are_ignored() {
    let mut s = known();
    for id in 1..4 {
        s.post(u64::from(id) + 1, WRITE, 4);
        s.expect_count(1);
        s.send(ack(SQ + id, 1));
        s.completes(&[(u64::from(id) + 1, OK)]);
    }
    let mut s = known();
    for id in 1..4 {
        s.post(u64::from(id) + 1, ADD, 8);
        s.expect_count(1);
        s.send(response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ + id, 1).original(7));
        s.completes(&[(u64::from(id) + 1, OK)]);
    }
    assert_eq!(s.count(Counter::StaleResponse), 0);
}

/// The peer may change its port: after a while without packets from the old one, another is
/// accepted.
#[test]
fn source_port_of_the_peer_may_change_after_a_silence() {
    let silence = PORT_SILENCE.as_micros() as u64;
    let mut s = Script::with(|setup| {
        setup.attr.timeout = roce::verbs::AckTimeout(roce::wire::Bits::low(14));
    });
    s.source_port = PORT;
    let write = |psn| pkt(Opcode::RC_RDMA_WRITE_ONLY, psn).reth(0, RKey::new(0), 0).ack_req();
    s.send(write(RQ));
    s.expect([ack(RQ, 1)]);
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.source_port = PORT + 1;
    s.dropped(write(RQ + 1), Counter::WrongPort);
    s.dropped(ack(SQ, 1), Counter::WrongPort);
    s.at(silence - 1);
    s.dropped(write(RQ + 1), Counter::WrongPort);
    s.at(silence);
    s.send(write(RQ + 1));
    s.expect([ack(RQ + 1, 2)]);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
    // Now that is the port.
    s.source_port = PORT;
    s.dropped(write(RQ + 2), Counter::WrongPort);
}

/// An idle connection accepts other ports, but a stranger gets a few guesses only. What it guesses
/// right after that is dropped as well; the peer goes on from its own port.
#[test]
fn guesses_from_other_source_ports_are_limited_on_an_idle_connection() {
    const GUESSES: u32 = 16;
    let second = 1_000_000;
    let mut s = Script::with(|setup| {
        setup.attr.timeout = roce::verbs::AckTimeout(roce::wire::Bits::low(0));
    });
    let write = |psn| pkt(Opcode::RC_RDMA_WRITE_ONLY, psn).reth(0, RKey::new(0), 0).ack_req();
    s.source_port = PORT;
    s.send(write(RQ));
    s.expect([ack(RQ, 1)]);
    for round in 1..=3_u32 {
        s.at(u64::from(round) * second);
        for guess in 0..GUESSES {
            s.source_port = STRANGE_PORT + guess as u16;
            let became = s.send(write(RQ + 100 + guess));
            assert_eq!(became, Disposition::Accepted, "guess {guess} of round {round}");
        }
        s.sent();
        s.source_port = STRANGE_PORT;
        for psn in [RQ - 5, RQ + 50, RQ + round, SQ] {
            s.dropped(write(psn), Counter::WrongPort);
            s.dropped(ack(psn, 0), Counter::WrongPort);
        }
        s.dropped(pkt(Opcode(0x1f), RQ + round), Counter::BadOpcode);
        s.source_port = PORT;
        s.send(write(RQ + round));
        s.expect([ack(RQ + round, round + 1)]);
    }
    s.state(QpState::Rts);
}

/// A packet that moves nothing forward teaches no port: a stranger who comes first must guess the
/// PSN.
#[test]
fn source_port_is_learnt_only_from_packets_that_are_expected() {
    let mut s = Script::rc();
    let write = |psn| pkt(Opcode::RC_RDMA_WRITE_ONLY, psn).reth(0, RKey::new(0), 0).ack_req();
    s.source_port = STRANGE_PORT;
    s.send(write(RQ + 5));
    s.send(write(RQ - 5));
    s.send(ack(SQ, 0));
    s.sent();
    s.source_port = PORT;
    s.send(write(RQ));
    s.expect([ack(RQ, 1)]);
    s.source_port = STRANGE_PORT;
    s.dropped(write(RQ + 1), Counter::WrongPort);
}

/// The pin is a switch.
#[test]
fn source_port_is_not_checked_if_that_is_switched_off() {
    let mut s = Script::with(|setup| setup.config.pin_source_port = false);
    for psn in 0..4 {
        s.source_port = PORT + psn as u16;
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ + psn).reth(0, RKey::new(0), 0).ack_req());
        s.expect([ack(RQ + psn, psn + 1)]);
    }
}

/// Packets that RoCE cannot tell from the peer's: from the peer's address and port, with the PSN
/// that is expected next (of 2^24), or one in flight and a plausible MSN.
mod cannot_be_told {
    use super::*;

    /// A request with the expected PSN is executed; the peer's own request of that PSN is then a
    /// duplicate.
    #[test]
    fn request_with_the_expected_psn_is_executed() {
        let mut s = known();
        let (va, rkey) = (s.va(64), s.rkey());
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(va, rkey, 4).data(b"evil"));
        assert_eq!(s.read(64, 4), b"evil");
    }

    /// A request that is refused ends the connection, with any key.
    #[test]
    fn invalid_request_with_the_expected_psn_ends_the_connection() {
        let mut s = known();
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(0, RKey::new(1), 4).data(b"evil"));
        s.state(QpState::Err);
    }

    /// An ACK of what is in flight completes it, whether it arrived or not.
    #[test]
    fn ack_in_flight_completes_the_request() {
        let mut s = known();
        s.post(2, SEND, 4);
        s.expect_count(1);
        s.send(ack(SQ + 1, 2));
        s.completes(&[(2, OK)]);
    }

    /// A NAK of what is in flight ends the connection; of the sequence, or receiver not ready, it
    /// delays it.
    #[test]
    fn nak_in_flight_ends_the_connection() {
        let mut s = known();
        s.post(2, SEND, 4);
        s.expect_count(1);
        s.send(seq_nak(SQ + 1, 1));
        s.expect_count(1);
        s.send(rnr(SQ + 1, 1, 1));
        s.state(QpState::Rts);
        s.send(nak(SQ + 1, NakCode::InvalidRequest, 1));
        s.completes(&[(2, WcStatus::RemInvReqErr)]);
        s.state(QpState::Err);
    }

    /// A response with the PSN that is next is taken for the data that were read.
    #[test]
    fn read_response_with_the_next_psn_is_taken() {
        let mut s = known();
        s.post(2, READ, 4);
        s.expect_count(1);
        s.send(read_only(SQ + 1, 2).data(b"evil"));
        s.completes(&[(2, OK)]);
        assert_eq!(s.read(0, 4), b"evil");
    }
}
