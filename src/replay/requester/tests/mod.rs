//! Captures made by hand: each rule broken once, and kept once.

mod causes;
mod contents;
mod limits;
mod order;

use super::rules;
use crate::replay::harness::{Script, differences, undecided};
use crate::replay::{Step, Subject, Undecided};
use crate::wire::aeth::{Answer, Credits, NakCode, RnrTimer};
use crate::wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, Bits, BthRepr, Extensions, ImmDtRepr, Msn, Opcode,
    PacketRepr, Psn, Qpn, RKey, RethRepr,
};

/// The path MTU.
const MTU: usize = 1024;

/// Host 1 is the requester, host 2 the responder.
const REQUESTER: (u8, u32) = (1, 0x11);
const RESPONDER: (u8, u32) = (2, 0x12);

/// A capture of one connection.
struct Connection {
    script: Script,
}

impl Connection {
    fn new() -> Self {
        Self { script: Script::new() }
    }

    fn wait_micros(&mut self, micros: u64) -> &mut Self {
        self.script.wait_micros(micros);
        self
    }

    fn request(&mut self, opcode: Opcode, psn: u32, extensions: Extensions, payload: &[u8]) -> u64 {
        let bth = BthRepr::new(opcode, Qpn::new(RESPONDER.1), Psn::new(psn));
        let ack_req = opcode.info().is_some_and(|info| info.position.ends());
        let bth = BthRepr { ack_req, ..bth };
        self.script.put(REQUESTER.0, RESPONDER.0, bth, extensions, payload)
    }

    /// A request with some of its bytes changed.
    fn request_with(
        &mut self,
        opcode: Opcode,
        psn: u32,
        extensions: Extensions,
        payload: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let bth = BthRepr::new(opcode, Qpn::new(RESPONDER.1), Psn::new(psn));
        let mut bytes = Vec::new();
        PacketRepr::new(bth, extensions, payload).unwrap().emit(&mut bytes);
        change(&mut bytes);
        self.script.put_bytes(REQUESTER.0, RESPONDER.0, bytes)
    }

    /// A request without extension headers. Its payload depends on its PSN.
    fn send(&mut self, opcode: Opcode, psn: u32, len: usize) -> u64 {
        self.request(opcode, psn, Extensions::default(), &vec![psn.to_le_bytes()[0]; len])
    }

    fn send_only(&mut self, psn: u32) -> u64 {
        self.send(Opcode::RC_SEND_ONLY, psn, 100)
    }

    fn with_reth(&mut self, opcode: Opcode, psn: u32, reth: RethRepr, len: usize) -> u64 {
        let extensions = Extensions { reth: Some(reth), ..Extensions::default() };
        self.request(opcode, psn, extensions, &vec![7; len])
    }

    fn read(&mut self, psn: u32, reth: RethRepr) -> u64 {
        self.with_reth(Opcode::RC_RDMA_READ_REQUEST, psn, reth, 0)
    }

    fn response(
        &mut self,
        opcode: Opcode,
        psn: u32,
        extensions: Extensions,
        payload: &[u8],
    ) -> u64 {
        let bth = BthRepr::new(opcode, Qpn::new(REQUESTER.1), Psn::new(psn));
        self.script.put(RESPONDER.0, REQUESTER.0, bth, extensions, payload)
    }

    fn answer(&mut self, psn: u32, answer: Answer, msn: u32) -> u64 {
        let aeth = Some(AethRepr { syndrome: answer.into(), msn: Msn::new(msn) });
        let extensions = Extensions { aeth, ..Extensions::default() };
        self.response(Opcode::RC_ACKNOWLEDGE, psn, extensions, &[])
    }

    fn ack(&mut self, psn: u32) -> u64 {
        self.answer(psn, Answer::Ack(Credits::UNLIMITED), 0)
    }

    fn nak(&mut self, psn: u32, code: NakCode) -> u64 {
        self.answer(psn, Answer::Nak(code), 0)
    }

    fn rnr(&mut self, psn: u32, timer: u32) -> u64 {
        self.answer(psn, Answer::RnrNak(RnrTimer(Bits::low(timer))), 0)
    }

