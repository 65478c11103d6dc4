//! A TCP listener that reads the offers of several peers at once: one that says nothing holds up no
//! other.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::dial::{OFFER, Offer};
use super::error::Error;
use super::limits::{OFFERS_MAX, OFFERS_PER_SOURCE};
use super::shared::now;

/// Maximum time for a peer to send its offer, and to answer.
pub(super) const OFFER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum interval of a caller's checks: another one may have left peers whose offers have not
/// arrived.
const LOOK: Duration = Duration::from_millis(50);

/// Listens for peers, and reads their offers.
#[derive(Debug)]
pub(super) struct Offers {
    listener: TcpListener,
    /// Peers whose offers have not arrived. A caller takes them out while it waits.
    pending: Mutex<Vec<Pending>>,
}

/// A peer, and as much of its offer as has arrived.
#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    source: IpAddr,
    bytes: [u8; OFFER],
    filled: usize,
    deadline: Instant,
}

impl Offers {
    pub(super) fn bind(at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        // Another caller may accept the connection that this one has polled.
        listener.set_nonblocking(true)?;
        Ok(Self { listener, pending: Mutex::default() })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next offer, but not longer than `timeout`.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<(TcpStream, Offer), Error> {
        let deadline = timeout.and_then(|timeout| now().checked_add(timeout));
        loop {
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(now()));
            let mut pending = std::mem::take(&mut *self.lock());
            let found = self.poll(&mut pending, left.min(LOOK));
            self.lock().append(&mut pending);
            if let Some((stream, offer)) = found? {
                return Ok((blocking(stream)?, offer));
            }
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a peer connects or says something. Returns the first offer that is whole.
    fn poll(
        &self,
        pending: &mut Vec<Pending>,
        timeout: Duration,
    ) -> io::Result<Option<(TcpStream, Offer)>> {
        if let Some(whole) = take_whole(pending) {
            return Ok(Some(whole));
        }
        let streams = pending.iter().map(|peer| PollFd::new(&peer.stream, PollFlags::IN));
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = streams.chain([listener]).collect();
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.listener.accept() {
            Ok((stream, from)) => {
                let from = from.ip();
                let of_source = pending.iter().filter(|peer| peer.source == from).count();
                if of_source >= OFFERS_PER_SOURCE
                    && let Some(at) = pending.iter().position(|peer| peer.source == from)
                {
                    pending.remove(at);
                }
                pending.extend(Pending::new(stream, from));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if pending.len() > OFFERS_MAX {
            pending.remove(0);
        }
        let now = now();
        pending.retain_mut(|peer| peer.read().is_ok() && (peer.is_whole() || now < peer.deadline));
        Ok(take_whole(pending))
    }
}

/// Takes the first peer whose offer is whole.
fn take_whole(pending: &mut Vec<Pending>) -> Option<(TcpStream, Offer)> {
    let at = pending.iter().position(Pending::is_whole)?;
    let peer = pending.remove(at);
    Some((peer.stream, Offer::parse(&peer.bytes)))
}

impl Pending {
    /// `None` if the peer has gone.
    fn new(stream: TcpStream, source: IpAddr) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let deadline = now() + OFFER_TIMEOUT;
        Some(Self { stream, source, bytes: [0; OFFER], filled: 0, deadline })
    }

    fn is_whole(&self) -> bool {
        self.filled == OFFER
    }

    /// Reads what has arrived. Fails if no more can come.
    fn read(&mut self) -> io::Result<()> {
        while let Some(rest) = self.bytes.get_mut(self.filled..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A stream whose reads wait, but not for long.
fn blocking(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(OFFER_TIMEOUT))?;
    Ok(stream)
}
