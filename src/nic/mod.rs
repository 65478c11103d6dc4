//! A software NIC that runs: an [engine](crate::engine), a [link](crate::link) and somebody who drives them.
//!
//! A [`SoftNic`] can be used from any number of threads. A program that polls its completion queues drives the NIC
//! itself, in its own thread and without a system call that it could do without; one that sleeps, or does something
//! else, is served by a thread of the NIC's own, so that its peers' reads and writes are answered all the same. Nor does
//! one need to poll for a peer's WRITE that it waits for by looking at memory.
//!
//! ```
//! use roce::link::cable;
//! use roce::memory::Buffer;
//! use roce::nic::SoftNic;
//! use roce::verbs::{Access, Connect, Data, Device, QpType, RecvWr, SendOp, SendWr, Sge, WrId};
//! use roce::wire::Gid;
//!
//! // Two NICs on one cable. With sockets it would be `udp::open(…)` on either machine.
//! let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
//! let (a, b) = cable(gids[0], gids[1])?;
//! let (a, b) = (SoftNic::start(a)?, SoftNic::start(b)?);
//!
//! // At each a protection domain, a completion queue, a queue pair, and memory that the NIC may use.
//! let mut ends = Vec::new();
//! for nic in [&a, &b] {
//!     let (pd, cq) = (nic.create_pd()?, nic.create_cq(16)?);
//!     let qp = nic.create_simple_qp(pd, cq, QpType::Rc)?;
//!     let buffer = Buffer::new(4096);
//!     let mr = nic.register(pd, &buffer, Access::LOCAL_WRITE)?;
//!     ends.push((cq, qp, buffer, mr));
//! }
//! let [(a_cq, a_qp, a_buffer, a_mr), (b_cq, b_qp, b_buffer, b_mr)] = &ends[..] else { unreachable!() };
//!
//! // Each learns how the other is called, by whatever way there is.
//! a.connect(*a_qp, &b.endpoint(*b_qp)?, &Connect::default())?;
//! b.connect(*b_qp, &a.endpoint(*a_qp)?, &Connect::default())?;
//!
//! // A receive there, a send here.
//! let sges = [Sge { addr: b_buffer.addr(), length: 4096, lkey: b_mr.lkey() }];
//! b.post_recv(*b_qp, &RecvWr { id: WrId(7), sges: &sges })?;
//! a_buffer.write(0, b"hello")?;
//! let sges = [Sge { addr: a_buffer.addr(), length: 5, lkey: a_mr.lkey() }];
//! a.post_send(*a_qp, &SendWr::new(WrId(1), SendOp::Send { imm: None }, Data::Gather(&sges)))?;
//!
//! let received = b.wait_cq(*b_cq)?;
//! assert_eq!((received.id, received.byte_len), (WrId(7), 5));
//! assert!(a.wait_cq(*a_cq)?.is_success());
//! assert_eq!(&b_buffer.to_vec()[..5], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod alarm;
mod arrivals;
mod core;
mod device;
mod frames;
mod mailbox;
mod port;
mod poster;
mod progress;
mod room;
mod timed_mutex;
mod trust;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

pub use mailbox::Mailbox;
pub use poster::Poster;

use self::alarm::Refusal;
use self::core::Core;
use crate::engine::{Config, Counters, Engine, Event, Seed};
use crate::link::{Frames, Link, Port, Thread};
use crate::memory::AccessError;
use crate::time::Instant;
use crate::verbs::{
    Access, AsyncEvent, CqHandle, CreateError, KeyError, MrAttr, MrHandle, PdHandle, Sge, SrqAttr,
    SrqHandle, Wc,
};
use frames::Listener;
use port::PortWatch;
use progress::Shared;

/// How long an acknowledgement is held back at the most if its program polls and answers: a few round trips. Who waits
/// for it hardly notices, and how seldom that is tried the engine knows.
const ACK_HOLD: Duration = Duration::from_micros(25);

