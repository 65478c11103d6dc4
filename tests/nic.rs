//! A running NIC: which thread drives it, which is woken, and that it ends. On a cable, so that
//! only the NIC is tested.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use roce::device::{Channel, Device};
use roce::engine::{AsyncEvent, Config, Counter, CqHandle, MrHandle, Notify, PdHandle, QpHandle};
use roce::link::{Link, Receiver, Sender, cable};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::nic::status::published;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, Connect, CreateError, Data, Errno, EventType, PostError, QpState, QpType,
    RecvWr, RetryCount, SendOp, SendWr, Sge, Wc, WcStatus, WrId,
};
use roce::wire::{Batch, Bits, Gid, Received};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
/// Longer than anything here takes on a loaded machine.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

struct Side {
    nic: SoftNic,
    pd: PdHandle,
    channel: Channel,
    cq: CqHandle,
    qp: QpHandle,
    buffer: Buffer,
    mr: MrHandle,
}

impl Side {
    fn new(nic: SoftNic, kind: QpType) -> Self {
        let pd = nic.create_pd().unwrap();
        let channel = nic.create_channel().unwrap();
        let cq = nic.create_cq_on(1024, &channel).unwrap();
        let qp = nic.create_simple_qp(pd, cq, kind).unwrap();
        let buffer = Buffer::new(1 << 16);
        let mr = nic.register(pd, &buffer, ALL).unwrap();
        Self { nic, pd, channel, cq, qp, buffer, mr }
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.buffer.addr(), length, lkey: self.mr.lkey() }
    }

    fn send(&self, id: u64, op: SendOp, length: u32) {
        let sges = [self.sge(length)];
        self.nic.post_send(self.qp, &SendWr::new(WrId(id), op, Data::Gather(&sges))).unwrap();
    }

    fn recv(&self, id: u64, length: u32) {
        let sges = [self.sge(length)];
        self.nic.post_recv(self.qp, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }

    /// Waits for the next completion by an event: request it, poll once more, sleep.
    fn sleep_for_completion(&self) -> Wc {
        let mut wc = [Wc::default()];
        loop {
            if self.nic.poll_cq(self.cq, &mut wc) == 1 {
                return wc[0];
            }
            self.nic.request_notify(self.cq, Notify::Next);
            if self.nic.poll_cq(self.cq, &mut wc) == 1 {
                return wc[0];
            }
            let woken = self.channel.wait(TIMEOUT).unwrap();
            assert_eq!(woken, Some(self.cq), "a completion came without an event");
        }
    }
}

const SEND: SendOp = SendOp::Send { imm: None };

fn pair_of(kind: QpType, how: &Connect) -> (Side, Side) {
    let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(a, b).unwrap();
    let (a, b) = (SoftNic::start(a).unwrap(), SoftNic::start(b).unwrap());
    let (a, b) = (Side::new(a, kind), Side::new(b, kind));
    connect(&a, &b, how);
    (a, b)
}

fn connect(a: &Side, b: &Side, how: &Connect) {
    a.nic.connect(a.qp, &b.nic.endpoint(b.qp).unwrap(), how).unwrap();
    b.nic.connect(b.qp, &a.nic.endpoint(a.qp).unwrap(), how).unwrap();
}

fn pair() -> (Side, Side) {
    pair_of(QpType::Rc, &Connect::default())
}

#[test]
fn read_of_idle_program_is_answered() {
    let (a, b) = pair();
    b.buffer.write(0, b"what is there").unwrap();
    let (remote_addr, rkey) = (b.buffer.addr(), b.mr.rkey());
    a.send(1, SendOp::Read { remote_addr, rkey }, 13);
    assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    assert_eq!(&a.buffer.to_vec()[..13], b"what is there");
}

#[test]
fn no_wakeup_is_lost_between_sleeping_programs() {
    // Both sides sleep for every message: they hang if a wake-up is lost.
    const ROUNDS: u64 = 3000;
    let (a, b) = pair();
    std::thread::scope(|scope| {
        for (side, first) in [(&a, true), (&b, false)] {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    side.recv(round, 64);
                    if first || round > 0 {
                        side.send(ROUNDS + round, SEND, 8);
                    }
                    let mut wanted = if first || round > 0 { 2 } else { 1 };
                    while wanted > 0 {
                        let wc = side.sleep_for_completion();
                        // The peer may post its receive late: the send is retried after an RNR NAK.
                        assert!(wc.is_success(), "{wc:?}");
                        wanted -= 1;
                    }
                }
                if !first {
                    side.send(2 * ROUNDS, SEND, 8);
                }
            });
        }
    });
}

