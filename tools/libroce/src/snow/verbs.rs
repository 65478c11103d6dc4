//! Memory of the program under keys, and physical addresses.

use std::ffi::{c_int, c_void};

use library::device::RemoteSlice;
use library::verbs::Access;
use library::wire::RKey;

use super::super::connection::Connection;
use super::super::error::{Code, Failure};
use super::super::pointer::{copy_in, copy_out};
use super::Opaque;
use super::connection::{done, get};

#[unsafe(no_mangle)]
pub extern "C" fn rdmaConnRegister(
    conn: *mut Opaque,
    addr: *mut c_void,
    len: usize,
    lkey: *mut u32,
    rkey: *mut u32,
) -> c_int {
    done(|| {
        let connection = get(conn)?.connection()?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // Whether there is room for the keys is known before memory is registered.
        copy_out(&[0; 4], lkey.cast())?;
        copy_out(&[0; 4], rkey.cast())?;
        let registered = connection.register(addr, len, access)?;
        let mr = registered.mr();
        connection.keep(registered)?;
        copy_out(&mr.lkey().get().to_ne_bytes(), lkey.cast())?;
        copy_out(&mr.rkey().get().to_ne_bytes(), rkey.cast())
    })
}

/// Returns where registered memory lies, if all of it is registered under the key.
fn local(connection: &Connection, lkey: u32, addr: u64, len: u32) -> Result<*mut c_void, Failure> {
    if !connection.is_registered(lkey, addr, len.into()) {
        let text = format_args!("no memory is registered as {lkey:#x} there");
        return Err(Failure::new(Code::Range, text));
    }
    Ok(std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or_default()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaSyncWriteSignaled(
    conn: *mut Opaque,
    local_addr: u64,
    lkey: u32,
    remote_addr: u64,
    rkey: u32,
    length: u32,
) -> c_int {
    done(|| {
        let connection = get(conn)?.connection()?;
        let from = local(&connection, lkey, local_addr, length)?;
        let bytes = copy_in(from, length as usize)?;
        let to = RemoteSlice { addr: remote_addr, len: length.into(), rkey: RKey::new(rkey) };
        connection.check(connection.net.write(&bytes, to))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaSyncReadSignaled(
    conn: *mut Opaque,
    local_addr: u64,
    lkey: u32,
    remote_addr: u64,
    rkey: u32,
    length: u32,
) -> c_int {
    done(|| {
        let connection = get(conn)?.connection()?;
        let to = local(&connection, lkey, local_addr, length)?;
        let from = RemoteSlice { addr: remote_addr, len: length.into(), rkey: RKey::new(rkey) };
        copy_out(&connection.check(connection.net.read(from))?, to)
    })
}

/// Physical addresses are for kernels.
macro_rules! physical {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_: *mut Opaque, _: u64, _: u32, _: u64, _: u32) -> c_int {
            done(|| Err(Failure::invalid(concat!(
                stringify!($name),
                ": physical addresses are not available: a program without privilege cannot know \
                 them, and a soft NIC reaches memory by virtual addresses; register the memory \
                 with rdmaConnRegister() and use rdmaSyncWriteSignaled() or rdmaSyncReadSignaled()"
            ))))
        }
    )*};
}

physical! { rdmaPAWriteSignaled rdmaPAReadSignaled rdmaPASyncWriteSignaled rdmaPASyncReadSignaled }
