//! Management datagrams: the header they share, and the classes that this crate reads.

use core::fmt;

use super::layout::{header, whole_field};
use super::num::{Bits, Gid, PKey};
use super::{Layer, ParseError, cm, view};

/// The length of a management datagram.
pub const MAD_LEN: usize = 256;

header! {
    /// The header of a management datagram.
    pub struct MadHeader, MadHeaderRepr, MadHeaderLayout: Layer::Mad, 24 bytes {
        /// The version of the format, 1.
        base_version: u8 = 8,
        /// Management class.
        class: MgmtClass = 8,
        /// The version of the class.
        class_version: u8 = 8,
        /// Whether it is a response.
        response: bool = 1,
        /// Method.
        method: Bits<7> = 7,
        /// Status.
        status: u16 = 16,
        /// Field for the class to use.
        class_specific: u16 = 16,
        /// Transaction ID of a request and its response.
        transaction_id: u64 = 64,
        /// Attribute.
        attribute: AttributeId = 16,
        ~reserved = 16,
        /// Attribute modifier.
        attribute_modifier: u32 = 32,
    }
}

/// A class of management datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet management, routed by LID.
    pub const SUBNET_LID: Self = Self(0x01);
    /// Subnet administration.
    pub const SUBNET_ADMIN: Self = Self(0x03);
    /// Performance management.
    pub const PERFORMANCE: Self = Self(0x04);
    /// Communication management.
    pub const CM: Self = Self(0x07);
    /// Subnet management by directed route.
    pub const SUBNET_DIRECTED: Self = Self(0x81);
}

impl fmt::Display for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SUBNET_LID => f.write_str("SubnLid"),
            Self::SUBNET_ADMIN => f.write_str("SubnAdm"),
            Self::PERFORMANCE => f.write_str("Perf"),
            Self::CM => f.write_str("CM"),
            Self::SUBNET_DIRECTED => f.write_str("SubnDirected"),
            Self(other) => write!(f, "class {other:#04x}"),
        }
    }
}

/// Attribute of a management datagram. The same number means different things in different classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributeId(pub u16);

whole_field!(MgmtClass(u8), AttributeId(u16));

#[expect(missing_docs, reason = "each is named by the message it stands for")]
impl AttributeId {
    pub const CM_REQ: Self = Self(0x0010);
    pub const CM_MRA: Self = Self(0x0011);
    pub const CM_REJ: Self = Self(0x0012);
    pub const CM_REP: Self = Self(0x0013);
    pub const CM_RTU: Self = Self(0x0014);
    pub const CM_DREQ: Self = Self(0x0015);
    pub const CM_DREP: Self = Self(0x0016);
    pub const CM_SIDR_REQ: Self = Self(0x0017);
    pub const CM_SIDR_REP: Self = Self(0x0018);
    pub const CM_LAP: Self = Self(0x0019);
    pub const CM_APR: Self = Self(0x001a);
    pub const SM_INFO: Self = Self(0x0020);
    pub const SA_PATH_RECORD: Self = Self(0x0035);
}

impl AttributeId {
    /// Returns the name of the connection manager's message with this number.
    pub const fn cm_name(self) -> Option<&'static str> {
        Some(match self {
            Self::CM_REQ => "REQ",
            Self::CM_MRA => "MRA",
            Self::CM_REJ => "REJ",
            Self::CM_REP => "REP",
            Self::CM_RTU => "RTU",
            Self::CM_DREQ => "DREQ",
            Self::CM_DREP => "DREP",
            Self::CM_SIDR_REQ => "SIDR_REQ",
            Self::CM_SIDR_REP => "SIDR_REP",
            Self::CM_LAP => "LAP",
            Self::CM_APR => "APR",
            _ => return None,
        })
    }
}

/// A management datagram.
#[derive(Clone, Copy, Debug)]
pub struct Mad<'a> {
    /// The header.
    pub header: &'a MadHeader,
    /// Captured bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Mad<'a> {
    /// The datagram in `payload`.
    pub fn parse(payload: &'a [u8]) -> Result<Self, ParseError> {
        let header = view::<MadHeader>(payload, 0)?;
        Ok(Self { header, body: payload.get(MadHeader::LEN..).unwrap_or_default() })
    }

    /// The message of the connection manager, if this is one that is known.
    pub fn cm(&self) -> Result<Option<cm::Message<'a>>, ParseError> {
        if self.header.class() != MgmtClass::CM {
            return Ok(None);
        }
        cm::Message::parse(self.header.attribute(), self.body)
    }
}

impl fmt::Display for Mad<'_> {
    /// `CM REQ …`, or what the header says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ok(Some(message)) = self.cm() {
            return write!(f, "CM {message}");
        }
        if self.header.class() == MgmtClass::CM
            && let Some(name) = self.header.attribute().cm_name()
        {
            return write!(f, "CM {name}");
        }
        let (class, method) = (self.header.class(), self.header.method());
        write!(
            f,
            "{class} method {:#04x} attribute {:#06x}",
            method.get(),
            self.header.attribute().0
        )
    }
}

// What native InfiniBand captures hold besides: enough of subnet management to show it field by
// field.

