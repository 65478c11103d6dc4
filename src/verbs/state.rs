//! States of a queue pair, and the behavior of each.
//!
//! The transitions between states are in [`transition`](super::transition).

use super::QpType;
use super::codes::codes;

codes! {
    /// The state of a queue pair: `ibv_qp_state`.
    #[derive(Default)]
    QpState, "IBV_QPS_" {
        /// New, or reset.
        #[default]
        Reset = 0, "RESET", "RESET";
        /// Receives can be posted.
        Init = 1, "INIT", "INIT";
        /// Ready to receive.
        Rtr = 2, "RTR", "RTR";
        /// Ready to send.
        Rts = 3, "RTS", "RTS";
        /// The send queue is, or is being, drained.
        Sqd = 4, "SQD", "SQD";
        /// The send queue failed: a state of unreliable queue pairs only.
        Sqe = 5, "SQE", "SQE";
        /// Error: work requests are flushed.
        Err = 6, "ERR", "ERR";
    }
}

/// Treatment of a work request that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posting {
    /// Posting fails.
    Refused,
    /// The request waits for another state.
    Queued,
    /// The request is processed.
    Accepted,
    /// The request completes at once with `WR_FLUSH_ERR`.
    Flushed,
}

/// Messages of the send queue that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    /// No message.
    Nothing,
    /// Messages that were begun.
    Begun,
    /// All messages.
    Everything,
}

/// Behavior of a state, for a queue pair that has both queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRules {
    /// Treatment of receives that are posted.
    pub post_recv: Posting,
    /// Treatment of sends that are posted.
    pub post_send: Posting,
    /// Whether requests from the peer are executed; else they are dropped.
    pub requests: bool,
    /// Whether responses from the peer are processed; else they are dropped.
    pub responses: bool,
    /// Messages that are sent.
    pub sends: Sending,
}

macro_rules! rules {
    ($($state:ident: $recv:ident $send:ident $requests:literal $responses:literal $sends:ident;)*) => {
        impl QpState {
            /// Returns the behavior of this state.
            #[inline]
            pub const fn rules(self) -> StateRules {
                match self {
                    $(Self::$state => StateRules {
                        post_recv: Posting::$recv,
                        post_send: Posting::$send,
                        requests: $requests,
                        responses: $responses,
                        sends: Sending::$sends,
                    },)*
                }
            }
        }
    };
}

// State: receives posted, sends posted, requests executed, responses processed, messages sent.
rules! {
    Reset: Refused  Refused  false false Nothing;
    Init:  Queued   Refused  false false Nothing;
    Rtr:   Accepted Refused  true  false Nothing;
    Rts:   Accepted Accepted true  true  Everything;
    Sqd:   Accepted Queued   true  true  Begun;
    Sqe:   Accepted Flushed  true  false Nothing;
    Err:   Flushed  Flushed  false false Nothing;
}

impl QpState {
    /// Returns the behavior of this state for a queue pair of this type, without a shared receive
    /// queue: a queue pair with one refuses receives in every state.
    pub const fn rules_for(self, qp_type: QpType) -> StateRules {
        // Rule: S-02.1.
        let mut rules = self.rules();
        if !qp_type.has_receive_queue() {
            rules.post_recv = Posting::Refused;
        }
        if !qp_type.has_send_queue() {
            (rules.post_send, rules.sends) = (Posting::Refused, Sending::Nothing);
        }
        rules.requests = rules.requests && qp_type.is_responder();
        // Only reliable queue pairs with a send queue get responses.
        rules.responses = rules.responses && qp_type.is_reliable() && qp_type.has_send_queue();
        rules
    }

    /// Whether a queue pair of this type can be in this state. A reliable queue pair is never in
    /// SQE: when its send queue fails, the whole queue pair does.
    #[inline]
    pub const fn is_possible(self, qp_type: QpType) -> bool {
        !matches!(self, Self::Sqe) || qp_type.can_stop_sending_alone()
    }
}
