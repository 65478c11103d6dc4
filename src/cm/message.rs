//! Whole MADs: header and message.

use super::connection::Connection;
use crate::wire::cm::{
    Apr, AprRepr, CommId, DrepRepr, Dreq, DreqRepr, Lap, MESSAGE_LEN, MraRepr, RejRepr, Rep, Req,
    RtuRepr, SidrRepRepr, SidrReq,
};
use crate::wire::mad::{AttributeId, MAD_LEN, MadHeader, MadHeaderRepr, MgmtClass};
use crate::wire::{Bits, QKey, Qpn};

/// The version of the class "communication management".
pub(super) const CLASS_VERSION: u8 = 2;

/// The version of the MAD format.
pub(super) const BASE_VERSION: u8 = 1;

/// The method of all CM messages: Send.
pub(super) const SEND: u32 = 3;

/// Upper half of a transaction id, where Linux puts the number of its MAD agent. It means nothing.
const AGENT: u64 = 2 << 32;

/// Reason of a REJ (§12.6.7.2); those that this manager sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RejectReason {
    /// The sender waited too long, or will wait no longer.
    Timeout = 4,
    /// The connection is not known.
    InvalidCommId = 6,
    /// Nothing listens at the service ID.
    InvalidServiceId = 8,
    /// The QP is, as far as this side knows, connected.
    StaleConnection = 10,
    /// The primary path does not end here.
    InvalidGid = 12,
    /// The path MTU does not exist.
    InvalidMtu = 26,
    /// The program does not want the connection.
    Consumer = 28,
    /// The program does not want the vendor's options.
    VendorOption = 35,
}

/// Message that a REJ rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Rejected {
    Req = 0,
    Rep = 1,
    Other = 2,
}

/// Message that an MRA answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mraed {
    Req = 0,
    Rep = 1,
}

/// The transaction that a comm id begins, as Linux on a little-endian host makes it.
pub(super) fn transaction(local_id: CommId) -> u64 {
    // Rule: C-01.3.
    AGENT | u64::from(local_id.0.swap_bytes())
}

/// A MAD with this message.
pub(super) fn mad(
    transaction_id: u64,
    attribute: AttributeId,
    attribute_modifier: u32,
    message: &[u8; MESSAGE_LEN],
) -> [u8; MAD_LEN] {
    let header = MadHeaderRepr {
        base_version: BASE_VERSION,
        class: MgmtClass::CM,
        class_version: CLASS_VERSION,
        response: false,
        method: Bits::low(SEND),
        status: 0,
        class_specific: 0,
        transaction_id,
        attribute,
        attribute_modifier,
    }
    .emit();
    let mut bytes = [0; MAD_LEN];
    let (front, rest) = bytes.split_at_mut(MAD_LEN - MESSAGE_LEN);
    front.copy_from_slice(header.as_bytes());
    rest.copy_from_slice(message);
    bytes
}

/// Details of a REJ beside its reason: additional information, and private data.
#[derive(Clone, Copy, Debug)]
pub(super) struct RejectDetail {
    pub(super) info: [u8; 72],
    pub(super) info_len: u32,
    pub(super) private_data: [u8; 148],
}

impl RejectDetail {
    pub(super) const NONE: Self = Self { info: [0; 72], info_len: 0, private_data: [0; 148] };

    /// Creates details with these bytes as additional information.
    pub(super) fn info(bytes: &[u8]) -> Self {
        let mut info = [0; 72];
        info.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let info_len = u32::try_from(bytes.len().min(72)).unwrap_or_default();
        Self { info, info_len, ..Self::NONE }
    }
}

/// A REJ.
pub(super) fn rej(
    transaction_id: u64,
    (local, remote): (CommId, CommId),
    rejected: Rejected,
    reason: u16,
    detail: &RejectDetail,
) -> [u8; MAD_LEN] {
    let message = RejRepr {
        local_comm_id: local,
        remote_comm_id: remote,
        message_rejected: Bits::low(rejected as u32),
        rejected_info_length: Bits::low(detail.info_len),
        reason,
        ari: detail.info,
        private_data: detail.private_data,
    };
    mad(transaction_id, AttributeId::CM_REJ, 0, message.emit().as_bytes())
}

