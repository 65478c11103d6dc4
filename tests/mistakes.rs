//! Common misconceptions about RoCE, and the facts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use roce::verbs::{
    AckTimeout, RetryCount, RnrRetry, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode,
};
use roce::wire::aeth::{Answer, NakCode, RnrTimer, Syndrome};
use roce::wire::{Bits, Headers, Opcode, PKey, Packet};

/// Bytes of UDP payload: headers, payload, padding, ICRC.
fn udp_payload(opcode: Opcode, payload: usize) -> usize {
    let headers = opcode.info().unwrap().header_len;
    headers + payload.next_multiple_of(4) + 4
}

#[test]
fn a_packet_has_no_headers_but_its_own() {
    // Rules: T-01, T-03, T-04, T-05, T-06, T-07, T-08, T-09, T-17, T-23.
    // No LRH and no GRH, no DETH on a connection, AETH alone before the data that were read.
    for (opcode, payload, len) in [
        (Opcode::RC_SEND_ONLY, 64, 80),
        (Opcode::RC_RDMA_WRITE_ONLY, 4096, 4128),
        (Opcode::RC_RDMA_READ_REQUEST, 0, 32),
        (Opcode::RC_COMPARE_SWAP, 0, 44),
        (Opcode::RC_ACKNOWLEDGE, 0, 20),
        (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 1024, 1044),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, 28),
    ] {
        assert_eq!(udp_payload(opcode, payload), len, "{opcode}");
    }
    let headers = |opcode: Opcode| opcode.info().unwrap().headers;
    assert_eq!(headers(Opcode::RC_SEND_ONLY), Headers::empty());
    assert_eq!(headers(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE), Headers::empty());
    assert_eq!(headers(Opcode::RC_RDMA_READ_RESPONSE_ONLY), Headers::AETH);
    assert!(!headers(Opcode::RC_RDMA_WRITE_LAST).contains(Headers::RETH));
}

#[test]
fn opcodes_on_the_wire_are_none_of_the_numbers_that_verbs_have() {
    // Rules: T-16, T-19, T-20, T-21, T-22, T-24, T-25, T-33, T-41.
    for (opcode, number) in [
        (Opcode::RC_SEND_ONLY, 0x04),
        (Opcode::RC_RDMA_WRITE_ONLY, 0x0a),
        (Opcode::RC_RDMA_READ_REQUEST, 0x0c),
        (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0x10),
        (Opcode::RC_ACKNOWLEDGE, 0x11),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0x12),
        (Opcode::RC_COMPARE_SWAP, 0x13),
        (Opcode::RC_FETCH_ADD, 0x14),
    ] {
        assert_eq!(opcode.0, number);
    }
    // 0x60 is no acknowledgement and 0x20 no refusal.
    assert_eq!(Opcode(0x60).info(), None);
    assert_eq!(Opcode(0x20), Opcode::UC_SEND_FIRST);
    let codes =
        [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::AtomicCmpAndSwp];
    assert_eq!(codes.map(WrOpcode::code), [2, 0, 4, 5]);
    let codes = [WcOpcode::Send, WcOpcode::RdmaWrite, WcOpcode::RdmaRead, WcOpcode::CompSwap];
    assert_eq!(codes.map(WcOpcode::code), [0, 1, 2, 3]);
}

#[test]
fn a_refusal_is_a_syndrome() {
    // Rules: T-26, T-42.
    let answer = |byte| Syndrome(byte).answer();
    assert_eq!(answer(0x60), Answer::Nak(NakCode::PsnSequenceError));
    assert_eq!(answer(0x62), Answer::Nak(NakCode::RemoteAccessError));
    assert_eq!(answer(0x20), Answer::RnrNak(RnrTimer(Bits::low(0))));
    assert_eq!((WcStatus::RemAccessErr.code(), WcStatus::LocProtErr.code()), (10, 4));
}

#[test]
fn numbers_that_look_like_nothing_mean_the_most() {
    // Rules: T-55, T-56.
    let longest = (0..32).map(|code| RnrTimer(Bits::low(code)).duration()).max();
    assert_eq!(Some(RnrTimer(Bits::low(0)).duration()), longest);
    assert_eq!(AckTimeout(Bits::low(0)).duration(), None, "for ever");
    assert_eq!(RetryCount(Bits::low(7)).limit(), 7, "a count");
    assert_eq!(RnrRetry(Bits::low(7)).limit(), None, "for ever");
}

#[test]
fn flags_have_the_bits_that_programs_see() {
    // Rules: Q-17, T-14, T-34.
    assert_eq!((SendFlags::FENCE.bits(), SendFlags::SOLICITED.bits()), (1, 4));
    assert_eq!(WcFlags::WITH_INV.bits(), 8, "4 is the kernel's own");
    assert!(!PKey::new(0x1234).matches(PKey::new(0x1234)), "two limited members");
}

#[test]
fn what_is_added_stands_before_what_is_compared() {
    // Rules: T-11, T-15, T-29, T-61.
    let mut bytes = vec![0; 12 + 28];
    bytes[0] = Opcode::RC_FETCH_ADD.0;
    bytes[12 + 12 + 7] = 5;
    bytes[12 + 20 + 7] = 9;
    let packet = Packet::parse(&bytes).unwrap();
    let atomic = packet.atomic_eth().unwrap();
    assert_eq!((atomic.swap_or_add(), atomic.compare()), (5, 9));
    // The destination has 24 bits, and so has the one sequence number.
    bytes[4..12].copy_from_slice(&[0, 0xab, 0xcd, 0xef, 0, 0x12, 0x34, 0x56]);
    let packet = Packet::parse(&bytes).unwrap();
    let (qpn, psn) = (packet.bth().dest_qp().get(), packet.bth().psn().get());
    assert_eq!((qpn, psn), (0xab_cdef, 0x12_3456));
}
