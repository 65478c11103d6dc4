//! Addresses as C has them: `struct sockaddr_storage`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a `struct sockaddr_storage`.
const BYTES: usize = 128;

/// An address and port in the layout of C: the family in the order of the machine, the rest in the
/// order of the wire.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(in crate::rdma_nic) struct Storage([u8; BYTES]);

impl Storage {
    pub(super) const fn new(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns some of its bytes.
    fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    /// Returns the address and port; `None` if it is none of IP.
    pub(super) fn to_addr(self) -> Option<SocketAddr> {
        let family = i32::from(u16::from_ne_bytes(self.field(0)?));
        let port = u16::from_be_bytes(self.field(2)?);
        match family {
            libc::AF_INET => {
                Some(SocketAddr::new(Ipv4Addr::from(self.field::<4>(4)?).into(), port))
            }
            libc::AF_INET6 => {
                let flow = u32::from_be_bytes(self.field(4)?);
                let address = Ipv6Addr::from(self.field::<16>(8)?);
                let scope = u32::from_ne_bytes(self.field(24)?);
                Some(SocketAddrV6::new(address, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for Storage {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, field: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(field) {
                *to = *from;
            }
        };
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        put(0, &u16::try_from(family).unwrap_or_default().to_ne_bytes());
        put(2, &address.port().to_be_bytes());
        match (address.ip(), address) {
            (IpAddr::V4(v4), _) => put(4, &v4.octets()),
            (IpAddr::V6(v6), address) => {
                put(8, &v6.octets());
                if let SocketAddr::V6(whole) = address {
                    put(4, &whole.flowinfo().to_be_bytes());
                    put(24, &whole.scope_id().to_ne_bytes());
                }
            }
        }
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["192.0.2.7:7174", "[fe80::1%3]:9", "[fd00:9::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Storage::from(address).to_addr(), Some(address));
        }
        assert_eq!(Storage::new([0; BYTES]).to_addr(), None);
    }

    #[test]
    fn layout_is_that_of_libc() {
        assert_eq!(size_of::<Storage>(), size_of::<libc::sockaddr_storage>());
        assert_eq!(core::mem::offset_of!(libc::sockaddr_in, sin_port), 2);
        assert_eq!(core::mem::offset_of!(libc::sockaddr_in, sin_addr), 4);
        assert_eq!(core::mem::offset_of!(libc::sockaddr_in6, sin6_flowinfo), 4);
        assert_eq!(core::mem::offset_of!(libc::sockaddr_in6, sin6_addr), 8);
        assert_eq!(core::mem::offset_of!(libc::sockaddr_in6, sin6_scope_id), 24);
    }
}
