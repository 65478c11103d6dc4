//! Fields of the messages that answer a REQ, and of those of a connection.

use crate::decode::field::Value;
use crate::wire::cm::{self, Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Rtu};

fields! {
    CM_REP: Rep {
        bits("infiniband.cm.rep", "Local Communication ID", local_comm_id, Hex(8));
        bits("infiniband.cm.rep.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("infiniband.cm.rep.localqkey", "Local Q_Key", local_q_key, Hex(8));
        bits("infiniband.cm.rep.localqpn", "Local QPN", local_qpn, Hex(6));
        bits("roce.cm.rep.vendorid_h", "Vendor ID (high)", vendor_id_h, Hex(2));
        hidden bits("infiniband.reserved", "Reserved", vendor_id_h, Bytes);
        bits("infiniband.cm.rep.localeecn", "Local EE Context Number", local_eecn, Hex(6));
        bits("roce.cm.rep.vendorid_m", "Vendor ID (middle)", vendor_id_m, Hex(2));
        hidden bits("infiniband.reserved", "Reserved", vendor_id_m, Bytes);
        bits("infiniband.cm.rep.startpsn", "Starting PSN", starting_psn, Hex(6));
        bits("roce.cm.rep.vendorid_l", "Vendor ID (low)", vendor_id_l, Hex(2));
        hidden bits("infiniband.reserved", "Reserved", vendor_id_l, Bytes);
        bits("infiniband.cm.rep.respres", "Responder Resources", responder_resources, Hex(2));
        bits("infiniband.cm.rep.initdepth", "Initiator Depth", initiator_depth, Hex(2));
        bits("infiniband.cm.rep.tgtackdelay", "Target ACK Delay", target_ack_delay, Hex(2));
        bits("infiniband.cm.rep.failoveracc", "Failover Accepted", failover_accepted, Hex(2));
        bits("infiniband.cm.rep.e2eflowctrl", "End-To-End Flow Control", flow_control, Hex(2));
        bits("infiniband.cm.rep.rnrretrcount", "RNR Retry Count", rnr_retry_count, Hex(2));
        bits("infiniband.cm.rep.srq", "SRQ", srq, Hex(2));
        bits("infiniband.cm.rep.reserved", "Reserved", reserved0..=selective_repeat, Hex(2));
        computed("roce.cm.rep.selective_repeat", "Selective repeat", Dec, |_, layer| {
            Rep::LAYOUT.selective_repeat.read(layer).filter(|set| *set != 0).map(Value::Uint)
        });
        bits("infiniband.cm.rep.localcaguid", "Local CA GUID", local_ca_guid, Hex(16));
        bits("infiniband.cm.rep.private", "PrivateData", private_data, Bytes);
    }

    CM_RTU: Rtu {
        bits("infiniband.cm.rtu.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("infiniband.cm.rtu.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("infiniband.cm.rtu.private", "PrivateData", private_data, Bytes);
    }

    CM_REJ: Rej {
        bits("infiniband.cm.rej.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("infiniband.cm.rej.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("infiniband.cm.rej.msgrej", "Message REJected", message_rejected, Hex(2));
        bits("infiniband.cm.rej.reserved0", "Reserved", reserved0, Hex(2));
        bits("infiniband.cm.rej.rejinfolen", "Reject Info Length", rejected_info_length, Hex(2));
        bits("infiniband.cm.rej.reserved1", "Reserved", reserved1, Hex(2));
        bits("infiniband.cm.rej.reason", "Reason", reason, Hex(4));
        computed("roce.cm.rej.reason_name", "Reason Name", Text, |_, layer| {
            let reason = u16::try_from(Rej::LAYOUT.reason.read(layer)?).ok()?;
            cm::reject_reason(reason).map(Value::Text)
        });
        bits("infiniband.cm.rej.ari", "Additional Reject Information (ARI)", ari, Bytes);
        bits("infiniband.cm.rej.private", "PrivateData", private_data, Bytes);
    }

    CM_MRA: Mra {
        bits("roce.cm.mra.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("roce.cm.mra.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("roce.cm.mra.msgmraed", "Message MRAed", message_mraed, Dec);
        bits("roce.cm.mra.svctimeout", "Service Timeout", service_timeout, Dec);
        bits("roce.cm.mra.private", "PrivateData", private_data, Bytes);
    }

    CM_DREQ: Dreq {
        bits("infiniband.cm.dreq.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("infiniband.cm.dreq.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("infiniband.cm.req.remoteqpneecn", "Remote QPN/EECN", remote_qpn_eecn, Hex(6));
        hidden bits("infiniband.reserved", "Reserved", reserved0, Bytes);
        bits("infiniband.cm.dreq.private", "PrivateData", private_data, Bytes);
    }

    CM_DREP: Drep {
        bits("infiniband.cm.drsp.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("infiniband.cm.drsp.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("infiniband.cm.drsp.private", "PrivateData", private_data, Bytes);
    }

    CM_LAP: Lap {
        bits("roce.cm.lap.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("roce.cm.lap.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("roce.cm.lap.remoteqpneecn", "Remote QPN/EECN", remote_qpn_eecn, Hex(6));
        bits("roce.cm.lap.remoteresptout", "Remote CM Response Timeout",
            remote_cm_response_timeout, Dec);
        bits("roce.cm.lap.alt_locallid", "Alternate Local Port LID", alternate_local_port_lid, Dec);
        bits("roce.cm.lap.alt_remotelid", "Alternate Remote Port LID",
            alternate_remote_port_lid, Dec);
        bits("roce.cm.lap.alt_localgid", "Alternate Local Port GID",
            alternate_local_port_gid, Ipv6);
        bits("roce.cm.lap.alt_remotegid", "Alternate Remote Port GID",
            alternate_remote_port_gid, Ipv6);
        bits("roce.cm.lap.alt_flowlabel", "Alternate Flow Label", alternate_flow_label, Hex(5));
        bits("roce.cm.lap.alt_tfcclass", "Alternate Traffic Class",
            alternate_traffic_class, Hex(2));
        bits("roce.cm.lap.alt_hoplim", "Alternate Hop Limit", alternate_hop_limit, Dec);
        bits("roce.cm.lap.alt_pktrate", "Alternate Packet Rate", alternate_packet_rate, Dec);
        bits("roce.cm.lap.alt_sl", "Alternate SL", alternate_sl, Dec);
        bits("roce.cm.lap.alt_subnetlocal", "Alternate Subnet Local", alternate_subnet_local, Dec);
        bits("roce.cm.lap.alt_localacktout", "Alternate Local ACK Timeout",
            alternate_local_ack_timeout, Dec);
        bits("roce.cm.lap.private", "PrivateData", private_data, Bytes);
    }

    CM_APR: Apr {
        bits("roce.cm.apr.localcommid", "Local Communication ID", local_comm_id, Hex(8));
        bits("roce.cm.apr.remotecommid", "Remote Communication ID", remote_comm_id, Hex(8));
        bits("roce.cm.apr.infolen", "Additional Information Length",
            additional_information_length, Dec);
        bits("roce.cm.apr.status", "AR Status", ar_status, Dec);
        bits("roce.cm.apr.info", "Additional Information", additional_information, Bytes);
        bits("roce.cm.apr.private", "PrivateData", private_data, Bytes);
    }
}
