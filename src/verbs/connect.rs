//! Connecting two queue pairs: endpoints, attributes of a connection, errors.

use thiserror::Error;

use super::{Access, AckTimeout, CreateError, ModifyError, Mtu, QpState, RetryCount, RnrRetry};
use crate::setters::setters;
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, QKey, Qpn};

/// Address of a queue pair, as its peer must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address of its port.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: Qpn,
    /// The first sequence number that it sends.
    pub psn: Psn,
}

/// Attributes of a connection; the defaults suit most programs.
///
/// ```
/// use roce::verbs::{Connect, Mtu};
///
/// let how = Connect::default().mtu(Mtu::M4096).gid_index(1);
/// assert_eq!((how.mtu, how.gid_index), (Mtu::M4096, 1));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Connect {
    /// One's own address, by its index in the port's table.
    pub gid_index: u8,
    /// The payload of a packet; not more than either port can do.
    pub mtu: Mtu,
    /// Operations that the peer may use.
    pub access: Access,
    /// Maximum number of READs and ATOMICs in flight, each way.
    pub rd_atomic: u8,
    /// Time to wait for an acknowledgement: 4.096 µs times two to the power of this.
    pub timeout: AckTimeout,
    /// Maximum number of retransmissions without progress.
    pub retry_cnt: RetryCount,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry: RnrRetry,
    /// Time that a peer waits after a NAK because no receive buffer was posted.
    pub min_rnr_timer: RnrTimer,
    /// The queue key of a datagram queue pair.
    pub qkey: QKey,
    /// The first sequence number to send; `None` is the random one that `Device::endpoint` tells
    /// the peer.
    pub psn: Option<Psn>,
    /// The traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            gid_index: 0,
            mtu: Mtu::M1024,
            access: Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
            rd_atomic: 16,
            timeout: AckTimeout(Bits::low(14)),
            retry_cnt: RetryCount(Bits::low(7)),
            rnr_retry: RnrRetry(Bits::low(7)),
            min_rnr_timer: RnrTimer(Bits::low(12)),
            qkey: QKey::new(0x1111_1111),
            psn: None,
            traffic_class: 0,
        }
    }
}

impl Connect {
    setters! {
        gid_index: u8,
        mtu: Mtu,
        access: Access,
        rd_atomic: u8,
        timeout: AckTimeout,
        retry_cnt: RetryCount,
        rnr_retry: RnrRetry,
        min_rnr_timer: RnrTimer,
        qkey: QKey,
        traffic_class: u8,
    }

    /// Sets [`psn`](Self#structfield.psn).
    #[must_use]
    pub const fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }
}

/// Error of connecting a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The handle names no queue pair.
    #[error("there is no such queue pair")]
    NotFound,
    /// The queue pair cannot be created.
    #[error("{0}")]
    Create(CreateError),
    /// The queue pair cannot be moved to a state.
    #[error("to {state}: {error}")]
    Modify {
        /// Into which.
        state: QpState,
        /// Reason.
        error: ModifyError,
    },
}
