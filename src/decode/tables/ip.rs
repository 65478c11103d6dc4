//! Fields of IPv4, IPv6 and UDP.

use super::super::field::{Field, Value};
use crate::wire::{Ipv4, Ipv6, Udp};

const TOS: crate::wire::layout::BitRange = Ipv4::LAYOUT.dscp.through(Ipv4::LAYOUT.ecn);
const FLAGS: crate::wire::layout::BitRange =
    Ipv4::LAYOUT.reserved_flag.through(Ipv4::LAYOUT.more_fragments);
const CLASS: crate::wire::layout::BitRange = Ipv6::LAYOUT.dscp.through(Ipv6::LAYOUT.ecn);

fields! {
    IPV4: Ipv4 {
        presence("ip");
        bits("ip.version", "Version", version, Dec);
        scaled("ip.hdr_len", "Header Length", ihl, 4);
        range("ip.dsfield", "Differentiated Services", TOS, Hex(2));
        bits("ip.dsfield.dscp", "DSCP", dscp, Dec);
        bits("ip.dsfield.ecn", "ECN", ecn, Dec);
        bits("ip.len", "Total Length", total_len, Dec);
        bits("ip.id", "Identification", id, Hex(4));
        range("ip.flags", "Flags", FLAGS, Hex(2));
        bits("ip.flags.rb", "Reserved bit", reserved_flag, Dec);
        bits("ip.flags.df", "Don't fragment", dont_fragment, Dec);
        bits("ip.flags.mf", "More fragments", more_fragments, Dec);
        bits("ip.frag_offset", "Fragment Offset (in units of 8)", fragment_offset, Dec);
        bits("ip.ttl", "Time to Live", ttl, Dec);
        bits("ip.proto", "Protocol", protocol, Dec);
        bits("ip.checksum", "Header Checksum", checksum, Hex(4));
        bits("ip.src", "Source Address", source, Ipv4);
        hidden bits("ip.addr", "Address", source, Ipv4);
        hidden bits("ip.src_host", "Source Host", source, Ipv4);
        hidden bits("ip.host", "Host", source, Ipv4);
        bits("ip.dst", "Destination Address", destination, Ipv4);
        hidden bits("ip.addr", "Address", destination, Ipv4);
        hidden bits("ip.dst_host", "Destination Host", destination, Ipv4);
        hidden bits("ip.host", "Host", destination, Ipv4);
        computed("roce.ip.options", "Options", Bytes, |_, layer| {
            layer.get(Ipv4::LEN..).filter(|options| !options.is_empty()).map(Value::Bytes)
        });
    }

    IPV6: Ipv6 {
        presence("ipv6");
        bits("ipv6.version", "Version", version, Dec);
        hidden bits("ip.version", "Version", version, Dec);
        range("ipv6.tclass", "Traffic Class", CLASS, Hex(8));
        bits("ipv6.tclass.dscp", "DSCP", dscp, Dec);
        bits("ipv6.tclass.ecn", "ECN", ecn, Dec);
        bits("ipv6.flow", "Flow Label", flow_label, Hex(6));
        bits("ipv6.plen", "Payload Length", payload_len, Dec);
        bits("ipv6.nxt", "Next Header", next_header, Dec);
        bits("ipv6.hlim", "Hop Limit", hop_limit, Dec);
        bits("ipv6.src", "Source Address", source, Ipv6);
        hidden bits("ipv6.addr", "Address", source, Ipv6);
        hidden bits("ipv6.src_host", "Source Host", source, Ipv6);
        hidden bits("ipv6.host", "Host", source, Ipv6);
        bits("ipv6.dst", "Destination Address", destination, Ipv6);
        hidden bits("ipv6.addr", "Address", destination, Ipv6);
        hidden bits("ipv6.dst_host", "Destination Host", destination, Ipv6);
        hidden bits("ipv6.host", "Host", destination, Ipv6);
    }
}

pub(in crate::decode) const IPV6_EXTENSION: &[Field] =
    &[Field::bytes_from("roce.ipv6.extension", "Extension Header", 0)];

fields! {
    UDP: Udp {
        presence("udp");
        bits("udp.srcport", "Source Port", source_port, Dec);
        bits("udp.dstport", "Destination Port", destination_port, Dec);
        hidden bits("udp.port", "Port", source_port, Dec);
        hidden bits("udp.port", "Port", destination_port, Dec);
        bits("udp.length", "Length", length, Dec);
        bits("udp.checksum", "Checksum", checksum, Hex(4));
        hidden computed("udp.payload", "Payload", Bytes, |context, layer| {
            context.udp_payload(layer).map(Value::Bytes)
        });
    }
}
