//! The service: one manager for a process, driven by the threads that have something for it.
//!
//! A command runs in the thread of the program that gives it, and a MAD is handled by the thread of
//! the NIC that received it. The service's own thread runs expired timers. Each of them then does
//! what the manager wants, so that no message and no event waits for another thread.
//!
//! Locks are taken in one order: the service's, then those of a NIC.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::nics::{Nics, Sent, describe};
use super::registry::Registry;
use super::resolve::Resolver;
use crate::cm::{self, ChannelId, CmId, Device, DeviceId, Manager, Retransmission, Transmit};
use crate::link::route::Route;
use crate::link::{ProcessMark, Thread, spawn};
use crate::nic::{Gsi, SoftNic};
use crate::secret::Seed;
use crate::time::Instant;

/// First retransmission of an unanswered message: a few scheduling delays of a loaded machine.
/// Later ones back off to Linux's interval.
const FIRST_RETRANSMISSION: Duration = Duration::from_millis(50);

/// Time for which a request waits for its listener: a few scheduling delays of a loaded machine,
/// and less than the peer's first retransmission.
const LISTEN_GRACE: Duration = Duration::from_millis(40);

/// Slack of the manager's timers: timers that expire one after the other are run together.
const TIMER_SLACK: Duration = Duration::from_millis(10);

/// Delay until a MAD for which queue pair 1 had no room is tried once more.
const RETRY_SEND: Duration = Duration::from_millis(1);

/// Number of times a command or the thread tries to empty its queue of MADs before it leaves the
/// rest for later.
const SEND_ROUNDS: usize = 16;

/// Configuration of a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Parameters and bounds of the manager.
    pub manager: cm::Config,
}

impl Default for Config {
    /// Returns the values of Linux, but for a first retransmission after 50 ms, and 40 ms for a
    /// listener to come after its request.
    fn default() -> Self {
        let retransmission = Retransmission::Backoff(FIRST_RETRANSMISSION);
        let manager =
            cm::Config { retransmission, listen_grace: LISTEN_GRACE, ..cm::Config::default() };
        Self { manager }
    }
}

/// The service was shut down, or belongs to the process that forked this one: error `ENODEV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection manager was shut down, or belongs to the parent process")]
pub struct ServiceClosed;

/// The connection manager of a process: owns a [`Manager`], connects it to queue pair 1 of its
/// NICs, and runs its timers in a thread of its own.
///
/// A forked child cannot use the service of its parent: every call fails, and dropping it does
/// nothing.
pub struct CmService {
    inner: Arc<Inner>,
    thread: Mutex<Option<Thread>>,
}

struct Inner {
    state: Mutex<State>,
    /// Notified when the thread would sleep too long, and of everything while the service closes.
    changed: Condvar,
    /// Called with channels that became readable.
    readable: Box<dyn Fn(ChannelId) + Send + Sync>,
    clock: std::time::Instant,
    /// The process that the thread is in.
    process: ProcessMark,
}

struct State {
    manager: Manager,
    nics: Nics,
    resolver: Resolver,
    registry: Registry,
    /// MADs for which queue pair 1 had no room.
    unsent: VecDeque<Transmit>,
    /// Time of the next attempt to send them.
    retry_send: Option<Instant>,
    /// Time at which the thread wakes by itself.
    sleeps_until: Option<Instant>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Peers are still told of the end of connections, and commands are refused.
    Closing,
    /// The thread ends.
    Closed,
}

