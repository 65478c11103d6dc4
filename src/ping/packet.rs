//! Probes and acknowledgements as bytes.
//!
//! | bytes | field | in |
//! |---|---|---|
//! | 0–3 | `rprb` | all |
//! | 4 | version, 1 | all |
//! | 5 | 1 probe, 2 acknowledgement, 3 timing | all |
//! | 6–7 | 0 | all |
//! | 8–15 | session: which run of the prober | all |
//! | 16–19 | sequence number of the probe | all |
//! | 20–23 | flow label that the answers have, 20 bits | all |
//! | 24–31 | instance: which run of the responder | acknowledgement, timing |
//! | 32–39 | nanoseconds from the receive completion of the probe to the send completion of its acknowledgement | timing |
//! | 40–175 | 0 | probe |
//!
//! All numbers are in network byte order. Fields of no meaning are zero when sent and ignored when
//! received.

use core::time::Duration;

use thiserror::Error;
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::limits::{ACK_BYTES, PROBE_BYTES};
use crate::wire::Bits;

const MAGIC: [u8; 4] = *b"rprb";
const VERSION: u8 = 1;

/// Flow labels have 20 bits.
const LABEL_MAX: u32 = 0xf_ffff;

/// The bytes that all packets begin with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    reserved: [u8; 2],
    session: U64,
    sequence: U32,
    flow_label: U32,
    instance: U64,
    delay: U64,
}

const _: () = assert!(size_of::<Layout>() == ACK_BYTES);

/// Identifier of a probe: the same in the probe and in both of its acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeId {
    /// The run of the prober. It is random, so that an answer to an earlier run is not taken for
    /// one to this run.
    pub session: u64,
    /// The number of the probe within the run, which wraps.
    pub sequence: u32,
    /// The flow label of the probe, which its answers have too: they take the same path among equal
    /// ones as far as switches choose it by flow label or source port.
    pub flow_label: Bits<20>,
}

/// A packet between a prober and a responder.
///
/// ```
/// use roce::ping::{Packet, ProbeId};
/// use roce::wire::Bits;
///
/// let id = ProbeId { session: 7, sequence: 1, flow_label: Bits::low(3) };
/// let bytes = Packet::Probe(id).to_bytes();
/// assert_eq!(Packet::parse(&bytes), Ok(Packet::Probe(id)));
/// // The answers are shorter, so that both together are no larger than the probe.
/// assert!(Packet::Ack { id, instance: 1 }.to_bytes().len() < bytes.len() / 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A prober asks for an answer.
    Probe(ProbeId),
    /// The first answer: the probe has arrived.
    Ack {
        /// The probe.
        id: ProbeId,
        /// The run of the responder, random like that of the prober.
        instance: u64,
    },
    /// The second answer: how long the responder took for the first.
    Timing {
        /// The probe.
        id: ProbeId,
        /// The run of the responder.
        instance: u64,
        /// Time from the receive completion of the probe to the send completion of its
        /// acknowledgement.
        delay: Duration,
    },
}

/// Reason for which bytes are no packet of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// Too few bytes.
    #[error("need {needed} bytes, have {have}")]
    Short {
        /// Number of bytes that it takes.
        needed: usize,
        /// Number of bytes that are there.
        have: usize,
    },
    /// Wrong magic number.
    #[error("not a probe")]
    Magic,
    /// Unknown version of the protocol.
    #[error("version {0} of probes, which is not known")]
    Version(u8),
    /// Neither a probe nor an answer.
    #[error("kind {0} of probes, which is not known")]
    Kind(u8),
    /// A flow label of more than 20 bits.
    #[error("flow label {0:#x} has more than 20 bits")]
    FlowLabel(u32),
}

