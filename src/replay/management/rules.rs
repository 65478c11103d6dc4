//! The rules that management datagrams are held against.

use crate::replay::rule::rules;

rules! {
    MAD_ENVELOPE = "mad-envelope",
        "A MAD is the 256 bytes of payload of a UD SEND ONLY; to and from queue pair 1 its Q_Key is 0x80010000.",
        "§13.4; C-01";
    MAD_HEADER = "mad-header",
        "A MAD has base version 1; one of the connection manager has class version 2, method Send and status 0.",
        "§13.4.3; C-01";
    CM_TRANSACTION = "cm-transaction",
        "MRA, REP, RTU and REJ carry the transaction ID of the REQ, DREP that of the DREQ, SIDR_REP that of the SIDR_REQ.",
        "§12.6; C-01";
    CM_IDS = "cm-ids",
        "A message names the connection by the communication IDs that both sides gave it.",
        "§12.6; C-01";
    CM_RETRY_CHANGED = "cm-retry-changed",
        "A message that is sent once more is the same as before.",
        "§12.6; C-01";
    CM_ORDER = "cm-order",
        "A REQ is answered by a REP or a REJ, not by both; only the passive side sends the REP, only the active side the RTU.",
        "§12.9; C-01";
    CM_DREQ_QPN = "cm-dreq-qpn",
        "A DREQ names the queue pair of its receiver.",
        "§12.6.10; C-01";
    SIDR_SERVICE = "sidr-service",
        "A SIDR_REP names the service that the SIDR_REQ asked for.",
        "§12.11; C-01";
}
