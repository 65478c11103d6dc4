//! The program of a link on its interface, and its maps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{OpenError, failure, program};
use crate::link::GROUPS_MAX;
use crate::link::interface::Interface;
use crate::link::netlink::{Ask, Netlink, find_attribute, word};
use crate::link::raw::ADDRESSES_MAX;
use crate::link::sys::bpf::{self, AttachMode, Map, MapKind};
use crate::link::sys::xsk::XskRx;
use crate::wire::Gid;

/// Maximum number of addresses and groups.
const KEYS_MAX: u32 = 256;

const _: () = assert!(2 * (ADDRESSES_MAX + GROUPS_MAX) <= KEYS_MAX as usize);

/// A program that is attached. The kernel detaches it when this is dropped, or the process ends.
#[derive(Debug)]
pub(super) struct Attached {
    link: OwnedFd,
    addresses: Map,
    _sockets: Map,
}

/// The maps of a link, and its program.
fn load(queues: u32) -> io::Result<(Map, Map, OwnedFd)> {
    let addresses = Map::new(MapKind::Hash, program::ADDRESS_LEN, KEYS_MAX)?;
    let sockets = Map::new(MapKind::Sockets, 4, queues)?;
    let loaded = bpf::load_xdp(&program::program(&addresses, &sockets), program::NAME)?;
    Ok((addresses, sockets, loaded))
}

/// Loads the program, and lets it go.
pub(super) fn try_load() -> io::Result<()> {
    load(1).map(drop)
}

impl Attached {
    /// Attaches the program to an interface: packets to these addresses go to these sockets.
    pub(super) fn new(
        interface: &Interface,
        receivers: &[XskRx],
        gids: &[Gid],
    ) -> Result<Self, OpenError> {
        let fail = |what| move |source| failure(what, interface.name.clone(), source);
        let queues = u32::try_from(receivers.len()).unwrap_or(u32::MAX);
        let (addresses, sockets, loaded) = load(queues).map_err(fail("load a program of XDP"))?;
        for (queue, receiver) in (0_u32..).zip(receivers) {
            let socket = receiver.as_fd().as_raw_fd().unsigned_abs();
            let inserted = sockets.insert(&queue.to_ne_bytes(), socket);
            inserted.map_err(fail("name a socket to the program"))?;
        }
        for gid in gids {
            addresses.insert(&gid.0, 1).map_err(fail("name an address to the program"))?;
        }
        let attach = |mode| bpf::attach_xdp(loaded.as_fd(), interface.index, mode);
        let is_taken =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
        let link = match attach(AttachMode::Driver) {
            Err(error) if !is_taken(&error) => attach(AttachMode::Generic),
            attached => attached,
        };
        let link = match link {
            // It was attached since the interface was looked at.
            Err(source) if is_taken(&source) => {
                refuse_other(interface)?;
                return Err(fail("attach a program of XDP")(source));
            }
            link => link.map_err(fail("attach a program of XDP"))?,
        };
        Ok(Self { link, addresses, _sockets: sockets })
    }

    /// Returns the descriptor that holds the program on its interface.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Takes packets to this address, or group, too.
    pub(super) fn insert(&self, gid: Gid) -> io::Result<()> {
        self.addresses.insert(&gid.0, 1)
    }

    /// Leaves packets to this address, or group, to the kernel.
    pub(super) fn remove(&self, gid: Gid) {
        // It fails if it is not there.
        let _ = self.addresses.remove(&gid.0);
    }
}

// Numbers of `linux/if_link.h`.
const GET_LINK: (u16, u16) = (18, 16);
const XDP: u16 = 43;
const XDP_PROGRAM: u16 = 4;

/// Refuses an interface that has a program, and names it.
pub(super) fn refuse_other(interface: &Interface) -> Result<(), OpenError> {
    let Some(id) = program_of(interface.index) else { return Ok(()) };
    let program = match bpf::program_name(id).as_deref() {
        Ok(program::NAME) => format!("that of another `roce` (id {id})"),
        Ok(name) if !name.is_empty() => format!("`{name}` (id {id})"),
        _ => format!("id {id}"),
    };
    Err(OpenError::XdpProgram { interface: interface.name.clone(), program })
}

/// The number of the program that an interface has.
fn program_of(index: u32) -> Option<u32> {
    let mut request = vec![0; 16];
    request.splice(4..8, index.to_ne_bytes());
    let mut id = None;
    // Without an answer, attaching finds out.
    let _ = Netlink::open().and_then(|mut netlink| {
        netlink.ask(GET_LINK, Ask::One, &request, |answer| {
            let xdp = answer.get(16..).and_then(|attributes| find_attribute(attributes, XDP));
            let found = xdp.and_then(|xdp| find_attribute(xdp, XDP_PROGRAM));
            id = found.and_then(|id| word(id, 0));
        })
    });
    id
}
