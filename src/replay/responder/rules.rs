//! The rules that responders must keep.

use crate::replay::Rule;
use crate::replay::rule::rules;

rules! {
    RESPONSE_MSN = "response-msn",
        "The MSN counts the requests that were completed, each once: it does not count packets, duplicates or refused requests.",
        "C9-148; §9.7.7";
    RESPONSE_KIND = "response-kind",
        "A READ is answered by READ responses, an ATOMIC by an ATOMIC acknowledgement, a SEND or WRITE by an acknowledgement.",
        "§9.7.5.1";
    RESPONSE_ORDER = "response-order",
        "Responses are sent in the order of their PSNs: an acknowledgement does not pass the responses of an earlier READ or ATOMIC.",
        "§9.5; §9.7.5.1";
    RESPONSE_PSN = "response-psn",
        "The responses to a READ have the PSNs from that of its request on, one after the other.",
        "§9.7.5.1";
    RESPONSE_UNSOLICITED = "response-unsolicited",
        "A READ response or ATOMIC acknowledgement answers a request that was sent.",
        "§9.7.5.1";
    RESPONSE_MISSING = "response-missing",
        "A request that asks for an acknowledgement, a READ and an ATOMIC are answered, and so are their duplicates.",
        "C9-105; §9.7.5.1";
    RESPONSE_PKEY = "response-pkey",
        "Responses carry the P_Key of the connection.",
        "§9.2";
    RESPONSE_PAD = "response-pad",
        "The pad count fills the payload up to a multiple of four bytes.",
        "§9.2";
    RESPONSE_BITS = "response-bits",
        "Responses have neither the AckReq nor the solicited event bit set.",
        "§9.2";
    RESPONSE_VERSION = "response-version",
        "The transport header version is 0.",
        "§9.2";
    RESPONSE_SYNDROME = "response-syndrome",
        "The syndrome is an acknowledgement, an RNR NAK, or a NAK with an assigned code; a READ response and an ATOMIC acknowledgement acknowledge.",
        "§9.7.5.2";
    READ_OPCODE = "read-response-opcode",
        "The responses to a READ are FIRST, MIDDLE …, LAST, or ONLY, by their place in the answer to the request that they answer.",
        "§9.4.4; §9.7.5.1";
    READ_LENGTH = "read-response-length",
        "READ responses but the last have a payload of the path MTU; together they have the length that was asked for.",
        "C9-92; §9.4.4";
    READ_DATA = "read-data",
        "A READ returns what the memory holds.",
        "o9-30; §9.5";
    ATOMIC_ORIGINAL = "atomic-original",
        "An ATOMIC returns the value from before the operation, which is executed once.",
        "§9.4.5";
    DUPLICATE_ATOMIC = "duplicate-atomic",
        "The duplicate of an ATOMIC returns the saved value and is not executed.",
        "C9-105; §9.7.5.1";
    ACK_NOT_RECEIVED = "ack-not-received",
        "An acknowledgement names a PSN that was received, and so were all before it.",
        "§9.7.5.1";
    NAK_PSN = "nak-psn",
        "A NAK names the expected PSN: that of the packet that is missing or that was refused.",
        "§9.7.5.1; §9.7.5.2";
    NAK_REPEATED = "nak-repeated",
        "For one gap there is one sequence NAK until the expected packet arrives; for one packet one RNR NAK.",
        "§9.7.4; §9.7.5.2";
    NAK_AFTER_RNR = "nak-after-rnr",
        "Packets behind one that found no receive are not NAKed: the RNR NAK tells the requester to come back.",
        "§9.7.5.2.8";
    NAK_MISSING = "nak-missing",
        "A packet behind a gap is answered by a sequence NAK.",
        "§9.7.4; §9.7.5.2";
    NAK_UNFOUNDED = "nak-unfounded",
        "A sequence NAK follows from a gap, an RNR NAK from a request that takes a receive.",
        "§9.7.4; §9.7.5.2.8";
    NAK_CODE = "nak-code",
        "The code of a NAK tells what is wrong: invalid request (0x61), remote access (0x62), remote operation (0x63).",
        "C9-92; §9.7.5.2; §9.9.3";
    RNR_WITH_CREDITS = "rnr-with-credits",
        "As many requests as credits were advertised for find a receive.",
        "§9.7.7";
    ACCESS_ACCEPTED = "access-accepted",
        "What a key does not allow is refused every time.",
        "C9-88; §9.7.4";
    ACCESS_REFUSED = "access-refused",
        "What a key allows is not refused.",
        "C9-88; §9.7.4";
    ZERO_LENGTH_KEY = "zero-length-key",
        "The key of a READ or WRITE of no bytes is not checked.",
        "C9-88; §9.7.4";
    INVALID_ACCEPTED = "invalid-request-accepted",
        "A request with a wrong opcode order, length, total or alignment is refused as invalid.",
        "C9-92; C9-94; §9.7.4";
    AFTER_FATAL_NAK = "after-fatal-nak",
        "After a NAK that ends the connection, requests are not answered.",
        "§9.9.3";
}

/// Whether a rule is about what memory holds, which requests of any connection may have written.
pub(super) fn is_about_memory(rule: &Rule) -> bool {
    [&READ_DATA, &ATOMIC_ORIGINAL].iter().any(|known| known.id == rule.id)
}

/// Whether a packet that the capture misses may be why a rule seems broken. What is wrong with a
/// packet by itself is wrong whatever is missing.
pub(in crate::replay) fn may_come_from_missing(rule: &Rule) -> bool {
    let by_itself = [
        &RESPONSE_PKEY,
        &RESPONSE_PAD,
        &RESPONSE_BITS,
        &RESPONSE_VERSION,
        &RESPONSE_SYNDROME,
        &ZERO_LENGTH_KEY,
    ];
    !by_itself.iter().any(|known| known.id == rule.id)
}
