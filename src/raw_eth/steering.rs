//! Flow steering: selects the queue pairs that receive a frame.

use std::collections::BTreeMap;

use super::flow::{FlowKind, FlowRule, FrameHeaders};
use super::rss::Rss;
use super::wq::{WqHandle, raw_packet};
use crate::engine::Engine;
use crate::time::Instant;
use crate::verbs::{CqHandle, CreateError, DestroyError, Id, PdHandle, QpCap, QpHandle, QpType};

/// Maximum number of flow rules.
const RULES_MAX: usize = 4096;

/// A flow rule of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowHandle(Id);

/// Origin of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Wire,
    /// A queue pair of this port.
    Local,
    /// A queue pair of this port whose wire brings sent frames back.
    Echo,
}

/// The flow rules and RSS tables of one port. Its methods take the engine that has the queue pairs.
#[derive(Debug)]
pub struct Steering {
    /// Rules by priority, oldest first.
    rules: Vec<Installed>,
    /// Number of flow rules ever created.
    created: u32,
    /// Queue pairs with RSS.
    rss: BTreeMap<QpHandle, Rss>,
    is_echoing: bool,
}

/// A flow rule, and the queue pair that it steers to.
#[derive(Debug)]
struct Installed {
    handle: FlowHandle,
    rule: FlowRule,
    qp: QpHandle,
}

impl Steering {
    /// No rules. `is_echoing`: whether sent frames come back from the wire, as on the loopback
    /// interface. If they do not, a sent frame that a rule matches is delivered locally and sent;
    /// if they do, it is delivered locally and not sent.
    pub fn new(is_echoing: bool) -> Self {
        Self { rules: Vec::new(), created: 0, rss: BTreeMap::new(), is_echoing }
    }

    /// Creates a flow rule that steers frames to a raw packet queue pair.
    pub fn create_flow(
        &mut self,
        engine: &Engine,
        qp: QpHandle,
        rule: FlowRule,
    ) -> Result<FlowHandle, CreateError> {
        match engine.qp_kind(qp) {
            Some(QpType::RawPacket) => {}
            Some(_) => {
                return Err(CreateError::Invalid("a flow rule needs a raw packet queue pair"));
            }
            None => return Err(CreateError::NotFound("queue pair")),
        }
        if self.rules.len() >= RULES_MAX {
            return Err(CreateError::Full);
        }
        self.created = self.created.wrapping_add(1);
        let handle = FlowHandle(Id::new(qp.0.device(), self.created));
        // After all of the same priority, so that the oldest applies.
        let at = self.rules.partition_point(|other| other.rule.priority <= rule.priority);
        self.rules.insert(at, Installed { handle, rule, qp });
        Ok(handle)
    }

    /// Destroys a flow rule.
    pub fn destroy_flow(&mut self, flow: FlowHandle) -> Result<(), DestroyError> {
        let at = self.rules.iter().position(|installed| installed.handle == flow);
        self.rules.remove(at.ok_or(DestroyError::NotFound)?);
        Ok(())
    }

    /// Creates a raw packet queue pair that receives into several WQs and does not send. It is
    /// ready at once, and completes nothing to `cq`.
    pub fn create_rss_qp(
        &mut self,
        engine: &mut Engine,
        pd: PdHandle,
        cq: CqHandle,
        rss: Rss,
    ) -> Result<QpHandle, CreateError> {
        let exists = |wq: &WqHandle| engine.qp_kind(wq.0).is_some();
        if !rss.queues.len().is_power_of_two() || !rss.queues.iter().all(exists) {
            return Err(CreateError::NotFound("receive queue"));
        }
        let qp = engine.create_qp(pd, raw_packet(QpCap::default(), cq))?;
        self.rss.insert(qp, rss);
        Ok(qp)
    }

    /// Destroys a queue pair of any type that no flow rule steers to.
    pub fn destroy_qp(&mut self, engine: &mut Engine, qp: QpHandle) -> Result<(), DestroyError> {
        if self.rules.iter().any(|installed| installed.qp == qp) {
            return Err(DestroyError::Busy);
        }
        engine.destroy_qp(qp)?;
        self.rss.remove(&qp);
        Ok(())
    }

    /// Whether an indirection table of a queue pair has this WQ.
    pub(super) fn is_in_table(&self, wq: WqHandle) -> bool {
        self.rss.values().any(|rss| rss.queues.contains(&wq))
    }

    /// Handles a frame from the wire; returns whether a flow rule matched.
    pub fn handle_frame(&self, engine: &mut Engine, now: Instant, frame: &[u8]) -> bool {
        self.steer(engine, now, frame, Origin::Wire)
    }

    /// Returns the next frame for the wire. May have more after [`Engine::poll_transmit`].
    #[must_use]
    pub fn poll_frame(&self, engine: &mut Engine, now: Instant) -> Option<Vec<u8>> {
        let origin = if self.is_echoing { Origin::Echo } else { Origin::Local };
        loop {
            let frame = engine.poll_frame()?;
            let is_delivered = self.steer(engine, now, &frame, origin);
            // The wire would bring back a frame that was delivered here.
            if !(self.is_echoing && is_delivered) {
                return Some(frame);
            }
        }
    }

    /// Delivers a frame to the queue pairs whose flow rules match; returns whether any did.
    fn steer(&self, engine: &mut Engine, now: Instant, frame: &[u8], origin: Origin) -> bool {
        let Some(headers) = FrameHeaders::parse(frame) else { return false };
        let matching = |kind: FlowKind| {
            let of_kind = self.rules.iter().filter(move |it| it.rule.kind == kind);
            of_kind.filter(|it| it.rule.matches(&headers)).map(|it| it.qp)
        };
        let mut takers: Vec<QpHandle> = matching(FlowKind::Normal).take(1).collect();
        if takers.is_empty() && headers.is_multicast() {
            takers.extend(matching(FlowKind::McDefault));
        }
        if takers.is_empty() && origin == Origin::Wire {
            takers.extend(matching(FlowKind::AllDefault).take(1));
        }
        let is_steered = !takers.is_empty();
        if origin == Origin::Echo && !is_steered {
            return false;
        }
        for taker in takers.into_iter().chain(matching(FlowKind::Sniffer)) {
            let qp = match self.rss.get(&taker) {
                Some(rss) => rss.select(&headers).map(|wq| wq.0),
                None => Some(taker),
            };
            if let Some(qp) = qp {
                engine.receive_frame(now, qp, frame);
            }
        }
        is_steered
    }
}
