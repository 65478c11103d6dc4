//! Listeners.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::connection::Connection;
use super::dial::{self, Dialed, Offer};
use super::endpoint::{Endpoint, check_private_data, first};
use super::error::Error;
use super::hello;
use super::offers::Offers;
use super::shared::About;
use crate::connect::{self, Options};

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
    by: By,
}

#[derive(Debug)]
enum By {
    Cm(connect::Listener),
    Tcp(Offers),
}

impl Listener {
    /// Listens at an address of this machine, with a soft NIC there. Port 0 is one that is free.
    pub fn bind(at: impl ToSocketAddrs) -> Result<Self, Error> {
        let at = first(at)?;
        Endpoint::at(at.ip())?.listen(at)
    }

    pub(super) fn by_cm(endpoint: Endpoint, listener: connect::Listener) -> Self {
        Self { endpoint, by: By::Cm(listener) }
    }

    pub(super) fn by_tcp(endpoint: Endpoint, offers: Offers) -> Self {
        Self { endpoint, by: By::Tcp(offers) }
    }

    /// Returns the address that it listens at.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        match &self.by {
            By::Cm(listener) => Ok(listener.local_addr()?),
            By::Tcp(offers) => Ok(offers.local_addr()?),
        }
    }

    /// Returns its endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> Result<Connection, Error> {
        loop {
            match self.request()?.accept() {
                // The peer gave up, or is another program: the next one may not be.
                Err(Error::Foreign | Error::TimedOut | Error::Connect(_) | Error::Io(_)) => {}
                other => return other,
            }
        }
    }

    /// Waits for the next peer that asks for a connection.
    pub fn request(&self) -> Result<Request, Error> {
        loop {
            let request = match &self.by {
                By::Cm(listener) => self.take_cm(listener.accept()?),
                By::Tcp(offers) => self.take_tcp(offers.next(None)?),
            };
            if let Some(request) = request {
                return Ok(request);
            }
        }
    }

    /// Waits for the next peer that asks for a connection, but not longer than `timeout`.
    pub fn request_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        match &self.by {
            By::Cm(listener) => {
                let request = self.take_cm(listener.accept_timeout(timeout)?);
                request.ok_or(Error::TimedOut)
            }
            By::Tcp(offers) => self.take_tcp(offers.next(Some(timeout))?).ok_or(Error::TimedOut),
        }
    }

    /// A request of a peer that speaks this protocol; another one is refused.
    fn take_cm(&self, request: connect::Request) -> Option<Request> {
        let Some((_, private_data)) = hello::parse(request.private_data()) else {
            let _ = request.reject(&hello::emit_refusal(b"roce::net expected"));
            return None;
        };
        let private_data = private_data.to_vec();
        let peer = Some(request.peer_addr());
        let by = RequestBy::Cm(Box::new(request));
        Some(Request { endpoint: self.endpoint.clone(), private_data, peer, by })
    }

    /// The same over TCP.
    fn take_tcp(&self, (stream, offer): (TcpStream, Offer)) -> Option<Request> {
        let (_, private_data) = hello::parse(&offer.hello)?;
        let (private_data, peer) = (private_data.to_vec(), stream.peer_addr().ok());
        let by = RequestBy::Tcp(stream, Box::new(offer));
        Some(Request { endpoint: self.endpoint.clone(), private_data, peer, by })
    }
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

    /// Accepts it.
    pub fn accept(self) -> Result<Connection, Error> {
        self.accept_with(&[])
    }

    /// Accepts it, with at most 36 bytes for the peer's program.
    pub fn accept_with(self, private_data: &[u8]) -> Result<Connection, Error> {
        check_private_data(private_data)?;
        let Self { endpoint, private_data: theirs, peer, by } = self;
        let prepared = endpoint.prepare()?;
        let hello = hello::emit(&prepared.ring(), private_data);
        match by {
            RequestBy::Cm(request) => {
                let ring = hello::parse(request.private_data()).ok_or(Error::Foreign)?.0;
                let local = Some(request.local_addr());
                let qp = prepared.qp.handle();
                let mut options = Options::with_private_data(&hello);
                options.timeout = endpoint.config.connect_timeout;
                let held = request.accept(qp, &options)?;
                let about = About { local, peer, private_data: theirs };
                Ok(Connection::new(prepared.connected(ring, about, Some(held))?))
            }
            RequestBy::Tcp(stream, offer) => {
                let Dialed { ring, about } = dial::accept(&prepared, stream, &offer, &hello)?;
                Ok(Connection::new(prepared.connected(ring, about, None)?))
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
