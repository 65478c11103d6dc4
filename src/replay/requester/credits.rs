//! End-to-end credits: the messages of a requester, and the limit that its responder sets.

use crate::time::Instant;
use crate::wire::Msn;

/// MSNs have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// Messages of one requester, counted from the first one captured, and the responder's limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Messages begun, and how many of them take no receive.
    begun: u32,
    without_receive: u32,
    /// Difference of the responder's count of messages and the one kept here.
    offset: Option<u32>,
    /// Last message that may be begun, by the count kept here.
    limit: Option<u32>,
    /// Time when the responder first set a limit.
    since: Instant,
    /// The responder does not count, or its counts contradict each other.
    is_unlimited: bool,
}

/// Number of a message, and how many of those up to it take no receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageNumber {
    /// 0: it began before the capture.
    pub(super) number: u32,
    pub(super) without_receive: u32,
}

impl Credits {
    /// The last message that was begun.
    pub(super) fn last(&self) -> MessageNumber {
        MessageNumber { number: self.begun, without_receive: self.without_receive }
    }

    /// Begins a message. Returns its number.
    pub(super) fn begin(&mut self, takes_receive: bool) -> u32 {
        self.begun = self.begun.wrapping_add(1);
        if !takes_receive {
            self.without_receive = self.without_receive.wrapping_add(1);
            self.limit = self.limit.map(|limit| limit.saturating_add(1));
        }
        self.begun
    }

    /// Counts the last message as one that takes a receive: a WRITE shows that in its last packet.
    pub(super) fn take_receive(&mut self) {
        self.without_receive = self.without_receive.saturating_sub(1);
        self.limit = self.limit.map(|limit| limit.saturating_sub(1));
    }

    /// Number of the last message that may be begun, and the time when the responder first set a
    /// limit; `None` if it sets none.
    pub(super) fn limit(&self) -> Option<(u32, Instant)> {
        let limit = self.limit.filter(|_| !self.is_unlimited)?;
        Some((limit, self.since))
    }

    /// Takes the credits of an acknowledgement; `None`: the responder gives no credits. `message`
    /// is the message of the acknowledged packet, and whether later packets belong to it.
    pub(super) fn acknowledge(
        &mut self,
        message: Option<(MessageNumber, bool)>,
        count: Option<u32>,
        msn: Msn,
        now: Instant,
    ) {
        let Some(count) = count else {
            self.is_unlimited = true;
            return;
        };
        let Some((message, is_open)) = message.filter(|(message, _)| message.number > 0) else {
            return;
        };
        if self.is_unlimited {
            return;
        }
        // Messages that are complete when this packet is acknowledged.
        let completed = message.number.saturating_sub(is_open.into());
        let offset = msn.get().wrapping_sub(completed) & MSN_MASK;
        let known = *self.offset.get_or_insert(offset);
        // The count may be newer than the PSN.
        let ahead = offset.wrapping_sub(known) & MSN_MASK;
        if ahead > self.begun.saturating_sub(completed) {
            self.is_unlimited = true;
            return;
        }
        let without = self.without_receive.saturating_sub(message.without_receive);
        let limit = completed.saturating_add(ahead).saturating_add(count).saturating_add(without);
        if self.limit.is_none() {
            self.since = now;
        }
        self.limit = Some(self.limit.map_or(limit, |known| known.max(limit)));
    }
}
