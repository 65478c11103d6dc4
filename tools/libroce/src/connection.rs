//! Connections: messages, and their end.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use library::net::limits::MESSAGE_MAX;
use library::net::{self, Endpoint, Error};

use super::call::{call, done};
use super::device::{Device, address};
use super::error::{Code, Failure};
use super::handles::{self, Handle, Object};
use super::inbox::Inbox;
use super::listener::Listener;
use super::pointer::{append, copy_out, put_text, timeout};
use super::remote::Registered;

/// A connection, until the program closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) net: net::Connection,
    pub(super) inbox: Inbox,
    /// Memory of the program that the peer may use.
    pub(super) registered: Mutex<Vec<Registered>>,
    is_closed: AtomicBool,
}

impl Connection {
    pub(crate) fn new(net: net::Connection) -> Self {
        let (inbox, registered) = (Inbox::default(), Mutex::default());
        Self { net, inbox, registered, is_closed: AtomicBool::new(false) }
    }

    pub(crate) fn connect(
        device: &Device,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let config = device.config();
        let config = config.connect_timeout(config.connect_timeout.min(timeout));
        let endpoint = match device.endpoint() {
            Some(endpoint) => endpoint,
            None => Endpoint::towards(to)?,
        };
        Ok(Self::new(endpoint.with(config).connect(to)?))
    }

    pub(crate) fn send(&self, message: &[u8], timeout: Duration) -> Result<(), Failure> {
        self.check(self.net.send_timeout(message, timeout))
    }

    /// Waits for the next message, and returns what `look` makes of it. It is taken unless that
    /// fails.
    pub(crate) fn recv<T>(
        &self,
        timeout: Duration,
        look: impl FnOnce(&[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.check_failure(self.inbox.take(&self.net, timeout, look))
    }

    /// Whether an operation failed because another thread has closed the connection.
    pub(super) fn check<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        self.check_failure(result.map_err(Into::into))
    }

    fn check_failure<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|failure| {
            let ends = [Code::Lost, Code::Closed, Code::Finished].contains(&failure.code);
            if ends && self.is_closed() {
                return Failure::new(Code::Handle, "the connection was closed meanwhile");
            }
            failure
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Delivers messages, as long as the linger time allows. Then calls of other threads fail, and
    /// the peer does not touch memory of the program any more.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = self.net.close();
        self.net.abort();
        self.withdraw_all();
        Ok(closed?)
    }
}

/// Returns a copy of a message of the program, behind a head. Longer ones than any peer takes are
/// none.
pub(crate) fn message(head: &[u8], data: *const c_void, len: usize) -> Result<Vec<u8>, Failure> {
    if len.checked_add(head.len()).is_none_or(|len| len as u64 > MESSAGE_MAX) {
        let text = format_args!("a message of {len} bytes; at most {MESSAGE_MAX}");
        return Err(Failure::new(Code::TooLong, text));
    }
    append(head.to_vec(), data, len)
}

fn length(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_connect(device: Handle, to: *const c_char, timeout_ms: c_int) -> Handle {
    call(|| {
        let device = Device::of(device)?;
        let connection = Connection::connect(&device, address(to)?, timeout(timeout_ms))?;
        handles::insert(Arc::new(connection))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_local_address(handle: Handle, buf: *mut c_char, len: usize) -> c_int {
    call(|| {
        let address = match handles::object(handle)? {
            Object::Listener(listener) => Some(listener.local_addr()?),
            _ => handles::get::<Connection>(handle)?.net.local_addr(),
        };
        put_address(address, buf, len)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_peer_address(handle: Handle, buf: *mut c_char, len: usize) -> c_int {
    call(|| put_address(handles::get::<Connection>(handle)?.net.peer_addr(), buf, len))
}

fn put_address(
    address: Option<SocketAddr>,
    buf: *mut c_char,
    len: usize,
) -> Result<c_int, Failure> {
    let none = || Failure::new(Code::NotFound, "the device does not know the address");
    put_text(&address.ok_or_else(none)?.to_string(), buf, len)
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_close(handle: Handle) -> c_int {
    done(|| {
        // What is of SnowRDMA is closed by its own calls.
        if matches!(handles::object(handle)?, Object::SnowConn(_) | Object::SnowListener(_)) {
            handles::get::<Connection>(handle)?;
        }
        match handles::remove(handle)? {
            Object::Connection(connection) => connection.close()?,
            Object::Listener(listener) => Listener::close(&listener),
            Object::Device(_) | Object::SnowConn(_) | Object::SnowListener(_) => {}
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_send(
    handle: Handle,
    data: *const c_void,
    len: usize,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        connection.send(&message(&[], data, len)?, timeout(timeout_ms))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_recv(
    handle: Handle,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
) -> i64 {
    call(|| {
        handles::get::<Connection>(handle)?.recv(timeout(timeout_ms), |message| {
            let needed = message.len();
            if needed > len {
                let text = format_args!("a message of {needed} bytes for a buffer of {len}");
                return Err(Failure::new(Code::TooLong, text));
            }
            copy_out(message, buf)?;
            Ok(length(needed))
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_next(handle: Handle, timeout_ms: c_int) -> i64 {
    call(|| {
        let connection = handles::get::<Connection>(handle)?;
        let len = connection.inbox.peek(&connection.net, timeout(timeout_ms));
        connection.check_failure(len).map(length)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_finish(handle: Handle, timeout_ms: c_int) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        connection.check(connection.net.finish_timeout(timeout(timeout_ms)))
    })
}
