//! Exchanges made by hand: each rule broken once, and kept once.

use super::*;
use crate::replay::harness::{Script, differences, undecided};
use crate::wire::cm::{
    CommId, DrepRepr, DreqRepr, MraRepr, PortSpace, RejRepr, RepRepr, RtuRepr, ServiceId,
    SidrRepRepr, SidrReqRepr,
};
use crate::wire::mad::MadHeaderRepr;
use crate::wire::{BthRepr, DethRepr, EeContext, Extensions, PKey, Psn};

/// Agreement of a REQ and its REP.
#[derive(Clone, Copy, Debug)]
pub(in crate::replay) struct Agreed {
    /// The PSNs that REQ and REP name: where the passive side begins, and the active side.
    pub(in crate::replay) psns: [u32; 2],
    /// Codes of path MTU and timeout.
    pub(in crate::replay) mtu: u32,
    pub(in crate::replay) timeout: u32,
    pub(in crate::replay) retry_count: u32,
    pub(in crate::replay) rnr_retry_count: u32,
    pub(in crate::replay) depth: u8,
}

const AGREED: Agreed =
    Agreed { psns: [1, 2], mtu: 3, timeout: 14, retry_count: 7, rnr_retry_count: 7, depth: 1 };

/// The communication IDs of the active and the passive side.
const IDS: [u32; 2] = [0xa1, 0xb2];
const TRANSACTION: u64 = 0x2_0000_1234;

fn header(attribute: AttributeId, transaction_id: u64) -> MadHeaderRepr {
    MadHeaderRepr {
        base_version: 1,
        class: MgmtClass::CM,
        class_version: 2,
        response: false,
        method: METHOD_SEND,
        status: 0,
        class_specific: 0,
        transaction_id,
        attribute,
        attribute_modifier: 0,
    }
}

/// Captures a MAD from host `from` to host `to`.
fn put(script: &mut Script, from: u8, to: u8, header: MadHeaderRepr, body: &[u8]) -> u64 {
    put_with_qkey(script, (from, to), QKey::GSI, header, body)
}

fn put_with_qkey(
    script: &mut Script,
    (from, to): (u8, u8),
    qkey: QKey,
    header: MadHeaderRepr,
    body: &[u8],
) -> u64 {
    let bth = BthRepr::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0));
    let deth = Some(DethRepr { qkey, src_qp: Qpn::GSI });
    let mad = [header.emit().as_bytes(), body].concat();
    script.put(from, to, bth, Extensions { deth, ..Extensions::default() }, &mad)
}

/// A REQ body.
fn req(qpn: u32, agreed: &Agreed) -> [u8; 232] {
    let mut body = [0; 232];
    body[0..4].copy_from_slice(&IDS[0].to_be_bytes());
    body[32..35].copy_from_slice(&qpn.to_be_bytes()[1..]);
    (body[35], body[39]) = (agreed.depth, agreed.depth);
    body[44..47].copy_from_slice(&agreed.psns[0].to_be_bytes()[1..]);
    let low = |value: u32| u8::try_from(value).unwrap();
    body[47] = low(20 << 3 | agreed.retry_count);
    body[48..50].copy_from_slice(&[0xff, 0xff]);
    body[50] = low(agreed.mtu << 4 | agreed.rnr_retry_count);
    body[95] = low(agreed.timeout << 3);
    body
}

fn rep(qpn: u32, agreed: &Agreed) -> RepRepr {
    RepRepr {
        local_comm_id: CommId(IDS[1]),
        remote_comm_id: CommId(IDS[0]),
        local_q_key: QKey::new(0),
        local_qpn: Qpn::new(qpn),
        vendor_id_h: 0,
        local_eecn: EeContext::new(0),
        vendor_id_m: 0,
        starting_psn: Psn::new(agreed.psns[1]),
        vendor_id_l: 0,
        responder_resources: agreed.depth,
        initiator_depth: agreed.depth,
        target_ack_delay: Bits::low(15),
        failover_accepted: Bits::low(0),
        flow_control: false,
        rnr_retry_count: Bits::low(agreed.rnr_retry_count),
        srq: false,
        selective_repeat: false,
        local_ca_guid: 2,
        private_data: [0; 196],
    }
}

fn rtu() -> RtuRepr {
    let (local_comm_id, remote_comm_id) = (CommId(IDS[0]), CommId(IDS[1]));
    RtuRepr { local_comm_id, remote_comm_id, private_data: [0; 224] }
}

