//! Random work on links that lose, double, reorder and damage what is sent, in both directions:
//! nothing of a reliable connection is lost, doubled or damaged.
//!
//! The expected result needs no model. Messages carry their number; each WRITE has an area of its
//! own at the peer; READs read memory that never changes; and each value of a counter to which ones
//! are added is returned once.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use roce::device::Device;
use roce::engine::QpHandle;
use roce::link::fault::{self, Spec};
use roce::verbs::{AckTimeout, Data, Mtu, QpType, SendOp, SendWr, Wc, WcOpcode, WrId};
use roce::wire::{Bits, RKey};

use crate::common::netns::in_namespace;
use crate::stage::{Kind, SEND, Side, Stage, Version, connect, connect_attr, pair, pattern};

/// Number of connections.
const QPS: usize = 3;

/// Number of requests that each end of a connection posts.
const REQUESTS: usize = 60;

/// Number of requests in flight.
const DEPTH: usize = 12;

/// The longest message.
const LONGEST: usize = 5000;

/// Offsets of a side's memory: what is read, its counter, what is written to it, what it receives,
/// and what it sends or reads.
const CONSTANT: usize = 0;
const COUNTER: usize = CONSTANT + 8192;
const WRITTEN: usize = 16 * 1024;
const RECEIVED: usize = WRITTEN + QPS * REQUESTS * 1024;
const OWN: usize = RECEIVED + QPS * DEPTH * 2 * 5120;

/// Task of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Send(usize),
    Write(usize),
    WriteImm(usize),
    Read(usize),
    Add,
}

impl Task {
    /// Whether it takes a receive of the peer's.
    fn is_received(self) -> bool {
        matches!(self, Self::Send(_) | Self::WriteImm(_))
    }
}

/// Returns the tasks of an end of a connection: they follow from its seed, so that the peer knows
/// them too.
fn tasks(seed: u64) -> Vec<Task> {
    let dice = pattern(seed, 4 * REQUESTS);
    let task = |dice: &[u8]| {
        let length = usize::from(u16::from_be_bytes([dice[1], dice[2]]));
        match dice[0] % 10 {
            0..4 => Task::Send(length % LONGEST),
            4 => Task::Write(length % 1024),
            5..7 => Task::WriteImm(length % 1024),
            7 => Task::Read(length % LONGEST),
            _ => Task::Add,
        }
    };
    dice.chunks(4).map(task).collect()
}

/// One end of a connection, at work.
struct End {
    qp: QpHandle,
    /// Index of the connection, and of the end.
    index: usize,
    /// The number that the bytes of its messages follow from.
    seed: u64,
    tasks: Vec<Task>,
    /// Number of posted tasks.
    posted: usize,
    done: usize,
    /// Tasks of the peer that send messages, with their indices.
    expected: VecDeque<(usize, Task)>,
    /// Number of receives that were posted.
    receives: usize,
    to_receive: usize,
    peer_seed: u64,
    /// Results of its additions.
    returned: Vec<u64>,
}

impl End {
    fn new(qp: QpHandle, index: usize, seed: u64, peer_seed: u64) -> Self {
        let expected: VecDeque<_> = tasks(peer_seed)
            .into_iter()
            .enumerate()
            .filter(|(_, task)| task.is_received())
            .collect();
        let (tasks, to_receive) = (tasks(seed), expected.len());
        let (posted, done, receives, returned) = (0, 0, 0, Vec::new());
        Self {
            qp,
            index,
            seed,
            tasks,
            posted,
            done,
            expected,
            receives,
            to_receive,
            peer_seed,
            returned,
        }
    }

    fn is_done(&self) -> bool {
        self.done == self.tasks.len() && self.expected.is_empty()
    }

    /// Returns the offset of a request's data.
    fn own(&self, at: usize) -> usize {
        OWN + (self.index * DEPTH + at % DEPTH) * 5120
    }

    fn receive_place(&self, at: usize) -> usize {
        RECEIVED + (self.index * DEPTH + at % DEPTH) * 5120
    }

    fn post_receives(&mut self, side: &Side) {
        let taken = self.to_receive - self.expected.len();
        while self.receives < self.to_receive && self.receives - taken < DEPTH {
            let sges = [side.sge(self.receive_place(self.receives), LONGEST)];
            side.recv(self.qp, 1 << 32 | self.receives as u64, &sges);
            self.receives += 1;
        }
    }