/// A software NIC that runs. It stops when it is dropped.
pub struct SoftNic {
    shared: Arc<Shared>,
    port: Port,
    asynchronous: Arc<Mailbox<AsyncEvent>>,
    progress: Option<Thread>,
    /// Who listens for frames of any protocol.
    listener: Option<Listener>,
    /// Whatever is to go last.
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl SoftNic {
    /// Starts a NIC on a link, with what suits most.
    pub fn start(link: Link) -> io::Result<Self> {
        Self::start_with(link, |_| {})
    }

    /// Starts a NIC on a link; `configure` may change what suits most.
    pub fn start_with(link: Link, configure: impl FnOnce(&mut Config)) -> io::Result<Self> {
        let Link { sender, receiver, port, frames, monitor } = link;
        let frames: Option<Arc<dyn Frames>> = frames.map(Arc::from);
        let Some(first) = port.gids.first() else {
            return Err(io::Error::other(format!("{} has no address", port.name)));
        };
        let mut config = Config::new(*first);
        (config.gids, config.port_mtu) = (port.gids.clone(), port.mtu);
        config.frame_max = frames.as_ref().map_or(0, |frames| frames.len_max());
        config.frames_hairpin = frames.as_ref().is_some_and(|frames| !frames.is_echoing());
        config.ack_hold = ACK_HOLD;
        config.limits = config.limits.within(room::for_objects());
        // A peer's buffer is thought to be like one's own. Half of it is left to what the kernel reckons otherwise.
        config.path_bytes = receiver.room().and_then(|room| u32::try_from(room / 2).ok());
        configure(&mut config);
        let asynchronous = Arc::new(Mailbox::new()?);
        let core = Core {
            engine: Engine::new(config, Seed::from_system()?),
            channels: BTreeMap::new(),
            asynchronous: Arc::clone(&asynchronous),
            sink: None,
            broken: None,
        };
        // Without a monitor, nothing is announced; the NIC works all the same.
        let port_watch = monitor.and_then(|monitor| PortWatch::new(monitor).ok());
        let shared = Shared::new(core, sender, receiver, frames.clone(), port_watch)?;
        shared.choose_packets();
        let thread = Arc::clone(&shared);
        let progress = crate::link::spawn(c"roce", move || thread.run())?;
        let (progress, listener) = (Some(progress), frames.map(Listener::new));
        Ok(Self { shared, port, asynchronous, progress, listener, kept: None })
    }

    /// Keeps something until the NIC has stopped and its link is closed, and drops it then: so others can be told that
    /// the address is free.
    pub fn keep_until_closed(&mut self, kept: impl Any + Send + Sync) {
        self.kept = Some(Box::new(kept));
    }

    /// The port of its link.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The descriptors that hold the link's address, for as long as the NIC is there. A forked child that does not use
    /// the NIC closes its copies, or the address stays taken after its parent has dropped the NIC.
    pub fn address_fds(&self) -> Vec<RawFd> {
        self.shared.address_fds()
    }

    /// How often everything happened that the engine counts.
    pub fn counters(&self) -> Counters {
        self.shared.core().engine.counters().clone()
    }

    /// How often everything happened that the link counts.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.link_counters()
    }

    /// Changes a region: its domain, its memory, its rights, as given. Its keys stay.
    pub fn reregister(
        &self,
        mr: MrHandle,
        pd: Option<PdHandle>,
        memory: Option<MrAttr>,
        access: Option<Access>,
    ) -> Result<(), KeyError> {
        self.command(|engine| engine.reregister(mr, pd, memory, access))
    }

    /// Brings in memory that is there on demand, as if somebody had written or read it. `None` if the domain's key does
    /// not open it.
    pub fn prefetch(&self, pd: PdHandle, sge: Sge, write: bool) -> Option<Result<(), AccessError>> {
        self.shared.core().engine.prefetch(pd, sge, write)
    }

    /// The attributes of a shared receive queue as they are: its limit is 0 once the event was raised.
    pub fn query_srq(&self, srq: SrqHandle) -> Option<SrqAttr> {
        self.shared.core().engine.query_srq(srq)
    }

    /// The time by its own clock, which completions are stamped with.
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// From now on it is known of each completion of this queue when it came.
    pub fn keep_time(&self, cq: CqHandle) -> Result<(), CreateError> {
        let now = self.now();
        self.shared.core().engine.keep_time(now, cq)
    }

    /// Takes the oldest completion of a queue, and when it came if that is [kept](Self::keep_time). If there is none, it
    /// first sees what has arrived.
    pub fn poll_cq_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let mut taken = None;
        self.shared.poll(|core| {
            taken = core.engine.poll_cq_timed(cq);
            usize::from(taken.is_some())
        });
        taken
    }

    /// Gives a completion queue another size.
    pub fn resize_cq(&self, cq: CqHandle, capacity: usize) -> Result<(), CreateError> {
        self.command(|engine| engine.resize_cq(cq, capacity))
    }

    /// From now on every event goes to `sink`, and to no channel or mailbox. It is called while the NIC is locked: it
    /// may put the event away, and must not ask anything of the NIC.
    pub fn hand_events_to(&self, sink: impl Fn(Event) + Send + 'static) {
        self.shared.core().sink = Some(Box::new(sink));
    }

    /// Posts work requests of any kind, to any queue, all at once: what is to be sent goes out when `post` has returned.
    /// It is called while the NIC is locked, and must not ask anything else of the NIC.
    #[inline]
    pub fn post_all<T>(&self, post: impl FnOnce(&mut Poster<'_>) -> T) -> T {
        let mut core = self.shared.core();
        let failed = self.has_failed();
        let mut poster = Poster { engine: &mut core.engine, sends: false, failed };
        let done = post(&mut poster);
        let sends = poster.sends;
        if !failed {
            core.deliver();
        }
        drop(core);
        if sends {
            self.shared.posted();
        }
        done
    }

    /// Whether the NIC has failed for good, because a thread panicked while it worked on it. Then there are no completions
    /// any more, and every call is refused.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.shared.alarm.is_raised()
    }

    /// Sends what was left for the next poll, because there will be none.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Does something with the engine that is no work, and lets the world know what came of it. What was left for the
    /// next poll goes out first: the command may end what it belongs to.
    fn command<T: Refusal>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        self.shared.flush();
        self.post(command)
    }

    /// Posts work, and sees to it that it is done.
    fn post<T: Refusal>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        let done = {
            let mut core = self.shared.core();
            if self.has_failed() {
                return T::refused();
            }
            let done = command(&mut core.engine);
            core.deliver();
            done
        };
        self.shared.posted();
        done
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
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
