//! Refusals of a responder: keys, rights, lengths, sequences of opcodes, and the effect on the
//! receive.

use roce::engine::Counter;
use roce::verbs::{Access, EventType, QpState, Sge, WcStatus};
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, RKey};

use super::script::*;

const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccessError;
const BAD_KEY: RKey = RKey::new(0x1234_5678);

/// The packet is refused with this code, both ways, and the queue pair fails with this event.
#[track_caller]
fn refused(setup: Setup, packet: impl Fn(&Script) -> Pkt, code: NakCode, event: EventType) {
    let mut s = setup.build();
    s.recv(9, 0, 10);
    let packet = packet(&s).ack_req();
    let words = packet.words();
    s.send(packet);
    let sent: Vec<_> = s.sent().iter().map(Pkt::words).collect();
    assert_eq!(sent, [nak(RQ, code, 0).words()], "{words}");
    s.events(&[event]);
    s.state(QpState::Err);
    s.receives(&[(9, FLUSHED)]);
    assert_eq!(s.count(Counter::Refused), 1);
}

#[test]
fn unknown_keys_are_naked() {
    let event = EventType::QpAccessErr;
    let write = |va, key, len: u32| {
        pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(va, key, len).fill(len as usize)
    };
    refused(rc(), |s| write(s.va(0), BAD_KEY, 4), ACCESS, event);
    refused(rc(), |s| write(s.va(0), RKey::new(s.rkey().get() ^ 1), 4), ACCESS, event);
    refused(rc(), |s| write(s.va(SIZE as u64 - 3), s.rkey(), 4), ACCESS, event);
    refused(rc(), |s| write(s.va(0) - 1, s.rkey(), 4), ACCESS, event);
    refused(rc(), |s| write(u64::MAX - 1, s.rkey(), 4), ACCESS, event);
    let read = |va, key, len| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, len);
    refused(rc(), |s| read(s.va(0), BAD_KEY, 4), ACCESS, event);
    refused(rc(), |s| read(s.va(1), s.rkey(), SIZE as u32), ACCESS, event);
    // A bug that rxe had: address and length that wrap to something within.
    refused(rc(), |s| read(u64::MAX - 7, s.rkey(), 1 << 31), ACCESS, event);
    refused(rc(), |s| read(s.va(8).wrapping_sub(1 << 31), s.rkey(), 1 << 31), ACCESS, event);
    let atomic = |va, key| pkt(Opcode::RC_FETCH_ADD, RQ).atomic(va, key, 1, 0);
    refused(rc(), |s| atomic(s.va(0), BAD_KEY), ACCESS, event);
    refused(rc(), |s| atomic(s.va(SIZE as u64), s.rkey()), ACCESS, event);
    refused(rc(), |_| atomic(u64::MAX - 7, RKey::new(0)), ACCESS, event);
    let flush = |va, key, len| pkt(Opcode::RC_FLUSH, RQ).feth(1, 0).reth(va, key, len);
    refused(rc(), |s| flush(s.va(0), BAD_KEY, 0), ACCESS, event);
    refused(rc(), |s| flush(s.va(1), s.rkey(), SIZE as u32), ACCESS, event);
    let store = |va, key| pkt(Opcode::RC_ATOMIC_WRITE, RQ).reth(va, key, 8).fill(8);
    refused(rc(), |s| store(s.va(0), BAD_KEY), ACCESS, event);
}

#[test]
fn the_whole_range_of_a_write_is_checked_before_any_of_it_is_written() {
    let mut s = Script::rc();
    let first = pkt(Opcode::RC_RDMA_WRITE_FIRST, RQ).reth(s.va(0), s.rkey(), SIZE as u32 + 1);
    s.send(first.fill(256));
    s.expect([nak(RQ, ACCESS, 0)]);
    assert_eq!(s.read(0, 4), [0; 4]);
}