impl Packet {
    /// Parses bytes that came from the network. What follows the packet is ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, PacketError> {
        let have = bytes.len();
        let short = |needed| PacketError::Short { needed, have };
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| short(ACK_BYTES))?;
        if layout.magic != MAGIC {
            return Err(PacketError::Magic);
        }
        if layout.version != VERSION {
            return Err(PacketError::Version(layout.version));
        }
        let label = layout.flow_label.get();
        if label > LABEL_MAX {
            return Err(PacketError::FlowLabel(label));
        }
        let id = ProbeId {
            session: layout.session.get(),
            sequence: layout.sequence.get(),
            flow_label: Bits::low(label),
        };
        let instance = layout.instance.get();
        match layout.kind {
            1 if have < PROBE_BYTES => Err(short(PROBE_BYTES)),
            1 => Ok(Self::Probe(id)),
            2 => Ok(Self::Ack { id, instance }),
            3 => {
                let delay = Duration::from_nanos(layout.delay.get());
                Ok(Self::Timing { id, instance, delay })
            }
            kind => Err(PacketError::Kind(kind)),
        }
    }

    /// Returns its bytes: [`PROBE_BYTES`] of a probe, [`ACK_BYTES`] of an answer.
    pub fn to_bytes(&self) -> Bytes {
        let (kind, id, instance, delay) = match *self {
            Self::Probe(id) => (1, id, 0, Duration::ZERO),
            Self::Ack { id, instance } => (2, id, instance, Duration::ZERO),
            Self::Timing { id, instance, delay } => (3, id, instance, delay),
        };
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let layout = Layout {
            magic: MAGIC,
            version: VERSION,
            kind,
            reserved: [0; 2],
            session: id.session.into(),
            sequence: id.sequence.into(),
            flow_label: id.flow_label.get().into(),
            instance: instance.into(),
            delay: delay.into(),
        };
        let mut bytes = [0; PROBE_BYTES];
        for (to, from) in bytes.iter_mut().zip(layout.as_bytes()) {
            *to = *from;
        }
        let len = if kind == 1 { PROBE_BYTES } else { ACK_BYTES };
        Bytes { bytes, len }
    }

    /// Returns the probe that it is, or answers.
    pub fn id(&self) -> ProbeId {
        match *self {
            Self::Probe(id) | Self::Ack { id, .. } | Self::Timing { id, .. } => id,
        }
    }
}

/// The bytes of a packet, without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; PROBE_BYTES],
    len: usize,
}

impl core::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ProbeId = ProbeId {
        session: 0x0102_0304_0506_0708,
        sequence: 0x090a_0b0c,
        flow_label: Bits::low(0x5_4321),
    };

    fn all() -> [Packet; 3] {
        let delay = Duration::from_nanos(0x1112_1314);
        [
            Packet::Probe(ID),
            Packet::Ack { id: ID, instance: u64::MAX },
            Packet::Timing { id: ID, instance: 5, delay },
        ]
    }

    #[test]
    fn packets_are_parsed_as_they_are_emitted() {
        for packet in all() {
            let bytes = packet.to_bytes();
            assert_eq!(Packet::parse(&bytes), Ok(packet));
            let mut longer = bytes.to_vec();
            longer.extend([0xff; 100]);
            assert_eq!(Packet::parse(&longer), Ok(packet));
        }
    }

    #[test]
    fn layout_is_that_of_the_table() {
        let timing = Packet::Timing { id: ID, instance: 5, delay: Duration::from_nanos(0x1112) };
        assert_eq!(
            *timing.to_bytes(),
            *b"rprb\x01\x03\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\0\x05\x43\x21\
               \0\0\0\0\0\0\0\x05\0\0\0\0\0\0\x11\x12"
        );
    }

    #[test]
    fn every_cut_is_refused_and_named() {
        for packet in all() {
            let bytes = packet.to_bytes();
            for len in 0..bytes.len() {
                let needed = if len < ACK_BYTES { ACK_BYTES } else { PROBE_BYTES };
                let short = PacketError::Short { needed, have: len };
                assert_eq!(Packet::parse(&bytes[..len]), Err(short));
            }
        }
    }

    #[test]
    fn foreign_bytes_are_refused_and_named() {
        let with = |at: usize, byte| {
            let mut bytes = Packet::Probe(ID).to_bytes();
            bytes.bytes[at] = byte;
            Packet::parse(&bytes)
        };
        assert_eq!(with(0, b'R'), Err(PacketError::Magic));
        assert_eq!(with(4, 2), Err(PacketError::Version(2)));
        assert_eq!(with(5, 0), Err(PacketError::Kind(0)));
        assert_eq!(with(5, 4), Err(PacketError::Kind(4)));
        assert_eq!(with(21, 0x10), Err(PacketError::FlowLabel(0x10_4321)));
    }
}
