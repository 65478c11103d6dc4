//! Listeners.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use library::net::{self, Error};

use super::call::call;
use super::connection::Connection;
use super::device::{Device, address};
use super::error::{Code, Failure};
use super::handles::{self, Handle};
use super::pointer::{now, timeout};

/// Time between two checks whether a listener was closed meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    net: net::Listener,
    is_closed: AtomicBool,
}

impl Listener {
    pub(crate) fn listen(device: &Device, at: SocketAddr) -> Result<Self, Failure> {
        let net = match device.endpoint() {
            Some(endpoint) => endpoint.with(device.config()).listen(at)?,
            None => net::Listener::bind_with(at, device.config())?,
        };
        Ok(Self { net, is_closed: AtomicBool::new(false) })
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr, Failure> {
        Ok(self.net.local_addr()?)
    }

    /// Waits for the next connection, until a timeout or until the listener is closed.
    pub(crate) fn accept(&self, timeout: Duration) -> Result<Connection, Failure> {
        let deadline = now().checked_add(timeout);
        while !self.is_closed.load(Ordering::Relaxed) {
            let left = deadline.map_or(LOOK, |at| at.saturating_duration_since(now()));
            match self.net.accept_timeout(left.min(LOOK)) {
                Ok(connection) => return Ok(Connection::new(connection)),
                Err(Error::TimedOut) if left.is_zero() => return Err(Error::TimedOut.into()),
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::new(Code::Handle, "the listener was closed meanwhile"))
    }

    /// Has calls of other threads return.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_listen(device: Handle, at: *const c_char) -> Handle {
    call(|| {
        let listener = Listener::listen(&*Device::of(device)?, address(at)?)?;
        handles::insert(Arc::new(listener))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_accept(listener: Handle, timeout_ms: c_int) -> Handle {
    call(|| {
        let listener = handles::get::<Listener>(listener)?;
        handles::insert(Arc::new(listener.accept(timeout(timeout_ms))?))
    })
}
