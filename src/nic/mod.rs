//! A software NIC that runs: an [engine](crate::engine), a [link](crate::link) and somebody who drives them.
//!
//! A [`SoftNic`] can be used from any number of threads. A program that polls its completion queues drives the NIC
//! itself, in its own thread and without a system call that it could do without; one that sleeps, or does something
//! else, is served by a thread of the NIC's own, so that its peers' reads and writes are answered all the same.
//!
//! ```
//! use roce::link::cable;
//! use roce::memory::Buffer;
//! use roce::nic::{Connect, SoftNic};
//! use roce::verbs::{Access, Data, QpType, RecvWr, SendOp, SendWr, Sge, WrId};
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

mod connect;
mod core;
mod mailbox;
mod progress;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use connect::{Connect, ConnectError, Endpoint};
pub use mailbox::Mailbox;

use self::core::Core;
use crate::engine::{
    AsyncEvent, Config, Counters, CqHandle, CreateError, DestroyError, Engine, KeyError, MrAttr,
    MrHandle, MwHandle, Notify, PdHandle, QpCreate, QpHandle, SrqCreate, SrqHandle, XrcdHandle,
};
use crate::link::{Link, Port};
use crate::memory::Buffer;
use crate::verbs::{
    Access, AhAttr, AhHandle, AttrMask, ModifyError, MwType, PostError, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, RecvWr, SendWr, Wc,
};
use crate::wire::{Gid, Qpn, RKey, XrcSrqn};
use progress::Shared;

/// A software NIC that runs. It stops when it is dropped.
pub struct SoftNic {
    shared: Arc<Shared>,
    port: Port,
    asynchronous: Arc<Mailbox<AsyncEvent>>,
    progress: Option<JoinHandle<()>>,
}

/// Where completion queues tell that a completion came, for a program that sleeps. The file descriptor is readable
/// while there is something to take.
#[derive(Clone, Debug)]
pub struct Channel(Arc<Mailbox<CqHandle>>);

impl Channel {
    /// The next completion queue that has what an event was asked for.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<CqHandle>> {
        self.0.wait(timeout)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SoftNic {
    /// Starts a NIC on a link, with what suits most.
    pub fn start(link: Link) -> io::Result<Self> {
        Self::start_with(link, |_| {})
    }

    /// Starts a NIC on a link; `configure` may change what suits most.
    pub fn start_with(link: Link, configure: impl FnOnce(&mut Config)) -> io::Result<Self> {
        let Link { sender, receiver, port } = link;
        let Some(first) = port.gids.first() else {
            return Err(io::Error::other(format!("{} has no address", port.name)));
        };
        let mut config = Config::new(*first);
        (config.gids, config.port_mtu) = (port.gids.clone(), port.mtu);
        configure(&mut config);
        // Nobody can guess it: the standard library asks the system for it.
        let seed = RandomState::new().build_hasher().finish();
        let asynchronous = Arc::new(Mailbox::new()?);
        let core = Core {
            engine: Engine::new(config, seed),
            channels: BTreeMap::new(),
            asynchronous: Arc::clone(&asynchronous),
            broken: None,
        };
        let shared = Shared::new(core, sender, receiver)?;
        let thread = Arc::clone(&shared);
        let name = "roce".to_owned();
        let progress = std::thread::Builder::new().name(name).spawn(move || thread.run())?;
        Ok(Self { shared, port, asynchronous, progress: Some(progress) })
    }

    /// The port of its link.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// How often everything happened that the engine counts.
    pub fn counters(&self) -> Counters {
        self.shared.core().engine.counters().clone()
    }

    /// How often everything happened that the link counts.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.link_counters()
    }

    /// Why nothing can be sent or received any more, if that is so.
    pub fn broken(&self) -> Option<io::Error> {
        let core = self.shared.core();
        core.broken.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }

