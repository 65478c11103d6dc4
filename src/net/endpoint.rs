//! Endpoints: a device, and the connections that are made on it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::config::Config;
use super::connection::Connection;
use super::dial::{self, Dialed};
use super::error::Error;
use super::hello;
use super::limits::{PRIVATE_DATA_MAX, PUBLISHED_MAX};
use super::listener::Listener;
use super::offers::Offers;
use super::shared::{ConnectionInfo, Prepared};
use crate::connect::{self, ConnectionManager, Options};
use crate::device::{Context, Mr, MrSlice, Pd};
use crate::engine;
use crate::link::interface::interfaces;
use crate::link::{OpenError, Spec, fault, route};
use crate::nic::SoftNic;
use crate::rdma_nic::RdmaNic;
use crate::verbs::Access;

/// A device, and how its connections are made. Cloning gives another handle to the same one.
///
/// [`Listener::bind`] and [`Connection::connect`] open one by themselves: a soft NIC at an address
/// of this machine. A program that wants another device, or other rings, opens its endpoint itself.
///
/// ```
/// use roce::net::{Config, Endpoint};
///
/// let server = Endpoint::open("udp:127.20.0.1")?.with(Config::default().ring(64 << 10));
/// let listener = server.listen("127.20.0.1:0")?;
/// let client = Endpoint::open("udp:127.20.0.2")?;
/// let connecting = std::thread::spawn({
///     let at = listener.local_addr()?;
///     move || client.connect(at)
/// });
/// let accepted = listener.accept()?;
/// let connection = connecting.join().unwrap()?;
/// connection.send(b"hello")?;
/// assert_eq!(accepted.recv()?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), roce::net::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Endpoint {
    inner: Arc<Inner>,
    pub(super) config: Config,
}

#[derive(Debug)]
struct Inner {
    pd: Pd,
    signaling: Signaling,
    /// Memory that every connection publishes from its start.
    published: Mutex<Vec<(u64, MrSlice)>>,
}

/// Signaling by which two queue pairs are connected.
#[derive(Debug)]
enum Signaling {
    /// The connection manager.
    Cm(ConnectionManager),
    /// A TCP connection.
    Tcp,
}

/// Endpoints that [`Endpoint::at`] opened, by their address.
type Opened = Mutex<HashMap<IpAddr, Weak<Inner>>>;

fn opened() -> &'static Opened {
    static OPENED: OnceLock<Opened> = OnceLock::new();
    OPENED.get_or_init(Opened::default)
}

