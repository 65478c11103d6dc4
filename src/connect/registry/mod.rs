//! Election among the processes at one address: one of them answers messages for connections that
//! none of them knows.
//!
//! Processes that share an address each see every MAD. A message for a comm id or a listener is
//! answered by the process that has it. A message for neither is answered by the eldest process on
//! that address:
//!
//! - a request, once it has made sure that no other process listens there;
//! - a DREQ, if the peer retransmits it: an owner that lives has heard of the end, too, so the DREP
//!   does no harm;
//! - another message for a comm id, if no other process is there. Comm ids are random in all their
//!   bits and say nothing of their owner, so that no peer can guess them; an answer on behalf of an
//!   owner that lives would end its connection.
//!
//! A process takes a [`Role`] at an address, which it has until it ends. Processes of one user
//! claim roles among them, and no other user can; at addresses that all users share, roles are
//! [`names`].

mod names;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use self::names::Names;
use super::nics::address_of;
use crate::cm::{Addressee, Error, Manager, Unclaimed};
use crate::link::{Claim, Listens, Role, Sharing};
use crate::time::Instant;
use crate::wire::Gid;
use crate::wire::cm::{CommId, PortSpace};

/// Time that it is remembered whether other processes are at an address: a flood of unknown
/// messages must not make one look-up each.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// DREQs for unknown connections that are remembered, to notice their retransmission.
const DREQS: usize = 256;

/// The roles that a process has at the addresses of its NICs.
#[derive(Debug)]
pub(super) struct Registry {
    /// The addresses that it shares.
    members: BTreeMap<IpAddr, Member>,
    /// Addresses and roles of its listeners.
    listeners: BTreeSet<(IpAddr, Role)>,
    generation: Option<u64>,
    /// The latest DREQs for unknown connections: the peer and the comm id.
    dreqs: VecDeque<(Gid, CommId)>,
}

/// A process at an address.
#[derive(Debug)]
struct Member {
    roles: Roles,
    /// Whether other processes were there, and until when that counts.
    others: Option<(Instant, bool)>,
}

/// Roles of a process at an address.
#[derive(Debug)]
enum Roles {
    /// The address is shared by processes of one user.
    Claimed(Arc<Claim>),
    /// The address is shared by all users.
    Named(Names),
}

impl Roles {
    /// Takes a role, if no other process has it; returns whether it is this process's now.
    fn take(&mut self, role: Role) -> bool {
        match self {
            Self::Claimed(claim) => claim.take(role),
            Self::Named(names) => names.take(role),
        }
    }

    fn give_back(&mut self, role: Role) {
        match self {
            Self::Claimed(claim) => claim.give_back(role),
            Self::Named(names) => names.give_back(role),
        }
    }

    fn is_anothers(&self, role: Role) -> bool {
        match self {
            Self::Claimed(claim) => claim.is_anothers(role),
            Self::Named(names) => names.is_anothers(role),
        }
    }

    fn has_others(&self) -> bool {
        match self {
            Self::Claimed(claim) => claim.others().next().is_some(),
            Self::Named(names) => names.has_others(),
        }
    }
}

impl Member {
    /// Whether no other process is at the address.
    fn is_alone(&mut self, now: Instant) -> bool {
        if let Some((until, others)) = self.others
            && now < until
        {
            return !others;
        }
        let others = self.roles.has_others();
        self.others = Some((now.saturating_add(LOOK_AGAIN), others));
        !others
    }
}

/// Returns the role of a listener at an address, which may be a wildcard.
fn listener(space: PortSpace, address: SocketAddr) -> Role {
    let listens = match address.ip() {
        ip if !ip.is_unspecified() => Listens::Here,
        IpAddr::V4(_) => Listens::AnyIpv4,
        IpAddr::V6(_) => Listens::AnyIpv6,
    };
    Role::Listener(space, address.port(), listens)
}

