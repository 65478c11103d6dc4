//! The one fault injector: loses, duplicates, delays, reorders, corrupts and marks packets, by
//! chance or by rule.
//!
//! Everything that injects faults decides here: [`inject`] around a live link, [`mem`](super::mem)
//! in a simulated network, `conform` around its devices, and tests with [`Rules`] alone. Decisions
//! are repeatable: the same seed gives the same decisions for the same packets. Faults by chance
//! meet packets that are sent; a [`Rule`] may mean those that arrive. Packets that are held back
//! are passed on when their time has come, which `poll_timeout` of either half tells.
//!
//! A [`Spec`] is how a person writes it down:
//!
//! ```
//! use roce::link::fault::Spec;
//!
//! let spec: Spec = "loss=1%,delay=10us,jitter=5us,drop=0x11:7:2,seed=3".parse()?;
//! assert_eq!(spec.faults.loss, 10_000);
//! assert_eq!(spec.to_string(), "loss=1%,delay=10us,jitter=5us,drop=0x11:7:2,seed=3");
//! # Ok::<(), roce::link::fault::SpecError>(())
//! ```
//!
//! A [`tap`](super::tap) belongs inside: it then sees what goes out, corrupted packets, copies and
//! all. What is dropped can be kept in its capture, marked by a comment: [`inject_keeping`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Link;
use super::tap::TapHandle;
pub use crate::capture::Direction;

pub(super) mod chance;
mod lane;
pub(super) mod queue;
mod receiver;
mod rule;
mod sender;
mod spec;
#[cfg(test)]
mod tests;

pub use chance::Faults;
use chance::{Impairments, Loss};
#[cfg(feature = "conform")]
pub(crate) use lane::Lane;
pub use queue::{HELD_MAX, SWAP_TIMEOUT};
pub use rule::{Action, Rule, Rules};
pub use spec::{Spec, SpecError};

/// A link that does to its packets what `spec` says.
#[must_use]
pub fn inject(link: Link, spec: &Spec) -> Link {
    let injector = Injector::new(spec);
    let link = injector.wrap_sender(link);
    // Without a rule for them, packets that arrive need not be copied.
    let is_inbound = spec.rules.iter().any(Rule::is_inbound);
    if is_inbound { injector.wrap_receiver(link) } else { link }
}

/// Injects faults into a link whose tap also writes the packets that are dropped when they are
/// sent, each with a comment that names the fault. Those that are dropped when they arrive have
/// passed the tap, and have no comment.
#[must_use]
pub fn inject_keeping(link: Link, spec: &Spec, tap: TapHandle) -> Link {
    let injector = Injector::new(spec);
    injector.lock().keep_dropped = Some(tap);
    let link = injector.wrap_sender(link);
    let is_inbound = spec.rules.iter().any(Rule::is_inbound);
    if is_inbound { injector.wrap_receiver(link) } else { link }
}

/// Decides over the packets of both directions of a link. A clone is the same injector.
#[derive(Clone)]
pub struct Injector(Arc<Mutex<State>>);

/// Sees every packet before anything is done to it, from its BTH to its last pad byte, and what is
/// done.
type Observer = Box<dyn FnMut(Direction, &[u8], Option<Effect>) + Send>;

/// The effect of a fault on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "conform", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "conform", serde(rename_all = "snake_case"))]
pub enum Effect {
    /// Dropped: the packet does not arrive.
    Dropped,
    /// A bit of it changes.
    Corrupted,
    /// Duplicated: the packet arrives twice.
    Duplicated,
    /// Others overtake it, or it overtakes one.
    Reordered,
    /// Marked: congestion experienced.
    Marked,
    /// Delayed: the packet arrives later.
    Delayed,
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dropped => "dropped",
            Self::Corrupted => "corrupted",
            Self::Duplicated => "duplicated",
            Self::Reordered => "reordered",
            Self::Marked => "marked",
            Self::Delayed => "delayed",
        })
    }
}

struct State {
    impairments: Impairments,
    counts: Counts,
    observer: Option<Observer>,
    /// Tap to which packets are written that are dropped when they are sent.
    keep_dropped: Option<TapHandle>,
}

/// Number of packets by effect.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    marked: u64,
    queue_full: u64,
    overflow: u64,
}

impl Injector {
    /// An injector for these faults.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let rules = Rules::new(spec.rules.iter().cloned());
        let impairments = Impairments::new(spec.faults, rules, spec.seed);
        let counts = Counts::default();
        Self(Arc::new(Mutex::new(State {
            impairments,
            counts,
            observer: None,
            keep_dropped: None,
        })))
    }

    /// Shows every packet to `observer` before anything is done to it, from its BTH to its last pad
    /// byte, with the effect that a fault will have on it.
    pub fn observe(&self, observer: impl FnMut(Direction, &[u8], Option<Effect>) + Send + 'static) {
        self.lock().observer = Some(Box::new(observer));
    }

    /// A link whose packets, of both directions, this injector decides over.
    #[must_use]
    pub fn wrap(&self, link: Link) -> Link {
        self.wrap_receiver(self.wrap_sender(link))
    }

    /// Puts other rules in the place of those that there are.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        self.lock().impairments.set_rules(Rules::new(rules));
    }

    /// Returns the number of times each rule was applied, in the order in which they were given.
    #[must_use]
    pub fn fired(&self) -> Vec<u32> {
        self.lock().impairments.rules().fired()
    }

    fn wrap_sender(&self, link: Link) -> Link {
        let sender = sender::FaultSender::new(link.sender, self.clone());
        Link { sender: Box::new(sender), ..link }
    }

    fn wrap_receiver(&self, link: Link) -> Link {
        let receiver = receiver::FaultReceiver::new(link.receiver, self.clone());
        Link { receiver: Box::new(receiver), ..link }
    }

    /// A half that panicked left whole decisions behind: the other goes on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> [(&'static str, u64); 7] {
        let Counts { lost, duplicated, reordered, corrupted, marked, queue_full, overflow } =
            self.lock().counts;
        [
            ("fault_lost", lost),
            ("fault_duplicated", duplicated),
            ("fault_reordered", reordered),
            ("fault_corrupted", corrupted),
            ("fault_marked", marked),
            ("fault_queue_full", queue_full),
            ("fault_overflow", overflow),
        ]
    }
}

impl State {
    /// The fault that lost a packet, as it is written in a [`Spec`].
    fn cause(&self, loss: Loss) -> String {
        match loss {
            Loss::Chance => "loss".to_owned(),
            Loss::QueueFull => "queue".to_owned(),
            Loss::Rule(number) => {
                self.impairments.rules().get(number).map(Rule::to_string).unwrap_or_default()
            }
        }
    }
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector")
            .field("impairments", &self.lock().impairments)
            .finish_non_exhaustive()
    }
}