/// Lets the connection manager connect two queue pairs: host and number of the active and of the
/// passive one.
pub(in crate::replay) fn connect(
    script: &mut Script,
    active: (u8, u32),
    passive: (u8, u32),
    agreed: &Agreed,
) {
    let (a, p) = (active.0, passive.0);
    put(script, a, p, header(AttributeId::CM_REQ, TRANSACTION), &req(active.1, agreed));
    let reply = rep(passive.1, agreed).emit();
    put(script, p, a, header(AttributeId::CM_REP, TRANSACTION), reply.as_bytes());
    put(script, a, p, header(AttributeId::CM_RTU, TRANSACTION), rtu().emit().as_bytes());
}

fn connected() -> Script {
    let mut script = Script::new();
    connect(&mut script, (1, 0x11), (2, 0x12), &AGREED);
    script
}

fn dreq(qpn: u32) -> DreqRepr {
    let (local_comm_id, remote_comm_id) = (CommId(IDS[0]), CommId(IDS[1]));
    let remote_qpn_eecn = Qpn::new(qpn);
    DreqRepr { local_comm_id, remote_comm_id, remote_qpn_eecn, private_data: [0; 220] }
}

fn drep() -> DrepRepr {
    let (local_comm_id, remote_comm_id) = (CommId(IDS[1]), CommId(IDS[0]));
    DrepRepr { local_comm_id, remote_comm_id, private_data: [0; 224] }
}

fn assert_agreed(script: &Script) {
    let steps = script.judge(Subject::Management, None);
    assert_eq!((differences(&steps), undecided(&steps)), (vec![], vec![]));
    assert!(!steps.is_empty());
}

fn assert_breaks(script: &Script, frame: u64, rule: &crate::replay::Rule) {
    let steps = script.judge(Subject::Management, None);
    assert_eq!(differences(&steps), [(frame, rule.id)]);
}

#[test]
fn connection_and_its_end_are_agreed() {
    let mut script = connected();
    put(&mut script, 1, 2, header(AttributeId::CM_DREQ, 77), dreq(0x12).emit().as_bytes());
    put(&mut script, 1, 2, header(AttributeId::CM_DREQ, 77), dreq(0x12).emit().as_bytes());
    put(&mut script, 2, 1, header(AttributeId::CM_DREP, 77), drep().emit().as_bytes());
    assert_agreed(&script);
}

#[test]
fn refusal_and_delay_are_agreed() {
    let mut script = Script::new();
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    let mra = MraRepr {
        local_comm_id: CommId(IDS[1]),
        remote_comm_id: CommId(IDS[0]),
        message_mraed: Bits::low(0),
        service_timeout: Bits::low(24),
        private_data: [0; 222],
    };
    put(&mut script, 2, 1, header(AttributeId::CM_MRA, TRANSACTION), mra.emit().as_bytes());
    let rej = rej(IDS[0]);
    put(&mut script, 2, 1, header(AttributeId::CM_REJ, TRANSACTION), rej.emit().as_bytes());
    assert_agreed(&script);
    // And then it is not answered by a REP.
    let reply = rep(0x12, &AGREED).emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_REP, TRANSACTION), reply.as_bytes());
    assert_breaks(&script, frame, &rules::CM_ORDER);
}

fn rej(remote: u32) -> RejRepr {
    RejRepr {
        local_comm_id: CommId(0),
        remote_comm_id: CommId(remote),
        message_rejected: Bits::low(0),
        rejected_info_length: Bits::low(0),
        reason: 8,
        ari: [0; 72],
        private_data: [0; 148],
    }
}

#[test]
fn answers_carry_the_transaction_of_what_they_answer() {
    let rule = &rules::CM_TRANSACTION;
    let mut script = Script::new();
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    let reply = rep(0x12, &AGREED).emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_REP, 1), reply.as_bytes());
    assert_breaks(&script, frame, rule);
    let mut script = connected();
    put(&mut script, 1, 2, header(AttributeId::CM_DREQ, 77), dreq(0x12).emit().as_bytes());
    let answer = drep().emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_DREP, 78), answer.as_bytes());
    assert_breaks(&script, frame, rule);
}

#[test]
fn answers_name_the_connection() {
    let rule = &rules::CM_IDS;
    let mut script = Script::new();
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    let wrong = RepRepr { remote_comm_id: CommId(0xa2), ..rep(0x12, &AGREED) }.emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_REP, TRANSACTION), wrong.as_bytes());
    assert_breaks(&script, frame, rule);
    let mut script = connected();
    let wrong = DreqRepr { remote_comm_id: CommId(0xb3), ..dreq(0x12) }.emit();
    let frame = put(&mut script, 1, 2, header(AttributeId::CM_DREQ, 77), wrong.as_bytes());
    assert_breaks(&script, frame, rule);
    let mut script = Script::new();
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    let wrong = rej(0xa2).emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_REJ, TRANSACTION), wrong.as_bytes());
    assert_breaks(&script, frame, rule);
}

