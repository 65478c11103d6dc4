//! Connections.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use library::device::{Device, Mr, RemoteSlice};
use library::net::{Callbacks, Connection, Dispatcher};
use library::verbs::{Access, MrAttr, MrHandle};
use library::wire::RKey;

use super::call::{Failure, call, copy_in, copy_out, done, is_end, memory, text};

/// Bytes of the buffer that the peer reads and writes.
const BUFFER: usize = 1 << 20;
/// The number under which it is published.
const BUFFER_ID: u64 = 0;

/// The first byte of a message: whether a number follows.
const PLAIN: u8 = 0;
const WITH_IMM: u8 = 1;

type OnRecv = extern "C" fn(*mut RdmaConn, *mut c_void, usize);
type OnEvent = extern "C" fn(*mut RdmaConn);

/// What the program has of a connection: a pointer to one of these, which an `Arc` holds.
#[derive(Debug, Default)]
pub struct RdmaConn {
    state: Mutex<State>,
    /// The number that came with the last message.
    imm: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    buffer: Option<Mr>,
    registered: Vec<(MrHandle, u64, usize)>,
    on_recv: Option<OnRecv>,
    on_connected: Option<OnEvent>,
    on_disconnect: Option<OnEvent>,
    dispatcher: Option<Dispatcher>,
}

/// Connections of clients, for `rdmaRuntimeStop`.
static CLIENTS: Mutex<Vec<Weak<RdmaConn>>> = Mutex::new(Vec::new());

fn clients() -> MutexGuard<'static, Vec<Weak<RdmaConn>>> {
    CLIENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RdmaConn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Result<Connection, Failure> {
        self.lock().connection.clone().ok_or_else(|| "the connection is not established".into())
    }

    /// Takes over an established connection, and publishes a buffer.
    pub(crate) fn establish(&self, connection: Connection) -> Result<(), Failure> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = connection.pd().allocate(BUFFER, access)?;
        connection.publish(BUFFER_ID, &buffer.slice(..)?)?;
        let mut state = self.lock();
        (state.connection, state.buffer) = (Some(connection), Some(buffer));
        Ok(())
    }

    /// Calls back from now on, if there is a callback for messages.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Failure> {
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
                if let (Some(call), Some(conn)) = (on_disconnect, own_too.upgrade()) {
                    call(conn.pointer());
                }
            });
        let dispatcher = connection.start(callbacks)?;
        state.dispatcher = Some(dispatcher);
        Ok(())
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

    pub(crate) fn pointer(&self) -> *mut Self {
        std::ptr::from_ref(self).cast_mut()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.lock().connection.is_none()
    }

    /// Ends callbacks, and closes the connection.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let dispatcher = state.dispatcher.take();
        let connection = state.connection.take();
        let registered = std::mem::take(&mut state.registered);
        drop(state);
        // Callbacks use the state.
        drop(dispatcher);
        if let Some(connection) = connection {
            let _ = connection.close();
            let device = connection.pd().context().device();
            for (mr, ..) in registered {
                let _ = Device::deregister(device, mr);
            }
        }
    }

    fn send(&self, imm: Option<u32>, payload: &[u8]) -> Result<(), Failure> {
        let connection = self.connection()?;
        let [a, b, c, d] = imm.unwrap_or_default().to_le_bytes();
        let head = [WITH_IMM, a, b, c, d];
        let head = if imm.is_some() { &head[..] } else { &[PLAIN] };
        let parts = [head, payload].map(std::io::IoSlice::new);
        Ok(connection.send_vectored(&parts)?)
    }

    /// Writes to the beginning of the peer's buffer.
    fn write(&self, data: *const c_void, len: usize) -> Result<(), Failure> {
        let connection = self.connection()?;
        let to = Self::remote(&connection, len)?;
        Ok(connection.write(&copy_in(data, len)?, to)?)
    }

    /// The peer's buffer.
    fn remote(connection: &Connection, len: usize) -> Result<RemoteSlice, Failure> {
        let whole = connection.lookup(BUFFER_ID)?.ok_or("the peer has published no buffer")?;
        let too_long = || format!("{len} bytes: the peer's buffer has {}", whole.len);
        Ok(whole.part(0, len as u64).ok_or_else(too_long)?)
    }

    /// Checks that memory of the program is registered under a key.
    fn check_registered(&self, lkey: u32, addr: u64, len: usize) -> Result<(), Failure> {
        let is_within = |(mr, base, size): &(MrHandle, u64, usize)| {
            let offset = addr.checked_sub(*base);
            mr.lkey().get() == lkey
                && offset.is_some_and(|offset| offset + len as u64 <= *size as u64)
        };
        let found = self.lock().registered.iter().any(is_within);
        if found {
            Ok(())
        } else {
            Err(format!("no memory is registered as {lkey:#x} there").into())
        }
    }
}

