//! Raw packet queue pairs: whole frames of any protocol, and the flow rules that steer them.
//!
//! Every frame that such a queue pair sends goes onto the wire. A queue pair of this port whose flow rule matches the frame
//! gets a copy, as through the switch of an RNIC; the default rule does not match it. A frame from the wire goes to the
//! queue pair that a rule names, and is dropped without one.

use super::Engine;
use crate::time::Instant;
use crate::verbs::{
    CreateError, DestroyError, FlowHandle, FlowKind, FlowRule, FrameHeaders, Id, QpHandle, QpType,
};

/// Maximum number of frames to send: with more, no queue pair sends.
pub(super) const FRAMES_MAX: usize = 256;

/// Maximum number of flow rules.
const RULES_MAX: usize = 4096;

/// Origin of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Wire,
    /// A queue pair of this port.
    Local,
    /// A queue pair of this port whose wire brings sent frames back.
    Echo,
}

/// A flow rule, and the queue pair that it steers to.
#[derive(Debug)]
pub(super) struct Steering {
    handle: FlowHandle,
    rule: FlowRule,
    qp: QpHandle,
}

impl Engine {
    /// Creates a flow rule that steers frames to a raw packet queue pair.
    pub fn create_flow(&mut self, qp: QpHandle, rule: FlowRule) -> Result<FlowHandle, CreateError> {
        match self.qp_kind(qp) {
            Some(QpType::RawPacket) => {}
            Some(_) => {
                return Err(CreateError::Invalid("a flow rule needs a raw packet queue pair"));
            }
            None => return Err(CreateError::NotFound("queue pair")),
        }
        if self.rules.len() >= RULES_MAX {
            return Err(CreateError::Full);
        }
        self.rules_made = self.rules_made.wrapping_add(1);
        let handle = FlowHandle(Id::new(self.env.device, self.rules_made));
        // Behind all of the same priority, so that the first match wins.
        let at = self.rules.partition_point(|other| other.rule.priority <= rule.priority);
        self.rules.insert(at, Steering { handle, rule, qp });
        Ok(handle)
    }

    /// Destroys a flow rule.
    pub fn destroy_flow(&mut self, flow: FlowHandle) -> Result<(), DestroyError> {
        let at = self.rules.iter().position(|steering| steering.handle == flow);
        self.rules.remove(at.ok_or(DestroyError::NotFound)?);
        Ok(())
    }

    /// Whether any flow rule steers to a queue pair.
    pub(super) fn has_rules(&self, qp: QpHandle) -> bool {
        self.rules.iter().any(|steering| steering.qp == qp)
    }

    /// Handles a frame from the wire; returns whether a flow rule matched.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> bool {
        self.env.advance(now);
        self.steer_frame(frame, Origin::Wire)
    }

    /// Delivers a frame to the queue pairs whose flow rules match; returns whether any did.
    fn steer_frame(&mut self, frame: &[u8], origin: Origin) -> bool {
        let Some(headers) = FrameHeaders::parse(frame) else { return false };
        let suits = |kind: FlowKind| {
            let mut rules = self.rules.iter();
            let suitable = move |it: &&Steering| it.rule.kind == kind && it.rule.accepts(&headers);
            rules.by_ref().filter(suitable).map(|it| it.qp).collect::<Vec<_>>()
        };
        let mut takers: Vec<QpHandle> = suits(FlowKind::Normal).into_iter().take(1).collect();
        if takers.is_empty() && headers.is_multicast() {
            takers = suits(FlowKind::McDefault);
        }
        if takers.is_empty() && origin == Origin::Wire {
            takers = suits(FlowKind::AllDefault).into_iter().take(1).collect();
        }
        let steered = !takers.is_empty();
        if origin == Origin::Echo && !steered {
            return false;
        }
        for taker in takers.into_iter().chain(suits(FlowKind::Sniffer)) {
            let Some((qp, env)) = self.split_handle(taker) else { continue };
            let taken = match qp.rss() {
                Some(rss) => env.receive_by_rss(rss, frame, &headers),
                None => qp.receive_frame(frame, env),
            };
            if let Err(reason) = taken {
                env.count(reason);
            }
        }
        steered
    }

    /// Whether there are frames to send.
    pub fn has_frames(&self) -> bool {
        !self.env.frames.is_empty()
    }

    /// Returns the next frame for the wire. May have more after [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.env.frames.pop_front()?;
            if self.env.config.frames_hairpin {
                self.steer_frame(&frame, Origin::Local);
                return Some(frame);
            }
            // The wire would bring back a frame that was delivered here.
            if !self.steer_frame(&frame, Origin::Echo) {
                return Some(frame);
            }
        }
    }
}
