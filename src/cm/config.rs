//! Configuration of a manager.

use core::ops::RangeInclusive;
use core::time::Duration;

use super::limits::Limits;
use crate::wire::QKey;

/// The Q_Key of datagrams in the UDP port space: `RDMA_UDP_QKEY`.
pub const UDP_Q_KEY: QKey = QKey::new(0x0123_4567);

/// Schedule by which unanswered messages are retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retransmission {
    /// Linux's schedule: a constant interval, which the messages announce.
    Constant,
    /// First after this time, then after twice the time before, up to Linux's interval. The manager
    /// gives up when Linux would. A sender may choose: what a REQ announces is how long the *peer*
    /// may take.
    Backoff(Duration),
}

/// Parameters and bounds of a [`Manager`](super::Manager). The default is what Linux's `rdma_cm`
/// uses on RoCE; set its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Bounds.
    pub limits: Limits,
    /// The time in which a peer shall answer, and in which this manager answers, as a code: 4.096
    /// µs × 2^code (`CMA_CM_RESPONSE_TIMEOUT`).
    pub response_timeout: u8,
    /// Maximum number of retransmissions of a message (`CMA_MAX_CM_RETRIES`).
    pub max_cm_retries: u8,
    /// The packet life time of a path, as a code (`CMA_IBOE_PACKET_LIFETIME`; 18 before Linux
    /// 6.12).
    pub packet_life_time: u8,
    /// Additional time for an answer, announced by the MRA that a duplicate REQ or REP gets
    /// (`CMA_CM_MRA_SETTING`).
    pub mra_timeout: u8,
    /// Schedule of retransmissions.
    pub retransmission: Retransmission,
    /// Time for which a refused request, or an answered SIDR_REQ, is remembered, so that its
    /// duplicate gets the same answer instead of being a new request. Peers retransmit for 74 s, as
    /// Linux does: 16 times, each 4.6 s.
    pub answer_hold: Duration,
    /// Time for which a request for which nothing listens waits for its listener before it is
    /// refused. Zero, as in Linux: it is refused at once.
    pub listen_grace: Duration,
    /// The ports that a bind to port 0 chooses from (`ip_local_port_range`).
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Whether an IPv6 wildcard takes no IPv4 (`net.ipv6.bindv6only`), where no option says.
    pub bind_v6_only: bool,
    /// Whether a loopback address that no device has is bound as a wildcard, as Linux does. A
    /// program that binds to it then hears requests of other hosts.
    pub loopback_is_wildcard: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            response_timeout: 20,
            max_cm_retries: 15,
            packet_life_time: 16,
            mra_timeout: 24,
            retransmission: Retransmission::Constant,
            answer_hold: Duration::from_secs(80),
            listen_grace: Duration::ZERO,
            ephemeral_ports: 32768..=60999,
            bind_v6_only: false,
            loopback_is_wildcard: false,
        }
    }
}
