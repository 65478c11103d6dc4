use super::super::testing::{MTU, Rig, packet};
use super::*;
use crate::wire::{Extensions, Opcode, RethRepr};

const SEND: Opcode = Opcode::RC_SEND_ONLY;
const ACKNOWLEDGE: Opcode = Opcode::RC_ACKNOWLEDGE;

struct Receiver {
    rx: Rx,
    rig: Rig,
}

impl Receiver {
    fn new() -> Self {
        let mut rx = Rx::new(16, 0, false);
        rx.start_at(Psn::new(100));
        Self { rx, rig: Rig::new() }
    }

    fn post(&mut self, id: u64) {
        self.rx.post(&RecvWr { id: WrId(id), sges: &[] }).unwrap();
    }

    fn receive_with(
        &mut self,
        opcode: Opcode,
        psn: u32,
        reth: Option<RethRepr>,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let bytes = packet(opcode, psn, Extensions { reth, ..Extensions::default() }, payload);
        let packet = Packet::parse(&bytes).unwrap();
        self.rx.handle_request(&packet, &self.rig.attr, &mut self.rig.env)
    }

    fn receive(&mut self, opcode: Opcode, psn: u32) -> Result<(), Failure> {
        self.receive_with(opcode, psn, None, &[])
    }

    /// Sends all pending responses.
    fn respond(&mut self) -> Vec<(Opcode, u32)> {
        let Rig { attr, env, batch, .. } = &mut self.rig;
        while self.rx.responses().is_pending() {
            self.rx.transmit_response(attr, env, batch).unwrap();
        }
        self.rig.sent()
    }
}

#[test]
fn requests_in_sequence_complete_and_are_acknowledged_together() {
    let mut receiver = Receiver::new();
    (1..=2).for_each(|id| receiver.post(id));
    (100..102).for_each(|psn| receiver.receive(SEND, psn).unwrap());
    assert_eq!(receiver.rig.completions(), [1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 101)]);
}

/// P-03
#[test]
fn gap_is_naked_once_until_the_expected_psn_comes() {
    let mut receiver = Receiver::new();
    (1..=4).for_each(|id| receiver.post(id));
    for psn in [101, 102] {
        receiver.receive(SEND, psn).unwrap();
    }
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 100)]);
    receiver.receive(SEND, 103).unwrap();
    assert_eq!(receiver.respond(), []);
    receiver.receive(SEND, 100).unwrap();
    receiver.receive(SEND, 102).unwrap();
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 100), (ACKNOWLEDGE, 101)]);
}

/// P-04, C9-105
#[test]
fn duplicate_send_is_acknowledged_and_not_executed() {
    let mut receiver = Receiver::new();
    (1..=2).for_each(|id| receiver.post(id));
    receiver.receive(SEND, 100).unwrap();
    receiver.respond();
    receiver.receive(SEND, 100).unwrap();
    assert_eq!(receiver.rig.completions().len(), 1);
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 100)]);
    assert_eq!(receiver.rx.epsn(), Psn::new(101));
}

/// P-06
#[test]
fn send_without_a_receive_is_rnr_naked_and_may_come_again() {
    let mut receiver = Receiver::new();
    receiver.receive(SEND, 100).unwrap();
    receiver.receive(SEND, 101).unwrap();
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 100)], "the one behind gets no NAK");
    receiver.post(1);
    receiver.receive(SEND, 100).unwrap();
    assert_eq!(receiver.rig.completions(), [(1, WcStatus::Success)]);
}

#[test]
fn message_that_does_not_begin_is_refused() {
    let mut receiver = Receiver::new();
    let refused = receiver.receive_with(Opcode::RC_SEND_LAST, 100, None, &[1]);
    assert_eq!(refused, Err(Failure::Reported));
    assert_eq!(receiver.respond(), [(ACKNOWLEDGE, 100)]);
}

/// C9-88: the key of zero bytes is not checked. A READ of more takes a PSN for each packet of its
/// response.
#[test]
fn zero_length_read_needs_no_key() {
    let mut receiver = Receiver::new();
    let reth = |dma_len| Some(RethRepr { va: 0, rkey: RKey::new(7), dma_len });
    let read = Opcode::RC_RDMA_READ_REQUEST;
    assert_eq!(receiver.receive_with(read, 100, reth(0), &[]), Ok(()));
    assert_eq!(receiver.respond(), [(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 100)]);
    let refused = receiver.receive_with(read, 101, reth(MTU + 1), &[]);
    assert_eq!(refused, Err(Failure::Reported));
}

/// P-09: a FIRST without a whole MTU of payload. P-08: the rest is flushed in order.
#[test]
fn refused_message_completes_its_receive_and_flush_the_others() {
    let mut receiver = Receiver::new();
    (1..=3).for_each(|id| receiver.post(id));
    receiver.receive_with(Opcode::RC_SEND_FIRST, 100, None, &[]).unwrap_err();
    receiver.rx.flush(&receiver.rig.attr, &mut receiver.rig.env);
    let expected = [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(receiver.rig.completions(), expected);
}
