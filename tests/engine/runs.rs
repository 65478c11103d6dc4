//! Long messages: MIDDLEs that come or go one after the other.

use roce::engine::{Batch, Counter, Disposition};
use roce::verbs::QpState;
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, Packet};

use super::script::*;

const FIRST: Opcode = Opcode::RC_RDMA_WRITE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_WRITE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_WRITE_LAST;

/// Number of packets of the WRITEs here.
const PACKETS: usize = 8;

/// A queue pair that has got the first three packets of a WRITE.
fn in_a_run() -> Script {
    let mut s = Script::rc();
    let len = u32::try_from(PACKETS * MTU).unwrap();
    s.send(pkt(FIRST, RQ).reth(s.va(0), s.rkey(), len).fill(MTU));
    s.send(middle(1));
    s.send(middle(2));
    s.expect_nothing();
    s
}

/// Packet `at` of the WRITE.
fn middle(at: u32) -> Pkt {
    pkt(MIDDLE, RQ + at).fill(MTU)
}

#[test]
fn middles_are_written_one_behind_the_other() {
    let mut s = in_a_run();
    (3..7).for_each(|at| assert_eq!(s.send(middle(at)), Disposition::Accepted));
    s.send(pkt(LAST, RQ + 7).fill(MTU).ack_req());
    s.expect([ack(RQ + 7, 1)]);
    assert_eq!(s.read(0, PACKETS * MTU), pattern(MTU).repeat(PACKETS));
}

#[test]
fn middle_that_asks_for_an_ack_gets_it() {
    let mut s = in_a_run();
    s.send(middle(3).ack_req());
    s.expect([ack(RQ + 3, 0)]);
    s.send(middle(4));
    s.expect_nothing();
    assert_eq!(s.read(0, 5 * MTU), pattern(MTU).repeat(5));
}

#[test]
fn deregistered_memory_is_not_written_by_the_next_middle() {
    let mut s = in_a_run();
    s.engine.deregister(s.mr).unwrap();
    s.send(middle(3));
    s.expect([nak(RQ + 3, NakCode::RemoteAccessError, 0)]);
    assert_eq!(s.read(3 * MTU, MTU), [0; MTU]);
    s.state(QpState::Err);
}

#[test]
fn gap_between_middles_is_naked_once() {
    let mut s = in_a_run();
    s.send(middle(4));
    s.expect([seq_nak(RQ + 3, 0)]);
    s.send(middle(5));
    s.expect_nothing();
    (3..7).for_each(|at| assert_eq!(s.send(middle(at)), Disposition::Accepted));
    s.send(middle(9));
    s.expect([seq_nak(RQ + 7, 0)]);
}

#[test]
fn duplicate_of_a_middle_is_not_written() {
    let mut s = in_a_run();
    s.send(pkt(MIDDLE, RQ + 2).data(&[7; MTU]));
    assert_eq!(s.count(Counter::Duplicate), 1);
    assert_eq!(s.read(2 * MTU, MTU), pattern(MTU));
    assert_eq!(s.read(3 * MTU, MTU), [0; MTU]);
}

#[test]
fn short_middle_and_one_too_many_are_invalid() {
    let mut s = in_a_run();
    s.send(pkt(MIDDLE, RQ + 3).fill(MTU - 4));
    s.expect([nak(RQ + 3, NakCode::InvalidRequest, 0)]);
    let mut s = in_a_run();
    (3..7).for_each(|at| assert_eq!(s.send(middle(at)), Disposition::Accepted));
    s.send(middle(7));
    s.expect([nak(RQ + 7, NakCode::InvalidRequest, 0)]);
    assert_eq!(s.read(7 * MTU, MTU), [0; MTU]);
}

#[test]
fn middles_of_a_stranger_are_dropped() {
    let mut s = in_a_run();
    s.dropped(middle(3).pkey(0x1234), Counter::BadPKey);
    s.send_from(own_gid(), own_gid(), middle(3));
    assert_eq!(s.count(Counter::WrongPeer), 1);
    assert_eq!(s.read(3 * MTU, MTU), [0; MTU]);
}

#[test]
fn queue_pair_in_error_takes_no_more_middles() {
    let mut s = in_a_run();
    s.enter(QpState::Err);
    s.dropped(middle(3), Counter::WrongState);
    assert_eq!(s.read(3 * MTU, MTU), [0; MTU]);
}

/// Packets of a WRITE of `len` bytes, sent in batches of so many.
fn packets(len: u32, batch: usize, by_reference: bool) -> Vec<Vec<u8>> {
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(len as usize)).unwrap();
    s.post(1, WRITE, len);
    let mut batch = Batch::new(batch).take_references(by_reference);
    let mut all = Vec::new();
    while s.engine.poll_transmit(s.time(), &mut batch) > 0 {
        batch.fill().unwrap();
        all.extend(batch.iter().map(|(_, packet)| packet.to_vec()));
        batch.clear();
    }
    all
}

#[test]
fn packets_of_a_message_are_the_same_in_batches_of_any_size() {
    for len in [2 * MTU, 3 * MTU, 10 * MTU, 20 * MTU + 5] {
        let len = u32::try_from(len).unwrap();
        let alone = packets(len, 1, false);
        let count = len.div_ceil(u32::try_from(MTU).unwrap());
        for (packet, psn) in alone.iter().zip(SQ..SQ + count) {
            let bth = Packet::parse(&packet[..packet.len() - 4]).unwrap().bth().repr();
            assert_eq!(bth.psn.get(), psn);
        }
        assert_eq!(alone.len(), count as usize);
        for (batch, by_reference) in [(64, false), (64, true), (7, false), (7, true), (1, true)] {
            assert_eq!(packets(len, batch, by_reference), alone, "{len} bytes by {batch}");
        }
    }
}
