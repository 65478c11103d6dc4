//! The two state machines: of an id, which the program drives, and of a connection, which messages
//! drive.
//!
//! The connection's is one table, [`TRANSITIONS`]: which input takes which state where. What is not
//! in it is refused, a command with EINVAL and a message with a counter. The names are those of the
//! kernel's `ib_cm_state`. Two of its states are missing: Linux enters `MRA_REQ_SENT` and
//! `MRA_REP_SENT` silently as soon as the program is told of the REQ or REP, and sends the MRA when
//! a duplicate comes; here `ReqRcvd` and `RepRcvd` do just that.

/// The state of an id, as `rdma_cm` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdState {
    /// New.
    Idle,
    /// The id has an address.
    AddrBound,
    /// The caller is asked for the way to the destination.
    AddrQuery,
    /// The id has a device, and the destination is known.
    AddrResolved,
    /// The id has a path.
    RouteResolved,
    /// The id connects, or is connected, or was refused.
    Connect,
    /// The id was connected.
    Disconnect,
    /// The id listens.
    Listen,
    /// The device of the id is gone.
    DeviceRemoved,
}

/// The state of a connection, as `ib_cm` has it (§12.9.5 to §12.9.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No message was sent or received, or all is over.
    Idle,
    /// A REQ is in flight.
    ReqSent,
    /// The peer received the REQ, and asked for more time.
    MraReqRcvd,
    /// A REQ came; the program has to accept or reject.
    ReqRcvd,
    /// A REP is in flight.
    RepSent,
    /// The peer received the REP, and asked for more time.
    MraRepRcvd,
    /// A REP came; the program has to move its QP and to establish.
    RepRcvd,
    /// Both QPs are ready.
    Established,
    /// A DREQ is in flight.
    DreqSent,
    /// A DREQ came; the program has to disconnect, too.
    DreqRcvd,
    /// The connection is over; packets of it may still be in the network.
    Timewait,
    /// A SIDR_REQ is in flight.
    SidrReqSent,
    /// A SIDR_REQ came; the program has to accept or reject.
    SidrReqRcvd,
}

impl State {
    /// Every state.
    pub const ALL: &'static [Self] = &[
        Self::Idle,
        Self::ReqSent,
        Self::MraReqRcvd,
        Self::ReqRcvd,
        Self::RepSent,
        Self::MraRepRcvd,
        Self::RepRcvd,
        Self::Established,
        Self::DreqSent,
        Self::DreqRcvd,
        Self::Timewait,
        Self::SidrReqSent,
        Self::SidrReqRcvd,
    ];
}

/// Input that changes the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Input {
    SendReq,
    SendRep,
    SendRtu,
    SendRej,
    SendDreq,
    SendDrep,
    SendSidrReq,
    SendSidrRep,
    /// The program saw data on its QP (`IBV_EVENT_COMM_EST`).
    CommEst,
    RecvReq,
    RecvRep,
    RecvRtu,
    RecvMraOfReq,
    RecvMraOfRep,
    RecvRej,
    /// A REJ with reason 10: the peer still knew the QP of an earlier connection.
    RecvRejStale,
    RecvDreq,
    RecvDrep,
    RecvSidrReq,
    RecvSidrRep,
    /// The last retransmission was not answered.
    GiveUp,
    /// Timewait is over.
    Expire,
}

impl Input {
    /// Whether it is a message of the peer.
    pub(super) const fn is_received(self) -> bool {
        matches!(
            self,
            Self::RecvReq
                | Self::RecvRep
                | Self::RecvRtu
                | Self::RecvMraOfReq
                | Self::RecvMraOfRep
                | Self::RecvRej
                | Self::RecvRejStale
                | Self::RecvDreq
                | Self::RecvDrep
                | Self::RecvSidrReq
                | Self::RecvSidrRep
        )
    }
}

impl Input {
    /// Whether it shows that the peer is at its address: a message with the comm ids of both sides,
    /// or data.
    pub(super) const fn proves_peer(self) -> bool {
        let is_request = matches!(self, Self::RecvReq | Self::RecvSidrReq);
        matches!(self, Self::CommEst) || self.is_received() && !is_request
    }
}

