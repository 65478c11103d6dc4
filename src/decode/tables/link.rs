//! Fields of the frame and its link layer.

use super::super::field::{Field, Show, Value};
use crate::wire::layout::BitRange;
use crate::wire::{Erf, Ethernet, Sll, Sll2, Vlan};

const DESTINATION: BitRange = Ethernet::LAYOUT.destination;
const SOURCE: BitRange = Ethernet::LAYOUT.source;

pub(in super::super) static FRAME: [Field; 11] = [
    Field::presence("frame"),
    Field::computed("frame.number", "Number", Show::Dec, |context, _| {
        Some(Value::Uint(context.number))
    }),
    Field::computed("frame.time", "Arrival Time", Show::Date, |context, _| {
        Some(Value::Nanos(context.time?.as_nanos().into()))
    })
    .hidden(),
    Field::computed("frame.time_epoch", "Epoch Time", Show::Seconds, |context, _| {
        Some(Value::Nanos(context.time?.as_nanos().into()))
    }),
    Field::computed(
        "frame.time_relative",
        "Time since first frame",
        Show::Seconds,
        |context, _| Some(Value::Nanos(context.time?.nanos_since(context.first_time?))),
    ),
    Field::computed(
        "frame.time_delta",
        "Time since previous frame",
        Show::Seconds,
        |context, _| Some(Value::Nanos(context.time?.nanos_since(context.previous_time?))),
    ),
    Field::computed("frame.len", "Length on the wire", Show::Dec, |context, _| {
        Some(Value::Uint(context.wire_len.into()))
    }),
    Field::computed("frame.cap_len", "Length captured", Show::Dec, |context, _| {
        Some(Value::Uint(context.captured_len() as u64))
    }),
    Field::computed("frame.interface_id", "Interface", Show::Dec, |context, _| {
        context.interface.map(|(_, id)| Value::Uint(id.into()))
    }),
    Field::computed("frame.section_number", "Section", Show::Dec, |context, _| {
        context.interface.map(|(section, _)| Value::Uint(u64::from(section) + 1))
    }),
    Field::computed("frame.file", "File", Show::Text, |context, _| {
        context.annotations.file.map(Value::Text)
    }),
];

pub(in super::super) static ETHERNET: [Field; 18] = [
    Field::bits("eth.dst", "Destination", DESTINATION, Show::Mac),
    Field::bits("eth.dst.oui", "Destination OUI", DESTINATION.part(0, 24), Show::Dec).hidden(),
    Field::bits("eth.addr", "Address", DESTINATION, Show::Mac).hidden(),
    Field::bits("eth.addr.oui", "Address OUI", DESTINATION.part(0, 24), Show::Dec).hidden(),
    Field::bits("eth.dst.lg", "Destination LG bit", DESTINATION.part(6, 1), Show::Dec).hidden(),
    Field::bits("eth.lg", "LG bit", DESTINATION.part(6, 1), Show::Dec).hidden(),
    Field::bits("eth.dst.ig", "Destination IG bit", DESTINATION.part(7, 1), Show::Dec).hidden(),
    Field::bits("eth.ig", "IG bit", DESTINATION.part(7, 1), Show::Dec).hidden(),
    Field::bits("eth.src", "Source", SOURCE, Show::Mac),
    Field::bits("eth.src.oui", "Source OUI", SOURCE.part(0, 24), Show::Dec).hidden(),
    Field::bits("eth.addr", "Address", SOURCE, Show::Mac).hidden(),
    Field::bits("eth.addr.oui", "Address OUI", SOURCE.part(0, 24), Show::Dec).hidden(),
    Field::bits("eth.src.lg", "Source LG bit", SOURCE.part(6, 1), Show::Dec).hidden(),
    Field::bits("eth.lg", "LG bit", SOURCE.part(6, 1), Show::Dec).hidden(),
    Field::bits("eth.src.ig", "Source IG bit", SOURCE.part(7, 1), Show::Dec).hidden(),
    Field::bits("eth.ig", "IG bit", SOURCE.part(7, 1), Show::Dec).hidden(),
    Field::bits("eth.type", "Type", Ethernet::LAYOUT.ethertype, Show::Hex(4)),
    Field::presence("eth"),
];

pub(in super::super) static SERVICE_VLAN: [Field; 5] = [
    Field::presence("ieee8021ad"),
    Field::bits("ieee8021ad.priority", "Priority", Vlan::LAYOUT.priority, Show::Dec),
    Field::bits("ieee8021ad.dei", "DEI", Vlan::LAYOUT.drop_eligible, Show::Dec),
    Field::bits("ieee8021ad.id", "ID", Vlan::LAYOUT.vid, Show::Dec),
    // A name of tshark's own choice.
    Field::bits("ieee8021ah.etype", "Type", Vlan::LAYOUT.ethertype, Show::Hex(4)),
];

pub(in super::super) static VLAN: [Field; 5] = [
    Field::presence("vlan"),
    Field::bits("vlan.priority", "Priority", Vlan::LAYOUT.priority, Show::Dec),
    Field::bits("vlan.dei", "DEI", Vlan::LAYOUT.drop_eligible, Show::Dec),
    Field::bits("vlan.id", "ID", Vlan::LAYOUT.vid, Show::Dec),
    Field::bits("vlan.etype", "Type", Vlan::LAYOUT.ethertype, Show::Hex(4)),
];