impl CmService {
    /// Starts a service without NICs. `readable` is called with each channel that became readable,
    /// from any thread and with the manager locked: it may only wake a thread, by an eventfd for
    /// example, and must not call the service.
    pub fn start(
        config: Config,
        readable: impl Fn(ChannelId) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let manager = Manager::new(config.manager, Seed::from_system()?);
        let state = State {
            manager,
            nics: Nics::default(),
            resolver: Resolver::new(),
            registry: Registry::new(),
            unsent: VecDeque::new(),
            retry_send: None,
            sleeps_until: None,
            phase: Phase::Running,
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(state),
            changed: Condvar::new(),
            readable: Box::new(readable),
            #[expect(clippy::disallowed_methods, reason = "here is where time comes from")]
            clock: std::time::Instant::now(),
            process: ProcessMark::new()?,
        });
        let thread = Arc::clone(&inner);
        let thread = spawn(c"roce-cm", move || thread.run())?;
        Ok(Self { inner, thread: Mutex::new(Some(thread)) })
    }

    /// Adds a NIC: opens its queue pair 1, and tells the manager of its addresses. The service does
    /// not keep the NIC alive: when it is dropped, its ids get DEVICE_REMOVAL.
    pub fn add_nic(&self, nic: &SoftNic) -> io::Result<DeviceId> {
        self.add_nic_as(nic, |_| {})
    }

    /// Adds a NIC; `describe` may change what the manager is told of it.
    pub fn add_nic_as(
        &self,
        nic: &SoftNic,
        change: impl FnOnce(&mut Device),
    ) -> io::Result<DeviceId> {
        let mut state = self.inner.running().map_err(io::Error::other)?;
        let mut device = describe(nic)?;
        change(&mut device);
        let inner = Arc::downgrade(&self.inner);
        let serve = move || {
            if let Some(inner) = inner.upgrade() {
                inner.serve();
            }
        };
        let gsi = nic.open_gsi(serve).map_err(io::Error::other)?;
        if device.is_shared {
            let addresses = device.addresses.iter().map(|(address, _)| *address);
            state.registry.join(&nic.port().sharing, addresses);
        }
        let device = state.manager.add_device(device).map_err(io::Error::other)?;
        state.nics.insert(device, gsi);
        drop(state);
        // Its first datagrams may have come before it was in the list.
        self.inner.serve();
        Ok(device)
    }

    /// Removes a NIC. Its connections end without a message, and its ids get DEVICE_REMOVAL.
    pub fn remove_nic(&self, device: DeviceId) -> Result<(), ServiceClosed> {
        let removed = {
            let mut state = self.inner.running()?;
            let _ = state.manager.remove_device(device);
            let removed = state.nics.remove(device);
            self.inner.carry_out(state);
            removed
        };
        drop(removed);
        Ok(())
    }

    /// Runs a command with the manager locked, then does what the manager wants. `run` must not
    /// call the service.
    pub fn command<R>(
        &self,
        run: impl FnOnce(&mut Manager, Instant) -> R,
    ) -> Result<R, ServiceClosed> {
        let mut state = self.inner.running()?;
        let now = self.inner.now();
        let done = run(&mut state.manager, now);
        self.inner.carry_out(state);
        Ok(done)
    }

    /// Returns the kernel's route to an address, from `source` if that is given.
    pub fn route_to(
        &self,
        destination: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<io::Result<Route>, ServiceClosed> {
        Ok(self.inner.running()?.resolver.route_to(destination, source))
    }

    /// Binds an id to an address. Fails as Linux does if another process that shares the address
    /// listens there.
    pub fn bind(
        &self,
        id: CmId,
        address: SocketAddr,
    ) -> Result<Result<(), cm::Error>, ServiceClosed> {
        let mut state = self.inner.running()?;
        let State { manager, registry, .. } = &mut *state;
        let done = bind(manager, registry, id, address);
        self.inner.carry_out(state);
        Ok(done)
    }

    /// Lets an id listen. Fails as Linux does if another process that shares the address listens
    /// there.
    pub fn listen(&self, id: CmId, backlog: u32) -> Result<Result<(), cm::Error>, ServiceClosed> {
        let mut state = self.inner.running()?;
        let State { manager, registry, .. } = &mut *state;
        if manager.source(id).is_none() {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            if let Err(error) = bind(manager, registry, id, any) {
                return Ok(Err(error));
            }
        }
        let claimed = match (manager.port_space(id), manager.source(id)) {
            (Some(space), Some(address)) => registry.claim(space, manager.bound_address(address)),
            _ => Ok(()),
        };
        let done = claimed.and_then(|()| manager.listen(id, backlog));
        self.inner.carry_out(state);
        Ok(done)
    }

    /// Returns the time of the service's clock, the one that commands get.
    pub fn now(&self) -> Instant {
        self.inner.now()
    }

    /// Ends the service: destroys every id, which tells the peers of established connections by a
    /// DREQ and refuses pending requests, and waits until peers have answered, but no longer than
    /// `within`. Commands are refused from now on.
    pub fn shutdown(&self, within: Duration) {
        if !self.inner.is_own() {
            return;
        }
        let Ok(mut state) = self.inner.running() else { return };
        state.phase = Phase::Closing;
        let now = self.inner.now();
        state.manager.shutdown(now);
        let until = now.saturating_add(within);
        let nics = state.nics.all();
        self.inner.carry_out(state);
        nics.iter().for_each(|gsi| gsi.flush());
        let mut state = self.inner.lock();
        while state.manager.unanswered() > 0 || !state.unsent.is_empty() {
            let left = until.saturating_since(self.inner.now());
            if left.is_zero() {
                break;
            }
            let waited = self.inner.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.phase = Phase::Closed;
        let nics = state.nics.remove_all();
        drop(state);
        // Their queue pairs 1 are closed without the manager's lock.
        drop(nics);
        self.inner.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread has been printed.
        let _ = thread.map(Thread::join);
    }
}

impl Drop for CmService {
    fn drop(&mut self) {
        if self.inner.is_own() {
            self.shutdown(Duration::ZERO);
        } else if let Ok(thread) = self.thread.get_mut() {
            // The parent's thread is not in this process.
            std::mem::forget(thread.take());
        }
    }
}

impl std::fmt::Debug for CmService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CmService").field("process", &self.inner.process).finish_non_exhaustive()
    }
}

