//! Reliable connections with random requests in both directions: every message arrives once, in
//! order and whole.
//!
//! The expected result of a request follows from its number. Each message has bytes of its own; a
//! WRITE has a slot of its own until it was checked; the memory that READs read never changes; one
//! end alone changes a counter, and so knows its value.

use std::collections::VecDeque;

use roce::device::Device;
use roce::verbs::{Notify, QpHandle, QpType, SendOp, Wc, WcOpcode};

use crate::stage::{Clock, Dice, Outcome, Side, connect_attr, ensure, pair, pattern};

/// Maximum number of connections.
const CONNECTIONS: usize = 3;

/// Maximum number of requests in flight of an end, and of its receives.
const DEPTH: usize = 8;

/// Length of the longest message.
const LONGEST: usize = 5000;

/// Distance from one slot for messages to the next.
const STRIDE: usize = 5120;

/// Offsets of areas in a side's memory: the bytes that the peer reads, the counters, the slots that
/// the peer writes, the slots of receives, and the slots that it sends from or reads into.
const CONSTANT: usize = 0;
const COUNTERS: usize = 8192;
const WRITTEN: usize = 16384;
const RECEIVED: usize = WRITTEN + CONNECTIONS * DEPTH * STRIDE;
const OWN: usize = RECEIVED + CONNECTIONS * DEPTH * STRIDE;
const _: () = assert!(OWN + CONNECTIONS * DEPTH * STRIDE <= crate::stage::MEMORY);

/// Seed of the bytes that the peer reads.
const CONSTANT_SEED: u64 = 77;

/// Bit that marks the id of a receive.
const RECEIVE: u64 = 1 << 32;

/// A request of an end; sends, WRITEs and READs have a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Send(usize),
    SendImm(usize),
    Write(usize),
    WriteImm(usize),
    Read(usize),
    Add,
    Swap,
}

impl Task {
    fn roll(dice: &mut Dice) -> Self {
        let length = dice.below(LONGEST + 1);
        match dice.below(12) {
            0..3 => Self::Send(length),
            3 => Self::SendImm(length),
            4..6 => Self::Write(length),
            6 => Self::WriteImm(length),
            7..9 => Self::Read(length),
            9..11 => Self::Add,
            _ => Self::Swap,
        }
    }

    fn is_received(self) -> bool {
        matches!(self, Self::Send(_) | Self::SendImm(_) | Self::WriteImm(_))
    }
}

/// One end of a connection.
struct End {
    qp: QpHandle,
    index: usize,
    /// Seed of the bytes of its messages.
    seed: u64,
    tasks: Vec<Task>,
    posted: usize,
    done: usize,
    /// Tasks of the peer that send messages, with their indices.
    expected: VecDeque<(usize, Task)>,
    expected_len: usize,
    receives: usize,
    peer_seed: u64,
    /// Value of its counter at the peer after the requests that completed.
    counter: u64,
    /// Value of its counter at the peer after all requests that were posted.
    counter_posted: u64,
}

