//! The connection manager of a soft NIC: a [`CmService`] with one NIC.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::backend::{Backend, Event, Id};
use super::deadline::Deadline;
use super::error::Error;
use super::{CmService, Config};
use crate::cm::{
    ChannelId, CmId, ConnParam, DeviceId, EventKind, EventParam, IdOption, Manager, PrivateData,
    RejectReason,
};
use crate::nic::SoftNic;
use crate::time::Instant;
use crate::verbs::{AttrMask, EventType, QpAttr, QpState, QpType};
use crate::wire::cm::PortSpace;

/// Time for which a dropped manager waits for peers to answer its DREQs and REJs.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// A service with one NIC, which ends with its last id.
#[derive(Debug)]
pub(super) struct Soft(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    service: CmService,
    device: DeviceId,
    waiters: Arc<Waiters>,
}

impl Soft {
    pub(super) fn start(nic: &SoftNic, config: Config) -> io::Result<Self> {
        let waiters = Arc::<Waiters>::default();
        let readable = Arc::clone(&waiters);
        let service = CmService::start(config, move |channel| readable.wake(channel))?;
        let device = service.add_nic(nic)?;
        Ok(Self(Arc::new(Shared { service, device, waiters })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.service.shutdown(LAST_WORDS);
    }
}

impl Backend for Soft {
    fn create_id(&self) -> Result<Box<dyn Id>, Error> {
        let shared = Arc::clone(&self.0);
        let (channel, number) = shared.service.command(|manager, _| {
            let channel = manager.create_channel()?;
            let number = manager.create_id(channel, 0, PortSpace::TCP, QpType::Rc);
            Ok::<_, crate::cm::Error>((channel, number?))
        })??;
        shared.waiters.insert(channel);
        Ok(Box::new(SoftId { shared, number, channel }))
    }

    fn preferred_source(&self, to: SocketAddr) -> Option<IpAddr> {
        self.0.service.route_to(to, None).ok()?.ok()?.source
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let addresses = self.0.service.command(|manager, _| {
            let device = manager.device(self.0.device);
            device.map(|device| device.addresses.clone()).unwrap_or_default()
        })?;
        Ok(addresses.into_iter().map(|(address, _)| address).collect())
    }

    fn service(&self) -> Option<&CmService> {
        Some(&self.0.service)
    }
}

/// An id with a channel of its own. Dropping it destroys both.
#[derive(Debug)]
struct SoftId {
    shared: Arc<Shared>,
    number: CmId,
    channel: ChannelId,
}

impl SoftId {
    /// The id of a request, moved to a channel of its own. Its events wake those that wait for its
    /// listener.
    fn of_request(shared: &Arc<Shared>, listener: ChannelId, number: CmId) -> Result<Self, Error> {
        let channel = shared.service.command(|manager, _| {
            let channel = manager.create_channel()?;
            manager.migrate_id(number, channel)?;
            Ok::<_, crate::cm::Error>(channel)
        })??;
        shared.waiters.set(channel, shared.waiters.get(listener));
        Ok(Self { shared: Arc::clone(shared), number, channel })
    }

    fn command<R>(
        &self,
        run: impl FnOnce(&mut Manager, Instant, CmId) -> Result<R, crate::cm::Error>,
    ) -> Result<R, Error> {
        Ok(self.shared.service.command(|manager, now| run(manager, now, self.number))??)
    }

    /// Takes the next event, if there is one.
    fn take(&self) -> Result<Option<Event>, Error> {
        loop {
            let channel = self.channel;
            let event = self.shared.service.command(|manager, _| manager.poll_event(channel))?;
            let Some(event) = event else { return Ok(None) };
            if event.kind != EventKind::ConnectRequest {
                return Ok(Some(translate(&event, None)));
            }
            // The request is gone if its peer gave up meanwhile.
            if let Ok(id) = Self::of_request(&self.shared, channel, event.id) {
                return Ok(Some(translate(&event, Some(Box::new(id)))));
            }
        }
    }
}

/// An event of the manager in the words of this room.
fn translate(event: &crate::cm::Event, request: Option<Box<dyn Id>>) -> Event {
    let (private_data, responder_resources, initiator_depth) = match &event.param {
        EventParam::Conn(conn) => {
            (conn.private_data, conn.responder_resources, conn.initiator_depth)
        }
        EventParam::Ud(ud) => (ud.private_data, 0, 0),
        EventParam::None => (PrivateData::NONE, 0, 0),
    };
    Event {
        kind: event.kind,
        status: event.status,
        private_data,
        responder_resources,
        initiator_depth,
        request,
    }
}

impl Id for SoftId {
    fn listen(&self, at: SocketAddr) -> Result<(), Error> {
        self.shared.service.bind(self.number, at)??;
        Ok(self.shared.service.listen(self.number, 0)??)
    }

    fn source(&self) -> Option<SocketAddr> {
        self.shared.service.command(|manager, _| manager.source(self.number)).ok()?
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.shared.service.command(|manager, _| manager.destination(self.number)).ok()?
    }

    fn wait(&self, deadline: Deadline) -> Result<Event, Error> {
        let waiter = self.shared.waiters.get(self.channel);
        loop {
            let seen = waiter.rings();
            if let Some(event) = self.take()? {
                return Ok(event);
            }
            if !waiter.wait(seen, deadline) {
                // It may have come at the last moment.
                return self.take()?.ok_or(Error::Timeout);
            }
        }
    }

    fn waker(&self) -> Option<Arc<Waiter>> {
        Some(self.shared.waiters.get(self.channel))
    }

    fn set_waker(&self, waker: Arc<Waiter>) {
        self.shared.waiters.set(self.channel, waker);
    }

    fn leave_listener(&self) {
        self.shared.waiters.set(self.channel, Arc::default());
    }

    fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        tos: Option<u8>,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.command(|manager, now, id| {
            if let Some(tos) = tos {
                manager.set_option(id, IdOption::Tos(tos))?;
            }
            manager.resolve_addr(now, id, source, to, timeout)
        })
    }

    fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        self.command(|manager, _, id| manager.resolve_route(id, timeout))
    }

