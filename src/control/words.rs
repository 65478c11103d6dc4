//! Numbers and addresses of RDMA in messages: how serde writes them, and which values it refuses.
//!
//! A GID is text, as an IPv6 address; an MTU its bytes; QPN and PSN have 24 bits.

use core::fmt::Display;
use std::net::Ipv6Addr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::verbs::{Endpoint, Mtu};
use crate::wire::{Gid, Psn, QKey, Qpn, RKey};

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Ipv6Addr::from(self.0))
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ipv6Addr::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for Mtu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = usize::deserialize(deserializer)?;
        Self::from_bytes(bytes).ok_or_else(|| D::Error::custom(format_args!("{bytes} is no MTU")))
    }
}

/// Returns a number of at most `bits` bits.
fn bounded<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: impl Display,
    bits: u32,
) -> Result<u32, D::Error> {
    let value = u64::deserialize(deserializer)?;
    let fits = value >> bits == 0;
    let value = u32::try_from(value).ok().filter(|_| fits);
    value.ok_or_else(|| D::Error::custom(format_args!("{what} has at most {bits} bits")))
}

macro_rules! numbers {
    ($($type:ty: $bits:literal, $what:literal;)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.get().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                bounded(deserializer, $what, $bits).map(Self::new)
            }
        }
    )*};
}

numbers! {
    Qpn: 24, "a QPN";
    Psn: 24, "a PSN";
    RKey: 32, "an R_Key";
    QKey: 32, "a Q_Key";
}

/// An [`Endpoint`] in a message.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointFields {
    gid: Gid,
    qpn: Qpn,
    psn: Psn,
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { gid, qpn, psn } = *self;
        EndpointFields { gid, qpn, psn }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let EndpointFields { gid, qpn, psn } = EndpointFields::deserialize(deserializer)?;
        Ok(Self { gid, qpn, psn })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn endpoint_is_read_as_it_is_written() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        let endpoint = Endpoint { gid, qpn: Qpn::new(0xab_cdef), psn: Psn::new(7) };
        let text = serde_json::to_string(&endpoint).unwrap();
        assert_eq!(text, r#"{"gid":"::ffff:10.0.0.1","qpn":11259375,"psn":7}"#);
        assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint);
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        fn refused<T: for<'de> Deserialize<'de>>(text: &str) -> String {
            serde_json::from_str::<T>(text).map(drop).unwrap_err().to_string()
        }
        assert!(refused::<Qpn>("16777216").starts_with("a QPN has at most 24 bits"));
        assert!(refused::<RKey>("4294967296").starts_with("an R_Key has at most 32 bits"));
        assert!(refused::<Psn>("18446744073709551615").contains("24 bits"));
        assert!(refused::<Mtu>("1000").starts_with("1000 is no MTU"));
        assert!(refused::<Gid>("\"10.0.0.1\"").contains("IPv6"));
        for text in ["-1", "1.5", "\"1\"", "null", "1e3", "+1"] {
            refused::<Qpn>(text);
        }
    }
}
