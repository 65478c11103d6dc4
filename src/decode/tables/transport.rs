//! Fields of the route headers, the BTH, its extension headers, the payload and the checksums.

use super::super::Context;
use super::super::field::{Field, Show, Value};
use crate::wire::aeth::Answer;
use crate::wire::layout::BitRange;
use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Encapsulation, Feth, Grh, Ieth, ImmDt, Lrh,
    Rdeth, Reth, SackEth, Xrceth,
};

fields! {
    LRH: Lrh {
        whole("infiniband.lrh", "Local Route Header");
        bits("infiniband.lrh.vl", "Virtual Lane", vl, Hex(2));
        bits("infiniband.lrh.lver", "Link Version", lver, Dec);
        bits("infiniband.lrh.sl", "Service Level", sl, Dec);
        bits("infiniband.lrh.reserved2", "Reserved (2 bits)", resv2, Dec);
        bits("infiniband.lrh.lnh", "Link Next Header", lnh, Hex(2));
        bits("infiniband.lrh.dlid", "Destination Local ID", dlid, Dec);
        bits("infiniband.lrh.reserved5", "Reserved (5 bits)", resv5, Dec);
        bits("infiniband.lrh.pktlen", "Packet Length", packet_len, Dec);
        bits("infiniband.lrh.slid", "Source Local ID", slid, Dec);
    }

    GRH: Grh {
        whole("infiniband.grh", "Global Route Header");
        bits("infiniband.grh.ipver", "IP Version", version, Dec);
        bits("infiniband.grh.tclass", "Traffic Class", traffic_class, Dec);
        bits("infiniband.grh.flowlabel", "Flow Label", flow_label, Dec);
        bits("infiniband.grh.paylen", "Payload Length", payload_len, Dec);
        bits("infiniband.grh.nxthdr", "Next Header", next_header, Dec);
        bits("infiniband.grh.hoplmt", "Hop Limit", hop_limit, Dec);
        bits("infiniband.grh.sgid", "Source GID", sgid, Ipv6);
        bits("infiniband.grh.dgid", "Destination GID", dgid, Ipv6);
    }
}

/// The byte that tshark calls reserved, and that holds FECN and BECN.
const BTH_BYTE_4: BitRange = Bth::LAYOUT.fecn.through(Bth::LAYOUT.resv6);

fields! {
    BTH: Bth {
        whole("infiniband.bth", "Base Transport Header");
        bits("infiniband.bth.opcode", "Opcode", opcode, Dec);
        computed("roce.opcode_name", "Opcode Name", Text, |context, _| {
            context.frame.packet().map(|packet| Value::Opcode(packet.bth().opcode()))
        });
        bits("infiniband.bth.se", "Solicited Event", solicited, Dec);
        bits("infiniband.bth.m", "MigReq", migreq, Dec);
        bits("infiniband.bth.padcnt", "Pad Count", pad, Dec);
        bits("infiniband.bth.tver", "Header Version", tver, Dec);
        bits("infiniband.bth.p_key", "Partition Key", pkey, Dec);
        bits("roce.bth.fecn", "FECN", fecn, Dec);
        bits("roce.bth.becn", "BECN", becn, Dec);
        bits("roce.bth.reserved6", "Reserved (6 bits)", resv6, Dec);
        hidden range("infiniband.reserved", "Reserved", BTH_BYTE_4, Bytes);
        bits("infiniband.bth.destqp", "Destination Queue Pair", dest_qp, Hex(6));
        bits("infiniband.bth.a", "Acknowledge Request", ack_req, Dec);
        bits("infiniband.bth.reserved7", "Reserved (7 bits)", resv7, Dec);
        bits("infiniband.bth.psn", "Packet Sequence Number", psn, Dec);
        computed("roce.payload_len", "Payload Length", Dec, |context, _| {
            Some(Value::Uint(context.frame.packet()?.payload_len() as u64))
        });
    }

    RDETH: Rdeth {
        whole("infiniband.rdeth", "Reliable Datagram Extended Transport Header");
        hidden bits("infiniband.reserved", "Reserved", resv8, Bytes);
        bits("infiniband.rdeth.eecnxt", "E2E Context", ee_context, Dec);
    }

    DETH: Deth {
        whole("infiniband.deth", "Datagram Extended Transport Header");
        bits("infiniband.deth.q_key", "Queue Key", qkey, Hex(16));
        hidden bits("infiniband.reserved", "Reserved", resv8, Bytes);
        bits("infiniband.deth.srcqp", "Source Queue Pair", src_qp, Hex(8));
    }

    XRCETH: Xrceth {
        whole("roce.xrceth", "XRC Extended Transport Header");
        bits("roce.xrceth.xrcsrq", "XRC Shared Receive Queue", xrcsrq, Hex(6));
    }

    FETH: Feth {
        whole("roce.feth", "Flush Extended Transport Header");
        bits("roce.feth.sel", "Selectivity Level", selectivity, Dec);
        bits("roce.feth.plt", "Placement Type", placement, Dec);
    }

    RETH: Reth {
        whole("infiniband.reth", "RDMA Extended Transport Header");
        bits("infiniband.reth.va", "Virtual Address", va, Hex(16));
        bits("infiniband.reth.r_key", "Remote Key", rkey, Hex(8));
        bits("infiniband.reth.dmalen", "DMA Length", dma_len, Dec);
    }

    ATOMIC_ETH: AtomicEth {
        whole("infiniband.atomiceth", "Atomic Extended Transport Header");
        bits("infiniband.reth.va", "Virtual Address", va, Hex(16));
        bits("infiniband.reth.r_key", "Remote Key", rkey, Hex(8));
        bits("infiniband.atomiceth.swapdt", "Swap (or Add) Data", swap_or_add, Dec);
        bits("infiniband.atomiceth.cmpdt", "Compare Data", compare, Dec);
    }
}

