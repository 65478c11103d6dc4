//! Wire formats: every header of RoCE, from the link layer of captures to the messages of the
//! connection manager.
//!
//! There are two levels. A *view* ([`Bth`], [`Reth`], …) lies over bytes, accepts anything that is
//! long enough and keeps unknown values, so that broken packets can be shown and named. A
//! *repr* ([`BthRepr`], …) is a struct of typed fields that cannot hold what the wire cannot carry,
//! and emits itself. Both come from one declaration per header, written like its table in the
//! specification.
//!
//! - [`Opcode`] is the source of truth: which headers follow a BTH, who sends it, how much it may
//!   carry.
//! - [`Packet`] is everything from the BTH up; [`Frame`] is everything below it, and checks the
//!   ICRC.
//! - [`FrameRepr`] and [`PacketRepr`] build frames, with lengths, padding and checksums that fit.
//! - [`mad`] and [`cm`] hold management datagrams and the connection manager's messages.
//!
//! Nothing here allocates to parse, panics on input, or reads a clock.
//!
//! ```
//! use roce::wire::{Frame, IcrcVerdict, LinkType, Opcode, ROCE_PORT};
//!
//! // A congestion notification, captured from a ConnectX-4 Lx.
//! let frame: [u8; 74] = [
//!     0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00,
//!     0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00,
//!     0x11, 0x01, 0x0a, 0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00,
//!     0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
//!     0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
//!     0x82, 0xfd, 0x00, 0x2a,
//! ];
//! let frame = Frame::parse(LinkType::ETHERNET, &frame, ROCE_PORT);
//! let packet = frame.packet().expect("it is RoCE");
//! assert_eq!(packet.bth().opcode(), Opcode::CNP);
//! assert!(packet.bth().becn());
//! assert_eq!(frame.icrc(), Some(IcrcVerdict::Ok));
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod aeth;
pub(crate) mod batch;
mod bth;
pub mod cm;
mod error;
mod ethernet;
mod ext;
mod frame;
mod ib;
pub mod icrc;
mod identification;
mod ip;
pub mod layout;
mod link;
mod link_type;
pub mod mad;
mod num;
mod opcode;
mod operation;
mod packet;
mod path;
mod repr;
mod tunnel;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

pub(crate) use batch::flip_icrc;
pub use batch::{Batch, ICRC_ROOM, Outbound, PACKET_MAX, Received, Train};
pub use bth::*;
pub use error::{Layer, ParseError};
pub use ethernet::*;
pub use ext::*;
pub use frame::{
    CapturedTrain, Encapsulation, Frame, IcrcVerdict, Layers, Network, TRAIN_PACKETS_MAX,
};
pub use ib::*;
pub use ip::*;
pub use link::{Erf, ErfLayout, ErfRepr, Sll, Sll2, Sll2Layout, Sll2Repr, SllLayout, SllRepr};
pub use link_type::LinkType;
pub use num::*;
pub use opcode::{Headers, Opcode, OpcodeInfo, PayloadRule, Position, Receive, Role, Service};
pub use operation::{Operation, Response, Right};
pub use packet::{Extensions, HeadersMismatch, Packet, PacketRepr};
pub use path::{Path, PathHeaders, Prefixes, source_port};
pub use repr::{FrameRepr, NetworkRepr};
pub use tunnel::*;

/// A view of a header over its bytes.
pub trait Header: FromBytes + KnownLayout + Immutable + Unaligned {
    /// Name of the layer.
    const LAYER: Layer;
}

/// Returns the header that begins `offset` bytes into `bytes`.
#[inline]
pub fn view<H: Header>(bytes: &[u8], offset: usize) -> Result<&H, ParseError> {
    let rest = bytes.get(offset..).unwrap_or_default();
    match H::ref_from_prefix(rest) {
        Ok((header, _)) => Ok(header),
        Err(_) => {
            let (layer, needed) = (H::LAYER, size_of::<H>());
            Err(ParseError::Truncated { layer, offset, needed, have: rest.len() })
        }
    }
}