#[test]
fn busy_poller_that_waits_for_an_event_is_woken() {
    let (a, b) = pair();
    let mut wc = [Wc::default()];
    for round in 0..20 {
        b.recv(round, 64);
        // Often enough to count as a busy poller.
        for _ in 0..500 {
            assert_eq!(b.nic.poll_cq(b.cq, &mut wc), 0);
        }
        b.nic.request_notify(b.cq, Notify::Next);
        a.send(round, SEND, 8);
        assert_eq!(b.channel.wait(TIMEOUT).unwrap(), Some(b.cq));
        assert!(b.nic.wait_cq(b.cq).unwrap().is_success());
        assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    }
}

#[test]
fn send_after_busy_polling_needs_no_further_poll() {
    let (a, b) = pair();
    let mut wc = [Wc::default()];
    for round in 0..20 {
        b.recv(round, 64);
        for _ in 0..500 {
            assert_eq!(a.nic.poll_cq(a.cq, &mut wc), 0);
        }
        // It does not poll any more.
        a.send(round, SEND, 8);
        assert!(b.sleep_for_completion().is_success());
        assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    }
}

#[test]
fn first_send_of_a_busy_poller_goes_out_before_its_next_poll() {
    const ROUNDS: usize = 50;
    let (a, b) = pair();
    let mut wc = [Wc::default()];
    let sent_at_once = (0..ROUNDS).filter(|_| {
        b.recv(0, 64);
        for _ in 0..500 {
            assert_eq!(a.nic.poll_cq(a.cq, &mut wc), 0);
        }
        let before = a.nic.counters().get(Counter::Sent);
        a.send(1, SEND, 8);
        let is_sent = a.nic.counters().get(Counter::Sent) > before;
        assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
        assert!(b.nic.wait_cq(b.cq).unwrap().is_success());
        is_sent
    });
    // Now and then another thread is sending just then.
    let count = sent_at_once.count();
    assert!(count > ROUNDS / 2, "{count} of {ROUNDS}");
}

#[test]
fn completion_channel_is_readable_while_it_holds_an_event() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (a, b) = pair();
    let readable = |side: &Side| {
        let mut fds = [PollFd::from_borrowed_fd(side.channel.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    b.recv(1, 64);
    b.nic.request_notify(b.cq, Notify::Next);
    assert!(!readable(&b));
    a.send(1, SEND, 8);
    assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    while !readable(&b) {
        std::thread::yield_now();
    }
    assert_eq!(b.channel.wait(TIMEOUT).unwrap(), Some(b.cq));
    assert!(!readable(&b));
}

#[test]
fn reading_counters_delays_no_send() {
    // On an unreliable connection, which retransmits nothing.
    let (a, b) = pair_of(QpType::Uc, &Connect::default());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let _ = a.nic.link_counters();
                }
            });
        }
        let over = Over(&is_over);
        for turn in 0..5000 {
            b.recv(turn, 8);
            a.send(turn, SEND, 8);
            assert_eq!(b.sleep_for_completion().id, WrId(turn));
            assert_eq!(a.sleep_for_completion().id, WrId(turn));
        }
        drop(over);
    });
}

/// Sets a flag when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn many_threads_use_one_nic() {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 200;
    let (a, b) = pair();
    // A queue pair for each thread, at both ends.
    let make = |side: &Side| {
        let cq = side.nic.create_cq(1024).unwrap();
        (cq, side.nic.create_simple_qp(side.pd, cq, QpType::Rc).unwrap())
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let ((a_cq, a_qp), (b_cq, b_qp)) = (make(a), make(b));
                let how = Connect::default();
                a.nic.connect(a_qp, &b.nic.endpoint(b_qp).unwrap(), &how).unwrap();
                b.nic.connect(b_qp, &a.nic.endpoint(a_qp).unwrap(), &how).unwrap();
                for message in 0..MESSAGES {
                    let sges = [b.sge(64)];
                    b.nic.post_recv(b_qp, &RecvWr { id: WrId(message), sges: &sges }).unwrap();
                    let sges = [a.sge(32)];
                    let id = WrId(thread << 32 | message);
                    a.nic.post_send(a_qp, &SendWr::new(id, SEND, Data::Gather(&sges))).unwrap();
                    assert_eq!(b.nic.wait_cq(b_cq).unwrap().id, WrId(message));
                    assert_eq!(a.nic.wait_cq(a_cq).unwrap().id, id);
                }
            });
        }
    });
}

