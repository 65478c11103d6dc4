//! Open devices, and the tables of functions by which the inline half of the API calls this
//! library.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex};

use roce::device::Device as _;
use roce::ibverbs::{
    VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_context, ibv_context_ops, ibv_device, verbs_context,
};
use roce::nic::SoftNic;
use roce::verbs::{CqHandle, DeviceAttr, EventSubject, EventType, Guid};

use crate::call::{Attempt, Failed, Result, code, pointer, quiet, waiting};
use crate::cq::Cq;
use crate::device::Device;
use crate::events::{Acks, AssertSend, Asynchronous, lock};
use crate::fork::Open;
use crate::object::{Object, answer, given};
use crate::qp::Qp;
use crate::share::CommandFile;
use crate::srq::Srq;
use crate::{cq, cq_ex, dm, flow, mr, mw, pd, post, qp, query, registry, srq, wq, xrc};

/// An open device. C holds a pointer to the end of what it knows.
#[repr(C)]
pub(crate) struct Context {
    c: UnsafeCell<verbs_context>,
    pub(crate) device: &'static Device,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) events: Arc<Asynchronous>,
    /// Attributes of the NIC, which never change.
    pub(crate) attr: DeviceAttr,
    /// A completion queue for queue pairs that have none.
    spare_cq: Mutex<Option<CqHandle>>,
    /// File of its descriptor for commands.
    _commands: CommandFile,
    _open: Open,
}

impl Context {
    pub(crate) fn open(device: &'static Device, commands: CommandFile) -> Result<*mut ibv_context> {
        let open = Open::new()?;
        let nic = device.open()?;
        crate::sysfs::refresh();
        let guid = Guid(device.guid().to_ne_bytes());
        let attr = DeviceAttr { node_guid: guid, sys_image_guid: guid, ..nic.query_device()? };
        let events = Arc::new(Asynchronous::new()?);
        device.routes.add_context(&events);
        let vectors = std::thread::available_parallelism().map_or(1, usize::from);
        let context = ibv_context {
            device: device.c(),
            ops: OPS,
            cmd_fd: commands.fd(),
            async_fd: events.fd(),
            num_comp_vectors: c_int::try_from(vectors).unwrap_or(1),
            abi_compat: ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED),
            ..ibv_context::zeroed()
        };
        let c = UnsafeCell::new(verbs_context { context, ..EXTENDED_OPS });
        let context = Box::into_raw(Box::new(Self {
            c,
            device,
            nic,
            events,
            attr,
            spare_cq: Mutex::default(),
            _commands: commands,
            _open: open,
        }));
        // SAFETY: it was just made.
        let given = unsafe { (*context).c() };
        registry::add::<Self, _>(given);
        Ok(given)
    }

    /// Returns the pointer that C holds.
    pub(crate) fn c(&self) -> *mut ibv_context {
        let beginning: *mut verbs_context = self.c.get();
        beginning.wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }

    /// The open device that C holds. What is none, or was closed, is refused.
    ///
    /// # Safety
    ///
    /// No other thread may close it meanwhile.
    pub(crate) unsafe fn of<'a>(held: *const ibv_context) -> Result<&'a Self> {
        registry::check::<Self, _>(held)?;
        // SAFETY: it is open.
        unsafe { Self::inherited(held) }
    }

    /// The open device that C holds, even if a parent opened it: only what never changes of it may
    /// be used.
    ///
    /// # Safety
    ///
    /// `held` must be null, or come from [`ibv_open_device`] and not have been closed.
    pub(crate) unsafe fn inherited<'a>(held: *const ibv_context) -> Result<&'a Self> {
        if held.is_null() {
            return Err(Failed::EINVAL);
        }
        let beginning = held.wrapping_byte_sub(offset_of!(verbs_context, context));
        // SAFETY: the caller vouches for it, and what C may write lies in a cell.
        Ok(unsafe { &*beginning.cast() })
    }

    /// Destroys what the program left behind, as a kernel does when the device's file is closed;
    /// whether there was anything. The program must not use any of it any more; if it does, it is
    /// refused.
    fn destroy_objects(&self) -> bool {
        let orphans = self.device.routes.remove_context(&self.events);
        // What an object of another context needs stays with that.
        for qp in orphans.qps {
            let _ = self.nic.destroy_qp(qp);
        }
        for srq in orphans.srqs {
            let _ = self.nic.destroy_srq(srq);
        }
        for cq in orphans.cqs {
            let _ = self.nic.destroy_cq(cq);
        }
        // SAFETY: the program does not use them any more.
        unsafe { registry::drop_all_of(self.c()) }
    }

    /// A completion queue for a queue pair that completes nothing.
    pub(crate) fn spare_cq(&self) -> Result<CqHandle> {
        let mut spare = lock(&self.spare_cq);
        if let Some(cq) = *spare {
            return Ok(cq);
        }
        let cq = self.nic.create_cq(1)?;
        *spare = Some(cq);
        Ok(cq)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(cq) = *lock(&self.spare_cq) {
            // A queue pair that a program left behind keeps it.
            let _ = self.nic.destroy_cq(cq);
        }
        self.nic.flush();
    }
}

