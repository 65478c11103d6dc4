//! Acknowledgements of what was acknowledged: late ones, copies, and answers to repeated requests.

use super::*;

impl Script {
    /// An ACK that tells how many messages the responder has completed.
    fn ack_with_msn(&mut self, psn: u32, msn: u32) -> PacketNote {
        let syndrome = Syndrome::from(Answer::Ack(Credits::UNLIMITED));
        let mut facts = self.facts(1, Opcode::RC_ACKNOWLEDGE, psn, 0);
        facts.digest ^= msn << 20;
        facts.aeth = Some((syndrome, Msn::new(msn)));
        self.put(facts)
    }
}

#[test]
fn ack_with_a_lower_msn_was_sent_earlier() {
    let mut script = Script::new();
    script.sends(10..13);
    script.ack_with_msn(10, 1);
    script.ack_with_msn(12, 3);
    let late = script.ack_with_msn(11, 2);
    assert!(late.reordered && !late.duplicate);
    let copy = script.ack_with_msn(10, 1);
    assert!(copy.duplicate && !copy.reordered);
    assert_eq!(only_direction(&script.finish().0).reordered, 1);
}

#[test]
fn old_ack_with_the_latest_msn_answers_a_repeated_request() {
    let mut script = Script::new();
    script.sends(10..13);
    script.ack_with_msn(12, 3);
    // The network copied PSN 10 behind the capture point.
    let answer = script.ack_with_msn(10, 3);
    assert!(!answer.reordered && !answer.duplicate);
    let copy = script.ack_with_msn(10, 3);
    assert!(copy.duplicate && !copy.reordered);
}

#[test]
fn each_retransmission_may_be_answered_once() {
    let mut script = Script::new();
    script.send(9);
    script.ack(9);
    script.sends(10..13);
    script.wait_micros(5000);
    script.sends(10..13);
    // The ACK of the first transmission, and three for the retransmissions.
    (0..4).for_each(|_| assert!(!script.ack(12).duplicate));
    assert!(script.ack(12).duplicate);
}

#[test]
fn answers_to_retransmissions_come_before_those_to_later_requests() {
    let mut script = Script::new();
    script.send(10);
    script.wait_micros(5000);
    script.send(10);
    script.send(11);
    script.ack(11);
    assert!(script.ack(11).duplicate);
}

#[test]
fn copy_of_a_nak_may_come_after_the_retransmission_began() {
    let mut script = Script::new();
    script.send(9);
    // Round trips of 20 µs.
    script.wait_micros(19).ack(9);
    script.send(10);
    script.send(12);
    script.wait_micros(17);
    assert!(!script.sequence_nak(11).duplicate);
    script.send(11);
    assert!(script.sequence_nak(11).duplicate);
    script.send(12);
    // The retransmission was lost: a responder may ask once more.
    script.wait_micros(19);
    assert!(!script.sequence_nak(11).duplicate);
}

#[test]
fn nak_that_acknowledgements_overtook_breaks_no_rule() {
    let violations = |msn: u32| {
        let mut script = Script::new();
        script.sends(10..14);
        script.ack_with_msn(13, 4);
        let syndrome = Syndrome::from(Answer::Nak(NakCode::PsnSequenceError));
        let mut facts = script.facts(1, Opcode::RC_ACKNOWLEDGE, 11, 0);
        facts.aeth = Some((syndrome, Msn::new(msn)));
        script.put(facts);
        let findings = script.finish().0.findings;
        findings.iter().filter(|finding| finding.kind == FindingKind::ProtocolViolation).count()
    };
    // Sent when one message was complete; and after all were.
    assert_eq!([violations(1), violations(4)], [0, 1]);
}
