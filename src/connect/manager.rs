//! Connections for programs in Rust: a connection manager on one NIC, and calls that block.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::connection::Connection;
use super::error::Error;
use super::listener::Listener;
use super::{CmService, Config};
use crate::cm::{
    ChannelId, CmId, ConnParam, DeviceId, Event, EventKind, EventParam, IdOption, PrivateData,
};
use crate::device::Device as _;
use crate::nic::SoftNic;
use crate::time::Instant;
use crate::verbs::{AttrMask, Errno, QpAttr, QpHandle, QpState, QpType};
use crate::wire::aeth::RnrTimer;
use crate::wire::cm::PortSpace;
use crate::wire::{Bits, Qpn};

/// How long a dropped manager waits for peers to answer its DREQs and REJs.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// The receiver-not-ready timer of connected queue pairs: 0.64 ms. That of Linux, 655 ms, makes a receive that is posted
/// late costly.
const RNR_TIMER: RnrTimer = RnrTimer(Bits::low(12));

/// What one side wants of a connection. The default is what most programs want.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options<'a> {
    /// Data for the peer's program: at most 56 bytes to connect, 196 to accept, 148 to reject. The peer sees zeros behind it.
    pub private_data: &'a [u8],
    /// Maximum number of READs and atomics of the peer that are served at a time.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics in flight.
    pub initiator_depth: u8,
    /// Maximum number of retransmissions without progress; at most 7.
    pub retry_count: u8,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry_count: u8,
    /// Type of service: the traffic class of the connection's packets.
    pub tos: Option<u8>,
    /// How long the call may take.
    pub timeout: Duration,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            tos: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl<'a> Options<'a> {
    /// The default options, with data for the peer's program.
    pub fn with_private_data(private_data: &'a [u8]) -> Self {
        Self { private_data, ..Self::default() }
    }

    pub(super) fn param(&self, qpn: Qpn) -> ConnParam<'a> {
        ConnParam {
            private_data: self.private_data,
            qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..ConnParam::default()
        }
    }
}

/// The connection manager of a NIC, for programs in Rust. See the [module](super).
///
/// Any number of threads may use it. It ends with its last listener or connection, and sends a DREQ for each connection
/// that is still established.
#[derive(Clone, Debug)]
pub struct ConnectionManager {
    pub(super) shared: Arc<Shared>,
}

/// What a manager, its listeners and its connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) service: CmService,
    pub(super) nic: Arc<SoftNic>,
    device: DeviceId,
    waiters: Arc<Waiters>,
}

impl ConnectionManager {
    /// Starts a connection manager on a NIC.
    pub fn start(nic: Arc<SoftNic>) -> io::Result<Self> {
        Self::start_with(nic, Config::default())
    }

    /// Starts a connection manager with other timers or bounds.
    pub fn start_with(nic: Arc<SoftNic>, config: Config) -> io::Result<Self> {
        let waiters = Arc::<Waiters>::default();
        let readable = Arc::clone(&waiters);
        let service = CmService::start(config, move |channel| readable.wake(channel))?;
        let device = service.add_nic(&nic)?;
        Ok(Self { shared: Arc::new(Shared { service, nic, device, waiters }) })
    }

    /// Returns its NIC.
    pub fn nic(&self) -> &Arc<SoftNic> {
        &self.shared.nic
    }

    /// Returns the service beneath: its counters, for example.
    pub fn service(&self) -> &CmService {
        &self.shared.service
    }

    /// Listens for requests at an address of the NIC, or all with a wildcard. Port 0 is one that is free.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, Error> {
        let id = Id::create(&self.shared)?;
        let number = id.number;
        self.shared.service.bind(number, address)??;
        self.shared.service.listen(number, 0)??;
        Ok(Listener::new(id))
    }

    /// Takes a queue pair to INIT: receives can be posted to it then, before the peer can send anything.
    pub fn prepare(&self, qp: QpHandle) -> Result<(), Error> {
        self.shared.prepare(qp)
    }

    /// Connects a queue pair of the NIC, which is in RESET or [prepared](Self::prepare), to the peer that listens at an
    /// address.
    pub fn connect(
        &self,
        qp: QpHandle,
        to: SocketAddr,
        options: &Options<'_>,
    ) -> Result<Connection, Error> {
        let shared = &self.shared;
        let qpn = shared.nic.qp_number(qp).ok_or(Error::NoQp)?;
        let deadline = shared.service.now().saturating_add(options.timeout);
        shared.prepare(qp)?;
        let id = Id::create(shared)?;
        let source = shared.source_for(to)?;
        id.command(|manager, now, number| {
            if let Some(tos) = options.tos {
                manager.set_option(number, IdOption::Tos(tos))?;
            }
            manager.resolve_addr(now, number, Some(source), to, options.timeout)
        })?;
        let resolved = id.wait(deadline)?;
        if resolved.kind != EventKind::AddrResolved {
            return Err(id.failure(&resolved, to));
        }
        id.command(|manager, _, number| manager.resolve_route(number, options.timeout))?;
        id.wait(deadline)?;
        id.command(|manager, now, number| manager.connect(now, number, &options.param(qpn)))?;
        let response = id.wait(deadline)?;
        if response.kind != EventKind::ConnectResponse {
            return Err(id.failure(&response, to));
        }
        id.connect_qp(qp)?;
        id.command(|manager, _, number| manager.establish(number))?;
        Ok(Connection::connected(id, qp, &response.param))
    }
}