#[test]
fn deferred_ack_is_sent_before_the_qp_or_nic_is_gone() {
    // The request is sent once, and the ACK may take seconds on a loaded machine.
    let (timeout, retry_cnt) = (AckTimeout(Bits::low(20)), RetryCount(Bits::low(0)));
    let how = Connect::default().timeout(timeout).retry_cnt(retry_cnt);
    for round in 0..20 {
        let (a, b) = pair_of(QpType::Rc, &how);
        let mut wc = [Wc::default()];
        b.recv(round, 64);
        // Long enough to count as a busy poller, and for the progress thread to leave the NIC to
        // it.
        let start = Duration::from_millis(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(start);
                a.send(round, SEND, 8);
            });
            while b.nic.poll_cq(b.cq, &mut wc) == 0 {}
        });
        if round % 2 == 0 {
            b.nic.destroy_qp(b.qp).unwrap();
        } else {
            drop(b);
        }
        let done = a.nic.wait_cq(a.cq).unwrap();
        assert!(done.is_success(), "round {round}: the peer went without an ACK: {}", done.status);
    }
}

#[test]
fn dead_peer_exceeds_the_retry_count() {
    let how =
        Connect::default().timeout(AckTimeout(Bits::low(8))).retry_cnt(RetryCount(Bits::low(2)));
    let (a, b) = pair_of(QpType::Rc, &how);
    drop(b);
    a.send(1, SEND, 8);
    let wc = a.nic.wait_cq(a.cq).unwrap();
    assert_eq!((wc.status, a.nic.qp_state(a.qp)), (WcStatus::RetryExcErr, Some(QpState::Err)));
    assert!(a.nic.counters().get(Counter::Timeout) >= 3);
}

#[test]
fn timer_expires_without_a_poller() {
    let how =
        Connect::default().timeout(AckTimeout(Bits::low(8))).retry_cnt(RetryCount(Bits::low(1)));
    let (a, b) = pair_of(QpType::Rc, &how);
    drop(b);
    a.nic.request_notify(a.cq, Notify::Next);
    a.send(1, SEND, 8);
    assert_eq!(a.channel.wait(TIMEOUT).unwrap(), Some(a.cq));
}

/// An RNR NAK starts a timer and leaves nothing to send. A program that receives it in a poll, and
/// then stops polling, needs the progress thread to wake for that timer.
#[test]
fn send_is_retried_after_an_rnr_nak_that_a_former_poller_received() {
    // Without an ACK timeout, no other timer wakes it.
    let how = Connect::default().timeout(AckTimeout::NEVER);
    let (a, b) = pair_of(QpType::Rc, &how);
    let mut wc = [Wc::default()];
    for round in 0..50 {
        // It counts polls from here: too few for a busy poller.
        a.nic.request_notify(a.cq, Notify::Next);
        a.send(round, SEND, 8);
        for _ in 0..20 + round % 40 {
            assert_eq!(a.nic.poll_cq(a.cq, &mut wc), 0);
        }
        b.recv(round, 64);
        assert!(b.sleep_for_completion().is_success());
        assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    }
}

#[test]
fn access_error_raises_an_async_event_on_the_responder() {
    let (a, b) = pair();
    let (remote_addr, rkey) = (b.buffer.addr() + (1 << 16), b.mr.rkey());
    a.send(1, SendOp::Write { remote_addr, rkey, imm: None }, 8);
    let wc = a.nic.wait_cq(a.cq).unwrap();
    assert_eq!(wc.status, WcStatus::RemAccessErr);
    let event = b.nic.async_events().wait(TIMEOUT).unwrap();
    assert_eq!(event, Some(AsyncEvent::Qp(EventType::QpAccessErr, b.qp)));
}

