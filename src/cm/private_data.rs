//! The private data of messages, and the IP header of the RDMA connection manager in front of it
//! (annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::error::Error;
use crate::wire::Bits;
use crate::wire::cm::{IpCm, IpCmRepr};

/// The most private data that any message delivers: that of a REP.
const MAX: usize = 196;

/// Maximum length of a program's private data, by message. It delivers as much, whatever was sent:
/// the receiver never learns the length, and sees zeros behind the data.
pub mod private_data_len {
    use crate::wire::cm::IpCm;

    /// Maximum length in a REQ, behind the IP header.
    pub const REQ: usize = 92 - IpCm::LEN;
    /// Maximum length in a REP.
    pub const REP: usize = 196;
    /// Maximum length in a REJ.
    pub const REJ: usize = 148;
    /// Maximum length in a SIDR_REQ, behind the IP header.
    pub const SIDR_REQ: usize = 216 - IpCm::LEN;
    /// Maximum length in a SIDR_REP.
    pub const SIDR_REP: usize = 136;
}

/// Private data that a message delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; MAX],
    len: u8,
}

impl PrivateData {
    /// No private data.
    pub const NONE: Self = Self { bytes: [0; MAX], len: 0 };

    /// The private data in a field of a message.
    pub(crate) fn of(field: &[u8]) -> Self {
        let mut data = Self::NONE;
        for (to, from) in data.bytes.iter_mut().zip(field) {
            *to = *from;
        }
        data.len = u8::try_from(field.len().min(MAX)).unwrap_or_default();
        data
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.as_slice().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "{} bytes {:02x?}", self.len, self.as_slice().get(..end).unwrap_or_default())
    }
}

/// The private data field of a message, of which the program may fill `max` bytes behind a
/// `header`.
pub(super) fn field<const N: usize>(
    header: &[u8],
    data: &[u8],
    max: usize,
) -> Result<[u8; N], Error> {
    if data.len() > max {
        return Err(Error::PrivateData { len: data.len(), max });
    }
    let mut bytes = [0; N];
    bytes.iter_mut().zip(header.iter().chain(data)).for_each(|(to, from)| *to = *from);
    Ok(bytes)
}

/// The IP header for a request from `source` to `destination`.
pub(super) fn ip_header(source: SocketAddr, destination: SocketAddr) -> IpCm {
    // Rule: C-02.1.
    let wide = |address: IpAddr| match address {
        IpAddr::V4(v4) => Ipv6Addr::from(u128::from(v4.to_bits())),
        IpAddr::V6(v6) => v6,
    };
    IpCmRepr {
        major: Bits::ZERO,
        minor: Bits::ZERO,
        ip_version: Bits::low(if source.is_ipv4() { 4 } else { 6 }),
        source_port: source.port(),
        source: wide(source.ip()),
        destination: wide(destination.ip()),
    }
    .emit()
}

/// Returns the addresses of a header: the source with its port, and the destination. `None` if the
/// version is not 0, the IP version odd, or an address cannot be one of a peer: unspecified,
/// multicast or broadcast.
pub(super) fn parse_ip_header(header: &IpCm) -> Option<(SocketAddr, IpAddr)> {
    // Rule: C-02.1.
    if (header.major(), header.minor()) != (Bits::ZERO, Bits::ZERO) {
        return None;
    }
    let (source, destination) = header.addresses()?;
    let unusable = |address: IpAddr| {
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        address.is_unspecified() || address.is_multicast() || broadcast
    };
    if unusable(source) || unusable(destination) {
        return None;
    }
    Some((SocketAddr::new(source, header.source_port()), destination))
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn data_beyond_the_field_is_refused() {
        assert_eq!(field::<8>(&[1; 4], &[2; 4], 4), Ok([1, 1, 1, 1, 2, 2, 2, 2]));
        assert_eq!(field::<8>(&[1; 4], &[2], 4), Ok([1, 1, 1, 1, 2, 0, 0, 0]));
        assert_eq!(field::<8>(&[1; 4], &[2; 5], 4), Err(Error::PrivateData { len: 5, max: 4 }));
    }

    #[test]
    fn header_survives_the_wire() {
        // Rule: C-02.1.
        for (from, to) in [("10.9.0.1:5", "10.9.0.2:0"), ("[fd00::1]:9", "[fd00::2]:0")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            assert_eq!(parse_ip_header(&ip_header(from, to)), Some((from, to.ip())));
        }
    }

    #[test]
    fn headers_that_name_no_peer_are_refused() {
        for (from, to) in [
            ("0.0.0.0:5", "10.9.0.2:0"),
            ("10.9.0.1:5", "224.0.0.1:0"),
            ("255.255.255.255:5", "10.9.0.2:0"),
            ("[ff02::1]:5", "[fd00::2]:0"),
            ("[fd00::1]:5", "[::]:0"),
        ] {
            let header = ip_header(from.parse().unwrap(), to.parse().unwrap());
            assert_eq!(parse_ip_header(&header), None, "{from} {to}");
        }
        let sound = ip_header("10.9.0.1:5".parse().unwrap(), "10.9.0.2:0".parse().unwrap());
        for (at, value) in [(0, 0x10), (0, 0x01), (1, 0x50), (1, 0x00)] {
            let mut bytes = *sound.as_bytes();
            bytes[at] = value;
            let header = zerocopy::transmute_ref!(&bytes);
            assert_eq!(parse_ip_header(header), None, "{value:#x} at {at}");
        }
    }
}
