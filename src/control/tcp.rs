//! The control connection over TCP, with bounds in time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::admission::Close;
use super::limits::LINE_WAIT;
use super::lines::Stream;
use super::opening::Addresses;

/// Returns the time.
#[expect(clippy::disallowed_methods, reason = "how long a peer may take is real time")]
fn now() -> Instant {
    Instant::now()
}

/// A TCP connection whose reads and writes end in time.
#[derive(Debug)]
pub struct Tcp {
    /// Shared with what closes it from another thread: a second descriptor would count twice.
    stream: Arc<TcpStream>,
    /// Time at which reads give up; `None`: they do not wait.
    deadline: Option<Instant>,
    /// Time at which the whole session is over.
    session_end: Option<Instant>,
}

impl Tcp {
    /// Bounds reads by [`LINE_WAIT`], and the whole session if it has a limit.
    pub fn new(stream: impl Into<Arc<TcpStream>>, limit: Option<Duration>) -> io::Result<Self> {
        let stream = stream.into();
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let start = now();
        let session_end = limit.and_then(|limit| start.checked_add(limit));
        Ok(Self { stream, deadline: Some(start + LINE_WAIT), session_end })
    }

    /// Returns the address of the other side.
    pub fn peer(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip().to_canonical())
    }

    /// Returns the address and port of the other side.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Returns the address of this side.
    pub fn local(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Returns the addresses of both sides, of which this one is the client.
    pub fn addresses_of_client(&self) -> io::Result<Addresses> {
        Ok(Addresses { client: self.stream.local_addr()?, server: self.stream.peer_addr()? })
    }

    /// Returns the addresses of both sides, of which this one is the server.
    pub fn addresses_of_server(&self) -> io::Result<Addresses> {
        Ok(Addresses { client: self.stream.peer_addr()?, server: self.stream.local_addr()? })
    }

    /// Waits until `bytes` is filled.
    pub fn read_all(&mut self, mut bytes: &mut [u8], wait: Duration) -> io::Result<()> {
        self.set_wait(Some(wait))?;
        while !bytes.is_empty() {
            match self.receive(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_waiting(&mut self, mut bytes: &[u8], within: Duration) -> io::Result<()> {
        let until = now() + within;
        while !bytes.is_empty() {
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes nothing in time"));
            }
            self.stream.set_write_timeout(Some(left))?;
            match (&*self.stream).write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if is_pause(&error) => {}
                // A broken pipe means that the reader of standard output is gone, which is no
                // failure; this is one.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    let closed = "it closed the connection";
                    return Err(io::Error::new(io::ErrorKind::ConnectionReset, closed));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether an error says that a timeout or a signal interrupted a call.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

impl Stream for Tcp {
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if self.deadline.is_none() != wait.is_none() {
            self.stream.set_nonblocking(wait.is_none())?;
        }
        self.deadline = wait.map(|wait| now() + wait);
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let timed_out = |what| Err(io::Error::new(io::ErrorKind::TimedOut, what));
        let now = now();
        if self.session_end.is_some_and(|end| now >= end) {
            return timed_out("the session has taken as long as it may");
        }
        let Some(deadline) = self.deadline else { return (&*self.stream).read(bytes) };
        let end = self.session_end.map_or(deadline, |end| end.min(deadline));
        let left = end.saturating_duration_since(now);
        if left.is_zero() {
            return timed_out("nothing came in time");
        }
        self.stream.set_read_timeout(Some(left))?;
        match (&*self.stream).read(bytes) {
            // The next call says which limit it was.
            Err(error) if is_pause(&error) => Err(io::ErrorKind::Interrupted.into()),
            read => read,
        }
    }

    fn send_all(&mut self, bytes: &[u8], within: Duration) -> io::Result<()> {
        if self.deadline.is_some() {
            return self.send_waiting(bytes, within);
        }
        self.stream.set_nonblocking(false)?;
        let sent = self.send_waiting(bytes, within);
        self.stream.set_nonblocking(true)?;
        sent
    }

    fn is_closed(&mut self) -> bool {
        let waits = self.deadline.is_some();
        let seen = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let restored = self.stream.set_nonblocking(!waits);
        match seen {
            Ok(count) => count == 0,
            Err(error) => !is_pause(&error) || restored.is_err(),
        }
    }
}

/// Returns what closes a connection from another thread.
pub fn close_of(stream: &Arc<TcpStream>) -> Close {
    let stream = Arc::clone(stream);
    Box::new(move || drop(stream.shutdown(Shutdown::Both)))
}

/// Connects to a server, from `source` if this host has that address and a way from there.
pub fn connect(
    source: Option<IpAddr>,
    server: SocketAddr,
    within: Duration,
) -> io::Result<TcpStream> {
    let source = source.filter(|source| source.is_ipv4() == server.is_ipv4());
    // The address of a real NIC need not be one of this network namespace, and a loopback address
    // leads nowhere else; the server says if it minds.
    match source.map(|source| connect_from(source, server, within)) {
        Some(Ok(stream)) => return Ok(stream),
        Some(Err(error)) if is_final(&error) => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    finish(socket, server, within)
}

/// Whether another source address would not help.
fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut)
}

fn connect_from(source: IpAddr, server: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    let mut from = SocketAddr::new(source, 0);
    if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (&mut from, server) {
        from.set_scope_id(to.scope_id());
    }
    socket.bind(&from.into())?;
    finish(socket, server, within)
}

fn finish(socket: Socket, server: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    socket.connect_timeout(&server.into(), within)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::control::lines::{LineError, Lines};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn peer_that_is_gone_is_not_a_reader_of_output_that_is_gone() {
        let (client, server) = pair();
        drop(server);
        let mut client = Tcp::new(client, None).unwrap();
        // The first bytes are answered with a reset, so that later ones cannot be sent.
        let error = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            client.send_all(b"alive\n", LINE_WAIT).err()
        });
        assert_ne!(error.expect("a closed connection").kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn peer_that_takes_nothing_is_given_up() {
        let (client, _server) = pair();
        for waits in [true, false] {
            let mut tcp = Tcp::new(client.try_clone().unwrap(), None).unwrap();
            tcp.set_wait(waits.then_some(LINE_WAIT)).unwrap();
            let much = vec![0; 64 << 20];
            let error = tcp.send_all(&much, Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }

    #[test]
    fn closed_connection_is_seen_without_waiting() {
        let (client, server) = pair();
        let mut tcp = Tcp::new(client, None).unwrap();
        assert!(!tcp.is_closed());
        close_of(&Arc::new(server))();
        let mut lines = Lines::new(Box::new(tcp), 10);
        assert!(matches!(lines.next_line(), Err(LineError::Closed)));
        assert!(lines.is_closed());
    }
}