#[test]
fn published_status_has_counters_and_rates() {
    let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(a, b).unwrap();
    let fixed = |config: &mut Config| config.congestion = "fixed:2G".parse().unwrap();
    let (a, b) = (SoftNic::start_with(a, fixed).unwrap(), SoftNic::start(b).unwrap());
    let (a, b) = (Side::new(a, QpType::Rc), Side::new(b, QpType::Rc));
    connect(&a, &b, &Connect::default());
    let name = format!("status test of {}", std::process::id());
    a.nic.publish_status(&name).unwrap();
    b.recv(1, 64);
    a.send(2, SEND, 64);
    assert!(a.nic.wait_cq(a.cq).unwrap().is_success());
    let own = || published().unwrap().nics.into_iter().find(|nic| nic.device == name);
    let status = own().unwrap();
    assert_eq!(status.pid, std::process::id());
    assert_eq!(status.gids, a.nic.gids());
    assert_eq!(status.qps, 1);
    let [rate] = status.controlled[..] else { panic!("{status:?}") };
    assert_eq!((Some(rate.qpn), rate.state.rate), (a.nic.qp_number(a.qp), 2_000_000_000));
    let sent = status.counters.iter().find(|(name, _)| name == "sent_pkts");
    assert_eq!(sent.map(|(_, count)| *count), Some(a.nic.counters().get(Counter::Sent)));
    drop(a);
    assert_eq!(own(), None);
}

#[test]
fn nic_can_be_dropped_at_any_time() {
    for round in 0..20 {
        let (a, b) = pair();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut wc, mut id) = ([Wc::default(); 16], 0);
                while !stop.load(Ordering::Relaxed) {
                    let (remote_addr, rkey) = (b.buffer.addr(), b.mr.rkey());
                    let sges = [a.sge(1000)];
                    let write = SendOp::Write { remote_addr, rkey, imm: None };
                    let wr = SendWr::new(WrId(id), write, Data::Gather(&sges));
                    id += u64::from(a.nic.post_send(a.qp, &wr).is_ok());
                    a.nic.poll_cq(a.cq, &mut wc);
                }
            });
            std::thread::sleep(Duration::from_millis(round % 4));
            stop.store(true, Ordering::Relaxed);
        });
        if round % 2 == 0 {
            drop(a);
        } else {
            drop(b);
        }
    }
}

/// Drops a value, and fails if that takes for ever.
fn drop_in_time<T: Send + 'static>(value: T) {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(value);
        done.send(())
    });
    assert_eq!(ended.recv_timeout(TIMEOUT.unwrap()), Ok(()), "the NIC does not end");
}

