//! Classes of packets, of which some may be paused.
//!
//! A peer or a switch pauses data of a priority (PFC). CNPs and ACKs are not data: if they waited,
//! too, no sender would learn of the congestion. A queue pair with data of a paused class leaves
//! the round-robin order, so that it costs nothing while it waits.

use std::collections::VecDeque;

use super::Engine;
use crate::table::SlotId;

bitflags::bitflags! {
    /// Classes of data that may be transmitted: by priority, which is the service level of the
    /// queue pair. Control packets, which are CNPs, ACKs, NAKs and responses to atomics, always
    /// may: the empty set stands for these alone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TransmitClasses: u8 {
        /// Requests and READ responses of all priorities.
        const DATA = 0xff;
    }
}

/// Number of priorities.
const PRIORITIES: usize = 8;

impl TransmitClasses {
    /// Data of one priority, of eight.
    pub const fn priority(priority: u8) -> Self {
        Self::from_bits_retain(1 << (priority & 7))
    }
}

/// Queue pairs with data of paused classes, by priority.
#[derive(Debug, Default)]
pub(super) struct Held([VecDeque<SlotId>; PRIORITIES]);

impl Held {
    /// Adds a queue pair with data of a priority.
    pub(super) fn push(&mut self, priority: u8, slot: SlotId) {
        if let Some(queue) = self.0.get_mut(usize::from(priority & 7)) {
            queue.push_back(slot);
        }
    }

    /// Removes a queue pair.
    pub(super) fn remove(&mut self, slot: SlotId) {
        self.0.iter_mut().for_each(|queue| queue.retain(|other| *other != slot));
    }

    /// Removes the next queue pair with data of one of `classes`.
    fn pop(&mut self, classes: TransmitClasses) -> Option<SlotId> {
        let priorities = (0_u8..).zip(&mut self.0);
        let mut allowed = priorities
            .filter(|(priority, _)| classes.contains(TransmitClasses::priority(*priority)));
        allowed.find_map(|(_, queue)| queue.pop_front())
    }
}

impl Engine {
    /// Sets the classes that may be transmitted; queue pairs that waited for them are active again.
    pub(super) fn set_classes(&mut self, classes: TransmitClasses) {
        self.env.classes = classes;
        self.env.may_hold_data =
            self.env.config.congestion.is_on() || classes != TransmitClasses::DATA;
        while let Some(slot) = self.env.held.pop(classes) {
            if let Some((qp, env)) = self.split(slot) {
                qp.release_data(env);
            }
        }
    }
}
