//! Listeners: requests of peers by the connection manager or over TCP, and connections from them.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::config::Config;
use super::connection::Connection;
use super::counters::{Counter, Counters};
use super::dial::{self, Dialed, Offer};
use super::endpoint::{Endpoint, check_private_data, first};
use super::error::Error;
use super::half_open::{HalfOpen, HalfOpenBy, HalfOpens};
use super::hello;
use super::offers::{OFFER_TIMEOUT, Offers};
use super::shared::{ConnectionInfo, now};
use crate::connect::{self, Options};
use crate::link::OpenError;
use crate::link::interface::interfaces;

/// Maximum time until a caller of `accept` looks at the half-open peers that another caller left.
const LOOK: Duration = Duration::from_millis(50);

/// Interval at which half-open peers over TCP are looked at.
const LOOK_TCP: Duration = Duration::from_millis(2);

/// Accepts connections, as [`TcpListener`](std::net::TcpListener) does.
///
/// ```
/// use roce::net::{Connection, Listener};
///
/// let listener = Listener::bind("127.20.1.1:0")?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || {
///     let connection = Connection::connect(address)?;
///     connection.send(b"hello")?;
///     connection.recv()
/// });
/// let connection = listener.accept()?;
/// let message = connection.recv()?.unwrap();
/// connection.send(&message)?;
/// assert_eq!(client.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), roce::net::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    by: ListenerBy,
    /// Peers that were answered and are not yet connected. A caller takes them out while it waits.
    half_open: Mutex<HalfOpens>,
    counters: Mutex<Counters>,
}

#[derive(Debug)]
enum ListenerBy {
    /// Endpoints with the connection manager's listener of each. The first one wakes those that
    /// wait, for all.
    Cm(Vec<(Endpoint, connect::Listener)>),
    Tcp(Offers),
}

impl Listener {
    /// Listens at an address of this machine, with a soft NIC there. Port 0 is one that is free.
    /// `0.0.0.0` and `::` stand for all addresses of this machine that no other program has now.
    pub fn bind(at: impl ToSocketAddrs) -> Result<Self, Error> {
        Self::bind_with(at, Config::default())
    }

    /// Listens at an address of this machine, for connections of another configuration.
    pub fn bind_with(at: impl ToSocketAddrs, config: Config) -> Result<Self, Error> {
        let at = first(at)?;
        if at.ip().is_unspecified() {
            return Self::bind_all(at, config);
        }
        Endpoint::at(at.ip())?.with(config).listen(at)
    }

    /// Listens at all addresses of the family of `at`.
    fn bind_all(at: SocketAddr, config: Config) -> Result<Self, Error> {
        let addresses = interfaces()?.into_iter().filter(|it| it.up).flat_map(|it| it.addresses);
        let is_wanted = |address: &IpAddr| match address {
            IpAddr::V4(_) => at.is_ipv4(),
            // A link-local address means nothing without its interface.
            IpAddr::V6(address) => at.is_ipv6() && !address.is_unicast_link_local(),
        };
        let (mut port, mut all, mut taken) = (at.port(), Vec::new(), None);
        for address in addresses.filter(is_wanted) {
            let endpoint = match Endpoint::at(address) {
                Err(error @ Error::Open(OpenError::InUse { .. })) => {
                    taken = Some(error);
                    continue;
                }
                other => other?.with(config),
            };
            let listener = endpoint.listen_cm(SocketAddr::new(address, port))?;
            port = listener.local_addr()?.port();
            all.push((endpoint, listener));
        }
        let none = || Error::Spec(format!("this machine has no address that {at} stands for"));
        let Some((endpoint, _)) = all.first() else { return Err(taken.unwrap_or_else(none)) };
        Ok(Self::by_cm(endpoint.clone(), all))
    }

    pub(super) fn by_cm(endpoint: Endpoint, all: Vec<(Endpoint, connect::Listener)>) -> Self {
        if let Some(((_, first), others)) = all.split_first() {
            for (_, other) in others {
                other.join(first);
            }
        }
        let (half_open, counters) = (Mutex::default(), Mutex::default());
        Self { endpoint, by: ListenerBy::Cm(all), half_open, counters }
    }

