//! One address, many processes: sockets of one user at one address, between which the kernel
//! divides packets by their destination QPN.
//!
//! | file | holds |
//! |---|---|
//! | `user_secret` | names that only processes of one user can tell |
//! | `rendezvous` | how a process becomes a member of an address |
//! | `store` | the descriptors that they share |
//! | `claims` | which slots of the address have an owner |
//! | `steering` | the program by which the kernel finds the socket of a packet |
//! | `forward` | packets that one process forwards to another |
//! | `ring` | packets from one process to another through memory |
//! | `neighbors`, `rings` | the rings that a NIC sends and receives by |
//! | `visit` | how a NIC finds a neighbor at another address, and offers it a ring |
//! | `events` | what a NIC waits for besides packets at its socket |
//! | `namespace` | the network namespace of an address |
//! | `member` | a NIC at an address: alone until another comes, then one of several |
//!
//! No process receives for another, and none holds a lock that another waits for. One that is
//! stopped gets its packets when it continues; the slot of one that ends is free.

mod claims;
mod events;
mod forward;
mod member;
mod namespace;
mod neighbors;
mod rendezvous;
mod ring;
mod rings;
mod steering;
mod store;
mod user_secret;
mod visit;

pub(crate) use claims::{Claim, Listens, Role};
pub(crate) use events::Source;
pub(crate) use forward::{MESSAGE_MAX, Message, read as read_message, write as write_message};
pub(crate) use member::{Forwarded, JoinError, Member, join};
pub(crate) use neighbors::{Backlog, Neighbors, RingAnswer, RingRequest};
pub(crate) use rendezvous::RendezvousError;
pub use ring::RingUnderTest;
pub(crate) use ring::{Bytes, Offer, Put, RecordHead};
pub(crate) use rings::Rings;
pub(crate) use steering::SLOTS;
pub(crate) use user_secret::UserSecret;
pub(crate) use visit::Visit;

/// Two NICs at an address.
#[cfg(test)]
pub(crate) fn claims_for_tests() -> [super::UserShare; 2] {
    use std::os::fd::AsFd as _;
    let shared = claims::create().unwrap();
    let multiplier = steering::Multiplier::new(0x12_3457);
    [0, 1].map(|slot| {
        let claim = Claim::new(shared.as_fd()).unwrap().unwrap();
        super::UserShare::new(multiplier.share(slot), claim.into())
    })
}