/// Functions that programs call without asking the library.
const OPS: ibv_context_ops = ibv_context_ops {
    _compat_query_device: Some(query::ibv_query_device),
    _compat_query_port: Some(query::ibv_query_port),
    alloc_mw: Some(mw::alloc),
    bind_mw: Some(mw::bind),
    dealloc_mw: Some(mw::dealloc),
    poll_cq: Some(cq::poll),
    req_notify_cq: Some(cq::request_notify),
    post_srq_recv: Some(post::post_srq_recv),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    ..ibv_context_ops::zeroed()
};

/// Functions that programs call if they are there. What is missing is what no soft NIC does: the
/// inline functions then say so.
const EXTENDED_OPS: verbs_context = verbs_context {
    query_port: Some(query::query_port),
    advise_mr: Some(mr::advise),
    alloc_null_mr: Some(mr::alloc_null),
    reg_dm_mr: Some(dm::register),
    alloc_dm: Some(dm::alloc),
    free_dm: Some(dm::free),
    alloc_parent_domain: Some(pd::alloc_parent_domain),
    alloc_td: Some(pd::alloc_td),
    dealloc_td: Some(pd::dealloc_td),
    destroy_rwq_ind_table: Some(wq::destroy_table),
    create_rwq_ind_table: Some(wq::create_table),
    destroy_wq: Some(wq::destroy),
    modify_wq: Some(wq::modify),
    create_wq: Some(wq::create),
    query_rt_values: Some(query::query_rt_values),
    create_cq_ex: Some(cq_ex::create),
    query_device_ex: Some(query::query_device_ex),
    open_qp: Some(qp::open),
    create_qp_ex: Some(qp::create_ex),
    get_srq_num: Some(srq::number),
    create_srq_ex: Some(srq::create_ex),
    ibv_create_flow: Some(flow::create),
    ibv_destroy_flow: Some(flow::destroy),
    open_xrcd: Some(xrc::open),
    close_xrcd: Some(xrc::close),
    sz: size_of::<verbs_context>(),
    ..verbs_context::zeroed()
};

/// Opens a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        // SAFETY: the program got it from a list, and devices stay.
        let device = unsafe { Device::inherited(device) }?.own();
        Context::open(device, CommandFile::new(device)?)
    })
}

/// Closes a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code(|| {
        // SAFETY: the program says that it is open.
        let open = ptr::from_ref(unsafe { Context::of(context) }?).cast_mut();
        registry::remove::<Context, _>(context)?;
        // SAFETY: it is open until this is done.
        let closing = unsafe { &*open };
        crate::env::report_counters(&closing.nic, &closing.device.name);
        crate::sysfs::add_counters(closing.device);
        // SAFETY: it is open until this is done.
        if unsafe { (*open).destroy_objects() } {
            // The program may still try what it has, and reads tables of functions here: their
            // memory stays, and every call is refused.
            // SAFETY: it was made as a box, and nothing but its tables is looked at from now on.
            unsafe { ptr::drop_in_place(open) };
        } else {
            // SAFETY: the program does not need it any more. It was made as a box.
            drop(unsafe { Box::from_raw(open) });
        }
        Ok(())
    })
}

/// The next thing that happened beside the work.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    waiting(|_| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        let taken = open.events.take(|AssertSend(event)| {
            // The object is there as long as the queue has an event of it, and cannot remove that
            // just now.
            if let Some(acks) = acks(event) {
                acks.report();
            }
        })?;
        let AssertSend(reported) = match taken {
            Ok(reported) => reported,
            Err(fd) => return Ok(Attempt::Wait(fd)),
        };
        let subject = EventType::from_code(reported.event_type).map(EventType::subject);
        if subject == Some(EventSubject::Port) {
            // What happened to the port is in its files before the program hears of it.
            crate::sysfs::refresh();
        }
        // SAFETY: the program has room for it.
        unsafe { answer(event, reported) }?;
        Ok(Attempt::Done)
    })
}

/// The program has dealt with something that happened.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    quiet(|| {
        // SAFETY: the program got it from `ibv_get_async_event`.
        let event = unsafe { given(event) }?;
        if let Some(acks) = acks(event) {
            acks.acknowledge(1);
        }
        Ok(())
    });
}

/// Returns the counter of events that were reported for the object of an event.
fn acks(event: &ibv_async_event) -> Option<&Acks> {
    let subject = EventType::from_code(event.event_type)?.subject();
    if !matches!(subject, EventSubject::Cq | EventSubject::Qp | EventSubject::Srq) {
        return None;
    }
    // SAFETY: for these subjects it is a pointer, whose type does not matter.
    let object = unsafe { event.element.qp };
    match subject {
        // SAFETY: it is what the subject says, and waits for what was told of it before it goes.
        EventSubject::Cq => unsafe { Cq::of(object.cast()) }.ok().map(|cq| &cq.events),
        // SAFETY: as above.
        EventSubject::Srq => unsafe { Srq::of(object.cast()) }.ok().map(|srq| &srq.events),
        // SAFETY: as above.
        _ => unsafe { Qp::of(object.cast()) }.ok().map(|qp| &qp.events),
    }
}
