//! Connecting a queue pair, from RESET or INIT to RTS.

use crate::verbs::{
    AhAttr, AttrMask, Connect, ConnectError, Endpoint, ModifyError, QpAttr, QpState, QpType,
    transition,
};

/// States on the way to RTS.
const STATES: [QpState; 4] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];

/// Attributes of a queue pair that is connected to `peer`.
pub(super) fn connected(peer: &Endpoint, how: &Connect) -> QpAttr {
    let mut ah_attr = AhAttr::new(peer.gid, how.gid_index);
    ah_attr.traffic_class = how.traffic_class;
    QpAttr { ah_attr, dest_qp_num: peer.qpn, rq_psn: peer.psn, ..QpAttr::default() }
}

/// Takes a queue pair from one state on the way to RTS to another by `modify`. `attr` names its
/// peer, if it has one.
pub(super) fn bring_up(
    kind: QpType,
    [from, to]: [QpState; 2],
    how: &Connect,
    attr: QpAttr,
    mut modify: impl FnMut(&QpAttr, AttrMask) -> Result<(), ModifyError>,
) -> Result<(), ConnectError> {
    let attr = QpAttr {
        path_mtu: how.mtu,
        qp_access_flags: how.access,
        max_rd_atomic: how.rd_atomic,
        max_dest_rd_atomic: how.rd_atomic,
        timeout: how.timeout,
        retry_cnt: how.retry_cnt,
        rnr_retry: how.rnr_retry,
        min_rnr_timer: how.min_rnr_timer,
        qkey: how.qkey,
        sq_psn: how.psn.unwrap_or_default(),
        ..attr
    };
    let place = |state| STATES.iter().position(|it| *it == state);
    let (Some(first), Some(last)) = (place(from), place(to)) else {
        let error = ModifyError::Transition { qp_type: kind, from, to };
        return Err(ConnectError::Modify { state: to, error });
    };
    for step in STATES.get(first..=last).unwrap_or_default().windows(2) {
        let &[before, state] = step else { continue };
        let mut mask = AttrMask::STATE;
        if let Some(transition) = transition::find(kind, before, state) {
            mask |= transition.required;
            // INIT may have been entered with others.
            if first > 0 && before == QpState::Init {
                mask |= transition.optional & (AttrMask::ACCESS_FLAGS | AttrMask::QKEY);
            }
        }
        let attr = QpAttr { qp_state: state, ..attr };
        modify(&attr, mask).map_err(|error| ConnectError::Modify { state, error })?;
    }
    Ok(())
}
