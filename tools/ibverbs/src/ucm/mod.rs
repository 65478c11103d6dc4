//! `/dev/infiniband/rdma_cm`: the kernel's side of the stock librdmacm, in the process.
//!
//! librdmacm is a library over one character device: it writes commands to it, and the answers come
//! to pointers in the commands. This module is that device over a [`CmService`], so that any
//! version of librdmacm runs unchanged on soft NICs, with its synchronous ids, its rsockets and
//! all.
//!
//! | file | holds |
//! |---|---|
//! | `abi` | commands and answers, byte for byte |
//! | `address` | socket addresses, as C has them |
//! | `commands` | the table of commands, and what each does |
//! | `query` | the answers of the queries |
//! | `events` | events, as C has them |
//! | `multicast` | memberships, which the device numbers like ids |
//! | `channel` | an open file: a pipe, of which the program has the read end |
//! | `descriptors` | which descriptors are channels, as far as that is known without asking the kernel |
//! | `devices` | the NICs that the manager uses, opened at need |
//! | `local` | destinations that mean this host |
//! | `presence` | whether a NIC is at an address of this host |
//! | `reach` | a librdmacm that does not find `interpose` by itself |
//! | `interpose` | `open`, `write`, `close`, `dup2` and `fstat`, in front of the C library's |
//!
//! Lock order: the service's, then those of this module. No lock of this module is held while the
//! service is called.

mod abi;
mod address;
mod channel;
mod commands;
mod descriptors;
mod devices;
mod events;
mod interpose;
mod local;
mod multicast;
mod presence;
mod query;
mod reach;

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use roce::cm::{ChannelId, CmId, Manager};
use roce::connect::{CmService, Config};
use roce::time::Instant;

use crate::call::{Failed, Result};
use crate::events::lock;
use crate::fork::{Generation, Open};
use crate::share::File;
use address::Address;
use channel::{Channel, Watcher};
use devices::Nics;
use multicast::Memberships;
use presence::Presence;

pub(crate) use interpose::resolve;
pub(crate) use reach::reach_librdmacm;

/// The most time that peers are given at exit to learn of the end of their connections.
const FAREWELL: Duration = Duration::from_millis(100);

/// The connection manager of a process. A forked child has its own: that of its parent has no
/// thread there.
struct Process {
    generation: Generation,
    service: CmService,
    channels: Arc<Channels>,
    watcher: Watcher,
    nics: Nics,
    memberships: Mutex<Memberships>,
    presence: Mutex<Presence>,
    /// Ids that are bound to the wildcard of InfiniBand, which the manager does not have.
    ib_binds: Mutex<BTreeMap<CmId, Address>>,
    /// A child of this process must have another generation.
    _open: Open,
}

/// The open files of a process.
#[derive(Default)]
struct Channels(Mutex<ChannelTable>);

/// Open files by name, and by what their descriptors stand for.
#[derive(Default)]
struct ChannelTable {
    by_id: BTreeMap<ChannelId, Arc<Channel>>,
    by_file: BTreeMap<File, ChannelId>,
}

impl Channels {
    fn insert(&self, channel: &Arc<Channel>) {
        let mut known = lock(&self.0);
        known.by_file.insert(channel.file, channel.id);
        known.by_id.insert(channel.id, Arc::clone(channel));
    }

    fn remove(&self, id: ChannelId) {
        let mut known = lock(&self.0);
        if let Some(channel) = known.by_id.remove(&id) {
            known.by_file.remove(&channel.file);
        }
    }

    fn get(&self, id: ChannelId) -> Option<Arc<Channel>> {
        lock(&self.0).by_id.get(&id).cloned()
    }

    /// The channel whose pipe is this file.
    fn find(&self, file: File) -> Option<ChannelId> {
        lock(&self.0).by_file.get(&file).copied()
    }
}

/// Held while the manager of a process is started.
static START: Mutex<()> = Mutex::new(());

/// Keeps other threads from starting a manager while one forks.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    lock(&START)
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// The manager of this process, if it has one.
    fn existing() -> Option<&'static Self> {
        // SAFETY: it is null, or what was put there, which stays.
        let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref::<'static>() };
        process.filter(|process| process.generation.check().is_ok())
    }

    /// The manager of this process, which is started if there is none.
    fn current() -> Result<&'static Self> {
        if let Some(process) = Self::existing() {
            return Ok(process);
        }
        let _start = lock(&START);
        if let Some(process) = Self::existing() {
            return Ok(process);
        }
        let process = Box::into_raw(Box::new(Self::start()?));
        CURRENT.store(process, Ordering::Release);
        register_farewell();
        // SAFETY: it was just made, and stays.
        Ok(unsafe { &*process })
    }

    fn start() -> Result<Self> {
        let channels = Arc::<Channels>::default();
        let readable = Arc::clone(&channels);
        let open = Open::new()?;
        let mut config = Config::default();
        config.manager.loopback_is_wildcard = true;
        let service = CmService::start(config, move |id| {
            // The manager is locked: what the pipe says and what the channel has change together.
            if let Some(channel) = readable.get(id) {
                channel.set_readable();
            }
        })?;
        Ok(Self {
            generation: Generation::current(),
            service,
            channels,
            watcher: Watcher::start()?,
            nics: Nics::default(),
            memberships: Mutex::default(),
            presence: Mutex::default(),
            ib_binds: Mutex::default(),
            _open: open,
        })
    }

    /// Runs a command of the manager.
    fn command<T>(&self, run: impl FnOnce(&mut Manager, Instant) -> Result<T>) -> Result<T> {
        self.service.command(run).map_err(|_| Failed::ENODEV)?
    }

    /// An open file is gone, with all that it held.
    fn close(&self, id: ChannelId) {
        let closed = self.command(|manager, now| {
            let destroyed = manager.close_channel(now, id)?;
            Ok(destroyed.into_iter().map(|(id, _)| id).collect::<Vec<_>>())
        });
        for id in closed.unwrap_or_default() {
            self.forget(id);
        }
        self.channels.remove(id);
    }

    /// Forgets what this module has of an id that was destroyed.
    fn forget(&self, id: CmId) {
        lock(&self.memberships).forget(id);
        lock(&self.ib_binds).remove(&id);
    }
}

impl From<roce::cm::Error> for Failed {
    fn from(error: roce::cm::Error) -> Self {
        error.errno().into()
    }
}

/// Whether `exit` has begun to end the manager.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether the process exits: its manager is ended, while other threads of the program may still
/// run.
fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Tells peers at `exit` of the end of connections, as a kernel does when a process ends.
fn register_farewell() {
    extern "C" fn farewell() {
        crate::call::quiet(|| {
            if let Some(process) = Process::existing() {
                EXITING.store(true, Ordering::Release);
                process.service.shutdown(FAREWELL);
            }
            Ok(())
        });
    }
    // SAFETY: the function is there for as long as the process, as this library is. Without it,
    // peers learn of the end when their own timers expire.
    unsafe { libc::atexit(farewell) };
}