#[test]
fn rtu_comes_from_the_active_side() {
    let mut script = connected();
    let (local_comm_id, remote_comm_id) = (CommId(IDS[1]), CommId(IDS[0]));
    let wrong = RtuRepr { local_comm_id, remote_comm_id, ..rtu() }.emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_RTU, TRANSACTION), wrong.as_bytes());
    assert_breaks(&script, frame, &rules::CM_ORDER);
}

#[test]
fn retries_are_the_same() {
    let mut script = Script::new();
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &AGREED));
    assert_agreed(&script);
    let other = Agreed { psns: [9, 9], ..AGREED };
    let frame =
        put(&mut script, 1, 2, header(AttributeId::CM_REQ, TRANSACTION), &req(0x11, &other));
    assert_breaks(&script, frame, &rules::CM_RETRY_CHANGED);
}

#[test]
fn dreq_names_the_queue_pair_of_its_receiver() {
    let mut script = connected();
    let wrong = dreq(0x13).emit();
    let frame = put(&mut script, 1, 2, header(AttributeId::CM_DREQ, 77), wrong.as_bytes());
    assert_breaks(&script, frame, &rules::CM_DREQ_QPN);
}

fn sidr_rep(qpn: u32, q_key: u32, service_id: ServiceId) -> SidrRepRepr {
    SidrRepRepr {
        request_id: CommId(5),
        status: 0,
        additional_information_length: 0,
        vendor_id_h: 0,
        qpn: Qpn::new(qpn),
        vendor_id_l: 0,
        service_id,
        q_key: QKey::new(q_key),
        additional_information: [0; 72],
        private_data: [0; 136],
    }
}

const SERVICE: ServiceId = ServiceId::rdma_cm(PortSpace::UDP, 7174);

/// Lets a host learn queue pair and Q_Key of a service.
pub(in crate::replay) fn resolve(script: &mut Script, from: u8, to: u8, qpn: u32, q_key: u32) {
    let request = SidrReqRepr {
        request_id: CommId(5),
        partition_key: PKey::DEFAULT,
        service_id: SERVICE,
        private_data: [0; 216],
    };
    put(script, from, to, header(AttributeId::CM_SIDR_REQ, 9), request.emit().as_bytes());
    let answer = sidr_rep(qpn, q_key, SERVICE).emit();
    put(script, to, from, header(AttributeId::CM_SIDR_REP, 9), answer.as_bytes());
}

#[test]
fn service_resolution_is_answered_for_the_service() {
    let mut script = Script::new();
    resolve(&mut script, 1, 2, 0x14, 7);
    assert_agreed(&script);
    let wrong = sidr_rep(0x14, 7, ServiceId::rdma_cm(PortSpace::UDP, 1)).emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_SIDR_REP, 9), wrong.as_bytes());
    assert_breaks(&script, frame, &rules::SIDR_SERVICE);
}

#[test]
fn answer_without_its_request_is_undecided() {
    let mut script = Script::new();
    let reply = rep(0x12, &AGREED).emit();
    let frame = put(&mut script, 2, 1, header(AttributeId::CM_REP, TRANSACTION), reply.as_bytes());
    let steps = script.judge(Subject::Management, None);
    assert_eq!(undecided(&steps), [(frame, Undecided::MissingPackets)]);
}

#[test]
fn mad_has_its_version_and_key() {
    let mut script = Script::new();
    let mad = header(AttributeId::CM_REQ, TRANSACTION);
    let body = req(0x11, &AGREED);
    let frame = put(&mut script, 1, 2, MadHeaderRepr { class_version: 1, ..mad }, &body);
    assert_breaks(&script, frame, &rules::MAD_HEADER);
    let mut script = Script::new();
    let frame = put(&mut script, 1, 2, MadHeaderRepr { response: true, ..mad }, &body);
    assert_breaks(&script, frame, &rules::MAD_HEADER);
    let mut script = Script::new();
    let frame = put_with_qkey(&mut script, (1, 2), QKey::new(1), mad, &body);
    assert_breaks(&script, frame, &rules::MAD_ENVELOPE);
    let mut script = Script::new();
    let frame = put(&mut script, 1, 2, mad, &[body.as_slice(), &[0; 4]].concat());
    assert_breaks(&script, frame, &rules::MAD_ENVELOPE);
}
