//! Ids of `librdmacm`, each with an event channel of its own.
#![allow(unsafe_code, reason = "calls of librdmacm")]

use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::ptr::{NonNull, null_mut};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::context::{Context, PORT};
use super::super::errors::{check, last_errno};
use super::address::Storage;
use super::channel::EventChannel;
use super::library::CmLibrary;
use crate::cm::{ConnParam, EventKind, PrivateData};
use crate::ibverbs::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, RDMA_PS_TCP, ibv_qp_attr, rdma_cm_event, rdma_cm_id,
    rdma_conn_param,
};
use crate::verbs::{AttrMask, Errno, QpAttr, QpState};

/// A call of `librdmacm` that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    /// Name of the function.
    pub(crate) call: &'static str,
    /// Error number.
    pub(crate) errno: Errno,
}

impl CallError {
    /// The library is not there.
    pub(super) const fn missing() -> Self {
        Self { call: "dlopen", errno: Errno::ENOENT }
    }

    pub(super) fn io_kind(self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno.0).kind()
    }

    /// Returns advice for a channel that cannot be created.
    pub(super) fn hint(self) -> &'static str {
        match self.io_kind() {
            io::ErrorKind::NotFound => "; the kernel's module rdma_ucm is not loaded",
            io::ErrorKind::PermissionDenied => {
                "; /dev/infiniband/rdma_cm must be readable and writable"
            }
            _ => "",
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)
    }
}

/// An event of an id.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// 0, a negative error number, or the positive reason of a REJ.
    pub(crate) status: i32,
    pub(crate) private_data: PrivateData,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// The id of a request.
    pub(crate) request: Option<SystemId>,
}

/// An id for a listener or a reliable connection. Dropping it destroys it, and the kernel tells the
/// peer.
#[derive(Debug)]
pub(crate) struct SystemId {
    library: &'static CmLibrary,
    at: NonNull<rdma_cm_id>,
    /// Held during each call with the id or its channel: the library changes what an id holds while
    /// it takes an event.
    lock: Mutex<()>,
    channel: EventChannel,
    /// The device that it must belong to.
    device: Arc<Context>,
}

// SAFETY: an id of `librdmacm` belongs to no thread.
unsafe impl Send for SystemId {}

// SAFETY: as above; the lock keeps threads apart that use one at a time.
unsafe impl Sync for SystemId {}

impl SystemId {
    pub(super) fn create(
        library: &'static CmLibrary,
        device: Arc<Context>,
    ) -> Result<Self, CallError> {
        let channel = EventChannel::create(library)?;
        let mut at = null_mut();
        // SAFETY: the channel lives, and there is room for the answer.
        let code =
            unsafe { (library.create_id)(channel.at(), &raw mut at, null_mut(), RDMA_PS_TCP) };
        done("rdma_create_id", code)?;
        let at =
            NonNull::new(at).ok_or(CallError { call: "rdma_create_id", errno: Errno::EINVAL })?;
        Ok(Self { library, at, lock: Mutex::default(), channel, device })
    }

