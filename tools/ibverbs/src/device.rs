//! The list of devices.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::mem;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use roce::device::Device as _;
use roce::ibverbs::files::device_guid;
use roce::ibverbs::files::hw_counters::HwCounters;
use roce::ibverbs::ibv_device;
use roce::link::{AddressFds, Link, NamedSpec, OpenError, Spec};
use roce::nic::SoftNic;
use roce::verbs::{NodeType, TransportType};
use roce::wire::Gid;

use crate::call::{Failed, Result, number, on_own_stack, pointer};
use crate::dm::Used;
use crate::env;
use crate::events::{Acks, Routes, lock};
use crate::fork::{self, Generation};
use crate::object::{Object, answer, objects};
use crate::share::{Counted, File};
use crate::ucm;
use crate::xrc::Domain;

/// A device. There is one for each that was ever listed, and it stays: what a program found in a
/// list it may open later.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Device {
    c: UnsafeCell<ibv_device>,
    /// Drivers know what follows as their own: a null pointer marks it as unclaimed.
    _drivers: [usize; 8],
    pub(crate) spec: Spec,
    /// The name that was asked for, if one was.
    given_name: Option<String>,
    pub(crate) name: String,
    /// Index in the list.
    index: c_int,
    /// 0 until it is asked for.
    guid: AtomicU64,
    /// NIC, and the routes of its events.
    nic: Mutex<Running>,
    pub(crate) routes: Arc<Routes>,
    /// Process that the NIC belongs to.
    generation: Generation,
    /// Number of bytes of its own memory that are in use.
    pub(crate) dm_used: Used,
    /// The domains of extended reliable connections that are shared through files.
    pub(crate) xrcds: Counted<File, Arc<Domain>>,
}

objects! { Device: ibv_device; }

// SAFETY: what C knows is written before any other thread sees it, and read only; the rest is
// shared as Rust has it.
unsafe impl Sync for Device {}

/// The NIC of a device, while it is open.
#[derive(Debug, Default)]
struct Running {
    nic: Weak<SoftNic>,
    /// Waits until it is closed.
    closed: Acks,
    /// The descriptors that hold its address.
    addresses: AddressFds,
    /// Counters that were added to the device's files.
    added: HwCounters,
}

/// The list of devices and their NICs, while a thread forks.
pub(crate) struct Held {
    known: MutexGuard<'static, Vec<&'static Device>>,
    running: Vec<MutexGuard<'static, Running>>,
}

impl Held {
    /// Waits until no thread changes any of it, and keeps them from it.
    pub(crate) fn new() -> Self {
        let known = lock(&DEVICES);
        let running = known.iter().map(|device| lock(&device.nic)).collect();
        Self { known, running }
    }

    /// The NICs that this generation started. Those of an earlier one are inherited copies that
    /// nothing ever closes.
    fn own(&self) -> impl Iterator<Item = &Running> {
        let all = self.known.iter().zip(&self.running);
        all.filter(|(device, _)| device.is_own()).map(|(_, running)| &**running)
    }

    /// Whether a NIC of this generation runs or is being closed, even if no context has it open.
    pub(crate) fn is_any_running(&self) -> bool {
        self.own().any(|running| running.nic.strong_count() > 0 || running.closed.is_pending())
    }

    /// The descriptors that hold the addresses of this generation's open NICs. In a forked child
    /// they are unused, because every call that could lead to them is refused.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = RawFd> {
        let open = self.own().filter(|running| running.nic.strong_count() > 0);
        open.flat_map(|running| running.addresses.iter())
    }
}

/// Goes with a NIC, as the last of it.
struct Closing(Acks);

impl Closing {
    fn new(closed: &Acks) -> Self {
        closed.report();
        Self(closed.clone())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.acknowledge(1);
    }
}

/// Every device that was ever listed.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

