//! The control connection over TCP, with bounds in time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use socket2::{Domain, Socket, Type};

use super::control::Stream;
use super::control::lines::LINE_WAIT;
use super::watch::now;

/// How long to try to connect.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A TCP connection whose reads end in time.
#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    /// When reads give up; `None`: they do not wait.
    deadline: Option<Instant>,
    /// When the whole session is over.
    session_end: Option<Instant>,
}

impl Tcp {
    /// Bounds each write by [`LINE_WAIT`], and the whole session if it has a limit.
    pub(crate) fn new(stream: TcpStream, limit: Option<Duration>) -> anyhow::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(LINE_WAIT))?;
        let start = now();
        let session_end = limit.and_then(|limit| start.checked_add(limit));
        Ok(Self { stream, deadline: Some(start + LINE_WAIT), session_end })
    }

    /// The address of the other side.
    pub(crate) fn peer(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip().to_canonical())
    }

    /// The address and port of the other side.
    pub(crate) fn peer_address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// The address of this side.
    pub(crate) fn local(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Waits for exactly so many bytes.
    pub(crate) fn read_all(&mut self, bytes: &mut [u8], wait: Duration) -> io::Result<()> {
        self.set_wait(Some(wait))?;
        self.read_exact(bytes)
    }
}

impl Read for Tcp {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let timed_out = |what| Err(io::Error::new(io::ErrorKind::TimedOut, what));
        let now = now();
        if self.session_end.is_some_and(|end| now >= end) {
            return timed_out("the session has taken as long as it may");
        }
        let Some(deadline) = self.deadline else { return self.stream.read(bytes) };
        let end = self.session_end.map_or(deadline, |end| end.min(deadline));
        let left = end.saturating_duration_since(now);
        if left.is_zero() {
            return timed_out("nothing came in time");
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(bytes) {
            // The next call says which limit it was.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::Interrupted.into())
            }
            read => read,
        }
    }
}

impl Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A broken pipe means that the reader of standard output is gone, which is no failure.
        self.stream.write(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => {
                io::Error::new(io::ErrorKind::ConnectionReset, "it closed the connection")
            }
            _ => error,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Stream for Tcp {
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if self.deadline.is_none() != wait.is_none() {
            self.stream.set_nonblocking(wait.is_none())?;
        }
        self.deadline = wait.map(|wait| now() + wait);
        Ok(())
    }
}

/// Connects to a server, from `source` if this host has that address. `command` starts such a server.
pub(crate) fn connect(
    source: Option<IpAddr>,
    server: SocketAddr,
    command: &str,
) -> anyhow::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    if let Some(source) = source.filter(|source| source.is_ipv4() == server.is_ipv4()) {
        let mut from = SocketAddr::new(source, 0);
        if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (&mut from, server) {
            from.set_scope_id(to.scope_id());
        }
        // The address of a real NIC need not be one of this network namespace; the server says if it minds.
        let _ = socket.bind(&from.into());
    }
    socket.connect_timeout(&server.into(), CONNECT_WAIT).with_context(|| {
        format!("cannot connect to {server}; is a server ({command}) running there?")
    })?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Returns the address of this host from which another is reached, without sending anything.
pub(crate) fn source_for(server: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn peer_that_is_gone_is_not_a_reader_of_output_that_is_gone() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let mut client = Tcp::new(client, None).unwrap();
        // The first bytes are answered with a reset, so that later ones cannot be sent.
        let error = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            client.write(b"alive\n").err()
        });
        let error = anyhow::Error::from(error.expect("a closed connection"));
        assert!(!crate::output::is_broken_pipe(&error), "{error:#}");
    }
}
