//! Connections and their callbacks.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use library::device::{Mr, RemoteSlice};
use library::net::{Callbacks, Dispatcher};
use library::verbs::Access;

use super::super::call::call_or;
use super::super::connection::{Connection, message};
use super::super::device::Device;
use super::super::error::{Code, Failure};
use super::super::handles::{self, Handle};
use super::super::pointer::{copy_in, copy_out, text};
use super::{ERR, OK, Opaque, handle, pointer};

/// Bytes of the buffer that the peer reads and writes.
const BUFFER: usize = 1 << 20;
/// The number under which it is published.
const BUFFER_ID: u64 = 0;

/// The first byte of a message: whether a number follows.
const PLAIN: u8 = 0;
const WITH_IMM: u8 = 1;

pub(super) type OnRecv = extern "C" fn(*mut Opaque, *mut c_void, usize);
pub(super) type OnEvent = extern "C" fn(*mut Opaque);

/// A connection, also before it is connected.
#[derive(Debug)]
pub(crate) struct RdmaConn {
    state: Mutex<State>,
    /// The number that came with the last message.
    imm: AtomicU32,
    side: Side,
    handle: AtomicI64,
}

/// The side that made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The program frees it.
    Client,
    /// The server's side, which is freed when it has ended.
    Server,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    buffer: Option<Mr>,
    on_recv: Option<OnRecv>,
    on_connected: Option<OnEvent>,
    on_disconnect: Option<OnEvent>,
    dispatcher: Option<Dispatcher>,
}

impl RdmaConn {
    /// Creates a connection with a handle.
    pub(super) fn create(side: Side) -> Result<(Arc<Self>, Handle), Failure> {
        let conn = Arc::new(Self {
            state: Mutex::default(),
            imm: AtomicU32::new(0),
            side,
            handle: AtomicI64::new(0),
        });
        let handle = handles::insert(Arc::clone(&conn))?;
        conn.handle.store(handle, Ordering::Release);
        Ok((conn, handle))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pointer(&self) -> *mut Opaque {
        pointer(self.handle.load(Ordering::Acquire))
    }

    pub(crate) fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let connection = self.lock().connection.clone();
        connection.ok_or_else(not_established)
    }

