//! Fields of a REQ: ConnectRequest.

use super::{gid_if_ipv4, gid_unless_ipv4, rdma_cm};
use crate::decode::field::Value;
use crate::wire::cm::Req;

fields! {
    CM_REQ: Req {
        bits("infiniband.cm.req", "Local Communication ID", local_comm_id, Hex(8));
        hidden bits("infiniband.reserved", "Reserved", reserved0..=vendor_id, Bytes);
        bits("roce.cm.req.vendorid", "Vendor ID", vendor_id, Hex(6));
        bits("infiniband.cm.req.serviceid", "ServiceID", service_id, Hex(16));
        computed("infiniband.cm.req.serviceid.prefix", "Prefix", Bytes, |_, layer| {
            rdma_cm(Req::LAYOUT.service_id, layer)?;
            Req::LAYOUT.service_id.part(0, 40).slice(layer).map(Value::Bytes)
        });
        computed("infiniband.cm.req.serviceid.protocol", "Protocol", Hex(2), |_, layer| {
            rdma_cm(Req::LAYOUT.service_id, layer)?;
            Req::LAYOUT.service_id.part(40, 8).read(layer).map(Value::Uint)
        });
        computed("infiniband.cm.req.serviceid.dport", "Destination Port", Hex(4), |_, layer| {
            rdma_cm(Req::LAYOUT.service_id, layer).map(|port| Value::Uint(port.into()))
        });
        bits("infiniband.cm.req.localcaguid", "Local CA GUID", local_ca_guid, Hex(16));
        hidden bits("infiniband.reserved", "Reserved", reserved1..=selective_repeat, Bytes);
        computed("roce.cm.req.selective_repeat", "Selective repeat", Dec, |_, layer| {
            Req::LAYOUT.selective_repeat.read(layer).filter(|set| *set != 0).map(Value::Uint)
        });
        bits("infiniband.cm.req.localqkey", "Local Q_Key", local_q_key, Hex(8));
        bits("infiniband.cm.req.localqpn", "Local QPN", local_qpn, Hex(6));
        bits("infiniband.cm.req.responderres", "Responder Resources", responder_resources, Hex(2));
        bits("infiniband.cm.req.localeecn", "Local EECN", local_eecn, Hex(6));
        bits("infiniband.cm.req.initdepth", "Initiator Depth", initiator_depth, Hex(2));
        bits("infiniband.cm.req.remoteeecn", "Remote EECN", remote_eecn, Hex(6));
        bits("infiniband.cm.req.remoteresptout", "Remote CM Response Timeout",
            remote_cm_response_timeout, Hex(2));
        bits("infiniband.cm.req.transpsvctype", "Transport Service Type",
            transport_service_type, Hex(2));
        bits("infiniband.cm.req.e2eflowctrl", "End-to-End Flow Control", flow_control, Hex(2));
        bits("infiniband.cm.req.startpsn", "Starting PSN", starting_psn, Hex(6));
        bits("infiniband.cm.req.localresptout", "Local CM Response Timeout",
            local_cm_response_timeout, Hex(2));
        bits("infiniband.cm.req.retrcount", "Retry Count", retry_count, Hex(2));
        bits("infiniband.cm.req.pkey", "Partition Key", partition_key, Hex(4));
        bits("infiniband.cm.req.pppmtu", "Path Packet Payload MTU", path_mtu, Hex(2));
        bits("infiniband.cm.req.rdcexist", "RDC Exists", rdc_exists, Hex(2));
        bits("infiniband.cm.req.rnrretrcount", "RNR Retry Count", rnr_retry_count, Hex(2));
        bits("infiniband.cm.req.maxcmretr", "Max CM Retries", max_cm_retries, Hex(2));
        bits("infiniband.cm.req.srq", "SRQ", srq, Hex(2));
        bits("infiniband.cm.req.ext_transport", "Extended Transport",
            extended_transport_type, Hex(2));
        bits("infiniband.cm.req.prim_locallid", "Primary Local Port LID",
            primary_local_port_lid, Dec);
        bits("infiniband.cm.req.prim_remotelid", "Primary Remote Port LID",
            primary_remote_port_lid, Dec);
        computed("infiniband.cm.req.prim_localgid",
            "Primary Local Port GID", Ipv6, |context, layer| {
                gid_unless_ipv4(context, Req::LAYOUT.primary_local_port_gid.slice(layer)?)
            });
        computed("infiniband.cm.req.prim_localgid_ipv4",
            "Primary Local Port GID", Ipv4, |context, layer| {
                gid_if_ipv4(context, Req::LAYOUT.primary_local_port_gid.slice(layer)?)
            });
        computed("infiniband.cm.req.prim_remotegid",
            "Primary Remote Port GID", Ipv6, |context, layer| {
                gid_unless_ipv4(context, Req::LAYOUT.primary_remote_port_gid.slice(layer)?)
            });
        computed("infiniband.cm.req.prim_remotegid_ipv4",
            "Primary Remote Port GID", Ipv4, |context, layer| {
                gid_if_ipv4(context, Req::LAYOUT.primary_remote_port_gid.slice(layer)?)
            });
        bits("infiniband.cm.req.prim_flowlabel", "Primary Flow Label", primary_flow_label, Hex(8));
        bits("infiniband.cm.req.prim_reserved0", "Reserved", reserved2, Hex(8));
        bits("infiniband.cm.req.prim_pktrate", "Primary Packet Rate", primary_packet_rate, Hex(8));
        bits("infiniband.cm.req.prim_tfcclass", "Primary Traffic Class",
            primary_traffic_class, Hex(2));
        bits("infiniband.cm.req.prim_hoplim", "Primary Hop Limit", primary_hop_limit, Hex(2));
        bits("infiniband.cm.req.prim_sl", "Primary SL", primary_sl, Hex(2));
        bits("infiniband.cm.req.prim_subnetlocal", "Primary Subnet Local",
            primary_subnet_local, Hex(2));
        bits("infiniband.cm.req.prim_reserved1", "Reserved", reserved3, Hex(2));
        bits("infiniband.cm.req.prim_localacktout", "Primary Local ACK Timeout",
            primary_local_ack_timeout, Hex(2));
        bits("infiniband.cm.req.prim_reserved2", "Reserved", reserved4, Hex(2));
        bits("infiniband.cm.req.alt_locallid", "Alternate Local Port LID",
            alternate_local_port_lid, Dec);
        bits("infiniband.cm.req.alt_remotelid", "Alternate Remote Port LID",
            alternate_remote_port_lid, Dec);
        bits("infiniband.cm.req.alt_localgid", "Alternate Local Port GID",
            alternate_local_port_gid, Bytes);
        bits("infiniband.cm.req.alt_remotegid", "Alternate Remote Port GID",
            alternate_remote_port_gid, Bytes);
        bits("infiniband.cm.req.alt_flowlabel", "Alternate Flow Label",
            alternate_flow_label, Hex(8));
        bits("infiniband.cm.req.alt_reserved0", "Reserved", reserved5, Hex(8));
        bits("infiniband.cm.req.alt_pktrate", "Alternate Packet Rate",
            alternate_packet_rate, Hex(8));
        bits("infiniband.cm.req.alt_tfcclass", "Alternate Traffic Class",
            alternate_traffic_class, Hex(2));
        bits("infiniband.cm.req.alt_hoplim", "Alternate Hop Limit", alternate_hop_limit, Hex(2));
        bits("infiniband.cm.req.alt_sl", "Alternate SL", alternate_sl, Hex(2));
        bits("infiniband.cm.req.alt_subnetlocal", "Alternate Subnet Local",
            alternate_subnet_local, Hex(2));
        bits("infiniband.cm.req.alt_reserved1", "Reserved", reserved6, Hex(2));
        bits("infiniband.cm.req.alt_localacktout", "Alternate Local ACK Timeout",
            alternate_local_ack_timeout, Hex(2));
        hidden bits("infiniband.cm.req.alt_reserved1", "Reserved",
            sap_supported..=reserved7, Hex(2));
        bits("roce.cm.req.sap", "SAP Supported", sap_supported, Dec);
        computed("infiniband.cm.req.private", "PrivateData", Bytes, |_, layer| {
            let private = Req::LAYOUT.private_data.slice(layer)?;
            rdma_cm(Req::LAYOUT.service_id, layer).is_none().then_some(Value::Bytes(private))
        });
    }
}
