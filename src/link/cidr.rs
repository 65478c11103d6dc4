//! An address with the length of its prefix: `10.9.0.2/24`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, and the length of the prefix that its network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// Address of the host.
    pub address: IpAddr,
    /// Length of the prefix in bits: at most 32 for IPv4, 128 for IPv6.
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(drop)?;
        let prefix: u8 = prefix.parse().map_err(drop)?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        if prefix > max { Err(()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_sound_prefix_is_refused() {
        for text in ["10.9.0.2/24", "fd09::2/64", "10.9.0.2/0", "10.9.0.2/32", "::1/128"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        for text in ["10.9.0.2", "10.9.0.2/33", "::1/129", "10.9.0/24", "/24", "10.9.0.2/-1", ""] {
            assert_eq!(text.parse::<Cidr>(), Err(()), "{text}");
        }
    }
}
