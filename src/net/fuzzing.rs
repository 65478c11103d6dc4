//! Entry points of fuzz targets: hellos and rings of peers that send anything. Not part of the
//! interface.

use super::core::{Core, Local, OwnMemory, PeerRing, Taken, receive_id, receives, sends};
use super::dial::{OFFER, Offer};
use super::hello;
use super::limits::PRIVATE_DATA_MAX;
use crate::memory::Buffer;
use crate::net::core::frame::Source;
use crate::verbs::{SendOp, Wc, WcOpcode, WcStatus, WrId};
use crate::wire::{Qpn, RKey};

/// Bytes of the own ring and of a chunk; number of WRITEs; bytes of a message.
const RING: u32 = 4096;
const CHUNK: u32 = 256;
const WRITES: u16 = 4;
const MESSAGE_MAX: u64 = 5000;

/// A hello or an offer of a peer: what is taken from it is within bounds, and says the same when it
/// is emitted.
pub fn net_hello(input: &[u8]) {
    if let Some((ring, private_data)) = hello::parse(input) {
        assert!(private_data.len() <= PRIVATE_DATA_MAX);
        assert!(ring.size.is_power_of_two() && ring.send_max.is_power_of_two());
        let emitted = hello::emit(&ring, private_data);
        assert_eq!(hello::parse(&emitted), Some((ring, private_data)));
    }
    assert!(hello::refusal(input).len() < 256);
    if let Some(offer) = input.first_chunk::<OFFER>() {
        let _ = hello::parse(&Offer::parse(offer).hello);
    }
}

/// The input, taken byte by byte; zeros behind its end.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number that is small, or near the end of its range.
    pub(crate) fn number(&mut self) -> u64 {
        let byte = self.byte();
        if byte < 128 { byte.into() } else { u64::MAX - u64::from(byte - 128) }
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
}

/// A connection whose peer writes anything into the ring, with any immediate data, while the
/// program does what it may.
struct Run<'a> {
    script: Script<'a>,
    core: Core,
    ring: Buffer,
    staging_len: u32,
    /// Work requests in flight: their numbers, and whether they are signaled.
    posted: std::collections::VecDeque<(WrId, bool)>,
    operations: u64,
    out: Vec<u8>,
}

/// Steps of a program and of its peer, as the input tells.
pub fn net_ring(input: &[u8]) {
    let mut script = Script(input);
    let logs = [script.byte() % 4, script.byte() % 4].map(|log| 4096_u32 << log);
    let [size, send_max] = logs;
    let peer = PeerRing {
        addr: u64::from_le_bytes(script.bytes()),
        rkey: RKey::new(u32::from_le_bytes(script.bytes())),
        size,
        writes: 1 + u16::from(script.byte()) % WRITES,
        send_max,
    };
    let own_max = 8192;
    let staging_len = OwnMemory::staging_bytes(size.min(own_max), CHUNK);
    let (ring, staging) = (Buffer::new(RING as usize), Buffer::new(staging_len));
    let own = OwnMemory {
        ring: ring.region(),
        ring_size: RING,
        staging: staging.region(),
        chunk: CHUNK,
        writes: WRITES,
        send_max: own_max,
    };
    let core = Core::new(own, peer, MESSAGE_MAX);
    let staging_len = u32::try_from(staging_len).expect("it is small");
    let (posted, out) = (std::collections::VecDeque::new(), Vec::new());
    let mut run = Run { script, core, ring, staging_len, posted, operations: 0, out };
    while !run.script.0.is_empty() {
        run.step();
        run.check();
    }
}

impl Run<'_> {
    fn step(&mut self) {
        match self.script.byte() % 12 {
            0..3 => self.write(),
            3 => self.complete(),
            4 => {
                let len = usize::from(self.script.word()) % (self.core.eager_max() + 1);
                let payload = vec![7; len];
                let _ = self.core.queue(&[&payload]);
            }
            5 => {
                let source = Source { addr: 1, len: u64::from(self.script.word()), rkey: 9 };
                let _ = self.core.queue_rendezvous(source);
            }
            6 => {
                let len = usize::from(self.script.byte());
                let _ = self.core.queue_lent(len.min(self.core.eager_max()));
            }
            7 => {
                let op = SendOp::Read { remote_addr: 0, rkey: RKey::new(1) };
                self.operations += u64::from(self.core.operate(op).is_some());
            }
            8 => match self.script.byte() % 4 {
                0 => self.core.finish(),
                1 => self.core.close(),
                2 => self.core.probe(),
                _ => self.core.begin_keeping(),
            },
            _ => {
                let taken = self.core.take(&mut self.out);
                assert!(taken != Taken::Message || self.out.len() as u64 <= MESSAGE_MAX);
            }
        }
        self.post();
    }

    /// The peer writes bytes of the input anywhere in the ring, and tells any length and any
    /// immediate data.
    fn write(&mut self) {
        let (at, count) =
            (u64::from(self.script.word()) % u64::from(RING), self.script.byte() % 40);
        for offset in 0..u64::from(count) {
            let byte = self.script.byte();
            let at = usize::try_from((at + offset) % u64::from(RING)).unwrap_or_default();
            let _ = self.ring.write(at, &[byte]);
        }
        let len = match self.script.byte() % 4 {
            0 => u32::from(count),
            1 => 0,
            2 => u32::from(self.script.word()),
            _ => u32::from_le_bytes(self.script.bytes()),
        };
        let wc = Wc::new(receive_id(), WcStatus::Success, WcOpcode::RecvRdmaWithImm, Qpn::new(2));
        let wc = wc.with_byte_len(len);
        let wc = if self.script.byte() == 77 { wc } else { wc.with_imm(self.script.bytes()) };
        self.core.handle_completion(&wc);
    }

    /// The NIC completes the oldest work request that is signaled, and those before it.
    fn complete(&mut self) {
        let Some(at) = self.posted.iter().position(|(_, is_signaled)| *is_signaled) else { return };
        if let Some((id, _)) = self.posted.drain(..=at).next_back() {
            let status = match self.script.byte() {
                255 => WcStatus::RetryExcErr,
                _ => WcStatus::Success,
            };
            self.core.handle_completion(&Wc::new(id, status, WcOpcode::RdmaWrite, Qpn::new(2)));
        }
    }

    /// The NIC takes what the core yields: all of it lies in memory of its own.
    fn post(&mut self) {
        while let Some(post) = self.core.poll_post() {
            match post.local {
                Local::Staging { offset, len } | Local::Lent { offset, len, .. } => {
                    let end = u64::from(offset) + u64::from(len);
                    assert!(end <= u64::from(self.staging_len), "{post:?}");
                }
                Local::Operation(number) => assert!(number < self.operations),
                Local::None | Local::Caller => {}
            }
            self.posted.push_back((post.id, post.is_signaled));
        }
        assert!(self.core.poll_receives() <= receives(WRITES) + 1);
    }

    fn check(&self) {
        assert!(self.core.inflight() <= sends(WRITES));
        assert!(self.core.operations_done() <= self.operations);
        assert!(self.core.ring_used() <= 8192);
        let unconsumed = self.core.unconsumed();
        assert!(unconsumed.unacknowledged <= unconsumed.messages.len());
        let _ = (self.core.undelivered(), self.core.is_closed_and_delivered());
    }
}
