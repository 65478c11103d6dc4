//! Port spaces: addresses and ports of bound and listening ids.
//!
//! The rules are those of Linux's `cma_check_port`. Spaces are apart from each other and from TCP's
//! and UDP's own ports. Unlike on Linux, a loopback address is a wildcard only if no device has it:
//! software NICs may have such addresses.

use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use super::error::Error;
use super::table::CmId;
use crate::wire::cm::PortSpace;

/// An id on a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) id: CmId,
    pub(super) address: IpAddr,
    /// Whether others may bind the same (`RDMA_OPTION_ID_REUSEADDR`).
    pub(super) reuse: bool,
    /// Whether a wildcard is of its family alone (`RDMA_OPTION_ID_AFONLY`).
    pub(super) family_only: bool,
    /// Destination of its connection, if that is known.
    pub(super) destination: Option<SocketAddr>,
    pub(super) listening: bool,
}

impl Binding {
    /// Whether two ids cannot be on one port.
    fn conflict(&self, other: &Self, reuse: bool) -> Result<(), Error> {
        if reuse && other.reuse {
            return Ok(());
        }
        let families_differ = self.address.is_ipv4() != other.address.is_ipv4();
        if self.family_only && other.family_only && families_differ {
            return Ok(());
        }
        if self.address.is_unspecified() || other.address.is_unspecified() {
            return Err(Error::AddressNotAvailable);
        }
        if self.address == other.address { Err(Error::AddressInUse) } else { Ok(()) }
    }

    /// Whether two ids on one ephemeral port can be told apart by where they connect to.
    fn is_distinct(&self, other: &Self) -> bool {
        let (Some(mine), Some(its)) = (self.destination, other.destination) else { return false };
        mine != its
    }

    /// Whether a request to `destination` is for this listener.
    pub(super) fn matches(&self, destination: IpAddr) -> bool {
        if self.address.is_unspecified() {
            return !self.family_only || self.address.is_ipv4() == destination.is_ipv4();
        }
        self.address == destination
    }
}

/// All port spaces.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    ports: BTreeMap<(u16, u16), Vec<Binding>>,
    /// The last ephemeral port, which is not used twice in a row.
    last: u16,
    /// Number of times a listener was added or removed.
    listener_changes: u64,
}

impl Spaces {
    /// Binds an id to a port, or to an ephemeral one if that is 0, chosen by `chance` among those
    /// that are not taken elsewhere.
    pub(super) fn bind(
        &mut self,
        space: PortSpace,
        port: u16,
        binding: Binding,
        ephemeral: &RangeInclusive<u16>,
        chance: u64,
        is_taken: &dyn Fn(u16) -> bool,
    ) -> Result<u16, Error> {
        let port = match port {
            0 => self.choose(space, &binding, ephemeral, chance, is_taken)?,
            port => {
                let owners = self.ports.get(&(space.0, port)).map(Vec::as_slice);
                for other in owners.unwrap_or_default() {
                    binding.conflict(other, binding.reuse)?;
                }
                port
            }
        };
        self.ports.entry((space.0, port)).or_default().push(binding);
        Ok(port)
    }

    /// A port that is free, or else one whose ids can be told apart from this.
    fn choose(
        &mut self,
        space: PortSpace,
        binding: &Binding,
        ephemeral: &RangeInclusive<u16>,
        chance: u64,
        is_taken: &dyn Fn(u16) -> bool,
    ) -> Result<u16, Error> {
        let count = u64::from(ephemeral.end().saturating_sub(*ephemeral.start())) + 1;
        let ports = (0..count).filter_map(|step| {
            u16::try_from(u64::from(*ephemeral.start()) + (chance % count + step) % count).ok()
        });
        let mut shared = None;
        for port in ports.filter(|port| *port != 0 && !is_taken(*port)) {
            let Some(owners) = self.ports.get(&(space.0, port)) else {
                if port == self.last && count > 1 {
                    continue;
                }
                self.last = port;
                return Ok(port);
            };
            let distinct = || owners.iter().all(|other| binding.is_distinct(other));
            if shared.is_none() && distinct() {
                shared = Some(port);
            }
        }
        shared.ok_or(Error::AddressNotAvailable)
    }

