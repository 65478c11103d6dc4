//! A running software NIC: an [engine](crate::engine), a [link](crate::link), and a progress thread
//! that drives them.
//!
//! A [`SoftNic`] can be used from any number of threads. A program that polls its completion queues
//! drives RX and TX itself, in its own thread and without a needless system call. For a program
//! that sleeps or computes, the progress thread does, so that READs and WRITEs of its peers are
//! answered all the same. A program that waits for a peer's WRITE by reading memory need not poll
//! either.
//!
//! | file | holds |
//! |---|---|
//! | `driver/` | the decision who receives, transmits, sleeps and wakes, without IO; the word by which threads agree on it |
//! | `progress.rs` | the progress thread, which does what the driver decides |
//! | `poll.rs`, `transmit.rs` | RX and TX, from any thread |
//! | `shared.rs`, `core.rs`, `timed_mutex.rs` | what threads share, behind which locks |
//! | `gsi.rs` | queue pair 1, for a connection manager |
//! | `raw_eth.rs` | raw packet queue pairs |
//! | `failure.rs` | panics and broken links |
//! | `spin.rs` | when a busy poller gives up its core |
//! | `status` | status for other processes of the user |
//! | `wait.rs` | when a thread that waits for an event drives before it sleeps, and receives while it sleeps |
//!
//! ```
//! use roce::device::{Context, Rc};
//! use roce::link::cable;
//! use roce::nic::SoftNic;
//! use roce::verbs::Connect;
//! use roce::wire::Gid;
//!
//! // Two NICs on one cable. With sockets it would be `udp::open(…)` on either machine.
//! let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
//! let (a, b) = cable(gids[0], gids[1])?;
//! let (a, b) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
//!
//! // On each NIC a protection domain, a completion queue and a queue pair. Each learns the other's endpoint, out of band.
//! let (a_pd, a_cq, b_pd, b_cq) = (a.create_pd()?, a.create_cq(16)?, b.create_pd()?, b.create_cq(16)?);
//! let (a_qp, b_qp) = (a_pd.qp(&a_cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);
//! let (a_end, b_end) = (a_qp.endpoint()?, b_qp.endpoint()?);
//! let a_qp = a_qp.connect(&b_end, &Connect::default())?;
//! let b_qp = b_qp.connect(&a_end, &Connect::default())?;
//!
//! // A receive on one side, a send on the other.
//! b_qp.recv(7, b_pd.create_buf(4096)?)?;
//! a_qp.send(1, b"hello")?;
//! assert_eq!(b_cq.wait(None)?.payload(), b"hello");
//! assert!(a_cq.wait(None)?.wc.is_success());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod core;
mod device;
mod driver;
mod event_queue;
mod failure;
mod filter;
mod gsi;
mod memory_budget;
mod packet_watch;
mod poll;
mod port;
mod poster;
mod progress;
mod raw_eth;
mod shared;
mod spin;
pub mod status;
mod timed_mutex;
mod transmit;
mod wait;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use event_queue::EventQueue;
pub use gsi::{Gsi, GsiDatagram, GsiSendError};
pub use poster::Poster;
pub use spin::SpinPolicy;

use self::core::{Core, Hints};
use self::failure::Refusal;
use crate::engine::{Config, Counters, Engine, Event, Seed};
use crate::link::{AddressFds, Link, Port, Thread};
use crate::memory::AccessError;
use crate::time::Instant;
use crate::verbs::{
    Access, AsyncEvent, CqHandle, CreateError, KeyError, MrAttr, MrHandle, PdHandle, QpHandle, Sge,
    SrqAttr, SrqHandle, Wc,
};
use crate::wire::Qpn;
use gsi::GsiCloser;
use port::PortWatch;
use shared::Shared;
use status::StatusSocket;
use transmit::Tx;

/// Maximum time for which a delayed ACK waits for replies of a program that polls: a few round
/// trips. The engine knows how rarely to try it. With 100 µs a ping-pong takes 5 % less, but WRITEs
/// in packets of 1 KiB, whose sender waits for the ACK of half a window, have 0.8 of the bandwidth.
const DELAYED_ACK_MAX: Duration = Duration::from_micros(25);

/// Maximum number of payload bytes of a queue pair in flight where receive buffers have at least
/// `LARGE_ROOM` bytes: enough for the sender to go on while the receiver copies what has arrived.
/// Where a system allows less room, as Linux did to ordinary users before 6.18, the engine's
/// smaller window stays.
const LARGE_WINDOW: u32 = 512 << 10;
const LARGE_ROOM: usize = 2 << 20;