    pub(super) fn by_tcp(endpoint: Endpoint, offers: Offers) -> Self {
        let (half_open, counters) = (Mutex::default(), Mutex::default());
        Self { endpoint, by: ListenerBy::Tcp(offers), half_open, counters }
    }

    /// Returns the address that it listens at: the unspecified one, with its port, if there are
    /// several.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        match &self.by {
            ListenerBy::Cm(all) => {
                let (_, listener) = all.first().ok_or(Error::Closed)?;
                let at = listener.local_addr()?;
                let any = if at.is_ipv4() { [0; 4].into() } else { IpAddr::from([0; 16]) };
                Ok(if all.len() == 1 { at } else { SocketAddr::new(any, at.port()) })
            }
            ListenerBy::Tcp(offers) => Ok(offers.local_addr()?),
        }
    }

    /// Returns its endpoint, the first one if there are several. Memory for a connection is of
    /// [`Connection::pd`].
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits for the next connection that is established. A peer that asks for one and then is
    /// silent does not delay others.
    pub fn accept(&self) -> Result<Connection, Error> {
        loop {
            match self.accept_timeout(Duration::MAX) {
                Err(Error::TimedOut) => {}
                other => return other,
            }
        }
    }

    /// Waits for the next connection that is established, but not longer than `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Connection, Error> {
        let deadline = now().checked_add(timeout);
        loop {
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(now()));
            // Another caller has those that it waits for.
            let mut half_open = std::mem::take(&mut *self.lock());
            let accepted = self.try_accept(&mut half_open, left.min(LOOK));
            self.lock().prepend(half_open);
            if let Some(connection) = accepted? {
                return Ok(connection);
            }
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Returns how many peers were not accepted, by reason.
    pub fn counters(&self) -> Counters {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, counter: Counter) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).add(counter);
    }

    fn lock(&self) -> MutexGuard<'_, HalfOpens> {
        self.half_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection that is established; otherwise answers a peer that asks, or waits until
    /// something happens.
    fn try_accept(
        &self,
        half_open: &mut HalfOpens,
        timeout: Duration,
    ) -> Result<Option<Connection>, Error> {
        // Events after this are seen: the wait below compares the number.
        let seen = self.rings();
        let count = &|counter| self.count(counter);
        if let Some(connected) = half_open.take_connected(count) {
            return connected.map(Some);
        }
        let is_tcp_pending = matches!(self.by, ListenerBy::Tcp(_)) && !half_open.is_empty();
        let timeout = if is_tcp_pending { timeout.min(LOOK_TCP) } else { timeout };
        let Some(request) = self.next_request(seen, timeout)? else { return Ok(None) };
        let config = self.endpoint.config;
        match request.begin_accept(&[]) {
            Ok(peer) => half_open.push(peer, config.half_open, config.half_open_per_source, count),
            // The peer gave up, or is another program: the next peer is tried.
            Err(Error::Foreign | Error::TimedOut | Error::Connect(_) | Error::Io(_)) => {
                self.count(Counter::Unanswered);
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Waits for the next peer that asks for a connection.
    pub fn request(&self) -> Result<Request, Error> {
        loop {
            match self.request_timeout(Duration::MAX) {
                Err(Error::TimedOut) => {}
                other => return other,
            }
        }
    }

    /// Waits for the next peer that asks for a connection, but not longer than `timeout`.
    pub fn request_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        let deadline = now().checked_add(timeout);
        loop {
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(now()));
            if let Some(request) = self.next_request(self.rings(), left.min(LOOK))? {
                return Ok(request);
            }
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Returns a number that changes with each event; `None` if the system has none.
    fn rings(&self) -> Option<u64> {
        match &self.by {
            ListenerBy::Cm(all) => all.first()?.1.rings(),
            ListenerBy::Tcp(_) => None,
        }
    }

    /// Takes the next request of a peer that speaks this protocol; another one is refused.
    /// Otherwise waits until something happens.
    fn next_request(&self, seen: Option<u64>, timeout: Duration) -> Result<Option<Request>, Error> {
        let all = match &self.by {
            ListenerBy::Cm(all) => all,
            ListenerBy::Tcp(offers) => {
                return match offers.next(Some(timeout)) {
                    Err(Error::TimedOut) => Ok(None),
                    other => {
                        let request = self.take_tcp(other?);
                        if request.is_none() {
                            self.count(Counter::Foreign);
                        }
                        Ok(request)
                    }
                };
            }
        };
        for (endpoint, listener) in all {
            while let Some(request) = listener.try_accept()? {
                if let Some(request) = take_cm(endpoint, request) {
                    return Ok(Some(request));
                }
                self.count(Counter::Foreign);
            }
        }
        if let Some((_, first)) = all.first() {
            first.wait_ring(seen, timeout);
        }
        Ok(None)
    }

    /// A request over TCP of a peer that speaks this protocol.
    fn take_tcp(&self, (stream, offer): (TcpStream, Offer)) -> Option<Request> {
        let (_, private_data) = hello::parse(&offer.hello)?;
        let (private_data, peer) = (private_data.to_vec(), stream.peer_addr().ok());
        let by = RequestBy::Tcp(stream, Box::new(offer));
        Some(Request { endpoint: self.endpoint.clone(), private_data, peer, by })
    }
}

/// A request of a peer that speaks this protocol; another one is refused.
fn take_cm(endpoint: &Endpoint, request: connect::Request) -> Option<Request> {
    let Some((_, private_data)) = hello::parse(request.private_data()) else {
        let _ = request.reject(&hello::emit_refusal(b"roce::net expected"));
        return None;
    };
    let private_data = private_data.to_vec();
    let peer = Some(request.peer_addr());
    let by = RequestBy::Cm(Box::new(request));
    Some(Request { endpoint: endpoint.clone(), private_data, peer, by })
}

/// A peer that asks for a connection. Dropping it refuses.
#[derive(Debug)]
pub struct Request {
    endpoint: Endpoint,
    private_data: Vec<u8>,
    peer: Option<SocketAddr>,
    by: RequestBy,
}

#[derive(Debug)]
enum RequestBy {
    Cm(Box<connect::Request>),
    Tcp(TcpStream, Box<Offer>),
}

impl Request {
    /// Returns what the peer's program had to say.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Accepts the request.
    pub fn accept(self) -> Result<Connection, Error> {
        self.accept_with(&[])
    }

    /// Accepts it, with at most 36 bytes for the peer's program. Waits until the peer is connected.
    pub fn accept_with(self, private_data: &[u8]) -> Result<Connection, Error> {
        self.begin_accept(private_data)?.wait()
    }

    /// Answers the peer, and does not wait for it.
    fn begin_accept(self, private_data: &[u8]) -> Result<HalfOpen, Error> {
        check_private_data(private_data)?;
        let Self { endpoint, private_data: theirs, peer, by } = self;
        let prepared = endpoint.prepare()?;
        let hello = prepared.hello(private_data);
        match by {
            RequestBy::Cm(request) => {
                let ring = hello::parse(request.private_data()).ok_or(Error::Foreign)?.0;
                let local = Some(request.local_addr());
                let qp = prepared.qp.handle();
                let mut options = Options::with_private_data(&hello);
                options.timeout = endpoint.config.connect_timeout;
                let by = HalfOpenBy::Cm(Box::new(request.begin_accept(qp, &options)?));
                let info = ConnectionInfo { local, peer, private_data: theirs };
                Ok(HalfOpen { prepared, ring, info, by })
            }
            RequestBy::Tcp(mut stream, offer) => {
                let Dialed { ring, info } = dial::accept(&prepared, &mut stream, &offer, &hello)?;
                stream.set_nonblocking(true)?;
                let by = HalfOpenBy::Tcp(stream, now() + OFFER_TIMEOUT);
                Ok(HalfOpen { prepared, ring, info, by })
            }
        }
    }

    /// Refuses it, with at most 36 bytes for the peer's program.
    pub fn refuse(self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data)?;
        match self.by {
            RequestBy::Cm(request) => Ok(request.reject(&hello::emit_refusal(private_data))?),
            RequestBy::Tcp(stream, _) => Ok(dial::refuse(stream, private_data)?),
        }
    }
}
