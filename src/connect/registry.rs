//! Election among the processes at one address: one of them answers messages for connections that
//! none of them knows.
//!
//! On raw links, processes share addresses, and each sees every MAD. A message for a comm id or a
//! listener is answered by the process that has it. A message for neither is answered by the eldest
//! process on that address:
//!
//! - a request, once it has made sure that no other process listens there;
//! - a DREQ, if the peer retransmits it: an owner that lives has heard of the end, too, so the DREP
//!   does no harm;
//! - another message for a comm id, if no other process is there. Comm ids are random in all their
//!   bits and say nothing of their owner, so that no peer can guess them; an answer on behalf of an
//!   owner that lives would end its connection.
//!
//! All of this is agreed on by abstract Unix sockets, which exist per network namespace, need no
//! privilege and are gone with their process:
//!
//! | name | bound by |
//! |---|---|
//! | `roce cm eldest ADDRESS` | the eldest |
//! | `roce cm member ADDRESS NUMBER` | a process at this address, with the first number that is free |
//! | `roce cm listen SPACE ADDRESS PORT` | a process that listens there; the address may be a wildcard |

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Duration;

use super::nics::address_of;
use crate::cm::{Addressee, Error, Manager, Unclaimed};
use crate::time::Instant;
use crate::wire::Gid;
use crate::wire::cm::{CommId, PortSpace};

const WILDCARDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// Maximum number of processes at one address that know of each other.
const MEMBERS: u16 = 256;

/// Time that it is remembered whether other processes are at an address: a flood of unknown
/// messages must not make one look-up of all names each.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// DREQs for unknown connections that are remembered, to notice their retransmission.
const DREQS: usize = 256;

/// The names that a process has bound.
#[derive(Debug)]
pub(super) struct Registry {
    eldest: BTreeMap<IpAddr, UnixDatagram>,
    /// The own number at each address of a shared NIC.
    members: BTreeMap<IpAddr, Member>,
    listeners: BTreeMap<String, Option<UnixDatagram>>,
    generation: Option<u64>,
    /// The latest DREQs for unknown connections: the peer and the comm id.
    dreqs: VecDeque<(Gid, CommId)>,
}

/// A process at an address.
#[derive(Debug)]
struct Member {
    /// `None` if all numbers were taken.
    bound: Option<(u16, UnixDatagram)>,
    /// Whether other processes were there, and until when that counts.
    others: Option<(Instant, bool)>,
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

fn member_name(address: IpAddr, number: u16) -> String {
    format!("roce cm member {address} {number}")
}

fn listener_name(space: PortSpace, address: IpAddr, port: u16) -> String {
    format!("roce cm listen {} {address} {port}", space.0)
}

impl Member {
    fn join(address: IpAddr) -> Self {
        let free = |number| Some((number, bind(&member_name(address, number))?));
        Self { bound: (0..MEMBERS).find_map(free), others: None }
    }

    /// Whether no other process is at the address.
    fn is_alone(&mut self, address: IpAddr, now: Instant) -> bool {
        if let Some((until, others)) = self.others
            && now < until
        {
            return !others;
        }
        let own = self.bound.as_ref().map(|(number, _)| *number);
        let is_other = |number| Some(number) != own && is_bound(&member_name(address, number));
        let others = own.is_none() || (0..MEMBERS).any(is_other);
        self.others = Some((now.saturating_add(LOOK_AGAIN), others));
        !others
    }
}

impl Registry {
    pub(super) fn new() -> Self {
        Self {
            eldest: BTreeMap::new(),
            members: BTreeMap::new(),
            listeners: BTreeMap::new(),
            generation: None,
            dreqs: VecDeque::new(),
        }
    }

    /// Tells other processes that this one is at every address of a shared NIC.
    pub(super) fn join(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        for address in addresses {
            self.members.entry(address).or_insert_with(|| Member::join(address));
            // The first one on an address is the eldest.
            self.is_eldest(address);
        }
    }

