//! The rules that request packets of the reliable services are held against.

use crate::replay::Rule;

/// Every rule of this part.
pub const ALL: &[&Rule] = &[
    &HEADER_VERSION,
    &PAD,
    &PAYLOAD_LENGTH,
    &DMA_LENGTH_LIMIT,
    &SOLICITED_EVENT,
    &PKEY,
    &REQUEST_QP,
    &PSN_ORDER,
    &STARTING_PSN,
    &OPCODE_SEQUENCE,
    &WRITE_DMA_LENGTH,
    &RETRANSMISSION_CHANGED,
    &READ_RETRY_RETH,
    &RETRANSMISSION_CAUSE,
    &RETRANSMISSION_START,
    &RNR_TIMER,
    &RETRY_COUNT,
    &RNR_RETRY_COUNT,
    &PSN_WINDOW,
    &READS_IN_FLIGHT,
    &CREDITS,
    &AFTER_FATAL_NAK,
    &UNRELIABLE_REPEATED,
];

/// Whether a rule is about what the responses tell, so that responses of another connection may be
/// why it seems broken.
pub(in crate::replay) fn needs_responses(rule: &Rule) -> bool {
    let needing = [
        &RETRANSMISSION_CAUSE,
        &RETRANSMISSION_START,
        &RNR_TIMER,
        &RETRY_COUNT,
        &RNR_RETRY_COUNT,
        &PSN_WINDOW,
        &READS_IN_FLIGHT,
        &CREDITS,
        &AFTER_FATAL_NAK,
    ];
    needing.iter().any(|known| known.id == rule.id)
}

/// TVer.
pub const HEADER_VERSION: Rule = Rule {
    id: "header-version",
    text: "The transport header version of every packet is 0.",
    citation: "§9.2; W-51",
};

/// Pad count and pad bytes.
pub const PAD: Rule = Rule {
    id: "request-pad",
    text: "The pad count fills the payload up to four bytes, and pad bytes are zero.",
    citation: "§9.2; W-50",
};

/// Payload by position.
pub const PAYLOAD_LENGTH: Rule = Rule {
    id: "request-payload-length",
    text: "FIRST and MIDDLE carry exactly the path MTU, LAST 1 byte to the path MTU, ONLY at most the path MTU, and \
           requests without data nothing.",
    citation: "C9-92; P-09",
};

/// The longest message.
pub const DMA_LENGTH_LIMIT: Rule = Rule {
    id: "dma-length-limit",
    text: "A message is at most 2^31 bytes long.",
    citation: "C9-94",
};

/// SE.
pub const SOLICITED_EVENT: Rule = Rule {
    id: "solicited-event",
    text: "Only the last packet of a SEND or of a WRITE with immediate data may ask for a solicited event.",
    citation: "§9.2",
};

/// P_Key.
pub const PKEY: Rule = Rule {
    id: "request-pkey",
    text: "All requests of a queue pair carry its P_Key.",
    citation: "§9.6.1.4.1",
};

/// The destination.
pub const REQUEST_QP: Rule = Rule {
    id: "request-qp",
    text: "All requests of a queue pair go to the queue pair that it is connected to.",
    citation: "§9.2; §10.2",
};

/// PSN order.
pub const PSN_ORDER: Rule = Rule {
    id: "request-psn-order",
    text: "Each request begins at the PSN behind the one before; a READ takes one PSN for each packet of its response.",
    citation: "§9.7.3.1; P-01",
};

/// The first PSN.
pub const STARTING_PSN: Rule = Rule {
    id: "starting-psn",
    text: "The first request of a connection has the starting PSN that the peer named in its REQ or REP.",
    citation: "C-01",
};

/// Opcode sequence.
pub const OPCODE_SEQUENCE: Rule = Rule {
    id: "request-opcode-sequence",
    text: "A message is FIRST, MIDDLE…, LAST of one operation, or ONLY, and no other request stands inside it.",
    citation: "§9.7.4.1; P-09",
};

/// DMA length of WRITEs.
pub const WRITE_DMA_LENGTH: Rule = Rule {
    id: "write-dma-length",
    text: "The payloads of a WRITE add up to the DMA length of its RETH.",
    citation: "C9-92; P-09",
};

/// A retransmission is the same packet.
pub const RETRANSMISSION_CHANGED: Rule = Rule {
    id: "retransmission-changed",
    text: "A retransmitted packet has the opcode, headers and payload that it had before.",
    citation: "§9.7.5; P-02",
};

/// A retried READ.
pub const READ_RETRY_RETH: Rule = Rule {
    id: "read-retry-reth",
    text: "A retried READ asks for the part from its PSN on: address advanced and length reduced by the responses before \
           it, same R_Key.",
    citation: "§9.7.5.1.1; P-04",
};

/// Causes of retransmissions.
pub const RETRANSMISSION_CAUSE: Rule = Rule {
    id: "retransmission-cause",
    text: "A requester retransmits what is not acknowledged, after a NAK, an RNR NAK, a missing response or a timeout.",
    citation: "C9-140; §9.7.6.1.3",
};

/// Start of a retransmission.
pub const RETRANSMISSION_START: Rule = Rule {
    id: "retransmission-start",
    text: "A requester goes back to the PSN of the NAK, or to its oldest unacknowledged PSN, and goes on from there in order.",
    citation: "§9.7.5.1.1; §9.7.6.1.3",
};

/// The RNR timer.
pub const RNR_TIMER: Rule = Rule {
    id: "rnr-timer",
    text: "After an RNR NAK the requester waits at least as long as its timer says.",
    citation: "§9.7.5.2.8; P-06",
};

/// retry_cnt.
pub const RETRY_COUNT: Rule = Rule {
    id: "retry-count",
    text: "Without progress a requester goes back at most as often as the retry count says.",
    citation: "§9.9.2; P-07",
};

/// rnr_retry.
pub const RNR_RETRY_COUNT: Rule = Rule {
    id: "rnr-retry-count",
    text: "Without progress a requester retries after RNR NAKs at most as often as the RNR retry count says; 7 means for ever.",
    citation: "§9.7.5.2.8; P-06",
};

/// The half window.
pub const PSN_WINDOW: Rule =
    Rule { id: "psn-window", text: "At most 2^23 PSNs are in flight.", citation: "§9.7.3.1" };

/// Initiator depth.
pub const READS_IN_FLIGHT: Rule = Rule {
    id: "reads-in-flight",
    text: "At most as many READs and ATOMICs are in flight as the connection manager agreed.",
    citation: "§9.4; C-01",
};

/// End-to-end credits.
pub const CREDITS: Rule = Rule {
    id: "credits",
    text: "At most one message that takes a receive goes beyond the limit that the responder advertises.",
    citation: "§9.7.7.2; P-13",
};

/// After a refusal.
pub const AFTER_FATAL_NAK: Rule = Rule {
    id: "request-after-fatal-nak",
    text: "After a NAK other than a sequence error the queue pair is in error and sends no request.",
    citation: "§9.9.2; P-08",
};

/// UC.
pub const UNRELIABLE_REPEATED: Rule = Rule {
    id: "unreliable-repeated",
    text: "An unreliable connection never retransmits.",
    citation: "§9.8.2.2; P-14",
};
