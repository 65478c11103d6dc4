//! The kinds of queue pairs.

use core::fmt;

use bitflags::bitflags;

/// Transport service of a queue pair: `ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// The general services queue pair, number 1, through which connection managers talk. It is the
    /// kernel's: a program cannot ask for one, and verbs have no number for it, so this is the
    /// kernel's number.
    Gsi = 1,
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames.
    RawPacket = 8,
    /// The sending half of an extended reliable connection.
    XrcSend = 9,
    /// The receiving half of an extended reliable connection.
    XrcRecv = 10,
    /// Type reserved for drivers.
    Driver = 255,
}

impl QpType {
    /// Every kind, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Gsi,
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RawPacket,
        Self::XrcSend,
        Self::XrcRecv,
        Self::Driver,
    ];

    /// The number in C, and of [`Gsi`](Self::Gsi) in the kernel.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The kind a program means by this number, or `None` if there is none. [`Gsi`](Self::Gsi) is
    /// never the answer.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            2 => Some(Self::Rc),
            3 => Some(Self::Uc),
            4 => Some(Self::Ud),
            8 => Some(Self::RawPacket),
            9 => Some(Self::XrcSend),
            10 => Some(Self::XrcRecv),
            255 => Some(Self::Driver),
            _ => None,
        }
    }

    /// The name of the constant in C, and of [`Gsi`](Self::Gsi) in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gsi => "IB_QPT_GSI",
            Self::Rc => "IBV_QPT_RC",
            Self::Uc => "IBV_QPT_UC",
            Self::Ud => "IBV_QPT_UD",
            Self::RawPacket => "IBV_QPT_RAW_PACKET",
            Self::XrcSend => "IBV_QPT_XRC_SEND",
            Self::XrcRecv => "IBV_QPT_XRC_RECV",
            Self::Driver => "IBV_QPT_DRIVER",
        }
    }

    /// Returns the usual abbreviation.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Gsi => "GSI",
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
            Self::Driver => "DRIVER",
        }
    }

    /// Returns the set of this type alone.
    #[inline]
    pub const fn set(self) -> QpTypes {
        QpTypes::from_bits_retain(1 << (self as u8 & 15))
    }

    /// Whether every message is acknowledged, and retransmitted until it is.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        QpTypes::RELIABLE.contains(self.set())
    }

    /// Whether it has one peer, which its attributes name.
    #[inline]
    pub const fn is_connected(self) -> bool {
        QpTypes::CONNECTED.contains(self.set())
    }

    /// Whether each work request names its peer.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        QpTypes::DATAGRAM.contains(self.set())
    }

    /// Whether sends can be posted. The receiving half of an extended reliable connection only
    /// answers.
    #[inline]
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, Self::XrcRecv)
    }

    /// Whether it can have a receive queue of its own. An extended reliable connection has none:
    /// its receiving half takes from the shared receive queue that each request names, and its
    /// sending half receives nothing.
    #[inline]
    pub const fn has_receive_queue(self) -> bool {
        !matches!(self, Self::XrcSend | Self::XrcRecv)
    }

    /// Whether it takes packets that a requester sent.
    #[inline]
    pub const fn is_responder(self) -> bool {
        !matches!(self, Self::XrcSend)
    }

    /// Whether a failed send stops the send queue alone, so that it can be in
    /// [`Sqe`](super::QpState::Sqe).
    #[inline]
    pub const fn can_stop_sending_alone(self) -> bool {
        matches!(self, Self::Uc | Self::Ud | Self::Gsi | Self::RawPacket)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

bitflags! {
    /// A set of kinds of queue pairs, each at the bit of its number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QpTypes: u16 {
        /// [`QpType::Gsi`].
        const GSI = 1 << 1;
        /// [`QpType::Rc`].
        const RC = 1 << 2;
        /// [`QpType::Uc`].
        const UC = 1 << 3;
        /// [`QpType::Ud`].
        const UD = 1 << 4;
        /// [`QpType::RawPacket`].
        const RAW_PACKET = 1 << 8;
        /// [`QpType::XrcSend`].
        const XRC_SEND = 1 << 9;
        /// [`QpType::XrcRecv`].
        const XRC_RECV = 1 << 10;
        /// [`QpType::Driver`].
        const DRIVER = 1 << 15;

        /// Both halves of an extended reliable connection.
        const XRC = Self::XRC_SEND.bits() | Self::XRC_RECV.bits();
        /// Types that acknowledge.
        const RELIABLE = Self::RC.bits() | Self::XRC.bits();
        /// Types with one peer.
        const CONNECTED = Self::RELIABLE.bits() | Self::UC.bits();
        /// Types whose work requests name their peers.
        const DATAGRAM = Self::UD.bits() | Self::GSI.bits();
    }
}

impl QpTypes {
    /// Whether this kind is one of them.
    #[inline]
    pub const fn has(self, qp_type: QpType) -> bool {
        self.contains(qp_type.set())
    }
}
