//! Fields of tunnel headers.

use super::super::field::{Field, Show, Value};
use crate::wire::layout::BitRange;
use crate::wire::{Erspan2, Erspan3, Geneve, Gre, Mpls, Vxlan, view};

const VXLAN_FLAGS: BitRange = Vxlan::LAYOUT.has_group_policy.through(Vxlan::LAYOUT.reserved_4);

/// Flags of VXLAN that have no meaning.
const VXLAN_RESERVED: u64 = 0x77b7;

pub(in super::super) static VXLAN: [Field; 10] = [
    Field::presence("vxlan"),
    Field::bits("vxlan.flags", "Flags", VXLAN_FLAGS, Show::Hex(4)),
    Field::bits("vxlan.flag_g", "Group policy", Vxlan::LAYOUT.has_group_policy, Show::Dec),
    Field::bits("vxlan.flag_i", "VNI valid", Vxlan::LAYOUT.has_vni, Show::Dec),
    Field::bits("vxlan.flag_d", "Don't learn", Vxlan::LAYOUT.dont_learn, Show::Dec),
    Field::bits("vxlan.flag_a", "Policy applied", Vxlan::LAYOUT.policy_applied, Show::Dec),
    Field::computed("vxlan.flags_reserved", "Reserved flags", Show::Hex(4), |_, layer| {
        VXLAN_FLAGS.read(layer).map(|flags| Value::Uint(flags & VXLAN_RESERVED))
    }),
    Field::bits("vxlan.gbp", "Group Policy ID", Vxlan::LAYOUT.group_policy, Show::Dec),
    Field::bits("vxlan.vni", "VXLAN Network Identifier", Vxlan::LAYOUT.vni, Show::Dec),
    Field::bits("vxlan.reserved8", "Reserved", Vxlan::LAYOUT.reserved_5, Show::Dec),
];

const GENEVE_FLAGS: BitRange = Geneve::LAYOUT.oam.through(Geneve::LAYOUT.reserved_1);

pub(in super::super) static GENEVE: [Field; 10] = [
    Field::presence("geneve"),
    Field::bits("geneve.version", "Version", Geneve::LAYOUT.version, Show::Dec),
    Field::bits("geneve.flags", "Flags", GENEVE_FLAGS, Show::Hex(2)),
    Field::bits("geneve.flags.oam", "Control packet", Geneve::LAYOUT.oam, Show::Dec),
    Field::bits("geneve.flags.critical", "Critical options", Geneve::LAYOUT.critical, Show::Dec),
    Field::computed("geneve.flags.reserved", "Reserved flags", Show::Dec, |_, layer| {
        let reserved = Geneve::LAYOUT.reserved_1.read(layer)?;
        Some(Value::Uint(u64::from(reserved != 0)))
    }),
    Field::bits("geneve.proto_type", "Protocol Type", Geneve::LAYOUT.protocol, Show::Hex(4)),
    Field::bits("geneve.vni", "Virtual Network Identifier", Geneve::LAYOUT.vni, Show::Hex(6)),
    Field::bits("geneve.reserved", "Reserved", Geneve::LAYOUT.reserved_2, Show::Hex(2)),
    Field::computed("geneve.options", "Options", Show::Bytes, |_, layer| {
        layer.get(Geneve::LEN..).filter(|options| !options.is_empty()).map(Value::Bytes)
    }),
];

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

pub(in super::super) static GRE: [Field; 15] = [
    Field::presence("gre"),
    Field::bits("gre.flags_and_version", "Flags and Version", GRE_FLAGS, Show::Hex(4)),
    Field::bits("gre.flags.checksum", "Checksum", Gre::LAYOUT.has_checksum, Show::Dec),
    Field::bits("gre.flags.routing", "Routing", Gre::LAYOUT.has_routing, Show::Dec),
    Field::bits("gre.flags.key", "Key", Gre::LAYOUT.has_key, Show::Dec),
    Field::bits("gre.flags.sequence_number", "Sequence", Gre::LAYOUT.has_sequence, Show::Dec),
    // Names of bits that RFC 2784 reserves.
    Field::bits(
        "gre.flags.strict_source_route",
        "Strict source route",
        Gre::LAYOUT.reserved.part(0, 1),
        Show::Dec,
    ),
    Field::bits(
        "gre.flags.recursion_control",
        "Recursion control",
        Gre::LAYOUT.reserved.part(1, 3),
        Show::Dec,
    ),
    Field::bits("gre.flags.reserved", "Reserved", Gre::LAYOUT.reserved.part(4, 5), Show::Dec),
    Field::bits("gre.flags.version", "Version", Gre::LAYOUT.version, Show::Dec),
    Field::bits("gre.proto", "Protocol Type", Gre::LAYOUT.protocol, Show::Hex(4)),
    Field::computed("gre.checksum", "Checksum", Show::Hex(4), |_, layer| {
        gre_number(layer, 16, |header| header.has_checksum().then_some(Gre::LEN))
    }),
    Field::computed("gre.offset", "Offset", Show::Dec, |_, layer| {
        gre_number(layer, 16, |header| header.has_checksum().then_some(Gre::LEN + 2))
    }),
    Field::computed("gre.key", "Key", Show::Hex(8), |_, layer| gre_number(layer, 32, Gre::key_at)),
    Field::computed("gre.sequence_number", "Sequence Number", Show::Dec, |_, layer| {
        gre_number(layer, 32, Gre::sequence_at)
    }),
];

