//! Packets made and changed by hand, from the BTH to the last pad byte.

use roce::wire::aeth::Answer;
use roce::wire::{
    AethRepr, AtomicAckEthRepr, BthRepr, Extensions, IethRepr, Msn, Opcode, Operation, Packet,
    PacketRepr, Psn, Qpn, RKey, RethRepr, Role,
};

pub const ACK: u8 = 0x1f;
pub const RNR_NAK: u8 = 0x26;
pub const SEQUENCE_NAK: u8 = 0x60;
pub const INVALID_NAK: u8 = 0x61;
pub const ACCESS_NAK: u8 = 0x62;

pub fn parse(packet: &[u8]) -> Packet<'_> {
    Packet::parse(packet).unwrap()
}

pub fn psn(packet: &[u8]) -> u32 {
    parse(packet).bth().psn().get()
}

pub fn msn(packet: &[u8]) -> u32 {
    parse(packet).aeth().unwrap().msn().get()
}

pub fn is_request(packet: &Packet<'_>) -> bool {
    packet.info().is_some_and(|info| info.role == Role::Request)
}

pub fn is_ack(packet: &Packet<'_>) -> bool {
    is_acknowledge(packet, |answer| matches!(answer, Answer::Ack(_)))
}

pub fn is_nak(packet: &Packet<'_>) -> bool {
    is_acknowledge(packet, |answer| matches!(answer, Answer::Nak(_)))
}

pub fn is_rnr_nak(packet: &Packet<'_>) -> bool {
    is_acknowledge(packet, |answer| matches!(answer, Answer::RnrNak(_)))
}

fn is_acknowledge(packet: &Packet<'_>, is: fn(Answer) -> bool) -> bool {
    let answer = packet.aeth().map(|aeth| aeth.syndrome().answer());
    is_operation(packet, Operation::Acknowledge) && answer.is_some_and(is)
}

pub fn is_read_response(packet: &Packet<'_>) -> bool {
    is_operation(packet, Operation::ReadResponse)
}

pub fn is_atomic_ack(packet: &Packet<'_>) -> bool {
    is_operation(packet, Operation::AtomicAcknowledge)
}

pub fn is_operation(packet: &Packet<'_>, operation: Operation) -> bool {
    packet.info().is_some_and(|info| info.operation == operation)
}

fn set24(bytes: &mut [u8], value: u32) {
    bytes.copy_from_slice(&value.to_be_bytes()[1..]);
}

fn changed(packet: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut packet = packet.to_vec();
    change(&mut packet);
    packet
}

pub fn with_psn(packet: &[u8], psn: u32) -> Vec<u8> {
    changed(packet, |bytes| set24(&mut bytes[9..12], psn & 0xff_ffff))
}

/// Adds to the PSN.
pub fn psn_moved(packet: &[u8], by: i32) -> Vec<u8> {
    with_psn(packet, psn(packet).wrapping_add_signed(by))
}

pub fn with_msn(packet: &[u8], msn: u32) -> Vec<u8> {
    assert!(parse(packet).aeth().is_some());
    changed(packet, |bytes| set24(&mut bytes[13..16], msn & 0xff_ffff))
}

/// Adds to the MSN.
pub fn msn_moved(packet: &[u8], by: i32) -> Vec<u8> {
    with_msn(packet, msn(packet).wrapping_add_signed(by))
}

pub fn with_syndrome(packet: &[u8], syndrome: u8) -> Vec<u8> {
    assert!(parse(packet).aeth().is_some());
    changed(packet, |bytes| bytes[12] = syndrome)
}

pub fn with_pkey(packet: &[u8], pkey: u16) -> Vec<u8> {
    changed(packet, |bytes| bytes[2..4].copy_from_slice(&pkey.to_be_bytes()))
}

pub fn with_qp(packet: &[u8], qp: Qpn) -> Vec<u8> {
    changed(packet, |bytes| set24(&mut bytes[5..8], qp.get()))
}

pub fn with_pad_count(packet: &[u8], pad: u8) -> Vec<u8> {
    changed(packet, |bytes| bytes[1] = bytes[1] & !0x30 | pad << 4)
}

pub fn with_version(packet: &[u8], version: u8) -> Vec<u8> {
    changed(packet, |bytes| bytes[1] = bytes[1] & !0xf | version)
}

pub fn with_ack_request(packet: &[u8]) -> Vec<u8> {
    changed(packet, |bytes| bytes[8] |= 0x80)
}

