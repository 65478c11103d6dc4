//! Fields of the frame and its link layer.

use super::super::field::{Field, Show, Value};
use crate::wire::layout::BitRange;
use crate::wire::{Erf, Ethernet, Sll, Sll2, Vlan};

const DESTINATION: BitRange = Ethernet::LAYOUT.destination;
const SOURCE: BitRange = Ethernet::LAYOUT.source;

pub(in crate::decode) const FRAME: &[Field] = &[
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

fields! {
    ETHERNET: Ethernet {
        bits("eth.dst", "Destination", destination, Mac);
        hidden range("eth.dst.oui", "Destination OUI", DESTINATION.part(0, 24), Dec);
        hidden bits("eth.addr", "Address", destination, Mac);
        hidden range("eth.addr.oui", "Address OUI", DESTINATION.part(0, 24), Dec);
        hidden range("eth.dst.lg", "Destination LG bit", DESTINATION.part(6, 1), Dec);
        hidden range("eth.lg", "LG bit", DESTINATION.part(6, 1), Dec);
        hidden range("eth.dst.ig", "Destination IG bit", DESTINATION.part(7, 1), Dec);
        hidden range("eth.ig", "IG bit", DESTINATION.part(7, 1), Dec);
        bits("eth.src", "Source", source, Mac);
        hidden range("eth.src.oui", "Source OUI", SOURCE.part(0, 24), Dec);
        hidden bits("eth.addr", "Address", source, Mac);
        hidden range("eth.addr.oui", "Address OUI", SOURCE.part(0, 24), Dec);
        hidden range("eth.src.lg", "Source LG bit", SOURCE.part(6, 1), Dec);
        hidden range("eth.lg", "LG bit", SOURCE.part(6, 1), Dec);
        hidden range("eth.src.ig", "Source IG bit", SOURCE.part(7, 1), Dec);
        hidden range("eth.ig", "IG bit", SOURCE.part(7, 1), Dec);
        bits("eth.type", "Type", ethertype, Hex(4));
        presence("eth");
    }

    SERVICE_VLAN: Vlan {
        presence("ieee8021ad");
        bits("ieee8021ad.priority", "Priority", priority, Dec);
        bits("ieee8021ad.dei", "DEI", drop_eligible, Dec);
        bits("ieee8021ad.id", "ID", vid, Dec);
        // A name of tshark's own choice.
        bits("ieee8021ah.etype", "Type", ethertype, Hex(4));
    }

    VLAN: Vlan {
        presence("vlan");
        bits("vlan.priority", "Priority", priority, Dec);
        bits("vlan.dei", "DEI", drop_eligible, Dec);
        bits("vlan.id", "ID", vid, Dec);
        bits("vlan.etype", "Type", ethertype, Hex(4));
    }
}

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

/// The bytes behind the sender's address in a cooked capture, if there are any.
fn sll_unused(len: BitRange, address: BitRange, layer: &[u8]) -> Option<Value<'_>> {
    let len = usize::try_from(len.read(layer)?).ok()?;
    let unused = address.slice(layer)?.get(len..)?;
    (!unused.is_empty()).then_some(Value::Bytes(unused))
}

fields! {
    SLL: Sll {
        presence("sll");
        bits("sll.pkttype", "Packet type", packet_type, Dec);
        bits("sll.hatype", "Link-layer address type", device_type, Dec);
        bits("sll.halen", "Link-layer address length", address_len, Dec);
        computed("sll.src.eth", "Source", Mac, |_, layer| {
            sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, |len| len == 6)
        });
        computed("sll.src.ipv4", "Source", Ipv4, |_, layer| {
            sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, |len| len == 4)
        });
        computed("sll.src.other", "Source", Bytes, |_, layer| {
            let odd = |len| !matches!(len, 0 | 4 | 6);
            sll_address(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer, odd)
        });
        hidden computed("sll.unused", "Unused", Bytes, |_, layer| {
            sll_unused(Sll::LAYOUT.address_len, Sll::LAYOUT.address, layer)
        });
        bits("sll.etype", "Protocol", protocol, Hex(4));
    }

    SLL2: Sll2 {
        presence("sll");
        bits("sll.etype", "Protocol", protocol, Hex(4));
        bits("sll.ifindex", "Interface index", interface, Dec);
        bits("sll.hatype", "Link-layer address type", device_type, Dec);
        bits("sll.pkttype", "Packet type", packet_type, Dec);
        bits("sll.halen", "Link-layer address length", address_len, Dec);
        computed("sll.src.eth", "Source", Mac, |_, layer| {
            sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, |len| len == 6)
        });
        computed("sll.src.ipv4", "Source", Ipv4, |_, layer| {
            sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, |len| len == 4)
        });
        computed("sll.src.other", "Source", Bytes, |_, layer| {
            let odd = |len| !matches!(len, 0 | 4 | 6);
            sll_address(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer, odd)
        });
        hidden computed("sll.unused", "Unused", Bytes, |_, layer| {
            sll_unused(Sll2::LAYOUT.address_len, Sll2::LAYOUT.address, layer)
        });
    }

    ERF: Erf {
        presence("erf");
        computed("erf.ts", "Timestamp", Hex(16), |_, layer| {
            let bytes = Erf::LAYOUT.timestamp.slice(layer)?;
            Some(Value::Uint(u64::from_le_bytes(bytes.try_into().ok()?)))
        });
        bits("erf.types", "Record type", extended..=kind, Hex(2));
        bits("erf.types.type", "Type", kind, Dec);
        bits("erf.types.ext_header", "Extension header present", extended, Dec);
        bits("erf.flags", "Flags", reserved..=interface, Hex(2));
        bits("erf.flags.cap", "Capture interface", interface, Dec);
        bits("erf.flags.vlen", "Varying record length", varying, Dec);
        bits("erf.flags.trunc", "Truncated", truncated, Dec);
        bits("erf.flags.rxe", "RX error", rx_error, Dec);
        bits("erf.flags.dse", "DS error", ds_error, Dec);
        bits("erf.flags.res", "Reserved", reserved, Hex(2));
        bits("erf.rlen", "Record length", record_len, Dec);
        bits("erf.lctr", "Loss counter", lost, Dec);
        bits("erf.wlen", "Wire length", wire_len, Dec);
    }
}
