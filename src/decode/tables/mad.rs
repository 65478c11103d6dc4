//! Fields of management datagrams.

use super::super::Context;
use super::super::field::{Field, Value};
use crate::wire::layout::BitRange;
use crate::wire::mad::{MadHeader, PathRecord, Rmpp, Sa, SmInfo, SmpDirected, SmpLid};

fields! {
    MAD: MadHeader {
        hidden computed("infiniband.mad", "MAD", Bytes, |context, _| {
            Some(Value::Bytes(context.frame.packet()?.payload()))
        });
        bits("infiniband.mad.baseversion", "Base Version", base_version, Hex(2));
        bits("infiniband.mad.mgmtclass", "Management Class", class, Hex(2));
        bits("infiniband.mad.classversion", "Class Version", class_version, Hex(2));
        bits("infiniband.mad.method", "Method", response..=method, Hex(2));
        bits("infiniband.mad.status", "Status", status, Hex(4));
        bits("infiniband.mad.classspecific", "Class Specific", class_specific, Hex(4));
        bits("infiniband.mad.transactionid", "Transaction ID", transaction_id, Hex(16));
        bits("infiniband.mad.attributeid", "Attribute ID", attribute, Hex(4));
        hidden bits("infiniband.reserved", "Reserved", reserved, Bytes);
        bits("infiniband.mad.attributemodifier", "Attribute Modifier", attribute_modifier, Hex(8));
    }
}

/// Some bits of the MAD header, which subnet management by directed route uses in its own way.
fn header_bits<'a>(context: &Context<'a>, bits: BitRange) -> Option<Value<'a>> {
    let mad = context.frame.packet()?.mad()?.ok()?;
    bits.read(mad.header.as_bytes()).map(Value::Uint)
}

const SMP_STATUS: BitRange = MadHeader::LAYOUT.status;
const SMP_HOPS: BitRange = MadHeader::LAYOUT.class_specific;
/// The paths stand behind the attribute, 64 bytes each.
const SMP_PATHS: BitRange = BitRange::new((SmpDirected::LEN + 64) * 8, 128 * 8);

fields! {
    SMP_DIRECTED: SmpDirected {
        computed("infiniband.smpdirected.d", "D (Direction Bit)", Hex(16), |context, _| {
            header_bits(context, SMP_STATUS.part(0, 1))
        });
        computed("infiniband.smpdirected.smpstatus", "Status", Hex(4), |context, _| {
            header_bits(context, SMP_STATUS)
        });
        computed("infiniband.smpdirected.hoppointer", "Hop Pointer", Hex(2), |context, _| {
            header_bits(context, SMP_HOPS.part(0, 8))
        });
        computed("infiniband.smpdirected.hopcount", "Hop Count", Hex(2), |context, _| {
            header_bits(context, SMP_HOPS.part(8, 8))
        });
        bits("infiniband.smplid.mkey", "M_Key", mkey, Hex(16));
        bits("infiniband.smpdirected.drslid", "DrSLID", dr_slid, Hex(4));
        bits("infiniband.smpdirected.drdlid", "DrDLID", dr_dlid, Hex(4));
        hidden bits("infiniband.reserved", "Reserved", reserved, Bytes);
        range("infiniband.smpdirected.initialpath", "Initial Path", SMP_PATHS.part(0, 512), Bytes);
        range("infiniband.smpdirected.returnpath", "Return Path", SMP_PATHS.part(512, 512), Bytes);
    }

    SMP_LID: SmpLid {
        bits("infiniband.smplid.mkey", "M_Key", mkey, Hex(16));
        hidden bits("infiniband.reserved", "Reserved", reserved, Bytes);
    }

    SM_INFO: SmInfo {
        bits("infiniband.sminfo.guid", "GUID", guid, Hex(16));
        bits("infiniband.sminfo.sm_key", "SM_Key", sm_key, Hex(16));
        bits("infiniband.sminfo.actcount", "ActCount", act_count, Hex(8));
        bits("infiniband.sminfo.priority", "Priority", priority, Hex(2));
        bits("infiniband.sminfo.smstate", "SMState", state, Hex(2));
    }

    RMPP: Rmpp {
        whole("infiniband.rmpp", "RMPP Header");
        bits("infiniband.rmpp.rmppversion", "RMPP Version", version, Hex(2));
        bits("infiniband.rmpp.rmpptype", "RMPP Type", kind, Hex(2));
        bits("infiniband.rmpp.rresptime", "R Resp Time", response_time, Hex(2));
        bits("infiniband.rmpp.rmppflags", "RMPP Flags", flags, Hex(2));
        bits("infiniband.rmpp.rmppstatus", "RMPP Status", status, Hex(2));
        bits("infiniband.rmpp.data1", "RMPP Data 1", data1, Hex(8));
        bits("infiniband.rmpp.data2", "RMPP Data 2", data2, Hex(8));
    }

    SA: Sa {
        bits("infiniband.sa.smkey", "SM_Key (Verification Key)", sm_key, Hex(16));
        bits("infiniband.sa.attributeoffset", "Attribute Offset", attribute_offset, Hex(4));
        hidden bits("infiniband.reserved", "Reserved", reserved, Bytes);
        bits("infiniband.sa.componentmask", "Component Mask", component_mask, Hex(16));
    }

    PATH_RECORD: PathRecord {
        hidden bits("infiniband.reserved", "Reserved", service_id, Bytes);
        bits("infiniband.pathrecord.dgid", "DGID", dgid, Ipv6);
        bits("infiniband.pathrecord.sgid", "SGID", sgid, Ipv6);
        bits("infiniband.pathrecord.dlid", "DLID", dlid, Hex(4));
        bits("infiniband.pathrecord.slid", "SLID", slid, Hex(4));
        bits("infiniband.pathrecord.rawtraffic", "RawTraffic", raw_traffic, Hex(2));
        bits("infiniband.pathrecord.flowlabel", "FlowLabel", flow_label, Hex(6));
        bits("infiniband.pathrecord.hoplimit", "HopLimit", hop_limit, Hex(2));
        bits("infiniband.pathrecord.tclass", "TClass", traffic_class, Hex(2));
        bits("infiniband.pathrecord.reversible", "Reversible", reversible, Hex(2));
        bits("infiniband.pathrecord.numbpath", "NumbPath", paths, Hex(2));
        bits("infiniband.pathrecord.p_key", "P_Key", pkey, Hex(4));
        bits("infiniband.pathrecord.sl", "SL", sl, Hex(4));
        bits("infiniband.pathrecord.mtuselector", "MTUSelector", mtu_selector, Hex(2));
        bits("infiniband.pathrecord.mtu", "MTU", mtu, Hex(2));
        bits("infiniband.pathrecord.rateselector", "RateSelector", rate_selector, Hex(2));
        bits("infiniband.pathrecord.rate", "Rate", rate, Hex(2));
        bits("infiniband.pathrecord.packetlifetimeselector", "PacketLifeTimeSelector",
            life_time_selector, Hex(2));
        bits("infiniband.pathrecord.packetlifetime", "PacketLifeTime", life_time, Hex(2));
        bits("infiniband.pathrecord.preference", "Preference", preference, Hex(2));
    }
}

pub(in crate::decode) const MAD_BODY: &[Field] =
    &[Field::whole("infiniband.mad.data", "MAD Data Payload")];
