//! Fields of management datagrams.

use super::super::Context;
use super::super::field::{Field, Show, Value};
use crate::wire::layout::BitRange;
use crate::wire::mad::{MadHeader, PathRecord, Rmpp, Sa, SmInfo, SmpDirected, SmpLid};

pub(in super::super) static MAD: [Field; 11] = [
    Field::computed("infiniband.mad", "MAD", Show::Bytes, |context, _| {
        Some(Value::Bytes(context.frame.packet()?.payload()))
    })
    .hidden(),
    Field::bits(
        "infiniband.mad.baseversion",
        "Base Version",
        MadHeader::LAYOUT.base_version,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.mad.mgmtclass",
        "Management Class",
        MadHeader::LAYOUT.class,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.mad.classversion",
        "Class Version",
        MadHeader::LAYOUT.class_version,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.mad.method",
        "Method",
        MadHeader::LAYOUT.response.through(MadHeader::LAYOUT.method),
        Show::Hex(2),
    ),
    Field::bits("infiniband.mad.status", "Status", MadHeader::LAYOUT.status, Show::Hex(4)),
    Field::bits(
        "infiniband.mad.classspecific",
        "Class Specific",
        MadHeader::LAYOUT.class_specific,
        Show::Hex(4),
    ),
    Field::bits(
        "infiniband.mad.transactionid",
        "Transaction ID",
        MadHeader::LAYOUT.transaction_id,
        Show::Hex(16),
    ),
    Field::bits(
        "infiniband.mad.attributeid",
        "Attribute ID",
        MadHeader::LAYOUT.attribute,
        Show::Hex(4),
    ),
    Field::bits("infiniband.reserved", "Reserved", MadHeader::LAYOUT.reserved, Show::Bytes)
        .hidden(),
    Field::bits(
        "infiniband.mad.attributemodifier",
        "Attribute Modifier",
        MadHeader::LAYOUT.attribute_modifier,
        Show::Hex(8),
    ),
];

/// Some bits of the MAD header, which subnet management by directed route uses in its own way.
fn header_bits<'a>(context: &Context<'a>, bits: BitRange) -> Option<Value<'a>> {
    let mad = context.frame.packet()?.mad()?.ok()?;
    bits.read(mad.header.as_bytes()).map(Value::Uint)
}

const SMP_STATUS: BitRange = MadHeader::LAYOUT.status;
const SMP_HOPS: BitRange = MadHeader::LAYOUT.class_specific;
/// The paths stand behind the attribute, 64 bytes each.
const SMP_PATHS: BitRange = BitRange::new((SmpDirected::LEN + 64) * 8, 128 * 8);

pub(in super::super) static SMP_DIRECTED: [Field; 10] = [
    Field::computed(
        "infiniband.smpdirected.d",
        "D (Direction Bit)",
        Show::Hex(16),
        |context, _| header_bits(context, SMP_STATUS.part(0, 1)),
    ),
    Field::computed("infiniband.smpdirected.smpstatus", "Status", Show::Hex(4), |context, _| {
        header_bits(context, SMP_STATUS)
    }),
    Field::computed(
        "infiniband.smpdirected.hoppointer",
        "Hop Pointer",
        Show::Hex(2),
        |context, _| header_bits(context, SMP_HOPS.part(0, 8)),
    ),
    Field::computed("infiniband.smpdirected.hopcount", "Hop Count", Show::Hex(2), |context, _| {
        header_bits(context, SMP_HOPS.part(8, 8))
    }),
    Field::bits("infiniband.smplid.mkey", "M_Key", SmpDirected::LAYOUT.mkey, Show::Hex(16)),
    Field::bits(
        "infiniband.smpdirected.drslid",
        "DrSLID",
        SmpDirected::LAYOUT.dr_slid,
        Show::Hex(4),
    ),
    Field::bits(
        "infiniband.smpdirected.drdlid",
        "DrDLID",
        SmpDirected::LAYOUT.dr_dlid,
        Show::Hex(4),
    ),
    Field::bits("infiniband.reserved", "Reserved", SmpDirected::LAYOUT.reserved, Show::Bytes)
        .hidden(),
    Field::bits(
        "infiniband.smpdirected.initialpath",
        "Initial Path",
        SMP_PATHS.part(0, 512),
        Show::Bytes,
    ),
    Field::bits(
        "infiniband.smpdirected.returnpath",
        "Return Path",
        SMP_PATHS.part(512, 512),
        Show::Bytes,
    ),
];

pub(in super::super) static SMP_LID: [Field; 2] = [
    Field::bits("infiniband.smplid.mkey", "M_Key", SmpLid::LAYOUT.mkey, Show::Hex(16)),
    Field::bits("infiniband.reserved", "Reserved", SmpLid::LAYOUT.reserved, Show::Bytes).hidden(),
];

