//! Normalization of packets: fields that differ between correct devices are replaced or left out.
//!
//! Of one packet ([`Names::packet`]):
//!
//! | what | becomes | because |
//! |---|---|---|
//! | queue pair numbers | their places: 1, 2 … | a device numbers as it likes |
//! | PSNs | counted from the first | a program chooses where they begin |
//! | addresses in RETH and AtomicETH | counted from the beginning of the buffer | they are the program's |
//! | keys | their places among buffers and windows; one that does not exist is all ones | a device makes them up |
//! | credits in an AETH | 31: none are counted | how many are told is the responder's choice |
//! | AckReq | cleared | where, but on the last packet, is the requester's choice; without it there nothing completes |
//! | IP, UDP and Ethernet headers, ICRC | left out | addresses, identifications, ports, hops and time are the network's; a wrong ICRC never arrives |
//! | MigReq, reserved bits | left out | the line of `roce decode` does not tell them; no RoCE device migrates |
//!
//! Of a sequence of packets in one direction to one queue pair ([`sequence`]):
//!
//! | what | is removed | because |
//! |---|---|---|
//! | a packet that was there before, bit for bit | every time but the first | retransmissions depend on time |
//! | an acknowledgement before an answer with the same or a later PSN | always | answers acknowledge all before them; responders may join them |
//! | requests behind one that was refused for good | always | whether they left before the refusal came depends on time |
//!
//! Directions are compared by themselves: how they interleave is time.

use std::collections::HashSet;

use super::Side;
use super::control::Reach;
use super::trace::Packet;
use super::wire::Seen;
use crate::decode::packet_line;
use crate::wire::aeth::{Answer, Credits, NakCode, Syndrome};
use crate::wire::{
    Extensions, Opcode, Operation, Packet as View, PacketRepr, Psn, Qpn, RKey, Role,
};

/// A QPN that does not exist, for datagrams that go astray.
pub(super) const NO_QPN: u32 = 0x00ab_cdef;

/// A key that does not exist.
const NO_KEY: RKey = RKey::new(u32::MAX);

/// Maximum distance of an address from a buffer to which it still belongs.
const AROUND: u64 = 1 << 16;

/// Numbers, addresses and keys of both sides, which are replaced by indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    requester: Reach,
    responder: Reach,
    /// Every key that a window ever had: whose, which, the key.
    window_keys: Vec<(Side, usize, u32)>,
}

impl Names {
    /// The names of both.
    pub(super) fn new(requester: Reach, responder: Reach) -> Self {
        let mut names = Self { requester, responder, window_keys: Vec::new() };
        for side in Side::BOTH {
            let windows = names.of(side).windows.clone();
            windows.iter().for_each(|(name, key)| names.window(side, name, *key));
        }
        names
    }

