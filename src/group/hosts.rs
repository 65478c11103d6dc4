//! The servers of a group.

use std::net::SocketAddr;
use std::str::FromStr;

use super::error::Error;
use super::limits::SERVERS_MAX;

/// The list of servers that all of them have: the number of a server is its place in the list.
///
/// ```
/// use roce::group::Hosts;
///
/// let hosts: Hosts = "192.0.2.1:7000, 192.0.2.2:7000,192.0.2.3:7000".parse()?;
/// assert_eq!((hosts.len(), hosts.get(1)), (3, Some("192.0.2.2:7000".parse().unwrap())));
/// assert_eq!(hosts.to_string(), "192.0.2.1:7000,192.0.2.2:7000,192.0.2.3:7000");
/// assert!("192.0.2.1:7000,192.0.2.1:7000".parse::<Hosts>().is_err(), "each is there once");
/// # Ok::<(), roce::group::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<SocketAddr>);

impl Hosts {
    /// The servers at these addresses, in this order.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Result<Self, Error> {
        let addresses: Vec<SocketAddr> = addresses.into_iter().take(SERVERS_MAX + 1).collect();
        let wrong = |what: String| Err(Error::Hosts(what));
        if addresses.is_empty() || addresses.len() > SERVERS_MAX {
            return wrong(format!("a group has 1 to {SERVERS_MAX} servers"));
        }
        for (at, address) in addresses.iter().enumerate() {
            if addresses.iter().take(at).any(|before| before == address) {
                return wrong(format!("{address} is there twice"));
            }
            if address.port() == 0 {
                return wrong(format!("{address} has no port: the other servers must know it"));
            }
        }
        Ok(Self(addresses))
    }

    /// Returns the number of servers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none, which cannot be.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the address of a server.
    pub fn get(&self, server: usize) -> Option<SocketAddr> {
        self.0.get(server).copied()
    }

    /// Returns the address of the server that this one is to be.
    pub(super) fn own(&self, own: usize) -> Result<SocketAddr, Error> {
        let last = self.len().saturating_sub(1);
        let wrong = || Error::Hosts(format!("it has servers 0 to {last}, and no server {own}"));
        self.get(own).ok_or_else(wrong)
    }
}

impl FromStr for Hosts {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = |part: &str| {
            let part = part.trim();
            part.parse().map_err(|_| {
                Error::Hosts(format!("'{part}' is not ADDRESS:PORT; a list is ADDRESS:PORT,…"))
            })
        };
        Self::new(text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?)
    }
}

impl std::fmt::Display for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, address) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}