    /// Takes over the id of a request, which is on the channel of `listener`, whose lock is held.
    /// It gets a channel of its own. `None` if it belongs to another device, which rejects it, or
    /// is gone.
    fn of_request(listener: &Self, at: *mut rdma_cm_id) -> Option<Self> {
        let at = NonNull::new(at)?;
        let library = listener.library;
        let Ok(channel) = EventChannel::create(library) else {
            // SAFETY: it is the id of a request that was just taken, which nothing else has.
            let _: c_int = unsafe { (library.destroy_id)(at.as_ptr()) };
            return None;
        };
        let device = Arc::clone(&listener.device);
        let id = Self { library, at, lock: Mutex::default(), channel, device };
        // SAFETY: nothing else has the id; its events are on a channel that no thread reads,
        // because the listener's lock is held; and none of them waits to be acknowledged.
        let code = unsafe { (library.migrate_id)(id.at.as_ptr(), id.channel.at()) };
        (done("rdma_migrate_id", code).is_ok() && id.is_own_device(&id.hold())).then_some(id)
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the id.
    fn call(
        &self,
        name: &'static str,
        run: impl FnOnce(&CmLibrary, *mut rdma_cm_id) -> c_int,
    ) -> Result<(), CallError> {
        let _held = self.hold();
        done(name, run(self.library, self.at.as_ptr()))
    }

    /// Whether it belongs to the first port of the device, or to none yet.
    fn is_own_device(&self, _held: &MutexGuard<'_, ()>) -> bool {
        // SAFETY: the id lives, and its lock is held.
        let rdma_cm_id { verbs, port_num, .. } = unsafe { *self.at.as_ptr() };
        if verbs.is_null() {
            return true;
        }
        // SAFETY: an id that has a device keeps it open.
        let device = unsafe { (*verbs).device };
        // SAFETY: the device of an open one is there.
        let name = unsafe { (self.device.library.get_device_name)(device) };
        if name.is_null() {
            return false;
        }
        // SAFETY: the library's name of a device ends with a zero, and is there as long as the
        // device is.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_bytes() == self.device.name.as_bytes() && port_num == PORT.0
    }

    /// Binds it to an address of the device, or to a wildcard, and listens there.
    pub(crate) fn listen(&self, at: SocketAddr) -> Result<(), CallError> {
        let mut address = Storage::from(at);
        self.call("rdma_bind_addr", |library, id| {
            // SAFETY: the id lives, and the address is there until this returns.
            unsafe { (library.bind_addr)(id, &raw mut address) }
        })?;
        if !self.is_own_device(&self.hold()) {
            return Err(CallError { call: "rdma_bind_addr", errno: Errno::EADDRNOTAVAIL });
        }
        self.call("rdma_listen", |library, id| {
            // SAFETY: the id lives. Zero is the longest backlog there is.
            unsafe { (library.listen)(id, 0) }
        })
    }

    /// Returns its own address and the peer's.
    pub(crate) fn addresses(&self) -> [Option<SocketAddr>; 2] {
        let _held = self.hold();
        // SAFETY: the id lives, and its lock is held.
        let addr = unsafe { (*self.at.as_ptr()).route.addr };
        [addr.src_storage, addr.dst_storage].map(|bytes| Storage::new(bytes).to_addr())
    }

    /// Sets the type of service.
    pub(crate) fn set_tos(&self, mut tos: u8) -> Result<(), CallError> {
        self.call("rdma_set_option", |library, id| {
            let value: *mut c_void = (&raw mut tos).cast();
            // SAFETY: the id lives, and the value, of one byte, is there until this returns.
            unsafe { (library.set_option)(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, value, 1) }
        })
    }

    /// Resolves the address of a peer.
    pub(crate) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let (mut source, mut to) = (source.map(Storage::from), Storage::from(to));
        self.call("rdma_resolve_addr", |library, id| {
            let source = source.as_mut().map_or(null_mut(), |source| &raw mut *source);
            // SAFETY: the id lives, and the addresses are there until this returns.
            unsafe { (library.resolve_addr)(id, source, &raw mut to, milliseconds(timeout)) }
        })
    }

