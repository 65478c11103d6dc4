//! Packets of a requester, and their times.

use roce::engine::Counter;
use roce::verbs::{Data, FlushLevel, FlushPlacement, SendFlags, SendOp, SendWr, WrId};
use roce::wire::{Opcode, Psn};

use super::script::*;

#[test]
fn a_read_takes_a_psn_for_each_packet_of_its_answer() {
    // Rule: P-01.1.
    // P-01: n·PMTU + 1 bytes take n + 1 PSNs, and what follows skips them.
    let mut s = Script::rc();
    s.post(1, READ, 3 * 256 + 1);
    s.post(2, SEND, 4);
    let read = pkt(Opcode::RC_RDMA_READ_REQUEST, SQ).ack_req();
    let data = s.read(0, 4);
    s.expect([
        read.reth(REMOTE, REMOTE_KEY, 769),
        pkt(Opcode::RC_SEND_ONLY, SQ + 4).ack_req().data(&data),
    ]);
}

#[test]
fn psns_wrap() {
    // Rule: P-01.2.
    let mut s = Script::with(|setup| setup.attr.sq_psn = Psn::new(0xff_ffff));
    s.buffer.write(0, &pattern(600)).unwrap();
    s.post(1, SEND, 600);
    s.post(2, READ, 300);
    let data = pattern(600);
    s.expect([
        pkt(Opcode::RC_SEND_FIRST, 0xff_ffff).data(&data[..256]),
        pkt(Opcode::RC_SEND_MIDDLE, 0).data(&data[256..512]),
        pkt(Opcode::RC_SEND_LAST, 1).data(&data[512..]).ack_req(),
        pkt(Opcode::RC_RDMA_READ_REQUEST, 2).reth(REMOTE, REMOTE_KEY, 300).ack_req(),
    ]);
    s.send(ack(1, 1));
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 2, 2).fill(256));
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_LAST, 3, 2).fill(44));
    s.completes(&[(1, OK), (2, OK)]);
}

#[test]
fn a_read_across_the_wrap_is_answered() {
    let mut s = Script::with(|setup| setup.attr.sq_psn = Psn::new(0xff_fffe));
    s.post(1, READ, 4 * 256);
    s.expect_count(1);
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0xff_fffe, 1).fill(256));
    s.send(pkt(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0xff_ffff).fill(256));
    s.send(pkt(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0).fill(256));
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_LAST, 1, 1).fill(256));
    s.completes(&[(1, OK)]);
}

#[test]
fn operations_of_one_packet_take_one_psn() {
    // Rule: P-01.1.
    let mut s = Script::rc();
    let (remote_addr, rkey) = (REMOTE, REMOTE_KEY);
    s.post(1, SendOp::CompareSwap { remote_addr, rkey, compare: 7, swap: 9 }, 8);
    s.post(2, ADD, 8);
    s.buffer.write(0, b"ATOMICAL").unwrap();
    s.post(3, SendOp::AtomicWrite { remote_addr, rkey }, 8);
    let (placement, level) = (FlushPlacement::PERSISTENT, FlushLevel::Range);
    s.post(4, SendOp::Flush { remote_addr, rkey, length: 5000, placement, level }, 0);
    let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::Mr);
    s.post(5, SendOp::Flush { remote_addr, rkey, length: 5000, placement, level }, 0);
    s.expect([
        pkt(Opcode::RC_COMPARE_SWAP, SQ).ack_req().atomic(REMOTE, REMOTE_KEY, 9, 7),
        pkt(Opcode::RC_FETCH_ADD, SQ + 1).ack_req().atomic(REMOTE, REMOTE_KEY, 5, 0),
        pkt(Opcode::RC_ATOMIC_WRITE, SQ + 2)
            .ack_req()
            .reth(REMOTE, REMOTE_KEY, 8)
            .data(b"ATOMICAL"),
        pkt(Opcode::RC_FLUSH, SQ + 3).ack_req().feth(2, 0).reth(REMOTE, REMOTE_KEY, 5000),
        pkt(Opcode::RC_FLUSH, SQ + 4).ack_req().feth(1, 1).reth(REMOTE, REMOTE_KEY, 0),
    ]);
}

