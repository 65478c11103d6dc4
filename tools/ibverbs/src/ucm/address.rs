//! Socket addresses, as C has them.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::call::{Failed, Result};

/// The family of native InfiniBand addresses, and the length of its `sockaddr_ib`.
const AF_IB: u16 = 27;
const SOCKADDR_IB_LEN: usize = 48;

/// The length of a `sockaddr_in6`.
const SOCKADDR_IN6_LEN: usize = 28;

/// An address of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An IP address.
    Ip(SocketAddr),
    /// An InfiniBand address: no device here has one but the wildcard.
    Ib([u8; SOCKADDR_IB_LEN]),
}

impl Address {
    /// The address at the beginning of a structure, if its family is known.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let family = u16::from_ne_bytes(part(bytes, 0)?);
        match c_int::from(family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(part::<4>(bytes, 4)?);
                Ok(Self::Ip(SocketAddrV4::new(ip, u16::from_be_bytes(part(bytes, 2)?)).into()))
            }
            libc::AF_INET6 => {
                let port = u16::from_be_bytes(part(bytes, 2)?);
                let flow = u32::from_be_bytes(part(bytes, 4)?);
                let ip = Ipv6Addr::from(part::<16>(bytes, 8)?);
                let scope = u32::from_ne_bytes(part(bytes, 24)?);
                // What getaddrinfo makes of an IPv4 address where only IPv6 is configured.
                if let Some(v4) = ip.to_ipv4_mapped() {
                    return Ok(Self::Ip(SocketAddrV4::new(v4, port).into()));
                }
                Ok(Self::Ip(SocketAddrV6::new(ip, port, flow, scope).into()))
            }
            _ if family == AF_IB => Ok(Self::Ib(part(bytes, 0)?)),
            _ => Err(Failed::EINVAL),
        }
    }

    /// Reads an address whose length the program says too.
    pub(super) fn read_sized(bytes: &[u8], len: u16) -> Result<Self> {
        let address = Self::read(bytes)?;
        let family = u16::from_ne_bytes(part(bytes, 0)?);
        let is_ipv6 = c_int::from(family) == libc::AF_INET6;
        let expected = if is_ipv6 { SOCKADDR_IN6_LEN } else { address.len() };
        if usize::from(len) == expected { Ok(address) } else { Err(Failed::EINVAL) }
    }

    /// Returns the length of its structure.
    fn len(&self) -> usize {
        match self {
            Self::Ip(SocketAddr::V4(_)) => 16,
            Self::Ip(SocketAddr::V6(_)) => SOCKADDR_IN6_LEN,
            Self::Ib(_) => SOCKADDR_IB_LEN,
        }
    }

    /// The address of IP, which all commands but BIND want.
    pub(super) fn ip(self) -> Result<SocketAddr> {
        match self {
            Self::Ip(address) => Ok(address),
            Self::Ib(_) => Err(Failed::ENODEV),
        }
    }

    /// Whether it stands for every address.
    pub(super) fn is_wildcard(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_unspecified(),
            Self::Ib(bytes) => {
                bytes.get(8..24).is_some_and(|gid| gid.iter().all(|byte| *byte == 0))
            }
        }
    }

    /// The structure, with zeros behind it, and its length. A structure that is too short gets as
    /// much as fits.
    pub(super) fn write<const N: usize>(&self) -> ([u8; N], u16) {
        let mut whole = [0; SOCKADDR_IB_LEN];
        match self {
            Self::Ip(SocketAddr::V4(v4)) => {
                put(&mut whole, 0, &family(libc::AF_INET));
                put(&mut whole, 2, &v4.port().to_be_bytes());
                put(&mut whole, 4, &v4.ip().octets());
            }
            Self::Ip(SocketAddr::V6(v6)) => {
                put(&mut whole, 0, &family(libc::AF_INET6));
                put(&mut whole, 2, &v6.port().to_be_bytes());
                put(&mut whole, 4, &v6.flowinfo().to_be_bytes());
                put(&mut whole, 8, &v6.ip().octets());
                put(&mut whole, 24, &v6.scope_id().to_ne_bytes());
            }
            Self::Ib(bytes) => whole = *bytes,
        }
        let mut bytes = [0; N];
        put(&mut bytes, 0, &whole);
        (bytes, u16::try_from(self.len()).unwrap_or_default())
    }

    /// The wildcard of the same family, without a port: what a peer's address is before there is a
    /// peer.
    pub(super) fn unspecified(&self) -> Self {
        match self {
            Self::Ip(SocketAddr::V4(_)) => {
                Self::Ip(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
            }
            Self::Ip(SocketAddr::V6(_)) => {
                Self::Ip(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))
            }
            Self::Ib(_) => {
                let mut bytes = [0; SOCKADDR_IB_LEN];
                put(&mut bytes, 0, &AF_IB.to_ne_bytes());
                Self::Ib(bytes)
            }
        }
    }
}

