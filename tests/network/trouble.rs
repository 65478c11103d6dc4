//! Peers that die, and interfaces that are switched off and on: who survives goes on.

use std::time::{Duration, Instant};

use roce::device::Device;
use roce::engine::QpHandle;
use roce::verbs::{AckTimeout, Data, Mtu, QpState, QpType, SendOp, SendWr, Wc, WcStatus, WrId};
use roce::wire::{Bits, RKey};

use crate::common::netns::{Host, in_namespace};
use crate::stage::{Kind, PROGRESS_TIMEOUT, SEND, Side, Stage, Version};
use crate::stage::{connect, connect_attr, open, pair, pattern, short_timeouts};

/// Writes to a peer, one behind the other, that do not end until they are ended.
struct Stream<'s> {
    side: &'s Side,
    qp: QpHandle,
    remote_addr: u64,
    rkey: RKey,
    /// Number of messages in flight.
    depth: u64,
    posted: u64,
    done: u64,
}

impl<'s> Stream<'s> {
    fn new(side: &'s Side, qp: QpHandle, peer: &Side) -> Self {
        let (remote_addr, rkey) = (peer.buffer.addr(), peer.mr.rkey());
        Self { side, qp, remote_addr, rkey, depth: 16, posted: 0, done: 0 }
    }

    /// Posts writes up to the depth.
    fn post(&mut self) {
        while self.posted - self.done < self.depth {
            let op = SendOp::Write { remote_addr: self.remote_addr, rkey: self.rkey, imm: None };
            self.side.send(self.qp, self.posted, op, &[self.side.sge(0, 5000)]);
            self.posted += 1;
        }
    }

    /// Goes on until this number of further requests is done.
    fn run(&mut self, count: u64) {
        for _ in 0..count {
            self.post();
            self.side.done(self.done);
            self.done += 1;
        }
    }

    /// Writes something new so often, and then no more; it is at the peer.
    fn finish(mut self, peer: &Side, count: u64) {
        let bytes = pattern(self.rkey.get().into(), 5000);
        self.side.buffer.write(0, &bytes).unwrap();
        self.run(count);
        while self.done < self.posted {
            self.side.done(self.done);
            self.done += 1;
        }
        assert!(peer.read(0, 5000) == bytes, "what is at the peer is wrong");
    }

    /// Takes what is left, all of which fails: the first for want of an answer.
    fn fails(mut self) {
        // The last words of the peer may have been that all before it is done.
        self.depth += 1;
        self.post();
        for at in self.done..self.posted {
            let wc = self.side.complete();
            assert_eq!(wc.id, WrId(at), "{wc:?}");
            match wc.status {
                WcStatus::Success => self.done += 1,
                WcStatus::RetryExcErr => assert_eq!(at, self.done),
                WcStatus::WrFlushErr => assert!(at > self.done, "{wc:?}"),
                _ => panic!("{wc:?}"),
            }
        }
        assert!(self.done < self.posted, "nothing failed");
        assert_eq!(self.side.nic.qp_state(self.qp), Some(QpState::Err));
        // What is posted now fails at once.
        self.side.send(self.qp, 1 << 20, SEND, &[]);
        let wc = self.side.complete();
        assert_eq!((wc.id, wc.status), (WrId(1 << 20), WcStatus::WrFlushErr));
    }
}

/// A peer dies in the middle of a stream; another takes its place.
fn outlive(kind: Kind, version: Version) {
    let Stage { hosts, a, b } = Stage::new([kind, kind], version);
    let (a_qp, b_qp) = pair(&a, &b, QpType::Rc, &short_timeouts());
    let (idle, _) = pair(&a, &b, QpType::Rc, &short_timeouts());
    let mut stream = Stream::new(&a, a_qp, &b);
    stream.run(50);
    stream.post();
    assert!(b.nic.qp_state(b_qp) == Some(QpState::Rts));
    drop(b);
    stream.fails();
    assert!(a.nic.broken().is_none());
    assert_eq!(a.nic.qp_state(idle), Some(QpState::Rts), "the others are not concerned");

    let b = Side::new(open(kind, &hosts[1], version.of(&hosts[1])));
    // The old queue pair can be used again, and so can a new one.
    let reset = roce::verbs::QpAttr { qp_state: QpState::Reset, ..Default::default() };
    a.nic.modify_qp(a_qp, &reset, roce::verbs::AttrMask::STATE).unwrap();
    let new = a.qp(QpType::Rc);
    for qp in [a_qp, new] {
        let peer = b.qp(QpType::Rc);
        connect(&a, qp, &b, peer, &connect_attr(Mtu::M1024));
        Stream::new(&a, qp, &b).finish(&b, 100);
    }
}

namespace_tests! {
    a_peer_dies_on_udp: outlive(Kind::Udp, Version::V4);
    a_peer_dies_on_raw: outlive(Kind::Raw, Version::V6);
}

