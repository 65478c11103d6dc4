//! Packets that NICs at one address forward to each other.
//!
//! The kernel gives a packet to the socket of its QPN. It looks at the first BTH of a train alone:
//! of packets that it joined, some may be another's. Those for queue pair 1 come to a socket that
//! all NICs at the address have; the one that reads there forwards them to all.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::receive::UdpReceiver;
use super::shared_memory::SharedMemory;
use crate::link::AddressFds;
use crate::link::share::{
    Forwarded, MESSAGE_MAX, Member, Message, Source, read_message, write_message,
};
use crate::wire::{Bth, Qpn, Received, view};

/// Maximum number of packets that wait for the next receive.
const WAITING_MAX: usize = 4096;

/// Number of calls that read the socket of queue pair 1, at a time.
const GSI_READS: usize = 16;

/// The other NICs at an address.
pub(super) struct Members {
    pub(super) member: Member,
    /// Rings of packets, if the NIC uses any.
    pub(super) shared_memory: Option<SharedMemory>,
    /// Messages for the next receive.
    waiting: Vec<Box<[u8]>>,
    /// Messages of the last receive.
    received: Vec<Box<[u8]>>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    /// Packets that were passed to another NIC.
    passed: u64,
    /// Packets that another NIC, or this one, had no room for.
    no_room: u64,
    /// Messages that are none.
    bad: u64,
    /// Joiners that could not be admitted.
    joiners_refused: u64,
}

impl Members {
    pub(super) fn new(member: Member, shared_memory: Option<SharedMemory>) -> Self {
        Self {
            member,
            shared_memory,
            waiting: Vec::new(),
            received: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.member.events().as_fd()
    }

    pub(super) fn address_fds(&self) -> AddressFds {
        self.member.address_fds().clone()
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters { passed, no_room, bad, joiners_refused } = self.counters;
        let mut all = vec![
            ("forwarded", passed),
            ("forward_no_room", no_room),
            ("forward_bad", bad),
            ("joiners_refused", joiners_refused),
        ];
        all.extend(self.shared_memory.iter().flat_map(SharedMemory::counters));
        all
    }

    /// Whether a receive is likely to find something.
    #[inline]
    pub(super) fn may_receive(&self) -> bool {
        self.shared_memory.as_ref().is_none_or(SharedMemory::may_receive)
            || !(self.waiting.is_empty() && self.received.is_empty())
    }

    /// Makes the messages that wait those of this receive; returns their number.
    #[inline]
    pub(super) fn hand_over(&mut self) -> usize {
        if self.waiting.is_empty() && self.received.is_empty() {
            return 0;
        }
        self.received.clear();
        std::mem::swap(&mut self.waiting, &mut self.received);
        self.received.len()
    }

    /// Passes the packets of this receive's messages to `each`.
    pub(super) fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.received.iter().filter_map(|message| read_message(message)).for_each(|it| each(&it));
    }

    fn keep(&mut self, message: &[u8]) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(message.into());
        } else {
            self.counters.no_room += 1;
        }
    }

    /// Takes what others have passed to this NIC.
    fn take(&mut self) {
        let mut room = [0; MESSAGE_MAX + 1];
        while self.waiting.len() < WAITING_MAX
            && let Some(message) = self.member.take(&mut room)
        {
            match (message, &mut self.shared_memory) {
                (Message::Packet(message), _) => self.keep(message),
                (Message::Offer { source, offer }, Some(memory)) => memory.adopt(offer, source),
                // Dropped, of which the one that offered it learns.
                (Message::Offer { .. }, None) => {}
                (Message::Bad, _) => self.counters.bad += 1,
            }
        }
    }

    /// Admits joiners. `own` is the NIC's socket.
    fn admit(&mut self, own: BorrowedFd<'_>) {
        let was_shared = self.member.is_shared();
        if self.member.admit(own).is_err() {
            self.counters.joiners_refused += 1;
        }
        if self.member.is_shared()
            && !was_shared
            && let Some(memory) = &mut self.shared_memory
        {
            memory.share_own(self.member.qpns());
        }
    }

    fn serve_neighbors(&mut self, source: Source) {
        if let Some(memory) = &mut self.shared_memory {
            memory.serve(source, &self.member);
        }
    }

    fn keep_packet(&mut self, packet: &Received<'_>) {
        let mut message = Vec::new();
        write_message(packet, &mut message);
        self.keep(&message);
    }

    /// Forwards a packet to the NIC that has its QPN; one for queue pair 1 to all others. Returns
    /// whether it is for this NIC.
    fn forward_if_foreign(&mut self, packet: &Received<'_>) -> bool {
        let qpn = view::<Bth>(packet.packet, 0).map_or(Qpn::SMI, Bth::dest_qp);
        let qpns = self.member.qpns();
        if qpn == Qpn::GSI {
            let Forwarded { count, no_room } = self.member.forward_to_all(packet);
            self.counters.passed += count;
            self.counters.no_room += no_room;
            true
        } else if qpns.contains(qpn) {
            true
        } else {
            let is_passed = self.member.forward(qpns.slot_of(qpn), packet);
            self.counters.passed += u64::from(is_passed);
            self.counters.no_room += u64::from(!is_passed);
            false
        }
    }
}

impl Drop for UdpReceiver {
    fn drop(&mut self) {
        if let Some(members) = &self.members {
            members.member.leave(self.socket.as_fd());
        }
    }
}

impl UdpReceiver {
    /// Serves the other NICs at the address, and neighbors.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        let Some(mut members) = self.members.take() else { return Ok(()) };
        let mut done = Ok(());
        for source in members.member.events().ready() {
            match source {
                Source::Listener => members.admit(self.socket.as_fd()),
                Source::Gsi => done = done.and_then(|()| self.serve_gsi(&mut members)),
                Source::Queue => members.take(),
                source => members.serve_neighbors(source),
            }
        }
        self.members = Some(members);
        done
    }

    /// Reads the socket of queue pair 1, and gives what is there to all.
    fn serve_gsi(&mut self, members: &mut Members) -> io::Result<()> {
        for _ in 0..GSI_READS {
            let Some(socket) = members.member.gsi() else { break };
            if !self.receive_beside(socket)? {
                break;
            }
            self.for_each_arrived(&mut |packet| {
                if members.forward_if_foreign(packet) {
                    members.keep_packet(packet);
                }
            });
        }
        self.forget_arrived();
        Ok(())
    }

    /// Forwards packets of other NICs that the kernel joined to packets of this one.
    #[cold]
    pub(super) fn forward_strays(&mut self) {
        let Some(mut members) = self.members.take() else { return };
        if members.member.is_shared() {
            let (mut at, mut strays) = (0, Vec::new());
            self.for_each_arrived(&mut |packet| {
                if !members.forward_if_foreign(packet) {
                    strays.push(at);
                }
                at += 1;
            });
            self.remove_arrived(&strays);
        }
        self.members = Some(members);
    }
}
