//! The half that sends.

use std::io;

use super::Injector;
use super::lane::{Due, Lane, Outgoing};
use crate::link::Sender;
use crate::time::Instant;
use crate::wire::{Batch, Bth, ICRC_ROOM, Path};

/// Maximum number of packets that are passed on at once.
const PASSED_ON_MAX: usize = 64;

/// Length of the headers before a BTH, for the time that a packet takes: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

pub(super) struct FaultSender {
    inner: Box<dyn Sender>,
    /// Each packet from its BTH to its last pad byte.
    lane: Lane<(Path, Vec<u8>)>,
    /// Packets that are passed on.
    passing: Batch,
}

impl FaultSender {
    pub(super) fn new(inner: Box<dyn Sender>, injector: Injector) -> Self {
        Self { inner, lane: Lane::new(injector), passing: Batch::new(PASSED_ON_MAX) }
    }

    fn decide(&mut self, now: Instant, path: &Path, bytes: &[u8]) {
        let packet = bytes.get(..bytes.len().saturating_sub(ICRC_ROOM)).unwrap_or_default();
        let outgoing = Outgoing { to: path.destination, wire_len: HEADERS + bytes.len() };
        let lost = self.lane.send(now, &outgoing, packet, || (*path, packet.to_vec()));
        if let Some(cause) = lost
            && let Some(tap) = &self.lane.injector().lock().keep_dropped
        {
            let path = Path { source_port: self.inner.source_port(path), ..*path };
            tap.write_dropped(now, &path, packet, &format!("dropped by fault {cause}"));
        }
    }

    /// Takes as many packets as there is room for, of those whose time has come.
    fn take_due(&mut self, now: Instant) {
        while !self.passing.is_full() {
            let Some(Due { packet: (path, packet), corrupt, mark, .. }) = self.lane.pop(now) else {
                return;
            };
            let traffic_class = path.traffic_class | if mark { 3 } else { 0 };
            let path = Path { traffic_class, ..path };
            match corrupt.and_then(|chance| Corrupted::new(chance, &path, &packet)) {
                Some(Corrupted { packet, icrc_flips }) => {
                    self.passing.push_as_is(&path, &packet, icrc_flips)
                }
                None => self.passing.push(&path, &packet),
            };
        }
    }
}

impl Sender for FaultSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        for (path, bytes) in batch.iter() {
            self.decide(now, path, bytes);
        }
        loop {
            self.passing.clear();
            self.take_due(now);
            let more = self.passing.is_full();
            // An empty batch too, for a link that holds packets back itself.
            self.inner.send(now, &mut self.passing)?;
            if !more {
                return Ok(());
            }
        }
    }

    fn source_port(&self, path: &Path) -> u16 {
        self.inner.source_port(path)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.lane.timeout().into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn seal_all(&mut self) {
        self.inner.seal_all();
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.extend(self.lane.injector().counters());
        counters
    }
}

/// A packet one bit of which, or of its ICRC, changed after it was sealed. The CRC is linear: the
/// ICRC that was right before differs from the one that is right now in the same bits, whatever the
/// headers before the packet.
pub(super) struct Corrupted {
    packet: Vec<u8>,
    icrc_flips: u32,
}

impl Corrupted {
    /// `None` for what is no packet.
    fn new(chance: u64, path: &Path, packet: &[u8]) -> Option<Self> {
        let sealed_len = packet.len() + ICRC_ROOM;
        let bit = corrupted_bit(chance, sealed_len).filter(|_| packet.len() >= Bth::LEN)?;
        let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
        let icrc = |packet: &[u8]| {
            let mut sealed = [packet, &[0; ICRC_ROOM]].concat();
            path.seal(&mut sealed);
            sealed.last_chunk().map_or(0, |icrc| u32::from_be_bytes(*icrc))
        };
        let (right, mut packet) = (icrc(packet), packet.to_vec());
        let icrc_flips = match packet.get_mut(byte) {
            Some(byte) => {
                *byte ^= mask;
                icrc(&packet) ^ right
            }
            None => 0x8000_0000 >> (bit - 8 * packet.len()),
        };
        Some(Self { packet, icrc_flips })
    }
}

/// The bit that changes of a packet of `len` bytes from its BTH through its ICRC: any that the ICRC
/// covers, so that the receiver drops the packet, or one of the ICRC itself.
pub(super) fn corrupted_bit(chance: u64, len: usize) -> Option<usize> {
    /// The byte of a BTH that no ICRC covers.
    const UNCOVERED: u64 = 4;
    let bits = (len as u64).checked_sub(1)? * 8;
    let bit = chance.checked_rem(bits)?;
    let bit = if bit >= UNCOVERED * 8 { bit + 8 } else { bit };
    usize::try_from(bit).ok()
}