    /// The names of a side.
    pub(super) fn of(&self, side: Side) -> &Reach {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// A window has this key from now on.
    pub(super) fn window(&mut self, side: Side, name: &str, key: u32) {
        let reach = match side {
            Side::Requester => &mut self.requester,
            Side::Responder => &mut self.responder,
        };
        reach.windows.insert(name.to_owned(), key);
        let place = reach.windows.keys().position(|known| known == name).unwrap_or(0);
        self.window_keys.push((side, place, key));
    }

    /// The name of the window of a side that had this key.
    pub(super) fn window_of(&self, side: Side, key: u32) -> Option<String> {
        let had = self.window_keys.iter().find(|(whose, _, known)| (*whose, *known) == (side, key));
        self.of(side).windows.keys().nth(had?.1).cloned()
    }

    /// The place of a key of a side among its buffers, then its windows, from 1.
    fn key(&self, side: Side, key: RKey) -> RKey {
        let buffers = &self.of(side).buffers;
        let buffer = buffers.iter().position(|buffer| buffer.rkey == key.get());
        let windows = self.window_keys.iter().filter(|(whose, ..)| *whose == side);
        let window = || {
            windows
                .into_iter()
                .find(|(.., known)| *known == key.get())
                .map(|(_, at, _)| buffers.len() + at)
        };
        let place = buffer.or_else(window).and_then(|place| u32::try_from(place + 1).ok());
        place.map_or(NO_KEY, RKey::new)
    }

    /// An address of a side, from the beginning of the buffer that it is in or near.
    fn address(&self, side: Side, address: u64) -> u64 {
        let within = |around: u64| {
            let near = self.of(side).buffers.iter().find(|buffer| {
                let from = buffer.addr.saturating_sub(around);
                (from..buffer.addr.saturating_add(buffer.len + around)).contains(&address)
            });
            near.map(|buffer| address.wrapping_sub(buffer.addr))
        };
        within(0).or_else(|| within(AROUND)).unwrap_or(address)
    }

    /// A packet that a side saw, if it belongs to the instance.
    pub(super) fn packet(&self, at: Side, seen: &Seen) -> Option<Packet> {
        let from = if seen.outbound { at } else { at.other() };
        let to = from.other();
        let view = View::parse(&seen.packet).ok()?;
        let number = view.bth().dest_qp();
        let qp = self.of(to).qps.iter().position(|(qpn, _)| *qpn == number);
        let qp = qp.or_else(|| (number.get() == NO_QPN).then_some(self.of(to).qps.len()))?;
        let mut bth = view.bth().repr();
        let response = view.info().is_some_and(|info| info.role == Role::Response);
        let whose = if response { to } else { from };
        let base = self.of(whose).qps.get(qp).or_else(|| self.of(whose).qps.first())?.1;
        bth.psn = Psn::new(bth.psn.get().wrapping_sub(base.get()) & 0xff_ffff);
        bth.dest_qp = Qpn::new(u32::try_from(qp + 1).ok()?);
        bth.ack_req = false;
        let mut extensions = Extensions::of(&view);
        if let Some(reth) = &mut extensions.reth {
            (reth.va, reth.rkey) = (self.address(to, reth.va), self.key(to, reth.rkey));
        }
        if let Some(atomic) = &mut extensions.atomic_eth {
            (atomic.va, atomic.rkey) = (self.address(to, atomic.va), self.key(to, atomic.rkey));
        }
        if let Some(ieth) = &mut extensions.ieth {
            ieth.rkey = self.key(to, ieth.rkey);
        }
        if let Some(deth) = &mut extensions.deth {
            let own = self.of(from).qps.iter().position(|(qpn, _)| *qpn == deth.src_qp);
            deth.src_qp = Qpn::new(u32::try_from(own? + 1).ok()?);
        }
        if let Some(aeth) = &mut extensions.aeth
            && matches!(aeth.syndrome.answer(), Answer::Ack(_))
        {
            aeth.syndrome = Syndrome::from(Answer::Ack(Credits::UNLIMITED));
        }
        let syndrome = extensions.aeth.map(|aeth| aeth.syndrome.0);
        let (opcode, psn) = (bth.opcode.0, bth.psn.get());
        let repr = PacketRepr::new(bth, extensions, view.payload()).ok()?;
        let payload = crc32fast::hash(view.payload());
        Some(Packet { from, qp, opcode, psn, syndrome, line: line(&repr), payload })
    }
}

/// A packet as `roce decode` shows it, without the network around it.
fn line(packet: &PacketRepr<'_>) -> String {
    let mut bytes = Vec::new();
    packet.emit(&mut bytes);
    packet_line(&bytes)
}

/// Returns the packets of one direction that do not depend on time, by queue pair, in order.
/// `answers` is the other direction.
pub(super) fn sequence<'p>(packets: &[&'p Packet], answers: &[&Packet]) -> Vec<&'p Packet> {
    let qps = packets.iter().map(|packet| packet.qp).max().map_or(0, |last| last + 1);
    let mut all = Vec::new();
    for qp in 0..qps {
        let of = |packet: &&&Packet| packet.qp == qp;
        let refused = answers.iter().filter(of).filter(|answer| is_refusal(answer));
        let refused = refused.map(|answer| answer.psn).min();
        let own: Vec<&Packet> = packets.iter().filter(of).copied().collect();
        let (mut kept, mut known) = (Vec::new(), HashSet::new());
        for (at, packet) in own.iter().enumerate() {
            let behind = own.get(at + 1..).unwrap_or_default();
            let implied = is_ack(packet)
                && behind.iter().any(|later| is_answer(later) && later.psn >= packet.psn);
            let hopeless = !is_answer(packet) && refused.is_some_and(|psn| packet.psn > psn);
            if !implied && !hopeless && known.insert(*packet) {
                kept.push(packet);
            }
        }
        all.extend(kept);
    }
    all
}

fn is_answer(packet: &Packet) -> bool {
    Opcode(packet.opcode).info().is_some_and(|info| info.role == Role::Response)
}

/// A plain acknowledgement.
fn is_ack(packet: &Packet) -> bool {
    let operation = Opcode(packet.opcode).info().map(|info| info.operation);
    let answer = packet.syndrome.map(|syndrome| Syndrome(syndrome).answer());
    operation == Some(Operation::Acknowledge) && matches!(answer, Some(Answer::Ack(_)))
}