    /// Takes over an established connection, and publishes a buffer.
    pub(super) fn establish(&self, connection: Connection) -> Result<(), Failure> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = connection.net.pd().allocate(BUFFER, access)?;
        connection.net.publish(BUFFER_ID, &buffer.slice(..)?)?;
        let mut state = self.lock();
        (state.connection, state.buffer) = (Some(Arc::new(connection)), Some(buffer));
        Ok(())
    }

    /// Calls back from now on, if there is a callback for messages.
    pub(super) fn start(self: &Arc<Self>) -> Result<(), Failure> {
        let connection = self.connection()?;
        let mut state = self.lock();
        let Some(on_recv) = state.on_recv else { return Ok(()) };
        let (own, own_too) = (Arc::downgrade(self), Arc::downgrade(self));
        let on_disconnect = state.on_disconnect;
        let callbacks = Callbacks::new()
            .on_message(move |_, message| {
                if let Some(conn) = own.upgrade() {
                    let mut payload = conn.accept_message(message).to_vec();
                    on_recv(conn.pointer(), payload.as_mut_ptr().cast(), payload.len());
                }
            })
            .on_disconnect(move |_, _| {
                let Some(conn) = own_too.upgrade() else { return };
                if let Some(call) = on_disconnect {
                    call(conn.pointer());
                }
                conn.end();
            });
        state.dispatcher = Some(connection.net.start(callbacks)?);
        Ok(())
    }

    /// Frees a connection that has ended, and the handle of an accepted one.
    fn end(&self) {
        if self.side == Side::Server {
            let _ = handles::remove_kind::<Self>(self.handle.load(Ordering::Acquire));
        }
        let _ = self.close();
    }

    /// Keeps the number of a message; returns its payload.
    fn accept_message<'a>(&self, message: &'a [u8]) -> &'a [u8] {
        let (imm, payload) = match message {
            [WITH_IMM, a, b, c, d, payload @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), payload),
            [_, payload @ ..] => (0, payload),
            [] => (0, message),
        };
        self.imm.store(imm, Ordering::Relaxed);
        payload
    }

    /// Ends callbacks, closes the connection, and frees all that it has.
    pub(super) fn close(&self) -> Result<(), Failure> {
        let State { connection, buffer, dispatcher, .. } = std::mem::take(&mut *self.lock());
        // Callbacks use the state.
        drop(dispatcher);
        let closed = connection.map_or(Ok(()), |connection| connection.close());
        drop(buffer);
        closed
    }

    /// Ends callbacks.
    fn stop(&self) {
        let dispatcher = self.lock().dispatcher.take();
        drop(dispatcher);
    }

    fn send(&self, imm: Option<u32>, data: *const c_void, len: usize) -> Result<(), Failure> {
        let [a, b, c, d] = imm.unwrap_or_default().to_le_bytes();
        let head = [WITH_IMM, a, b, c, d];
        let head = if imm.is_some() { &head[..] } else { &[PLAIN] };
        self.connection()?.send(&message(head, data, len)?, Duration::MAX)
    }

    fn recv(&self, buf: *mut c_void, len: usize) -> Result<usize, Failure> {
        let connection = self.connection()?;
        if self.lock().dispatcher.is_some() {
            return Err(Failure::invalid("messages go to the receive callback"));
        }
        let received = connection.recv(Duration::MAX, |message| {
            let payload = self.accept_message(message);
            copy_out(payload.get(..len).unwrap_or(payload), buf)?;
            Ok(payload.len())
        });
        let is_over = |failure: &Failure| {
            matches!(failure.code, Code::Closed | Code::Finished | Code::Lost | Code::Handle)
        };
        if self.side == Side::Server && received.as_ref().is_err_and(is_over) {
            self.end();
        }
        received
    }

    /// Writes to the beginning of the peer's buffer.
    fn write(&self, data: *const c_void, len: usize) -> Result<(), Failure> {
        let connection = self.connection()?;
        let to = remote(&connection, len)?;
        let bytes = copy_in(data, len)?;
        connection.check(connection.net.write(&bytes, to))
    }

    fn buffer(&self) -> Result<Mr, Failure> {
        self.lock().buffer.clone().ok_or_else(not_established)
    }
}

fn not_established() -> Failure {
    Failure::new(Code::Handle, "the connection is not established")
}

/// Returns the beginning of the peer's buffer.
fn remote(connection: &Connection, len: usize) -> Result<RemoteSlice, Failure> {
    let none = || Failure::new(Code::NotFound, "the peer has published no buffer");
    let whole = connection.check(connection.net.lookup(BUFFER_ID))?.ok_or_else(none)?;
    let too_long = || {
        let text = format_args!("{len} bytes: the peer's buffer has {}", whole.len);
        Failure::new(Code::Range, text)
    };
    whole.part(0, len as u64).ok_or_else(too_long)
}

/// Returns the connection that a pointer names.
pub(super) fn get(conn: *mut Opaque) -> Result<Arc<RdmaConn>, Failure> {
    handles::get(handle(conn))
}

/// Returns the address that the program names.
pub(super) fn address(ip: *const c_char, port: c_int) -> Result<SocketAddr, Failure> {
    let ip = text(ip)?;
    let wrong = |_| Failure::new(Code::Address, format_args!("{ip} is not an IP address"));
    let address: IpAddr = ip.parse().map_err(wrong)?;
    let wrong = |_| Failure::new(Code::Address, format_args!("there is no port {port}"));
    Ok(SocketAddr::new(address, u16::try_from(port).map_err(wrong)?))
}