#[test]
fn a_write_names_its_whole_length_in_its_first_packet() {
    // Rule: T-10.
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(513)).unwrap();
    let op = SendOp::Write { remote_addr: REMOTE, rkey: REMOTE_KEY, imm: Some(*b"roce") };
    s.post_flags(1, op, 513, SendFlags::SIGNALED | SendFlags::SOLICITED);
    let data = pattern(513);
    let last = pkt(Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, SQ + 2).ack_req().solicited();
    s.expect([
        pkt(Opcode::RC_RDMA_WRITE_FIRST, SQ).reth(REMOTE, REMOTE_KEY, 513).data(&data[..256]),
        pkt(Opcode::RC_RDMA_WRITE_MIDDLE, SQ + 1).data(&data[256..512]),
        last.imm(*b"roce").data(&data[512..]),
    ]);
}

#[test]
fn a_send_with_invalidate_carries_its_key_in_the_last_packet() {
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(257)).unwrap();
    s.post(1, SendOp::SendWithInv { rkey: REMOTE_KEY }, 257);
    s.post(2, SendOp::SendWithInv { rkey: REMOTE_KEY }, 0);
    let data = pattern(257);
    s.expect([
        pkt(Opcode::RC_SEND_FIRST, SQ).data(&data[..256]),
        pkt(Opcode::RC_SEND_LAST_WITH_INVALIDATE, SQ + 1)
            .inv(REMOTE_KEY)
            .data(&data[256..])
            .ack_req(),
        pkt(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, SQ + 2).inv(REMOTE_KEY).ack_req(),
    ]);
}

