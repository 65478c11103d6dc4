//! State that all threads of a NIC share.
//!
//! Locks are taken in one order: the receiving half, or the sending half, then the core. A thread
//! that has the core may try the sending half, but does not wait for it. Packets
//! are received, checked, sealed and sent without the core; so one thread can be in the kernel
//! while another works on queue pairs. Beside the locks, threads share the [signals](super::driver)
//! and hints.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::core::{Core, CoreGuard, Hints};
use super::driver::{PollCounter, Signals};
use super::gsi::GsiUser;
use super::packet_watch::{PacketWatch, Pause};
use super::port::PortWatch;
use super::status::StatusSocket;
use super::timed_mutex::{TimedGuard, TimedMutex};
use super::transmit::Tx;
use crate::link::{AddressFds, Receiver};
use crate::time::Instant;

/// The receiving half, locked.
pub(super) type RxGuard<'a> = TimedGuard<'a, Box<dyn Receiver>>;

/// State that all threads of a NIC share.
pub(super) struct Shared {
    core: Mutex<Core>,
    pub(super) hints: Arc<Hints>,
    pub(super) tx: TimedMutex<Tx>,
    pub(super) rx: TimedMutex<Box<dyn Receiver>>,
    /// A copy of the receiving half's descriptor, to wait for it without its lock.
    rx_fd: OwnedFd,
    /// Wakes the progress thread for packets.
    packet_watch: PacketWatch,
    /// A copy of the descriptor that is readable when other processes at the address are to be
    /// served.
    members_fd: Option<OwnedFd>,
    address_fds: AddressFds,
    /// Receive descriptor once a multicast group was joined: the link may have another one then.
    rx_fd_with_groups: OnceLock<OwnedFd>,
    /// The socket where other processes ask for the status, if it is published.
    status_socket: OnceLock<StatusSocket>,
    /// Whether the link filters packets by their queue pair.
    pub(super) has_qpn_filter: bool,
    /// Reports changes of the port.
    pub(super) port_watch: Option<PortWatch>,
    pub(super) signals: Arc<Signals>,
    pub(super) polls: PollCounter,
    /// Whether a thread that waits for an event wakes for packets.
    pub(super) has_listener: AtomicBool,
    /// Readable once the NIC has ended: ends the sleep of that thread, which keeps the link open.
    pub(super) ended: OwnedFd,
    /// The user of queue pair 1, if that is open.
    pub(super) gsi: Mutex<Option<Arc<GsiUser>>>,
    /// Time at which the NIC was started, in nanoseconds of [`monotonic`].
    started: u64,
    /// A copy of [`Tx::deadline`] for pollers, in nanoseconds; the largest number if there is none.
    pub(super) tx_deadline: AtomicU64,
}

/// Returns the time of the system's monotonic clock, in nanoseconds: every poll asks it, and the
/// standard library's takes four times the instructions.
#[inline]
pub(super) fn monotonic() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec.cast_unsigned() * 1_000_000_000 + tv_nsec.cast_unsigned()
}

impl Shared {
    pub(super) fn new(
        core: Core,
        tx: Tx,
        receiver: Box<dyn Receiver>,
        port_watch: Option<PortWatch>,
    ) -> io::Result<Arc<Self>> {
        let rx_fd = receiver.fd().try_clone_to_owned()?;
        let members_fd = receiver.members_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let address_fds = receiver.address_fds();
        address_fds.add(rx_fd.as_fd());
        let has_qpn_filter = receiver.has_qpn_filter();
        let signals = Arc::new(Signals::new()?);
        Ok(Arc::new(Self {
            hints: Arc::clone(&core.hints),
            core: Mutex::new(core),
            tx: TimedMutex::new(tx, &signals),
            rx: TimedMutex::new(receiver, &signals),
            packet_watch: PacketWatch::new(rx_fd.as_fd())?,
            rx_fd,
            members_fd,
            address_fds,
            has_qpn_filter,
            rx_fd_with_groups: OnceLock::new(),
            status_socket: OnceLock::new(),
            port_watch,
            signals,
            polls: PollCounter::new(),
            has_listener: AtomicBool::new(false),
            ended: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            gsi: Mutex::new(None),
            started: monotonic(),
            tx_deadline: AtomicU64::new(u64::MAX),
        }))
    }

