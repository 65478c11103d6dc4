//! Fields of the messages that resolve a service ID.

use super::rdma_cm;
use crate::decode::field::{Field, Show, Value};
use crate::wire::cm::{SidrRep, SidrReq};

pub(in crate::decode) static CM_SIDR_REQ: [Field; 4] = [
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

pub(in crate::decode) static CM_SIDR_REP: [Field; 10] = [
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