/// A receiving half that tells when it is closed.
struct Closes(Box<dyn Receiver>, Arc<AtomicBool>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

impl Receiver for Closes {
    fn receive(&mut self, now: Instant) -> std::io::Result<usize> {
        self.0.receive(now)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.0.for_each(each);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[test]
fn link_is_closed_although_a_thread_waits_at_a_channel() {
    let is_closed = Arc::new(AtomicBool::new(false));
    let (_a, b) = pair_with(|mut link| {
        link.receiver = Box::new(Closes(link.receiver, Arc::clone(&is_closed)));
        link
    });
    let Side { nic, channel, .. } = b;
    std::thread::spawn(move || channel.wait(None));
    // The thread sleeps by then, or not yet.
    std::thread::sleep(Duration::from_millis(100));
    drop_in_time(nic);
    while !is_closed.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

#[test]
fn nic_that_waits_for_a_former_poller_can_be_dropped() {
    for round in 0..60 {
        let (a, b) = pair();
        let mut wc = [Wc::default()];
        b.recv(round, 64);
        // For so long that the progress thread checks rarely whether it still polls.
        let begun = b.nic.now();
        while b.nic.now().saturating_since(begun) < Duration::from_millis(36) {
            b.nic.poll_cq(b.cq, &mut wc);
        }
        // Then it stops. When the progress thread notices, it waits a moment before it
        // acknowledges.
        a.send(round, SEND, 8);
        std::thread::sleep(Duration::from_micros(1000 + 50 * round));
        drop_in_time(b);
        drop_in_time(a);
    }
}

#[test]
fn program_that_polls_and_then_reads_memory_is_served() {
    // As ib_write_lat does: each side polls for its own completion, and then reads memory until the
    // peer's byte is there.
    const ROUNDS: u8 = 200;
    let (a, b) = pair();
    std::thread::scope(|scope| {
        for (side, peer, first) in [(&a, &b, true), (&b, &a, false)] {
            scope.spawn(move || {
                let (remote_addr, rkey) = (peer.buffer.addr() + 1, peer.mr.rkey());
                let wait_for = |value: u8| {
                    let mut seen = [0];
                    while seen[0] != value {
                        side.buffer.read(1, &mut seen).unwrap();
                        std::thread::yield_now();
                    }
                };
                for round in 1..=ROUNDS {
                    if !first {
                        wait_for(round);
                    }
                    side.buffer.write(0, &[round]).unwrap();
                    side.send(round.into(), SendOp::Write { remote_addr, rkey, imm: None }, 1);
                    let mut wc = [Wc::default()];
                    while side.nic.poll_cq(side.cq, &mut wc) == 0 {
                        std::thread::yield_now();
                    }
                    assert!(wc[0].is_success());
                    if first {
                        wait_for(round);
                    }
                }
            });
        }
    });
}

/// A receiving half that panics on the first packet.
struct Panics(Box<dyn Receiver>);

impl Receiver for Panics {
    fn receive(&mut self, now: Instant) -> std::io::Result<usize> {
        let count = self.0.receive(now)?;
        assert_eq!(count, 0, "on purpose: a packet that triggers a bug");
        Ok(count)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.0.for_each(each);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Returns two connected sides. The second panics on the first packet that it receives.
fn pair_that_panics() -> (Side, Side) {
    pair_with(|mut link| {
        link.receiver = Box::new(Panics(link.receiver));
        link
    })
}

/// Returns two connected sides on a cable whose second end was changed.
fn pair_with(change: impl FnOnce(Link) -> Link) -> (Side, Side) {
    let gids = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(gids[0], gids[1]).unwrap();
    let b = change(b);
    let [a, b] = [a, b].map(|link| Side::new(SoftNic::start(link).unwrap(), QpType::Rc));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.nic
            .connect(side.qp, &peer.nic.endpoint(peer.qp).unwrap(), &Connect::default())
            .unwrap();
    }
    (a, b)
}

/// The NIC reports a fatal error, wakes all waiting threads, refuses every call, and lets a program
/// clean up.
fn assert_has_failed(side: &Side) {
    let event = side.nic.async_events().wait(TIMEOUT).unwrap();
    assert_eq!(event, Some(AsyncEvent::Device(EventType::DeviceFatal)));
    assert_eq!(side.channel.wait(TIMEOUT).unwrap(), Some(side.cq), "a waiting thread stays asleep");
    assert!(side.nic.broken().is_some() && side.nic.has_failed());
    assert!(side.nic.wait_cq(side.cq).is_err());
    assert_eq!(side.nic.poll_cq(side.cq, &mut [Wc::default()]), 0);
    let sges = [side.sge(8)];
    let send = SendWr::new(WrId(1), SEND, Data::Gather(&sges));
    assert_eq!(side.nic.post_send(side.qp, &send), Err(PostError::Refused(Errno::EIO)));
    let posted = side.nic.post_all(|poster| poster.send(side.qp, &send));
    assert_eq!(posted, Err(PostError::Refused(Errno::EIO)));
    let recv = RecvWr { id: WrId(1), sges: &sges };
    assert_eq!(side.nic.post_recv(side.qp, &recv), Err(PostError::Refused(Errno::EIO)));
    assert_eq!(side.nic.create_cq(1), Err(CreateError::Refused(Errno::EIO)));
    assert_eq!(side.nic.create_pd(), Err(CreateError::Refused(Errno::EIO)));
    assert_eq!(
        side.nic.create_simple_qp(side.pd, side.cq, QpType::Rc).err().map(|e| e.to_string()),
        Some(CreateError::Refused(Errno::EIO).to_string())
    );
    assert_eq!(side.nic.destroy_qp(side.qp), Ok(()));
    assert_eq!(side.nic.deregister(side.mr), Ok(()));
    assert_eq!(side.nic.destroy_cq(side.cq), Ok(()));
    assert_eq!(side.nic.destroy_pd(side.pd), Ok(()));
}

#[test]
fn panic_in_the_progress_thread_is_a_fatal_error() {
    let (a, b) = pair_that_panics();
    a.send(1, SEND, 8);
    assert_has_failed(&b);
    drop_in_time(b);
    drop_in_time(a);
}

/// A receiving half that fails from the first packet on, and whose descriptor stays readable, as
/// that of a closed socket does.
struct Breaks {
    receiver: Box<dyn Receiver>,
    broken: bool,
    failures: Arc<AtomicU64>,
}

impl Receiver for Breaks {
    fn receive(&mut self, now: Instant) -> std::io::Result<usize> {
        self.broken = self.broken || self.receiver.receive(now)? > 0;
        if !self.broken {
            return Ok(0);
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        Err(std::io::Error::other("on purpose: a link that fails"))
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.receiver.for_each(each);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.fd()
    }
}

#[test]
fn receiving_half_that_fails_is_a_fatal_error_and_not_retried() {
    let failures = Arc::new(AtomicU64::new(0));
    let (a, b) = pair_with(|mut link| {
        let (receiver, broken) = (link.receiver, false);
        link.receiver = Box::new(Breaks { receiver, broken, failures: Arc::clone(&failures) });
        link
    });
    a.send(1, SEND, 8);
    assert_has_failed(&b);
    assert_eq!(b.nic.broken().unwrap().to_string(), "on purpose: a link that fails");
    // Further packets would wake a progress thread that has not ended.
    for id in 2..20 {
        a.send(id, SEND, 8);
    }
    drop_in_time(b);
    assert!(failures.load(Ordering::Relaxed) <= 2, "{failures:?} attempts");
    drop_in_time(a);
}

/// A sending half that fails.
struct Refuses;

impl Sender for Refuses {
    fn send(&mut self, _: Instant, _: &mut Batch) -> std::io::Result<()> {
        Err(std::io::Error::other("on purpose: a link that fails"))
    }
}

#[test]
fn sending_half_that_fails_is_a_fatal_error() {
    let (a, b) = pair_with(|mut link| {
        link.sender = Box::new(Refuses);
        link
    });
    let sges = [b.sge(8)];
    // The call that finds the error has posted the request.
    let _ = b.nic.post_send(b.qp, &SendWr::new(WrId(1), SEND, Data::Gather(&sges)));
    assert_has_failed(&b);
    drop_in_time(b);
    drop_in_time(a);
}

#[test]
fn panic_in_a_polling_thread_is_a_fatal_error() {
    let (a, b) = pair_that_panics();
    std::thread::scope(|scope| {
        // It polls until it panics, or the progress thread does.
        let polling = scope.spawn(|| {
            while !b.nic.has_failed() {
                b.nic.poll_cq(b.cq, &mut [Wc::default()]);
            }
        });
        a.send(1, SEND, 8);
        let _ = polling.join();
    });
    assert_has_failed(&b);
}

#[test]
fn panic_in_a_call_is_a_fatal_error() {
    let (a, b) = pair();
    let call = AssertUnwindSafe(|| a.nic.post_all(|_| panic!("on purpose")));
    assert!(catch_unwind(call).is_err());
    assert_has_failed(&a);
    drop_in_time(a);
    drop_in_time(b);
}

#[test]
fn call_during_an_unrelated_unwind_is_no_failure() {
    struct CallsOnDrop<'a>(&'a SoftNic);
    impl Drop for CallsOnDrop<'_> {
        fn drop(&mut self) {
            let _ = self.0.create_cq(1);
        }
    }
    let (a, _b) = pair();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _calls = CallsOnDrop(&a.nic);
        panic!("on purpose");
    }));
    assert!(unwound.is_err() && !a.nic.has_failed() && a.nic.create_cq(1).is_ok());
}

/// Numbers and keys of one NIC do not predict those of another: each has its own seed from the
/// system.
#[test]
fn numbers_and_keys_differ_between_nics() {
    let (a, b) = pair();
    let (c, d) = pair();
    let sides = [&a, &b, &c, &d];
    let different = |number: &dyn Fn(&Side) -> u32| {
        let numbers: std::collections::BTreeSet<_> =
            sides.iter().map(|side| number(side)).collect();
        assert_eq!(numbers.len(), sides.len(), "{numbers:x?}");
    };
    different(&|side| side.nic.qp_number(side.qp).unwrap().get());
    different(&|side| side.mr.rkey().get());
    different(&|side| side.nic.initial_psn(side.qp).unwrap().get());
    let endpoint = a.nic.endpoint(a.qp).unwrap();
    assert_eq!(Some(endpoint.psn), a.nic.initial_psn(a.qp), "the peer learns the PSN that is used");
}
