//! Connections by futures, on tokio (feature `tokio`).
//!
//! A task that waits sleeps on the descriptor of the completion channel, which tokio polls with its
//! others; the NIC wakes it. There is no thread and no runtime of this library's own.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use roce::net::asynchronous::{Connection, Listener};
//!
//! let listener = Listener::bind("127.20.5.1:0").await?;
//! let at = listener.local_addr()?;
//! let echo = tokio::spawn(async move {
//!     let connection = listener.accept().await?;
//!     while let Some(message) = connection.recv().await? {
//!         connection.send(&message).await?;
//!     }
//!     connection.close().await
//! });
//! let connection = Connection::connect(at).await?;
//! connection.send(b"hello").await?;
//! assert_eq!(connection.recv().await?.as_deref(), Some(&b"hello"[..]));
//! connection.close().await?;
//! echo.await.unwrap()?;
//! # Ok::<(), roce::net::Error>(())
//! # }).unwrap();
//! ```

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::endpoint::Endpoint;
use super::error::Error;
use super::shared::{Shared, State};
use super::{connection, listener, remote};
use crate::device::{Channel, Memory, RemoteSlice};
use crate::verbs::SendOp;

/// Wakes tasks that wait for what another one has seen.
#[derive(Debug, Default)]
pub(super) struct Readiness(Notify);

impl Readiness {
    pub(super) fn wake(&self) {
        self.0.notify_waiters();
    }
}

/// The descriptor of a completion channel.
#[derive(Debug)]
struct ChannelFd(Channel);

impl AsRawFd for ChannelFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A listener whose calls are futures.
#[derive(Clone, Debug)]
pub struct Listener {
    inner: Arc<listener::Listener>,
}

/// Interval at which a thread of tokio's pool that waits for a request checks whether it is still
/// wanted.
const LOOK: Duration = Duration::from_millis(50);

impl Listener {
    /// Listens at an address of this machine, with a soft NIC there.
    pub async fn bind(at: impl ToSocketAddrs + Send + 'static) -> Result<Self, Error> {
        blocking(move || listener::Listener::bind(at)).await.map(Self::from)
    }

    /// Returns the address that it listens at.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.inner.local_addr()
    }

    /// Returns its endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        self.inner.endpoint()
    }

    /// Waits for the next connection. The connection manager's exchange runs on tokio's pool for
    /// blocking calls.
    pub async fn accept(&self) -> Result<Connection, Error> {
        loop {
            let listener = Arc::clone(&self.inner);
            match blocking(move || listener.accept_timeout(LOOK)).await {
                Ok(connection) => return Connection::new(connection),
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl From<listener::Listener> for Listener {
    fn from(listener: listener::Listener) -> Self {
        Self { inner: Arc::new(listener) }
    }
}

/// Runs a call that blocks on tokio's pool.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => Err(std::io::Error::other(error).into()),
    }
}

/// A connection whose calls are futures. Several tasks may use it; dropping a future loses no
/// message.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: connection::Connection,
    channel: Arc<AsyncFd<ChannelFd>>,
}

