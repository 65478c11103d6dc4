//! Datagrams, unreliable connections and notifications made by hand.

use super::*;
use crate::replay::Step;
use crate::replay::harness::{Script, differences, undecided};
use crate::replay::requester::rules as requests;
use crate::wire::{BthRepr, DethRepr, Extensions, Opcode, Psn};

const MTU: usize = 1024;

fn datagram(script: &mut Script, to: u8, qpn: u32, qkey: u32, len: usize) -> u64 {
    let bth = BthRepr::new(Opcode::UD_SEND_ONLY, Qpn::new(qpn), Psn::new(3));
    let deth = Some(DethRepr { qkey: QKey::new(qkey), src_qp: Qpn::new(0x20) });
    script.put(1, to, bth, Extensions { deth, ..Extensions::default() }, &vec![1; len])
}

fn unreliable(script: &mut Script, opcode: Opcode, psn: u32, len: usize) -> u64 {
    let bth = BthRepr::new(opcode, Qpn::new(0x30), Psn::new(psn));
    script.put(1, 2, bth, Extensions::default(), &vec![psn.to_le_bytes()[0]; len])
}

fn judge(script: &Script) -> Vec<Step> {
    script.judge(Subject::Datagram, None)
}

fn assert_agreed(script: &Script) {
    let steps = judge(script);
    assert_eq!((differences(&steps), undecided(&steps)), (vec![], vec![]));
    assert!(!steps.is_empty());
}

fn assert_breaks(script: &Script, frame: u64, rule: &crate::replay::Rule) {
    assert_eq!(differences(&judge(script)), [(frame, rule.id)]);
}

#[test]
fn datagrams_of_any_length_are_agreed() {
    let mut script = Script::new();
    for len in [0, 1, 4096] {
        datagram(&mut script, 2, 0x12, 7, len);
    }
    assert_agreed(&script);
    let frame = datagram(&mut script, 2, 0x12, 7, 4100);
    assert_breaks(&script, frame, &requests::PAYLOAD_LENGTH);
}

#[test]
fn q_key_is_the_one_that_the_connection_manager_named() {
    let mut script = Script::new();
    crate::replay::management::tests::resolve(&mut script, 1, 2, 0x14, 0x0123_4567);
    datagram(&mut script, 2, 0x14, 0x0123_4567, 10);
    // Of another queue pair nothing was said.
    datagram(&mut script, 2, 0x15, 5, 10);
    assert_agreed(&script);
    let frame = datagram(&mut script, 2, 0x14, 0x0123_4568, 10);
    assert_breaks(&script, frame, &rules::QKEY);
}

#[test]
fn multicast_queue_pair_is_for_groups_only() {
    let mut script = Script::new();
    let frame = datagram(&mut script, 2, 0xff_ffff, 7, 10);
    assert_breaks(&script, frame, &rules::MULTICAST_QP);
}

#[test]
fn messages_of_an_unreliable_connection_are_in_order() {
    let mut script = Script::new();
    unreliable(&mut script, Opcode::UC_SEND_FIRST, 0xff_ffff, MTU);
    unreliable(&mut script, Opcode::UC_SEND_MIDDLE, 0, MTU);
    unreliable(&mut script, Opcode::UC_SEND_LAST, 1, 5);
    unreliable(&mut script, Opcode::UC_SEND_ONLY, 2, 5);
    // A copy that the network made.
    unreliable(&mut script, Opcode::UC_SEND_ONLY, 2, 5);
    assert_agreed(&script);
    let frame = unreliable(&mut script, Opcode::UC_SEND_LAST, 3, 5);
    assert_breaks(&script, frame, &requests::OPCODE_SEQUENCE);
}

#[test]
fn gap_of_an_unreliable_connection_is_undecided() {
    let mut script = Script::new();
    unreliable(&mut script, Opcode::UC_SEND_ONLY, 2, 5);
    let frame = unreliable(&mut script, Opcode::UC_SEND_ONLY, 4, 5);
    unreliable(&mut script, Opcode::UC_SEND_ONLY, 5, 5);
    let steps = judge(&script);
    assert_eq!(undecided(&steps), [(frame, Undecided::MissingPackets)]);
    assert_eq!((differences(&steps), steps.len()), (vec![], 3));
}

#[test]
fn unreliable_connection_never_retransmits() {
    let mut script = Script::new();
    unreliable(&mut script, Opcode::UC_SEND_ONLY, 2, 5);
    let frame = unreliable(script.wait_micros(5000), Opcode::UC_SEND_ONLY, 2, 5);
    assert_breaks(&script, frame, &requests::UNRELIABLE_REPEATED);
}

/// A marked packet, its acknowledgement, and a congestion notification.
fn notification(psn: u32, becn: bool, payload: &[u8]) -> (Script, u64) {
    let mut script = Script::new();
    let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(1));
    script.put(1, 2, BthRepr { ack_req: true, ..bth }, Extensions::default(), &[1; 4]);
    let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(1));
    script.put(2, 1, BthRepr { ack_req: true, ..bth }, Extensions::default(), &[1; 4]);
    let bth = BthRepr::new(Opcode::CNP, Qpn::new(0x11), Psn::new(psn));
    let frame = script.put(2, 1, BthRepr { becn, ..bth }, Extensions::default(), payload);
    (script, frame)
}

#[test]
fn notification_has_its_form() {
    let (script, _) = notification(0, true, &[0; 16]);
    assert_agreed(&script);
    for (psn, becn, payload) in [(1, true, [0; 16]), (0, false, [0; 16]), (0, true, [1; 16])] {
        let (script, frame) = notification(psn, becn, &payload);
        assert_breaks(&script, frame, &rules::CNP_FORMAT);
    }
}
