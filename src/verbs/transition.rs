//! State transitions of queue pairs: required and optional attributes.
//!
//! The table is the kernel's (`qp_state_table`), since what it refuses no program can do: for each
//! pair of states and each kind of queue pair, the attributes that must be given and those that may
//! be. Besides them, a transition may name the state and the rate limit, and nothing more. A pair
//! that is not in the table cannot be asked for; a queue pair enters [`Sqe`](QpState::Sqe) and
//! often [`Err`](QpState::Err) by itself.

use thiserror::Error;

use super::{AttrMask, Errno, QpState, QpType};

/// Attributes of a transition, besides the state and the rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Required attributes.
    pub required: AttrMask,
    /// Optional attributes.
    pub optional: AttrMask,
}

impl Transition {
    /// Every attribute that may be given, the state and the rate limit among them.
    pub const fn allowed(&self) -> AttrMask {
        self.required.union(self.optional).union(ALWAYS)
    }
}

/// Error of modifying a queue pair. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The handle names no queue pair.
    #[error("there is no such queue pair")]
    NotFound,
    /// The states have no transition between them.
    #[error("{qp_type} cannot go from {from} to {to}")]
    Transition {
        /// The kind of queue pair.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Attributes are missing.
    #[error("{qp_type} from {from} to {to}: missing {missing}")]
    Missing {
        /// The kind of queue pair.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Missing attributes.
        missing: AttrMask,
    },
    /// Attributes are given that this transition does not set.
    #[error("{qp_type} from {from} to {to}: {illegal} cannot be set")]
    Illegal {
        /// The kind of queue pair.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Attributes that cannot be set.
        illegal: AttrMask,
    },
    /// The queue pair is not in the state that the program believes.
    #[error("the state is {actual}, not {stated}")]
    CurState {
        /// Current state as the program states it.
        stated: QpState,
        /// Current state.
        actual: QpState,
    },
    /// An attribute has a value that the device cannot have.
    #[error("{0} has a value out of range")]
    Value(AttrMask),
    /// A device refused, and said no more than this.
    #[error("the device refuses: {0}")]
    Refused(Errno),
}

impl ModifyError {
    /// Returns the error number that the function of C returns.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Refused(errno) => errno,
            _ => Errno::EINVAL,
        }
    }
}

/// Returns the transition of a queue pair of this type from one state to another, or `None` if
/// there is none.
#[expect(clippy::indexing_slicing, reason = "the table has a place for every state and row")]
pub const fn find(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    // Rule: S-01.1.
    match row(qp_type) {
        Some(row) => TABLE[from as usize][to as usize][row],
        None => None,
    }
}

/// Whether a queue pair of this kind can go from one state to another with these attributes.
/// Without [`AttrMask::STATE`] a queue pair stays in its state, so `to` must be `from`.
pub const fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), ModifyError> {
    let Some(transition) = find(qp_type, from, to) else {
        return Err(ModifyError::Transition { qp_type, from, to });
    };
    let mut required = transition.required;
    if from as u8 != to as u8 {
        required = required.union(AttrMask::STATE);
    }
    // Rule: S-01.2.
    let missing = required.difference(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { qp_type, from, to, missing });
    }
    let illegal = mask.difference(transition.allowed());
    if !illegal.is_empty() {
        return Err(ModifyError::Illegal { qp_type, from, to, illegal });
    }
    Ok(())
}

/// The attributes that the kernel drops from the mask of such a queue pair before it looks at it
/// (`modify_qp_mask`): an XRC initiator has no responder, an XRC target no requester. Programs give
/// one mask to either half.
pub const fn ignored(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC.union(AttrMask::MIN_RNR_TIMER),
        QpType::XrcRecv => {
            AttrMask::MAX_QP_RD_ATOMIC.union(AttrMask::RETRY_CNT).union(AttrMask::RNR_RETRY)
        }
        _ => AttrMask::empty(),
    }
}

/// Attributes that any transition may name.
const ALWAYS: AttrMask = AttrMask::STATE.union(AttrMask::RATE_LIMIT);

const STATES: usize = QpState::ALL.len();
const ROWS: usize = 7;

/// Row of a type of queue pair in the table. A driver's own kind has its driver's own rules.
const fn row(qp_type: QpType) -> Option<usize> {
    match qp_type {
        QpType::Rc => Some(0),
        QpType::Uc => Some(1),
        QpType::Ud => Some(2),
        QpType::XrcSend => Some(3),
        QpType::XrcRecv => Some(4),
        QpType::Gsi => Some(5),
        QpType::RawPacket => Some(6),
        QpType::Driver => None,
    }
}