impl Device {
    fn new(given: NamedSpec, index: usize) -> Self {
        let name = given.name_at(index);
        let NamedSpec { name: given_name, spec } = given;
        let mut c = ibv_device {
            node_type: NodeType::Ca.code().cast_signed(),
            transport_type: TransportType::Ib.code().cast_signed(),
            ..ibv_device::zeroed()
        };
        copy_text(&mut c.name, &name);
        copy_text(&mut c.dev_name, &format!("uverbs{index}"));
        copy_text(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        copy_text(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Self {
            c: UnsafeCell::new(c),
            _drivers: [0; 8],
            spec,
            given_name,
            name,
            index: c_int::try_from(index).unwrap_or(c_int::MAX),
            guid: AtomicU64::new(0),
            nic: Mutex::default(),
            routes: Arc::default(),
            generation: Generation::current(),
            dm_used: Used::default(),
            xrcds: Counted::default(),
        }
    }

    /// The devices that there are, each the same as ever.
    pub(crate) fn list() -> Result<Vec<&'static Self>> {
        Ok(env::devices()?.into_iter().map(Self::called).collect())
    }

    /// The device of this process that is called so.
    fn called(given: NamedSpec) -> &'static Self {
        let mut known = lock(&DEVICES);
        let own = known.iter().copied().filter(|device| device.is_own());
        if let Some(found) = own.clone().find(|device| device.given() == given) {
            return found;
        }
        let index = own.count();
        // SAFETY: it was just made, and stays for ever.
        let new: &'static Self = unsafe { &*Self::new(given, index).keep().cast::<Self>() };
        known.push(new);
        new
    }

    fn is_own(&self) -> bool {
        self.generation.check().is_ok()
    }

    /// The device of this process that this one of it, or of its parent, stands for.
    pub(crate) fn own(&'static self) -> &'static Self {
        if self.is_own() { self } else { Self::called(self.given()) }
    }

    /// Returns the specification in the environment.
    fn given(&self) -> NamedSpec {
        NamedSpec { name: self.given_name.clone(), spec: self.spec.clone() }
    }

    /// The device that sysfs has at this path, and what follows the path.
    pub(crate) fn at_path(path: &str) -> Option<(&'static Self, &str)> {
        if !path.starts_with("/sys/class/infiniband") {
            return None;
        }
        // Those that are asked for by name need not have been listed, and those that were stay.
        let _ = Self::list();
        let known = lock(&DEVICES);
        known.iter().filter(|device| device.is_own()).find_map(|device| {
            let beginnings = [
                format!("/sys/class/infiniband/{}", device.name),
                format!("/sys/class/infiniband_verbs/uverbs{}", device.index),
            ];
            let rest =
                beginnings.iter().find_map(|beginning| path.strip_prefix(beginning.as_str()))?;
            (rest.is_empty() || rest.starts_with('/')).then_some((*device, rest))
        })
    }

    /// The number of its character device.
    pub(crate) fn number(&self) -> usize {
        usize::try_from(self.index).unwrap_or_default()
    }

    /// Returns the NIC, which is started if it is not open.
    pub(crate) fn open(&self) -> Result<Arc<SoftNic>> {
        self.open_at(None)
    }

    /// Returns the NIC; if it is started and may have any address of an interface, it has this one.
    pub(crate) fn open_at(&self, address: Option<IpAddr>) -> Result<Arc<SoftNic>> {
        let mut last = lock(&self.nic);
        if let Some(running) = last.nic.upgrade() {
            return Ok(running);
        }
        // Another thread may be closing it at this moment.
        last.closed.wait();
        let mut started = on_own_stack(|| {
            let link = self.open_link(address).map_err(|error| {
                let code = match error {
                    OpenError::InUse { .. } => libc::EADDRINUSE,
                    OpenError::Privilege { .. } => libc::EPERM,
                    _ => libc::ENODEV,
                };
                env::failed(&error, code)
            })?;
            let (pin, settings) = (env::pins_source_port(), env::congestion()?);
            let recovery = env::recovery()?;
            let link = env::wrap(link, &self.name)?;
            Ok(SoftNic::start_with(link, |config| {
                config.pin_source_port = pin;
                settings.apply(config);
                recovery.apply(config);
            })?)
        })?;
        // Without it `roce devices` does not show the NIC.
        let _ = started.publish_status(&self.name);
        let (closed, addresses) = (Acks::default(), started.address_fds());
        started.keep_until_closed(Closing::new(&closed));
        let started = Arc::new(started);
        let routes = Arc::clone(&self.routes);
        started.hand_events_to(move |event| routes.deliver(event));
        let added = HwCounters::default();
        *last = Running { nic: Arc::downgrade(&started), closed, addresses, added };
        Ok(started)
    }

    /// Returns the counters that were added to its files.
    pub(crate) fn added(&self) -> HwCounters {
        lock(&self.nic).added
    }

    /// Takes note of counters that are added to its files; returns those that were before.
    pub(crate) fn replace_added(&self, added: HwCounters) -> HwCounters {
        mem::replace(&mut lock(&self.nic).added, added)
    }

    /// Opens its link. A child that was just forked may have the address for a moment longer than
    /// this process had it.
    ///
    /// A device that was chosen for the program takes an address of loopback when another program
    /// has its own: the two can still reach each other.
    fn open_link(&self, address: Option<IpAddr>) -> Result<Link, OpenError> {
        let chosen = address.filter(|_| matches!(self.spec, Spec::Soft(_))).map(Spec::Udp);
        let (spec, on) = match &chosen {
            Some(chosen) => (chosen, self.spec.interface()),
            None => (&self.spec, None),
        };
        loop {
            match spec.open(on) {
                Err(
                    OpenError::InUse { .. }
                    | OpenError::XdpProgram { .. }
                    | OpenError::XdpQueue { .. },
                ) if fork::child_may_hold_addresses() => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(OpenError::InUse { .. })
                    if chosen.is_none() && env::devices_are_default() && self.is_of_ipv4() =>
                {
                    let loopback = Spec::of_loopback().ok().flatten();
                    return loopback.unwrap_or_else(|| self.spec.clone()).open(None);
                }
                opened => return opened,
            }
        }
    }

    /// The NIC, if this process has it open.
    pub(crate) fn running(&self) -> Option<Arc<SoftNic>> {
        if !self.is_own() {
            return None;
        }
        lock(&self.nic).nic.upgrade()
    }

    /// The identifier of the device, in the order of the wire: [`device_guid`] of its port's first
    /// GID when it was first asked for. It stays for as long as the process, because librdmacm
    /// knows devices by it, also when another address is taken.
    pub(crate) fn guid(&self) -> u64 {
        let known = self.guid.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let guid = device_guid(self.first_gid().unwrap_or_default(), self.number());
        let new = u64::from_ne_bytes(guid.0);
        match self.guid.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(first) => first,
        }
    }

