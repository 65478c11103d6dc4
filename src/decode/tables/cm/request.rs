//! Fields of a REQ: ConnectRequest.

use super::{gid_if_ipv4, gid_unless_ipv4, rdma_cm};
use crate::decode::field::{Field, Show, Value};
use crate::wire::cm::Req;

pub(in crate::decode) static CM_REQ: [Field; 60] = [
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