/// Returns the role of a listener at all addresses of the same version of IP.
fn wildcard_listener(space: PortSpace, port: u16, ip: IpAddr) -> Role {
    let listens = if ip.is_ipv4() { Listens::AnyIpv4 } else { Listens::AnyIpv6 };
    Role::Listener(space, port, listens)
}

impl Registry {
    pub(super) fn new() -> Self {
        Self {
            members: BTreeMap::new(),
            listeners: BTreeSet::new(),
            generation: None,
            dreqs: VecDeque::new(),
        }
    }

    /// Tells other processes that this one is at every address of a NIC.
    pub(super) fn join(&mut self, sharing: &Sharing, addresses: impl Iterator<Item = IpAddr>) {
        for address in addresses {
            let roles = match sharing {
                Sharing::Exclusive => continue,
                Sharing::Everyone => Roles::Named(Names::join(address)),
                Sharing::User(share) => Roles::Claimed(Arc::clone(share.claim())),
            };
            let member = self.members.entry(address);
            let member = member.or_insert_with(|| Member { roles, others: None });
            // The first one on an address is the eldest.
            member.roles.take(Role::Eldest);
        }
        // A listener at all addresses is at these, too.
        self.generation = None;
    }

    /// Returns the addresses of this process's NICs that a listener is for, as far as they are
    /// shared.
    fn addresses_of(&self, listener: SocketAddr) -> Vec<IpAddr> {
        let ip = listener.ip();
        let is_meant = |address: &IpAddr| match ip {
            IpAddr::V4(any) if any.is_unspecified() => address.is_ipv4(),
            // It may be one for both versions.
            IpAddr::V6(any) if any.is_unspecified() => true,
            ip => *address == ip,
        };
        self.members.keys().copied().filter(is_meant).collect()
    }

    fn is_anothers(&self, address: IpAddr, role: Role) -> bool {
        self.members.get(&address).is_some_and(|member| member.roles.is_anothers(role))
    }

    /// Whether another process listens where one at `address` would conflict with it: the error
    /// that Linux gives, as for two ids of one process.
    pub(super) fn conflict(&self, space: PortSpace, address: SocketAddr) -> Result<(), Error> {
        let (ip, port) = (address.ip(), address.port());
        if port == 0 {
            return Ok(());
        }
        let here = Role::Listener(space, port, Listens::Here);
        if !ip.is_unspecified() && self.is_anothers(ip, here) {
            return Err(Error::AddressInUse);
        }
        let same_version = |member: &IpAddr| member.is_ipv4() == ip.is_ipv4();
        let wildcard = wildcard_listener(space, port, ip);
        for address in self.addresses_of(address).into_iter().filter(same_version) {
            let is_elsewhere = ip.is_unspecified() && self.is_anothers(address, here);
            if is_elsewhere || self.is_anothers(address, wildcard) {
                return Err(Error::AddressNotAvailable);
            }
        }
        Ok(())
    }

