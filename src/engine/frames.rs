//! Raw packets: whole frames, of any protocol, that programs make and take apart themselves.
//!
//! Every frame that such a queue pair sends goes onto the wire. A queue pair of this port whose rule asks for the frame
//! gets a copy, as through the switch of an RNIC; a rule for all that no other rule takes does not ask for it. What comes
//! from the wire goes where a rule steers it, and nowhere without one.

use super::Engine;
use crate::time::Instant;
use crate::verbs::{
    CreateError, DestroyError, ETHERNET_LEN, EventType, FlowHandle, FlowKind, FlowRule,
    FrameHeaders, Id, QpHandle, QpState, QpType, Wc, WcOpcode, WcStatus,
};

/// With so many frames waiting to be sent, nobody has a turn.
pub(super) const FRAMES_MAX: usize = 256;

/// The most rules.
const RULES_MAX: usize = 4096;

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Wire,
    /// A queue pair of this port.
    Local,
    /// A queue pair of this port whose wire brings sent frames back.
    Echo,
}

/// A rule, and to whom it steers.
#[derive(Debug)]
pub(super) struct Steering {
    handle: FlowHandle,
    rule: FlowRule,
    qp: QpHandle,
}

impl Engine {
    /// Makes a rule that steers frames to a queue pair of raw packets.
    pub fn create_flow(&mut self, qp: QpHandle, rule: FlowRule) -> Result<FlowHandle, CreateError> {
        match self.qp_kind(qp) {
            Some(QpType::RawPacket) => {}
            Some(_) => return Err(CreateError::Invalid("frames go to queue pairs of raw packets")),
            None => return Err(CreateError::NotFound("queue pair")),
        }
        if self.rules.len() >= RULES_MAX {
            return Err(CreateError::Full);
        }
        self.rules_made = self.rules_made.wrapping_add(1);
        let handle = FlowHandle(Id(self.rules_made));
        // Behind all that are as important, so that the first that suits is the one.
        let at = self.rules.partition_point(|other| other.rule.priority <= rule.priority);
        self.rules.insert(at, Steering { handle, rule, qp });
        Ok(handle)
    }

    /// Unmakes a rule.
    pub fn destroy_flow(&mut self, flow: FlowHandle) -> Result<(), DestroyError> {
        let at = self.rules.iter().position(|steering| steering.handle == flow);
        self.rules.remove(at.ok_or(DestroyError::NotFound)?);
        Ok(())
    }

    /// Whether any rule steers to a queue pair.
    pub(super) fn has_rules(&self, qp: QpHandle) -> bool {
        self.rules.iter().any(|steering| steering.qp == qp)
    }

    /// Takes in a frame from the wire; whether a rule was for it.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> bool {
        self.env.advance(now);
        self.steer_frame(frame, Origin::Wire)
    }

    /// Gives a frame to the queue pairs whose rules are for it; whether any was.
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
            let taken = match qp.spread() {
                Some(spread) => env.spread_frame(spread, frame, &headers),
                None => qp.receive_frame(frame, env),
            };
            if let Err(reason) = taken {
                env.count(reason);
            }
        }
        steered
    }

    /// Whether frames wait to be sent.
    pub fn has_frames(&self) -> bool {
        !self.env.frames.is_empty()
    }

    /// The next frame that is for the wire. May have more after [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.env.frames.pop_front()?;
            if self.env.config.frames_hairpin {
                self.steer_frame(&frame, Origin::Local);
                return Some(frame);
            }
            // The wire would bring a frame back that was handed over here.
            if !self.steer_frame(&frame, Origin::Echo) {
                return Some(frame);
            }
        }
    }
}