    /// The first identifier of its port: the one that it has, or will have if no other program
    /// takes it first.
    fn first_gid(&self) -> Option<Gid> {
        let running = self.running().and_then(|nic| nic.gids().first().copied());
        running.or_else(|| self.spec.first_gid().ok())
    }

    /// Whether it has, or will have, an address of IPv4.
    fn is_of_ipv4(&self) -> bool {
        self.spec.first_gid().is_ok_and(|gid| gid.to_ipv4().is_some())
    }

    /// Returns the pointer that C knows.
    pub(crate) fn c(&self) -> *mut ibv_device {
        self.c.get()
    }
}

/// Copies a text and the zero behind it, as far as there is room.
pub(crate) fn copy_text(to: &mut [c_char], text: &str) {
    let room = to.len().saturating_sub(1);
    for (to, byte) in to.iter_mut().zip(text.bytes().take(room).chain([0])) {
        *to = c_char::from_ne_bytes([byte]);
    }
}

/// Makes a list of all devices, with a null behind the last.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    env::keep_quiet();
    ucm::reach_librdmacm();
    pointer(|| {
        if !num_devices.is_null() {
            // SAFETY: the program has room for a number there.
            unsafe { answer(num_devices, 0) }?;
        }
        let devices = Device::list()?;
        let places = devices.iter().map(|device| device.c()).chain([ptr::null_mut()]);
        let list: Box<[*mut ibv_device]> = places.collect();
        if !num_devices.is_null() {
            let count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
            // SAFETY: as above.
            unsafe { answer(num_devices, count) }?;
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// Destroys a list. The devices stay.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    crate::call::quiet(|| {
        if list.is_null() {
            return Ok(());
        }
        let mut places = 1;
        // SAFETY: the list ends with a null, and every place before it belongs to the list.
        while !unsafe { list.wrapping_add(places - 1).read() }.is_null() {
            places += 1;
        }
        // SAFETY: it was made as a box of `places` pointers.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, places)) });
        Ok(())
    });
}

/// Returns the name of a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| {
        if device.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program got it from a list.
        Ok(unsafe { &raw mut (*device).name }.cast())
    })
}

/// Returns the index that the kernel would give it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the program got it from a list.
    number(|| Ok(unsafe { Device::inherited(device) }?.index))
}

/// The identifier of a device, in the order of the wire.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let mut guid = 0;
    crate::call::quiet(|| {
        // SAFETY: the program got it from a list.
        guid = unsafe { Device::inherited(device) }?.guid();
        Ok(())
    });
    guid
}
