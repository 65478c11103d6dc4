//! A visit: how a NIC finds a neighbor at another address, and offers it a ring.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::forward::ForwardQueue;
use super::neighbors::{RingAnswer, RingRequest};
use super::rendezvous::{Membership, read_answer, visit};
use super::ring::Producer;
use super::store::Contents;
use super::user_secret::UserSecret;
use crate::link::sys::lock::first_locked;
use crate::verbs::QpnShare;
use crate::wire::Gid;

/// A visit whose answer is awaited.
#[derive(Debug)]
pub(crate) struct Visit {
    socket: OwnedFd,
    request: RingRequest,
}

impl Visit {
    /// Visits the address of a request, which is on this interface; `None` if no NIC of this user
    /// shares it. To be called in the address's network namespace.
    pub(crate) fn new(request: RingRequest, address: IpAddr, interface: u32) -> Option<Self> {
        let secrets = UserSecret::all().ok()?;
        let mut found =
            secrets.iter().filter_map(|secret| visit(secret, address, interface).ok()?);
        Some(Self { socket: found.next()?, request })
    }

    /// Returns the descriptor that is readable when the answer is there.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn request(&self) -> RingRequest {
        self.request
    }

    /// Reads the answer, and offers a ring to the neighbor. Nothing of the other address is kept:
    /// it is free when the last of its own NICs has gone.
    pub(crate) fn finish(&self, own: Gid) -> RingAnswer {
        let Ok(Some(Membership { multiplier, store, .. })) = read_answer(&self.socket) else {
            return RingAnswer::NoMembers;
        };
        let Ok(contents) = store.contents() else { return RingAnswer::NoMembers };
        offer_ring(own, self.request, multiplier.share(0), contents)
    }
}

/// Makes a ring, and offers it to the NIC that has the queue pair of a request. `qpns` divides the
/// QPNs at its address.
pub(super) fn offer_ring(
    own: Gid,
    request: RingRequest,
    qpns: QpnShare,
    contents: Contents,
) -> RingAnswer {
    let Contents { claims, mut queues, .. } = contents;
    let slot = qpns.slot_of(request.qpn);
    let byte = u64::from(slot);
    if !matches!(first_locked(claims.as_fd(), byte..byte + 1), Ok(Some(_))) {
        return RingAnswer::NoNeighbor { qpns, slot };
    }
    let queue = ForwardQueue::from_fd(queues.swap_remove(usize::from(slot)));
    match Producer::new() {
        Ok((producer, offer)) if queue.put_offer(own, &offer) => {
            RingAnswer::Offered { qpns, slot, producer: Box::new(producer) }
        }
        _ => RingAnswer::NoNeighbor { qpns, slot },
    }
}