impl Shared {
    /// The address of the NIC that a peer is reached from: the one that the kernel's route prefers, or the first of the
    /// same family.
    fn source_for(&self, to: SocketAddr) -> Result<SocketAddr, Error> {
        let preferred = crate::link::route::route_to(to, None).ok().and_then(|route| route.source);
        let addresses = self.service.command(|manager, _| {
            let device = manager.device(self.device);
            device.map(|device| device.addresses.clone()).unwrap_or_default()
        })?;
        let same: Vec<IpAddr> = addresses
            .iter()
            .map(|(address, _)| *address)
            .filter(|address| address.is_ipv4() == to.is_ipv4())
            .collect();
        let chosen =
            same.iter().find(|address| Some(**address) == preferred).or_else(|| same.first());
        let chosen = chosen.ok_or(Error::Unresolved { peer: to, error: Errno::ENODEV })?;
        Ok(SocketAddr::new(*chosen, 0))
    }

    pub(super) fn prepare(&self, qp: QpHandle) -> Result<(), Error> {
        match self.nic.qp_state(qp).ok_or(Error::NoQp)? {
            QpState::Init => Ok(()),
            _ => {
                let mask = AttrMask::STATE
                    | AttrMask::PKEY_INDEX
                    | AttrMask::PORT
                    | AttrMask::ACCESS_FLAGS;
                let attr = QpAttr { qp_state: QpState::Init, ..QpAttr::default() };
                self.modify(qp, &attr, mask)
            }
        }
    }

    pub(super) fn modify(&self, qp: QpHandle, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let state = attr.qp_state;
        self.nic.modify_qp(qp, attr, mask).map_err(|error| Error::Qp { state, error })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.service.shutdown(LAST_WORDS);
    }
}

/// An id with a channel of its own. Dropping it destroys both, which tells the peer.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) shared: Arc<Shared>,
    pub(super) number: CmId,
    channel: ChannelId,
}

impl Id {
    fn create(shared: &Arc<Shared>) -> Result<Self, Error> {
        let (channel, number) = shared.service.command(|manager, _| {
            let channel = manager.create_channel()?;
            let number = manager.create_id(channel, 0, PortSpace::TCP, QpType::Rc);
            Ok::<_, crate::cm::Error>((channel, number?))
        })??;
        shared.waiters.insert(channel);
        Ok(Self { shared: Arc::clone(shared), number, channel })
    }

    /// The id of a request, moved to a channel of its own.
    pub(super) fn of_request(shared: &Arc<Shared>, number: CmId) -> Result<Self, Error> {
        let channel = shared.service.command(|manager, _| {
            let channel = manager.create_channel()?;
            manager.migrate_id(number, channel)?;
            Ok::<_, crate::cm::Error>(channel)
        })??;
        shared.waiters.insert(channel);
        Ok(Self { shared: Arc::clone(shared), number, channel })
    }

    pub(super) fn command<R>(
        &self,
        run: impl FnOnce(&mut crate::cm::Manager, Instant, CmId) -> Result<R, crate::cm::Error>,
    ) -> Result<R, Error> {
        Ok(self.shared.service.command(|manager, now| run(manager, now, self.number))??)
    }

    /// Takes the next event, if there is one.
    pub(super) fn take(&self) -> Result<Option<Event>, Error> {
        let channel = self.channel;
        Ok(self.shared.service.command(|manager, _| manager.poll_event(channel))?)
    }

    /// Waits for the next event.
    pub(super) fn wait(&self, deadline: Instant) -> Result<Event, Error> {
        let waiter = self.shared.waiters.get(self.channel);
        loop {
            let seen = waiter.rings();
            if let Some(event) = self.take()? {
                return Ok(event);
            }
            let left = deadline.saturating_since(self.shared.service.now());
            if left.is_zero() || !waiter.wait(seen, left) {
                // It may have come at the last moment.
                return self.take()?.ok_or(Error::Timeout);
            }
        }
    }

    /// Takes a queue pair from INIT to RTS by what the manager knows of the peer.
    pub(super) fn connect_qp(&self, qp: QpHandle) -> Result<(), Error> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = self.command(|manager, _, id| manager.qp_attr(id, state))?;
            attr.min_rnr_timer = RNR_TIMER;
            self.shared.modify(qp, &attr, mask)?;
        }
        Ok(())
    }

    /// The error that an event is.
    pub(super) fn failure(&self, event: &Event, peer: SocketAddr) -> Error {
        match event.kind {
            EventKind::AddrError | EventKind::RouteError => {
                Error::Unresolved { peer, error: Errno(event.status.wrapping_neg()) }
            }
            EventKind::Rejected => Error::Refused {
                reason: u16::try_from(event.status).unwrap_or(0),
                private_data: Box::new(private_data(&event.param)),
            },
            EventKind::DeviceRemoval => Error::NicClosed,
            EventKind::Disconnected => Error::Disconnected,
            _ => Error::Unreachable,
        }
    }
}

/// The private data of an event.
pub(super) fn private_data(param: &EventParam) -> PrivateData {
    match param {
        EventParam::Conn(conn) => conn.private_data,
        EventParam::Ud(ud) => ud.private_data,
        EventParam::None => PrivateData::NONE,
    }
}

impl Drop for Id {
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

#[derive(Debug, Default)]
struct Waiter {
    /// How often the channel became readable. Several threads may wait for one, and each compares with what it saw.
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
    fn rings(&self) -> u64 {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was rung more often than `seen`; false after `timeout`.
    fn wait(&self, seen: u64, timeout: Duration) -> bool {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rings, timeout, |rings| *rings == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != seen
    }
}
