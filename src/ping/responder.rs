//! The responder as a state machine: told probes and send completions, it says what to answer.
//!
//! A stranger gains nothing by it. It answers to the address that a packet came from, and only if
//! that is its peer; both answers to a probe are together no larger than the probe, as `limits.rs`
//! asserts; it answers a limited number of probes a second; and it keeps a limited number of
//! probes.

use core::time::Duration;
use std::collections::VecDeque;

use super::limits::{RATE_MAX, UNSENT_ACKS_MAX};
use super::packet::{Bytes, Packet, ProbeId};
use crate::time::Instant;
use crate::wire::{Bits, Gid, Qpn};

/// A queue pair that datagrams come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address of its port.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: Qpn,
}

/// Configuration of a responder.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponderConfig {
    /// A random number that tells this run from others.
    pub instance: u64,
    /// The only prober that is answered; `None` is any, for a network in which all hosts are
    /// trusted.
    pub peer: Option<Source>,
    /// Maximum number of probes a second that are answered, at most [`RATE_MAX`].
    pub rate: u32,
    /// Number of probes that are answered at once after a pause.
    pub burst: u32,
}

impl ResponderConfig {
    /// Answers one prober, 10,000 times a second.
    pub fn new(instance: u64, peer: Source) -> Self {
        Self { instance, peer: Some(peer), rate: 10_000, burst: 256 }
    }

    /// Sets the rate and the burst.
    #[must_use]
    pub fn rate(self, rate: u32, burst: u32) -> Self {
        Self { rate, burst, ..self }
    }
}

/// A datagram to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Destination.
    pub to: Source,
    /// The flow label that it has.
    pub flow_label: Bits<20>,
    /// Identifier with which its send completion is to be reported; `None` if it need not be.
    pub id: Option<u64>,
    /// The datagram.
    pub bytes: Bytes,
}

/// Counters of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Probes that were answered.
    pub answered: u64,
    /// Packets that are no probes.
    pub malformed: u64,
    /// Probes of others than the peer.
    pub foreign: u64,
    /// Probes beyond the rate limit.
    pub over_rate: u64,
    /// Probes that came while the acknowledgements of too many others were not sent.
    pub over_unsent: u64,
    /// Acknowledgements whose send failed.
    pub not_sent: u64,
}

/// An acknowledgement whose send has not completed.
#[derive(Clone, Copy, Debug)]
struct Unsent {
    to: Source,
    probe: ProbeId,
    received: Instant,
}

/// Answers probes.
///
/// ```
/// use std::time::Duration;
/// use roce::ping::{Packet, ProbeId, Responder, ResponderConfig, Source};
/// use roce::time::Instant;
/// use roce::wire::{Bits, Gid, Qpn};
///
/// let us = |us: u64| Instant::from_nanos(us * 1000);
/// let peer = Source { gid: Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1)), qpn: Qpn::new(17) };
/// let mut responder = Responder::new(ResponderConfig::new(1, peer), us(0));
/// let id = ProbeId { session: 7, sequence: 0, flow_label: Bits::low(1) };
///
/// let probe = Packet::Probe(id).to_bytes();
/// let ack = responder.handle_packet(peer, &probe, us(10), us(11)).unwrap();
/// assert_eq!((ack.to, Packet::parse(&ack.bytes)), (peer, Ok(Packet::Ack { id, instance: 1 })));
/// // Once it is sent, the second acknowledgement tells how long that took.
/// let timing = responder.handle_sent(ack.id.unwrap(), us(15)).unwrap();
/// let delay = Duration::from_micros(5);
/// assert_eq!(Packet::parse(&timing.bytes), Ok(Packet::Timing { id, instance: 1, delay }));
/// ```
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    /// Acknowledgements by id, oldest first; `None` once its send has completed.
    unsent: VecDeque<Option<Unsent>>,
    /// Id of the first of them.
    first: u64,
    /// Time that was not used for answers yet, up to that of a burst: each answer takes its part.
    credit: Duration,
    refilled: Instant,
    counters: ResponderCounters,
}

impl Responder {
    /// Begins to respond.
    pub fn new(mut config: ResponderConfig, now: Instant) -> Self {
        config.rate = config.rate.clamp(1, RATE_MAX);
        config.burst = config.burst.max(1);
        let credit = (Duration::from_secs(1) / config.rate).saturating_mul(config.burst);
        let counters = ResponderCounters::default();
        Self { config, unsent: VecDeque::new(), first: 0, credit, refilled: now, counters }
    }

    /// Returns what it counted.
    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// Whether the send of an acknowledgement has not completed yet.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes a datagram that was received at a time of the NIC's clock; `now` is the program's.
    /// Returns its answer.
    #[must_use]
    pub fn handle_packet(
        &mut self,
        source: Source,
        bytes: &[u8],
        received: Instant,
        now: Instant,
    ) -> Option<Answer> {
        let Ok(Packet::Probe(probe)) = Packet::parse(bytes) else {
            self.counters.malformed += 1;
            return None;
        };
        if self.config.peer.is_some_and(|peer| peer != source) {
            self.counters.foreign += 1;
            return None;
        }
        if self.unsent.len() >= UNSENT_ACKS_MAX {
            self.counters.over_unsent += 1;
            return None;
        }
        if !self.take_credit(now) {
            self.counters.over_rate += 1;
            return None;
        }
        self.counters.answered += 1;
        let id = self.first + self.unsent.len() as u64;
        self.unsent.push_back(Some(Unsent { to: source, probe, received }));
        let ack = Packet::Ack { id: probe, instance: self.config.instance };
        Some(answer(source, ack, Some(id)))
    }