    /// A READ response. FIRST, LAST and ONLY have an AETH.
    fn read_response(&mut self, opcode: Opcode, psn: u32, len: usize) -> u64 {
        let has_aeth = opcode != Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
        let syndrome = Answer::Ack(Credits::UNLIMITED).into();
        let aeth = has_aeth.then(|| AethRepr { syndrome, msn: Msn::new(0) });
        let extensions = Extensions { aeth, ..Extensions::default() };
        self.response(opcode, psn, extensions, &vec![9; len])
    }

    /// Returns the verdicts where the capture point is unknown.
    fn judge(&self) -> Vec<Step> {
        self.script.judge(Subject::Request, None)
    }

    /// Returns the verdicts where the capture was taken at the requester.
    fn judge_at_requester(&self) -> Vec<Step> {
        self.script.judge(Subject::Request, Some(REQUESTER.0))
    }

    /// Asserts that nothing is different or undecided, wherever the capture point is.
    fn assert_agreed(&self) {
        for steps in [self.judge(), self.judge_at_requester()] {
            assert_eq!(differences(&steps), []);
            assert_eq!(undecided(&steps), []);
            assert!(!steps.is_empty());
        }
    }

    /// Asserts that one frame breaks one rule, wherever the capture point is.
    fn assert_breaks(&self, frame: u64, rule: &crate::replay::Rule) {
        assert_eq!(differences(&self.judge()), [(frame, rule.id)]);
        assert_eq!(differences(&self.judge_at_requester()), [(frame, rule.id)]);
    }

    /// Asserts that one frame breaks one rule, which only a capture at one of the ends can tell;
    /// elsewhere it is undecided.
    fn assert_breaks_at_ends(&self, frame: u64, rule: &crate::replay::Rule) {
        let steps = self.judge();
        assert_eq!(differences(&steps), []);
        assert_eq!(undecided(&steps), [(frame, Undecided::MissingPackets)]);
        for point in [REQUESTER.0, RESPONDER.0] {
            let steps = self.script.judge(Subject::Request, Some(point));
            assert_eq!(differences(&steps), [(frame, rule.id)]);
        }
    }

    /// Asserts that one frame breaks one rule, which only a capture at the requester can tell.
    fn assert_breaks_at_requester(&self, frame: u64, rule: &crate::replay::Rule) {
        assert_eq!(differences(&self.judge()), []);
        assert_eq!(differences(&self.judge_at_requester()), [(frame, rule.id)]);
    }
}

fn reth(va: u64, dma_len: u32) -> RethRepr {
    RethRepr { va, rkey: RKey::new(0x77), dma_len }
}

/// A message of two packets and its acknowledgement, from which the path MTU is known.
fn begin(connection: &mut Connection, psn: u32) {
    connection.send(Opcode::RC_SEND_FIRST, psn, MTU);
    connection.send(Opcode::RC_SEND_LAST, psn + 1, 10);
    connection.ack(psn + 1);
}

#[test]
fn ids_of_rules_are_unique_and_each_has_a_citation() {
    let all = crate::replay::all_rules();
    for (at, rule) in all.iter().enumerate() {
        assert!(all.iter().skip(at + 1).all(|other| other.id != rule.id), "{}", rule.id);
        assert!(!rule.citation.is_empty() && rule.text.ends_with('.'), "{}", rule.id);
    }
}

/// Things that only some of the tests use.
fn atomic(va: u64) -> Extensions {
    let atomic_eth = AtomicEthRepr { va, rkey: RKey::new(0x77), swap_or_add: 1, compare: 0 };
    Extensions { atomic_eth: Some(atomic_eth), ..Extensions::default() }
}

fn imm() -> Extensions {
    Extensions { imm_dt: Some(ImmDtRepr { data: [1, 2, 3, 4] }), ..Extensions::default() }
}

fn atomic_ack(original: u64) -> Extensions {
    let syndrome = Answer::Ack(Credits::UNLIMITED).into();
    let aeth = Some(AethRepr { syndrome, msn: Msn::new(0) });
    let atomic_ack_eth = Some(AtomicAckEthRepr { original });
    Extensions { aeth, atomic_ack_eth, ..Extensions::default() }
}