/// Time for which a paced queue pair may catch up: the progress thread wakes late, and a train is
/// worth more than even gaps.
const PACING_BURST: Duration = Duration::from_micros(20);

/// A running software NIC. It stops when it is dropped.
pub struct SoftNic {
    shared: Arc<Shared>,
    port: Port,
    async_events: Arc<EventQueue<AsyncEvent>>,
    progress: Option<Thread>,
    /// Receives frames of any protocol, if the link carries them.
    listener: Option<crate::raw_eth::Listener>,
    /// Closes queue pair 1, if it was opened.
    gsi: Mutex<Option<GsiCloser>>,
    /// Dropped last.
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl SoftNic {
    /// Starts a NIC on a link, with the default configuration.
    pub fn start(link: Link) -> io::Result<Self> {
        Self::start_with(link, |_| {})
    }

    /// Starts a NIC on a link; `configure` may change the default configuration.
    pub fn start_with(link: Link, configure: impl FnOnce(&mut Config)) -> io::Result<Self> {
        let Link { sender, receiver, port, frames, monitor } = link;
        let frames: Option<Arc<dyn crate::link::Frames>> = frames.map(Arc::from);
        let Some(first) = port.gids.first() else {
            return Err(io::Error::other(format!("{} has no address", port.name)));
        };
        let mut config = Config::new(*first);
        (config.gids, config.port_mtu) = (port.gids.clone(), port.mtu);
        config.qpns = port.sharing.qpns();
        config.frame_max = frames.as_ref().map_or(0, |frames| frames.len_max());
        config.ack_delay = DELAYED_ACK_MAX;
        config.pacing_burst = PACING_BURST;
        config.limits = config.limits.within(memory_budget::for_objects());
        // A peer's receive buffer is assumed to be as large as this one. The kernel's own overhead
        // takes up to half of it.
        config.peer_window_bytes = receiver.room().and_then(|room| u32::try_from(room / 2).ok());
        if receiver.room().is_some_and(|room| room >= LARGE_ROOM) {
            config.window_bytes = LARGE_WINDOW;
        }
        configure(&mut config);
        let async_events = Arc::new(EventQueue::new()?);
        let core = Core {
            engine: Engine::new(config, Seed::from_system()?),
            steering: raw_eth::steering(frames.as_deref()),
            channels: BTreeMap::new(),
            async_events: Arc::clone(&async_events),
            gsi: None,
            sink: None,
            broken: None,
            hints: Hints::new(),
        };
        // Without a monitor the NIC works, and raises no events of its port.
        let port_watch = monitor.and_then(|monitor| PortWatch::new(monitor).ok());
        let tx = Tx::new(sender, frames.clone())?;
        let shared = Shared::new(core, tx, receiver, port_watch)?;
        shared.set_qpn_filter();
        let thread = Arc::clone(&shared);
        let progress = crate::link::spawn(c"roce", move || thread.run())?;
        Ok(Self {
            shared,
            port,
            async_events,
            progress: Some(progress),
            listener: frames.map(crate::raw_eth::Listener::new),
            gsi: Mutex::new(None),
            kept: None,
        })
    }

    /// Keeps a value until the NIC has stopped and its link is closed, and drops it then: its
    /// `Drop` can announce that the address is free.
    pub fn keep_until_closed(&mut self, kept: impl Any + Send + Sync) {
        self.kept = Some(Box::new(kept));
    }

    /// Returns the port of its link.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the descriptors that hold the link's address as long as the NIC runs. A forked child
    /// that does not use the NIC closes its copies, or the address stays taken after its parent has
    /// dropped the NIC.
    pub fn address_fds(&self) -> AddressFds {
        self.shared.address_fds()
    }

    /// Returns the queue pair with a QPN.
    pub fn qp_by_number(&self, qpn: Qpn) -> Option<QpHandle> {
        self.shared.core().engine.qp_by_number(qpn)
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> Counters {
        self.shared.core().engine.counters().clone()
    }

    /// Returns the counters of the link.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.link_counters()
    }

    /// Publishes the NIC's [status] under the name `device`: processes of this user and of root can
    /// read it. Only the first call has an effect.
    pub fn publish_status(&self, device: &str) -> io::Result<()> {
        self.shared.publish_status(StatusSocket::new(device)?);
        Ok(())
    }

    /// Changes the protection domain, the memory or the access rights of a memory region, as given.
    /// Its keys stay.
    pub fn reregister(
        &self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        memory: Option<MrAttr>,
        access: Option<Access>,
    ) -> Result<(), KeyError> {
        let changed = self.command(|engine| engine.reregister(mr, pd, memory, access));
        self.shared.settle_references();
        changed
    }

    /// Faults in the pages of on-demand memory, as if they were written or read. `None` if the key
    /// does not belong to the protection domain.
    pub fn prefetch(&self, pd: PdHandle, sge: Sge, write: bool) -> Option<Result<(), AccessError>> {
        self.shared.core().engine.prefetch(pd, sge, write)
    }

    /// Returns the present attributes of an SRQ: its limit is 0 once the event was raised.
    pub fn query_srq(&self, srq: SrqHandle) -> Option<SrqAttr> {
        self.shared.core().engine.query_srq(srq)
    }

    /// Returns the time by the clock of completion timestamps.
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Stamps the completions of this queue from now on.
    pub fn enable_timestamps(&self, cq: CqHandle) -> Result<(), CreateError> {
        let now = self.now();
        self.shared.core().engine.enable_timestamps(now, cq)
    }

    /// Takes the oldest completion of a queue, with its timestamp if these are
    /// [kept](Self::enable_timestamps). If there is none, drives the NIC first.
    ///
    /// Unlike `poll_cq`, it does not apply the spin policy: the caller reports the poll to
    /// [`SpinPolicy::polled`] once it holds no lock.
    pub fn poll_cq_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let mut taken = None;
        self.shared.poll(|core| {
            taken = core.engine.poll_cq_timed(cq);
            usize::from(taken.is_some())
        });
        taken
    }