/// The sender's address in a cooked capture, if its length is one that `wanted` wants.
fn sll_address<'a>(
    len: BitRange,
    address: BitRange,
    layer: &'a [u8],
    wanted: impl Fn(usize) -> bool,
) -> Option<Value<'a>> {
    let len = usize::try_from(len.read(layer)?).ok()?;
    let bytes = address.slice(layer)?;
    wanted(len).then(|| Value::Bytes(bytes.get(..len).unwrap_or(bytes)))
}

pub(in super::super) static SLL: [Field; 9] = [
    Field::presence("sll"),
    Field::bits("sll.pkttype", "Packet type", Sll::LAYOUT.packet_type, Show::Dec),
    Field::bits("sll.hatype", "Link-layer address type", Sll::LAYOUT.device_type, Show::Dec),
    Field::bits("sll.halen", "Link-layer address length", Sll::LAYOUT.address_len, Show::Dec),
    Field::computed("sll.src.eth", "Source", Show::Mac, |_, layer| {
        sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, |len| len == 6)
    }),
    Field::computed("sll.src.ipv4", "Source", Show::Ipv4, |_, layer| {
        sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, |len| len == 4)
    }),
    Field::computed("sll.src.other", "Source", Show::Bytes, |_, layer| {
        let odd = |len| !matches!(len, 0 | 4 | 6);
        sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, odd)
    }),
    Field::computed("sll.unused", "Unused", Show::Bytes, |_, layer| {
        let len = usize::try_from(Sll::LAYOUT.address_len.read(layer)?).ok()?;
        let unused = Sll::LAYOUT.address.slice(layer)?.get(len..)?;
        (!unused.is_empty()).then_some(Value::Bytes(unused))
    })
    .hidden(),
    Field::bits("sll.etype", "Protocol", Sll::LAYOUT.protocol, Show::Hex(4)),
];

pub(in super::super) static SLL2: [Field; 10] = [
    Field::presence("sll"),
    Field::bits("sll.etype", "Protocol", Sll2::LAYOUT.protocol, Show::Hex(4)),
    Field::bits("sll.ifindex", "Interface index", Sll2::LAYOUT.interface, Show::Dec),
    Field::bits("sll.hatype", "Link-layer address type", Sll2::LAYOUT.device_type, Show::Dec),
    Field::bits("sll.pkttype", "Packet type", Sll2::LAYOUT.packet_type, Show::Dec),
    Field::bits("sll.halen", "Link-layer address length", Sll2::LAYOUT.address_len, Show::Dec),
    Field::computed("sll.src.eth", "Source", Show::Mac, |_, layer| {
        sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, |len| len == 6)
    }),
    Field::computed("sll.src.ipv4", "Source", Show::Ipv4, |_, layer| {
        sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, |len| len == 4)
    }),
    Field::computed("sll.src.other", "Source", Show::Bytes, |_, layer| {
        let odd = |len| !matches!(len, 0 | 4 | 6);
        sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, odd)
    }),
    Field::computed("sll.unused", "Unused", Show::Bytes, |_, layer| {
        let len = usize::try_from(Sll2::LAYOUT.address_len.read(layer)?).ok()?;
        let unused = Sll2::LAYOUT.address.slice(layer)?.get(len..)?;
        (!unused.is_empty()).then_some(Value::Bytes(unused))
    })
    .hidden(),
];

pub(in super::super) static ERF: [Field; 15] = [
    Field::presence("erf"),
    Field::computed("erf.ts", "Timestamp", Show::Hex(16), |_, layer| {
        let bytes = Erf::LAYOUT.timestamp.slice(layer)?;
        Some(Value::Uint(u64::from_le_bytes(bytes.try_into().ok()?)))
    }),
    Field::bits(
        "erf.types",
        "Record type",
        Erf::LAYOUT.extended.through(Erf::LAYOUT.kind),
        Show::Hex(2),
    ),
    Field::bits("erf.types.type", "Type", Erf::LAYOUT.kind, Show::Dec),
    Field::bits(
        "erf.types.ext_header",
        "Extension header present",
        Erf::LAYOUT.extended,
        Show::Dec,
    ),
    Field::bits(
        "erf.flags",
        "Flags",
        Erf::LAYOUT.reserved.through(Erf::LAYOUT.interface),
        Show::Hex(2),
    ),
    Field::bits("erf.flags.cap", "Capture interface", Erf::LAYOUT.interface, Show::Dec),
    Field::bits("erf.flags.vlen", "Varying record length", Erf::LAYOUT.varying, Show::Dec),
    Field::bits("erf.flags.trunc", "Truncated", Erf::LAYOUT.truncated, Show::Dec),
    Field::bits("erf.flags.rxe", "RX error", Erf::LAYOUT.rx_error, Show::Dec),
    Field::bits("erf.flags.dse", "DS error", Erf::LAYOUT.ds_error, Show::Dec),
    Field::bits("erf.flags.res", "Reserved", Erf::LAYOUT.reserved, Show::Hex(2)),
    Field::bits("erf.rlen", "Record length", Erf::LAYOUT.record_len, Show::Dec),
    Field::bits("erf.lctr", "Loss counter", Erf::LAYOUT.lost, Show::Dec),
    Field::bits("erf.wlen", "Wire length", Erf::LAYOUT.wire_len, Show::Dec),
];
