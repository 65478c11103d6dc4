//! Packets by themselves, and retransmissions against what was sent before.

use super::*;

/// A packet behind a beginning, which breaks a rule.
fn breaks(rule: &crate::replay::Rule, put: impl FnOnce(&mut Connection) -> u64) {
    let mut c = Connection::new();
    begin(&mut c, 5);
    let frame = put(&mut c);
    c.ack(6);
    c.assert_breaks(frame, rule);
}

#[test]
fn payload_must_fit_the_position() {
    let rule = &rules::PAYLOAD_LENGTH;
    breaks(rule, |c| c.send(Opcode::RC_SEND_FIRST, 7, MTU - 4));
    breaks(rule, |c| c.send(Opcode::RC_SEND_ONLY, 7, MTU + 1));
    breaks(rule, |c| {
        c.send(Opcode::RC_SEND_FIRST, 7, MTU);
        c.send(Opcode::RC_SEND_LAST, 8, 0)
    });
    breaks(rule, |c| c.with_reth(Opcode::RC_RDMA_READ_REQUEST, 7, reth(0, 10), 4));
}

#[test]
fn dma_length_is_the_sum_of_the_payloads() {
    let rule = &rules::WRITE_DMA_LENGTH;
    breaks(rule, |c| c.with_reth(Opcode::RC_RDMA_WRITE_ONLY, 7, reth(0, 60), 100));
    breaks(rule, |c| {
        c.with_reth(Opcode::RC_RDMA_WRITE_FIRST, 7, reth(0, 3000), MTU);
        c.send(Opcode::RC_RDMA_WRITE_LAST, 8, 500)
    });
    breaks(rule, |c| {
        c.with_reth(Opcode::RC_RDMA_WRITE_FIRST, 7, reth(0, 1030), MTU);
        c.send(Opcode::RC_RDMA_WRITE_MIDDLE, 8, MTU)
    });
    breaks(&rules::DMA_LENGTH_LIMIT, |c| c.read(7, reth(0, (1 << 31) + 1)));
}

#[test]
fn end_of_a_write_is_known_across_a_packet_that_was_not_captured() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.with_reth(Opcode::RC_RDMA_WRITE_FIRST, 7, reth(0, 3000), MTU);
    let frame = c.send(Opcode::RC_RDMA_WRITE_LAST, 9, 900);
    c.ack(9);
    assert_eq!(differences(&c.judge()), [(frame, rules::WRITE_DMA_LENGTH.id)]);
}

#[test]
fn padding_must_be_zero_and_counted() {
    breaks(&rules::PAD, |c| {
        c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[1; 5], |bytes| {
            *bytes.last_mut().unwrap() = 1;
        })
    });
    breaks(&rules::PAD, |c| {
        let extensions = Extensions { reth: Some(reth(0, 5)), ..Extensions::default() };
        c.request_with(Opcode::RC_RDMA_WRITE_ONLY, 7, extensions, &[1; 5], |bytes| {
            bytes[1] &= !0x30;
        })
    });
    breaks(&rules::PAD, |c| {
        c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[1; 6], |bytes| {
            bytes.pop();
        })
    });
}

#[test]
fn header_bits_have_their_places() {
    breaks(&rules::HEADER_VERSION, |c| {
        c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[], |bytes| bytes[1] |= 1)
    });
    breaks(&rules::SOLICITED_EVENT, |c| {
        c.request_with(Opcode::RC_SEND_FIRST, 7, Extensions::default(), &[1; MTU], |bytes| {
            bytes[1] |= 0x80;
        })
    });
    breaks(&rules::PKEY, |c| {
        c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[], |bytes| bytes[2] = 0x12)
    });
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[], |bytes| bytes[1] |= 0xc0);
    c.assert_agreed();
}

/// A READ of four packets, of which one was answered, and then a retry.
fn read_retry(psn: u32, retry: RethRepr) -> (Connection, u64) {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.read(7, reth(0x1000, 4000));
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 7, MTU);
    c.read_response(Opcode::RC_RDMA_READ_RESPONSE_LAST, 10, 928);
    let frame = c.wait_micros(10).read(psn, retry);
    (c, frame)
}

#[test]
fn retried_read_asks_for_the_rest() {
    let (c, _) = read_retry(8, reth(0x1400, 2976));
    c.assert_agreed();
    let (c, _) = read_retry(7, reth(0x1000, 4000));
    c.assert_agreed();
    let other_key = RethRepr { rkey: RKey::new(0x78), ..reth(0x1400, 2976) };
    for wrong in [reth(0x1000, 2976), reth(0x1400, 4000), other_key] {
        let (c, frame) = read_retry(8, wrong);
        c.assert_breaks(frame, &rules::READ_RETRY_RETH);
    }
}

#[test]
fn retransmission_repeats_the_packet() {
    let retransmit = |opcode, payload: &[u8]| {
        let mut c = Connection::new();
        begin(&mut c, 5);
        c.send_only(7);
        c.nak(7, NakCode::PsnSequenceError);
        let frame = c.wait_micros(10).request(opcode, 7, Extensions::default(), payload);
        (c, frame)
    };
    let (c, _) = retransmit(Opcode::RC_SEND_ONLY, &[7; 100]);
    c.assert_agreed();
    let (c, frame) = retransmit(Opcode::RC_SEND_ONLY, &[8; 100]);
    c.assert_breaks(frame, &rules::RETRANSMISSION_CHANGED);
    let (c, frame) = retransmit(Opcode::RC_SEND_LAST, &[7; 100]);
    c.assert_breaks(frame, &rules::RETRANSMISSION_CHANGED);
}

#[test]
fn acknowledge_request_and_migration_state_may_change() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    c.send_only(7);
    c.nak(7, NakCode::PsnSequenceError);
    c.request_with(Opcode::RC_SEND_ONLY, 7, Extensions::default(), &[7; 100], |bytes| {
        bytes[1] |= 0x40;
        bytes[4] = 0x10;
        bytes[8] = 0;
    });
    c.assert_agreed();
}

#[test]
fn packet_with_a_wrong_icrc_is_damaged() {
    let mut c = Connection::new();
    begin(&mut c, 5);
    let frame = c.send_only(7);
    c.script.damage_last();
    c.ack(6);
    let steps = c.judge();
    assert_eq!(undecided(&steps), [(frame, Undecided::Damaged)]);
    assert_eq!(differences(&steps), []);
}