pub(in super::super) static SM_INFO: [Field; 5] = [
    Field::bits("infiniband.sminfo.guid", "GUID", SmInfo::LAYOUT.guid, Show::Hex(16)),
    Field::bits("infiniband.sminfo.sm_key", "SM_Key", SmInfo::LAYOUT.sm_key, Show::Hex(16)),
    Field::bits("infiniband.sminfo.actcount", "ActCount", SmInfo::LAYOUT.act_count, Show::Hex(8)),
    Field::bits("infiniband.sminfo.priority", "Priority", SmInfo::LAYOUT.priority, Show::Hex(2)),
    Field::bits("infiniband.sminfo.smstate", "SMState", SmInfo::LAYOUT.state, Show::Hex(2)),
];

pub(in super::super) static RMPP: [Field; 8] = [
    Field::whole("infiniband.rmpp", "RMPP Header"),
    Field::bits("infiniband.rmpp.rmppversion", "RMPP Version", Rmpp::LAYOUT.version, Show::Hex(2)),
    Field::bits("infiniband.rmpp.rmpptype", "RMPP Type", Rmpp::LAYOUT.kind, Show::Hex(2)),
    Field::bits(
        "infiniband.rmpp.rresptime",
        "R Resp Time",
        Rmpp::LAYOUT.response_time,
        Show::Hex(2),
    ),
    Field::bits("infiniband.rmpp.rmppflags", "RMPP Flags", Rmpp::LAYOUT.flags, Show::Hex(2)),
    Field::bits("infiniband.rmpp.rmppstatus", "RMPP Status", Rmpp::LAYOUT.status, Show::Hex(2)),
    Field::bits("infiniband.rmpp.data1", "RMPP Data 1", Rmpp::LAYOUT.data1, Show::Hex(8)),
    Field::bits("infiniband.rmpp.data2", "RMPP Data 2", Rmpp::LAYOUT.data2, Show::Hex(8)),
];

pub(in super::super) static SA: [Field; 4] = [
    Field::bits(
        "infiniband.sa.smkey",
        "SM_Key (Verification Key)",
        Sa::LAYOUT.sm_key,
        Show::Hex(16),
    ),
    Field::bits(
        "infiniband.sa.attributeoffset",
        "Attribute Offset",
        Sa::LAYOUT.attribute_offset,
        Show::Hex(4),
    ),
    Field::bits("infiniband.reserved", "Reserved", Sa::LAYOUT.reserved, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.sa.componentmask",
        "Component Mask",
        Sa::LAYOUT.component_mask,
        Show::Hex(16),
    ),
];

pub(in super::super) static PATH_RECORD: [Field; 20] = [
    Field::bits("infiniband.reserved", "Reserved", PathRecord::LAYOUT.service_id, Show::Bytes)
        .hidden(),
    Field::bits("infiniband.pathrecord.dgid", "DGID", PathRecord::LAYOUT.dgid, Show::Ipv6),
    Field::bits("infiniband.pathrecord.sgid", "SGID", PathRecord::LAYOUT.sgid, Show::Ipv6),
    Field::bits("infiniband.pathrecord.dlid", "DLID", PathRecord::LAYOUT.dlid, Show::Hex(4)),
    Field::bits("infiniband.pathrecord.slid", "SLID", PathRecord::LAYOUT.slid, Show::Hex(4)),
    Field::bits(
        "infiniband.pathrecord.rawtraffic",
        "RawTraffic",
        PathRecord::LAYOUT.raw_traffic,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.flowlabel",
        "FlowLabel",
        PathRecord::LAYOUT.flow_label,
        Show::Hex(6),
    ),
    Field::bits(
        "infiniband.pathrecord.hoplimit",
        "HopLimit",
        PathRecord::LAYOUT.hop_limit,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.tclass",
        "TClass",
        PathRecord::LAYOUT.traffic_class,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.reversible",
        "Reversible",
        PathRecord::LAYOUT.reversible,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.numbpath",
        "NumbPath",
        PathRecord::LAYOUT.paths,
        Show::Hex(2),
    ),
    Field::bits("infiniband.pathrecord.p_key", "P_Key", PathRecord::LAYOUT.pkey, Show::Hex(4)),
    Field::bits("infiniband.pathrecord.sl", "SL", PathRecord::LAYOUT.sl, Show::Hex(4)),
    Field::bits(
        "infiniband.pathrecord.mtuselector",
        "MTUSelector",
        PathRecord::LAYOUT.mtu_selector,
        Show::Hex(2),
    ),
    Field::bits("infiniband.pathrecord.mtu", "MTU", PathRecord::LAYOUT.mtu, Show::Hex(2)),
    Field::bits(
        "infiniband.pathrecord.rateselector",
        "RateSelector",
        PathRecord::LAYOUT.rate_selector,
        Show::Hex(2),
    ),
    Field::bits("infiniband.pathrecord.rate", "Rate", PathRecord::LAYOUT.rate, Show::Hex(2)),
    Field::bits(
        "infiniband.pathrecord.packetlifetimeselector",
        "PacketLifeTimeSelector",
        PathRecord::LAYOUT.life_time_selector,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.packetlifetime",
        "PacketLifeTime",
        PathRecord::LAYOUT.life_time,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.pathrecord.preference",
        "Preference",
        PathRecord::LAYOUT.preference,
        Show::Hex(2),
    ),
];

pub(in super::super) static MAD_BODY: [Field; 1] =
    [Field::whole("infiniband.mad.data", "MAD Data Payload")];