#[test]
fn rights_that_the_region_lacks_are_an_access_error() {
    let event = EventType::QpAccessErr;
    let without = |right: Access| {
        let mut setup = rc();
        setup.access = ALL.difference(right);
        setup
    };
    let write = |s: &Script| pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(s.va(0), s.rkey(), 4).fill(4);
    refused(without(Access::REMOTE_WRITE), write, ACCESS, event);
    let read = |s: &Script| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 4);
    refused(without(Access::REMOTE_READ), read, ACCESS, event);
    let add = |s: &Script| pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 1, 0);
    refused(without(Access::REMOTE_ATOMIC), add, ACCESS, event);
    let flush = |s: &Script| pkt(Opcode::RC_FLUSH, RQ).feth(2, 0).reth(s.va(0), s.rkey(), 4);
    refused(without(Access::FLUSH_PERSISTENT), flush, ACCESS, event);
}

#[test]
fn rights_that_the_queue_pair_lacks_are_an_invalid_request() {
    let event = EventType::QpReqErr;
    let without = |right: Access| {
        let mut setup = rc();
        setup.attr.qp_access_flags = ALL.difference(right);
        setup
    };
    let write = |s: &Script| pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).reth(s.va(0), s.rkey(), 4).fill(4);
    refused(without(Access::REMOTE_WRITE), write, INVALID, event);
    let read = |s: &Script| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 4);
    refused(without(Access::REMOTE_READ), read, INVALID, event);
    let add = |s: &Script| pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 1, 0);
    refused(without(Access::REMOTE_ATOMIC), add, INVALID, event);
    let flush = |s: &Script| pkt(Opcode::RC_FLUSH, RQ).feth(1, 0).reth(s.va(0), s.rkey(), 4);
    refused(without(Access::FLUSH_GLOBAL), flush, INVALID, event);
}

#[test]
fn memory_of_another_protection_domain_is_not_accessible() {
    let mut s = Script::rc();
    let other = s.engine.create_pd().unwrap();
    let region = s.buffer.region();
    let attr = roce::engine::MrAttr { region, base: s.va(0), access: ALL };
    let mr = s.engine.register(other, attr).unwrap();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), mr.rkey(), 4));
    s.expect([nak(RQ, ACCESS, 0)]);
}

#[test]
fn lengths_that_do_not_suit_the_position_are_invalid() {
    // Rules: P-09.1, P-09.2, P-09.3.
    // P-09, and a bug that rxe had: the wrong length check.
    let event = EventType::QpReqErr;
    let write = |opcode, dma_len, len: usize| {
        move |s: &Script| pkt(opcode, RQ).reth(s.va(0), s.rkey(), dma_len).fill(len)
    };
    let (first, only) = (Opcode::RC_RDMA_WRITE_FIRST, Opcode::RC_RDMA_WRITE_ONLY);
    for (opcode, dma_len, len) in [
        (first, 1000, 255),
        (first, 1000, 257),
        (first, 1000, 0),
        (first, 256, 256),
        (first, 100, 256),
        (only, 257, 257),
        (only, 100, 99),
        (only, 100, 101),
        (only, 0, 1),
        (only, 4, 0),
        (first, (1 << 31) + 1, 256),
    ] {
        refused(rc(), write(opcode, dma_len, len), INVALID, event);
    }
    let read = |s: &Script| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 8);
    refused(rc(), move |s| read(s).fill(4), INVALID, event);
    let too_long = move |s: &Script| {
        pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), (1 << 31) + 1)
    };
    refused(rc(), too_long, INVALID, event);
    let add = |s: &Script| pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 1, 0).fill(8);
    refused(rc(), add, INVALID, event);
    for (dma_len, len) in [(8, 4), (8, 12), (4, 8), (8, 0)] {
        refused(rc(), write(Opcode::RC_ATOMIC_WRITE, dma_len, len), INVALID, event);
    }
    let flush =
        |s: &Script| pkt(Opcode::RC_FLUSH, RQ).feth(1, 0).reth(s.va(0), s.rkey(), 8).fill(4);
    refused(rc(), flush, INVALID, event);
}