    /// Takes the role of a listener before it listens.
    pub(super) fn claim(&mut self, space: PortSpace, address: SocketAddr) -> Result<(), Error> {
        self.conflict(space, address)?;
        if address.port() == 0 {
            return Ok(());
        }
        let role = listener(space, address);
        // A listener that fails after all gives its role back.
        self.generation = None;
        for address in self.addresses_of(address) {
            let Some(member) = self.members.get_mut(&address) else { continue };
            // Another process may have been quicker.
            if !member.roles.take(role) {
                return Err(Error::AddressInUse);
            }
            self.listeners.insert((address, role));
        }
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
            let role = listener(space, address);
            for address in self.addresses_of(address) {
                before.remove(&(address, role));
                self.listeners.insert((address, role));
            }
        }
        for (address, role) in before {
            if let Some(member) = self.members.get_mut(&address) {
                member.roles.give_back(role);
            }
        }
        for (address, role) in &self.listeners {
            if let Some(member) = self.members.get_mut(address) {
                member.roles.take(*role);
            }
        }
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
        // It becomes the eldest when the one before has gone.
        let is_eldest = |member: &mut Member| member.roles.take(Role::Eldest);
        is_free && self.members.get_mut(&address).is_none_or(is_eldest)
    }

    fn is_listener_of_another(&self, space: PortSpace, address: IpAddr, port: u16) -> bool {
        [Listens::Here, Listens::AnyIpv4, Listens::AnyIpv6]
            .into_iter()
            .any(|listens| self.is_anothers(address, Role::Listener(space, port, listens)))
    }

    fn is_alone(&mut self, address: IpAddr, now: Instant) -> bool {
        self.members.get_mut(&address).is_none_or(|member| member.is_alone(now))
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
    use std::net::Ipv4Addr;

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

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn named() -> [Sharing; 2] {
        [Sharing::Everyone, Sharing::Everyone]
    }

    #[test]
    fn eldest_answers_what_no_process_has_and_the_next_one_inherits() {
        let claimed = crate::link::claims_for_tests().map(Sharing::User);
        for (last, [one, other]) in [(1, named()), (2, claimed)] {
            eldest_answers(Ipv4Addr::new(127, 19, 0, last), one, other);
        }
    }

    fn eldest_answers(address: Ipv4Addr, one: Sharing, other: Sharing) {
        let (mut first, mut second) = (Registry::new(), Registry::new());
        let of = |id: u32| unclaimed(Addressee::CommId(CommId(id)), address);
        first.join(&one, [address.into()].into_iter());
        let is_named = one == Sharing::Everyone;
        drop(one);
        // With names, processes are there once they join; with claims, once they have a slot.
        assert_eq!(first.answers(&of(1), NOW), is_named);
        second.join(&other, [address.into()].into_iter());
        drop(other);
        // It may be the other's: nothing says whose a comm id is.
        assert_eq!(first.answers(&of(1), NOW), is_named, "it has looked just now");
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
        assert_eq!(second.claim(PortSpace::TCP, at("0.0.0.0:7174")), Ok(()));
        assert_eq!([first.answers(&service, NOW), second.answers(&service, NOW)], [false, false]);
        // What one listens at, the other cannot; but for the address of a NIC that is not shared.
        let own = |port: u16| SocketAddr::new(address.into(), port);
        for (address, claimed) in [
            (own(7174), Err(Error::AddressNotAvailable)),
            (at("0.0.0.0:7174"), Err(Error::AddressNotAvailable)),
            (at("127.19.0.200:7174"), Ok(())),
            (at("[::]:7174"), Ok(())),
            (own(7175), Ok(())),
        ] {
            assert_eq!(first.claim(PortSpace::TCP, address), claimed, "{address}");
        }
        assert_eq!(first.claim(PortSpace::TCP, own(7175)), Ok(()), "its own");
        for (address, claimed) in [
            (own(7175), Err(Error::AddressInUse)),
            (at("0.0.0.0:7175"), Err(Error::AddressNotAvailable)),
        ] {
            assert_eq!(second.claim(PortSpace::TCP, address), claimed, "{address}");
            assert_eq!(second.claim(PortSpace::UDP, address), Ok(()), "{address}");
        }
        drop(first);
        assert_eq!(second.claim(PortSpace::TCP, own(7175)), Ok(()));
        assert!(second.answers(&of(1), later.saturating_add(LOOK_AGAIN)));
    }

    #[test]
    fn listener_at_all_addresses_is_no_listener_at_those_of_another_nic() {
        let [here, elsewhere] = [[127, 19, 1, 1], [127, 19, 1, 2]].map(Ipv4Addr::from);
        let (mut first, mut second) = (Registry::new(), Registry::new());
        first.join(&Sharing::Everyone, [here.into()].into_iter());
        second.join(&Sharing::Everyone, [elsewhere.into()].into_iter());
        for registry in [&mut first, &mut second] {
            assert_eq!(registry.claim(PortSpace::TCP, at("0.0.0.0:7176")), Ok(()));
        }
    }
}