#[test]
fn messages_of_no_bytes_are_one_packet() {
    let mut s = Script::rc();
    s.post(1, SEND, 0);
    s.post(2, WRITE, 0);
    s.post(3, READ, 0);
    s.expect([
        pkt(Opcode::RC_SEND_ONLY, SQ).ack_req(),
        pkt(Opcode::RC_RDMA_WRITE_ONLY, SQ + 1).reth(REMOTE, REMOTE_KEY, 0).ack_req(),
        pkt(Opcode::RC_RDMA_READ_REQUEST, SQ + 2).reth(REMOTE, REMOTE_KEY, 0).ack_req(),
    ]);
    s.send(ack(SQ + 1, 2));
    s.send(read_only(SQ + 2, 3));
    s.completes(&[(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn message_is_gathered_from_several_buffers() {
    let mut s = Script::rc();
    s.buffer.write(0, b"one two three").unwrap();
    let sges = [s.sge(8, 5), s.sge(0, 0), s.sge(4, 3), s.sge(0, 3)];
    s.try_post(1, SEND, &sges, SendFlags::SIGNALED).unwrap();
    s.expect([pkt(Opcode::RC_SEND_ONLY, SQ).ack_req().data(b"threetwoone")]);
}

#[test]
fn gathered_buffers_need_not_end_with_packets() {
    let mut s = Script::rc();
    s.buffer.write(0, &pattern(600)).unwrap();
    let sges = [s.sge(0, 200), s.sge(200, 200), s.sge(400, 200)];
    s.try_post(1, SEND, &sges, SendFlags::SIGNALED).unwrap();
    let sent = s.expect_count(3);
    let all: Vec<u8> = sent.iter().flat_map(|packet| packet.payload.clone()).collect();
    assert_eq!(all, pattern(600));
}

#[test]
fn inline_data_are_taken_when_posted() {
    // Rule: V-01.3.
    let mut s = Script::rc();
    let wr = SendWr::new(WrId(1), SEND, Data::Inline(b"now"));
    s.engine.post_send(s.qp, &wr, &[]).unwrap();
    // By address, with a key that means nothing.
    let sges = [roce::verbs::Sge { addr: 5, length: 5, lkey: roce::verbs::LKey::new(9) }];
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let wr = SendWr { flags, ..SendWr::new(WrId(2), SEND, Data::Gather(&sges)) };
    s.engine.post_send(s.qp, &wr, b"later").unwrap();
    assert!(s.engine.post_send(s.qp, &wr, b"late").is_err(), "fewer bytes than it says");
    s.expect([
        pkt(Opcode::RC_SEND_ONLY, SQ).ack_req().data(b"now"),
        pkt(Opcode::RC_SEND_ONLY, SQ + 1).ack_req().data(b"later"),
    ]);
}

#[test]
fn no_more_reads_and_atomics_go_out_than_are_allowed() {
    let mut s = Script::with(|setup| setup.attr.max_rd_atomic = 2);
    for id in 0..4 {
        s.post(id, if id % 2 == 0 { READ } else { ADD }, 8);
    }
    s.post(4, SEND, 8);
    let sent = s.expect_count(2);
    assert_eq!(sent[1].bth.opcode, Opcode::RC_FETCH_ADD);
    s.send(read_only(SQ, 1).fill(8));
    s.expect_count(1);
    s.send(response(Opcode::RC_ATOMIC_ACKNOWLEDGE, SQ + 1, 2).original(3));
    // The last of them, and what stood behind it in order.
    s.expect_count(2);
    s.completes(&[(0, OK), (1, OK)]);
}

#[test]
fn retransmitted_read_takes_no_second_slot_of_max_rd_atomic() {
    let mut s = Script::with(|setup| setup.attr.max_rd_atomic = 1);
    s.post(1, READ, 8);
    s.post(2, READ, 8);
    s.expect_count(1);
    s.at(TIMEOUT);
    s.expect_count(1);
    s.send(read_only(SQ, 1).fill(8));
    s.expect_count(1);
    s.send(read_only(SQ + 1, 2).fill(8));
    s.completes(&[(1, OK), (2, OK)]);
}

#[test]
fn a_fence_waits_for_reads_and_atomics_alone() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post_flags(2, SEND, 4, SendFlags::SIGNALED | SendFlags::FENCE);
    // A send before it does not hold it up.
    s.expect_count(2);
    s.post(3, READ, 4);
    s.post_flags(4, SEND, 4, SendFlags::SIGNALED | SendFlags::FENCE);
    s.post(5, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ + 1, 2));
    s.expect_nothing();
    s.send(read_only(SQ + 2, 3).fill(4));
    s.expect_count(2);
    s.completes(&[(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn the_window_bounds_what_is_unacknowledged() {
    let mut s = Script::with(|setup| setup.config.window_packets = 8);
    s.post(1, SEND, 20 * 256);
    let sent = s.expect_count(8);
    let asked: Vec<bool> = sent.iter().map(|packet| packet.bth.ack_req).collect();
    let at = |half: usize| (1..=8).map(|k| k % half == 0).collect::<Vec<_>>();
    assert_eq!(asked, at(4), "every half window it asks for an acknowledgement");
    s.send(ack(SQ + 2, 0));
    s.expect_count(3);
    s.send(ack(SQ + 10, 0));
    s.expect_count(8);
    s.send(ack(SQ + 18, 0));
    s.expect_count(1);
    s.send(ack(SQ + 19, 1));
    s.completes(&[(1, OK)]);
}

#[test]
fn the_window_is_bounded_in_bytes_too() {
    let mut s = Script::with(|setup| setup.config.window_bytes = 1024);
    s.post(1, SEND, 20 * 256);
    s.expect_count(4);
}

#[test]
fn reads_request_at_most_a_window_ahead() {
    let mut s = Script::with(|setup| {
        (setup.config.window_packets, setup.attr.max_rd_atomic) = (4, 8);
    });
    for id in 0..4 {
        s.post(id, READ, 3 * 256);
    }
    // The second begins within the window, and the third does not.
    let asked = s.expect_count(2);
    assert_eq!(asked[1].bth.psn.get(), SQ + 3);
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, SQ, 1).fill(256));
    s.send(pkt(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, SQ + 1).fill(256));
    s.expect_nothing();
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_LAST, SQ + 2, 1).fill(256));
    s.completes(&[(0, OK)]);
    let asked = s.expect_count(1);
    assert_eq!(asked[0].bth.psn.get(), SQ + 6);
}

#[test]
fn a_local_buffer_at_fault_sends_nothing() {
    // Rule: Q-09.
    // LOC_PROT_ERR, and nothing on the wire.
    for bad in [
        |s: &Script| roce::verbs::Sge { lkey: roce::verbs::LKey::new(77), ..s.sge(0, 8) },
        |s: &Script| s.sge(SIZE as u64 - 4, 8),
        |s: &Script| roce::verbs::Sge { addr: u64::MAX - 3, ..s.sge(0, 8) },
    ] {
        let mut s = Script::rc();
        let sge = bad(&s);
        s.try_post(1, SEND, &[sge], SendFlags::empty()).unwrap();
        s.post(2, SEND, 4);
        s.recv(3, 0, 4);
        s.expect_nothing();
        s.completes(&[(1, roce::verbs::WcStatus::LocProtErr), (2, FLUSHED)]);
        s.receives(&[(3, FLUSHED)]);
        s.state(roce::verbs::QpState::Err);
    }
}

#[test]
fn local_failure_waits_for_requests_in_flight() {
    use roce::verbs::{Access, LKey, MwBind, SendOp, Sge, WcStatus};
    use roce::wire::RKey;
    let nowhere = RKey::new(0x1234_5678);
    let bind = MwBind { mr: LKey::new(1), addr: 0, length: 8, access: Access::REMOTE_READ };
    for (op, status) in [
        (SEND, WcStatus::LocProtErr),
        (SendOp::BindMw { mw: nowhere, rkey: nowhere, bind }, WcStatus::MwBindErr),
    ] {
        let mut s = Script::rc();
        s.post(1, SEND, 4);
        s.post(2, READ, 4);
        let bad = Sge { lkey: LKey::new(77), ..s.sge(0, 8) };
        s.try_post(3, op, &[bad], SendFlags::empty()).unwrap();
        s.post(4, SEND, 4);
        s.expect_count(2);
        s.completes(&[]);
        s.send(ack(SQ, 1));
        s.expect_nothing();
        s.completes(&[(1, OK)]);
        s.send(read_only(SQ + 1, 2).fill(4));
        s.expect_nothing();
        s.completes(&[(2, OK), (3, status), (4, FLUSHED)]);
        s.state(roce::verbs::QpState::Err);
    }
}

#[test]
fn after_a_loss_one_read_is_retransmitted_at_a_time() {
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.post(2, READ, 512);
    s.post(3, READ, 512);
    s.expect_count(3);
    s.at(TIMEOUT);
    let again = s.expect_count(2);
    assert_eq!(again[1].bth.psn.get(), SQ + 1);
    // The retransmission is answered: the other may follow.
    s.send(response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, SQ + 1, 2).fill(256));
    s.completes(&[(1, OK)]);
    let again = s.expect_count(1);
    assert_eq!(again[0].bth.psn.get(), SQ + 3);
}

#[test]
fn unsignaled_request_completes_only_in_error() {
    // Rule: T-48.
    let mut s = Script::rc();
    s.post_flags(1, SEND, 4, SendFlags::empty());
    s.post(2, SEND, 4);
    s.post_flags(3, SEND, 4, SendFlags::empty());
    s.post_flags(4, SEND, 4, SendFlags::empty());
    s.expect_count(4);
    s.send(ack(SQ + 1, 2));
    s.completes(&[(2, OK)]);
    s.send(nak(SQ + 2, roce::wire::aeth::NakCode::RemoteOperationalError, 2));
    s.completes(&[(3, roce::verbs::WcStatus::RemOpErr), (4, FLUSHED)]);
}

#[test]
fn a_queue_may_signal_everything() {
    let mut s = Script::with(|setup| setup.sig_all = true);
    s.post_flags(1, SEND, 4, SendFlags::empty());
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK)]);
}

