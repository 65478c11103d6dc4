use super::super::testing::{ACK, Rig, ack};
use super::*;
use crate::verbs::{SendOp, WrId};
use crate::wire::aeth::{Answer, NakCode, RnrTimer};
use crate::wire::{Bits, Opcode, Packet, RKey};

const SEND: Opcode = Opcode::RC_SEND_ONLY;
const READ: Opcode = Opcode::RC_RDMA_READ_REQUEST;

struct Sender {
    tx: Tx,
    rig: Rig,
}

impl Sender {
    fn new() -> Self {
        let mut tx = Tx::new(16);
        tx.start_at(Psn::new(100));
        Self { tx, rig: Rig::new() }
    }

    fn post(&mut self, id: u64, op: SendOp) {
        let wr = SendWr::new(WrId(id), op, Data::EMPTY);
        self.tx.post(&wr, &[], &self.rig.attr).unwrap();
    }

    fn send(&mut self, id: u64) {
        self.post(id, SendOp::Send { imm: None });
    }

    fn read(&mut self, id: u64) {
        self.post(id, SendOp::Read { remote_addr: 0, rkey: RKey::new(0) });
    }

    /// Sends until nothing more can be sent.
    fn transmit(&mut self) -> Vec<(Opcode, u32)> {
        let Rig { attr, env, batch, .. } = &mut self.rig;
        while self.tx.transmit_next(attr, env, batch) == Ok(Step::Done) {}
        self.rig.sent()
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<ResponseOutcome, Failure> {
        let packet = Packet::parse(bytes).unwrap();
        self.tx.handle_response(&packet, &self.rig.attr, &mut self.rig.env)
    }

    /// Waits for the timer to expire.
    fn time_out(&mut self) -> Result<(), Failure> {
        let wakeup = self.rig.env.timers.next().expect("the timer runs");
        self.rig.env.advance(wakeup);
        let (wakeup, _) = self.rig.env.timers.pop_due(wakeup).unwrap();
        assert!(self.tx.timer_expired(wakeup, &self.rig.attr, &mut self.rig.env));
        self.tx.handle_timer(&self.rig.attr, &mut self.rig.env)
    }
}

#[test]
fn ack_completes_everything_before_it() {
    let mut sender = Sender::new();
    (1..=3).for_each(|id| sender.send(id));
    assert_eq!(sender.transmit(), [(SEND, 100), (SEND, 101), (SEND, 102)]);
    assert_eq!(sender.receive(&ack(101, ACK, 2)), Ok(ResponseOutcome::MaySend));
    assert_eq!(sender.rig.completions(), [1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!((sender.tx.una(), sender.tx.next_psn()), (Psn::new(102), Psn::new(103)));
}

/// Responses that were never requested have no effect.
#[test]
fn ack_of_an_unsent_psn_is_ignored() {
    let mut sender = Sender::new();
    sender.send(1);
    sender.transmit();
    assert_eq!(sender.receive(&ack(101, ACK, 1)), Ok(ResponseOutcome::Ignored));
    assert_eq!(sender.rig.completions(), []);
}

/// P-07
#[test]
fn timeout_goes_back_n_until_retry_cnt_is_used_up() {
    let mut sender = Sender::new();
    (1..=2).for_each(|id| sender.send(id));
    sender.transmit();
    for _ in 0..2 {
        assert_eq!(sender.time_out(), Ok(()));
        assert_eq!(sender.transmit(), [(SEND, 100), (SEND, 101)]);
    }
    assert_eq!(sender.time_out(), Err(Failure::Send));
    assert_eq!(sender.rig.completions(), [(1, WcStatus::RetryExcErr)]);
    sender.tx.flush(&sender.rig.attr, &mut sender.rig.env);
    assert_eq!(sender.rig.completions(), [(2, WcStatus::WrFlushErr)]);
}

/// P-03: one loss is one retry, however many NAKs tell of it.
#[test]
fn sequence_nak_rewinds_once() {
    let mut sender = Sender::new();
    (1..=3).for_each(|id| sender.send(id));
    sender.transmit();
    let nak = ack(101, Answer::Nak(NakCode::PsnSequenceError), 1);
    sender.receive(&nak).unwrap();
    assert_eq!(sender.rig.completions(), [(1, WcStatus::Success)]);
    assert_eq!(sender.transmit(), [(SEND, 101), (SEND, 102)]);
    sender.receive(&nak).unwrap();
    assert_eq!(sender.transmit(), []);
}

/// A peer whose receive buffer is smaller than the window loses packets once, not at every burst.
#[test]
fn after_a_loss_the_window_is_smaller_for_a_while() {
    let mut sender = Sender::new();
    (sender.rig.attr.window, sender.rig.attr.loss_window) = (4, 2);
    (1..=6).for_each(|id| sender.send(id));
    assert_eq!(sender.transmit().len(), 4);
    let nak = Answer::Nak(NakCode::PsnSequenceError);
    sender.receive(&ack(101, nak, 1)).unwrap();
    assert_eq!(sender.transmit(), [(SEND, 101), (SEND, 102)]);
    sender.receive(&ack(102, ACK, 3)).unwrap();
    assert_eq!(sender.transmit(), [(SEND, 103), (SEND, 104)]);
    sender.receive(&ack(104, ACK, 5)).unwrap();
    assert_eq!(sender.transmit(), [(SEND, 105)]);
    sender.receive(&ack(105, ACK, 6)).unwrap();
    sender.tx.since_loss = retransmit::LOSS_FREE - 1;
    (7..=12).for_each(|id| sender.send(id));
    assert_eq!(sender.transmit(), [(SEND, 106), (SEND, 107)]);
    sender.receive(&ack(106, ACK, 7)).unwrap();
    assert_eq!(sender.transmit(), [(SEND, 108), (SEND, 109), (SEND, 110)]);
}

/// P-05
#[test]
fn ack_behind_a_read_is_an_implied_nak() {
    let mut sender = Sender::new();
    sender.read(1);
    sender.send(2);
    assert_eq!(sender.transmit(), [(READ, 100), (SEND, 101)]);
    sender.receive(&ack(101, ACK, 2)).unwrap();
    assert_eq!(sender.rig.completions(), []);
    assert_eq!(sender.transmit(), [(READ, 100), (SEND, 101)]);
}

/// P-06: rnr_retry is 1 here.
#[test]
fn rnr_nak_waits_and_then_retransmits_until_rnr_retry_is_used_up() {
    let mut sender = Sender::new();
    sender.send(1);
    sender.transmit();
    let rnr = ack(100, Answer::RnrNak(RnrTimer(Bits::low(1))), 0);
    sender.receive(&rnr).unwrap();
    assert_eq!(sender.transmit(), [], "it waits");
    assert_eq!(sender.time_out(), Ok(()));
    assert_eq!(sender.transmit(), [(SEND, 100)]);
    assert_eq!(sender.receive(&rnr), Err(Failure::Send));
    assert_eq!(sender.rig.completions(), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn fatal_nak_completes_its_request_with_the_error() {
    let mut sender = Sender::new();
    (1..=3).for_each(|id| sender.send(id));
    sender.transmit();
    let nak = ack(101, Answer::Nak(NakCode::RemoteAccessError), 1);
    assert_eq!(sender.receive(&nak), Err(Failure::Send));
    let expected = [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)];
    assert_eq!(sender.rig.completions(), expected);
}

#[test]
fn max_rd_atomic_limits_reads_in_flight() {
    let mut sender = Sender::new();
    (1..=6).for_each(|id| sender.read(id));
    assert_eq!(sender.transmit().len(), 4);
}
