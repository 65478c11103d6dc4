//! Connecting two queue pairs: endpoints, attributes of a connection, errors.

use thiserror::Error;

use super::{
    Access, AckTimeout, AhAttr, AttrMask, CreateError, ModifyError, Mtu, QpAttr, QpState, QpType,
    RetryCount, RnrRetry, transition,
};
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
    /// Whether the peer has said that it does selective repeat: a soft NIC that does it, too, then
    /// uses it. Other devices ignore it.
    pub selective_repeat: bool,
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
            selective_repeat: false,
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
        selective_repeat: bool,
    }

    /// Sets [`psn`](Self#structfield.psn).
    #[must_use]
    pub const fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }
}

impl Connect {
    /// Returns the attributes of a queue pair on its way to RTS, connected to `peer` if it has one.
    pub fn attributes(&self, peer: Option<&Endpoint>) -> QpAttr {
        let attr = peer.map_or_else(QpAttr::default, |peer| {
            let mut ah_attr = AhAttr::new(peer.gid, self.gid_index);
            ah_attr.traffic_class = self.traffic_class;
            QpAttr { ah_attr, dest_qp_num: peer.qpn, rq_psn: peer.psn, ..QpAttr::default() }
        });
        QpAttr {
            path_mtu: self.mtu,
            qp_access_flags: self.access,
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            qkey: self.qkey,
            sq_psn: self.psn.unwrap_or_default(),
            ..attr
        }
    }
}

/// States on the way to RTS.
const STATES: [QpState; 4] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];

/// Takes a queue pair from one state on the way to RTS to a later one by `modify`, each time with
/// the attributes that the transition requires.
pub(crate) fn bring_up(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    attr: &QpAttr,
    mut modify: impl FnMut(&QpAttr, AttrMask) -> Result<(), ModifyError>,
) -> Result<(), ConnectError> {
    let place = |state| STATES.iter().position(|it| *it == state);
    let (Some(first), Some(last)) = (place(from), place(to)) else {
        let error = ModifyError::Transition { qp_type, from, to };
        return Err(ConnectError::Modify { state: to, error });
    };
    for step in STATES.get(first..=last).unwrap_or_default().windows(2) {
        let &[before, state] = step else { continue };
        let mut mask = AttrMask::STATE;
        if let Some(transition) = transition::find(qp_type, before, state) {
            mask |= transition.required;
            // INIT may have been entered with others.
            if first > 0 && before == QpState::Init {
                mask |= transition.optional & (AttrMask::ACCESS_FLAGS | AttrMask::QKEY);
            }
        }
        let attr = QpAttr { qp_state: state, ..*attr };
        modify(&attr, mask).map_err(|error| ConnectError::Modify { state, error })?;
    }
    Ok(())
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
