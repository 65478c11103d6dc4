//! The rules that datagrams and congestion notifications are held against.

use crate::replay::Rule;

/// Every rule of this part.
pub const ALL: &[&Rule] = &[&QKEY, &MULTICAST_QP, &CNP_FORMAT];

/// Q_Keys.
pub const QKEY: Rule = Rule {
    id: "datagram-qkey",
    text: "A datagram carries the Q_Key that the SIDR_REP named for its queue pair; to and from queue pair 1 it is 0x80010000.",
    citation: "§9.6.1.4.1; §10.2.5; P-15",
};

/// Multicast.
pub const MULTICAST_QP: Rule = Rule {
    id: "multicast-qp",
    text: "A datagram to a multicast address is for queue pair 0xffffff, and no other datagram is.",
    citation: "§10.5; P-15",
};

/// CNPs.
pub const CNP_FORMAT: Rule = Rule {
    id: "cnp-format",
    text: "A congestion notification has BECN 1, no other flag, PSN 0, and 16 zero bytes of payload.",
    citation: "A17",
};