impl Endpoint {
    /// Opens a device by its name: `udp:192.0.2.1`, `raw:eth0`, `soft:eth0` for a soft NIC,
    /// `verbs:mlx5_0` for a card. It connects by the connection manager, and by TCP connections
    /// where a card has none.
    ///
    /// A soft NIC can be tried on a bad network: `udp:192.0.2.1?loss=1%,dup=1%` does so to the
    /// packets that it sends, as [`fault`] describes.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_with(name, |_| {})
    }

    /// Opens a device by its name, as [`open`](Self::open) does; `configure` may change the
    /// configuration of a soft NIC: its congestion control, recovery or limits. A card has its own.
    ///
    /// ```no_run
    /// use roce::engine::RecoveryOptions;
    /// use roce::engine::congestion::Settings;
    /// use roce::net::Endpoint;
    ///
    /// // As `roce serve --cc dcqcn --line-rate 10G` has it, or as ROCE_CC and its like say.
    /// let variable = |name: &str| std::env::var(name).ok();
    /// let congestion = Settings::read(|name| variable(&Settings::variable(name)))?;
    /// let recovery = RecoveryOptions::parse(variable)?;
    /// let endpoint = Endpoint::open_with("udp:192.0.2.1", |config| {
    ///     congestion.apply(config);
    ///     recovery.apply(config);
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(
        name: &str,
        configure: impl FnOnce(&mut engine::Config),
    ) -> Result<Self, Error> {
        if let Some(card) = name.strip_prefix("verbs:") {
            let context = Context::new(RdmaNic::open(card)?);
            return Self::new(context.clone()).or_else(|_| Self::over_tcp(context));
        }
        let wrong = |error: &dyn std::fmt::Display| Error::Spec(format!("{name}: {error}"));
        let (device, faults) = name.split_once('?').unwrap_or((name, ""));
        let spec: Spec = device.parse().map_err(|error| wrong(&error))?;
        let faults: fault::Spec = faults.parse().map_err(|error| wrong(&error))?;
        let mut link = spec.open(None)?;
        if name.contains('?') {
            link = fault::inject(link, &faults);
        }
        let nic = SoftNic::start_with(link, configure)?;
        // Without it `roce devices` does not show the NIC.
        let _ = nic.publish_status(device);
        Self::new(Arc::new(nic))
    }

    /// Uses a device, and connects by its connection manager: peers find it by its IP addresses.
    pub fn new(device: impl Into<Context>) -> Result<Self, Error> {
        let context = device.into();
        let manager = ConnectionManager::start(context.clone())?;
        Self::with_signaling(&context, Signaling::Cm(manager))
    }

    /// Uses any device, and connects by a TCP connection: listeners and peers are named by
    /// addresses of the operating system's network.
    pub fn over_tcp(context: impl Into<Context>) -> Result<Self, Error> {
        Self::with_signaling(&context.into(), Signaling::Tcp)
    }

    fn with_signaling(context: &Context, signaling: Signaling) -> Result<Self, Error> {
        let inner = Inner { pd: context.create_pd()?, signaling, published: Mutex::default() };
        Ok(Self { inner: Arc::new(inner), config: Config::default() })
    }

    /// The soft NIC at an address of this machine: the one that this process has there, or a new
    /// one.
    pub fn at(address: IpAddr) -> Result<Self, Error> {
        let mut opened = opened().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = opened.get(&address).and_then(Weak::upgrade) {
            return Ok(Self { inner, config: Config::default() });
        }
        let endpoint = Self::open(&Spec::Udp(address).to_string())?;
        opened.retain(|_, inner| inner.strong_count() > 0);
        opened.insert(address, Arc::downgrade(&endpoint.inner));
        Ok(endpoint)
    }

    /// Returns the soft NIC from which an address is reached. If another user's process has the
    /// address that the route names, and the peer is on this machine, at a loopback address or
    /// another one, the NIC is at a free loopback address.
    pub fn towards(peer: SocketAddr) -> Result<Self, Error> {
        let source = route::route_to(peer, None)?.source;
        let source = source.ok_or_else(|| Error::Spec(format!("no route leads to {peer}")))?;
        match Self::at(source) {
            Err(Error::Open(OpenError::InUse { .. })) if is_own(peer.ip()) && source.is_ipv4() => {
                free_loopback()
            }
            other => other,
        }
    }

    /// Returns the endpoint with another configuration for its connections.
    #[must_use]
    pub fn with(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Returns the protection domain: memory of it can be sent, published and operated with.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Allocates memory that can be [published](Connection::publish) with every right.
    pub fn allocate(&self, len: usize) -> Result<Mr, Error> {
        Ok(self.pd().allocate(len, EVERY_RIGHT)?)
    }

    /// Publishes memory on every connection that this endpoint makes from now on: a peer finds it
    /// by [`Connection::lookup`] as soon as it is connected. What was published under the number
    /// before is replaced.
    pub fn publish(&self, id: u64, memory: &MrSlice) -> Result<(), Error> {
        let mut published = self.inner.published.lock().unwrap_or_else(PoisonError::into_inner);
        let known = published.iter().position(|(known, _)| *known == id);
        if known.is_none() && published.len() == PUBLISHED_MAX {
            return Err(Error::DirectoryFull(PUBLISHED_MAX));
        }
        match known.and_then(|at| published.get_mut(at)) {
            Some(known) => known.1 = memory.clone(),
            None => published.push((id, memory.clone())),
        }
        Ok(())
    }

    /// A queue pair for a connection.
    pub(super) fn prepare(&self) -> Result<Prepared, Error> {
        let published = self.inner.published.lock().unwrap_or_else(PoisonError::into_inner);
        Prepared::new(self.pd(), &self.config, published.clone())
    }

    /// Listens at an address of the device, or, over TCP, of this machine. Port 0 is one that is
    /// free.
    pub fn listen(&self, at: impl ToSocketAddrs) -> Result<Listener, Error> {
        let at = first(at)?;
        match &self.inner.signaling {
            Signaling::Cm(manager) => {
                let listener = manager.listen(at)?;
                Ok(Listener::by_cm(self.clone(), vec![(self.clone(), listener)]))
            }
            Signaling::Tcp => Ok(Listener::by_tcp(self.clone(), Offers::bind(at)?)),
        }
    }

    /// Listens by the connection manager.
    pub(super) fn listen_cm(&self, at: SocketAddr) -> Result<connect::Listener, Error> {
        match &self.inner.signaling {
            Signaling::Cm(manager) => Ok(manager.listen(at)?),
            Signaling::Tcp => Err(Error::Spec("the device has no connection manager".to_owned())),
        }
    }

    /// Connects to a listener.
    pub fn connect(&self, to: impl ToSocketAddrs) -> Result<Connection, Error> {
        self.connect_with(to, &[])
    }

    /// Connects to a listener, with at most 36 bytes for its program.
    pub fn connect_with(
        &self,
        to: impl ToSocketAddrs,
        private_data: &[u8],
    ) -> Result<Connection, Error> {
        self.connect_from(None, first(to)?, private_data)
    }

    /// Connects to a listener, from an address of the device or, over TCP, of this machine.
    pub(crate) fn connect_from(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        private_data: &[u8],
    ) -> Result<Connection, Error> {
        check_private_data(private_data)?;
        let prepared = self.prepare()?;
        let hello = prepared.hello(private_data);
        let timeout = self.config.connect_timeout;
        match &self.inner.signaling {
            Signaling::Cm(manager) => {
                let qp = prepared.qp.handle();
                let mut options = Options::with_private_data(&hello);
                options.timeout = timeout;
                options.source = from;
                options.retry_count = self.config.retries.min(7);
                let held = manager.connect(qp, to, &options)?;
                let (ring, private_data) =
                    hello::parse(held.private_data()).ok_or(Error::Foreign)?;
                let private_data = private_data.to_vec();
                let (local, peer) = (held.local_addr(), held.peer_addr());
                let info = ConnectionInfo { local, peer, private_data };
                Ok(Connection::new(prepared.connected(ring, info, Some(held))?))
            }
            Signaling::Tcp => {
                let Dialed { ring, info } = dial::connect(&prepared, from, to, &hello, timeout)?;
                Ok(Connection::new(prepared.connected(ring, info, None)?))
            }
        }
    }
}