/// The REJ of a REQ for which there is no connection: its sender alone has an id.
pub(super) fn rej_of_req(
    header: &MadHeader,
    req: &Req,
    reason: RejectReason,
    detail: &RejectDetail,
) -> [u8; MAD_LEN] {
    let ids = (CommId(0), req.local_comm_id());
    rej(header.transaction_id(), ids, Rejected::Req, reason as u16, detail)
}

/// The REJ of a REP for which there is no connection.
pub(super) fn rej_of_rep(header: &MadHeader, rep: &Rep, reason: RejectReason) -> [u8; MAD_LEN] {
    let ids = (rep.remote_comm_id(), rep.local_comm_id());
    rej(header.transaction_id(), ids, Rejected::Rep, reason as u16, &RejectDetail::NONE)
}

/// An MRA.
pub(super) fn mra(connection: &Connection, mraed: Mraed, timeout: u8) -> [u8; MAD_LEN] {
    let message = MraRepr {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id_or_zero(),
        message_mraed: Bits::low(mraed as u32),
        service_timeout: Bits::low(u32::from(timeout)),
        private_data: [0; 222],
    };
    mad(connection.transaction, AttributeId::CM_MRA, 0, message.emit().as_bytes())
}

/// An RTU.
pub(super) fn rtu(connection: &Connection) -> [u8; MAD_LEN] {
    let message = RtuRepr {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id_or_zero(),
        private_data: [0; 224],
    };
    mad(connection.transaction, AttributeId::CM_RTU, 0, message.emit().as_bytes())
}

/// A DREQ, which begins a transaction of its own.
pub(super) fn dreq(connection: &Connection) -> [u8; MAD_LEN] {
    let message = DreqRepr {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id_or_zero(),
        remote_qpn_eecn: connection.remote_qpn,
        private_data: [0; 220],
    };
    let transaction = transaction(connection.local_id);
    mad(transaction, AttributeId::CM_DREQ, 0, message.emit().as_bytes())
}

/// A DREP in a transaction.
pub(super) fn drep(transaction: u64, (local, remote): (CommId, CommId)) -> [u8; MAD_LEN] {
    let message = DrepRepr { local_comm_id: local, remote_comm_id: remote, private_data: [0; 224] };
    mad(transaction, AttributeId::CM_DREP, 0, message.emit().as_bytes())
}

/// The DREP to a DREQ, whatever connection it names.
pub(super) fn drep_to(header: &MadHeader, dreq: &Dreq) -> [u8; MAD_LEN] {
    drep(header.transaction_id(), (dreq.remote_comm_id(), dreq.local_comm_id()))
}

/// The status of a SIDR_REP (§12.11.2.2); those that this manager says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SidrStatus {
    Valid = 0,
    UnsupportedService = 1,
    Rejected = 2,
}

/// The SIDR_REP with a status other than "valid", or one with a QP and its Q_Key.
pub(super) fn sidr_rep(
    transaction_id: u64,
    request: &SidrReq,
    status: SidrStatus,
    (qpn, q_key): (Qpn, QKey),
    private_data: [u8; 136],
) -> [u8; MAD_LEN] {
    let message = SidrRepRepr {
        request_id: request.request_id(),
        status: status as u8,
        additional_information_length: 0,
        vendor_id_h: 0,
        qpn,
        vendor_id_l: 0,
        service_id: request.service_id(),
        q_key,
        additional_information: [0; 72],
        private_data,
    };
    mad(transaction_id, AttributeId::CM_SIDR_REP, 0, message.emit().as_bytes())
}

/// "Unsupported" as the status of an APR.
const APR_UNSUPPORTED: u8 = 2;

/// The APR that refuses a LAP: there are no alternate paths on RoCE.
pub(super) fn apr_to(header: &MadHeader, lap: &Lap) -> [u8; MAD_LEN] {
    let message: Apr = AprRepr {
        local_comm_id: lap.remote_comm_id(),
        remote_comm_id: lap.local_comm_id(),
        additional_information_length: 0,
        ar_status: APR_UNSUPPORTED,
        additional_information: [0; 72],
        private_data: [0; 148],
    }
    .emit();
    mad(header.transaction_id(), AttributeId::CM_APR, 0, message.as_bytes())
}