#[cfg(test)]
impl Input {
    pub(super) const ALL: &'static [Self] = &[
        Self::SendReq,
        Self::SendRep,
        Self::SendRtu,
        Self::SendRej,
        Self::SendDreq,
        Self::SendDrep,
        Self::SendSidrReq,
        Self::SendSidrRep,
        Self::CommEst,
        Self::RecvReq,
        Self::RecvRep,
        Self::RecvRtu,
        Self::RecvMraOfReq,
        Self::RecvMraOfRep,
        Self::RecvRej,
        Self::RecvRejStale,
        Self::RecvDreq,
        Self::RecvDrep,
        Self::RecvSidrReq,
        Self::RecvSidrRep,
        Self::GiveUp,
        Self::Expire,
    ];
}

/// State, input, and next state.
type Transition = (State, Input, State);

/// Every transition of a connection.
#[rustfmt::skip]
const TRANSITIONS: &[Transition] = &[
    (State::Idle,        Input::SendReq,      State::ReqSent),
    (State::Idle,        Input::RecvReq,      State::ReqRcvd),
    (State::Idle,        Input::SendSidrReq,  State::SidrReqSent),
    (State::Idle,        Input::RecvSidrReq,  State::SidrReqRcvd),

    (State::ReqSent,     Input::RecvRep,      State::RepRcvd),
    (State::ReqSent,     Input::RecvMraOfReq, State::MraReqRcvd),
    (State::ReqSent,     Input::RecvRej,      State::Idle),
    (State::ReqSent,     Input::RecvRejStale, State::Timewait),
    (State::ReqSent,     Input::SendRej,      State::Idle),
    (State::ReqSent,     Input::GiveUp,       State::Idle),

    (State::MraReqRcvd,  Input::RecvRep,      State::RepRcvd),
    (State::MraReqRcvd,  Input::RecvRej,      State::Idle),
    (State::MraReqRcvd,  Input::RecvRejStale, State::Timewait),
    (State::MraReqRcvd,  Input::SendRej,      State::Idle),
    (State::MraReqRcvd,  Input::GiveUp,       State::Idle),

    (State::ReqRcvd,     Input::SendRep,      State::RepSent),
    (State::ReqRcvd,     Input::SendRej,      State::Timewait),
    (State::ReqRcvd,     Input::RecvRej,      State::Idle),
    (State::ReqRcvd,     Input::RecvRejStale, State::Timewait),

    (State::RepSent,     Input::RecvRtu,      State::Established),
    (State::RepSent,     Input::CommEst,      State::Established),
    (State::RepSent,     Input::RecvMraOfRep, State::MraRepRcvd),
    (State::RepSent,     Input::RecvRej,      State::Idle),
    (State::RepSent,     Input::RecvRejStale, State::Timewait),
    (State::RepSent,     Input::RecvDreq,     State::DreqRcvd),
    (State::RepSent,     Input::SendRej,      State::Timewait),
    (State::RepSent,     Input::GiveUp,       State::Idle),

    (State::MraRepRcvd,  Input::RecvRtu,      State::Established),
    (State::MraRepRcvd,  Input::CommEst,      State::Established),
    (State::MraRepRcvd,  Input::RecvRej,      State::Idle),
    (State::MraRepRcvd,  Input::RecvRejStale, State::Timewait),
    (State::MraRepRcvd,  Input::RecvDreq,     State::DreqRcvd),
    (State::MraRepRcvd,  Input::SendRej,      State::Timewait),
    (State::MraRepRcvd,  Input::GiveUp,       State::Idle),

    (State::RepRcvd,     Input::SendRtu,      State::Established),
    (State::RepRcvd,     Input::SendRej,      State::Idle),
    (State::RepRcvd,     Input::RecvRej,      State::Timewait),
    (State::RepRcvd,     Input::RecvRejStale, State::Timewait),

    (State::Established, Input::SendDreq,     State::DreqSent),
    (State::Established, Input::RecvDreq,     State::DreqRcvd),
    (State::Established, Input::RecvRej,      State::Timewait),
    (State::Established, Input::RecvRejStale, State::Timewait),

    (State::DreqSent,    Input::RecvDrep,     State::Timewait),
    (State::DreqSent,    Input::RecvDreq,     State::Timewait),
    (State::DreqSent,    Input::RecvRej,      State::Timewait),
    (State::DreqSent,    Input::RecvRejStale, State::Timewait),
    (State::DreqSent,    Input::GiveUp,       State::Timewait),

    (State::DreqRcvd,    Input::SendDrep,     State::Timewait),
    (State::DreqRcvd,    Input::RecvDrep,     State::Timewait),

    (State::Timewait,    Input::Expire,       State::Idle),

    (State::SidrReqSent, Input::RecvSidrRep,  State::Idle),
    (State::SidrReqSent, Input::GiveUp,       State::Idle),

    (State::SidrReqRcvd, Input::SendSidrRep,  State::Timewait),
];