    fn owner(&mut self, space: PortSpace, port: u16, id: CmId) -> Option<&mut Binding> {
        self.ports.get_mut(&(space.0, port))?.iter_mut().find(|binding| binding.id == id)
    }

    /// Tells that an id got an address in place of its wildcard, or a destination.
    pub(super) fn update(
        &mut self,
        space: PortSpace,
        port: u16,
        id: CmId,
        change: impl FnOnce(&mut Binding),
    ) {
        if let Some(binding) = self.owner(space, port, id) {
            change(binding);
        }
    }

    /// Lets an id listen. For that it must be alone, whatever may be bound beside it.
    pub(super) fn listen(&mut self, space: PortSpace, port: u16, id: CmId) -> Result<(), Error> {
        let owners = self.ports.get(&(space.0, port)).map(Vec::as_slice).unwrap_or_default();
        let own = owners.iter().find(|binding| binding.id == id);
        let own = *own.ok_or(Error::NotFound("binding"))?;
        for other in owners.iter().filter(|binding| binding.id != id) {
            own.conflict(other, false)?;
        }
        self.update(space, port, id, |binding| binding.listening = true);
        self.listener_changes += 1;
        Ok(())
    }

    /// Every listener, by port space and address.
    pub(super) fn all_listeners(&self) -> impl Iterator<Item = (PortSpace, SocketAddr)> {
        self.ports.iter().flat_map(|(&(space, port), owners)| {
            let listening = owners.iter().filter(|binding| binding.listening);
            listening.map(move |it| (PortSpace(space), SocketAddr::new(it.address, port)))
        })
    }

    /// Changes with the set of listeners.
    pub(super) fn listener_generation(&self) -> u64 {
        self.listener_changes
    }

    /// The listeners on a port.
    pub(super) fn listeners(
        &self,
        space: PortSpace,
        port: u16,
    ) -> impl Iterator<Item = &Binding> + Clone {
        let owners = self.ports.get(&(space.0, port)).map(Vec::as_slice).unwrap_or_default();
        owners.iter().filter(|binding| binding.listening)
    }

    /// Frees the port of an id.
    pub(super) fn release(&mut self, space: PortSpace, port: u16, id: CmId) {
        let Some(owners) = self.ports.get_mut(&(space.0, port)) else { return };
        let was_listening = |binding: &Binding| binding.id == id && binding.listening;
        self.listener_changes += u64::from(owners.iter().any(was_listening));
        owners.retain(|binding| binding.id != id);
        if owners.is_empty() {
            self.ports.remove(&(space.0, port));
        }
    }