header! {
    /// Subnet management by directed route: what stands between MAD header and attribute.
    pub struct SmpDirected, SmpDirectedRepr, SmpDirectedLayout: Layer::Mad, 40 bytes {
        /// The management key.
        mkey: u64 = 64,
        /// The LID at the source end of the directed route.
        dr_slid: u16 = 16,
        /// The LID at its destination end.
        dr_dlid: u16 = 16,
        ~reserved = 224,
    }
}

header! {
    /// Subnet management routed by LID: what stands between MAD header and attribute.
    pub struct SmpLid, SmpLidRepr, SmpLidLayout: Layer::Mad, 40 bytes {
        /// The management key.
        mkey: u64 = 64,
        ~reserved = 256,
    }
}

header! {
    /// The state of a subnet manager.
    pub struct SmInfo, SmInfoRepr, SmInfoLayout: Layer::Mad, 24 bytes {
        /// GUID of its port.
        guid: u64 = 64,
        /// Management key.
        sm_key: u64 = 64,
        /// Activity counter.
        act_count: u32 = 32,
        /// Priority.
        priority: Bits<4> = 4,
        /// State of the subnet manager.
        state: Bits<4> = 4,
        ~reserved = 24,
    }
}

header! {
    /// The reliable multi-packet protocol.
    pub struct Rmpp, RmppRepr, RmppLayout: Layer::Mad, 12 bytes {
        /// The version.
        version: u8 = 8,
        /// The kind of packet.
        kind: u8 = 8,
        /// Time until the response.
        response_time: Bits<5> = 5,
        /// Flags.
        flags: Bits<3> = 3,
        /// Status.
        status: u8 = 8,
        /// Depends on the kind.
        data1: u32 = 32,
        /// Depends on the kind.
        data2: u32 = 32,
    }
}

header! {
    /// Subnet administration: what stands between RMPP header and attribute.
    pub struct Sa, SaRepr, SaLayout: Layer::Mad, 20 bytes {
        /// The subnet manager's key.
        sm_key: u64 = 64,
        /// The distance between attributes, in units of eight bytes.
        attribute_offset: u16 = 16,
        ~reserved = 16,
        /// Mask of the attribute's fields that are used.
        component_mask: u64 = 64,
    }
}

header! {
    /// A path between two ports.
    pub struct PathRecord, PathRecordRepr, PathRecordLayout: Layer::Mad, 64 bytes {
        ~service_id = 64,
        /// Destination address.
        dgid: Gid = 128,
        /// Source address.
        sgid: Gid = 128,
        /// Destination port.
        dlid: u16 = 16,
        /// Source port.
        slid: u16 = 16,
        /// Whether packets that are not InfiniBand's may use it.
        raw_traffic: bool = 1,
        ~reserved0 = 3,
        /// The flow.
        flow_label: Bits<20> = 20,
        /// Maximum number of hops.
        hop_limit: u8 = 8,
        /// The traffic class.
        traffic_class: u8 = 8,
        /// Whether the path serves both directions.
        reversible: bool = 1,
        /// Number of paths that are requested.
        paths: Bits<7> = 7,
        /// The partition.
        pkey: PKey = 16,
        ~reserved1 = 12,
        /// The service level.
        sl: Bits<4> = 4,
        /// Comparison of the MTU.
        mtu_selector: Bits<2> = 2,
        /// The MTU.
        mtu: Bits<6> = 6,
        /// Comparison of the rate.
        rate_selector: Bits<2> = 2,
        /// The rate.
        rate: Bits<6> = 6,
        /// Comparison of the life time.
        life_time_selector: Bits<2> = 2,
        /// Maximum life time of a packet.
        life_time: Bits<6> = 6,
        /// Preference among several paths.
        preference: u8 = 8,
        ~reserved2 = 48,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_says_what_it_is_about() {
        let words = |class, method, attribute| {
            let mut bytes = [0; MAD_LEN];
            (bytes[1], bytes[3], bytes[17]) = (class, method, attribute);
            Mad::parse(&bytes).unwrap().to_string()
        };
        assert_eq!(words(0x07, 0x03, 0x14), "CM RTU id 0x00000000 to 0x00000000");
        assert_eq!(words(0x07, 0x03, 0x01), "CM method 0x03 attribute 0x0001");
        assert_eq!(words(0x01, 0x81, 0x20), "SubnLid method 0x01 attribute 0x0020");
        assert_eq!(words(0x03, 0x01, 0x35), "SubnAdm method 0x01 attribute 0x0035");
        assert_eq!(words(0x04, 0x01, 0x12), "Perf method 0x01 attribute 0x0012");
        assert_eq!(words(0x81, 0x01, 0x11), "SubnDirected method 0x01 attribute 0x0011");
        assert_eq!(words(0x2a, 0x7f, 0xff), "class 0x2a method 0x7f attribute 0x00ff");
    }

    #[test]
    fn a_message_that_is_cut_is_an_error_and_not_a_panic() {
        let mut bytes = [0; MAD_LEN - 1];
        (bytes[1], bytes[17]) = (0x07, 0x14);
        let mad = Mad::parse(&bytes).unwrap();
        assert_eq!(mad.cm().unwrap_err().to_string(), "CM: need 232 bytes at offset 0, have 231");
        assert_eq!(mad.to_string(), "CM RTU");
    }
}
