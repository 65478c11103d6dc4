//! Every field the decoder knows, a table a layer.

/// Declares tables of fields, each of one header: `NAME: Header { entries }`. An entry calls a
/// constructor of [`Field`]: `bits` and `scaled` name a field of the header, or `first..=last` if
/// several are shown as one; `range` takes other bits. A `hidden` entry is shown only on request.
macro_rules! fields {
    ($($table:ident: $header:ident { $($($kind:ident)+ ($($args:tt)*);)* })*) => {$(
        pub(in crate::decode) const $table: &[$crate::decode::field::Field] =
            &[$(field!($header $($kind)+ ($($args)*))),*];
    )*};
}

/// One entry of [`fields`].
macro_rules! field {
    ($header:ident hidden $kind:ident ($($args:tt)*)) => {
        field!($header $kind ($($args)*)).hidden()
    };
    ($header:ident bits ($name:expr, $label:expr, $first:ident..=$last:ident, $($show:tt)+)) => {
        field!($header range (
            $name, $label, $header::LAYOUT.$first.through($header::LAYOUT.$last), $($show)+
        ))
    };
    ($header:ident bits ($name:expr, $label:expr, $field:ident, $($show:tt)+)) => {
        field!($header range ($name, $label, $header::LAYOUT.$field, $($show)+))
    };
    ($header:ident range ($name:expr, $label:expr, $bits:expr, $($show:tt)+)) => {
        $crate::decode::field::Field::bits(
            $name, $label, $bits, $crate::decode::field::Show::$($show)+
        )
    };
    ($header:ident scaled ($name:expr, $label:expr, $field:ident, $unit:expr)) => {
        $crate::decode::field::Field::scaled($name, $label, $header::LAYOUT.$field, $unit)
    };
    ($header:ident computed
        ($name:expr, $label:expr, $show:ident $(($digits:literal))?, $value:expr)) => {
        $crate::decode::field::Field::computed(
            $name, $label, $crate::decode::field::Show::$show $(($digits))?, $value
        )
    };
    ($header:ident $kind:ident ($($args:tt)*)) => {
        $crate::decode::field::Field::$kind($($args)*)
    };
}

mod cm;
mod ip;
mod link;
mod mad;
mod transport;
mod tunnel;

use super::field::Field;

/// The fields of a layer.
#[derive(Debug)]
pub(super) struct Table {
    /// Name of the layer.
    pub(super) title: &'static str,
    /// Fields, in the order in which they are shown.
    pub(super) fields: &'static [Field],
}

macro_rules! tables {
    ($($id:ident: $title:literal, $room:ident::$fields:ident;)*) => {
        /// A table, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum TableId {
            $($id,)*
        }

        /// All tables.
        pub(super) static TABLES: &[Table] = &[
            $(Table { title: $title, fields: $room::$fields },)*
        ];

        impl TableId {
            /// All of them, in the order of [`TABLES`].
            pub(super) const ALL: &[Self] = &[$(Self::$id,)*];
        }
    };
}