/// Runs a call that returns `RDMA_OK` or `RDMA_ERR`.
pub(super) fn done(run: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call_or(ERR, || run().map(|()| OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConn() -> *mut Opaque {
    call_or(std::ptr::null_mut(), || {
        let (_, handle) = RdmaConn::create(Side::Client)?;
        Ok(pointer(handle))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnect(conn: *mut Opaque, ip: *const c_char, port: c_int) -> c_int {
    done(|| {
        let own = get(conn)?;
        if own.connection().is_ok() || own.side != Side::Client {
            return Err(Failure::invalid("it is connected already"));
        }
        let to = address(ip, port)?;
        own.establish(Connection::connect(&Device::default(), to, Duration::MAX)?)?;
        let on_connected = own.lock().on_connected;
        if let Some(call) = on_connected {
            call(conn);
        }
        own.start()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnClose(conn: *mut Opaque) {
    done(|| handles::remove_kind::<RdmaConn>(handle(conn))?.close());
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaRuntimeStop() {
    done(|| {
        let all = handles::all::<RdmaConn>();
        all.iter().filter(|conn| conn.side == Side::Client).for_each(|conn| conn.stop());
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetRecvCallback(conn: *mut Opaque, func: Option<OnRecv>) -> c_int {
    done(|| {
        get(conn)?.lock().on_recv = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetConnectedCallback(conn: *mut Opaque, func: Option<OnEvent>) -> c_int {
    done(|| {
        get(conn)?.lock().on_connected = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetDisconnectCallback(conn: *mut Opaque, func: Option<OnEvent>) -> c_int {
    done(|| {
        get(conn)?.lock().on_disconnect = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSend(conn: *mut Opaque, data: *const c_void, len: usize) -> usize {
    call_or(usize::MAX, || get(conn)?.send(None, data, len).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSendWithImm(
    conn: *mut Opaque,
    imm: u32,
    data: *const c_void,
    len: usize,
) -> usize {
    call_or(usize::MAX, || get(conn)?.send(Some(imm), data, len).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRecv(conn: *mut Opaque, buf: *mut c_void, len: usize) -> usize {
    call_or(usize::MAX, || get(conn)?.recv(buf, len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnImm(conn: *mut Opaque) -> u32 {
    call_or(0, || Ok(get(conn)?.imm.load(Ordering::Relaxed)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWrite(conn: *mut Opaque, data: *const c_void, len: usize) -> usize {
    call_or(usize::MAX, || get(conn)?.write(data, len).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWriteWithImm(
    conn: *mut Opaque,
    imm: u32,
    data: *const c_void,
    len: usize,
) -> c_int {
    done(|| {
        let conn = get(conn)?;
        conn.write(data, len)?;
        conn.send(Some(imm), std::ptr::null(), 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRead(conn: *mut Opaque, buf: *mut c_void, len: usize) -> c_int {
    done(|| {
        let connection = get(conn)?.connection()?;
        let from = remote(&connection, len)?;
        copy_out(&connection.check(connection.net.read(from))?, buf)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnReadOwn(
    conn: *mut Opaque,
    offset: usize,
    buf: *mut c_void,
    len: usize,
) -> c_int {
    done(|| {
        let buffer = get(conn)?.buffer()?;
        // The check comes before the allocation.
        let end = offset.checked_add(len);
        let slice = buffer.slice(offset..end.unwrap_or(usize::MAX))?;
        copy_out(&slice.to_vec(), buf)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWriteOwn(
    conn: *mut Opaque,
    offset: usize,
    data: *const c_void,
    len: usize,
) -> c_int {
    done(|| {
        let buffer = get(conn)?.buffer()?;
        let end = offset.checked_add(len);
        let slice = buffer.slice(offset..end.unwrap_or(usize::MAX))?;
        Ok(slice.write(0, &copy_in(data, len)?)?)
    })
}
