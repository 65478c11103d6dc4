//! The messages by which a connection manager makes a connection.

use std::time::Duration;

use roce::wire::cm::{CommId, Rep, RepRepr, Req, ReqRepr, Rtu, RtuRepr};
use roce::wire::mad::{AttributeId, MadHeader, MadHeaderRepr, MgmtClass};
use roce::wire::{Bits, BthRepr, DethRepr, Extensions, Gid, Opcode, PKey, Psn, QKey, Qpn, view};

use super::craft::emit;
use super::setup::Connection;

/// Pause between two messages.
const PAUSE: Duration = Duration::from_micros(20);

/// Time from the messages to the first request.
pub const LEAD: Duration = Duration::from_micros(100);

/// REQ, REP and RTU: who sends each (0 for A), when, and what.
pub fn exchange(
    number: u32,
    plan: &Connection,
    qpns: [Qpn; 2],
    gids: [Gid; 2],
) -> Vec<(usize, Duration, Vec<u8>)> {
    let attr = &plan.attr;
    let ids = [CommId(0x1000 + number), CommId(0x2000 + number)];
    let transaction = 0x77_0000 + u64::from(number);
    let (retry_count, rnr_retry_count) = (Bits::low(attr.retry_count), Bits::low(attr.rnr_retry));
    let (responder_resources, initiator_depth) = (attr.reads, attr.reads);
    let req = ReqRepr {
        local_comm_id: ids[0],
        local_qpn: qpns[0],
        responder_resources,
        initiator_depth,
        starting_psn: Psn::new(attr.psns[1]),
        retry_count,
        rnr_retry_count,
        partition_key: PKey::DEFAULT,
        path_mtu: Bits::low((attr.mtu.bytes() as u32 / 256).ilog2() + 1),
        max_cm_retries: Bits::low(15),
        remote_cm_response_timeout: Bits::low(20),
        local_cm_response_timeout: Bits::low(20),
        primary_local_port_lid: 0xffff,
        primary_remote_port_lid: 0xffff,
        primary_local_port_gid: gids[0],
        primary_remote_port_gid: gids[1],
        primary_hop_limit: 64,
        primary_local_ack_timeout: Bits::low(attr.timeout),
        ..view::<Req>(&[0; 232], 0).unwrap().repr()
    };
    let rep = RepRepr {
        local_comm_id: ids[1],
        remote_comm_id: ids[0],
        local_qpn: qpns[1],
        starting_psn: Psn::new(attr.psns[0]),
        responder_resources,
        initiator_depth,
        rnr_retry_count,
        ..view::<Rep>(&[0; 232], 0).unwrap().repr()
    };
    let rtu = RtuRepr {
        local_comm_id: ids[0],
        remote_comm_id: ids[1],
        ..view::<Rtu>(&[0; 232], 0).unwrap().repr()
    };
    let at = PAUSE * number;
    let mad = |attribute, body: &[u8], psn| datagram(attribute, transaction, body, psn);
    vec![
        (0, at, mad(AttributeId::CM_REQ, req.emit().as_bytes(), 2 * number)),
        (1, at + PAUSE, mad(AttributeId::CM_REP, rep.emit().as_bytes(), number)),
        (0, at + PAUSE * 2, mad(AttributeId::CM_RTU, rtu.emit().as_bytes(), 2 * number + 1)),
    ]
}

/// A management datagram from one general services queue pair to the other.
fn datagram(attribute: AttributeId, transaction: u64, body: &[u8], psn: u32) -> Vec<u8> {
    let header = MadHeaderRepr {
        base_version: 1,
        class: MgmtClass::CM,
        class_version: 2,
        // Send.
        method: Bits::low(3),
        transaction_id: transaction,
        attribute,
        ..view::<MadHeader>(&[0; 24], 0).unwrap().repr()
    };
    let payload = [header.emit().as_bytes(), body].concat();
    let bth = BthRepr::new(Opcode::UD_SEND_ONLY, Qpn::new(1), Psn::new(psn));
    let deth = DethRepr { qkey: QKey::new(0x8001_0000), src_qp: Qpn::new(1) };
    emit(bth, Extensions { deth: Some(deth), ..Extensions::default() }, &payload)
}