/// A `sockaddr_ib` with this GID and service id.
pub(super) fn ib(gid: [u8; 16], pkey: u16, service_id: u64) -> Address {
    let mut bytes = [0; SOCKADDR_IB_LEN];
    put(&mut bytes, 0, &AF_IB.to_ne_bytes());
    put(&mut bytes, 2, &pkey.to_be_bytes());
    put(&mut bytes, 8, &gid);
    put(&mut bytes, 24, &service_id.to_be_bytes());
    put(&mut bytes, 32, &u64::MAX.to_be_bytes());
    Address::Ib(bytes)
}

fn family(family: c_int) -> [u8; 2] {
    u16::try_from(family).unwrap_or_default().to_ne_bytes()
}

/// The bytes of a field.
fn part<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().ok_or(Failed::EINVAL)
}

/// Writes a field, as far as there is room.
fn put(to: &mut [u8], at: usize, field: &[u8]) {
    to.iter_mut().skip(at).zip(field).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in ["10.9.0.1:7174", "[fd00:9::1]:7174", "[fe80::1%3]:1", "0.0.0.0:0"] {
            let address = Address::Ip(text.parse().unwrap());
            let (bytes, len) = address.write::<128>();
            assert_eq!(Address::read_sized(&bytes, len), Ok(address));
            assert_eq!(Address::read_sized(&bytes, len - 1), Err(Failed::EINVAL));
            assert_eq!(Address::read(bytes.get(..usize::from(len)).unwrap()), Ok(address));
        }
        let (bytes, len) = Address::Ip("10.9.0.1:7174".parse().unwrap()).write::<28>();
        assert_eq!((bytes[..8].to_vec(), len), (vec![2, 0, 0x1c, 0x06, 10, 9, 0, 1], 16));
    }

    #[test]
    fn mapped_addresses_are_of_ipv4() {
        let (bytes, len) = Address::Ip("[::ffff:10.9.0.1]:7174".parse().unwrap()).write::<128>();
        let mapped = Address::read_sized(&bytes, len);
        assert_eq!(mapped, Ok(Address::Ip("10.9.0.1:7174".parse().unwrap())));
        assert_eq!(Address::read_sized(&bytes, 16), Err(Failed::EINVAL));
    }

    #[test]
    fn other_families_are_refused() {
        assert_eq!(Address::read(&[0; 128]), Err(Failed::EINVAL));
        assert_eq!(Address::read(&[1, 0]), Err(Failed::EINVAL));
        assert_eq!(Address::read(&[2, 0, 0]), Err(Failed::EINVAL), "too short");
        assert_eq!(Address::read(&[10; 27]), Err(Failed::EINVAL), "not the family");
        let wildcard = ib([0; 16], 0, 0x0106_0000);
        assert!(wildcard.is_wildcard() && !ib([1; 16], 0, 0).is_wildcard());
        assert_eq!(Address::read_sized(&wildcard.write::<128>().0, 48), Ok(wildcard));
    }
}
