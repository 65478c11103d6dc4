//! Forged SACKs, within and beyond the window: they do no more harm than forged ACKs.

use roce::engine::{Counter, Disposition};
use roce::wire::aeth::{Answer, NakCode};
use roce::wire::{
    AethRepr, Bits, BthRepr, Extensions, Msn, Opcode, PacketRepr, Psn, Qpn, SackEthRepr,
};

use super::line::{Line, Work, selective};

/// Returns a SACK to the first side.
fn sack(line: &Line, psn: Psn, base: Psn, words: u32, bitmap: &[u8], msn: u32) -> Vec<u8> {
    let qpn: Qpn = line.sides[0].engine.qp_number(line.sides[0].qp).unwrap();
    let bth = BthRepr::new(Opcode::RC_SELECTIVE_ACKNOWLEDGE, qpn, psn);
    let syndrome = Answer::Nak(NakCode::PsnSequenceError).into();
    let ext = Extensions {
        aeth: Some(AethRepr { syndrome, msn: Msn::new(msn) }),
        sack_eth: Some(SackEthRepr { base, words: Bits::low(words) }),
        ..Extensions::default()
    };
    let mut out = Vec::new();
    PacketRepr::new(bth, ext, bitmap).unwrap().emit(&mut out);
    out
}

/// Returns a line on which ten messages were sent and acknowledged, and the next PSN.
fn used_line() -> (Line, Psn) {
    let mut line = Line::new([&selective, &selective], true);
    line.stream(Work::Write, 10);
    let next = next_psn(&line);
    (line, next)
}

/// Returns the PSN of the next packet that the first side sends.
fn next_psn(line: &Line) -> Psn {
    let side = &line.sides[0];
    side.engine.query_qp(side.qp).unwrap().sq_psn
}

#[test]
fn forged_sacks_beyond_what_was_sent_change_nothing() {
    let (mut line, next) = used_line();
    let received = line.counter(0, Counter::SackReceived);
    for (psn, base, words, bitmap) in [
        (next, next.plus(1), 1, vec![0xff; 8]),
        (next.plus(5), next.plus(6), 1, vec![0xff; 8]),
        (next.plus(Psn::HALF), next.plus(Psn::HALF), 4, vec![0xff; 32]),
        (next.plus(Psn::HALF - 1), next, 4, vec![0xff; 32]),
        (next.plus(Psn::HALF * 2 - 1), next, 1, vec![0x80; 8]),
        (next.plus(Psn::HALF * 2 - 1), next, 4, vec![0x80; 8]),
        (next.plus(Psn::HALF * 2 - 1), next, 0, vec![0x80; 24]),
        (next.plus(Psn::HALF * 2 - 1), next.plus(4000), 1, vec![0; 8]),
    ] {
        let packet = sack(&line, psn, base, words, &bitmap, 10);
        line.inject(0, &packet);
    }
    assert_eq!(line.counter(0, Counter::SackReceived), received);
    assert_eq!(line.counter(0, Counter::Retransmitted), 0);
    line.stream(Work::Write, 20);
}

#[test]
fn forged_sacks_within_the_window_delay_and_never_lose() {
    for work in [Work::Write, Work::Read] {
        let (mut line, _) = used_line();
        let heard = line.counter(0, Counter::SackReceived);
        for round in 0..20_u32 {
            let first = next_psn(&line);
            let mut step = 0;
            // `stream_with` checks that all messages arrive whole.
            line.stream_with(work, 2, |line| {
                // Of the two messages of 64 packets, at each of their PSNs in turn.
                let at = first.plus((step * 7 + round) % 128);
                let packet = sack(line, at, at.plus(1), 2, &[0xa5; 16], 10 + 2 * round + step % 3);
                line.inject(0, &packet);
                let base = first.plus((step + round) % 60 + 1);
                let packet = sack(line, first, base, 1, &[0x80; 8], 11 + 2 * round);
                line.inject(0, &packet);
                step += 1;
            });
        }
        assert!(line.counter(0, Counter::SackReceived) > heard, "{work:?}: some are believed");
        line.stream(work, 16);
    }
}

#[test]
fn forged_sacks_in_flight_only_cost_time() {
    let (mut line, _) = used_line();
    line.loss = 1_000_000;
    let heard = line.counter(0, Counter::SackReceived);
    // An attacker that guesses PSN and MSN may claim that the peer holds packets that were lost.
    for round in 0..100_u32 {
        let first = next_psn(&line);
        let mut step = 0;
        line.stream_with(Work::Write, 1, |line| {
            for near in 0..4 {
                let psn = first.plus(step % 64 + near);
                let packet = sack(line, psn, psn.plus(2 + near), 1, &[0xf0; 8], 10 + round);
                line.inject(0, &packet);
            }
            step += 1;
        });
    }
    assert!(line.counter(0, Counter::SackReceived) > heard, "some are believed");
    line.stream(Work::Write, 16);
}

#[test]
fn sack_of_a_queue_pair_that_did_not_agree_is_dropped_as_an_unknown_opcode() {
    let mut line = Line::new([&selective, &selective], false);
    let packet = sack(&line, Psn::new(100), Psn::new(101), 1, &[0xff; 8], 0);
    assert_eq!(line.inject(0, &packet), Disposition::Dropped(Counter::BadOpcode));
}