#[test]
fn sends_of_the_wrong_length_fail_the_receive_they_took() {
    for (opcode, len) in [
        (Opcode::RC_SEND_FIRST, 255),
        (Opcode::RC_SEND_FIRST, 0),
        (Opcode::RC_SEND_FIRST, 257),
        (Opcode::RC_SEND_ONLY, 257),
    ] {
        let mut s = Script::rc();
        s.recv(1, 0, 1000);
        s.recv(2, 0, 1000);
        s.send(pkt(opcode, RQ).fill(len));
        s.expect([nak(RQ, INVALID, 0)]);
        s.receives(&[(1, WcStatus::LocLenErr), (2, FLUSHED)]);
        s.events(&[]);
        s.state(QpState::Err);
    }
}

#[test]
fn later_packets_of_the_wrong_length_are_invalid() {
    // Rules: P-09.1, P-09.3.
    for (opcode, len) in [
        (Opcode::RC_RDMA_WRITE_MIDDLE, 255),
        (Opcode::RC_RDMA_WRITE_LAST, 0),
        (Opcode::RC_RDMA_WRITE_LAST, 43),
        (Opcode::RC_RDMA_WRITE_LAST, 45),
        (Opcode::RC_RDMA_WRITE_LAST, 257),
        // It would run past the length of the message.
        (Opcode::RC_RDMA_WRITE_MIDDLE, 256),
    ] {
        let mut s = Script::rc();
        let (va, key) = (s.va(0), s.rkey());
        s.send(pkt(Opcode::RC_RDMA_WRITE_FIRST, RQ).reth(va, key, 300).fill(256));
        s.send(pkt(opcode, RQ + 1).fill(len));
        s.expect([nak(RQ + 1, INVALID, 0)]);
        s.state(QpState::Err);
    }
}

#[test]
fn a_receive_that_a_wrong_length_broke_says_so() {
    for (opcode, len) in [
        (Opcode::RC_SEND_MIDDLE, 0),
        (Opcode::RC_SEND_MIDDLE, 255),
        (Opcode::RC_SEND_MIDDLE, 257),
        (Opcode::RC_SEND_LAST, 0),
        (Opcode::RC_SEND_LAST, 257),
    ] {
        let mut s = Script::rc();
        s.recv(1, 0, 1000);
        s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
        s.send(pkt(opcode, RQ + 1).fill(len));
        s.expect([nak(RQ + 1, INVALID, 0)]);
        s.receives(&[(1, WcStatus::LocLenErr)]);
    }
    for dma_len in [300, (1 << 31) + 1] {
        let mut s = Script::rc();
        s.recv(1, 0, 1000);
        let write = pkt(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, RQ).imm([1; 4]);
        s.send(write.reth(s.va(0), s.rkey(), dma_len).fill(4));
        s.expect([nak(RQ, INVALID, 0)]);
        s.receives(&[(1, WcStatus::LocLenErr)]);
    }
}

#[test]
fn padding_that_does_not_suit_the_payload_is_invalid() {
    // Rule: W-50.2.
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    let mut bytes = pkt(Opcode::RC_SEND_ONLY, RQ).to(s.qpn).fill(8).bytes();
    // Six bytes need two more, and have none.
    bytes.truncate(18);
    s.send_bytes(peer_gid(), own_gid(), &bytes);
    s.expect([nak(RQ, INVALID, 0)]);
    // Nothing needs none, and has three.
    let (va, key) = (s.va(0), s.rkey());
    for packet in [
        pkt(Opcode::RC_FLUSH, RQ).feth(1, 0).reth(va, key, 4),
        pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(va, key, 4),
        pkt(Opcode::RC_FETCH_ADD, RQ).atomic(va, key, 1, 0),
    ] {
        let mut s = Script::rc();
        let mut bytes = packet.to(s.qpn).bytes();
        bytes.extend([0; 3]);
        bytes[1] |= 3 << 4;
        s.send_bytes(peer_gid(), own_gid(), &bytes);
        s.expect([nak(RQ, INVALID, 0)]);
    }
}