/// The rights of memory that is to be published.
pub(super) const EVERY_RIGHT: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The first address of those that a name has.
pub(super) fn first(addresses: impl ToSocketAddrs) -> Result<SocketAddr, Error> {
    let nothing = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "there is no address");
    Ok(addresses.to_socket_addrs()?.next().ok_or_else(nothing)?)
}

pub(super) fn check_private_data(private_data: &[u8]) -> Result<(), Error> {
    let (len, max) = (private_data.len(), PRIVATE_DATA_MAX);
    if len > max { Err(Error::PrivateData { len, max }) } else { Ok(()) }
}

/// Whether this machine has an address.
fn is_own(address: IpAddr) -> bool {
    let interfaces = interfaces().unwrap_or_default();
    address.is_loopback() || interfaces.iter().any(|it| it.addresses.contains(&address))
}

/// Returns an endpoint at the first loopback address that no other user's process has.
fn free_loopback() -> Result<Endpoint, Error> {
    let mut last = Error::Spec("no loopback address is free".to_owned());
    for host in 2..=254 {
        match Endpoint::at(Ipv4Addr::new(127, 0, 0, host).into()) {
            Err(error @ Error::Open(OpenError::InUse { .. })) => last = error,
            other => return other,
        }
    }
    Err(last)
}