impl Connection {
    /// Takes over a connection. It must be called from a tokio runtime with I/O and time enabled.
    pub fn new(inner: connection::Connection) -> Result<Self, Error> {
        let channel = inner.shared.cq.channel().expect("the completion queue has one").clone();
        #[allow(
            deprecated,
            reason = "its successor is unsafe: it wants the descriptor to stay open, which the channel sees to"
        )]
        let channel = AsyncFd::with_interest(ChannelFd(channel), Interest::READABLE)?;
        Ok(Self { inner, channel: Arc::new(channel) })
    }

    /// Connects to a listener, from the soft NIC of this machine that reaches it.
    pub async fn connect(to: impl ToSocketAddrs + Send + 'static) -> Result<Self, Error> {
        Self::new(blocking(move || connection::Connection::connect(to)).await?)
    }

    /// Connects to a listener from an endpoint.
    pub async fn connect_from(endpoint: &Endpoint, to: SocketAddr) -> Result<Self, Error> {
        let endpoint = endpoint.clone();
        Self::new(blocking(move || endpoint.connect(to)).await?)
    }

    /// Returns the connection: its addresses, its memory, its calls that block or fail at once.
    pub fn get_ref(&self) -> &connection::Connection {
        &self.inner
    }

    /// Sends a message. It waits while the peer's ring is full.
    pub async fn send(&self, message: &[u8]) -> Result<(), Error> {
        let (shared, parts) = (&self.inner.shared, [message]);
        let message = shared.outgoing(&parts)?;
        self.wait(|state| Ok(shared.try_send(state, &message, true)?.then_some(()))).await
    }

    /// Waits for the next message; `None` when the peer has closed its side.
    pub async fn recv(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut message = Vec::new();
        Ok(self.recv_into(&mut message).await?.then_some(message))
    }

    /// Waits for the next message, which replaces the contents of `message`. False when the peer
    /// has closed its side.
    pub async fn recv_into(&self, message: &mut Vec<u8>) -> Result<bool, Error> {
        let shared = &self.inner.shared;
        self.wait(|state| Ok(shared.try_recv(state, message))).await
    }

    /// Writes registered memory to the beginning of the peer's; returns it once that is done.
    pub async fn write(&self, from: impl Into<Memory>, to: RemoteSlice) -> Result<Memory, Error> {
        let from = from.into();
        remote::check(&to, from.len() as u64)?;
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.rkey, imm: None };
        self.operate(op, from).await
    }

    /// Reads the peer's memory into as many bytes of registered memory; returns it once that is
    /// done.
    pub async fn read(&self, from: RemoteSlice, into: impl Into<Memory>) -> Result<Memory, Error> {
        let into = into.into();
        remote::check(&from, into.len() as u64)?;
        self.operate(SendOp::Read { remote_addr: from.addr, rkey: from.rkey }, into).await
    }

    async fn operate(&self, op: SendOp, memory: Memory) -> Result<Memory, Error> {
        let shared = &self.inner.shared;
        let mut memory = Some(memory);
        let begin = self.wait(|state| {
            match shared.try_operate(state, op, memory.take().unwrap_or_default())? {
                Ok(number) => Ok(Some(number)),
                Err(returned) => {
                    memory = Some(returned);
                    Ok(None)
                }
            }
        });
        let begun = Abandoned { shared, number: Some(begin.await?) };
        let taken = self.wait(|state| {
            let number = begun.number.expect("it is there until it is done");
            Ok(state.take_operation(number))
        });
        let memory = taken.await?;
        let mut begun = begun;
        begun.number = None;
        Ok(memory)
    }

    /// Closes the connection, as [`Connection::close`](connection::Connection::close) does.
    pub async fn close(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.inner.shared);
        blocking(move || shared.close(shared.config.linger)).await
    }

    /// Waits until `check` has an answer, or the connection fails.
    async fn wait<T>(
        &self,
        mut check: impl FnMut(&mut State) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let shared = &self.inner.shared;
        loop {
            // What another task sees from here on wakes this one.
            let mut woken = pin!(shared.asynchronous.0.notified());
            woken.as_mut().enable();
            let is_asleep = {
                let state = &mut *shared.lock();
                if let Some(answer) = look(shared, state, &mut check)? {
                    return Ok(answer);
                }
                let is_armed = shared.arm(state);
                if let Some(answer) = look(shared, state, &mut check)? {
                    return Ok(answer);
                }
                is_armed
            };
            if is_asleep {
                self.sleep(woken).await?;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Sleeps until the channel is readable, another task has seen something, or nothing came for a
    /// while.
    async fn sleep(&self, mut woken: impl Future<Output = ()> + Unpin) -> Result<(), Error> {
        let shared = &self.inner.shared;
        let mut readable = pin!(self.channel.readable());
        let mut timeout = pin!(tokio::time::sleep(shared.config.keepalive));
        std::future::poll_fn(|context| {
            if let Poll::Ready(guard) = readable.as_mut().poll(context) {
                return Poll::Ready(guard.map_err(Error::from).and_then(|mut guard| {
                    let event = self.channel.get_ref().0.wait(Some(Duration::ZERO))?;
                    if event.is_none() {
                        guard.clear_ready();
                    }
                    shared.disarm(&mut shared.lock());
                    Ok(())
                }));
            }
            if std::pin::Pin::new(&mut woken).poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            timeout.as_mut().poll(context).map(|()| shared.keep_alive(&mut shared.lock()))
        })
        .await
    }
}

/// Asks once, after progress if there was no answer before.
fn look<T>(
    shared: &Shared,
    state: &mut State,
    check: &mut impl FnMut(&mut State) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    if let Some(answer) = check(state)? {
        return Ok(Some(answer));
    }
    shared.progress(state);
    if let Some(answer) = check(state)? {
        return Ok(Some(answer));
    }
    state.core.failure().map_or(Ok(None), |failure| Err(failure.into()))
}

/// An operation whose future may be dropped: then nothing waits for it.
struct Abandoned<'a> {
    shared: &'a Shared,
    number: Option<u64>,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let state = &mut *self.shared.lock();
            drop(state.abandon(number));
            state.release();
        }
    }
}