    fn post_sends(&mut self, side: &Side, peer: &Peer) {
        while self.posted < self.tasks.len() && self.posted - self.done < DEPTH {
            let (at, place) = (self.posted, self.own(self.posted));
            let (bytes, rkey) = (pattern(self.seed + at as u64, LONGEST), peer.rkey);
            let target = peer.addr + (WRITTEN + (self.index * REQUESTS + at) * 1024) as u64;
            let imm = Some((at as u32).to_be_bytes());
            let write = |imm| SendOp::Write { remote_addr: target, rkey, imm };
            let counter = peer.addr + COUNTER as u64;
            let (op, length) = match self.tasks[at] {
                Task::Send(length) => (SEND, length),
                Task::Write(length) => (write(None), length),
                Task::WriteImm(length) => (write(imm), length),
                Task::Read(length) => {
                    (SendOp::Read { remote_addr: peer.addr + CONSTANT as u64, rkey }, length)
                }
                Task::Add => (SendOp::FetchAdd { remote_addr: counter, rkey, add: 1 }, 8),
            };
            side.buffer.write(place, &bytes[..length.max(8)]).unwrap();
            let sges = [side.sge(place, length)];
            let wr = SendWr::new(WrId(at as u64), op, Data::Gather(&sges));
            side.nic.post_send(self.qp, &wr).unwrap();
            self.posted += 1;
        }
    }

    /// Takes in a completion.
    fn take(&mut self, side: &Side, wc: &Wc) {
        assert!(wc.is_success(), "{wc:?} of {:?}", self.tasks.get(wc.id.0 as usize));
        match wc.id.0.checked_sub(1 << 32) {
            Some(at) => self.take_receive(side, at as usize, wc),
            None => self.take_send(side, wc),
        }
    }

    fn take_send(&mut self, side: &Side, wc: &Wc) {
        assert_eq!(wc.id.0 as usize, self.done, "requests are done in order");
        let place = self.own(self.done);
        match self.tasks[self.done] {
            Task::Read(length) => {
                let wanted = pattern(u64::MAX, LONGEST);
                assert!(side.read(place, length) == wanted[..length], "what was read is wrong");
            }
            Task::Add => self.returned.push(side.word(place)),
            _ => {}
        }
        self.done += 1;
    }

    fn take_receive(&mut self, side: &Side, number: usize, wc: &Wc) {
        assert_eq!(number, self.to_receive - self.expected.len(), "receives are used in order");
        let (at, task) = self.expected.pop_front().expect("a message that was not sent");
        let bytes = pattern(self.peer_seed + at as u64, LONGEST);
        match task {
            Task::Send(length) => {
                assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::Recv, length));
                let place = self.receive_place(number);
                assert!(side.read(place, length) == bytes[..length], "message {at} is wrong");
            }
            Task::WriteImm(length) => {
                assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
                assert_eq!(
                    (wc.byte_len as usize, wc.imm()),
                    (length, Some((at as u32).to_be_bytes()))
                );
                let place = WRITTEN + (self.index * REQUESTS + at) * 1024;
                assert!(side.read(place, length) == bytes[..length], "write {at} is wrong");
            }
            other => unreachable!("{other:?} is not received"),
        }
    }

    /// Checks at the end that the peer's data were written.
    fn check_writes(&self, side: &Side) {
        for (at, task) in tasks(self.peer_seed).into_iter().enumerate() {
            if let Task::Write(length) | Task::WriteImm(length) = task {
                let place = WRITTEN + (self.index * REQUESTS + at) * 1024;
                let bytes = pattern(self.peer_seed + at as u64, LONGEST);
                assert!(side.read(place, length) == bytes[..length], "write {at} is wrong");
                let behind = side.read(place + length, 1024 - length);
                assert!(behind.iter().all(|byte| *byte == 0), "write {at} is too long");
            }
        }
    }
}

/// Address and key of the other side's memory.
struct Peer {
    addr: u64,
    rkey: RKey,
}

/// Works until all ends of a side are done, and all of the other.
fn work(side: &Side, peer: &Peer, ends: &mut [End], both: &std::sync::Barrier) {
    let start = Instant::now();
    let mut wcs = [Wc::default(); 32];
    while !ends.iter().all(End::is_done) {
        for end in ends.iter_mut() {
            end.post_receives(side);
            end.post_sends(side, peer);
        }
        let count = side.nic.poll_cq(side.cq, &mut wcs);
        for wc in &wcs[..count] {
            let of = |end: &&mut End| side.nic.qp_number(end.qp) == Some(wc.qp_num);
            ends.iter_mut().find(of).unwrap().take(side, wc);
        }
        if count == 0 {
            side.check_alive(start);
            std::thread::yield_now();
        }
    }
    both.wait();
    // Nothing comes twice.
    assert_eq!(side.nic.poll_cq(side.cq, &mut wcs), 0, "{:?}", wcs[0]);
    ends.iter().for_each(|end| end.check_writes(side));
}

