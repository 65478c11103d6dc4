//! Fields of the route headers, the BTH, its extension headers, the payload and the checksums.

use super::super::Context;
use super::super::field::{Field, Show, Value};
use crate::wire::aeth::Answer;
use crate::wire::layout::BitRange;
use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Encapsulation, Feth, Grh, Ieth, ImmDt, Lrh,
    Rdeth, Reth, SackEth, Xrceth,
};

pub(in super::super) static LRH: [Field; 10] = [
    Field::whole("infiniband.lrh", "Local Route Header"),
    Field::bits("infiniband.lrh.vl", "Virtual Lane", Lrh::LAYOUT.vl, Show::Hex(2)),
    Field::bits("infiniband.lrh.lver", "Link Version", Lrh::LAYOUT.lver, Show::Dec),
    Field::bits("infiniband.lrh.sl", "Service Level", Lrh::LAYOUT.sl, Show::Dec),
    Field::bits("infiniband.lrh.reserved2", "Reserved (2 bits)", Lrh::LAYOUT.resv2, Show::Dec),
    Field::bits("infiniband.lrh.lnh", "Link Next Header", Lrh::LAYOUT.lnh, Show::Hex(2)),
    Field::bits("infiniband.lrh.dlid", "Destination Local ID", Lrh::LAYOUT.dlid, Show::Dec),
    Field::bits("infiniband.lrh.reserved5", "Reserved (5 bits)", Lrh::LAYOUT.resv5, Show::Dec),
    Field::bits("infiniband.lrh.pktlen", "Packet Length", Lrh::LAYOUT.packet_len, Show::Dec),
    Field::bits("infiniband.lrh.slid", "Source Local ID", Lrh::LAYOUT.slid, Show::Dec),
];

pub(in super::super) static GRH: [Field; 9] = [
    Field::whole("infiniband.grh", "Global Route Header"),
    Field::bits("infiniband.grh.ipver", "IP Version", Grh::LAYOUT.version, Show::Dec),
    Field::bits("infiniband.grh.tclass", "Traffic Class", Grh::LAYOUT.traffic_class, Show::Dec),
    Field::bits("infiniband.grh.flowlabel", "Flow Label", Grh::LAYOUT.flow_label, Show::Dec),
    Field::bits("infiniband.grh.paylen", "Payload Length", Grh::LAYOUT.payload_len, Show::Dec),
    Field::bits("infiniband.grh.nxthdr", "Next Header", Grh::LAYOUT.next_header, Show::Dec),
    Field::bits("infiniband.grh.hoplmt", "Hop Limit", Grh::LAYOUT.hop_limit, Show::Dec),
    Field::bits("infiniband.grh.sgid", "Source GID", Grh::LAYOUT.sgid, Show::Ipv6),
    Field::bits("infiniband.grh.dgid", "Destination GID", Grh::LAYOUT.dgid, Show::Ipv6),
];

/// The byte that tshark calls reserved, and that holds FECN and BECN.
const BTH_BYTE_4: BitRange = Bth::LAYOUT.fecn.through(Bth::LAYOUT.resv6);