/// A peer is gone with its machine, and the wire with it.
fn outlive_the_wire(kind: Kind) {
    let Stage { hosts, a, b } = Stage::new([kind, kind], Version::V4);
    let [(a_qp, _), (later, _)] = [(); 2].map(|()| pair(&a, &b, QpType::Rc, &short_timeouts()));
    let mut stream = Stream::new(&a, a_qp, &b);
    let stream_without_wire = Stream::new(&a, later, &b);
    stream.run(50);
    stream.post();
    let [left, right] = hosts;
    drop((b, right));
    // The system takes its time.
    let start = Instant::now();
    while left.run(|| std::fs::exists("/proc/sys/net/ipv4/conf/left").unwrap()) {
        assert!(start.elapsed() < PROGRESS_TIMEOUT, "the wire is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    match kind {
        Kind::Udp => {
            // Its retries may have run out before the system had removed the wire.
            stream.fails();
            stream_without_wire.fails();
            assert!(a.nic.broken().is_none());
            assert!(a.link_counter("refused_unreachable") > 0, "{:?}", a.nic.link_counters());
        }
        Kind::Raw => {
            // The interface does not come back. The NIC reports that, or the requester's retries
            // run out first. The peer may have acknowledged every write before it went, so one more
            // is posted; a NIC that already knows refuses it.
            let _ = a.nic.post_send(a_qp, &SendWr::new(WrId(1 << 20), SEND, Data::Gather(&[])));
            let mut wc = [Wc::default()];
            while a.nic.broken().is_none() && wc[0].is_success() {
                assert!(
                    start.elapsed() < PROGRESS_TIMEOUT,
                    "neither an error of the NIC nor a failed completion"
                );
                a.nic.poll_cq(a.cq, &mut wc);
                std::thread::yield_now();
            }
        }
    }
    assert_quiet();
}

namespace_tests! {
    a_wire_is_cut_on_udp: outlive_the_wire(Kind::Udp);
    a_wire_is_cut_on_raw: outlive_the_wire(Kind::Raw);
}

/// Number of successive looks at the threads of a process that must find all of them asleep.
const QUIET_LOOKS: usize = 20;

/// Waits until no other thread of this process has run between [`QUIET_LOOKS`] looks: an idle
/// process sleeps.
#[track_caller]
fn assert_quiet() {
    let start = Instant::now();
    let mut seen = Vec::new();
    while seen.len() < QUIET_LOOKS {
        assert!(start.elapsed() < PROGRESS_TIMEOUT, "threads run without work");
        match sleeping_threads() {
            Some(threads) if seen.last().is_none_or(|last| *last == threads) => seen.push(threads),
            _ => seen.clear(),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the other threads of this process, each with the number of times that it went to sleep;
/// `None` if one of them runs.
fn sleeping_threads() -> Option<Vec<(String, String)>> {
    let own = rustix::thread::gettid().as_raw_pid().to_string();
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let id = task.file_name().into_string().unwrap();
        // A thread that ends meanwhile does not count.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        if id == own {
            continue;
        }
        if !field("State:").contains("sleeping") {
            return None;
        }
        threads.push((id, field("voluntary_ctxt_switches:").to_owned()));
    }
    Some(threads)
}

#[test]
fn waiting_nic_sleeps() {
    in_namespace(|| {
        let Stage { a, b, .. } = &Stage::new([Kind::Udp, Kind::Raw], Version::V4);
        // Retransmitted after four seconds.
        let how = connect_attr(Mtu::M1024).timeout(AckTimeout(Bits::low(20)));
        let (a_qp, b_qp) = pair(a, b, QpType::Rc, &how);
        b.nic.destroy_qp(b_qp).unwrap();
        a.send(a_qp, 1, SEND, &[a.sge(0, 8)]);
        assert_quiet();
    });
}

/// Switches an interface off for a while, and on again.
fn interrupt(host: &Host, time: Duration) {
    let name = host.interface;
    host.ip(&format!("link set {name} down"));
    std::thread::sleep(time);
    host.ip(&format!("link set {name} up"));
    // Its address of IPv6 was taken from it.
    host.ip(&format!("address replace {}/64 dev {name} nodad", host.v6));
}

/// Either interface is off for a moment in the middle of a stream, which goes on when it is on
/// again.
fn interrupted(kind: Kind, version: Version) {
    let stage = Stage::new([kind, kind], version);
    let Stage { hosts, a, b } = &stage;
    // Eight times a quarter of a second: longer than the interface is off, and it is retransmitted
    // meanwhile.
    let how = connect_attr(Mtu::M4096).timeout(AckTimeout(Bits::low(16)));
    let (a_qp, _) = pair(a, b, QpType::Rc, &how);
    let mut stream = Stream::new(a, a_qp, b);
    stream.run(20);
    for host in hosts {
        stream.post();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| interrupt(host, Duration::from_millis(600)));
            while !other.is_finished() {
                stream.run(1);
            }
            other.join().unwrap();
        });
        stream.run(20);
    }
    stream.finish(b, 20);
    for side in [a, b] {
        assert!(side.nic.broken().is_none(), "{:?}", side.nic.broken());
    }
    let counters = a.nic.link_counters();
    let refused = counters.iter().filter(|(name, _)| name.contains("refused"));
    assert!(refused.map(|(_, count)| count).sum::<u64>() > 0, "{counters:?}");
    assert_quiet();
}

namespace_tests! {
    an_interface_goes_down_and_comes_back_on_udp_of_ipv4: interrupted(Kind::Udp, Version::V4);
    an_interface_goes_down_and_comes_back_on_udp_of_ipv6: interrupted(Kind::Udp, Version::V6);
    an_interface_goes_down_and_comes_back_on_raw_of_ipv4: interrupted(Kind::Raw, Version::V4);
    an_interface_goes_down_and_comes_back_on_raw_of_ipv6: interrupted(Kind::Raw, Version::V6);
}