    fn connect(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        self.command(|manager, now, id| manager.connect(now, id, param))
    }

    fn qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        self.command(|manager, _, id| manager.qp_attr(id, state))
    }

    fn selective_repeat(&self) -> bool {
        let service = &self.shared.service;
        service.command(|manager, _| manager.selective_repeat(self.number)).unwrap_or(false)
    }

    fn establish(&self) -> Result<(), Error> {
        self.command(|manager, _, id| manager.establish(id))
    }

    fn accept(&self, param: &ConnParam<'_>) -> Result<(), Error> {
        self.command(|manager, now, id| manager.accept(now, id, 0, param))
    }

    fn notify_established(&self) -> Result<(), Error> {
        self.command(|manager, _, id| manager.notify(id, EventType::CommEst))
    }

    fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let reason = RejectReason::Consumer;
        self.command(|manager, now, id| manager.reject(now, id, reason, private_data))
    }

    fn disconnect(&self) -> Result<(), Error> {
        self.command(|manager, now, id| manager.disconnect(now, id))
    }
}

impl Drop for SoftId {
    fn drop(&mut self) {
        // A service that was shut down has destroyed it.
        let _ =
            self.shared.service.command(|manager, now| manager.close_channel(now, self.channel));
        self.shared.waiters.remove(self.channel);
    }
}

/// The threads that wait for events, by channel.
#[derive(Debug, Default)]
struct Waiters(Mutex<HashMap<ChannelId, Arc<Waiter>>>);

/// Threads that wait for events of a channel, or of several.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    /// Number of times the channel became readable. Several threads may wait for one, and each
    /// compares with what it saw.
    rings: Mutex<u64>,
    changed: Condvar,
}

impl Waiters {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ChannelId, Arc<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, channel: ChannelId) {
        self.lock().entry(channel).or_default();
    }

    fn get(&self, channel: ChannelId) -> Arc<Waiter> {
        Arc::clone(self.lock().entry(channel).or_default())
    }

    /// Has the events of a channel wake these.
    fn set(&self, channel: ChannelId, waiter: Arc<Waiter>) {
        self.lock().insert(channel, waiter);
    }

    fn remove(&self, channel: ChannelId) {
        self.lock().remove(&channel);
    }

    /// Called with the manager locked.
    fn wake(&self, channel: ChannelId) {
        let waiter = self.lock().get(&channel).cloned();
        if let Some(waiter) = waiter {
            *waiter.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            waiter.changed.notify_all();
        }
    }
}

impl Waiter {
    pub(super) fn rings(&self) -> u64 {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was rung more often than `seen`; false after the deadline.
    pub(super) fn wait(&self, seen: u64, deadline: Deadline) -> bool {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let is_quiet = |rings: &mut u64| *rings == seen;
        let rings = match deadline.remaining() {
            None => self.changed.wait_while(rings, is_quiet),
            Some(timeout) => self
                .changed
                .wait_timeout_while(rings, timeout, is_quiet)
                .map(|(rings, _)| rings)
                .map_err(|error| PoisonError::new(error.into_inner().0)),
        };
        *rings.unwrap_or_else(PoisonError::into_inner) != seen
    }
}
