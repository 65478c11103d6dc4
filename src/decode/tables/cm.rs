//! Fields of the connection manager's messages.

use super::super::Context;
use super::super::field::{Field, Show, Value};
use crate::wire::Network;
use crate::wire::cm::{
    self, Apr, Drep, Dreq, IpCm, Lap, Mra, Rej, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
};
use crate::wire::layout::BitRange;

/// A GID, unless the packet came over IPv4: then it is an IPv4 address in disguise.
fn gid_unless_ipv4<'a>(context: &Context<'a>, gid: &'a [u8]) -> Option<Value<'a>> {
    (!is_ipv4(context)).then_some(Value::Bytes(gid))
}

fn gid_if_ipv4<'a>(context: &Context<'a>, gid: &'a [u8]) -> Option<Value<'a>> {
    is_ipv4(context).then_some(Value::Bytes(gid.get(12..)?))
}

fn is_ipv4(context: &Context<'_>) -> bool {
    matches!(context.frame.network(), Some(Network::Ipv4 { .. }))
}

/// The port of a service of the RDMA connection manager.
fn rdma_cm(service_id: BitRange, layer: &[u8]) -> Option<u16> {
    ServiceId(service_id.read(layer)?).to_rdma_cm().map(|(_, port)| port)
}

/// An address of an RDMA connection manager's header, if it is of this IP version.
fn ip_cm_address(layer: &[u8], address: BitRange, version: u64) -> Option<Value<'_>> {
    let bytes = address.slice(layer)?;
    // What claims to be neither is shown in full.
    let is_ipv4 = IpCm::LAYOUT.ip_version.read(layer)? == 4;
    let bytes = if is_ipv4 { bytes.get(12..)? } else { bytes };
    (is_ipv4 == (version == 4)).then_some(Value::Bytes(bytes))
}

/// What the RDMA connection manager puts before the consumer's data, under names that begin with `$prefix`.
macro_rules! ip_cm {
    ($prefix:literal) => {
        [
            Field::whole(concat!($prefix, ".ip_cm"), "IP CM Request Msg"),
            Field::bits(
                concat!($prefix, ".ip_cm.majv"),
                "IP CM Major Version",
                IpCm::LAYOUT.major,
                Show::Hex(2),
            ),
            Field::bits(
                concat!($prefix, ".ip_cm.minv"),
                "IP CM Minor Version",
                IpCm::LAYOUT.minor,
                Show::Hex(2),
            ),
            Field::bits(
                concat!($prefix, ".ip_cm.ipv"),
                "IP CM IP Version",
                IpCm::LAYOUT.ip_version,
                Show::Hex(2),
            ),
            Field::bits(
                concat!($prefix, ".ip_cm.reserved"),
                "IP CM Reserved",
                IpCm::LAYOUT.reserved,
                Show::Hex(2),
            ),
            Field::bits(
                concat!($prefix, ".ip_cm.sport"),
                "IP CM Source Port",
                IpCm::LAYOUT.source_port,
                Show::Hex(4),
            ),
            Field::computed(
                concat!($prefix, ".ip_cm.sip6"),
                "IP CM Source IP",
                Show::Ipv6,
                |_, layer| ip_cm_address(layer, IpCm::LAYOUT.source, 6),
            ),
            Field::computed(
                concat!($prefix, ".ip_cm.dip6"),
                "IP CM Destination IP",
                Show::Ipv6,
                |_, layer| ip_cm_address(layer, IpCm::LAYOUT.destination, 6),
            ),
            Field::computed(
                concat!($prefix, ".ip_cm.sip4"),
                "IP CM Source IP",
                Show::Ipv4,
                |_, layer| ip_cm_address(layer, IpCm::LAYOUT.source, 4),
            ),
            Field::computed(
                concat!($prefix, ".ip_cm.dip4"),
                "IP CM Destination IP",
                Show::Ipv4,
                |_, layer| ip_cm_address(layer, IpCm::LAYOUT.destination, 4),
            ),
            Field::bytes_from(
                concat!($prefix, ".ip_cm.private"),
                "IP CM Consumer PrivateData",
                IpCm::LEN,
            ),
        ]
    };
}

pub(in super::super) static IP_CM: [Field; 11] = ip_cm!("infiniband.cm.req");

