//! Which of several processes at one address answers what none of them knows.
//!
//! On raw links, processes share addresses, and each sees every MAD. A message for a comm id or a listener is answered by
//! the process that has it. A message for neither is answered by the eldest process on that address, once it has made sure
//! that no other one has what it is for. All of this is agreed on by abstract Unix sockets, which exist per network
//! namespace, need no privilege and are gone with their process:
//!
//! | name | bound by |
//! |---|---|
//! | `roce cm eldest ADDRESS` | the eldest |
//! | `roce cm ids ADDRESS PREFIX` | the process whose comm ids begin with this prefix |
//! | `roce cm listen SPACE ADDRESS PORT` | a process that listens there; the address may be a wildcard |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use super::nics::address_of;
use crate::cm::{Addressee, Error, Manager, Unclaimed};
use crate::wire::cm::PortSpace;

const WILDCARDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The names that a process has bound.
#[derive(Debug)]
pub(super) struct Registry {
    /// The upper half of the comm ids of this process.
    prefix: u16,
    eldest: BTreeMap<IpAddr, UnixDatagram>,
    ids: BTreeMap<IpAddr, UnixDatagram>,
    listeners: BTreeMap<String, Option<UnixDatagram>>,
    generation: Option<u64>,
}

fn name(text: &str) -> Option<UnixAddr> {
    UnixAddr::from_abstract_name(text).ok()
}

/// Binds a name; `None` if another process has it.
fn bind(text: &str) -> Option<UnixDatagram> {
    UnixDatagram::bind_addr(&name(text)?).ok()
}

/// Whether any process has a name.
fn is_bound(text: &str) -> bool {
    let (Some(name), Ok(socket)) = (name(text), UnixDatagram::unbound()) else { return false };
    socket.connect_addr(&name).is_ok()
}

fn ids_name(address: IpAddr, prefix: u16) -> String {
    format!("roce cm ids {address} {prefix:04x}")
}

fn listener_name(space: PortSpace, address: IpAddr, port: u16) -> String {
    format!("roce cm listen {} {address} {port}", space.0)
}

impl Registry {
    pub(super) fn new(prefix: u16) -> Self {
        Self {
            prefix,
            eldest: BTreeMap::new(),
            ids: BTreeMap::new(),
            listeners: BTreeMap::new(),
            generation: None,
        }
    }

    /// Returns the upper half of the comm ids of this process.
    pub(super) fn prefix(&self) -> u16 {
        self.prefix
    }

    /// Tells other processes that comm ids with the own prefix are this one's, on every address of a shared NIC.
    pub(super) fn join(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        for address in addresses {
            if let Some(bound) = bind(&ids_name(address, self.prefix)) {
                self.ids.insert(address, bound);
            }
            // The first one on an address is the eldest.
            self.is_eldest(address);
        }
    }

    /// Whether another process listens where one at `address` would conflict with it: the error that Linux gives, as for two
    /// ids of one process.
    pub(super) fn conflict(&self, space: PortSpace, address: SocketAddr) -> Result<(), Error> {
        let (ip, port) = (address.ip(), address.port());
        let is_shared = self.ids.contains_key(&ip) || ip.is_unspecified() && !self.ids.is_empty();
        if port == 0 || !is_shared {
            return Ok(());
        }
        let is_anothers = |ip| {
            let name = listener_name(space, ip, port);
            !self.listeners.contains_key(&name) && is_bound(&name)
        };
        if !ip.is_unspecified() && is_anothers(ip) {
            return Err(Error::AddressInUse);
        }
        let is_same_family = |other: &IpAddr| other.is_ipv4() == ip.is_ipv4();
        let wildcards = WILDCARDS.into_iter().filter(is_same_family);
        let others = self.ids.keys().copied().filter(|_| ip.is_unspecified());
        if wildcards.chain(others.filter(is_same_family)).any(is_anothers) {
            return Err(Error::AddressNotAvailable);
        }
        Ok(())
    }

    /// Takes the name of a listener before it listens.
    pub(super) fn claim(&mut self, space: PortSpace, address: SocketAddr) -> Result<(), Error> {
        self.conflict(space, address)?;
        let (ip, port) = (address.ip(), address.port());
        let name = listener_name(space, ip, port);
        let is_shared = self.ids.contains_key(&ip) || ip.is_unspecified() && !self.ids.is_empty();
        if port == 0 || !is_shared || self.listeners.contains_key(&name) {
            return Ok(());
        }
        // Another process may have been quicker.
        let bound = bind(&name).ok_or(Error::AddressInUse)?;
        self.listeners.insert(name, Some(bound));
        // A listener that fails after all gives its name back.
        self.generation = None;
        Ok(())
    }