tables! {
    Frame: "Frame", link::FRAME;
    Erf: "Extensible Record Format", link::ERF;
    Sll: "Linux cooked capture v1", link::SLL;
    Sll2: "Linux cooked capture v2", link::SLL2;
    Ethernet: "Ethernet", link::ETHERNET;
    ServiceVlan: "802.1ad Virtual LAN", link::SERVICE_VLAN;
    Vlan: "802.1Q Virtual LAN", link::VLAN;
    Lrh: "Local Route Header", transport::LRH;
    Grh: "Global Route Header", transport::GRH;
    Ipv4: "Internet Protocol Version 4", ip::IPV4;
    Ipv6: "Internet Protocol Version 6", ip::IPV6;
    Ipv6Extension: "IPv6 Extension Header", ip::IPV6_EXTENSION;
    Udp: "User Datagram Protocol", ip::UDP;
    Vxlan: "Virtual eXtensible Local Area Network", tunnel::VXLAN;
    Geneve: "Generic Network Virtualization Encapsulation", tunnel::GENEVE;
    Gre: "Generic Routing Encapsulation", tunnel::GRE;
    Erspan1: "Encapsulated Remote Switch Packet Analysis Type I", tunnel::ERSPAN1;
    Erspan2: "Encapsulated Remote Switch Packet Analysis Type II", tunnel::ERSPAN2;
    Erspan3: "Encapsulated Remote Switch Packet Analysis Type III", tunnel::ERSPAN3;
    Mpls: "MultiProtocol Label Switching", tunnel::MPLS;
    Bth: "Base Transport Header", transport::BTH;
    Rdeth: "RDETH - Reliable Datagram Extended Transport Header", transport::RDETH;
    Deth: "DETH - Datagram Extended Transport Header", transport::DETH;
    Xrceth: "XRCETH - XRC Extended Transport Header", transport::XRCETH;
    Feth: "FETH - Flush Extended Transport Header", transport::FETH;
    Reth: "RETH - RDMA Extended Transport Header", transport::RETH;
    AtomicEth: "AtomicETH - Atomic Extended Transport Header", transport::ATOMIC_ETH;
    Aeth: "AETH - ACK Extended Transport Header", transport::AETH;
    AtomicAckEth: "AtomicAckETH - Atomic ACK Extended Transport Header", transport::ATOMIC_ACK_ETH;
    ImmDt: "ImmDt - Immediate Data", transport::IMM_DT;
    Ieth: "IETH - Invalidate Extended Transport Header", transport::IETH;
    SackEth: "SackETH - Selective Acknowledge Extended Transport Header", transport::SACK_ETH;
    Payload: "Payload", transport::PAYLOAD;
    Pad: "Padding", transport::PAD;
    Icrc: "Invariant CRC", transport::ICRC;
    Vcrc: "Variant CRC", transport::VCRC;
    Mad: "MAD - Management Datagram", mad::MAD;
    MadBody: "MAD Data", mad::MAD_BODY;
    CmReq: "CM ConnectRequest", cm::CM_REQ;
    IpCm: "RDMA CM Request Header", cm::IP_CM;
    CmMra: "CM MsgRcptAck", cm::CM_MRA;
    CmRej: "CM ConnectReject", cm::CM_REJ;
    CmRep: "CM ConnectReply", cm::CM_REP;
    CmRtu: "CM ReadyToUse", cm::CM_RTU;
    CmDreq: "CM DisconnectRequest", cm::CM_DREQ;
    CmDrep: "CM DisconnectReply", cm::CM_DREP;
    CmLap: "CM LoadAlternatePath", cm::CM_LAP;
    CmApr: "CM AlternatePathResponse", cm::CM_APR;
    CmSidrReq: "CM ServiceIDResReq", cm::CM_SIDR_REQ;
    SidrIpCm: "RDMA CM Request Header", cm::SIDR_IP_CM;
    CmSidrRep: "CM ServiceIDResReqResp", cm::CM_SIDR_REP;
    SmpDirected: "SMP (Directed Route)", mad::SMP_DIRECTED;
    SmpLid: "SMP (LID Routed)", mad::SMP_LID;
    SmInfo: "SMInfo", mad::SM_INFO;
    Rmpp: "RMPP Header", mad::RMPP;
    Sa: "SA Packet", mad::SA;
    PathRecord: "PathRecord", mad::PATH_RECORD;
    Cnp: "Congestion Notification", transport::CNP;
    Roce: "RoCE", transport::ROCE;
    Trailer: "Remarks", transport::TRAILER;
}

impl TableId {
    /// The table itself.
    #[inline]
    pub(super) fn table(self) -> &'static Table {
        &TABLES[self as usize]
    }

    /// Whether a frame can have several such layers without a tunnel, so that its fields can have
    /// several values. With tunnels any layer below the BTH can stand more than once.
    pub(super) fn repeats(self) -> bool {
        matches!(self, Self::ServiceVlan | Self::Vlan | Self::Ipv6Extension | Self::Mpls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_name_of_a_known_kind() {
        for field in TABLES.iter().flat_map(|table| table.fields) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
            assert!(field.name.chars().all(plain), "{}", field.name);
            assert!(!field.label.is_empty(), "{}", field.name);
        }
    }

    #[test]
    fn a_shown_field_has_one_value_in_a_layer() {
        for table in TABLES {
            let shown = || table.fields.iter().filter(|field| !field.hidden);
            for field in shown() {
                let same = shown().filter(|other| other.name == field.name).count();
                assert_eq!(same, 1, "{} in {}", field.name, table.title);
            }
        }
    }
}
