//! A network in memory, with faults by chance or by rule, in virtual time.
//!
//! It is a state machine as the engine is: packets are put in with the time, and come out when
//! theirs has come. The [fault injector](super::fault) decides what happens on the way. Packets
//! travel as they would on a wire, from the IP header to the ICRC.

use super::fault::chance::{Decision, Impairments};
use super::fault::queue::{Held, Queue};
use super::fault::{Faults, Rule, Rules};
use crate::time::Instant;
use crate::wire::{
    Frame, Gid, IcrcVerdict, LinkType, Network as IpHeader, Path, ROCE_PORT, Received,
};

/// A packet that has arrived: from the IP header to the ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Time of arrival.
    pub time: Instant,
    /// Address of the receiver.
    pub to: Gid,
    /// The packet.
    pub bytes: Vec<u8>,
}

impl Delivery {
    /// Returns the packet as an engine takes it; `None` if it is damaged.
    pub fn received(&self) -> Option<Received<'_>> {
        let frame = Frame::parse(LinkType::RAW, &self.bytes, ROCE_PORT);
        if frame.icrc() != Some(IcrcVerdict::Ok) {
            return None;
        }
        let (source, ecn, network) = match frame.network()? {
            IpHeader::Ipv4 { header, .. } => {
                (Gid::from(header.source()), header.ecn(), &header.as_bytes()[..])
            }
            IpHeader::Ipv6 { header, .. } => {
                (Gid::from(header.source()), header.ecn(), &header.as_bytes()[..])
            }
            IpHeader::Grh(_) => return None,
        };
        Some(Received {
            source,
            destination: self.to,
            source_port: frame.udp()?.source_port(),
            ecn: u8::try_from(ecn.get()).unwrap_or(0),
            network,
            packet: frame.packet()?.bytes(),
            payload: None,
        })
    }
}

/// The network.
#[derive(Debug)]
pub struct Network {
    impairments: Impairments,
    in_flight: Queue<(Gid, Vec<u8>)>,
}

impl Network {
    /// A network with these faults, whose chances follow from `seed`.
    pub fn new(faults: Faults, seed: u64) -> Self {
        let impairments = Impairments::new(faults, Rules::default(), seed);
        Self { impairments, in_flight: Queue::default() }
    }

    /// Adds a fault rule.
    pub fn add_rule(&mut self, rule: Rule) {
        self.impairments.add_rule(rule);
    }

    /// Puts a packet in: from its BTH to the room for its ICRC, which is sealed.
    pub fn send(&mut self, now: Instant, path: &Path, packet: &mut [u8]) {
        let headers = path.seal(packet);
        let (ip, udp) = headers.as_bytes();
        let mut bytes = Vec::with_capacity(ip.len() + udp.len() + packet.len());
        bytes.extend_from_slice(ip);
        bytes.extend_from_slice(udp);
        bytes.extend_from_slice(packet);
        let to = path.destination;
        let decision = self.impairments.decide(now, to, packet, bytes.len());
        let Decision::Arrives(arrival) = decision else { return };
        if let Some(chance) = arrival.corrupt {
            let bit = usize::try_from(chance % (bytes.len() as u64 * 8)).unwrap_or(0);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 0x80 >> (bit % 8);
            }
        }
        if arrival.mark {
            set_marks(&mut bytes);
        }
        self.in_flight.put(now, (to, bytes), &arrival);
    }

    /// The next time at which a packet arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.in_flight.timeout()
    }

    /// The next packet that has arrived by `now`.
    #[must_use]
    pub fn poll_delivery(&mut self, now: Instant) -> Option<Delivery> {
        let Held { time, packet: (to, bytes), .. } = self.in_flight.pop(now)?;
        self.impairments.arrived(to);
        Some(Delivery { time, to, bytes })
    }
}

/// Sets both bits of explicit congestion notification; no ICRC covers them.
fn set_marks(bytes: &mut [u8]) {
    match bytes {
        [first, second, ..] if *first >> 4 == 4 => *second |= 3,
        [first, second, ..] if *first >> 4 == 6 => *second |= 0x30,
        _ => {}
    }
}