    /// Changes the capacity of a completion queue.
    pub fn resize_cq(&self, cq: CqHandle, capacity: usize) -> Result<(), CreateError> {
        self.command(|engine| engine.resize_cq(cq, capacity))
    }

    /// Passes every event to `sink` from now on, and to no event queue. It is called with the NIC
    /// locked: it may store the event, and must not call the NIC.
    pub fn hand_events_to(&self, sink: impl Fn(Event) + Send + 'static) {
        self.shared.core().sink = Some(Box::new(sink));
    }

    /// Posts work requests of any kind, to any queue, all at once: they are transmitted when `post`
    /// has returned. It is called with the NIC locked, and must not call the NIC.
    #[inline]
    pub fn post_all<T>(&self, post: impl FnOnce(&mut Poster<'_>) -> T) -> T {
        let mut core = self.shared.core();
        let failed = self.has_failed();
        let mut poster = Poster { engine: &mut core.engine, has_sends: false, failed };
        let done = post(&mut poster);
        let has_sends = poster.has_sends;
        if !failed {
            core.deliver();
        }
        if has_sends {
            self.shared.posted(core);
        } else {
            core.keep_work();
        }
        done
    }

    /// Whether the NIC has failed for good: its link is broken, or a thread panicked while it
    /// worked on the NIC. There are no completions any more, and every call is refused.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.shared.signals.has_failed()
    }

    /// Drives the NIC from the calling thread until `has_event` returns true, for 50 µs at most;
    /// returns whether it did. Returns at once if the thread's last waits were long: the caller
    /// then sleeps.
    pub fn drive_until(&self, has_event: impl FnMut() -> bool) -> bool {
        self.shared.drive_until(has_event)
    }

    /// Transmits what was deferred to the next poll: the caller will not poll again.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Runs a command of the engine and delivers its events. What was deferred to the next poll is
    /// transmitted first: the command may destroy what it belongs to.
    fn command<T: Refusal>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        self.shared.flush();
        self.post(command)
    }

    /// Runs a command that may have posted work, and transmits it.
    fn post<T: Refusal>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        self.post_to(|core| command(&mut core.engine))
    }

    fn post_to<T: Refusal>(&self, command: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.shared.core();
        if self.has_failed() {
            return T::refused();
        }
        let done = command(&mut core);
        core.deliver();
        if core.engine.has_transmit() {
            self.shared.posted(core);
        } else {
            drop(core);
            self.shared.signals.wake_before(self.shared.hints.deadline());
        }
        done
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        if let Some(gsi) = self.gsi.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.shared.flush();
            gsi.close();
        }
        self.shared.stop();
        if let Some(progress) = self.progress.take() {
            // A panic was reported as a failure of the NIC.
            let _ = progress.join();
        }
    }
}

impl std::fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftNic").field("port", &self.port).finish_non_exhaustive()
    }
}
