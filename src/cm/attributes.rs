//! Attributes that the QP of an id must have, as of `rdma_init_qp_attr`: data that the caller
//! applies.

use super::Manager;
use super::config::UDP_Q_KEY;
use super::connection::Connection;
use super::error::Error;
use super::state::State;
use super::table::CmId;
use crate::verbs::{
    Access, AckTimeout, AttrMask, PortNum, QpAttr, QpState, QpType, RetryCount, RnrRetry,
};
use crate::wire::{Bits, Qpn};

/// The attributes that count in INIT.
const INIT: AttrMask =
    AttrMask::STATE.union(AttrMask::PKEY_INDEX).union(AttrMask::PORT).union(AttrMask::ACCESS_FLAGS);

/// The attributes that count in INIT, of datagrams.
const INIT_UD: AttrMask =
    AttrMask::STATE.union(AttrMask::PKEY_INDEX).union(AttrMask::PORT).union(AttrMask::QKEY);

/// The attributes that count in RTR, of all connected QPs.
const RTR: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);

/// Attributes of a responder that serves READs.
const RTR_RESPONDER: AttrMask = AttrMask::MIN_RNR_TIMER.union(AttrMask::MAX_DEST_RD_ATOMIC);

/// Attributes of a requester that retries.
const RTS_REQUESTER: AttrMask =
    AttrMask::RETRY_CNT.union(AttrMask::RNR_RETRY).union(AttrMask::MAX_QP_RD_ATOMIC);

impl Manager {
    /// Returns the attributes of an id's QP for its transition to `state`: INIT, RTR or RTS, with
    /// their mask. INIT of an id that does not connect yet gives peers no access; the final
    /// attributes are known once a REQ was sent or came, those of RTR and RTS once the peer's side
    /// is known.
    pub fn qp_attr(&self, id: CmId, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        let entry = self.id(id)?;
        let device = entry.device.and_then(|device| self.devices.get(device));
        let port_num = device.ok_or(Error::NoDevice)?.port_num;
        let can_flush = device.is_some_and(|device| device.flush);
        if entry.is_datagram() {
            let attr = QpAttr { qp_state: state, port_num, qkey: UDP_Q_KEY, ..QpAttr::default() };
            return Ok((attr, INIT_UD));
        }
        let connection = entry.connection.and_then(|name| self.connections.get(name));
        let Some(connection) = connection else {
            if entry.connected_once {
                return Err(Error::Connection);
            }
            let attr = QpAttr { qp_state: state, port_num, ..QpAttr::default() };
            return Ok((attr, INIT));
        };
        let (mut attr, mask) = match state {
            QpState::Init => init(connection, port_num, can_flush)?,
            QpState::Rtr => rtr(connection)?,
            QpState::Rts => rts(connection)?,
            _ => return Err(Error::Argument("QP state")),
        };
        if mask.contains(AttrMask::TIMEOUT)
            && let Some(timeout) = entry.ack_timeout
        {
            attr.timeout = AckTimeout(Bits::low(u32::from(timeout)));
        }
        Ok((attr, mask))
    }

    /// Whether the QP of an id is to use selective repeat, so that the caller agrees on it beside
    /// applying [`qp_attr`](Self::qp_attr). After a CONNECT_REQUEST: whether the peer offers it;
    /// the caller answers by [`ConnParam::selective_repeat`](super::ConnParam::selective_repeat).
    /// After a CONNECT_RESPONSE: whether the peer has accepted this side's offer. Before, and when
    /// the connection is over, it is not.
    pub fn selective_repeat(&self, id: CmId) -> bool {
        let connection = self.ids.get(id).and_then(|entry| entry.connection);
        let connection = connection.and_then(|name| self.connections.get(name));
        connection.is_some_and(|connection| {
            require_peer(connection).is_ok() && connection.negotiated.selective_repeat
        })
    }

    /// Returns the number of an id's own QP, once the peer was told of it.
    pub fn local_qpn(&self, id: CmId) -> Option<Qpn> {
        let connection = self.connections.get(self.ids.get(id)?.connection?)?;
        Some(connection.local_qpn).filter(|qpn| *qpn != Qpn::new(0))
    }
}

fn init(
    connection: &Connection,
    port_num: PortNum,
    can_flush: bool,
) -> Result<(QpAttr, AttrMask), Error> {
    if !matches!(connection.state, State::ReqSent | State::MraReqRcvd) {
        require_peer(connection)?;
    }
    let mut access = Access::REMOTE_WRITE;
    if connection.negotiated.responder_resources > 0 {
        access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if can_flush {
            access |= Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        }
    }
    let attr =
        QpAttr { qp_state: QpState::Init, qp_access_flags: access, port_num, ..QpAttr::default() };
    Ok((attr, INIT))
}

fn rtr(connection: &Connection) -> Result<(QpAttr, AttrMask), Error> {
    require_peer(connection)?;
    let negotiated = &connection.negotiated;
    let attr = QpAttr {
        qp_state: QpState::Rtr,
        ah_attr: connection.qp_ah,
        path_mtu: negotiated.path_mtu,
        dest_qp_num: connection.remote_qpn,
        rq_psn: negotiated.rq_psn,
        max_dest_rd_atomic: negotiated.responder_resources,
        ..QpAttr::default()
    };
    let responds = matches!(negotiated.qp_type, QpType::Rc | QpType::XrcRecv);
    Ok((attr, if responds { RTR | RTR_RESPONDER } else { RTR }))
}

fn rts(connection: &Connection) -> Result<(QpAttr, AttrMask), Error> {
    require_peer(connection)?;
    let negotiated = &connection.negotiated;
    let attr = QpAttr {
        qp_state: QpState::Rts,
        sq_psn: negotiated.sq_psn,
        timeout: AckTimeout(Bits::low(u32::from(negotiated.ack_timeout))),
        retry_cnt: RetryCount(Bits::low(u32::from(negotiated.retry_count))),
        rnr_retry: RnrRetry(Bits::low(u32::from(negotiated.rnr_retry_count))),
        max_rd_atomic: negotiated.initiator_depth,
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if matches!(negotiated.qp_type, QpType::Rc | QpType::XrcSend) {
        mask |= RTS_REQUESTER;
    }
    if negotiated.qp_type != QpType::Uc {
        mask |= AttrMask::TIMEOUT;
    }
    Ok((attr, mask))
}

/// Checks that a connection knows its peer's side and is not over.
fn require_peer(connection: &Connection) -> Result<(), Error> {
    match connection.state {
        State::ReqRcvd
        | State::RepSent
        | State::MraRepRcvd
        | State::RepRcvd
        | State::Established => Ok(()),
        _ => Err(Error::Connection),
    }
}