pub(in super::super) static SIDR_IP_CM: [Field; 11] = ip_cm!("roce.cm.sidr_req");

pub(in super::super) static CM_REQ: [Field; 60] = [
    Field::bits(
        "infiniband.cm.req",
        "Local Communication ID",
        Req::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.reserved",
        "Reserved",
        Req::LAYOUT.reserved0.through(Req::LAYOUT.vendor_id),
        Show::Bytes,
    )
    .hidden(),
    Field::bits("roce.cm.req.vendorid", "Vendor ID", Req::LAYOUT.vendor_id, Show::Hex(6)),
    Field::bits("infiniband.cm.req.serviceid", "ServiceID", Req::LAYOUT.service_id, Show::Hex(16)),
    Field::computed("infiniband.cm.req.serviceid.prefix", "Prefix", Show::Bytes, |_, layer| {
        rdma_cm(Req::LAYOUT.service_id, layer)?;
        Req::LAYOUT.service_id.part(0, 40).slice(layer).map(Value::Bytes)
    }),
    Field::computed(
        "infiniband.cm.req.serviceid.protocol",
        "Protocol",
        Show::Hex(2),
        |_, layer| {
            rdma_cm(Req::LAYOUT.service_id, layer)?;
            Req::LAYOUT.service_id.part(40, 8).read(layer).map(Value::Uint)
        },
    ),
    Field::computed(
        "infiniband.cm.req.serviceid.dport",
        "Destination Port",
        Show::Hex(4),
        |_, layer| rdma_cm(Req::LAYOUT.service_id, layer).map(|port| Value::Uint(port.into())),
    ),
    Field::bits(
        "infiniband.cm.req.localcaguid",
        "Local CA GUID",
        Req::LAYOUT.local_ca_guid,
        Show::Hex(16),
    ),
    Field::bits("infiniband.reserved", "Reserved", Req::LAYOUT.reserved1, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.cm.req.localqkey",
        "Local Q_Key",
        Req::LAYOUT.local_q_key,
        Show::Hex(8),
    ),
    Field::bits("infiniband.cm.req.localqpn", "Local QPN", Req::LAYOUT.local_qpn, Show::Hex(6)),
    Field::bits(
        "infiniband.cm.req.responderres",
        "Responder Resources",
        Req::LAYOUT.responder_resources,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.localeecn", "Local EECN", Req::LAYOUT.local_eecn, Show::Hex(6)),
    Field::bits(
        "infiniband.cm.req.initdepth",
        "Initiator Depth",
        Req::LAYOUT.initiator_depth,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.remoteeecn",
        "Remote EECN",
        Req::LAYOUT.remote_eecn,
        Show::Hex(6),
    ),
    Field::bits(
        "infiniband.cm.req.remoteresptout",
        "Remote CM Response Timeout",
        Req::LAYOUT.remote_cm_response_timeout,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.transpsvctype",
        "Transport Service Type",
        Req::LAYOUT.transport_service_type,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.e2eflowctrl",
        "End-to-End Flow Control",
        Req::LAYOUT.flow_control,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.startpsn",
        "Starting PSN",
        Req::LAYOUT.starting_psn,
        Show::Hex(6),
    ),
    Field::bits(
        "infiniband.cm.req.localresptout",
        "Local CM Response Timeout",
        Req::LAYOUT.local_cm_response_timeout,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.retrcount",
        "Retry Count",
        Req::LAYOUT.retry_count,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.pkey", "Partition Key", Req::LAYOUT.partition_key, Show::Hex(4)),
    Field::bits(
        "infiniband.cm.req.pppmtu",
        "Path Packet Payload MTU",
        Req::LAYOUT.path_mtu,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.rdcexist", "RDC Exists", Req::LAYOUT.rdc_exists, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.req.rnrretrcount",
        "RNR Retry Count",
        Req::LAYOUT.rnr_retry_count,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.maxcmretr",
        "Max CM Retries",
        Req::LAYOUT.max_cm_retries,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.srq", "SRQ", Req::LAYOUT.srq, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.req.ext_transport",
        "Extended Transport",
        Req::LAYOUT.extended_transport_type,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.prim_locallid",
        "Primary Local Port LID",
        Req::LAYOUT.primary_local_port_lid,
        Show::Dec,
    ),
    Field::bits(
        "infiniband.cm.req.prim_remotelid",
        "Primary Remote Port LID",
        Req::LAYOUT.primary_remote_port_lid,
        Show::Dec,
    ),
    Field::computed(
        "infiniband.cm.req.prim_localgid",
        "Primary Local Port GID",
        Show::Ipv6,
        |context, layer| gid_unless_ipv4(context, Req::LAYOUT.primary_local_port_gid.slice(layer)?),
    ),
    Field::computed(
        "infiniband.cm.req.prim_localgid_ipv4",
        "Primary Local Port GID",
        Show::Ipv4,
        |context, layer| gid_if_ipv4(context, Req::LAYOUT.primary_local_port_gid.slice(layer)?),
    ),
    Field::computed(
        "infiniband.cm.req.prim_remotegid",
        "Primary Remote Port GID",
        Show::Ipv6,
        |context, layer| {
            gid_unless_ipv4(context, Req::LAYOUT.primary_remote_port_gid.slice(layer)?)
        },
    ),
    Field::computed(
        "infiniband.cm.req.prim_remotegid_ipv4",
        "Primary Remote Port GID",
        Show::Ipv4,
        |context, layer| gid_if_ipv4(context, Req::LAYOUT.primary_remote_port_gid.slice(layer)?),
    ),
    Field::bits(
        "infiniband.cm.req.prim_flowlabel",
        "Primary Flow Label",
        Req::LAYOUT.primary_flow_label,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.req.prim_reserved0",
        "Reserved",
        Req::LAYOUT.reserved2,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.req.prim_pktrate",
        "Primary Packet Rate",
        Req::LAYOUT.primary_packet_rate,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.req.prim_tfcclass",
        "Primary Traffic Class",
        Req::LAYOUT.primary_traffic_class,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.prim_hoplim",
        "Primary Hop Limit",
        Req::LAYOUT.primary_hop_limit,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.prim_sl", "Primary SL", Req::LAYOUT.primary_sl, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.req.prim_subnetlocal",
        "Primary Subnet Local",
        Req::LAYOUT.primary_subnet_local,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.prim_reserved1",
        "Reserved",
        Req::LAYOUT.reserved3,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.prim_localacktout",
        "Primary Local ACK Timeout",
        Req::LAYOUT.primary_local_ack_timeout,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.prim_reserved2",
        "Reserved",
        Req::LAYOUT.reserved4,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.alt_locallid",
        "Alternate Local Port LID",
        Req::LAYOUT.alternate_local_port_lid,
        Show::Dec,
    ),
    Field::bits(
        "infiniband.cm.req.alt_remotelid",
        "Alternate Remote Port LID",
        Req::LAYOUT.alternate_remote_port_lid,
        Show::Dec,
    ),
    Field::bits(
        "infiniband.cm.req.alt_localgid",
        "Alternate Local Port GID",
        Req::LAYOUT.alternate_local_port_gid,
        Show::Bytes,
    ),
    Field::bits(
        "infiniband.cm.req.alt_remotegid",
        "Alternate Remote Port GID",
        Req::LAYOUT.alternate_remote_port_gid,
        Show::Bytes,
    ),
    Field::bits(
        "infiniband.cm.req.alt_flowlabel",
        "Alternate Flow Label",
        Req::LAYOUT.alternate_flow_label,
        Show::Hex(8),
    ),
    Field::bits("infiniband.cm.req.alt_reserved0", "Reserved", Req::LAYOUT.reserved5, Show::Hex(8)),
    Field::bits(
        "infiniband.cm.req.alt_pktrate",
        "Alternate Packet Rate",
        Req::LAYOUT.alternate_packet_rate,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.req.alt_tfcclass",
        "Alternate Traffic Class",
        Req::LAYOUT.alternate_traffic_class,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.alt_hoplim",
        "Alternate Hop Limit",
        Req::LAYOUT.alternate_hop_limit,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.alt_sl", "Alternate SL", Req::LAYOUT.alternate_sl, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.req.alt_subnetlocal",
        "Alternate Subnet Local",
        Req::LAYOUT.alternate_subnet_local,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.req.alt_reserved1", "Reserved", Req::LAYOUT.reserved6, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.req.alt_localacktout",
        "Alternate Local ACK Timeout",
        Req::LAYOUT.alternate_local_ack_timeout,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.req.alt_reserved1",
        "Reserved",
        Req::LAYOUT.sap_supported.through(Req::LAYOUT.reserved7),
        Show::Hex(2),
    )
    .hidden(),
    Field::bits("roce.cm.req.sap", "SAP Supported", Req::LAYOUT.sap_supported, Show::Dec),
    Field::computed("infiniband.cm.req.private", "PrivateData", Show::Bytes, |_, layer| {
        let private = Req::LAYOUT.private_data.slice(layer)?;
        rdma_cm(Req::LAYOUT.service_id, layer).is_none().then_some(Value::Bytes(private))
    }),
];

pub(in super::super) static CM_REP: [Field; 22] = [
    Field::bits(
        "infiniband.cm.rep",
        "Local Communication ID",
        Rep::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.rep.remotecommid",
        "Remote Communication ID",
        Rep::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.rep.localqkey",
        "Local Q_Key",
        Rep::LAYOUT.local_q_key,
        Show::Hex(8),
    ),
    Field::bits("infiniband.cm.rep.localqpn", "Local QPN", Rep::LAYOUT.local_qpn, Show::Hex(6)),
    Field::bits(
        "roce.cm.rep.vendorid_h",
        "Vendor ID (high)",
        Rep::LAYOUT.vendor_id_h,
        Show::Hex(2),
    ),
    Field::bits("infiniband.reserved", "Reserved", Rep::LAYOUT.vendor_id_h, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.cm.rep.localeecn",
        "Local EE Context Number",
        Rep::LAYOUT.local_eecn,
        Show::Hex(6),
    ),
    Field::bits(
        "roce.cm.rep.vendorid_m",
        "Vendor ID (middle)",
        Rep::LAYOUT.vendor_id_m,
        Show::Hex(2),
    ),
    Field::bits("infiniband.reserved", "Reserved", Rep::LAYOUT.vendor_id_m, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.cm.rep.startpsn",
        "Starting PSN",
        Rep::LAYOUT.starting_psn,
        Show::Hex(6),
    ),
    Field::bits("roce.cm.rep.vendorid_l", "Vendor ID (low)", Rep::LAYOUT.vendor_id_l, Show::Hex(2)),
    Field::bits("infiniband.reserved", "Reserved", Rep::LAYOUT.vendor_id_l, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.cm.rep.respres",
        "Responder Resources",
        Rep::LAYOUT.responder_resources,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.rep.initdepth",
        "Initiator Depth",
        Rep::LAYOUT.initiator_depth,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.rep.tgtackdelay",
        "Target ACK Delay",
        Rep::LAYOUT.target_ack_delay,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.rep.failoveracc",
        "Failover Accepted",
        Rep::LAYOUT.failover_accepted,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.rep.e2eflowctrl",
        "End-To-End Flow Control",
        Rep::LAYOUT.flow_control,
        Show::Hex(2),
    ),
    Field::bits(
        "infiniband.cm.rep.rnrretrcount",
        "RNR Retry Count",
        Rep::LAYOUT.rnr_retry_count,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.rep.srq", "SRQ", Rep::LAYOUT.srq, Show::Hex(2)),
    Field::bits("infiniband.cm.rep.reserved", "Reserved", Rep::LAYOUT.reserved0, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.rep.localcaguid",
        "Local CA GUID",
        Rep::LAYOUT.local_ca_guid,
        Show::Hex(16),
    ),
    Field::bits("infiniband.cm.rep.private", "PrivateData", Rep::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_RTU: [Field; 3] = [
    Field::bits(
        "infiniband.cm.rtu.localcommid",
        "Local Communication ID",
        Rtu::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.rtu.remotecommid",
        "Remote Communication ID",
        Rtu::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits("infiniband.cm.rtu.private", "PrivateData", Rtu::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_REJ: [Field; 10] = [
    Field::bits(
        "infiniband.cm.rej.localcommid",
        "Local Communication ID",
        Rej::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.rej.remotecommid",
        "Remote Communication ID",
        Rej::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.rej.msgrej",
        "Message REJected",
        Rej::LAYOUT.message_rejected,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.rej.reserved0", "Reserved", Rej::LAYOUT.reserved0, Show::Hex(2)),
    Field::bits(
        "infiniband.cm.rej.rejinfolen",
        "Reject Info Length",
        Rej::LAYOUT.rejected_info_length,
        Show::Hex(2),
    ),
    Field::bits("infiniband.cm.rej.reserved1", "Reserved", Rej::LAYOUT.reserved1, Show::Hex(2)),
    Field::bits("infiniband.cm.rej.reason", "Reason", Rej::LAYOUT.reason, Show::Hex(4)),
    Field::computed("roce.cm.rej.reason_name", "Reason Name", Show::Text, |_, layer| {
        let reason = u16::try_from(Rej::LAYOUT.reason.read(layer)?).ok()?;
        cm::reject_reason(reason).map(Value::Text)
    }),
    Field::bits(
        "infiniband.cm.rej.ari",
        "Additional Reject Information (ARI)",
        Rej::LAYOUT.ari,
        Show::Bytes,
    ),
    Field::bits("infiniband.cm.rej.private", "PrivateData", Rej::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_DREQ: [Field; 5] = [
    Field::bits(
        "infiniband.cm.dreq.localcommid",
        "Local Communication ID",
        Dreq::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.dreq.remotecommid",
        "Remote Communication ID",
        Dreq::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.req.remoteqpneecn",
        "Remote QPN/EECN",
        Dreq::LAYOUT.remote_qpn_eecn,
        Show::Hex(6),
    ),
    Field::bits("infiniband.reserved", "Reserved", Dreq::LAYOUT.reserved0, Show::Bytes).hidden(),
    Field::bits(
        "infiniband.cm.dreq.private",
        "PrivateData",
        Dreq::LAYOUT.private_data,
        Show::Bytes,
    ),
];

pub(in super::super) static CM_DREP: [Field; 3] = [
    Field::bits(
        "infiniband.cm.drsp.localcommid",
        "Local Communication ID",
        Drep::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.drsp.remotecommid",
        "Remote Communication ID",
        Drep::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "infiniband.cm.drsp.private",
        "PrivateData",
        Drep::LAYOUT.private_data,
        Show::Bytes,
    ),
];

pub(in super::super) static CM_MRA: [Field; 5] = [
    Field::bits(
        "roce.cm.mra.localcommid",
        "Local Communication ID",
        Mra::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.mra.remotecommid",
        "Remote Communication ID",
        Mra::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits("roce.cm.mra.msgmraed", "Message MRAed", Mra::LAYOUT.message_mraed, Show::Dec),
    Field::bits(
        "roce.cm.mra.svctimeout",
        "Service Timeout",
        Mra::LAYOUT.service_timeout,
        Show::Dec,
    ),
    Field::bits("roce.cm.mra.private", "PrivateData", Mra::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_LAP: [Field; 16] = [
    Field::bits(
        "roce.cm.lap.localcommid",
        "Local Communication ID",
        Lap::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.lap.remotecommid",
        "Remote Communication ID",
        Lap::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.lap.remoteqpneecn",
        "Remote QPN/EECN",
        Lap::LAYOUT.remote_qpn_eecn,
        Show::Hex(6),
    ),
    Field::bits(
        "roce.cm.lap.remoteresptout",
        "Remote CM Response Timeout",
        Lap::LAYOUT.remote_cm_response_timeout,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.lap.alt_locallid",
        "Alternate Local Port LID",
        Lap::LAYOUT.alternate_local_port_lid,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.lap.alt_remotelid",
        "Alternate Remote Port LID",
        Lap::LAYOUT.alternate_remote_port_lid,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.lap.alt_localgid",
        "Alternate Local Port GID",
        Lap::LAYOUT.alternate_local_port_gid,
        Show::Ipv6,
    ),
    Field::bits(
        "roce.cm.lap.alt_remotegid",
        "Alternate Remote Port GID",
        Lap::LAYOUT.alternate_remote_port_gid,
        Show::Ipv6,
    ),
    Field::bits(
        "roce.cm.lap.alt_flowlabel",
        "Alternate Flow Label",
        Lap::LAYOUT.alternate_flow_label,
        Show::Hex(5),
    ),
    Field::bits(
        "roce.cm.lap.alt_tfcclass",
        "Alternate Traffic Class",
        Lap::LAYOUT.alternate_traffic_class,
        Show::Hex(2),
    ),
    Field::bits(
        "roce.cm.lap.alt_hoplim",
        "Alternate Hop Limit",
        Lap::LAYOUT.alternate_hop_limit,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.lap.alt_pktrate",
        "Alternate Packet Rate",
        Lap::LAYOUT.alternate_packet_rate,
        Show::Dec,
    ),
    Field::bits("roce.cm.lap.alt_sl", "Alternate SL", Lap::LAYOUT.alternate_sl, Show::Dec),
    Field::bits(
        "roce.cm.lap.alt_subnetlocal",
        "Alternate Subnet Local",
        Lap::LAYOUT.alternate_subnet_local,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.lap.alt_localacktout",
        "Alternate Local ACK Timeout",
        Lap::LAYOUT.alternate_local_ack_timeout,
        Show::Dec,
    ),
    Field::bits("roce.cm.lap.private", "PrivateData", Lap::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_APR: [Field; 6] = [
    Field::bits(
        "roce.cm.apr.localcommid",
        "Local Communication ID",
        Apr::LAYOUT.local_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.apr.remotecommid",
        "Remote Communication ID",
        Apr::LAYOUT.remote_comm_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.apr.infolen",
        "Additional Information Length",
        Apr::LAYOUT.additional_information_length,
        Show::Dec,
    ),
    Field::bits("roce.cm.apr.status", "AR Status", Apr::LAYOUT.ar_status, Show::Dec),
    Field::bits(
        "roce.cm.apr.info",
        "Additional Information",
        Apr::LAYOUT.additional_information,
        Show::Bytes,
    ),
    Field::bits("roce.cm.apr.private", "PrivateData", Apr::LAYOUT.private_data, Show::Bytes),
];

pub(in super::super) static CM_SIDR_REQ: [Field; 4] = [
    Field::bits(
        "roce.cm.sidr_req.requestid",
        "Request ID",
        SidrReq::LAYOUT.request_id,
        Show::Hex(8),
    ),
    Field::bits(
        "roce.cm.sidr_req.pkey",
        "Partition Key",
        SidrReq::LAYOUT.partition_key,
        Show::Hex(4),
    ),
    Field::bits(
        "roce.cm.sidr_req.serviceid",
        "ServiceID",
        SidrReq::LAYOUT.service_id,
        Show::Hex(16),
    ),
    Field::computed("roce.cm.sidr_req.private", "PrivateData", Show::Bytes, |_, layer| {
        let private = SidrReq::LAYOUT.private_data.slice(layer)?;
        rdma_cm(SidrReq::LAYOUT.service_id, layer).is_none().then_some(Value::Bytes(private))
    }),
];

pub(in super::super) static CM_SIDR_REP: [Field; 10] = [
    Field::bits(
        "roce.cm.sidr_rep.requestid",
        "Request ID",
        SidrRep::LAYOUT.request_id,
        Show::Hex(8),
    ),
    Field::bits("roce.cm.sidr_rep.status", "Status", SidrRep::LAYOUT.status, Show::Dec),
    Field::bits(
        "roce.cm.sidr_rep.infolen",
        "Additional Information Length",
        SidrRep::LAYOUT.additional_information_length,
        Show::Dec,
    ),
    Field::bits(
        "roce.cm.sidr_rep.vendorid_h",
        "Vendor ID (high)",
        SidrRep::LAYOUT.vendor_id_h,
        Show::Hex(4),
    ),
    Field::bits("roce.cm.sidr_rep.qpn", "QPN", SidrRep::LAYOUT.qpn, Show::Hex(6)),
    Field::bits(
        "roce.cm.sidr_rep.vendorid_l",
        "Vendor ID (low)",
        SidrRep::LAYOUT.vendor_id_l,
        Show::Hex(2),
    ),
    Field::bits(
        "roce.cm.sidr_rep.serviceid",
        "ServiceID",
        SidrRep::LAYOUT.service_id,
        Show::Hex(16),
    ),
    Field::bits("roce.cm.sidr_rep.qkey", "Q_Key", SidrRep::LAYOUT.q_key, Show::Hex(8)),
    Field::bits(
        "roce.cm.sidr_rep.info",
        "Additional Information",
        SidrRep::LAYOUT.additional_information,
        Show::Bytes,
    ),
    Field::bits(
        "roce.cm.sidr_rep.private",
        "PrivateData",
        SidrRep::LAYOUT.private_data,
        Show::Bytes,
    ),
];