    /// Resolves the route to a peer whose address is resolved.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<(), CallError> {
        self.call("rdma_resolve_route", |library, id| {
            // SAFETY: the id lives.
            unsafe { (library.resolve_route)(id, milliseconds(timeout)) }
        })
    }

    pub(crate) fn connect(&self, param: &ConnParam<'_>) -> Result<(), CallError> {
        let mut param = to_c("rdma_connect", param)?;
        self.call("rdma_connect", |library, id| {
            // SAFETY: the id lives, and the parameters with their data are there until this
            // returns.
            unsafe { (library.connect)(id, &raw mut param) }
        })
    }

    pub(crate) fn accept(&self, param: &ConnParam<'_>) -> Result<(), CallError> {
        let mut param = to_c("rdma_accept", param)?;
        self.call("rdma_accept", |library, id| {
            // SAFETY: the id lives, and the parameters with their data are there until this
            // returns.
            unsafe { (library.accept)(id, &raw mut param) }
        })
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result<(), CallError> {
        let too_long = CallError { call: "rdma_reject", errno: Errno::EINVAL };
        let len = u8::try_from(data.len()).map_err(|_| too_long)?;
        self.call("rdma_reject", |library, id| {
            // SAFETY: the id lives, and `data` until this returns.
            unsafe { (library.reject)(id, data.as_ptr().cast(), len) }
        })
    }

    pub(crate) fn establish(&self) -> Result<(), CallError> {
        self.call("rdma_establish", |library, id| {
            // SAFETY: the id lives.
            unsafe { (library.establish)(id) }
        })
    }

    pub(crate) fn disconnect(&self) -> Result<(), CallError> {
        self.call("rdma_disconnect", |library, id| {
            // SAFETY: the id lives.
            unsafe { (library.disconnect)(id) }
        })
    }

    /// Returns what the queue pair must be set to for a state.
    pub(crate) fn qp_attr(&self, state: QpState) -> Result<(QpAttr, AttrMask), CallError> {
        const CALL: &str = "rdma_init_qp_attr";
        let mut attr = ibv_qp_attr { qp_state: state.code(), ..ibv_qp_attr::zeroed() };
        let mut mask: c_int = 0;
        self.call(CALL, |library, id| {
            // SAFETY: the id lives, and there is room for both answers.
            unsafe { (library.init_qp_attr)(id, &raw mut attr, &raw mut mask) }
        })?;
        let invalid = CallError { call: CALL, errno: Errno::EINVAL };
        let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(invalid)?;
        Ok((attr.to_qp_attr(mask).map_err(|_| invalid)?, mask))
    }

    /// Takes the next event, if there is one.
    pub(crate) fn poll_event(&self) -> Result<Option<Event>, CallError> {
        let held = self.hold();
        loop {
            let mut at: *mut rdma_cm_event = null_mut();
            // SAFETY: the channel lives, and there is room for the answer.
            let code = unsafe { (self.library.get_cm_event)(self.channel.at(), &raw mut at) };
            if let Err(error) = done("rdma_get_cm_event", code) {
                let is_none = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                return if is_none.contains(&error.io_kind()) { Ok(None) } else { Err(error) };
            }
            let Some(at) = NonNull::new(at) else { return Ok(None) };
            // SAFETY: it is the event that was just taken, and nothing else has it.
            let event = unsafe { *at.as_ptr() };
            let copied = copy(&event);
            // SAFETY: it is the event that was just taken, for the first time; nothing of it is
            // used afterwards.
            let _: c_int = unsafe { (self.library.ack_cm_event)(at.as_ptr()) };
            if let Some(copied) = self.complete(copied, event.id, &held) {
                return Ok(Some(copied));
            }
        }
    }

    /// Adds the id of a request to its event, and makes an error of an address that another device
    /// leads to. `None` if the event is none for this id.
    fn complete(
        &self,
        event: Option<Event>,
        subject: *mut rdma_cm_id,
        held: &MutexGuard<'_, ()>,
    ) -> Option<Event> {
        let event = event?;
        match event.kind {
            EventKind::ConnectRequest => {
                Some(Event { request: Some(Self::of_request(self, subject)?), ..event })
            }
            EventKind::AddrResolved if !self.is_own_device(held) => {
                let status = Errno::ENODEV.0.wrapping_neg();
                Some(Event { kind: EventKind::AddrError, status, ..event })
            }
            _ => Some(event),
        }
    }
}

impl AsFd for SystemId {
    /// The descriptor that is readable while an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for SystemId {
    fn drop(&mut self) {
        // SAFETY: a `&mut` proves that nothing else uses the id, and none of its events waits to be
        // acknowledged. The channel is dropped after it.
        let _: c_int = unsafe { (self.library.destroy_id)(self.at.as_ptr()) };
    }
}

/// Converts the result of a function of the library.
fn done(call: &'static str, code: c_int) -> Result<(), CallError> {
    if code == -1 {
        return Err(CallError { call, errno: last_errno() });
    }
    check(code).map_err(|errno| CallError { call, errno })
}

/// A time as the library takes it: at least one millisecond.
fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// The parameters of a connection as C has them. They point to the private data.
fn to_c(call: &'static str, param: &ConnParam<'_>) -> Result<rdma_conn_param, CallError> {
    let too_long = CallError { call, errno: Errno::EINVAL };
    Ok(rdma_conn_param {
        private_data: param.private_data.as_ptr().cast(),
        private_data_len: u8::try_from(param.private_data.len()).map_err(|_| too_long)?,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: u8::from(param.flow_control),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: u8::from(param.srq),
        qp_num: param.qpn.get(),
    })
}

/// An event of a reliable connection that is not acknowledged yet, copied; `None` if it is of a
/// kind that is not known.
fn copy(event: &rdma_cm_event) -> Option<Event> {
    let kind = EventKind::from_code(event.event)?;
    // SAFETY: ids here are for reliable connections, whose events have these parameters; all of
    // them are numbers and a pointer, of which every pattern of bits is one.
    let conn = unsafe { event.param.conn };
    let data: *const u8 = conn.private_data.cast();
    let private_data = if data.is_null() || conn.private_data_len == 0 {
        PrivateData::NONE
    } else {
        // SAFETY: `private_data_len` bytes are there until the event is acknowledged, which the
        // caller does later.
        PrivateData::of(unsafe {
            core::slice::from_raw_parts(data, usize::from(conn.private_data_len))
        })
    };
    Some(Event {
        kind,
        status: event.status,
        private_data,
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        request: None,
    })
}