/// Type I has no header of its own.
pub(in super::super) static ERSPAN1: [Field; 1] = [Field::presence("erspan")];

pub(in super::super) static ERSPAN2: [Field; 9] = [
    Field::presence("erspan"),
    Field::bits("erspan.version", "Version", Erspan2::LAYOUT.version, Show::Dec),
    Field::bits("erspan.vlan", "VLAN", Erspan2::LAYOUT.vlan, Show::Dec),
    Field::bits("erspan.cos", "Class of service", Erspan2::LAYOUT.cos, Show::Dec),
    Field::bits("erspan.encap", "Encapsulation", Erspan2::LAYOUT.encapsulation, Show::Dec),
    Field::bits("erspan.truncated", "Truncated", Erspan2::LAYOUT.truncated, Show::Dec),
    Field::bits("erspan.spanid", "Session", Erspan2::LAYOUT.session, Show::Dec),
    Field::bits("erspan.reserved", "Reserved", Erspan2::LAYOUT.reserved, Show::Dec),
    Field::bits("erspan.index", "Index", Erspan2::LAYOUT.index, Show::Dec),
];

pub(in super::super) static ERSPAN3: [Field; 16] = [
    Field::presence("erspan"),
    Field::bits("erspan.version", "Version", Erspan3::LAYOUT.version, Show::Dec),
    Field::bits("erspan.vlan", "VLAN", Erspan3::LAYOUT.vlan, Show::Dec),
    Field::bits("erspan.cos", "Class of service", Erspan3::LAYOUT.cos, Show::Dec),
    Field::bits("erspan.bso", "Integrity", Erspan3::LAYOUT.integrity, Show::Dec),
    Field::bits("erspan.truncated", "Truncated", Erspan3::LAYOUT.truncated, Show::Dec),
    Field::bits("erspan.spanid", "Session", Erspan3::LAYOUT.session, Show::Dec),
    Field::bits("erspan.timestamp", "Timestamp", Erspan3::LAYOUT.timestamp, Show::Dec),
    Field::bits("erspan.sgt", "Security Group Tag", Erspan3::LAYOUT.security_group, Show::Dec),
    Field::bits("erspan.p", "Ethernet frame", Erspan3::LAYOUT.is_ethernet, Show::Dec),
    Field::bits("erspan.ft", "Frame Type", Erspan3::LAYOUT.frame_type, Show::Dec),
    Field::bits("erspan.hw", "Hardware ID", Erspan3::LAYOUT.hardware, Show::Dec),
    Field::bits("erspan.direction", "Egress", Erspan3::LAYOUT.egress, Show::Dec),
    Field::bits("erspan.gra", "Granularity", Erspan3::LAYOUT.granularity, Show::Dec),
    Field::bits("erspan.o", "Subheader", Erspan3::LAYOUT.has_subheader, Show::Dec),
    Field::computed("roce.erspan.subheader", "Platform subheader", Show::Bytes, |_, layer| {
        layer.get(Erspan3::LEN..).filter(|subheader| !subheader.is_empty()).map(Value::Bytes)
    }),
];

pub(in super::super) static MPLS: [Field; 5] = [
    Field::presence("mpls"),
    Field::bits("mpls.label", "Label", Mpls::LAYOUT.label, Show::Dec),
    Field::bits("mpls.exp", "Traffic class", Mpls::LAYOUT.traffic_class, Show::Dec),
    Field::bits("mpls.bottom", "Bottom of stack", Mpls::LAYOUT.bottom, Show::Dec),
    Field::bits("mpls.ttl", "Time to live", Mpls::LAYOUT.ttl, Show::Dec),
];
