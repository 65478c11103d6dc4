//! Datagrams: UD and the GSI queue pair.

use super::super::Counter;
use super::super::env::Env;
use super::super::path::path_to;
use super::super::recv_queue::RecvSlot;
use super::super::send_queue::SendWqe;
use super::super::sge::{gather, scatter_into};
use super::Failure;
use super::attr::Attributes;
use super::rx::{Rx, check_srq_limit};
use super::tx::{Step, Tx, pad_for};
use crate::memory::Payload;
use crate::verbs::{QpType, SendFlags, Wc, WcOpcode, WcStatus, WrOpcode, limits};
use crate::wire::batch::Batch;
use crate::wire::{BthRepr, DethRepr, ImmDtRepr, Ipv4, Opcode, PKey, Packet, Received};

/// Length of the area before the payload in a datagram's receive buffer.
const GRH_LEN: usize = limits::GRH_BYTES as usize;

/// Sends the datagram at the cursor of the send queue.
pub(super) fn transmit(
    tx: &mut Tx,
    wqe: &SendWqe,
    attr: &Attributes,
    env: &mut Env,
    batch: &mut Batch,
) -> Result<Step, Failure> {
    let index = tx.cursor();
    let (ah, qpn, qkey) = wqe.ud_target();
    // An address handle of another protection domain is unknown.
    let Some(&(_, ah)) = env.ahs.get(env.ahs.tagged(ah.0)).filter(|(pd, _)| *pd == attr.pd) else {
        return Err(tx.fail_request(index, WcStatus::LocQpOpErr, attr, env));
    };
    // Rule: Q-14.
    if wqe.len() as usize > env.config.port_mtu.bytes() {
        return Err(tx.fail_request(index, WcStatus::LocLenErr, attr, env));
    }
    let Some(path) = path_to(&ah, attr.qpn, qpn, env) else {
        return Err(tx.fail_request(index, WcStatus::LocQpOpErr, attr, env));
    };
    // A Q_Key with its highest bit set is controlled: the queue pair's own is sent instead.
    // Rule: Q-15.
    let controlled = qkey.get() >> 31 == 1;
    let qkey = if controlled { attr.own_qkey() } else { qkey };
    let imm = (wqe.opcode() == WrOpcode::SendWithImm).then(|| ImmDtRepr { data: wqe.imm() });
    let opcode = imm.map_or(Opcode::UD_SEND_ONLY, |_| Opcode::UD_SEND_ONLY_WITH_IMMEDIATE);
    let solicited = wqe.flags().contains(SendFlags::SOLICITED);
    let (pkey, pad) = (attr.pkey, pad_for(wqe.len()));
    let bth = BthRepr { solicited, pkey, pad, ..BthRepr::new(opcode, qpn, tx.next_psn()) };
    batch.set_path(&path);
    let mut draft = batch.draft();
    draft.put(bth.emit().as_bytes());
    draft.put(DethRepr { qkey, src_qp: attr.qpn }.emit().as_bytes());
    if let Some(imm) = imm {
        draft.put(imm.emit().as_bytes());
    }
    let (source, len) = (tx.source(index), wqe.len() as usize);
    let filled = gather(source, 0, len, &mut draft, attr.pd, env);
    if filled.is_err() {
        drop(draft);
        return Err(tx.fail_request(index, WcStatus::LocProtErr, attr, env));
    }
    draft.finish();
    env.count(Counter::Sent);
    tx.finish_datagram(attr, env)
}

/// Receives a datagram, or drops it silently (P-15). `Ok` may hold a failure of the queue pair.
pub(super) fn receive(
    rx: &mut Rx,
    received: &Received<'_>,
    packet: &Packet<'_>,
    attr: &Attributes,
    env: &mut Env,
) -> Result<Result<(), Failure>, Counter> {
    if !attr.rules().requests {
        return Err(Counter::WrongState);
    }
    let bth = packet.bth();
    // Rule: P-15.2.
    if !accepts_pkey(bth.pkey(), attr, env) {
        return Err(Counter::BadPKey);
    }
    let deth = packet.deth().ok_or(Counter::Truncated)?;
    // Rule: P-15.1.
    if deth.qkey() != attr.own_qkey() {
        return Err(Counter::BadQKey);
    }
    if packet.payload_len() > env.config.port_mtu.bytes() {
        return Err(Counter::OverMtu);
    }
    // Rule: W-50.2.
    if usize::from(packet.pad_len()) != packet.payload_len().wrapping_neg() % 4 {
        return Err(Counter::BadPadding);
    }
    let len = GRH_LEN + packet.payload_len();
    let queue = rx.recv_queue(attr.srq, env).ok_or(Counter::NoReceive)?;
    let next = queue.peek().ok_or(Counter::NoReceive)?;
    if queue.room(next) < len as u64 {
        // The sender gets no response, and the buffer waits for a message that fits.
        return Err(Counter::TooLong);
    }
    let taken = queue.take().ok_or(Counter::NoReceive)?;
    if let Some(handle) = attr.srq {
        check_srq_limit(handle, env);
    }
    let status = scatter(rx, taken, received.network, packet.data(), attr, env);
    let id = rx.recv_queue(attr.srq, env).ok_or(Counter::NoReceive)?.release(taken);
    let byte_len = u32::try_from(len).unwrap_or(u32::MAX);
    let mut wc = Wc::new(id, status, WcOpcode::Recv, attr.qpn)
        .with_byte_len(byte_len)
        .with_datagram(deth.src_qp());
    wc.sl = network_header_kind(received.network);
    if let Some(imm) = packet.imm_dt() {
        wc = wc.with_imm(imm.data());
    }
    let delivered = env.complete(attr.recv_cq, wc, bth.solicited());
    let success = delivered && status == WcStatus::Success;
    Ok(if success { Ok(()) } else { Err(Failure::Fatal) })
}

/// Whether a P_Key matches: the GSI queue pair takes any partition of the port, others their own.
fn accepts_pkey(pkey: PKey, attr: &Attributes, env: &Env) -> bool {
    match attr.kind {
        QpType::Gsi => env.config.pkeys.iter().any(|own| own.matches(pkey)),
        _ => attr.pkey.matches(pkey),
    }
}

/// Writes network header and payload to the buffers of a receive work request.
fn scatter(
    rx: &Rx,
    taken: RecvSlot,
    network: &[u8],
    payload: Payload<'_>,
    attr: &Attributes,
    env: &Env,
) -> WcStatus {
    // Rule: P-15.3.
    let mut area = [0; GRH_LEN];
    // An IPv4 header fills the last 20 bytes of the area; those before it are undefined.
    let start = GRH_LEN.saturating_sub(network.len());
    for (to, from) in area.iter_mut().skip(start).zip(network) {
        *to = *from;
    }
    let Some((pd, sges)) = rx.buffers(taken, attr.srq, attr, env) else {
        return WcStatus::LocProtErr;
    };
    let written = scatter_into(pd, sges, 0, Payload::Private(&area), env)
        .and_then(|_| scatter_into(pd, sges, GRH_LEN as u64, payload, env));
    if written.is_ok() { WcStatus::Success } else { WcStatus::LocProtErr }
}

/// Returns the network header type of a datagram, for `Wc::sl`: eight for UDP, and one for IPv6 or
/// two for IPv4. Ethernet has no service levels; ConnectX puts this in their place, and programs
/// such as UCX read it there to find the address in a buffer.
fn network_header_kind(network: &[u8]) -> u8 {
    8 | if network.len() > Ipv4::LEN { 1 } else { 2 }
}