    /// Tells other processes where this one listens.
    pub(super) fn update_listeners(&mut self, manager: &Manager) {
        let generation = manager.listener_generation();
        if self.ids.is_empty() || self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let mut before = std::mem::take(&mut self.listeners);
        for (space, address) in manager.listeners() {
            let name = listener_name(space, address.ip(), address.port());
            let bound = before.remove(&name).flatten().or_else(|| bind(&name));
            self.listeners.insert(name, bound);
        }
    }

    /// Whether this process is the eldest on an address. It becomes so when the one before has gone.
    fn is_eldest(&mut self, address: IpAddr) -> bool {
        if self.eldest.contains_key(&address) {
            return true;
        }
        let bound = bind(&format!("roce cm eldest {address}"));
        bound.map(|bound| self.eldest.insert(address, bound)).is_some()
    }

    /// Whether this process answers a message that none of its ids knows.
    pub(super) fn answers(&mut self, unclaimed: &Unclaimed) -> bool {
        let address = address_of(unclaimed.destination);
        let is_anothers = match unclaimed.addressee {
            Addressee::Listener(space, port) => {
                let names = [address].into_iter().chain(WILDCARDS);
                // A name of this process is that of a listener on another of its addresses.
                names
                    .map(|address| listener_name(space, address, port))
                    .any(|name| !self.listeners.contains_key(&name) && is_bound(&name))
            }
            Addressee::CommId(id) => {
                let prefix = u16::try_from(id.0 >> 16).unwrap_or(0);
                if prefix == self.prefix {
                    // It was this process's own.
                    return true;
                }
                is_bound(&ids_name(address, prefix))
            }
        };
        !is_anothers && self.is_eldest(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{DeviceId, Transmit};
    use crate::verbs::AhAttr;
    use crate::wire::Gid;
    use crate::wire::cm::CommId;

    fn unclaimed(addressee: Addressee, address: Ipv4Addr) -> Unclaimed {
        let ah = AhAttr::default();
        let answer = Transmit { device: DeviceId::from_number(0), ah, mad: [0; 256] };
        Unclaimed { addressee, destination: Gid::from(address), answer }
    }

    #[test]
    fn eldest_answers_what_no_process_has_and_the_next_one_inherits() {
        let address = Ipv4Addr::new(127, 19, 0, 1);
        let (mut first, mut second) = (Registry::new(0x1111), Registry::new(0x2222));
        first.join([address.into()].into_iter());
        second.join([address.into()].into_iter());
        let of = |id: u32| unclaimed(Addressee::CommId(CommId(id)), address);
        // Each answers for its own prefix, and the eldest for what has no owner.
        for (id, answers) in [
            (0x1111_0001, [true, false]),
            (0x2222_0001, [false, true]),
            (0x3333_0001, [true, false]),
        ] {
            assert_eq!([first.answers(&of(id)), second.answers(&of(id))], answers, "{id:x}");
        }
        let service = unclaimed(Addressee::Listener(PortSpace::TCP, 7174), address);
        assert_eq!([first.answers(&service), second.answers(&service)], [true, false]);
        let listener = listener_name(PortSpace::TCP, Ipv4Addr::UNSPECIFIED.into(), 7174);
        second.listeners.insert(listener.clone(), bind(&listener));
        assert_eq!([first.answers(&service), second.answers(&service)], [false, false]);
        // What one listens at, the other cannot; but for the address of a NIC that is not shared.
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        for (address, claimed) in [
            ("127.19.0.1:7174", Err(Error::AddressNotAvailable)),
            ("0.0.0.0:7174", Err(Error::AddressNotAvailable)),
            ("127.19.0.2:7174", Ok(())),
            ("[::]:7174", Ok(())),
            ("127.19.0.1:7175", Ok(())),
        ] {
            assert_eq!(first.claim(PortSpace::TCP, at(address)), claimed, "{address}");
        }
        assert_eq!(first.claim(PortSpace::TCP, at("127.19.0.1:7175")), Ok(()), "its own");
        for (address, claimed) in [
            ("127.19.0.1:7175", Err(Error::AddressInUse)),
            ("0.0.0.0:7175", Err(Error::AddressNotAvailable)),
        ] {
            assert_eq!(second.claim(PortSpace::TCP, at(address)), claimed, "{address}");
            assert_eq!(second.claim(PortSpace::UDP, at(address)), Ok(()), "{address}");
        }
        drop(first);
        assert_eq!(second.claim(PortSpace::TCP, at("127.19.0.1:7175")), Ok(()));
        assert!(second.answers(&of(0x3333_0001)) && second.answers(&of(0x1111_0001)));
    }
}