/// The connection that a pointer names.
fn get<'a>(conn: *mut RdmaConn) -> Result<&'a RdmaConn, Failure> {
    // SAFETY: the program passes pointers that it got from this library, until it closes them.
    unsafe { conn.as_ref() }.ok_or_else(|| "a connection is needed, not NULL".into())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConn() -> *mut RdmaConn {
    call(std::ptr::null_mut(), || {
        let conn = Arc::<RdmaConn>::default();
        let mut clients = clients();
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&conn));
        Ok(Arc::into_raw(conn).cast_mut())
    })
}

/// The address that the program names.
pub(crate) fn address(ip: *const c_char, port: c_int) -> Result<SocketAddr, Failure> {
    let ip = text(ip)?;
    let address: IpAddr = ip.parse().map_err(|_| format!("{ip} is not an IP address"))?;
    let port = u16::try_from(port).map_err(|_| format!("there is no port {port}"))?;
    Ok(SocketAddr::new(address, port))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnect(conn: *mut RdmaConn, ip: *const c_char, port: c_int) -> c_int {
    done(|| {
        let own = get(conn)?;
        if !own.is_ended() {
            return Err("it is connected already".into());
        }
        own.establish(Connection::connect(address(ip, port)?)?)?;
        let on_connected = own.lock().on_connected;
        if let Some(call) = on_connected {
            call(conn);
        }
        let client = clients().iter().filter_map(Weak::upgrade).find(|it| it.pointer() == conn);
        client.ok_or("it is no connection of a client")?.start()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnClose(conn: *mut RdmaConn) {
    done(|| {
        get(conn)?.close();
        let client = clients().iter().filter_map(Weak::upgrade).find(|it| it.pointer() == conn);
        if let Some(client) = client {
            clients().retain(|it| it.as_ptr() != client.pointer());
            // SAFETY: the program's own share, which `rdmaConn` gave it and which it does not use any more.
            drop(unsafe { Arc::from_raw(conn.cast_const()) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaRuntimeStop() {
    done(|| {
        let all: Vec<Arc<RdmaConn>> = clients().iter().filter_map(Weak::upgrade).collect();
        for client in all {
            let dispatcher = client.lock().dispatcher.take();
            drop(dispatcher);
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetRecvCallback(conn: *mut RdmaConn, func: Option<OnRecv>) -> c_int {
    done(|| {
        get(conn)?.lock().on_recv = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetConnectedCallback(
    conn: *mut RdmaConn,
    func: Option<OnEvent>,
) -> c_int {
    done(|| {
        get(conn)?.lock().on_connected = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSetDisconnectCallback(
    conn: *mut RdmaConn,
    func: Option<OnEvent>,
) -> c_int {
    done(|| {
        get(conn)?.lock().on_disconnect = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSend(conn: *mut RdmaConn, data: *const c_void, len: usize) -> usize {
    call(usize::MAX, || get(conn)?.send(None, &copy_in(data, len)?).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnSendWithImm(
    conn: *mut RdmaConn,
    imm: u32,
    data: *const c_void,
    len: usize,
) -> usize {
    call(usize::MAX, || get(conn)?.send(Some(imm), &copy_in(data, len)?).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRecv(conn: *mut RdmaConn, buf: *mut c_void, len: usize) -> usize {
    call(usize::MAX, || {
        let conn = get(conn)?;
        let connection = conn.connection()?;
        if conn.lock().dispatcher.is_some() {
            return Err("messages go to the receive callback".into());
        }
        let message = match connection.recv() {
            Ok(message) => message,
            Err(error) if is_end(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let message = message.ok_or("the connection has ended")?;
        let payload = conn.accept_message(&message);
        copy_out(payload.get(..len).unwrap_or(payload), buf)?;
        Ok(payload.len())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnImm(conn: *mut RdmaConn) -> u32 {
    call(0, || Ok(get(conn)?.imm.load(Ordering::Relaxed)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWrite(conn: *mut RdmaConn, data: *const c_void, len: usize) -> usize {
    call(usize::MAX, || get(conn)?.write(data, len).map(|()| len))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWriteWithImm(
    conn: *mut RdmaConn,
    imm: u32,
    data: *const c_void,
    len: usize,
) -> c_int {
    done(|| {
        let conn = get(conn)?;
        conn.write(data, len)?;
        conn.send(Some(imm), &[])
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRead(conn: *mut RdmaConn, buf: *mut c_void, len: usize) -> c_int {
    done(|| {
        let conn = get(conn)?;
        let connection = conn.connection()?;
        let from = RdmaConn::remote(&connection, len)?;
        copy_out(&connection.read(from)?, buf)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnReadOwn(
    conn: *mut RdmaConn,
    offset: usize,
    buf: *mut c_void,
    len: usize,
) -> c_int {
    done(|| {
        let buffer = get(conn)?.lock().buffer.clone().ok_or("the connection is not established")?;
        let mut bytes = vec![0; len.min(BUFFER)];
        buffer.read(offset, &mut bytes)?;
        copy_out(&bytes, buf)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnWriteOwn(
    conn: *mut RdmaConn,
    offset: usize,
    data: *const c_void,
    len: usize,
) -> c_int {
    done(|| {
        let buffer = get(conn)?.lock().buffer.clone().ok_or("the connection is not established")?;
        Ok(buffer.write(offset, &copy_in(data, len)?)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRegister(
    conn: *mut RdmaConn,
    addr: *mut c_void,
    len: usize,
    lkey: *mut u32,
    rkey: *mut u32,
) -> c_int {
    done(|| {
        let conn = get(conn)?;
        let connection = conn.connection()?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let base = addr.expose_provenance() as u64;
        let attr = MrAttr { region: memory(addr, len)?, base, access };
        let pd = connection.pd();
        let mr = pd.context().device().register_region(pd.handle(), attr)?;
        conn.lock().registered.push((mr, base, len));
        copy_out(&mr.lkey().get().to_ne_bytes(), lkey.cast())?;
        copy_out(&mr.rkey().get().to_ne_bytes(), rkey.cast())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaSyncWriteSignaled(
    conn: *mut RdmaConn,
    local_addr: u64,
    lkey: u32,
    remote_addr: u64,
    rkey: u32,
    length: u32,
) -> c_int {
    done(|| {
        let conn = get(conn)?;
        let len = length as usize;
        conn.check_registered(lkey, local_addr, len)?;
        let bytes = copy_in(pointer(local_addr), len)?;
        let to = RemoteSlice { addr: remote_addr, len: length.into(), rkey: RKey::new(rkey) };
        Ok(conn.connection()?.write(&bytes, to)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaSyncReadSignaled(
    conn: *mut RdmaConn,
    local_addr: u64,
    lkey: u32,
    remote_addr: u64,
    rkey: u32,
    length: u32,
) -> c_int {
    done(|| {
        let conn = get(conn)?;
        conn.check_registered(lkey, local_addr, length as usize)?;
        let from = RemoteSlice { addr: remote_addr, len: length.into(), rkey: RKey::new(rkey) };
        copy_out(&conn.connection()?.read(from)?, pointer(local_addr))
    })
}

fn pointer(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or_default())
}

/// Physical addresses are for kernels.
macro_rules! physical {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_: *mut RdmaConn, _: u64, _: u32, _: u64, _: u32) -> c_int {
            done(|| Err(concat!(
                stringify!($name), ": physical addresses are not available: a program without privilege cannot know them, \
                and a soft NIC reaches memory by virtual addresses; register the memory with rdmaConnRegister() and use \
                rdmaSyncWriteSignaled() or rdmaSyncReadSignaled()"
            ).into()))
        }
    )*};
}

physical! { rdmaPAWriteSignaled rdmaPAReadSignaled rdmaPASyncWriteSignaled rdmaPASyncReadSignaled }