#[test]
fn a_misaligned_atomic_is_invalid_whatever_its_key() {
    // Rule: Q-26.
    let event = EventType::QpReqErr;
    for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_COMPARE_SWAP] {
        refused(rc(), move |s| pkt(opcode, RQ).atomic(s.va(4), s.rkey(), 1, 0), INVALID, event);
        refused(rc(), move |s| pkt(opcode, RQ).atomic(s.va(4), BAD_KEY, 1, 0), INVALID, event);
    }
    let store = |s: &Script| pkt(Opcode::RC_ATOMIC_WRITE, RQ).reth(s.va(1), s.rkey(), 8).fill(8);
    refused(rc(), store, INVALID, event);
}

#[test]
fn an_atomic_on_memory_that_is_not_aligned_is_invalid() {
    // The address is a multiple of eight, but what it stands for is not.
    let mut s = Script::rc();
    let buffer = roce::memory::Buffer::new(64);
    let attr = roce::engine::MrAttr { region: buffer.region(), base: 0x1004, access: ALL };
    let key = s.engine.register(s.pd, attr).unwrap().rkey();
    s.send(pkt(Opcode::RC_FETCH_ADD, RQ).atomic(0x1008, key, 1, 0));
    s.expect([nak(RQ, INVALID, 0)]);
    assert_eq!(buffer.to_vec(), [0; 64]);
}

#[test]
fn messages_have_a_beginning_and_are_not_interrupted() {
    let event = EventType::QpReqErr;
    for opcode in [
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_WRITE_LAST,
    ] {
        refused(rc(), move |_| pkt(opcode, RQ).fill(256), INVALID, event);
    }
    let begun = |begin: Opcode, next: fn(&Script) -> Pkt| {
        let mut s = Script::rc();
        s.recv(1, 0, 1000);
        let first = pkt(begin, RQ).fill(256);
        let reth = begin == Opcode::RC_RDMA_WRITE_FIRST;
        s.send(if reth { first.reth(s.va(0), s.rkey(), 1000) } else { first });
        let next = next(&s);
        s.send(next);
        s.expect([nak(RQ + 1, INVALID, 0)]);
        s.state(QpState::Err);
        let status = if reth { FLUSHED } else { WcStatus::LocQpOpErr };
        s.receives(&[(1, status)]);
    };
    let nexts: [fn(&Script) -> Pkt; 5] = [
        |_| pkt(Opcode::RC_SEND_FIRST, RQ + 1).fill(256),
        |_| pkt(Opcode::RC_SEND_ONLY, RQ + 1).fill(4),
        |s| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + 1).reth(s.va(0), s.rkey(), 4),
        |s| pkt(Opcode::RC_FETCH_ADD, RQ + 1).atomic(s.va(0), s.rkey(), 1, 0),
        |s| pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ + 1).reth(s.va(0), s.rkey(), 4).fill(4),
    ];
    for next in nexts {
        begun(Opcode::RC_SEND_FIRST, next);
        begun(Opcode::RC_RDMA_WRITE_FIRST, next);
    }
    begun(Opcode::RC_SEND_FIRST, |_| pkt(Opcode::RC_RDMA_WRITE_LAST, RQ + 1).fill(4));
    begun(Opcode::RC_RDMA_WRITE_FIRST, |_| pkt(Opcode::RC_SEND_LAST, RQ + 1).fill(4));
}

#[test]
fn reserved_opcode_is_naked_in_sequence() {
    // Rule: Q-25.
    for opcode in [0x15, 0x18, 0x1f] {
        let mut s = Script::rc();
        s.send(pkt(Opcode(opcode), RQ - 1));
        s.expect_nothing();
        s.send(pkt(Opcode(opcode), RQ + 1));
        s.expect([seq_nak(RQ, 0)]);
        s.send(pkt(Opcode(opcode), RQ));
        s.expect([nak(RQ, INVALID, 0)]);
        s.events(&[EventType::QpReqErr]);
        s.state(QpState::Err);
    }
}

