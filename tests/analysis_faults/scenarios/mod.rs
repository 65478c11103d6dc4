//! The scenarios: each fault by itself under a name ([`named()`]), and any mixture of them from a
//! seed ([`random()`]).

mod named;
mod random;

use std::time::Duration;

use roce::link::fault::Action;
use roce::verbs::QpType;

pub use self::named::named;
pub use self::random::random;
use super::plan::Connection;
use super::two_hosts::pair::PairAttr;

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A delay that lets other packets pass.
const BEHIND: Action = Action::Delay(micros(3));

/// A delay until long after all other packets have arrived, and before the retransmission timeout.
const LATE: Action = Action::Delay(micros(150));

/// A reliable connection without work.
fn rc() -> Connection {
    Connection {
        kind: QpType::Rc,
        attr: PairAttr::default(),
        work: [Vec::new(), Vec::new()],
        receives: [Vec::new(), Vec::new()],
    }
}
