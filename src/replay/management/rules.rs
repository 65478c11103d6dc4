//! The rules that management datagrams are held against.

use crate::replay::Rule;

/// Every rule of this part.
pub const ALL: &[&Rule] = &[
    &MAD_ENVELOPE,
    &MAD_HEADER,
    &CM_TRANSACTION,
    &CM_IDS,
    &CM_RETRY_CHANGED,
    &CM_ORDER,
    &CM_DREQ_QPN,
    &SIDR_SERVICE,
];

/// The packet around a MAD.
pub const MAD_ENVELOPE: Rule = Rule {
    id: "mad-envelope",
    text: "A MAD is the 256 bytes of payload of a UD SEND ONLY; to and from queue pair 1 its Q_Key is 0x80010000.",
    citation: "§13.4; C-01",
};

/// The header of a CM MAD.
pub const MAD_HEADER: Rule = Rule {
    id: "mad-header",
    text: "A MAD has base version 1; one of the connection manager has class version 2, method Send and status 0.",
    citation: "§13.4.3; C-01",
};

/// Transaction IDs.
pub const CM_TRANSACTION: Rule = Rule {
    id: "cm-transaction",
    text: "MRA, REP, RTU and REJ carry the transaction ID of the REQ, DREP that of the DREQ, SIDR_REP that of the SIDR_REQ.",
    citation: "§12.6; C-01",
};

/// Communication IDs.
pub const CM_IDS: Rule = Rule {
    id: "cm-ids",
    text: "A message names the connection by the communication IDs that both sides gave it.",
    citation: "§12.6; C-01",
};

/// Retries.
pub const CM_RETRY_CHANGED: Rule = Rule {
    id: "cm-retry-changed",
    text: "A message that is sent once more is the same as before.",
    citation: "§12.6; C-01",
};

/// The order of messages.
pub const CM_ORDER: Rule = Rule {
    id: "cm-order",
    text: "A REQ is answered by a REP or a REJ, not by both; only the passive side sends the REP, only the active side the RTU.",
    citation: "§12.9; C-01",
};

/// The queue pair in a DREQ.
pub const CM_DREQ_QPN: Rule = Rule {
    id: "cm-dreq-qpn",
    text: "A DREQ names the queue pair of its receiver.",
    citation: "§12.6.10; C-01",
};

/// The service in a SIDR_REP.
pub const SIDR_SERVICE: Rule = Rule {
    id: "sidr-service",
    text: "A SIDR_REP names the service that the SIDR_REQ asked for.",
    citation: "§12.11; C-01",
};
