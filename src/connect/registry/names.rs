//! Roles at an address that all users share: names of abstract Unix sockets, which exist per
//! network namespace, need no privilege and are gone with their process.
//!
//! | name | bound by |
//! |---|---|
//! | `roce cm eldest ADDRESS` | the eldest |
//! | `roce cm member ADDRESS NUMBER` | a process at this address, with the first number that is free |
//! | `roce cm listen SPACE ADDRESS PORT` | a process that listens there, with ` any` behind it if it does at all addresses |

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use crate::link::{Listens, Role};

/// Maximum number of processes at one address that know of each other.
const MEMBERS: u16 = 256;

/// The names that a process has bound at an address.
#[derive(Debug)]
pub(super) struct Names {
    address: IpAddr,
    /// `None` if all numbers were taken.
    member: Option<(u16, UnixDatagram)>,
    roles: BTreeMap<Role, UnixDatagram>,
}

fn name(text: &str) -> Option<UnixAddr> {
    UnixAddr::from_abstract_name(text).ok()
}

/// Binds a name. Returns `None` if another process has it.
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

fn role_name(address: IpAddr, role: Role) -> String {
    match role {
        Role::Eldest => format!("roce cm eldest {address}"),
        Role::Listener(space, port, listens) => {
            let any = match listens {
                Listens::Here => "",
                Listens::AnyIpv4 => " any IPv4",
                Listens::AnyIpv6 => " any",
            };
            format!("roce cm listen {} {address} {port}{any}", space.0)
        }
    }
}

impl Names {
    pub(super) fn join(address: IpAddr) -> Self {
        let free = |number| Some((number, bind(&member_name(address, number))?));
        Self { address, member: (0..MEMBERS).find_map(free), roles: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, role: Role) -> bool {
        if self.roles.contains_key(&role) {
            return true;
        }
        let bound = bind(&role_name(self.address, role));
        bound.map(|bound| self.roles.insert(role, bound)).is_some()
    }

    pub(super) fn give_back(&mut self, role: Role) {
        self.roles.remove(&role);
    }

    pub(super) fn is_anothers(&self, role: Role) -> bool {
        !self.roles.contains_key(&role) && is_bound(&role_name(self.address, role))
    }

    /// Whether other processes are at the address.
    pub(super) fn has_others(&self) -> bool {
        let own = self.member.as_ref().map(|(number, _)| *number);
        let is_other = |number| Some(number) != own && is_bound(&member_name(self.address, number));
        own.is_none() || (0..MEMBERS).any(is_other)
    }
}