/// Random work on links with these faults.
fn survive(kinds: [Kind; 2], version: Version, faults: &str, seen: &[&str]) {
    let seeds = std::cell::Cell::new(1_u64);
    let stage = Stage::with(kinds, version, |link| {
        seeds.set(seeds.get() + 1);
        let spec: Spec = format!("{faults},seed={}", seeds.get()).parse().unwrap();
        fault::inject(link, &spec)
    });
    let Stage { a, b, .. } = &stage;
    // Lost packets are soon retransmitted; but a busy machine is not a lost peer.
    let how = connect_attr(Mtu::M1024).timeout(AckTimeout(Bits::low(14)));
    let (mut a_ends, mut b_ends) = (Vec::new(), Vec::new());
    for index in 0..QPS {
        let (a_qp, b_qp) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
        connect(a, a_qp, b, b_qp, &how);
        let seeds = [1000 * (2 * index as u64 + 1), 1000 * (2 * index as u64 + 2)];
        a_ends.push(End::new(a_qp, index, seeds[0], seeds[1]));
        b_ends.push(End::new(b_qp, index, seeds[1], seeds[0]));
    }
    let peers = [b, a].map(|side| Peer { addr: side.buffer.addr(), rkey: side.mr.rkey() });
    for side in [a, b] {
        side.buffer.write(CONSTANT, &pattern(u64::MAX, LONGEST)).unwrap();
    }
    let both = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| work(a, &peers[0], &mut a_ends, &both));
        scope.spawn(|| work(b, &peers[1], &mut b_ends, &both));
    });
    for (ends, at) in [(&a_ends, b), (&b_ends, a)] {
        let returned: Vec<u64> = ends.iter().flat_map(|end| end.returned.clone()).collect();
        let different: BTreeSet<u64> = returned.iter().copied().collect();
        assert_eq!(at.word(COUNTER), returned.len() as u64, "additions are lost or doubled");
        assert!(different.into_iter().eq(0..returned.len() as u64), "{returned:?}");
    }
    for name in seen {
        assert!(a.link_counter(name) + b.link_counter(name) > 0, "there was no {name}");
    }
}

#[test]
fn delayed_packets_are_sent_without_polling() {
    in_namespace(|| {
        let spec: Spec = "delay=2ms".parse().unwrap();
        let stage =
            Stage::with([Kind::Udp, Kind::Udp], Version::V4, |link| fault::inject(link, &spec));
        let Stage { a, b, .. } = &stage;
        // No timer of the NIC's own goes off.
        let (a_qp, b_qp) = pair(a, b, QpType::Uc, &connect_attr(Mtu::M1024));
        for round in 0..20 {
            b.recv(b_qp, round, &[b.sge(0, 64)]);
            a.send(a_qp, round, SEND, &[a.sge(0, 64)]);
            b.done(round);
        }
    });
}

namespace_tests! {
    a_hundredth_is_lost: survive([Kind::Udp, Kind::Udp], Version::V4, "loss=1%", &["fault_lost"]);
    a_hundredth_is_lost_between_raw_links:
        survive([Kind::Raw, Kind::Raw], Version::V6, "loss=1%", &["fault_lost"]);
    a_tenth_is_lost: survive([Kind::Udp, Kind::Udp], Version::V6, "loss=10%", &["fault_lost"]);
    a_tenth_is_lost_between_raw_links:
        survive([Kind::Raw, Kind::Raw], Version::V4, "loss=10%", &["fault_lost"]);
}

#[test]
fn packets_are_doubled() {
    let seen = &["fault_duplicated"];
    in_namespace(|| survive([Kind::Udp, Kind::Raw], Version::V4, "dup=20%", seen));
}

#[test]
fn packets_overtake_each_other() {
    let seen = &["fault_reordered"];
    in_namespace(|| survive([Kind::Raw, Kind::Udp], Version::V6, "reorder=10%,jitter=50us", seen));
}

#[test]
fn packets_are_damaged() {
    let seen = &["fault_corrupted", "bad_icrc"];
    // Of IPv6 every damage is seen, whatever the link.
    in_namespace(|| survive([Kind::Udp, Kind::Udp], Version::V6, "corrupt=5%", seen));
}

#[test]
fn packets_are_damaged_between_raw_links() {
    let seen = &["fault_corrupted", "rx_icrc"];
    in_namespace(|| survive([Kind::Raw, Kind::Raw], Version::V4, "corrupt=5%", seen));
}

#[test]
fn everything_goes_wrong_at_once() {
    let faults = "loss=5%,dup=5%,reorder=5%,corrupt=2%,delay=20us,jitter=20us";
    let seen = &["fault_lost", "fault_duplicated", "fault_reordered", "fault_corrupted"];
    in_namespace(|| survive([Kind::Udp, Kind::Raw], Version::V6, faults, seen));
}