/// Binds an id, but not to where another process that shares the address listens.
fn bind(
    manager: &mut Manager,
    registry: &Registry,
    id: CmId,
    address: SocketAddr,
) -> Result<(), cm::Error> {
    let listens_at = manager.bound_address(address);
    let Some(space) = manager.port_space(id) else { return manager.bind(id, address) };
    if !manager.reuses_address(id) {
        registry.conflict(space, listens_at)?;
    }
    manager.bind_unless(id, address, |at| registry.conflict(space, at).is_err())
}

impl State {
    /// Returns the time at which the thread has work.
    fn deadline(&self) -> Option<Instant> {
        let timers = self.manager.poll_timeout().map(|at| at.saturating_add(TIMER_SLACK));
        let deadlines = [timers, self.resolver.poll_timeout(), self.retry_send];
        deadlines.into_iter().flatten().min()
    }

    /// Queues MADs on queue pair 1 of their NICs, until one has no room; the NICs that have
    /// something to transmit.
    fn queue_mads(&mut self) -> Vec<Arc<Gsi>> {
        let mut ready: Vec<Arc<Gsi>> = Vec::new();
        while let Some(mad) = self.unsent.pop_front().or_else(|| self.manager.poll_transmit()) {
            let (gsi, is_full) = match self.nics.send(&mad) {
                Sent::Queued(gsi) => (gsi, false),
                Sent::Full(gsi) => (gsi, true),
                Sent::Dropped => continue,
            };
            if !ready.iter().any(|known| Arc::ptr_eq(known, &gsi)) {
                ready.push(gsi);
            }
            if is_full {
                self.unsent.push_front(mad);
                break;
            }
        }
        ready
    }
}

impl Inner {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether this is the process that started the service, and not a forked child.
    fn is_own(&self) -> bool {
        self.process.is_current()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state of a service that takes commands. A child never locks: its parent may have
    /// held the lock when it forked.
    fn running(&self) -> Result<MutexGuard<'_, State>, ServiceClosed> {
        if !self.is_own() {
            return Err(ServiceClosed);
        }
        let state = self.lock();
        if state.phase == Phase::Running { Ok(state) } else { Err(ServiceClosed) }
    }

    /// Takes the MADs that came to the NICs.
    fn serve(&self) {
        if !self.is_own() {
            return;
        }
        let mut state = self.lock();
        if state.phase != Phase::Closed {
            let State { manager, nics, .. } = &mut *state;
            nics.receive(manager, self.now());
            self.carry_out(state);
        }
    }

    /// Does what the manager wants: resolves, reports readable channels, transmits; then wakes the
    /// thread if it would sleep too long.
    fn carry_out<'s>(&'s self, mut state: MutexGuard<'s, State>) {
        let now = self.now();
        for round in 1.. {
            let State { manager, resolver, registry, unsent, .. } = &mut *state;
            resolver.answer(manager, now);
            registry.update_listeners(manager);
            while let Some(unclaimed) = manager.poll_unclaimed() {
                if registry.answers(&unclaimed, now) {
                    unsent.push_back(unclaimed.answer);
                }
            }
            let ready = state.queue_mads();
            let is_done = state.unsent.is_empty() || round >= SEND_ROUNDS;
            let retry = if is_done { self.now().saturating_add(RETRY_SEND) } else { now };
            state.retry_send = (!state.unsent.is_empty()).then_some(retry);
            let deadline = state.deadline();
            let is_early = match (deadline, state.sleeps_until) {
                (Some(deadline), Some(until)) => deadline < until,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if is_early {
                state.sleeps_until = deadline;
            }
            let must_notify = is_early || state.phase != Phase::Running;
            // The last thing with the manager locked: the program's thread that this wakes locks
            // it, too.
            while let Some(channel) = state.manager.poll_readable() {
                (self.readable)(channel);
            }
            drop(state);
            ready.iter().for_each(|gsi| gsi.transmit());
            if must_notify {
                self.changed.notify_all();
            }
            if is_done {
                return;
            }
            state = self.lock();
        }
    }

    /// Runs the thread: handles expired timers.
    fn run(&self) {
        let mut state = self.lock();
        while state.phase != Phase::Closed {
            let now = self.now();
            let deadline = state.deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                // Awake: no command needs to wake it.
                state.sleeps_until = Some(Instant::ZERO);
                let State { manager, resolver, .. } = &mut *state;
                manager.handle_timeout(now);
                resolver.handle_timeout(manager, now);
                self.carry_out(state);
                state = self.lock();
                continue;
            }
            state.sleeps_until = deadline;
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let waited = self.changed.wait_timeout(state, deadline.saturating_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