const KIND: BitRange = Aeth::LAYOUT.syndrome.part(1, 2);
const SYNDROME_VALUE: BitRange = Aeth::LAYOUT.syndrome.part(3, 5);

/// The five low bits of the syndrome, if its kind is this one.
fn syndrome_value<'a>(layer: &[u8], kind: u64) -> Option<Value<'a>> {
    (KIND.read(layer)? == kind).then_some(Value::Uint(SYNDROME_VALUE.read(layer)?))
}

fields! {
    AETH: Aeth {
        whole("infiniband.aeth", "ACK Extended Transport Header");
        bits("infiniband.aeth.syndrome", "Syndrome", syndrome, Dec);
        range("infiniband.aeth.syndrome.reserved", "Reserved",
            Aeth::LAYOUT.syndrome.part(0, 1), Dec);
        range("infiniband.aeth.syndrome.opcode", "OpCode", KIND, Dec);
        computed("infiniband.aeth.syndrome.credit_count", "Credit Count", Dec, |_, layer| {
            syndrome_value(layer, 0)
        });
        computed("infiniband.aeth.syndrome.timer", "Timer", Dec, |_, layer| {
            syndrome_value(layer, 1)
        });
        computed("infiniband.aeth.syndrome.reserved_value", "Reserved", Dec, |_, layer| {
            syndrome_value(layer, 2)
        });
        computed("infiniband.aeth.syndrome.error_code", "Error Code", Dec, |_, layer| {
            syndrome_value(layer, 3)
        });
        computed("roce.aeth.kind", "Kind", Text, |context, _| {
            Some(Value::Text(match context.frame.packet()?.aeth()?.syndrome().answer() {
                Answer::Ack(_) => "ACK",
                Answer::RnrNak(_) => "RNR",
                Answer::Reserved(_) => "reserved",
                Answer::Nak(_) => "NAK",
            }))
        });
        computed("roce.aeth.credits", "Credits", Dec, |context, _| {
            match context.frame.packet()?.aeth()?.syndrome().answer() {
                Answer::Ack(credits) => credits.count().map(|count| Value::Uint(count.into())),
                _ => None,
            }
        });
        computed("roce.aeth.rnr_us", "RNR Timer (µs)", Dec, |context, _| {
            match context.frame.packet()?.aeth()?.syndrome().answer() {
                Answer::RnrNak(timer) => Some(Value::Uint(timer.micros().into())),
                _ => None,
            }
        });
        computed("roce.aeth.nak", "Refusal", Text, |context, _| {
            match context.frame.packet()?.aeth()?.syndrome().answer() {
                Answer::Nak(code) => Some(Value::Text(code.name())),
                _ => None,
            }
        });
        bits("infiniband.aeth.msn", "Message Sequence Number", msn, Dec);
    }

    ATOMIC_ACK_ETH: AtomicAckEth {
        whole("infiniband.atomicacketh", "Atomic ACK Extended Transport Header");
        bits("infiniband.atomicacketh.origremdt", "Original Remote Data", original, Dec);
    }

    IMM_DT: ImmDt {
        // As in tshark, the header and its only field have one name.
        whole("infiniband.immdt", "Immediate Data");
        bits("infiniband.immdt", "Immediate Data", data, Bytes);
    }

    IETH: Ieth {
        // As in tshark, the header and its only field have one name.
        whole("infiniband.ieth", "RKey");
        bits("infiniband.ieth", "RKey to invalidate", rkey, Bytes);
    }

    SACK_ETH: SackEth {
        whole("roce.sacketh", "Selective ACK Extended Transport Header");
        bits("roce.sacketh.base", "Base PSN", base, Dec);
        bits("roce.sacketh.words", "Words of the bitmap", words, Dec);
        computed("roce.sacketh.count", "Packets received", Dec, |context, _| {
            let packet = context.frame.packet()?;
            packet.sack_eth()?;
            let received = packet.payload().iter().map(|byte| u64::from(byte.count_ones())).sum();
            Some(Value::Uint(received))
        });
    }
}

/// Returns the payload as tshark defines it: with the pad bytes.
fn padded_payload<'a>(context: &Context<'a>) -> Option<&'a [u8]> {
    let packet = context.frame.packet()?;
    packet.bytes().get(packet.header_len()..)
}

pub(in crate::decode) const PAYLOAD: &[Field] = &[
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

pub(in crate::decode) const PAD: &[Field] = &[Field::bytes_from("roce.pad", "Pad", 0)];

pub(in crate::decode) const ICRC: &[Field] =
    &[Field::bits("infiniband.invariant.crc", "Invariant CRC", BitRange::new(0, 32), Show::Hex(8))];

pub(in crate::decode) const VCRC: &[Field] = &[
    Field::bits("infiniband.variant.crc", "Variant CRC", BitRange::new(0, 16), Show::Hex(4)),
    Field::computed("roce.vcrc", "VCRC Verdict", Show::Text, |context, _| {
        context.frame.vcrc().map(|verdict| Value::Text(verdict.name()))
    }),
];

/// Fields of every packet of RoCE and of native InfiniBand, however much of it was captured.
pub(in crate::decode) const ROCE: &[Field] = &[
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

fields! {
    CNP: Cnp {
        bits("roce.cnp.reserved", "Reserved", reserved, Bytes);
    }
}

pub(in crate::decode) const TRAILER: &[Field] =
    &[Field::computed("roce.error", "Error", Show::Text, |context, _| {
        context.frame.error().copied().map(Value::Error)
    })];
