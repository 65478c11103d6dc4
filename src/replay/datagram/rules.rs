//! The rules that datagrams and congestion notifications are held against.

use crate::replay::rule::rules;

rules! {
    QKEY = "datagram-qkey",
        "A datagram carries the Q_Key that the SIDR_REP named for its queue pair; to and from queue pair 1 it is 0x80010000.",
        "§9.6.1.4.1; §10.2.5; P-15";
    MULTICAST_QP = "multicast-qp",
        "A datagram to a multicast address is for queue pair 0xffffff, and no other datagram is.",
        "§10.5; P-15";
    CNP_FORMAT = "cnp-format",
        "A congestion notification has BECN 1, no other flag, PSN 0, and 16 zero bytes of payload.",
        "A17";
}
