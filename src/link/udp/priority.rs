//! Service levels: the priority of a packet within this machine, by which queues and VLANs tell
//! traffic apart.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use crate::link::sys::socket::{self, Control, Name, Outgoing};
use crate::wire::{Path, ROCE_PORT};

/// Priorities that the kernel accepts with a packet, found when the first packet with one is sent.
#[derive(Debug, Default)]
pub(super) enum Priorities {
    #[default]
    NotAsked,
    /// Up to this one; none below Linux 6.14.
    UpTo(u8),
}

/// Highest of eight priorities, as on a VLAN.
const HIGHEST: u8 = 7;

/// Highest priority that needs no privilege.
const FOR_ALL: u8 = 6;

impl Priorities {
    /// Gives a packet on this path its priority.
    #[inline]
    pub(super) fn put(&mut self, path: &Path, control: &mut Control) {
        if path.sl != 0 {
            self.put_some(path.sl & HIGHEST, control);
        }
    }

    #[cold]
    fn put_some(&mut self, priority: u8, control: &mut Control) {
        let highest = match *self {
            Self::UpTo(highest) => highest,
            Self::NotAsked => {
                let highest = highest();
                *self = Self::UpTo(highest);
                highest
            }
        };
        let priority = i32::from(priority.min(highest));
        if priority != 0 {
            control.put(libc::SOL_SOCKET, libc::SO_PRIORITY, &priority.to_ne_bytes());
        }
    }
}

/// The highest priority that the kernel takes. It looks at priorities before it looks at where a
/// packet goes, and does not send to everybody, so it answers and sends nothing.
fn highest() -> u8 {
    let Ok(socket) = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)) else { return 0 };
    let to = Name::new(SocketAddr::from((Ipv4Addr::BROADCAST, ROCE_PORT)));
    let mut control = Control::new();
    control.put(libc::SOL_SOCKET, libc::SO_PRIORITY, &i32::from(HIGHEST).to_ne_bytes());
    let probe = Outgoing { to: &to, control: &control, bytes: &[] };
    match socket::send(socket.as_fd(), [probe].into_iter()) {
        Err(error) => match error.raw_os_error() {
            Some(libc::EACCES | libc::ENETUNREACH) => HIGHEST,
            Some(libc::EPERM) => FOR_ALL,
            _ => 0,
        },
        Ok(_) => 0,
    }
}
