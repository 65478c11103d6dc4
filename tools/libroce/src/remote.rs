//! Memory of the program that its peer uses, and memory of the peer.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use library::device::RemoteSlice;
use library::verbs::{Access, MrAttr, MrHandle};
use library::wire::RKey;

use super::call::done;
use super::connection::Connection;
use super::error::{Code, Failure};
use super::handles::{self, Handle};
use super::pointer::{copy_array, copy_in, copy_out, region, timeout};

/// Rights to published memory, as `roce.h` numbers them.
const RIGHTS: [(c_int, Access); 3] =
    [(1, Access::REMOTE_READ), (2, Access::REMOTE_WRITE), (4, Access::REMOTE_ATOMIC)];

/// Memory of the program that is registered until it is withdrawn or the connection is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    /// The number under which it is published, if it is.
    id: Option<u64>,
    mr: MrHandle,
    addr: u64,
    len: u64,
}

impl Registered {
    pub(crate) fn mr(&self) -> MrHandle {
        self.mr
    }

    /// Whether it holds `len` bytes from an address on.
    pub(crate) fn contains(&self, addr: u64, len: u64) -> bool {
        let offset = addr.checked_sub(self.addr);
        offset.and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= self.len)
    }
}

impl Connection {
    /// Registers memory of the program.
    pub(crate) fn register(
        &self,
        memory: *mut c_void,
        len: usize,
        access: Access,
    ) -> Result<Registered, Failure> {
        let region = region(memory, len)?;
        let addr = region.addr();
        let attr = MrAttr { region, base: addr, access: access | Access::LOCAL_WRITE };
        let pd = self.net.pd();
        let mr = pd.context().device().register_region(pd.handle(), attr)?;
        Ok(Registered { id: None, mr, addr, len: len as u64 })
    }

    /// Keeps memory registered until the connection is closed.
    pub(crate) fn keep(&self, registered: Registered) -> Result<(), Failure> {
        let mut all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = all.extract_if(.., |it| it.id.is_some() && it.id == registered.id);
        let replaced: Vec<Registered> = replaced.collect();
        all.push(registered);
        drop(all);
        replaced.into_iter().for_each(|it| self.deregister(it));
        // A thread that closes the connection may have withdrawn all before.
        if self.is_closed() {
            self.withdraw_all();
            return Err(Failure::new(Code::Handle, "the connection was closed meanwhile"));
        }
        Ok(())
    }

    /// Whether memory of the program is registered under a key.
    pub(crate) fn is_registered(&self, lkey: u32, addr: u64, len: u64) -> bool {
        let all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|it| it.mr.lkey().get() == lkey && it.contains(addr, len))
    }

    fn deregister(&self, registered: Registered) {
        // The device may be gone.
        let _ = self.net.pd().context().device().deregister(registered.mr);
    }

    /// Withdraws all memory of the program: the peer does not touch it any more.
    pub(super) fn withdraw_all(&self) {
        let mut all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *all);
        all.into_iter().for_each(|it| self.deregister(it));
    }

    fn publish(
        &self,
        id: u64,
        memory: *mut c_void,
        len: usize,
        rights: c_int,
    ) -> Result<(), Failure> {
        let all = RIGHTS.iter().map(|(bit, _)| bit).sum::<c_int>();
        if rights <= 0 || rights & !all != 0 {
            return Err(Failure::invalid(format_args!("{rights:#x} are no rights to memory")));
        }
        let given = RIGHTS.iter().filter(|(bit, _)| rights & bit != 0);
        let access = given.fold(Access::empty(), |all, (_, access)| all | *access);
        let registered = self.register(memory, len, access)?;
        let Registered { mr, addr, len, .. } = registered;
        let published = RemoteSlice { addr, len, rkey: mr.rkey() };
        if let Err(error) = self.net.publish_remote(id, published) {
            self.deregister(registered);
            return self.check(Err(error));
        }
        self.keep(Registered { id: Some(id), ..registered })
    }

    fn unpublish(&self, id: u64) -> Result<(), Failure> {
        if !self.net.unpublish(id) {
            let text = format_args!("nothing is published under {id}");
            return Err(Failure::new(Code::NotFound, text));
        }
        let mut all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let withdrawn: Vec<Registered> = all.extract_if(.., |it| it.id == Some(id)).collect();
        drop(all);
        withdrawn.into_iter().for_each(|it| self.deregister(it));
        Ok(())
    }
}