    /// Returns the number of bound ids.
    pub(super) fn len(&self) -> usize {
        self.ports.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: PortSpace = PortSpace::TCP;
    const PORTS: RangeInclusive<u16> = 40000..=40003;

    fn binding(number: u32, address: &str) -> Binding {
        let address: IpAddr = address.parse().unwrap();
        Binding {
            id: CmId::from_number(number),
            address,
            reuse: false,
            family_only: address.is_ipv4(),
            destination: None,
            listening: false,
        }
    }

    fn bind(spaces: &mut Spaces, port: u16, binding: Binding) -> Result<u16, Error> {
        spaces.bind(TCP, port, binding, &PORTS, 7, &|_| false)
    }

    /// Measured on Linux: the same address 98, a wildcard against anything 99.
    #[test]
    fn conflicts_are_the_kernels() {
        let mut spaces = Spaces::default();
        assert_eq!(bind(&mut spaces, 7, binding(1, "10.0.0.1")), Ok(7));
        assert_eq!(bind(&mut spaces, 7, binding(2, "10.0.0.1")), Err(Error::AddressInUse));
        assert_eq!(bind(&mut spaces, 7, binding(2, "0.0.0.0")), Err(Error::AddressNotAvailable));
        assert_eq!(bind(&mut spaces, 7, binding(2, "::")), Err(Error::AddressNotAvailable));
        assert_eq!(bind(&mut spaces, 7, binding(3, "10.0.0.2")), Ok(7));
        let v6 = Binding { family_only: true, ..binding(4, "::") };
        assert_eq!(bind(&mut spaces, 7, v6), Ok(7), "both are of their family alone");
        let udp = |spaces: &mut Spaces, binding| {
            spaces.bind(PortSpace::UDP, 7, binding, &PORTS, 0, &|_| true)
        };
        assert_eq!(udp(&mut spaces, binding(5, "10.0.0.1")), Ok(7), "a port that is named");
        assert_eq!(spaces.len(), 4);
        for number in [1, 3, 4] {
            spaces.release(TCP, 7, CmId::from_number(number));
        }
        assert_eq!(bind(&mut spaces, 7, binding(2, "0.0.0.0")), Ok(7));
    }

    #[test]
    fn reused_address_is_for_binding_and_not_for_listening() {
        let mut spaces = Spaces::default();
        let reuse = |number| Binding { reuse: true, ..binding(number, "10.0.0.1") };
        assert_eq!(bind(&mut spaces, 7, reuse(1)), Ok(7));
        assert_eq!(bind(&mut spaces, 7, reuse(2)), Ok(7));
        assert_eq!(spaces.listen(TCP, 7, CmId::from_number(1)), Err(Error::AddressInUse));
        spaces.release(TCP, 7, CmId::from_number(2));
        assert_eq!(spaces.listen(TCP, 7, CmId::from_number(1)), Ok(()));
        assert_eq!(spaces.listeners(TCP, 7).count(), 1);
    }

    #[test]
    fn ephemeral_ports_run_out_and_are_shared_by_distinct_destinations() {
        let mut spaces = Spaces::default();
        let to = |number, address: &str| Binding {
            destination: Some(address.parse().unwrap()),
            ..binding(number, "0.0.0.0")
        };
        let mut seen = Vec::new();
        for number in 0..4 {
            seen.push(bind(&mut spaces, 0, to(number, "10.0.0.9:1")).unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, PORTS.collect::<Vec<_>>());
        let fifth = bind(&mut spaces, 0, to(5, "10.0.0.9:1"));
        assert_eq!(fifth, Err(Error::AddressNotAvailable));
        assert!(bind(&mut spaces, 0, to(6, "10.0.0.8:1")).is_ok());
        assert_eq!(bind(&mut spaces, 0, binding(7, "0.0.0.0")), Err(Error::AddressNotAvailable));
    }

    #[test]
    fn ephemeral_port_is_one_that_is_not_taken_elsewhere() {
        for chance in 0..100 {
            let mut spaces = Spaces::default();
            let free = *PORTS.end();
            let bound = |spaces: &mut Spaces, is_taken: &dyn Fn(u16) -> bool| {
                spaces.bind(TCP, 0, binding(1, "10.0.0.1"), &PORTS, chance, is_taken)
            };
            assert_eq!(bound(&mut spaces, &|port| port != free), Ok(free), "{chance}");
            assert_eq!(bound(&mut spaces, &|_| true), Err(Error::AddressNotAvailable));
        }
    }

    #[test]
    fn wildcard_of_ipv6_takes_ipv4_unless_told_not_to() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        let any6 = binding(1, "::");
        assert!(any6.matches(v4) && any6.matches(v6));
        let only6 = Binding { family_only: true, ..any6 };
        assert!(!only6.matches(v4) && only6.matches(v6));
        let any4 = binding(1, "0.0.0.0");
        assert!(any4.matches(v4) && !any4.matches(v6));
        assert!(!binding(1, "10.0.0.2").matches(v4));
    }
}