pub(in super::super) static BTH: [Field; 17] = [
    Field::whole("infiniband.bth", "Base Transport Header"),
    Field::bits("infiniband.bth.opcode", "Opcode", Bth::LAYOUT.opcode, Show::Dec),
    Field::computed("roce.opcode_name", "Opcode Name", Show::Text, |context, _| {
        context.frame.packet().map(|packet| Value::Opcode(packet.bth().opcode()))
    }),
    Field::bits("infiniband.bth.se", "Solicited Event", Bth::LAYOUT.solicited, Show::Dec),
    Field::bits("infiniband.bth.m", "MigReq", Bth::LAYOUT.migreq, Show::Dec),
    Field::bits("infiniband.bth.padcnt", "Pad Count", Bth::LAYOUT.pad, Show::Dec),
    Field::bits("infiniband.bth.tver", "Header Version", Bth::LAYOUT.tver, Show::Dec),
    Field::bits("infiniband.bth.p_key", "Partition Key", Bth::LAYOUT.pkey, Show::Dec),
    Field::bits("roce.bth.fecn", "FECN", Bth::LAYOUT.fecn, Show::Dec),
    Field::bits("roce.bth.becn", "BECN", Bth::LAYOUT.becn, Show::Dec),
    Field::bits("roce.bth.reserved6", "Reserved (6 bits)", Bth::LAYOUT.resv6, Show::Dec),
    Field::bits("infiniband.reserved", "Reserved", BTH_BYTE_4, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.bth.destqp",
        "Destination Queue Pair",
        Bth::LAYOUT.dest_qp,
        Show::Hex(6),
    ),
    Field::bits("infiniband.bth.a", "Acknowledge Request", Bth::LAYOUT.ack_req, Show::Dec),
    Field::bits("infiniband.bth.reserved7", "Reserved (7 bits)", Bth::LAYOUT.resv7, Show::Dec),
    Field::bits("infiniband.bth.psn", "Packet Sequence Number", Bth::LAYOUT.psn, Show::Dec),
    Field::computed("roce.payload_len", "Payload Length", Show::Dec, |context, _| {
        Some(Value::Uint(context.frame.packet()?.payload_len() as u64))
    }),
];

pub(in super::super) static RDETH: [Field; 3] = [
    Field::whole("infiniband.rdeth", "Reliable Datagram Extended Transport Header"),
    Field::bits("infiniband.reserved", "Reserved", Rdeth::LAYOUT.resv8, Show::Bytes).hidden(),
    Field::bits("infiniband.rdeth.eecnxt", "E2E Context", Rdeth::LAYOUT.ee_context, Show::Dec),
];

pub(in super::super) static DETH: [Field; 4] = [
    Field::whole("infiniband.deth", "Datagram Extended Transport Header"),
    Field::bits("infiniband.deth.q_key", "Queue Key", Deth::LAYOUT.qkey, Show::Hex(16)),
    Field::bits("infiniband.reserved", "Reserved", Deth::LAYOUT.resv8, Show::Bytes).hidden(),
    Field::bits("infiniband.deth.srcqp", "Source Queue Pair", Deth::LAYOUT.src_qp, Show::Hex(8)),
];

pub(in super::super) static XRCETH: [Field; 2] = [
    Field::whole("roce.xrceth", "XRC Extended Transport Header"),
    Field::bits(
        "roce.xrceth.xrcsrq",
        "XRC Shared Receive Queue",
        Xrceth::LAYOUT.xrcsrq,
        Show::Hex(6),
    ),
];

pub(in super::super) static FETH: [Field; 3] = [
    Field::whole("roce.feth", "Flush Extended Transport Header"),
    Field::bits("roce.feth.sel", "Selectivity Level", Feth::LAYOUT.selectivity, Show::Dec),
    Field::bits("roce.feth.plt", "Placement Type", Feth::LAYOUT.placement, Show::Dec),
];

pub(in super::super) static RETH: [Field; 4] = [
    Field::whole("infiniband.reth", "RDMA Extended Transport Header"),
    Field::bits("infiniband.reth.va", "Virtual Address", Reth::LAYOUT.va, Show::Hex(16)),
    Field::bits("infiniband.reth.r_key", "Remote Key", Reth::LAYOUT.rkey, Show::Hex(8)),
    Field::bits("infiniband.reth.dmalen", "DMA Length", Reth::LAYOUT.dma_len, Show::Dec),
];

pub(in super::super) static ATOMIC_ETH: [Field; 5] = [
    Field::whole("infiniband.atomiceth", "Atomic Extended Transport Header"),
    Field::bits("infiniband.reth.va", "Virtual Address", AtomicEth::LAYOUT.va, Show::Hex(16)),
    Field::bits("infiniband.reth.r_key", "Remote Key", AtomicEth::LAYOUT.rkey, Show::Hex(8)),
    Field::bits(
        "infiniband.atomiceth.swapdt",
        "Swap (or Add) Data",
        AtomicEth::LAYOUT.swap_or_add,
        Show::Dec,
    ),
    Field::bits("infiniband.atomiceth.cmpdt", "Compare Data", AtomicEth::LAYOUT.compare, Show::Dec),
];