/// Bytes of one operation, at most. Devices refuse more than twice as many.
const OPERATION_MAX: u64 = 1 << 30;

/// Bytes of `struct roce_remote`.
const REMOTE: usize = 24;

/// Returns `len` bytes at an offset of memory of the peer that the program names.
fn part(remote: *const c_void, offset: u64, len: u64) -> Result<RemoteSlice, Failure> {
    let bytes = copy_array::<REMOTE>(remote)?;
    let ([addr, size, last], _) =
        bytes.as_chunks().0.split_first_chunk().unwrap_or((&[[0; 8]; 3], &[]));
    let [a, b, c, d, ..] = *last;
    let rkey = RKey::new(u32::from_ne_bytes([a, b, c, d]));
    let whole =
        RemoteSlice { addr: u64::from_ne_bytes(*addr), len: u64::from_ne_bytes(*size), rkey };
    let outside = || {
        let text = format_args!("{len} bytes at offset {offset} of the peer's {}", whole.len);
        Failure::new(Code::Range, text)
    };
    let part = whole.part(offset, len).ok_or_else(outside)?;
    if len > OPERATION_MAX {
        let text = format_args!("{len} bytes at a time; at most {OPERATION_MAX}");
        return Err(Failure::new(Code::TooLong, text));
    }
    Ok(part)
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_publish(
    handle: Handle,
    id: u64,
    memory: *mut c_void,
    len: usize,
    rights: c_int,
) -> c_int {
    done(|| handles::get::<Connection>(handle)?.publish(id, memory, len, rights))
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_unpublish(handle: Handle, id: u64) -> c_int {
    done(|| handles::get::<Connection>(handle)?.unpublish(id))
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_lookup(
    handle: Handle,
    id: u64,
    memory: *mut c_void,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        let found = connection.check(connection.net.lookup_timeout(id, timeout(timeout_ms)))?;
        let none = || {
            let text = format_args!("the peer has published nothing under {id}");
            Failure::new(Code::NotFound, text)
        };
        let RemoteSlice { addr, len, rkey } = found.ok_or_else(none)?;
        let words = [addr.to_ne_bytes(), len.to_ne_bytes()];
        let keys = [rkey.get().to_ne_bytes(), [0; 4]];
        copy_out(&[words.concat(), keys.concat()].concat(), memory)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_read(
    handle: Handle,
    from: *const c_void,
    offset: u64,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        let from = part(from, offset, len as u64)?;
        if len > 0 {
            region(buf, len)?;
        }
        let bytes = connection.check(connection.net.read_timeout(from, timeout(timeout_ms)))?;
        copy_out(&bytes, buf)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_write(
    handle: Handle,
    to: *const c_void,
    offset: u64,
    data: *const c_void,
    len: usize,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        let to = part(to, offset, len as u64)?;
        let bytes = copy_in(data, len)?;
        connection.check(connection.net.write_timeout(&bytes, to, timeout(timeout_ms)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_fetch_add(
    handle: Handle,
    at: *const c_void,
    offset: u64,
    add: u64,
    before: *mut u64,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        let at = number_at(at, offset)?;
        let was = connection.net.fetch_add_timeout(at, add, timeout(timeout_ms));
        put_number(connection.check(was)?, before)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_compare_swap(
    handle: Handle,
    at: *const c_void,
    offset: u64,
    expected: u64,
    desired: u64,
    before: *mut u64,
    timeout_ms: c_int,
) -> c_int {
    done(|| {
        let connection = handles::get::<Connection>(handle)?;
        let at = number_at(at, offset)?;
        let timeout = timeout(timeout_ms);
        let was = connection.net.compare_swap_timeout(at, expected, desired, timeout);
        put_number(connection.check(was)?, before)
    })
}

/// Returns the eight bytes of a number of the peer's. One that is not aligned would end the
/// connection.
fn number_at(at: *const c_void, offset: u64) -> Result<RemoteSlice, Failure> {
    let at = part(at, offset, 8)?;
    if !at.addr.is_multiple_of(8) {
        return Err(Failure::invalid("a number that is not at a multiple of 8"));
    }
    Ok(at)
}

fn put_number(number: u64, to: *mut u64) -> Result<(), Failure> {
    if to.is_null() { Ok(()) } else { copy_out(&number.to_ne_bytes(), to.cast()) }
}
