//! `-q`: connections that are shown packet by packet.

use std::net::IpAddr;
use std::str::FromStr;

use roce::analysis::{Connection, FlowNumber};
use roce::wire::Gid;

/// Connection that the user names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    Number(FlowNumber),
    Qpn(u32),
    Address(Gid),
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix('#') {
            let number = number
                .parse()
                .map_err(|_| format!("'{text}' is no number of a connection, as in #3"))?;
            return Ok(Self::Number(number));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(match address {
                IpAddr::V4(address) => address.into(),
                IpAddr::V6(address) => address.into(),
            }));
        }
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let number = digits.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
        number.map(Self::Qpn).map_err(|_| {
            format!("'{text}' is neither a queue pair (0x11), nor an address (10.9.0.1), nor the number of a connection (#3)")
        })
    }
}

impl Selector {
    /// Whether it selects this connection.
    pub(super) fn matches(self, connection: &Connection) -> bool {
        match self {
            Self::Number(number) => connection.flow == number,
            Self::Qpn(qpn) => {
                connection.ends.iter().any(|end| end.qpn.is_some_and(|found| found.get() == qpn))
            }
            Self::Address(address) => connection.ends.iter().any(|end| end.address == address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_by_number_queue_pair_or_address() {
        assert_eq!("#3".parse(), Ok(Selector::Number(FlowNumber(3))));
        assert_eq!("0x11".parse(), Ok(Selector::Qpn(17)));
        assert_eq!("17".parse(), Ok(Selector::Qpn(17)));
        let address = Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!("10.9.0.1".parse(), Ok(Selector::Address(address)));
        assert!(matches!("fe80::1".parse(), Ok(Selector::Address(_))));
        assert!("qp17".parse::<Selector>().unwrap_err().contains("0x11"));
        assert!("#".parse::<Selector>().is_err());
    }
}