const KIND: BitRange = Aeth::LAYOUT.syndrome.part(1, 2);
const SYNDROME_VALUE: BitRange = Aeth::LAYOUT.syndrome.part(3, 5);

/// The five low bits of the syndrome, if its kind is this one.
fn syndrome_value<'a>(layer: &[u8], kind: u64) -> Option<Value<'a>> {
    (KIND.read(layer)? == kind).then_some(Value::Uint(SYNDROME_VALUE.read(layer)?))
}

pub(in super::super) static AETH: [Field; 13] = [
    Field::whole("infiniband.aeth", "ACK Extended Transport Header"),
    Field::bits("infiniband.aeth.syndrome", "Syndrome", Aeth::LAYOUT.syndrome, Show::Dec),
    Field::bits(
        "infiniband.aeth.syndrome.reserved",
        "Reserved",
        Aeth::LAYOUT.syndrome.part(0, 1),
        Show::Dec,
    ),
    Field::bits("infiniband.aeth.syndrome.opcode", "OpCode", KIND, Show::Dec),
    Field::computed(
        "infiniband.aeth.syndrome.credit_count",
        "Credit Count",
        Show::Dec,
        |_, layer| syndrome_value(layer, 0),
    ),
    Field::computed("infiniband.aeth.syndrome.timer", "Timer", Show::Dec, |_, layer| {
        syndrome_value(layer, 1)
    }),
    Field::computed(
        "infiniband.aeth.syndrome.reserved_value",
        "Reserved",
        Show::Dec,
        |_, layer| syndrome_value(layer, 2),
    ),
    Field::computed("infiniband.aeth.syndrome.error_code", "Error Code", Show::Dec, |_, layer| {
        syndrome_value(layer, 3)
    }),
    Field::computed("roce.aeth.kind", "Kind", Show::Text, |context, _| {
        Some(Value::Text(match context.frame.packet()?.aeth()?.syndrome().answer() {
            Answer::Ack(_) => "ACK",
            Answer::RnrNak(_) => "RNR",
            Answer::Reserved(_) => "reserved",
            Answer::Nak(_) => "NAK",
        }))
    }),
    Field::computed("roce.aeth.credits", "Credits", Show::Dec, |context, _| {
        match context.frame.packet()?.aeth()?.syndrome().answer() {
            Answer::Ack(credits) => credits.count().map(|count| Value::Uint(count.into())),
            _ => None,
        }
    }),
    Field::computed("roce.aeth.rnr_us", "RNR Timer (µs)", Show::Dec, |context, _| {
        match context.frame.packet()?.aeth()?.syndrome().answer() {
            Answer::RnrNak(timer) => Some(Value::Uint(timer.micros().into())),
            _ => None,
        }
    }),
    Field::computed("roce.aeth.nak", "Refusal", Show::Text, |context, _| {
        match context.frame.packet()?.aeth()?.syndrome().answer() {
            Answer::Nak(code) => Some(Value::Text(code.name())),
            _ => None,
        }
    }),
    Field::bits("infiniband.aeth.msn", "Message Sequence Number", Aeth::LAYOUT.msn, Show::Dec),
];

pub(in super::super) static ATOMIC_ACK_ETH: [Field; 2] = [
    Field::whole("infiniband.atomicacketh", "Atomic ACK Extended Transport Header"),
    Field::bits(
        "infiniband.atomicacketh.origremdt",
        "Original Remote Data",
        AtomicAckEth::LAYOUT.original,
        Show::Dec,
    ),
];

pub(in super::super) static IMM_DT: [Field; 2] = [
    // As in tshark, the header and its only field have one name.
    Field::whole("infiniband.immdt", "Immediate Data"),
    Field::bits("infiniband.immdt", "Immediate Data", ImmDt::LAYOUT.data, Show::Bytes),
];

pub(in super::super) static IETH: [Field; 2] = [
    // As in tshark, the header and its only field have one name.
    Field::whole("infiniband.ieth", "RKey"),
    Field::bits("infiniband.ieth", "RKey to invalidate", Ieth::LAYOUT.rkey, Show::Bytes),
];

