//! Fields of the messages that answer a REQ, and of those of a connection.

use crate::decode::field::{Field, Show, Value};
use crate::wire::cm::{self, Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Rtu};

pub(in crate::decode) static CM_REP: [Field; 22] = [
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

pub(in crate::decode) static CM_RTU: [Field; 3] = [
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

pub(in crate::decode) static CM_REJ: [Field; 10] = [
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

pub(in crate::decode) static CM_MRA: [Field; 5] = [
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

pub(in crate::decode) static CM_DREQ: [Field; 5] = [
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

pub(in crate::decode) static CM_DREP: [Field; 3] = [
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

pub(in crate::decode) static CM_LAP: [Field; 16] = [
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

pub(in crate::decode) static CM_APR: [Field; 6] = [
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