/// Pairs of states between which all is alike, and what each kind of queue pair needs there.
struct Group {
    from: &'static [QpState],
    to: QpState,
    needs: &'static [(&'static [QpType], Transition)],
}

macro_rules! transitions {
    ($($($from:ident)|+ => $to:ident {
        $($($qp_type:ident)|+: [$($required:ident)*] [$($optional:ident)*];)+
    })+) => {
        const GROUPS: &[Group] = &[$(Group {
            from: &[$(QpState::$from),+],
            to: QpState::$to,
            needs: &[$((&[$(QpType::$qp_type),+], Transition {
                required: AttrMask::empty()$(.union(AttrMask::$required))*,
                optional: AttrMask::empty()$(.union(AttrMask::$optional))*,
            })),+],
        }),+];
    };
}

// From => to { kinds: [required] [optional]; }
transitions! {
    Reset | Init | Rtr | Rts | Sqd | Sqe | Err => Reset {
        Rc | Uc | Ud | XrcSend | XrcRecv | Gsi | RawPacket: [] [];
    }
    Init | Rtr | Rts | Sqd | Sqe | Err => Err {
        Rc | Uc | Ud | XrcSend | XrcRecv | Gsi | RawPacket: [] [];
    }
    Reset => Init {
        Rc | Uc | XrcSend | XrcRecv: [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Ud: [PKEY_INDEX PORT QKEY] [];
        Gsi: [PKEY_INDEX QKEY] [];
        RawPacket: [PORT] [];
    }
    Init => Init {
        Rc | Uc | XrcSend | XrcRecv: [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Ud: [] [PKEY_INDEX PORT QKEY];
        Gsi: [] [PKEY_INDEX QKEY];
        RawPacket: [] [];
    }
    Init => Rtr {
        Rc | XrcRecv: [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
            [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Uc | XrcSend: [AV PATH_MTU DEST_QPN RQ_PSN] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Ud | Gsi: [] [PKEY_INDEX QKEY];
        RawPacket: [] [];
    }
    Rtr => Rts {
        Rc: [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
            [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Uc: [SQ_PSN] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Ud | Gsi: [SQ_PSN] [CUR_STATE QKEY];
        XrcSend: [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
            [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        XrcRecv: [TIMEOUT SQ_PSN]
            [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        RawPacket: [] [];
    }
    Rts | Sqd => Rts {
        Rc | XrcRecv: [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Uc | XrcSend: [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Ud | Gsi: [] [CUR_STATE QKEY];
        RawPacket: [] [];
    }
    Rts => Sqd {
        Rc | Uc | Ud | XrcSend | XrcRecv | Gsi: [] [EN_SQD_ASYNC_NOTIFY];
        RawPacket: [] [];
    }
    Sqd => Sqd {
        Rc: [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC
            ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
        Uc: [] [AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
        Ud | Gsi: [] [PKEY_INDEX QKEY];
        XrcSend: [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC
            ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
        XrcRecv: [] [PORT AV TIMEOUT MAX_DEST_RD_ATOMIC
            ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
        RawPacket: [] [];
    }
    Sqe => Rts {
        // A reliable queue pair never is in SQE, but the kernel's table would let it out.
        Rc | XrcSend | XrcRecv | RawPacket: [] [];
        Uc: [] [CUR_STATE ACCESS_FLAGS];
        Ud | Gsi: [] [CUR_STATE QKEY];
    }
}

/// The transitions by state, state and row.
#[expect(
    clippy::indexing_slicing,
    reason = "loops end with their slices, and this runs when compiling"
)]
static TABLE: [[[Option<Transition>; ROWS]; STATES]; STATES] = {
    let mut table = [[[None; ROWS]; STATES]; STATES];
    let mut group = 0;
    while group < GROUPS.len() {
        let Group { from, to, needs } = &GROUPS[group];
        let mut state = 0;
        while state < from.len() {
            let cells = &mut table[from[state] as usize][*to as usize];
            let mut need = 0;
            while need < needs.len() {
                declare(cells, needs[need].0, needs[need].1);
                need += 1;
            }
            state += 1;
        }
        group += 1;
    }
    table
};

/// Sets what all of these kinds need; a cell is set once.
#[expect(
    clippy::indexing_slicing,
    reason = "the loop ends with its slice, and this runs when compiling"
)]
const fn declare(
    cells: &mut [Option<Transition>; ROWS],
    qp_types: &[QpType],
    transition: Transition,
) {
    let mut at = 0;
    while at < qp_types.len() {
        let Some(row) = row(qp_types[at]) else { panic!("a kind without a row has a transition") };
        assert!(cells[row].is_none(), "a transition is declared twice");
        cells[row] = Some(transition);
        at += 1;
    }
}