pub(in super::super) static SACK_ETH: [Field; 4] = [
    Field::whole("roce.sacketh", "Selective ACK Extended Transport Header"),
    Field::bits("roce.sacketh.base", "Base PSN", SackEth::LAYOUT.base, Show::Dec),
    Field::bits("roce.sacketh.words", "Words of the bitmap", SackEth::LAYOUT.words, Show::Dec),
    Field::computed("roce.sacketh.count", "Packets received", Show::Dec, |context, _| {
        let packet = context.frame.packet()?;
        packet.sack_eth()?;
        let received = packet.payload().iter().map(|byte| u64::from(byte.count_ones())).sum();
        Some(Value::Uint(received))
    }),
];

/// Returns the payload as tshark defines it: with the pad bytes.
fn padded_payload<'a>(context: &Context<'a>) -> Option<&'a [u8]> {
    let packet = context.frame.packet()?;
    packet.bytes().get(packet.header_len()..)
}

pub(in super::super) static PAYLOAD: [Field; 4] = [
    Field::presence("data"),
    Field::bytes_from("roce.payload", "Payload", 0).hidden(),
    Field::computed("data.data", "Payload with padding", Show::Bytes, |context, _| {
        padded_payload(context).map(Value::Bytes)
    })
    .hidden(),
    Field::computed("data.len", "Payload and padding captured", Show::Dec, |context, _| {
        padded_payload(context).map(|bytes| Value::Uint(bytes.len() as u64))
    })
    .hidden(),
];

pub(in super::super) static PAD: [Field; 1] = [Field::bytes_from("roce.pad", "Pad", 0)];

pub(in super::super) static ICRC: [Field; 1] =
    [Field::bits("infiniband.invariant.crc", "Invariant CRC", BitRange::new(0, 32), Show::Hex(8))];

pub(in super::super) static VCRC: [Field; 2] = [
    Field::bits("infiniband.variant.crc", "Variant CRC", BitRange::new(0, 16), Show::Hex(4)),
    Field::computed("roce.vcrc", "VCRC Verdict", Show::Text, |context, _| {
        context.frame.vcrc().map(|verdict| Value::Text(verdict.name()))
    }),
];

/// Fields of every packet of RoCE and of native InfiniBand, however much of it was captured.
pub(in super::super) static ROCE: [Field; 8] = [
    Field::presence("infiniband"),
    Field::presence_if("roce", "RoCE", |context| {
        context.frame.encapsulation().is_some_and(|how| how != Encapsulation::Native)
    }),
    Field::computed("roce.encapsulation", "Encapsulation", Show::Text, |context, _| {
        Some(Value::Text(match context.frame.encapsulation()? {
            Encapsulation::RoceV1 => "RoCEv1",
            Encapsulation::RoceV2 => "RoCEv2",
            Encapsulation::Native => "IB",
        }))
    }),
    Field::computed("roce.icrc", "ICRC Verdict", Show::Text, |context, _| {
        context.icrc().map(|verdict| Value::Text(verdict.name()))
    }),
    Field::computed("roce.train.index", "Packet in its train", Show::Dec, |context, _| {
        context.train.map(|train| Value::Uint(train.index.into()))
    }),
    Field::computed("roce.train.len", "Packets in the train", Show::Dec, |context, _| {
        context.train.map(|train| Value::Uint(train.of.into()))
    }),
    Field::computed("roce.flow", "Connection", Show::Dec, |context, _| {
        context.annotations.flow.map(Value::Uint)
    }),
    Field::computed("roce.retransmission", "Retransmission", Show::Text, |context, _| {
        context.annotations.retransmission.map(Value::Text)
    }),
];

pub(in super::super) static CNP: [Field; 1] =
    [Field::bits("roce.cnp.reserved", "Reserved", Cnp::LAYOUT.reserved, Show::Bytes)];

pub(in super::super) static TRAILER: [Field; 1] =
    [Field::computed("roce.error", "Error", Show::Text, |context, _| {
        context.frame.error().copied().map(Value::Error)
    })];
