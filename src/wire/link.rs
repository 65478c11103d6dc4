//! Link-layer headers of captures that were not taken on Ethernet.

use super::Layer;
use super::ethernet::EtherType;
use super::layout::header;
use super::num::Bits;

header! {
    /// Linux cooked capture, version 1.
    pub struct Sll, SllRepr, SllLayout: Layer::Sll, 16 bytes {
        /// Receiver of the packet: 0 us, 1 all, 2 some, 3 others, 4 sent by us.
        packet_type: u16 = 16,
        /// The kind of device.
        device_type: u16 = 16,
        /// Number of bytes of the address that are used.
        address_len: u16 = 16,
        /// The sender's address.
        address: [u8; 8] = 64,
        /// EtherType of the payload.
        protocol: EtherType = 16,
    }
}

header! {
    /// Linux cooked capture, version 2.
    pub struct Sll2, Sll2Repr, Sll2Layout: Layer::Sll2, 20 bytes {
        /// EtherType of the payload.
        protocol: EtherType = 16,
        ~reserved = 16,
        /// The index of the interface.
        interface: u32 = 32,
        /// The kind of device.
        device_type: u16 = 16,
        /// Receiver of the packet: 0 us, 1 all, 2 some, 3 others, 4 sent by us.
        packet_type: u8 = 8,
        /// Number of bytes of the address that are used.
        address_len: u8 = 8,
        /// The sender's address.
        address: [u8; 8] = 64,
    }
}

header! {
    /// The header of a record in Endace's extensible record format.
    pub struct Erf, ErfRepr, ErfLayout: Layer::Erf, 16 bytes {
        /// Time: seconds and fraction as a 32.32 fixed-point number, least significant byte first.
        timestamp: [u8; 8] = 64,
        /// Whether extension headers follow.
        extended: bool = 1,
        /// Type of the record.
        kind: Bits<7> = 7,
        ~reserved = 2,
        /// The stream had an error.
        ds_error: bool = 1,
        /// The packet had an error.
        rx_error: bool = 1,
        /// The packet was cut for lack of room.
        truncated: bool = 1,
        /// Records vary in length.
        varying: bool = 1,
        /// The interface.
        interface: Bits<2> = 2,
        /// The length of the record, this header included.
        record_len: u16 = 16,
        /// Number of packets that were lost before this one.
        lost: u16 = 16,
        /// The length of the packet on the wire.
        wire_len: u16 = 16,
    }
}

impl Erf {
    /// Returns the time at which the packet was recorded, in nanoseconds since the epoch, rounded
    /// to the nearest.
    pub fn nanos(&self) -> u64 {
        let ticks = u64::from_le_bytes(self.timestamp());
        let (secs, fraction) = (ticks >> 32, ticks & 0xffff_ffff);
        secs * 1_000_000_000 + ((fraction * 1_000_000_000 + (1 << 31)) >> 32)
    }
}

/// Contents of an ERF record, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErfContent {
    Ethernet,
    Infiniband,
    Ip,
    Unknown,
}

impl ErfContent {
    pub(crate) fn of(kind: Bits<7>) -> Self {
        match kind.get() {
            2 | 11 | 16 | 20 => Self::Ethernet,
            21 => Self::Infiniband,
            22 | 23 => Self::Ip,
            _ => Self::Unknown,
        }
    }
}