    /// Takes the send completion of an acknowledgement, at a time of the NIC's clock. Returns the
    /// second one.
    #[must_use]
    pub fn handle_sent(&mut self, id: u64, at: Instant) -> Option<Answer> {
        let Unsent { to, probe, received } = self.take_unsent(id)?;
        let delay = at.saturating_since(received);
        Some(answer(to, Packet::Timing { id: probe, instance: self.config.instance, delay }, None))
    }

    /// Takes that an acknowledgement was not sent: it was refused, or its send failed.
    pub fn handle_not_sent(&mut self, id: u64) {
        self.counters.not_sent += u64::from(self.take_unsent(id).is_some());
    }

    fn take_unsent(&mut self, id: u64) -> Option<Unsent> {
        let index = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let taken = self.unsent.get_mut(index)?.take();
        while self.unsent.front().is_some_and(Option::is_none) {
            self.unsent.pop_front();
            self.first += 1;
        }
        taken
    }

    /// Whether the rate allows one more answer now.
    fn take_credit(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / self.config.rate;
        let most = each.saturating_mul(self.config.burst);
        let earned = now.saturating_since(self.refilled);
        self.credit = self.credit.saturating_add(earned).min(most);
        self.refilled = self.refilled.max(now);
        let left = self.credit.checked_sub(each);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

fn answer(to: Source, packet: Packet, id: Option<u64>) -> Answer {
    Answer { to, flow_label: packet.id().flow_label, id, bytes: packet.to_bytes() }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::ping::limits::{HEADER_BYTES, PROBE_BYTES};

    const PEER: Source = Source { gid: Gid([7; 16]), qpn: Qpn::new(17) };

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn probe(sequence: u32) -> Bytes {
        Packet::Probe(ProbeId { session: 1, sequence, flow_label: Bits::low(9) }).to_bytes()
    }

    fn responder(rate: u32, burst: u32) -> Responder {
        Responder::new(ResponderConfig::new(5, PEER).rate(rate, burst), at(0))
    }

    #[test]
    fn answers_are_no_larger_than_the_probe_and_go_to_its_source() {
        let mut responder = responder(1000, 10);
        let ack = responder.handle_packet(PEER, &probe(1), at(1), at(2)).unwrap();
        let timing = responder.handle_sent(ack.id.unwrap(), at(9)).unwrap();
        assert_eq!((ack.to, timing.to), (PEER, PEER));
        assert_eq!((ack.flow_label.get(), timing.flow_label.get()), (9, 9));
        let sent = ack.bytes.len() + timing.bytes.len() + 2 * HEADER_BYTES;
        assert!(sent <= PROBE_BYTES + HEADER_BYTES);
        // Its send completes once.
        assert_eq!(responder.handle_sent(ack.id.unwrap(), at(9)), None);
        // A probe that was cut short to make the answers larger than it is none.
        let cut = &probe(2)[..PROBE_BYTES - 1];
        assert_eq!(responder.handle_packet(PEER, cut, at(1), at(2)), None);
        assert_eq!(responder.counters().malformed, 1);
    }

    #[test]
    fn strangers_and_answers_are_not_answered() {
        let mut responder = responder(1000, 10);
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, 9));
        for source in [Source { gid, ..PEER }, Source { qpn: Qpn::new(18), ..PEER }] {
            assert_eq!(responder.handle_packet(source, &probe(1), at(1), at(1)), None);
        }
        let id = ProbeId { session: 1, sequence: 1, flow_label: Bits::low(1) };
        // Two responders do not answer each other without end.
        for packet in [
            Packet::Ack { id, instance: 1 },
            Packet::Timing { id, instance: 1, delay: Duration::ZERO },
        ] {
            assert_eq!(responder.handle_packet(PEER, &packet.to_bytes(), at(1), at(1)), None);
        }
        let counters = *responder.counters();
        assert_eq!((counters.foreign, counters.malformed, counters.answered), (2, 2, 0));
    }

    #[test]
    fn rate_limit_allows_a_burst_and_then_the_rate() {
        let mut responder = responder(1000, 8);
        let mut answered = |count: u32, us: u64| {
            let each = (0..count).filter_map(|n| {
                let ack = responder.handle_packet(PEER, &probe(n), at(us), at(us))?;
                responder.handle_sent(ack.id?, at(us))
            });
            each.count()
        };
        assert_eq!(answered(100, 0), 8);
        assert_eq!(answered(100, 500), 0);
        assert_eq!(answered(100, 1000), 1);
        assert_eq!(answered(100, 3000), 2);
        // A long pause earns no more than a burst, and a clock that goes back nothing.
        assert_eq!(answered(100, 60_000_000), 8);
        assert_eq!(answered(100, 5), 0);
        assert_eq!(answered(100, 60_001_000), 1);
        assert_eq!(responder.counters().over_rate, 700 - 20);
    }

    #[test]
    fn unsent_acknowledgements_are_bounded() {
        let mut responder = responder(RATE_MAX, u32::MAX);
        let acks: Vec<Answer> = (0..2000)
            .filter_map(|n| responder.handle_packet(PEER, &probe(n), at(0), at(0)))
            .collect();
        assert_eq!(acks.len(), UNSENT_ACKS_MAX);
        assert_eq!(responder.counters().over_unsent, 2000 - UNSENT_ACKS_MAX as u64);
        // They complete in any order, and then there is room again.
        for ack in acks.iter().rev().skip(1) {
            assert!(responder.handle_sent(ack.id.unwrap(), at(1)).is_some());
        }
        responder.handle_not_sent(acks.last().unwrap().id.unwrap());
        assert_eq!((responder.unsent.len(), responder.counters().not_sent), (0, 1));
        assert!(responder.handle_packet(PEER, &probe(0), at(1), at(1)).is_some());
    }
}