    /// What happens beside the work: queue pairs that fail, shared queues that run low.
    pub fn async_events(&self) -> &Mailbox<AsyncEvent> {
        &self.asynchronous
    }

    /// Does something with the engine that is no work, and lets the world know what came of it. What was left for the
    /// next poll goes out first: the command may end what it belongs to.
    fn command<T>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        self.shared.flush();
        self.post(command)
    }

    /// Posts work, and sees to it that it is done.
    fn post<T>(&self, command: impl FnOnce(&mut Engine) -> T) -> T {
        let done = {
            let mut core = self.shared.core();
            let done = command(&mut core.engine);
            core.deliver();
            done
        };
        self.shared.posted();
        done
    }

    /// Makes a protection domain.
    pub fn create_pd(&self) -> Result<PdHandle, CreateError> {
        self.command(Engine::create_pd)
    }

    /// Unmakes a protection domain that nothing belongs to.
    pub fn destroy_pd(&self, pd: PdHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_pd(pd))
    }

    /// Registers a buffer: from then on work requests and, by its rights, peers may use it.
    pub fn register(
        &self,
        pd: PdHandle,
        buffer: &Buffer,
        access: Access,
    ) -> Result<MrHandle, KeyError> {
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access };
        self.register_region(pd, attr)
    }

    /// Registers memory of any kind, under any address.
    pub fn register_region(&self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        self.command(|engine| engine.register(pd, attr))
    }

    /// Forgets a region. Nobody can reach the memory afterwards.
    pub fn deregister(&self, mr: MrHandle) -> Result<(), KeyError> {
        self.command(|engine| engine.deregister(mr))
    }

    /// Makes a memory window.
    pub fn create_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        self.command(|engine| engine.create_mw(pd, kind))
    }

    /// The key of a memory window as it is now.
    pub fn mw_key(&self, mw: MwHandle) -> Option<RKey> {
        self.shared.core().engine.mw_key(mw)
    }

    /// Unmakes a memory window.
    pub fn destroy_mw(&self, mw: MwHandle) -> Result<(), KeyError> {
        self.command(|engine| engine.destroy_mw(mw))
    }

    /// Makes a completion queue that is polled.
    pub fn create_cq(&self, capacity: usize) -> Result<CqHandle, CreateError> {
        self.command(|engine| engine.create_cq(capacity))
    }

    /// Makes a channel for events of completion queues.
    pub fn create_channel(&self) -> io::Result<Channel> {
        Ok(Channel(Arc::new(Mailbox::new()?)))
    }

    /// Makes a completion queue whose events go to a channel.
    pub fn create_cq_on(
        &self,
        capacity: usize,
        channel: &Channel,
    ) -> Result<CqHandle, CreateError> {
        let mut core = self.shared.core();
        let cq = core.engine.create_cq(capacity)?;
        core.channels.insert(cq, Arc::clone(&channel.0));
        Ok(cq)
    }

    /// Asks for an event when a completion comes. One that is there already does not count: poll once more.
    pub fn request_notify(&self, cq: CqHandle, notify: Notify) {
        self.command(|engine| engine.request_notify(cq, notify));
        self.shared.hand_over();
    }

    /// Unmakes a completion queue that nobody completes to.
    pub fn destroy_cq(&self, cq: CqHandle) -> Result<(), DestroyError> {
        let mut core = self.shared.core();
        core.engine.destroy_cq(cq)?;
        core.channels.remove(&cq);
        Ok(())
    }

    /// Moves completions of a queue to `out`, oldest first; returns how many. If there are none, it first sees what has
    /// arrived.
    pub fn poll_cq(&self, cq: CqHandle, out: &mut [Wc]) -> usize {
        self.shared.poll(|core| core.engine.poll_cq(cq, out))
    }

    /// Waits for the next completion of a queue, polling.
    pub fn wait_cq(&self, cq: CqHandle) -> io::Result<Wc> {
        let mut wc = [Wc::default()];
        loop {
            if self.poll_cq(cq, &mut wc) == 1 {
                let [wc] = wc;
                return Ok(wc);
            }
            if let Some(error) = self.broken() {
                return Err(error);
            }
            std::thread::yield_now();
        }
    }

    /// Makes an XRC domain.
    pub fn create_xrcd(&self) -> Result<XrcdHandle, CreateError> {
        self.command(Engine::create_xrcd)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&self, pd: PdHandle, create: SrqCreate) -> Result<SrqHandle, CreateError> {
        self.command(|engine| engine.create_srq(pd, create))
    }

    /// The number of an XRC shared receive queue on the wire.
    pub fn srq_number(&self, srq: SrqHandle) -> XrcSrqn {
        self.shared.core().engine.srq_number(srq)
    }

    /// Unmakes a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_srq(srq))
    }

    /// Makes an address handle.
    pub fn create_ah(&self, pd: PdHandle, attr: AhAttr) -> Result<AhHandle, CreateError> {
        self.command(|engine| engine.create_ah(pd, attr))
    }

    /// Unmakes an address handle.
    pub fn destroy_ah(&self, ah: AhHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_ah(ah))
    }

    /// Makes a queue pair, in the state RESET.
    pub fn create_qp(&self, pd: PdHandle, create: QpCreate) -> Result<QpHandle, CreateError> {
        self.command(|engine| engine.create_qp(pd, create))
    }

    /// Makes a queue pair of ordinary size with one completion queue; every send is reported.
    pub fn create_simple_qp(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        qp_type: QpType,
    ) -> Result<QpHandle, CreateError> {
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let init = QpInitAttr { qp_type, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        self.create_qp(pd, create)
    }

    /// Changes a queue pair: the attributes of `attr` that `mask` names.
    pub fn modify_qp(
        &self,
        qp: QpHandle,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyError> {
        self.command(|engine| engine.modify_qp(qp, attr, mask))
    }

    /// The attributes of a queue pair as they are.
    pub fn query_qp(&self, qp: QpHandle) -> Option<QpAttr> {
        self.shared.core().engine.query_qp(qp)
    }

    /// The number of a queue pair on the wire.
    pub fn qp_number(&self, qp: QpHandle) -> Option<Qpn> {
        self.shared.core().engine.qp_number(qp)
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qp: QpHandle) -> Option<QpState> {
        self.shared.core().engine.qp_state(qp)
    }

    /// Unmakes a queue pair. What was posted is forgotten.
    pub fn destroy_qp(&self, qp: QpHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_qp(qp))
    }

    /// Lets a datagram queue pair receive what is sent to a multicast group.
    pub fn attach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), CreateError> {
        self.command(|engine| engine.attach_multicast(qp, group))
    }

    /// Ends that.
    pub fn detach_multicast(&self, qp: QpHandle, group: Gid) -> Result<(), DestroyError> {
        self.command(|engine| engine.detach_multicast(qp, group))
    }

    /// Posts a send.
    pub fn post_send(&self, qp: QpHandle, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_sends(qp, std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    /// Posts several sends at once; an error says how many were taken before.
    pub fn post_sends(&self, qp: QpHandle, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post(|engine| {
            for (at, wr) in wrs.iter().enumerate() {
                engine.post_send(qp, wr, &[]).map_err(|error| (at, error))?;
            }
            Ok(())
        })
    }

    /// Posts a receive.
    pub fn post_recv(&self, qp: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut core = self.shared.core();
        let posted = core.engine.post_recv(qp, wr);
        core.deliver();
        posted
    }

    /// Posts a receive to a shared queue.
    pub fn post_srq_recv(&self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.core().engine.post_srq_recv(srq, wr)
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(progress) = self.progress.take() {
            // If it panicked, it has said so.
            let _ = progress.join();
        }
    }
}

impl std::fmt::Debug for SoftNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftNic").field("port", &self.port).finish_non_exhaustive()
    }
}