#[test]
fn read_with_max_dest_rd_atomic_zero_is_naked() {
    let mut setup = rc();
    setup.attr.max_dest_rd_atomic = 0;
    let read = |s: &Script| pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 4);
    refused(setup, read, INVALID, EventType::QpReqErr);
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_naked() {
    // Rule: Q-19.
    let mut setup = rc();
    setup.attr.max_dest_rd_atomic = 2;
    let mut s = setup.build();
    for n in 0..3 {
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ + n).reth(s.va(0), s.rkey(), 4));
    }
    let data = s.read(0, 4);
    let answers = [read_only(RQ, 1).data(&data), read_only(RQ + 1, 2).data(&data)];
    s.expect(answers.into_iter().chain([nak(RQ + 2, INVALID, 2)]));
}

#[test]
fn deregistered_memory_ends_a_read_response() {
    // Rule: Q-13.
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), 600));
    let mut batch = roce::engine::Batch::new(1);
    assert_eq!(s.engine.poll_transmit(roce::time::Instant::ZERO, &mut batch), 1);
    s.engine.deregister(s.mr).unwrap();
    s.expect([nak(RQ + 1, ACCESS, 1)]);
    s.events(&[EventType::QpAccessErr]);
    s.state(QpState::Err);
}

#[test]
fn a_write_with_immediate_and_a_bad_key_fails_its_receive() {
    // Rule: Q-10.
    let mut s = Script::rc();
    s.recv(1, 0, 0);
    s.recv(2, 0, 0);
    let write = pkt(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, RQ).imm([1; 4]).fill(4);
    s.send(write.reth(s.va(0), BAD_KEY, 4));
    s.expect([nak(RQ, ACCESS, 0)]);
    s.receives(&[(1, WcStatus::LocAccessErr), (2, FLUSHED)]);
    s.events(&[]);
}

#[test]
fn a_receive_that_is_too_small_is_invalid() {
    // Rule: Q-08.
    let mut s = Script::rc();
    s.recv(1, 0, 300);
    s.recv(2, 0, 300);
    s.send(pkt(Opcode::RC_SEND_FIRST, RQ).fill(256));
    s.send(pkt(Opcode::RC_SEND_LAST, RQ + 1).fill(45));
    s.expect([nak(RQ + 1, INVALID, 0)]);
    s.receives(&[(1, WcStatus::LocLenErr), (2, FLUSHED)]);
    s.state(QpState::Err);
}

#[test]
fn a_receive_at_fault_is_an_operational_error() {
    // Rule: Q-08.
    let bad: [fn(&mut Script) -> Sge; 3] = [
        |s| Sge { lkey: roce::verbs::LKey::new(3), ..s.sge(0, 100) },
        |s| s.sge(SIZE as u64 - 2, 100),
        |s| {
            let region = s.buffer.region();
            let attr = roce::engine::MrAttr { region, base: s.va(0), access: Access::REMOTE_READ };
            let mr = s.engine.register(s.pd, attr).unwrap();
            Sge { lkey: mr.lkey(), ..s.sge(0, 100) }
        },
    ];
    for bad in bad {
        let mut s = Script::rc();
        let sges = [bad(&mut s)];
        let wr = roce::verbs::RecvWr { id: roce::verbs::WrId(1), sges: &sges };
        s.engine.post_recv(s.qp, &wr).unwrap();
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4));
        s.expect([nak(RQ, NakCode::RemoteOperationalError, 0)]);
        s.receives(&[(1, WcStatus::LocProtErr)]);
        s.state(QpState::Err);
    }
}

#[test]
fn requests_after_a_fatal_nak_are_ignored() {
    let mut s = Script::rc();
    s.send(pkt(Opcode::RC_SEND_LAST, RQ).fill(4));
    s.expect_count(1);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req(), Counter::WrongState);
    s.expect_nothing();
}