#[test]
fn local_operations_are_not_repeated_by_go_back_n() {
    let mut s = Script::rc();
    let mw = s.engine.create_mw(s.pd, roce::verbs::MwType::Type2).unwrap();
    let key = s.engine.mw_key(mw).unwrap();
    let bind = roce::verbs::MwBind {
        mr: s.mr.lkey(),
        addr: s.va(0),
        length: 100,
        access: roce::verbs::Access::REMOTE_READ,
    };
    s.post(1, SEND, 4);
    s.post(2, SendOp::BindMw { mw: key, rkey: key, bind }, 0);
    s.post(3, SEND, 4);
    s.expect_count(2);
    s.at(TIMEOUT);
    assert_eq!(s.count(Counter::Timeout), 1);
    s.expect_count(2);
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK), (2, OK)]);
    s.send(ack(SQ + 1, 2));
    s.completes(&[(3, OK)]);
    s.state(roce::verbs::QpState::Rts);
}

#[test]
fn ack_during_a_retry_completes_local_operations() {
    let mut s = Script::with(|setup| setup.cap.max_send_wr = 4);
    let mw = s.engine.create_mw(s.pd, roce::verbs::MwType::Type1).unwrap();
    let key = s.engine.mw_key(mw).unwrap();
    let access = roce::verbs::Access::REMOTE_READ;
    let bind = roce::verbs::MwBind { mr: s.mr.lkey(), addr: s.va(0), length: 100, access };
    s.post(1, SEND, 4);
    s.post(2, SendOp::BindMw { mw: key, rkey: key, bind }, 0);
    s.post(3, SEND, 4);
    s.expect_count(2);
    s.at(TIMEOUT);
    // The timer went off, but the answer comes before anything is retransmitted, and the slots of
    // both are reused.
    s.send(ack(SQ, 1));
    s.completes(&[(1, OK), (2, OK)]);
    for id in 4..7 {
        s.post(id, SEND, 4);
    }
    let sent = s.expect_count(4);
    let psns: Vec<u32> = sent.iter().map(|packet| packet.bth.psn.get()).collect();
    assert_eq!(psns, [SQ + 1, SQ + 2, SQ + 3, SQ + 4]);
    s.send(ack(SQ + 4, 5));
    s.completes(&[(3, OK), (4, OK), (5, OK), (6, OK)]);
}