impl End {
    fn new(qp: QpHandle, index: usize, [own, peer]: [&(u64, Vec<Task>); 2]) -> Self {
        let (seed, tasks) = own.clone();
        let (peer_seed, peer_tasks) = peer.clone();
        let received = peer_tasks.into_iter().enumerate().filter(|(_, task)| task.is_received());
        let expected: VecDeque<_> = received.collect();
        let expected_len = expected.len();
        Self {
            qp,
            index,
            seed,
            tasks,
            posted: 0,
            done: 0,
            expected,
            expected_len,
            receives: 0,
            peer_seed,
            counter: 0,
            counter_posted: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.done == self.tasks.len() && self.expected.is_empty()
    }

    /// Returns the offset of a slot of an area.
    fn slot(&self, area: usize, at: usize) -> usize {
        area + (self.index * DEPTH + at % DEPTH) * STRIDE
    }

    fn post(&mut self, here: &Side<'_>, there: &Side<'_>) -> Outcome {
        let taken = self.expected_len - self.expected.len();
        while self.receives < self.expected_len && self.receives - taken < DEPTH {
            let offset = self.slot(RECEIVED, self.receives);
            here.recv(self.qp, RECEIVE | self.receives as u64, offset, LONGEST)?;
            self.receives += 1;
        }
        while self.posted < self.tasks.len() && self.posted - self.done < DEPTH {
            let (op, length) = self.request(there);
            let offset = self.slot(OWN, self.posted);
            here.buffer.write(offset, &pattern(self.seed + self.posted as u64, length)).unwrap();
            here.send(self.qp, self.posted as u64, op, (offset, length))?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Returns the operation of the next task.
    fn request(&mut self, there: &Side<'_>) -> (SendOp, usize) {
        let (at, rkey, base) = (self.posted, there.mr.rkey(), there.buffer.addr());
        let imm = Some((at as u32).to_be_bytes());
        let target = base + self.slot(WRITTEN, at) as u64;
        let write = |imm| SendOp::Write { remote_addr: target, rkey, imm };
        let counter = base + (COUNTERS + 8 * self.index) as u64;
        let task = self.tasks[at];
        let expected = self.counter_posted;
        self.counter_posted += u64::from(matches!(task, Task::Add | Task::Swap));
        match task {
            Task::Send(length) => (SendOp::Send { imm: None }, length),
            Task::SendImm(length) => (SendOp::Send { imm }, length),
            Task::Write(length) => (write(None), length),
            Task::WriteImm(length) => (write(imm), length),
            Task::Read(length) => {
                (SendOp::Read { remote_addr: base + CONSTANT as u64, rkey }, length)
            }
            Task::Add => (SendOp::FetchAdd { remote_addr: counter, rkey, add: 1 }, 8),
            Task::Swap => {
                let (compare, swap) = (expected, expected + 1);
                (SendOp::CompareSwap { remote_addr: counter, rkey, compare, swap }, 8)
            }
        }
    }

    fn take(&mut self, here: &Side<'_>, there: &Side<'_>, wc: &Wc) -> Outcome {
        ensure!(wc.is_success(), "{wc:?}");
        match wc.id.0.checked_sub(RECEIVE) {
            Some(number) => self.take_receive(here, number as usize, wc),
            None => self.take_send(here, there, wc),
        }
    }

    fn take_send(&mut self, here: &Side<'_>, there: &Side<'_>, wc: &Wc) -> Outcome {
        let at = self.done;
        ensure!(wc.id.0 as usize == at, "request {at} is not the next to complete: {wc:?}");
        let offset = self.slot(OWN, at);
        match self.tasks[at] {
            Task::Read(length) => {
                let wanted = pattern(CONSTANT_SEED, length);
                ensure!(here.read(offset, length) == wanted, "request {at} read wrong bytes");
            }
            Task::Write(length) => {
                let wanted = pattern(self.seed + at as u64, length);
                let found = there.read(self.slot(WRITTEN, at), length);
                ensure!(found == wanted, "request {at} wrote wrong bytes");
            }
            Task::Add | Task::Swap => {
                let was = u64::from_ne_bytes(here.read(offset, 8).try_into().unwrap());
                ensure!(was == self.counter, "a counter was {was} instead of {}", self.counter);
                self.counter += 1;
            }
            Task::Send(_) | Task::SendImm(_) | Task::WriteImm(_) => {}
        }
        self.done += 1;
        Ok(())
    }

    fn take_receive(&mut self, here: &Side<'_>, number: usize, wc: &Wc) -> Outcome {
        let wanted = self.expected_len - self.expected.len();
        ensure!(number == wanted, "receive {wanted} is not the next to complete: {wc:?}");
        let (at, task) = self.expected.pop_front().ok_or("a message that was not sent")?;
        let imm = Some((at as u32).to_be_bytes());
        let (length, area, describe, opcode) = match task {
            Task::Send(length) => (length, RECEIVED, None, WcOpcode::Recv),
            Task::SendImm(length) => (length, RECEIVED, imm, WcOpcode::Recv),
            Task::WriteImm(length) => (length, WRITTEN, imm, WcOpcode::RecvRdmaWithImm),
            other => return Err(format!("{other:?} is not received")),
        };
        let found = (wc.byte_len as usize, wc.imm(), wc.opcode);
        ensure!(found == (length, describe, opcode), "of message {at}: {wc:?}");
        let offset = self.slot(area, if area == WRITTEN { at } else { number });
        let bytes = pattern(self.peer_seed + at as u64, length);
        ensure!(here.read(offset, length) == bytes, "message {at} has wrong bytes");
        Ok(())
    }
}

/// Posts requests of all ends of one side, and takes their completions. Returns whether there were
/// any.
fn work(here: &Side<'_>, there: &Side<'_>, ends: &mut [End]) -> Outcome<bool> {
    ends.iter_mut().try_for_each(|end| end.post(here, there))?;
    let mut wcs = [Wc::default(); 16];
    let count = here.nic.poll_cq(here.cq, &mut wcs);
    for wc in &wcs[..count] {
        let of = |end: &&mut End| here.nic.qp_number(end.qp) == Some(wc.qp_num);
        let end = ends.iter_mut().find(of).ok_or("a completion of no queue pair")?;
        end.take(here, there, wc)?;
    }
    Ok(count > 0)
}

/// Runs random requests on a few connections until all are done.
pub(crate) fn mixed(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    let (mut a_ends, mut b_ends) = (Vec::new(), Vec::new());
    for side in [&*a, &*b] {
        side.buffer.write(CONSTANT, &pattern(CONSTANT_SEED, LONGEST)).unwrap();
        side.buffer.write(COUNTERS, &[0; 8 * CONNECTIONS]).unwrap();
    }
    for index in 0..1 + dice.below(CONNECTIONS) {
        let how = connect_attr(dice);
        let (a_qp, b_qp) = pair(a, b, QpType::Rc, &how, dice)?;
        let mut plan = || {
            let count = 10 + dice.below(50);
            (dice.next() >> 8, (0..count).map(|_| Task::roll(dice)).collect::<Vec<_>>())
        };
        let (ours, theirs) = (plan(), plan());
        a_ends.push(End::new(a_qp, index, [&ours, &theirs]));
        b_ends.push(End::new(b_qp, index, [&theirs, &ours]));
    }
    let (waits_for_events, mut clock) = (dice.below(2) == 0, Clock::start());
    while !a_ends.iter().chain(&b_ends).all(End::is_done) {
        let worked = work(a, b, &mut a_ends)? | work(b, a, &mut b_ends)?;
        if worked {
            clock = Clock::start();
            continue;
        }
        clock.check(&[a, b])?;
        if !waits_for_events {
            continue;
        }
        for side in [&*a, &*b] {
            side.nic.request_notify(side.cq, Notify::Next);
        }
        if work(a, b, &mut a_ends)? | work(b, a, &mut b_ends)? {
            continue;
        }
        // Either side may be the next with a completion: waits for one of them only briefly.
        let _ = a.channel.wait(Some(std::time::Duration::from_millis(5)));
    }
    for (ends, at) in [(&a_ends, &*b), (&b_ends, &*a)] {
        for end in ends {
            let offset = COUNTERS + 8 * end.index;
            let found = u64::from_ne_bytes(at.read(offset, 8).try_into().unwrap());
            ensure!(found == end.counter, "a counter ended at {found}, not {}", end.counter);
        }
    }
    Ok(())
}