    /// Returns the time since the NIC was started.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(monotonic() - self.started)
    }

    #[inline]
    pub(super) fn core(&self) -> CoreGuard<'_> {
        CoreGuard::new(self.signals.lock(&self.core))
    }

    /// Locks the receiving half. A thread that needs the core too locks it afterwards.
    pub(super) fn receiver(&self) -> RxGuard<'_> {
        self.rx.lock(|| self.now())
    }

    /// The descriptors that hold the link's address: those of the receiving half, and copies.
    pub(super) fn address_fds(&self) -> AddressFds {
        self.address_fds.clone()
    }

    /// The descriptor that is readable when other processes at the address are to be served.
    pub(super) fn members_fd(&self) -> Option<BorrowedFd<'_>> {
        self.members_fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Serves other processes at the address.
    #[cold]
    pub(super) fn serve_members(&self) {
        let served = self.receiver().serve_members();
        if let Err(error) = served {
            self.fail(&mut self.core(), &error);
        }
    }

    /// Begins to answer at a status socket, unless there is one already.
    pub(super) fn publish_status(&self, socket: StatusSocket) {
        if self.status_socket.set(socket).is_ok()
            && let Some(socket) = self.status_socket()
        {
            // A forked child that kept it would seem to be the NIC's process.
            self.address_fds.add(socket.as_fd());
            self.signals.wake();
        }
    }

    pub(super) fn status_socket(&self) -> Option<&StatusSocket> {
        self.status_socket.get()
    }

    /// The descriptor that is readable when packets have arrived.
    pub(super) fn rx_fd(&self) -> &OwnedFd {
        self.rx_fd_with_groups.get().unwrap_or(&self.rx_fd)
    }

    /// The descriptor that is readable when packets have arrived for the progress thread.
    pub(super) fn watched_rx_fd(&self) -> BorrowedFd<'_> {
        self.packet_watch.fd(self.rx_fd().as_fd())
    }

    /// Packets do not wake the progress thread until the pause ends: the caller receives them.
    pub(super) fn pause_packet_watch(&self) -> Pause<'_> {
        self.packet_watch.pause(self.rx_fd().as_fd())
    }

    /// Updates the receive descriptor after the receiving half has joined a group: it may have
    /// another one to wait for.
    pub(super) fn update_rx_fd(&self, receiver: &dyn Receiver) -> io::Result<()> {
        if self.rx_fd_with_groups.get().is_none() {
            let fd = receiver.fd().try_clone_to_owned()?;
            self.address_fds.add(fd.as_fd());
            self.packet_watch.add(fd.as_fd())?;
            let _ = self.rx_fd_with_groups.set(fd);
            self.packet_watch.remove(self.rx_fd.as_fd());
            self.signals.wake();
        }
        Ok(())
    }

    /// Reports once that the link has failed for good, ends the progress thread, which would find
    /// the link's descriptor readable forever, and refuses later calls.
    #[cold]
    pub(super) fn fail(&self, core: &mut Core, error: &io::Error) {
        core.fail(error);
        self.signals.fail();
    }

    /// Ends the progress thread.
    pub(super) fn stop(&self) {
        // A peer may wait for a response that was deferred to the next poll.
        self.flush();
        self.signals.stop();
        let _ = rustix::io::write(&self.ended, &1_u64.to_ne_bytes());
    }

    /// Returns the counters of both halves of the link.
    pub(super) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.with_tx(|tx| tx.counters());
        counters.extend(self.receiver().counters());
        counters
    }
}