pub fn with_solicited(packet: &[u8]) -> Vec<u8> {
    changed(packet, |bytes| bytes[1] |= 0x80)
}

/// Changes the last byte: of the padding, if there is any.
pub fn with_last_byte(packet: &[u8], byte: u8) -> Vec<u8> {
    changed(packet, |bytes| *bytes.last_mut().unwrap() = byte)
}

/// Sets another key and address in its RETH or AtomicETH.
pub fn redirected(packet: &[u8], va: u64, rkey: RKey) -> Vec<u8> {
    changed(packet, |bytes| {
        bytes[12..20].copy_from_slice(&va.to_be_bytes());
        bytes[20..24].copy_from_slice(&rkey.get().to_be_bytes());
    })
}

/// Sets another original value in its AtomicAckETH.
pub fn with_original(packet: &[u8], original: u64) -> Vec<u8> {
    assert!(parse(packet).atomic_ack_eth().is_some());
    changed(packet, |bytes| bytes[16..24].copy_from_slice(&original.to_be_bytes()))
}

pub fn original(packet: &[u8]) -> u64 {
    parse(packet).atomic_ack_eth().unwrap().original()
}

/// Sets another opcode and payload. The AETH comes along if both opcodes have one; a new one has
/// this MSN.
pub fn remade(packet: &[u8], opcode: Opcode, msn: u32, payload: &[u8]) -> Vec<u8> {
    let old = parse(packet);
    let bth = BthRepr { opcode, ..old.bth().repr() };
    let wants = opcode.info().unwrap().headers.contains(roce::wire::Headers::AETH);
    let new = AethRepr { syndrome: roce::wire::aeth::Syndrome(ACK), msn: Msn::new(msn) };
    let aeth = old.aeth().map_or(new, |aeth| aeth.repr());
    let extensions = Extensions { aeth: wants.then_some(aeth), ..Extensions::default() };
    emit(bth, extensions, payload)
}

/// An ATOMIC acknowledgement in place of an ACK or NAK, of one more request.
pub fn as_atomic_ack(packet: &[u8], original: u64) -> Vec<u8> {
    let old = parse(packet);
    let bth = BthRepr { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, ..old.bth().repr() };
    let (syndrome, msn) = (roce::wire::aeth::Syndrome(ACK), Msn::new(msn(packet) + 1));
    let aeth = Some(AethRepr { syndrome, msn });
    let atomic_ack_eth = Some(AtomicAckEthRepr { original });
    emit(bth, Extensions { aeth, atomic_ack_eth, ..Extensions::default() }, &[])
}

/// Sets another payload.
pub fn with_payload(packet: &[u8], payload: &[u8]) -> Vec<u8> {
    let old = parse(packet);
    emit(old.bth().repr(), Extensions::of(&old), payload)
}

pub fn emit(bth: BthRepr, extensions: Extensions, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    PacketRepr::new(bth, extensions, payload).unwrap().emit(&mut out);
    out
}

/// A request, which asks for an acknowledgement if it ends a message.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub opcode: Opcode,
    pub qp: Qpn,
    pub psn: u32,
    pub reth: Option<RethRepr>,
    pub invalidate: Option<RKey>,
    pub len: usize,
    /// Returns the first bytes of its payload.
    pub seed: u8,
}

impl Request {
    pub fn new(opcode: Opcode, qp: Qpn, psn: u32, len: usize) -> Self {
        let (reth, invalidate) = (None, None);
        Self { opcode, qp, psn, reth, invalidate, len, seed: psn as u8 }
    }

    pub fn reth(self, va: u64, rkey: RKey, dma_len: u32) -> Self {
        Self { reth: Some(RethRepr { va, rkey, dma_len }), ..self }
    }

    pub fn build(self) -> Vec<u8> {
        let bth = BthRepr::new(self.opcode, self.qp, Psn::new(self.psn & 0xff_ffff));
        let ack_req = self.opcode.info().unwrap().position.ends();
        let extensions = Extensions {
            reth: self.reth,
            ieth: self.invalidate.map(|rkey| IethRepr { rkey }),
            ..Extensions::default()
        };
        let payload: Vec<u8> =
            (0..self.len).map(|at| (at as u8).wrapping_mul(7).wrapping_add(self.seed)).collect();
        emit(BthRepr { ack_req, ..bth }, extensions, &payload)
    }
}
