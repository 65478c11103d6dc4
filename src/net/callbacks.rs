//! Connections by callbacks: a thread for each calls the program.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::connection::Connection;
use super::error::Error;
use super::listener::Listener;

/// Interval at which a waiting thread checks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

type OnConnected = dyn Fn(&Connection) + Send + Sync;
type OnMessage = dyn Fn(&Connection, &[u8]) + Send + Sync;
type OnDisconnect = dyn Fn(&Connection, Option<&Error>) + Send + Sync;

/// Functions of a program that are called for events of a connection.
///
/// Callbacks of one connection are called one after the other, by a thread of its own; those of
/// several connections at the same time. A callback may send, and may block: then the peer's
/// messages wait in the ring.
///
/// ```
/// use roce::net::{Callbacks, Connection, Listener};
///
/// let listener = Listener::bind("127.20.4.1:0")?;
/// let at = listener.local_addr()?;
/// let server = listener.serve(
///     Callbacks::new()
///         .on_connected(|connection| println!("{:?} is here", connection.peer_addr()))
///         .on_message(|connection, message| connection.send(message).unwrap())
///         .on_disconnect(|_, error| assert!(error.is_none())),
/// )?;
/// let connection = Connection::connect(at)?;
/// connection.send(b"hello")?;
/// assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
/// connection.close()?;
/// server.stop();
/// # Ok::<(), roce::net::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Callbacks {
    connected: Option<Arc<OnConnected>>,
    message: Option<Arc<OnMessage>>,
    disconnect: Option<Arc<OnDisconnect>>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

impl Callbacks {
    /// No callbacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Called once a connection is established.
    #[must_use]
    pub fn on_connected(self, call: impl Fn(&Connection) + Send + Sync + 'static) -> Self {
        Self { connected: Some(Arc::new(call)), ..self }
    }

    /// Called with each message.
    #[must_use]
    pub fn on_message(self, call: impl Fn(&Connection, &[u8]) + Send + Sync + 'static) -> Self {
        Self { message: Some(Arc::new(call)), ..self }
    }

    /// Called when the peer has closed the connection, or with the error that ended it.
    #[must_use]
    pub fn on_disconnect(
        self,
        call: impl Fn(&Connection, Option<&Error>) + Send + Sync + 'static,
    ) -> Self {
        Self { disconnect: Some(Arc::new(call)), ..self }
    }

    /// Calls until the connection ends, or until it is to stop.
    fn run(&self, connection: &Connection, is_stopped: &AtomicBool) {
        if let Some(call) = &self.connected {
            call(connection);
        }
        let mut message = Vec::new();
        let ended = loop {
            match connection.recv_timeout(&mut message, LOOK) {
                Ok(true) => {
                    if let Some(call) = &self.message {
                        call(connection, &message);
                    }
                }
                Ok(false) => break None,
                Err(Error::TimedOut) if is_stopped.load(Ordering::Relaxed) => break None,
                Err(Error::TimedOut) => {}
                Err(error) => break Some(error),
            }
        };
        if let Some(call) = &self.disconnect {
            call(connection, ended.as_ref());
        }
        let _ = connection.close();
    }
}

impl Connection {
    /// Calls back for this connection, from a thread of its own, which ends with it.
    pub fn start(&self, callbacks: Callbacks) -> Result<Dispatcher, Error> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (connection, stop) = (self.clone(), Arc::clone(&is_stopped));
        let run = move || callbacks.run(&connection, &stop);
        let thread = std::thread::Builder::new().name("roce-net".to_owned()).spawn(run)?;
        Ok(Dispatcher { is_stopped, threads: Arc::new(Mutex::new(vec![thread])), local: None })
    }
}

impl Listener {
    /// Accepts every connection and calls back for each.
    pub fn serve(self, callbacks: Callbacks) -> Result<Dispatcher, Error> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let threads = Arc::<Mutex<Vec<JoinHandle<()>>>>::default();
        let local = self.local_addr().ok();
        let (stop, started) = (Arc::clone(&is_stopped), Arc::clone(&threads));
        let accept = move || {
            while !stop.load(Ordering::Relaxed) {
                let connection = match self.accept_timeout(LOOK) {
                    Ok(connection) => connection,
                    Err(Error::TimedOut) => continue,
                    Err(_) => return,
                };
                let (callbacks, stop) = (callbacks.clone(), Arc::clone(&stop));
                let run = move || callbacks.run(&connection, &stop);
                let thread = std::thread::Builder::new().name("roce-net".to_owned()).spawn(run);
                let mut threads = started.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.extend(thread);
            }
        };
        let thread = std::thread::Builder::new().name("roce-listen".to_owned()).spawn(accept)?;
        threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(Dispatcher { is_stopped, threads, local })
    }
}

/// Threads that call back. Dropping it stops them, and waits for the callbacks that run.
#[derive(Debug)]
pub struct Dispatcher {
    is_stopped: Arc<AtomicBool>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    local: Option<SocketAddr>,
}

impl Dispatcher {
    /// Returns the address that its listener has.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Ends connections and the listener; returns when no callback runs any more.
    pub fn stop(self) {
        drop(self);
    }

    /// Waits until all its connections have ended by themselves.
    pub fn join(self) {
        self.join_all();
    }

    fn join_all(&self) {
        let own = std::thread::current().id();
        loop {
            let thread = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(thread) = thread else { return };
            // A callback may drop it.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.join_all();
    }
}