impl State {
    /// Returns the state after `input`; `None` if it must be refused.
    pub(super) fn after(self, input: Input) -> Option<Self> {
        TRANSITIONS.iter().find(|row| (row.0, row.1) == (self, input)).map(|row| row.2)
    }

    /// Whether a request came, and its peer has not answered what was answered to it.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, Self::ReqRcvd | Self::RepSent | Self::MraRepRcvd | Self::SidrReqRcvd)
    }

    /// Whether a timer retransmits the connection's message.
    pub(super) const fn is_retransmitting(self) -> bool {
        matches!(
            self,
            Self::ReqSent
                | Self::MraReqRcvd
                | Self::RepSent
                | Self::MraRepRcvd
                | Self::DreqSent
                | Self::SidrReqSent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_transition_is_declared_twice() {
        let pairs: BTreeSet<_> = TRANSITIONS.iter().map(|row| (row.0, row.1)).collect();
        assert_eq!(pairs.len(), TRANSITIONS.len());
    }

    #[test]
    fn every_state_is_reached_and_left() {
        for &state in State::ALL {
            assert!(TRANSITIONS.iter().any(|row| row.0 == state), "{state:?} is left");
            assert!(TRANSITIONS.iter().any(|row| row.2 == state), "{state:?} is reached");
        }
        for &input in Input::ALL {
            assert!(TRANSITIONS.iter().any(|row| row.1 == input), "{input:?} does something");
        }
    }

    /// A connection whose message is retransmitted ends when it is not answered; no other waits for
    /// a timer of its own.
    #[test]
    fn just_the_retransmitting_states_give_up() {
        for &state in State::ALL {
            assert_eq!(
                state.after(Input::GiveUp).is_some(),
                state.is_retransmitting(),
                "{state:?}"
            );
        }
    }

    /// One step or two of this side alone end the connection from every state: nothing depends on a
    /// peer.
    #[test]
    fn every_state_can_be_left_without_the_peer() {
        let own = [
            Input::SendRej,
            Input::SendDreq,
            Input::SendDrep,
            Input::SendSidrRep,
            Input::GiveUp,
            Input::Expire,
        ];
        for &start in State::ALL {
            let mut reached = BTreeSet::from([start]);
            for _ in 0..State::ALL.len() {
                let next: Vec<_> = reached
                    .iter()
                    .flat_map(|state: &State| own.iter().filter_map(|&input| state.after(input)))
                    .collect();
                reached.extend(next);
            }
            assert!(reached.contains(&State::Idle), "{start:?}");
        }
    }

    /// The table in the documentation of the module, row by row.
    #[test]
    fn documented_table_is_the_declared_one() {
        let documentation = include_str!("mod.rs");
        let cell = |text: &str| text.trim().trim_matches('`').to_owned();
        let mut rows = BTreeSet::new();
        for line in documentation.lines().filter_map(|line| line.strip_prefix("//! | `")) {
            let mut cells = line.split('|').map(cell);
            let state = cells.next().unwrap().trim_matches('`').to_owned();
            if !State::ALL.iter().any(|known| format!("{known:?}") == state) {
                continue;
            }
            for transition in cells.next().unwrap().split(';') {
                let Some((inputs, to)) = transition.split_once('→') else { continue };
                for input in inputs.split(',') {
                    rows.insert(format!("{state} {} {}", cell(input), cell(to)));
                }
            }
        }
        let declared: BTreeSet<_> = TRANSITIONS
            .iter()
            .map(|(from, input, to)| format!("{from:?} {input:?} {to:?}"))
            .collect();
        let missing: Vec<_> = declared.symmetric_difference(&rows).collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
