//! Fields of IPv4, IPv6 and UDP.

use super::super::field::{Field, Show, Value};
use crate::wire::{Ipv4, Ipv6, Udp};

const TOS: crate::wire::layout::BitRange = Ipv4::LAYOUT.dscp.through(Ipv4::LAYOUT.ecn);
const FLAGS: crate::wire::layout::BitRange =
    Ipv4::LAYOUT.reserved_flag.through(Ipv4::LAYOUT.more_fragments);
const CLASS: crate::wire::layout::BitRange = Ipv6::LAYOUT.dscp.through(Ipv6::LAYOUT.ecn);

pub(in super::super) static IPV4: [Field; 25] = [
    Field::presence("ip"),
    Field::bits("ip.version", "Version", Ipv4::LAYOUT.version, Show::Dec),
    Field::scaled("ip.hdr_len", "Header Length", Ipv4::LAYOUT.ihl, 4),
    Field::bits("ip.dsfield", "Differentiated Services", TOS, Show::Hex(2)),
    Field::bits("ip.dsfield.dscp", "DSCP", Ipv4::LAYOUT.dscp, Show::Dec),
    Field::bits("ip.dsfield.ecn", "ECN", Ipv4::LAYOUT.ecn, Show::Dec),
    Field::bits("ip.len", "Total Length", Ipv4::LAYOUT.total_len, Show::Dec),
    Field::bits("ip.id", "Identification", Ipv4::LAYOUT.id, Show::Hex(4)),
    Field::bits("ip.flags", "Flags", FLAGS, Show::Hex(2)),
    Field::bits("ip.flags.rb", "Reserved bit", Ipv4::LAYOUT.reserved_flag, Show::Dec),
    Field::bits("ip.flags.df", "Don't fragment", Ipv4::LAYOUT.dont_fragment, Show::Dec),
    Field::bits("ip.flags.mf", "More fragments", Ipv4::LAYOUT.more_fragments, Show::Dec),
    Field::bits(
        "ip.frag_offset",
        "Fragment Offset (in units of 8)",
        Ipv4::LAYOUT.fragment_offset,
        Show::Dec,
    ),
    Field::bits("ip.ttl", "Time to Live", Ipv4::LAYOUT.ttl, Show::Dec),
    Field::bits("ip.proto", "Protocol", Ipv4::LAYOUT.protocol, Show::Dec),
    Field::bits("ip.checksum", "Header Checksum", Ipv4::LAYOUT.checksum, Show::Hex(4)),
    Field::bits("ip.src", "Source Address", Ipv4::LAYOUT.source, Show::Ipv4),
    Field::bits("ip.addr", "Address", Ipv4::LAYOUT.source, Show::Ipv4).hidden(),
    Field::bits("ip.src_host", "Source Host", Ipv4::LAYOUT.source, Show::Ipv4).hidden(),
    Field::bits("ip.host", "Host", Ipv4::LAYOUT.source, Show::Ipv4).hidden(),
    Field::bits("ip.dst", "Destination Address", Ipv4::LAYOUT.destination, Show::Ipv4),
    Field::bits("ip.addr", "Address", Ipv4::LAYOUT.destination, Show::Ipv4).hidden(),
    Field::bits("ip.dst_host", "Destination Host", Ipv4::LAYOUT.destination, Show::Ipv4).hidden(),
    Field::bits("ip.host", "Host", Ipv4::LAYOUT.destination, Show::Ipv4).hidden(),
    Field::computed("roce.ip.options", "Options", Show::Bytes, |_, layer| {
        layer.get(Ipv4::LEN..).filter(|options| !options.is_empty()).map(Value::Bytes)
    }),
];

pub(in super::super) static IPV6: [Field; 18] = [
    Field::presence("ipv6"),
    Field::bits("ipv6.version", "Version", Ipv6::LAYOUT.version, Show::Dec),
    Field::bits("ip.version", "Version", Ipv6::LAYOUT.version, Show::Dec).hidden(),
    Field::bits("ipv6.tclass", "Traffic Class", CLASS, Show::Hex(8)),
    Field::bits("ipv6.tclass.dscp", "DSCP", Ipv6::LAYOUT.dscp, Show::Dec),
    Field::bits("ipv6.tclass.ecn", "ECN", Ipv6::LAYOUT.ecn, Show::Dec),
    Field::bits("ipv6.flow", "Flow Label", Ipv6::LAYOUT.flow_label, Show::Hex(6)),
    Field::bits("ipv6.plen", "Payload Length", Ipv6::LAYOUT.payload_len, Show::Dec),
    Field::bits("ipv6.nxt", "Next Header", Ipv6::LAYOUT.next_header, Show::Dec),
    Field::bits("ipv6.hlim", "Hop Limit", Ipv6::LAYOUT.hop_limit, Show::Dec),
    Field::bits("ipv6.src", "Source Address", Ipv6::LAYOUT.source, Show::Ipv6),
    Field::bits("ipv6.addr", "Address", Ipv6::LAYOUT.source, Show::Ipv6).hidden(),
    Field::bits("ipv6.src_host", "Source Host", Ipv6::LAYOUT.source, Show::Ipv6).hidden(),
    Field::bits("ipv6.host", "Host", Ipv6::LAYOUT.source, Show::Ipv6).hidden(),
    Field::bits("ipv6.dst", "Destination Address", Ipv6::LAYOUT.destination, Show::Ipv6),
    Field::bits("ipv6.addr", "Address", Ipv6::LAYOUT.destination, Show::Ipv6).hidden(),
    Field::bits("ipv6.dst_host", "Destination Host", Ipv6::LAYOUT.destination, Show::Ipv6).hidden(),
    Field::bits("ipv6.host", "Host", Ipv6::LAYOUT.destination, Show::Ipv6).hidden(),
];

pub(in super::super) static IPV6_EXTENSION: [Field; 1] =
    [Field::bytes_from("roce.ipv6.extension", "Extension Header", 0)];

pub(in super::super) static UDP: [Field; 8] = [
    Field::presence("udp"),
    Field::bits("udp.srcport", "Source Port", Udp::LAYOUT.source_port, Show::Dec),
    Field::bits("udp.dstport", "Destination Port", Udp::LAYOUT.destination_port, Show::Dec),
    Field::bits("udp.port", "Port", Udp::LAYOUT.source_port, Show::Dec).hidden(),
    Field::bits("udp.port", "Port", Udp::LAYOUT.destination_port, Show::Dec).hidden(),
    Field::bits("udp.length", "Length", Udp::LAYOUT.length, Show::Dec),
    Field::bits("udp.checksum", "Checksum", Udp::LAYOUT.checksum, Show::Hex(4)),
    Field::computed("udp.payload", "Payload", Show::Bytes, |context, layer| {
        context.udp_payload(layer).map(Value::Bytes)
    })
    .hidden(),
];
