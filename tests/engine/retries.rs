//! Retries of a requester: timeouts, RNR NAKs, and what is counted and retransmitted.

use roce::engine::Counter;
use roce::verbs::{QpState, QpType, RetryCount, RnrRetry, SendFlags, WcStatus};
use roce::wire::{Bits, Opcode};

use super::script::*;

const FIRST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;

#[test]
fn retry_cnt_is_a_literal_count() {
    // Rules: P-07.2, Q-02.
    // P-07: also 7, which rxe takes for infinite.
    for count in [0, 1, 3, 7] {
        let mut s = Script::with(|setup| setup.attr.retry_cnt = RetryCount(Bits::low(count)));
        s.post_flags(1, SEND, 4, SendFlags::empty());
        s.post(2, SEND, 4);
        s.expect_count(2);
        // A silent peer is given the same time for each retry: it is reported dead after T ×
        // (retries + 1).
        let mut now = 0;
        for _ in 0..count {
            now += TIMEOUT;
            // Less what was rounded up.
            s.at(now - 1);
            s.expect_nothing();
            s.at(now);
            s.expect_count(2);
        }
        s.completes(&[]);
        s.at(now + TIMEOUT);
        s.expect_nothing();
        s.completes(&[(1, WcStatus::RetryExcErr), (2, FLUSHED)]);
        s.state(QpState::Err);
        assert_eq!(s.count(Counter::Retry), u64::from(count));
        assert_eq!(s.count(Counter::RetryExceeded), 1);
        assert_eq!(s.next_timeout().filter(|at| *at > s.now), None, "nothing is left to wait for");
    }
}

/// C9-141: between T and 4 T. Only a peer that answers, but acknowledges nothing new, is given more
/// than T.
#[test]
fn retransmission_timeout_backs_off_while_the_peer_answers() {
    // Rule: P-07.4.
    let mut s = Script::with(|setup| setup.attr.retry_cnt = RetryCount(Bits::low(7)));
    s.post_flags(1, SEND, 4, SendFlags::empty());
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.post(2, SEND, 4);
    s.expect_count(1);
    let mut now = 0;
    // An acknowledgement that says nothing new is a sign of life.
    for waits in [1, 2, 4, 4] {
        s.send(ack(SQ, 1));
        now += waits * TIMEOUT;
        s.at(now - waits);
        s.expect_nothing();
        s.at(now);
        s.expect_count(1);
    }
    // What was backed off stays so, until something is acknowledged.
    now += 4 * TIMEOUT;
    s.at(now - 4);
    s.expect_nothing();
    s.at(now);
    s.expect_count(1);
    s.send(ack(SQ + 1, 2));
    s.completes(&[(2, OK)]);
    s.post(3, SEND, 4);
    s.expect_count(1);
    s.at(now + TIMEOUT);
    s.expect_count(1);
}

#[test]
fn progress_resets_the_retry_count() {
    // Rule: P-07.3.
    let mut s = Script::with(|setup| setup.attr.retry_cnt = RetryCount(Bits::low(1)));
    s.post(1, SEND, 3 * 256);
    s.expect_count(3);
    let mut now = 0;
    for acknowledged in 0..2 {
        now += 2000;
        s.at(now);
        s.sent();
        s.send(ack(SQ + acknowledged, 0));
    }
    now += 2000;
    s.at(now);
    s.expect_count(1);
    s.state(QpState::Rts);
}

#[test]
fn timeout_zero_never_expires() {
    // Rule: P-07.1.
    let mut s = Script::with(|setup| setup.attr.timeout = roce::verbs::AckTimeout::NEVER);
    s.post(1, SEND, 4);
    s.expect_count(1);
    assert_eq!(s.next_timeout(), None);
    s.at(1 << 40);
    s.expect_nothing();
    s.completes(&[]);
}

#[test]
fn the_timer_runs_from_the_last_progress() {
    // Rule: P-07.4.
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.at(1000);
    s.expect_nothing();
    s.send(ack(SQ, 1));
    s.at(2000);
    s.expect_nothing();
    s.at(1000 + TIMEOUT);
    s.expect_count(1);
    s.send(ack(SQ + 1, 2));
    s.at(100_000);
    s.expect_nothing();
    assert_eq!(s.count(Counter::Timeout), 1);
}

#[test]
fn rnr_nak_is_followed_by_its_wait() {
    // P-06, and a bug that rxe had: the RNR timer that never waited. Code 12 is 640 µs.
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.at(100);
    s.send(rnr(SQ, 12, 0));
    s.expect_nothing();
    s.at(739);
    s.expect_nothing();
    s.at(740);
    s.expect_count(2);
    assert_eq!((s.count(Counter::RnrReceived), s.count(Counter::Retry)), (1, 0));
    s.send(ack(SQ + 1, 2));
    s.completes(&[(1, OK), (2, OK)]);
}

#[test]
fn every_rnr_code_waits_its_time() {
    // Rules: P-06.1, Q-03.
    for (code, us) in [(1, 10), (5, 60), (25, 61_440), (31, 491_520), (0, 655_360)] {
        let mut s = Script::with(|setup| setup.attr.timeout = roce::verbs::AckTimeout::NEVER);
        s.post(1, SEND, 4);
        s.expect_count(1);
        s.send(rnr(SQ, code, 0));
        s.at(us - 1);
        s.expect_nothing();
        s.at(us);
        s.expect_count(1);
    }
}