    /// Whether another process listens where one at `address` would conflict with it: the error
    /// that Linux gives, as for two ids of one process.
    pub(super) fn conflict(&self, space: PortSpace, address: SocketAddr) -> Result<(), Error> {
        let (ip, port) = (address.ip(), address.port());
        let is_shared =
            self.members.contains_key(&ip) || ip.is_unspecified() && !self.members.is_empty();
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
        let others = self.members.keys().copied().filter(|_| ip.is_unspecified());
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
        let is_shared =
            self.members.contains_key(&ip) || ip.is_unspecified() && !self.members.is_empty();
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
        if self.members.is_empty() || self.generation == Some(generation) {
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

    /// Whether this process is the eldest on an address. It becomes so when the one before has
    /// gone.
    fn is_eldest(&mut self, address: IpAddr) -> bool {
        if self.eldest.contains_key(&address) {
            return true;
        }
        let bound = bind(&format!("roce cm eldest {address}"));
        bound.map(|bound| self.eldest.insert(address, bound)).is_some()
    }

    /// Whether this process answers a message that none of its ids knows.
    pub(super) fn answers(&mut self, unclaimed: &Unclaimed, now: Instant) -> bool {
        let address = address_of(unclaimed.destination);
        let is_free = match unclaimed.addressee {
            Addressee::Listener(space, port) => !self.is_listener_of_another(space, address, port),
            Addressee::CommId(_) => self.is_alone(address, now),
            Addressee::Disconnect(id) => {
                let is_repeated = self.note_dreq(unclaimed.answer.ah.dgid, id);
                is_repeated || self.is_alone(address, now)
            }
        };
        is_free && self.is_eldest(address)
    }

    fn is_listener_of_another(&self, space: PortSpace, address: IpAddr, port: u16) -> bool {
        let names = [address].into_iter().chain(WILDCARDS);
        // A name of this process is that of a listener on another of its addresses.
        names
            .map(|address| listener_name(space, address, port))
            .any(|name| !self.listeners.contains_key(&name) && is_bound(&name))
    }

    fn is_alone(&mut self, address: IpAddr, now: Instant) -> bool {
        self.members.get_mut(&address).is_none_or(|member| member.is_alone(address, now))
    }

    /// Remembers a DREQ; whether it came before.
    fn note_dreq(&mut self, peer: Gid, id: CommId) -> bool {
        if self.dreqs.contains(&(peer, id)) {
            return true;
        }
        if self.dreqs.len() >= DREQS {
            self.dreqs.pop_front();
        }
        self.dreqs.push_back((peer, id));
        false
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

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn eldest_answers_what_no_process_has_and_the_next_one_inherits() {
        let address = Ipv4Addr::new(127, 19, 0, 1);
        let (mut first, mut second) = (Registry::new(), Registry::new());
        first.join([address.into()].into_iter());
        let of = |id: u32| unclaimed(Addressee::CommId(CommId(id)), address);
        assert!(first.answers(&of(1), NOW), "it is alone");
        second.join([address.into()].into_iter());
        // It may be the other's: nothing says whose a comm id is.
        assert!(first.answers(&of(1), NOW), "it has looked just now");
        let later = NOW.saturating_add(LOOK_AGAIN);
        assert_eq!([first.answers(&of(1), later), second.answers(&of(1), later)], [false, false]);
        // An end that the peer repeats is confirmed, once for each connection.
        for id in [1, 2] {
            let dreq = unclaimed(Addressee::Disconnect(CommId(id)), address);
            assert_eq!([first.answers(&dreq, later), second.answers(&dreq, later)], [false; 2]);
            assert_eq!([first.answers(&dreq, later), second.answers(&dreq, later)], [true, false]);
        }
        let service = unclaimed(Addressee::Listener(PortSpace::TCP, 7174), address);
        assert_eq!([first.answers(&service, NOW), second.answers(&service, NOW)], [true, false]);
        let listener = listener_name(PortSpace::TCP, Ipv4Addr::UNSPECIFIED.into(), 7174);
        second.listeners.insert(listener.clone(), bind(&listener));
        assert_eq!([first.answers(&service, NOW), second.answers(&service, NOW)], [false, false]);
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
        assert!(second.answers(&of(1), later.saturating_add(LOOK_AGAIN)));
    }
}
