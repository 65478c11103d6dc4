//! Fields of the messages that resolve a service ID.

use super::rdma_cm;
use crate::decode::field::Value;
use crate::wire::cm::{SidrRep, SidrReq};

fields! {
    CM_SIDR_REQ: SidrReq {
        bits("roce.cm.sidr_req.requestid", "Request ID", request_id, Hex(8));
        bits("roce.cm.sidr_req.pkey", "Partition Key", partition_key, Hex(4));
        bits("roce.cm.sidr_req.serviceid", "ServiceID", service_id, Hex(16));
        computed("roce.cm.sidr_req.private", "PrivateData", Bytes, |_, layer| {
            let private = SidrReq::LAYOUT.private_data.slice(layer)?;
            rdma_cm(SidrReq::LAYOUT.service_id, layer).is_none().then_some(Value::Bytes(private))
        });
    }

    CM_SIDR_REP: SidrRep {
        bits("roce.cm.sidr_rep.requestid", "Request ID", request_id, Hex(8));
        bits("roce.cm.sidr_rep.status", "Status", status, Dec);
        bits("roce.cm.sidr_rep.infolen", "Additional Information Length",
            additional_information_length, Dec);
        bits("roce.cm.sidr_rep.vendorid_h", "Vendor ID (high)", vendor_id_h, Hex(4));
        bits("roce.cm.sidr_rep.qpn", "QPN", qpn, Hex(6));
        bits("roce.cm.sidr_rep.vendorid_l", "Vendor ID (low)", vendor_id_l, Hex(2));
        bits("roce.cm.sidr_rep.serviceid", "ServiceID", service_id, Hex(16));
        bits("roce.cm.sidr_rep.qkey", "Q_Key", q_key, Hex(8));
        bits("roce.cm.sidr_rep.info", "Additional Information", additional_information, Bytes);
        bits("roce.cm.sidr_rep.private", "PrivateData", private_data, Bytes);
    }
}
