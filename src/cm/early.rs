//! Requests that come before their listener.
//!
//! Some programs listen anew for each connection: perftest does for its second one, while the peer,
//! which was told of the first by the same REP, asks for it already. Between processes of one host
//! the peer can be the first of both. With [`Config::listen_grace`](super::Config::listen_grace) a
//! request for which nothing listens waits for that long, and is looked at once more; only then it
//! is refused. Its duplicates are refused then, too, even if something listens by now: the peer has
//! given up.

use std::collections::VecDeque;

use super::Manager;
use super::counters::Counter;
use super::limits::EARLY_REQUESTS;
use super::message::SidrStatus;
use super::receive::{Arrival, Received};
use super::table::DeviceId;
use crate::time::Instant;
use crate::wire::Gid;
use crate::wire::cm::Message;
use crate::wire::mad::MAD_LEN;

/// Key of a request and its duplicates: its sender, and the comm id or number that it gave it.
type Key = (Gid, bool, u32);

/// The requests that came before their listener.
#[derive(Debug, Default)]
pub(super) struct EarlyRequests {
    /// Requests that wait, by the time at which they are handled once more.
    waiting: VecDeque<Early>,
    /// Requests that were refused, and when.
    refused: VecDeque<(Instant, Key)>,
}

/// A request that waits for its listener.
#[derive(Debug)]
struct Early {
    /// Time at which it is handled once more.
    due: Instant,
    key: Key,
    device: DeviceId,
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    mad: [u8; MAD_LEN],
}

impl EarlyRequests {
    /// Returns the number of requests that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the time at which the first one is handled once more.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|early| early.due)
    }
}

impl Manager {
    /// Handles a request that came before its listener, or is a duplicate of one; returns `None` if
    /// it is neither.
    pub(super) fn handle_early(
        &mut self,
        now: Instant,
        received: &Received<'_>,
        arrival: &Arrival<'_>,
        message: &Message<'_>,
    ) -> Option<Result<(), Counter>> {
        let (grace, hold) = (self.config.listen_grace, self.config.answer_hold);
        let (service, header, key, is_known) = match message {
            Message::Req(req) => {
                let id = req.local_comm_id().0;
                let is_known =
                    self.by_remote_id.contains_key(&(received.source.0, req.local_ca_guid(), id));
                (req.service_id(), req.ip_cm(), (received.source, true, id), is_known)
            }
            Message::SidrReq(req) => {
                let id = req.request_id().0;
                let is_known = self.by_sidr.contains_key(&(received.source.0, id));
                (req.service_id(), req.ip_cm(), (received.source, false, id), is_known)
            }
            _ => return None,
        };
        if is_known {
            return None;
        }
        let EarlyRequests { waiting, refused } = &mut self.early;
        while refused.front().is_some_and(|(at, _)| at.saturating_add(hold) <= now) {
            refused.pop_front();
        }
        if refused.iter().any(|(_, other)| *other == key) {
            return Some(Err(self.refuse_unlistened(arrival, message)));
        }
        if waiting.iter().any(|other| other.key == key) {
            return Some(Err(Counter::DuplicateReq));
        }
        let is_early = !grace.is_zero()
            && waiting.len() < EARLY_REQUESTS
            && service.to_rdma_cm().is_some()
            && self.listener_for(arrival, service, header) == Err(Counter::NoListener);
        if !is_early {
            return None;
        }
        let mad = received.mad.try_into().ok()?;
        let Received { device, source, destination, traffic_class, .. } = *received;
        let due = now.saturating_add(grace);
        let early = Early { due, key, device, source, destination, traffic_class, mad };
        self.early.waiting.push_back(early);
        self.counters.add(Counter::Early);
        Some(Ok(()))
    }

    /// Looks once more at the requests that are due.
    pub(super) fn release_early(&mut self, now: Instant) {
        while self.early.due().is_some_and(|due| due <= now) {
            let Some(early) = self.early.waiting.pop_front() else { return };
            let Early { key, device, source, destination, traffic_class, ref mad, .. } = early;
            let received = Received { device, source, destination, traffic_class, mad };
            let Err(reason) = self.accept_mad(now, &received, false) else { continue };
            self.counters.add(reason);
            if reason == Counter::NoListener {
                self.early.refused.push_back((now, key));
                if self.early.refused.len() > EARLY_REQUESTS {
                    self.early.refused.pop_front();
                }
            }
        }
    }

    /// Refuses a request for which nothing listens.
    fn refuse_unlistened(&mut self, arrival: &Arrival<'_>, message: &Message<'_>) -> Counter {
        match message {
            Message::Req(req) => self.refuse_unlistened_req(arrival, req),
            Message::SidrReq(req) => {
                let (status, reason) = (SidrStatus::UnsupportedService, Counter::NoListener);
                self.refuse_sidr(arrival, req, status, reason)
            }
            _ => Counter::NoListener,
        }
    }
}