#[test]
fn a_payload_of_any_length_is_padded_with_zeros() {
    // Rule: W-50.1.
    for len in 0..8_usize {
        let mut s = Script::rc();
        s.buffer.write(0, &[0xff; 16]).unwrap();
        s.post(1, SEND, len as u32);
        s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).reth(s.va(0), s.rkey(), len as u32));
        let mut batch = roce::engine::Batch::new(4);
        // What was in it before does not show.
        for _ in 0..2 {
            batch.clear();
            s.post(2, WRITE, 16);
            let _sent = s.engine.poll_transmit(roce::time::Instant::ZERO, &mut batch);
            for (_, bytes) in batch.iter() {
                let packet = roce::wire::Packet::parse(&bytes[..bytes.len() - 4]).unwrap();
                let (headers, pad) = (packet.header_len(), usize::from(packet.pad_len()));
                assert_eq!((packet.payload_len() + pad) % 4, 0);
                assert!(pad < 4 && bytes.len() % 4 == 0);
                let end = headers + packet.payload_len();
                assert!(bytes[headers..end].iter().all(|byte| *byte == 0xff));
                assert!(bytes[end..end + pad].iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn only_the_last_packet_of_what_takes_a_receive_is_solicited() {
    // Rule: T-13.
    let mut s = Script::rc();
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    s.post_flags(1, SEND, 300, flags);
    s.post_flags(2, WRITE, 4, flags);
    s.post_flags(3, READ, 4, flags);
    let sent = s.expect_count(4);
    let solicited: Vec<bool> = sent.iter().map(|packet| packet.bth.solicited).collect();
    assert_eq!(solicited, [false, true, false, false]);
}

#[test]
fn packets_carry_the_partition_of_the_connection() {
    let mut s = Script::with(|setup| setup.attr.pkey_index = 1);
    s.post(1, SEND, 0);
    s.expect([pkt(Opcode::RC_SEND_ONLY, SQ).pkey(0x8123).ack_req()]);
    s.dropped(ack(SQ, 1), Counter::BadPKey);
    s.send(ack(SQ, 1).pkey(0x0123));
    s.completes(&[(1, OK)]);
    s.send(pkt(Opcode::RC_RDMA_READ_REQUEST, RQ).pkey(0x8123).reth(0, REMOTE_KEY, 0));
    s.expect([read_only(RQ, 1).pkey(0x8123)]);
}
