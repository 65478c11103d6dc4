//! Fields of tunnel headers.

use super::super::field::{Field, Value};
use crate::wire::layout::BitRange;
use crate::wire::{Erspan2, Erspan3, Geneve, Gre, Mpls, Vxlan, view};

const VXLAN_FLAGS: BitRange = Vxlan::LAYOUT.has_group_policy.through(Vxlan::LAYOUT.reserved_4);

/// Flags of VXLAN that have no meaning.
const VXLAN_RESERVED: u64 = 0x77b7;

fields! {
    VXLAN: Vxlan {
        presence("vxlan");
        range("vxlan.flags", "Flags", VXLAN_FLAGS, Hex(4));
        bits("vxlan.flag_g", "Group policy", has_group_policy, Dec);
        bits("vxlan.flag_i", "VNI valid", has_vni, Dec);
        bits("vxlan.flag_d", "Don't learn", dont_learn, Dec);
        bits("vxlan.flag_a", "Policy applied", policy_applied, Dec);
        computed("vxlan.flags_reserved", "Reserved flags", Hex(4), |_, layer| {
            VXLAN_FLAGS.read(layer).map(|flags| Value::Uint(flags & VXLAN_RESERVED))
        });
        bits("vxlan.gbp", "Group Policy ID", group_policy, Dec);
        bits("vxlan.vni", "VXLAN Network Identifier", vni, Dec);
        bits("vxlan.reserved8", "Reserved", reserved_5, Dec);
    }
}

const GENEVE_FLAGS: BitRange = Geneve::LAYOUT.oam.through(Geneve::LAYOUT.reserved_1);

fields! {
    GENEVE: Geneve {
        presence("geneve");
        bits("geneve.version", "Version", version, Dec);
        range("geneve.flags", "Flags", GENEVE_FLAGS, Hex(2));
        bits("geneve.flags.oam", "Control packet", oam, Dec);
        bits("geneve.flags.critical", "Critical options", critical, Dec);
        computed("geneve.flags.reserved", "Reserved flags", Dec, |_, layer| {
            let reserved = Geneve::LAYOUT.reserved_1.read(layer)?;
            Some(Value::Uint(u64::from(reserved != 0)))
        });
        bits("geneve.proto_type", "Protocol Type", protocol, Hex(4));
        bits("geneve.vni", "Virtual Network Identifier", vni, Hex(6));
        bits("geneve.reserved", "Reserved", reserved_2, Hex(2));
        computed("geneve.options", "Options", Bytes, |_, layer| {
            layer.get(Geneve::LEN..).filter(|options| !options.is_empty()).map(Value::Bytes)
        });
    }
}

const GRE_FLAGS: BitRange = Gre::LAYOUT.has_checksum.through(Gre::LAYOUT.version);

/// Returns the 16 or 32 bits at the place in a GRE header that `offset` finds.
fn gre_number(
    layer: &[u8],
    bits: usize,
    offset: impl Fn(&Gre) -> Option<usize>,
) -> Option<Value<'_>> {
    let at = offset(view(layer, 0).ok()?)?;
    BitRange::new(8 * at, bits).read(layer).map(Value::Uint)
}

fields! {
    GRE: Gre {
        presence("gre");
        range("gre.flags_and_version", "Flags and Version", GRE_FLAGS, Hex(4));
        bits("gre.flags.checksum", "Checksum", has_checksum, Dec);
        bits("gre.flags.routing", "Routing", has_routing, Dec);
        bits("gre.flags.key", "Key", has_key, Dec);
        bits("gre.flags.sequence_number", "Sequence", has_sequence, Dec);
        // Names of bits that RFC 2784 reserves.
        range("gre.flags.strict_source_route", "Strict source route",
            Gre::LAYOUT.reserved.part(0, 1), Dec);
        range("gre.flags.recursion_control", "Recursion control",
            Gre::LAYOUT.reserved.part(1, 3), Dec);
        range("gre.flags.reserved", "Reserved", Gre::LAYOUT.reserved.part(4, 5), Dec);
        bits("gre.flags.version", "Version", version, Dec);
        bits("gre.proto", "Protocol Type", protocol, Hex(4));
        computed("gre.checksum", "Checksum", Hex(4), |_, layer| {
            gre_number(layer, 16, |header| header.has_checksum().then_some(Gre::LEN))
        });
        computed("gre.offset", "Offset", Dec, |_, layer| {
            gre_number(layer, 16, |header| header.has_checksum().then_some(Gre::LEN + 2))
        });
        computed("gre.key", "Key", Hex(8), |_, layer| gre_number(layer, 32, Gre::key_at));
        computed("gre.sequence_number", "Sequence Number", Dec, |_, layer| {
            gre_number(layer, 32, Gre::sequence_at)
        });
    }
}

/// Type I has no header of its own.
pub(in crate::decode) const ERSPAN1: &[Field] = &[Field::presence("erspan")];

fields! {
    ERSPAN2: Erspan2 {
        presence("erspan");
        bits("erspan.version", "Version", version, Dec);
        bits("erspan.vlan", "VLAN", vlan, Dec);
        bits("erspan.cos", "Class of service", cos, Dec);
        bits("erspan.encap", "Encapsulation", encapsulation, Dec);
        bits("erspan.truncated", "Truncated", truncated, Dec);
        bits("erspan.spanid", "Session", session, Dec);
        bits("erspan.reserved", "Reserved", reserved, Dec);
        bits("erspan.index", "Index", index, Dec);
    }

    ERSPAN3: Erspan3 {
        presence("erspan");
        bits("erspan.version", "Version", version, Dec);
        bits("erspan.vlan", "VLAN", vlan, Dec);
        bits("erspan.cos", "Class of service", cos, Dec);
        bits("erspan.bso", "Integrity", integrity, Dec);
        bits("erspan.truncated", "Truncated", truncated, Dec);
        bits("erspan.spanid", "Session", session, Dec);
        bits("erspan.timestamp", "Timestamp", timestamp, Dec);
        bits("erspan.sgt", "Security Group Tag", security_group, Dec);
        bits("erspan.p", "Ethernet frame", is_ethernet, Dec);
        bits("erspan.ft", "Frame Type", frame_type, Dec);
        bits("erspan.hw", "Hardware ID", hardware, Dec);
        bits("erspan.direction", "Egress", egress, Dec);
        bits("erspan.gra", "Granularity", granularity, Dec);
        bits("erspan.o", "Subheader", has_subheader, Dec);
        computed("roce.erspan.subheader", "Platform subheader", Bytes, |_, layer| {
            layer.get(Erspan3::LEN..).filter(|subheader| !subheader.is_empty()).map(Value::Bytes)
        });
    }

    MPLS: Mpls {
        presence("mpls");
        bits("mpls.label", "Label", label, Dec);
        bits("mpls.exp", "Traffic class", traffic_class, Dec);
        bits("mpls.bottom", "Bottom of stack", bottom, Dec);
        bits("mpls.ttl", "Time to live", ttl, Dec);
    }
}
