//! Selection of the next work request to post.

use super::frame::{Immediate, READ_MASK};
use super::{Core, EAGER_PART, End, Inflight, Local, Out, Post, Records, SIGNAL_EVERY};
use crate::verbs::{SendOp, WrId};

impl Core {
    /// Number of receives to post, each without memory, by [`receive_id`]. May change after any
    /// completion.
    #[must_use]
    #[inline]
    pub(crate) fn poll_receives(&mut self) -> u32 {
        std::mem::take(&mut self.receives_due)
    }

    /// Number of receives that wait to be posted.
    #[inline]
    pub(crate) fn receives_due(&self) -> u32 {
        self.receives_due
    }

    /// The next work request to post. May change after any command or completion.
    #[must_use]
    #[inline]
    pub(crate) fn poll_post(&mut self) -> Option<Post> {
        if self.failure.is_some() || self.inflight.len() >= self.inflight_max {
            return None;
        }
        self.poll_chunk().or_else(|| self.poll_outbox()).or_else(|| self.poll_control())
    }

    fn poll_chunk(&mut self) -> Option<Post> {
        let (op, chunk) = self.fetch.as_mut()?.poll_chunk(self.landing)?;
        let local = Local::Staging { offset: chunk.offset, len: chunk.len };
        Some(self.post(op, local, Inflight::Chunk, true))
    }

    fn poll_outbox(&mut self) -> Option<Post> {
        let out = *self.outbox.front()?;
        if !matches!(out, Out::Operation(..)) && !self.outbound.has_credit_for(1) {
            return None;
        }
        self.outbox.pop_front();
        Some(match out {
            Out::Records(records) => {
                let Records { offset, len, .. } = records;
                self.post_records(records, Local::Staging { offset, len })
            }
            Out::Lent { records, payload, number } => {
                let Records { offset, len, .. } = records;
                self.post_records(records, Local::Lent { offset, len, payload, number })
            }
            Out::Operation(op, number) => {
                self.post(op, Local::Operation(number), Inflight::Operation, true)
            }
        })
    }

    fn poll_control(&mut self) -> Option<Post> {
        let (is_end, closes) = match self.end {
            End::Finishing if self.outbox.is_empty() => (true, false),
            End::Closing if self.outbox.is_empty() => (true, true),
            _ => (false, false),
        };
        if is_end {
            self.end = if closes { End::Closed } else { End::Finished };
        }
        if is_end || self.inbound.is_credit_due() || self.read != self.read_told {
            let imm = self.immediate(closes, is_end);
            let op = self.write_op(0, imm);
            return Some(self.post(op, Local::None, Inflight::Control, is_end));
        }
        if std::mem::take(&mut self.is_probe_due) {
            // Without immediate data it takes no receive of the peer's.
            let op = SendOp::Write { remote_addr: self.peer.addr, rkey: self.peer.rkey, imm: None };
            return Some(self.post(op, Local::None, Inflight::Control, true));
        }
        None
    }

    /// Returns the report for the peer in the immediate data of the next WRITE.
    #[inline]
    fn immediate(&mut self, wraps: bool, is_end: bool) -> Immediate {
        self.read_told = self.read;
        Immediate {
            consumed: self.inbound.report_consumed(),
            read: self.read & READ_MASK,
            wraps,
            is_end,
        }
    }

    #[inline]
    fn write_op(&self, offset: u32, imm: Immediate) -> SendOp {
        let remote_addr = self.peer.addr.wrapping_add(u64::from(offset));
        SendOp::Write { remote_addr, rkey: self.peer.rkey, imm: Some(imm.emit()) }
    }

    #[inline]
    pub(super) fn post_records(&mut self, records: Records, local: Local) -> Post {
        let end = records.end();
        let is_lent = matches!(local, Local::Lent { .. });
        self.outbound.post(end, records.messages, is_lent);
        let imm = self.immediate(records.wraps, false);
        let op = self.write_op(records.offset, imm);
        self.unsignaled_bytes += records.len;
        let is_due = self.unsignaled_bytes >= self.peer.size / (2 * EAGER_PART);
        // Who lent a payload waits for its completion.
        let what = if is_lent { Inflight::Lent(end) } else { Inflight::Records(end) };
        self.post(op, local, what, is_due || is_lent)
    }

    #[inline]
    fn post(&mut self, op: SendOp, local: Local, what: Inflight, must_signal: bool) -> Post {
        self.unsignaled += 1;
        let is_signaled = must_signal || self.unsignaled >= SIGNAL_EVERY;
        if is_signaled {
            (self.unsignaled, self.unsignaled_bytes) = (0, 0);
        }
        let id = WrId(self.sequence);
        self.sequence += 1;
        if is_signaled {
            self.signaled_end = self.sequence;
        }
        if must_signal || !matches!(what, Inflight::Control) {
            self.needed_end = self.sequence;
        }
        self.inflight.push_back(what);
        Post { id, op, local, is_signaled }
    }
}
