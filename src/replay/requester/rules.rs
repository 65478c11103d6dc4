//! The rules that request packets of the reliable services are held against.

use crate::replay::Rule;
use crate::replay::rule::rules;

rules! {
    HEADER_VERSION = "header-version",
        "The transport header version of every packet is 0.",
        "§9.2; W-51";
    PAD = "request-pad",
        "The pad count fills the payload up to four bytes, and pad bytes are zero.",
        "§9.2; W-50";
    PAYLOAD_LENGTH = "request-payload-length",
        "FIRST and MIDDLE carry exactly the path MTU, LAST 1 byte to the path MTU, ONLY at most the path MTU, and requests without data nothing.",
        "C9-92; P-09";
    DMA_LENGTH_LIMIT = "dma-length-limit",
        "A message is at most 2^31 bytes long.",
        "C9-94";
    SOLICITED_EVENT = "solicited-event",
        "Only the last packet of a SEND or of a WRITE with immediate data may ask for a solicited event.",
        "§9.2";
    PKEY = "request-pkey",
        "All requests of a queue pair carry its P_Key.",
        "§9.6.1.4.1";
    REQUEST_QP = "request-qp",
        "All requests of a queue pair go to the queue pair that it is connected to.",
        "§9.2; §10.2";
    PSN_ORDER = "request-psn-order",
        "Each request begins at the PSN behind the one before; a READ takes one PSN for each packet of its response.",
        "§9.7.3.1; P-01";
    STARTING_PSN = "starting-psn",
        "The first request of a connection has the starting PSN that the peer named in its REQ or REP.",
        "C-01";
    OPCODE_SEQUENCE = "request-opcode-sequence",
        "A message is FIRST, MIDDLE…, LAST of one operation, or ONLY, and no other request stands inside it.",
        "§9.7.4.1; P-09";
    WRITE_DMA_LENGTH = "write-dma-length",
        "The payloads of a WRITE add up to the DMA length of its RETH.",
        "C9-92; P-09";
    RETRANSMISSION_CHANGED = "retransmission-changed",
        "A retransmitted packet has the opcode, headers and payload that it had before.",
        "§9.7.5; P-02";
    READ_RETRY_RETH = "read-retry-reth",
        "A retried READ asks for the part from its PSN on: address advanced and length reduced by the responses before it, same R_Key.",
        "§9.7.5.1.1; P-04";
    RETRANSMISSION_CAUSE = "retransmission-cause",
        "A requester retransmits what is not acknowledged, after a NAK, an RNR NAK, a missing response or a timeout.",
        "C9-140; §9.7.6.1.3";
    RETRANSMISSION_START = "retransmission-start",
        "A requester goes back to the PSN of the NAK, or to its oldest unacknowledged PSN, and goes on from there in order.",
        "§9.7.5.1.1; §9.7.6.1.3";
    RNR_TIMER = "rnr-timer",
        "After an RNR NAK the requester waits at least as long as its timer says.",
        "§9.7.5.2.8; P-06";
    RETRY_COUNT = "retry-count",
        "Without progress a requester goes back at most as often as the retry count says.",
        "§9.9.2; P-07";
    RNR_RETRY_COUNT = "rnr-retry-count",
        "Without progress a requester retries after RNR NAKs at most as often as the RNR retry count says; 7 means for ever.",
        "§9.7.5.2.8; P-06";
    PSN_WINDOW = "psn-window",
        "At most 2^23 PSNs are in flight.",
        "§9.7.3.1";
    READS_IN_FLIGHT = "reads-in-flight",
        "At most as many READs and ATOMICs are in flight as the connection manager agreed.",
        "§9.4; C-01";
    CREDITS = "credits",
        "At most one message that takes a receive goes beyond the limit that the responder advertises.",
        "§9.7.7.2; P-13";
    AFTER_FATAL_NAK = "request-after-fatal-nak",
        "After a NAK other than a sequence error the queue pair is in error and sends no request.",
        "§9.9.2; P-08";
    UNRELIABLE_REPEATED = "unreliable-repeated",
        "An unreliable connection never retransmits.",
        "§9.8.2.2; P-14";
}

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