/// Whether a packet is a refusal that ends a connection.
fn is_refusal(packet: &Packet) -> bool {
    let answer = packet.syndrome.map(|syndrome| Syndrome(syndrome).answer());
    matches!(answer, Some(Answer::Nak(code)) if code != NakCode::PsnSequenceError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::control::RemoteBuffer;
    use crate::wire::{BthRepr, Gid};

    fn reach(host: u8, qpn: u32, psn: u32) -> Reach {
        let buffer = RemoteBuffer { name: "main".to_owned(), addr: 0x1000, len: 64, rkey: 0x77 };
        Reach {
            gid: Gid([host; 16]),
            qps: vec![(Qpn::new(qpn), Psn::new(psn))],
            buffers: vec![buffer],
            windows: [("w".to_owned(), 0x500)].into(),
            cm_port: None,
        }
    }

    fn write(qpn: u32, psn: u32, va: u64, rkey: u32) -> Seen {
        let mut bth = BthRepr::new(Opcode::RC_RDMA_WRITE_ONLY, Qpn::new(qpn), Psn::new(psn));
        (bth.ack_req, bth.migreq) = (true, true);
        let reth = crate::wire::RethRepr { va, rkey: RKey::new(rkey), dma_len: 4 };
        let extensions = Extensions { reth: Some(reth), ..Extensions::default() };
        let mut packet = Vec::new();
        PacketRepr::new(bth, extensions, b"abcd").unwrap().emit(&mut packet);
        Seen { outbound: true, packet, effect: None }
    }

    #[test]
    fn names_become_places() {
        let mut names = Names::new(reach(1, 0x11, 0xffffff), reach(2, 0x12, 50));
        names.window(Side::Responder, "w", 0x501);
        let line = |seen: &Seen| names.packet(Side::Requester, seen).map(|packet| packet.line);
        let told = |va, rkey| {
            format!("RC_RDMA_WRITE_ONLY qp 0x000001 psn 1 va {va} rkey {rkey} dmalen 4 len 4")
        };
        for (va, rkey, place, key) in [
            (0x1008, 0x77, "0x8", "0x00000001"),
            (0x1000, 0x500, "0x0", "0x00000002"),
            (0x1000, 0x501, "0x0", "0x00000002"),
            (0x1048, 0x99, "0x48", "0xffffffff"),
        ] {
            assert_eq!(line(&write(0x12, 0, va, rkey)), Some(told(place, key)));
        }
        assert_eq!(line(&write(0x13, 0, 0x1000, 0x77)), None, "of another connection");
    }

    fn packet(opcode: Opcode, psn: u32, syndrome: Option<u8>) -> Packet {
        let from = if syndrome.is_some() { Side::Responder } else { Side::Requester };
        let line = format!("{opcode} {psn} {syndrome:?}");
        Packet { from, qp: 0, opcode: opcode.0, psn, syndrome, line, payload: 0 }
    }

    #[test]
    fn time_is_taken_out_of_a_sequence() {
        const ACK: Option<u8> = Some(0x1f);
        const GAP: Option<u8> = Some(0x60);
        const REFUSED: Option<u8> = Some(0x62);
        let answer = |psn, syndrome| packet(Opcode::RC_ACKNOWLEDGE, psn, syndrome);
        let write = |psn| packet(Opcode::RC_RDMA_WRITE_ONLY, psn, None);
        let psns = |own: &[Packet], answers: &[Packet]| {
            let (own, answers): (Vec<_>, Vec<_>) = (own.iter().collect(), answers.iter().collect());
            let kept = sequence(&own, &answers);
            kept.iter().map(|packet| (packet.psn, packet.syndrome)).collect::<Vec<_>>()
        };
        // Acknowledgements are joined, a gap is not.
        let answers =
            [answer(0, ACK), answer(2, GAP), answer(2, ACK), answer(2, GAP), answer(3, ACK)];
        assert_eq!(psns(&answers, &[]), [(2, GAP), (3, ACK)]);
        // A retransmission is not reported.
        let requests = [write(0), write(1), write(2), write(1), write(2)];
        assert_eq!(psns(&requests, &answers), [(0, None), (1, None), (2, None)]);
        // What left before a NAK arrived is unknown.
        assert_eq!(psns(&requests, &[answer(1, REFUSED)]), [(0, None), (1, None)]);
    }
}