#[test]
fn rnr_retry_zero_fails_at_once_and_seven_never() {
    // Rules: P-06.2, P-06.3.
    let mut s = Script::with(|setup| setup.attr.rnr_retry = RnrRetry(Bits::low(0)));
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.send(rnr(SQ, 1, 0));
    s.completes(&[(1, WcStatus::RnrRetryExcErr)]);
    s.state(QpState::Err);

    let mut s = Script::with(|setup| {
        setup.attr.rnr_retry = RnrRetry::INFINITE;
        setup.attr.retry_cnt = RetryCount(Bits::low(0));
    });
    s.post(1, SEND, 4);
    for round in 0..500 {
        s.expect_count(1);
        s.send(rnr(SQ, 1, 0));
        s.at(round * 10 + 10);
    }
    s.expect_count(1);
    s.state(QpState::Rts);
}

#[test]
fn rnr_retries_are_counted_and_restored_by_progress() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    let mut now = 0;
    let mut wait = |s: &mut Script, psn| {
        s.sent();
        s.send(rnr(psn, 1, psn - SQ));
        now += 10;
        s.at(now);
    };
    for _ in 0..3 {
        wait(&mut s, SQ);
    }
    s.sent();
    s.send(ack(SQ, 1));
    for _ in 0..3 {
        wait(&mut s, SQ + 1);
    }
    s.completes(&[(1, OK)]);
    wait(&mut s, SQ + 1);
    s.completes(&[(2, WcStatus::RnrRetryExcErr)]);
    assert_eq!(s.count(Counter::RnrRetryExceeded), 1);
}

#[test]
fn naks_during_an_rnr_wait_are_ignored() {
    // Rule: Q-07.
    // rxe follows an RNR NAK by a sequence NAK for what was in flight behind: neither that, nor
    // another RNR NAK, nor the timer costs a retry, and the wait is no shorter and no longer.
    for timeout in [0, 1, 8] {
        let mut s = Script::with(|setup| {
            setup.attr.retry_cnt = RetryCount(Bits::low(0));
            setup.attr.rnr_retry = RnrRetry(Bits::low(1));
            setup.attr.timeout = roce::verbs::AckTimeout(Bits::low(timeout));
        });
        s.post(1, SEND, 4);
        s.post(2, SEND, 4);
        s.expect_count(2);
        s.send(rnr(SQ, 12, 0));
        s.send(seq_nak(SQ, 0));
        s.at(500);
        s.send(rnr(SQ, 12, 0));
        s.at(639);
        s.expect_nothing();
        s.at(640);
        s.expect_count(2);
        s.send(ack(SQ + 1, 2));
        s.completes(&[(1, OK), (2, OK)]);
        assert_eq!(s.count(Counter::Retry), 0);
    }
}

#[test]
fn every_kind_of_retry_counts() {
    // Rule: P-07.2.
    let without = || {
        let mut setup = Setup::new(QpType::Rc);
        setup.attr.retry_cnt = RetryCount(Bits::low(0));
        setup.build()
    };
    let mut s = without();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.send(seq_nak(SQ, 0));
    s.completes(&[(1, WcStatus::RetryExcErr)]);
    let mut s = without();
    s.post(1, SEND, 4);
    s.post(2, READ, 4);
    s.post(3, SEND, 4);
    s.expect_count(3);
    s.send(ack(SQ + 2, 3));
    s.completes(&[(1, OK), (2, WcStatus::RetryExcErr), (3, FLUSHED)]);
    s.state(QpState::Err);
}

#[test]
fn rnr_nak_at_the_last_packet_retransmits_only_that() {
    let mut s = Script::rc();
    let op =
        roce::verbs::SendOp::Write { remote_addr: REMOTE, rkey: REMOTE_KEY, imm: Some(*b"imm!") };
    s.post(1, op, 600);
    s.expect_count(3);
    s.send(rnr(SQ + 2, 1, 0));
    s.at(10);
    let sent = s.expect_count(1);
    assert_eq!(sent[0].bth.opcode, Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE);
    assert_eq!(sent[0].bth.psn.get(), SQ + 2);
    s.send(ack(SQ + 2, 1));
    s.completes(&[(1, OK)]);
}

#[test]
fn responses_after_a_retry_are_taken_once() {
    let mut s = Script::rc();
    s.post(1, READ, 300);
    s.post(2, ADD, 8);
    s.expect_count(2);
    s.at(TIMEOUT);
    s.expect_count(2);
    let answers = [
        response(FIRST, SQ, 1).fill(256),
        response(LAST, SQ + 1, 1).fill(44),
        response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ + 2, 2).original(6),
    ];
    for answer in answers.iter().chain(&answers) {
        s.send(answer.clone());
    }
    s.completes(&[(1, OK), (2, OK)]);
    assert_eq!(s.count(Counter::StaleResponse), 3);
    s.expect_nothing();
}
