//! Management datagrams: is each one as the protocol of the connection manager wants it?
//!
//! Messages are followed by their communication IDs: REQ, REP, RTU, REJ, MRA; DREQ and DREP;
//! SIDR_REQ and SIDR_REP. A message whose exchange the capture lacks is undecided. What a
//! connection then does with the PSNs and the path MTU of its REQ and REP is a matter of
//! [`requester`](super::requester).

mod exchange;
pub mod limits;
pub(crate) mod rules;

#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;

use exchange::{Disconnects, Exchange, Resolution, Seen, Table};
use limits::DISCONNECTS_MAX;

use super::judge::{Input, Judge};
use super::requester::shape::{Break, hash};
use super::requester::{step, verdict_of};
use super::{Sink, Subject, Survey, Undecided};
use crate::analysis::{PacketFacts, PacketRole};
use crate::wire::mad::{AttributeId, MAD_LEN, Mad, MgmtClass};
use crate::wire::{Bits, Gid, Opcode, Packet, QKey, Qpn, cm};

/// Result of the checks of a message.
type Checked = Result<Option<Undecided>, Break>;

/// Judges management datagrams.
#[derive(Debug)]
pub(super) struct Management {
    survey: Arc<Survey>,
    /// Exchanges by the address and communication ID of the active side.
    exchanges: Table<(Gid, u32), Exchange>,
    passive: Table<(Gid, u32), (Gid, u32)>,
    /// DREQs by the address of the sender, its communication ID and that of the receiver.
    disconnects: Table<(Gid, u32, u32), Disconnects>,
    resolutions: Table<(Gid, u32), Resolution>,
}

/// A message of the connection manager and what carried it.
#[derive(Clone, Copy)]
struct Carried<'a> {
    facts: &'a PacketFacts,
    transaction: u64,
    seen: Seen,
}

impl Management {
    /// Judges the management datagrams of a capture that was surveyed.
    pub(super) fn new(survey: Arc<Survey>) -> Self {
        Self {
            survey,
            exchanges: Table::default(),
            passive: Table::default(),
            disconnects: Table::default(),
            resolutions: Table::default(),
        }
    }

    fn check(&mut self, input: &Input<'_>) -> Checked {
        let facts = input.facts;
        let Some(packet) = Packet::parse_cut(input.packet, input.packet.len()).0 else {
            return Ok(Some(Undecided::Cut));
        };
        if facts.is_cut {
            return Ok(Some(Undecided::Cut));
        }
        check_envelope(facts, &packet).map_or(Ok(()), Err)?;
        let Some(Ok(mad)) = packet.mad() else { return Ok(Some(Undecided::Unsupported)) };
        check_header(&mad).map_or(Ok(()), Err)?;
        if mad.header.class() != MgmtClass::CM {
            return Ok(None);
        }
        let digest = hash(0, packet.payload());
        let seen = Seen { frame: facts.frame, digest };
        let carried = Carried { facts, transaction: mad.header.transaction_id(), seen };
        match cm::Message::parse(mad.header.attribute(), mad.body) {
            Ok(Some(message)) => self.check_message(&carried, &message),
            _ => Ok(Some(Undecided::Unsupported)),
        }
    }

    fn check_message(&mut self, carried: &Carried<'_>, message: &cm::Message<'_>) -> Checked {
        use cm::Message;
        match message {
            Message::Req(m) => self.check_req(carried, m),
            Message::Rep(m) => self.check_rep(carried, m),
            Message::Rtu(m) => self.check_rtu(carried, m.local_comm_id().0, m.remote_comm_id().0),
            Message::Mra(m) => {
                self.check_answer(carried, m.local_comm_id().0, m.remote_comm_id().0)
            }
            Message::Rej(m) => self.check_rej(carried, m),
            Message::Dreq(m) => self.check_dreq(carried, m),
            Message::Drep(m) => self.check_drep(carried, m.local_comm_id().0, m.remote_comm_id().0),
            Message::SidrReq(m) => self.check_sidr_req(carried, m),
            Message::SidrRep(m) => self.check_sidr_rep(carried, m),
            Message::Lap(m) => {
                self.check_member(carried, m.local_comm_id().0, m.remote_comm_id().0)
            }
            Message::Apr(m) => {
                self.check_member(carried, m.local_comm_id().0, m.remote_comm_id().0)
            }
        }
    }

    fn check_req(&mut self, carried: &Carried<'_>, req: &cm::Req) -> Checked {
        let Carried { facts, transaction, seen } = *carried;
        let key = (facts.source, req.local_comm_id().0);
        if let Some(known) = self.exchanges.get(&key)
            && known.passive == facts.destination
            && known.transaction == transaction
            && known.refused.is_none()
        {
            return same(&known.req, &seen, "REQ");
        }
        let exchange = Exchange {
            active: facts.source,
            passive: facts.destination,
            active_id: key.1,
            passive_id: None,
            transaction,
            active_qp: req.local_qpn(),
            passive_qps: None,
            req: seen,
            rep: None,
            refused: None,
        };
        self.exchanges.insert(key, exchange);
        Ok(None)
    }

    fn check_rep(&mut self, carried: &Carried<'_>, rep: &cm::Rep) -> Checked {
        let Carried { facts, transaction, seen } = *carried;
        let (local, remote) = (rep.local_comm_id().0, rep.remote_comm_id().0);
        let key = (facts.destination, remote);
        let known = self.exchanges.get_mut(&key).filter(|known| known.passive == facts.source);
        let Some(exchange) = known else {
            return self.unknown_answer(carried, remote);
        };
        check_transaction(transaction, exchange.transaction, exchange.req.frame)?;
        if let Some(refusal) = exchange.refused {
            let found = "REP for a REQ that was rejected".into();
            return Err(Break::new(&rules::CM_ORDER, found).with_frame(refusal));
        }
        if let (Some(known), Some(id)) = (&exchange.rep, exchange.passive_id) {
            if id != local {
                let found = format!("local communication ID {local:#010x}, was {id:#010x}");
                return Err(Break::new(&rules::CM_IDS, found).with_frame(known.frame));
            }
            return same(known, &seen, "REP");
        }
        exchange.passive_id = Some(local);
        exchange.passive_qps = Some([rep.local_qpn(), Qpn::new(rep.local_eecn().get())]);
        exchange.rep = Some(seen);
        self.passive.insert((facts.source, local), key);
        Ok(None)
    }

    /// An answer to a REQ that is not known by its communication ID.
    fn unknown_answer(&self, carried: &Carried<'_>, remote: u32) -> Checked {
        let Carried { facts, transaction, .. } = *carried;
        let by_transaction = self.exchanges.values().find(|known| {
            known.transaction == transaction
                && (known.active, known.passive) == (facts.destination, facts.source)
        });
        let Some(exchange) = by_transaction else { return Ok(Some(Undecided::MissingPackets)) };
        let known = exchange.active_id;
        let found =
            format!("remote communication ID {remote:#010x}, that of the REQ is {known:#010x}");
        Err(Break::new(&rules::CM_IDS, found).with_frame(exchange.req.frame))
    }

    /// The exchange in which a message is from the side that calls it `local` to the one that calls
    /// it `remote`; whether the sender is the active side.
    fn exchange_of(
        &self,
        carried: &Carried<'_>,
        local: u32,
        remote: u32,
    ) -> Option<(&Exchange, bool)> {
        let (source, destination) = (carried.facts.source, carried.facts.destination);
        let active = |key: (Gid, u32), peer: Gid| {
            self.exchanges.get(&key).filter(|known| known.passive == peer)
        };
        let passive = |key: (Gid, u32), peer: Gid| {
            let key = self.passive.get(&key)?;
            self.exchanges.get(key).filter(|known| known.active == peer)
        };
        // The receiver's name first: a message that names the receiver's side right belongs to it.
        active((destination, remote), source)
            .map(|known| (known, false))
            .or_else(|| passive((destination, remote), source).map(|known| (known, true)))
            .or_else(|| active((source, local), destination).map(|known| (known, true)))
            .or_else(|| passive((source, local), destination).map(|known| (known, false)))
    }

    /// Checks both names of an exchange.
    fn check_ids(exchange: &Exchange, is_active: bool, local: u32, remote: u32) -> Checked {
        let active = Some(exchange.active_id);
        let (own, peer) =
            if is_active { (active, exchange.passive_id) } else { (exchange.passive_id, active) };
        for (what, found, known) in [("local", local, own), ("remote", remote, peer)] {
            let Some(known) = known else { return Ok(Some(Undecided::MissingPackets)) };
            if found != known {
                let found =
                    format!("{what} communication ID {found:#010x}, expected {known:#010x}");
                return Err(Break::new(&rules::CM_IDS, found).with_frame(exchange.req.frame));
            }
        }
        Ok(None)
    }

    fn check_rtu(&self, carried: &Carried<'_>, local: u32, remote: u32) -> Checked {
        let Some((exchange, is_active)) = self.exchange_of(carried, local, remote) else {
            return Ok(Some(Undecided::BeforeCapture));
        };
        let undecided = Self::check_ids(exchange, is_active, local, remote)?;
        if !is_active {
            let found = "RTU from the passive side".into();
            return Err(Break::new(&rules::CM_ORDER, found).with_frame(exchange.req.frame));
        }
        check_transaction(carried.transaction, exchange.transaction, exchange.req.frame)?;
        Ok(undecided)
    }

    /// A message that belongs to a connection, with a transaction ID of its own.
    fn check_member(&self, carried: &Carried<'_>, local: u32, remote: u32) -> Checked {
        match self.exchange_of(carried, local, remote) {
            Some((exchange, is_active)) => Self::check_ids(exchange, is_active, local, remote),
            None => Ok(Some(Undecided::BeforeCapture)),
        }
    }

    /// MRA: to a REQ before the passive side has shown its name, or to a REP.
    fn check_answer(&self, carried: &Carried<'_>, local: u32, remote: u32) -> Checked {
        let Some((exchange, is_active)) = self.exchange_of(carried, local, remote) else {
            return self.unknown_answer(carried, remote);
        };
        check_transaction(carried.transaction, exchange.transaction, exchange.req.frame)?;
        match Self::check_ids(exchange, is_active, local, remote) {
            // Its own name the passive side shows by this message.
            Ok(_) if !is_active && exchange.active_id == remote => Ok(None),
            checked => checked,
        }
    }

    fn check_rej(&mut self, carried: &Carried<'_>, rej: &cm::Rej) -> Checked {
        let (local, remote) = (rej.local_comm_id().0, rej.remote_comm_id().0);
        let Some((exchange, is_active)) = self.exchange_of(carried, local, remote) else {
            return self.unknown_answer(carried, remote);
        };
        check_transaction(carried.transaction, exchange.transaction, exchange.req.frame)?;
        let peer = if is_active { exchange.passive_id } else { Some(exchange.active_id) };
        // After a timeout the sender may not know the receiver's name.
        if let Some(peer) = peer
            && remote != peer
            && rej.reason() != REASON_TIMEOUT
        {
            let found = format!("remote communication ID {remote:#010x}, expected {peer:#010x}");
            return Err(Break::new(&rules::CM_IDS, found).with_frame(exchange.req.frame));
        }
        let key = (exchange.active, exchange.active_id);
        if !is_active && let Some(exchange) = self.exchanges.get_mut(&key) {
            exchange.refused.get_or_insert(carried.seen.frame);
        }
        Ok(None)
    }

    fn check_dreq(&mut self, carried: &Carried<'_>, dreq: &cm::Dreq) -> Checked {
        let Carried { facts, transaction, seen } = *carried;
        let (local, remote) = (dreq.local_comm_id().0, dreq.remote_comm_id().0);
        let checked = match self.exchange_of(carried, local, remote) {
            Some((exchange, is_active)) => Self::check_ids(exchange, is_active, local, remote)
                .and_then(|undecided| {
                    check_dreq_qpn(exchange, is_active, dreq.remote_qpn_eecn())?;
                    Ok(undecided)
                }),
            None => Ok(Some(Undecided::BeforeCapture)),
        };
        // What is wrong is no measure for what follows.
        let undecided = checked?;
        let key = (facts.source, local, remote);
        let Some(known) = self.disconnects.get_mut(&key) else {
            self.disconnects.insert(key, vec![(transaction, seen)]);
            return Ok(undecided);
        };
        if let Some((_, first)) = known.iter().find(|(other, _)| *other == transaction) {
            return same(first, &seen, "DREQ").map(|_| undecided);
        }
        if known.len() >= DISCONNECTS_MAX {
            known.remove(0);
        }
        known.push((transaction, seen));
        Ok(undecided)
    }

    fn check_drep(&self, carried: &Carried<'_>, local: u32, remote: u32) -> Checked {
        let destination = carried.facts.destination;
        let Some(known) = self.disconnects.get(&(destination, remote, local)) else {
            return match self.exchange_of(carried, local, remote) {
                // The DREQ may have been lost before the capture point and not before the peer: not
                // so its names.
                Some((exchange, is_active)) => {
                    Self::check_ids(exchange, is_active, local, remote)?;
                    Ok(Some(Undecided::MissingPackets))
                }
                None => Ok(Some(Undecided::BeforeCapture)),
            };
        };
        let is_known = known.iter().any(|(other, _)| *other == carried.transaction);
        if let (false, Some((transaction, dreq))) = (is_known, known.last()) {
            check_transaction(carried.transaction, *transaction, dreq.frame)?;
        }
        Ok(None)
    }

    fn check_sidr_req(&mut self, carried: &Carried<'_>, req: &cm::SidrReq) -> Checked {
        let Carried { facts, transaction, seen } = *carried;
        let key = (facts.source, req.request_id().0);
        if let Some(known) = self.resolutions.get(&key)
            && (known.passive, known.transaction) == (facts.destination, transaction)
        {
            return same(&known.req, &seen, "SIDR_REQ");
        }
        let service = req.service_id();
        let resolution = Resolution { passive: facts.destination, transaction, service, req: seen };
        self.resolutions.insert(key, resolution);
        Ok(None)
    }

    fn check_sidr_rep(&self, carried: &Carried<'_>, rep: &cm::SidrRep) -> Checked {
        let Carried { facts, transaction, .. } = *carried;
        let id = rep.request_id().0;
        let known = self.resolutions.get(&(facts.destination, id));
        let Some(known) = known.filter(|known| known.passive == facts.source) else {
            let mut all = self.resolutions.values();
            let by_transaction =
                all.find(|known| (known.transaction, known.passive) == (transaction, facts.source));
            let Some(known) = by_transaction else { return Ok(Some(Undecided::MissingPackets)) };
            let found = format!("request ID {id:#010x} is not that of the SIDR_REQ");
            return Err(Break::new(&rules::CM_IDS, found).with_frame(known.req.frame));
        };
        check_transaction(transaction, known.transaction, known.req.frame)?;
        if rep.service_id() != known.service {
            let found =
                format!("service {}, the SIDR_REQ asked for {}", rep.service_id(), known.service);
            return Err(Break::new(&rules::SIDR_SERVICE, found).with_frame(known.req.frame));
        }
        Ok(None)
    }
}

/// The reason of a REJ that no answer came in time.
const REASON_TIMEOUT: u16 = 4;

/// The method Send.
const METHOD_SEND: Bits<7> = Bits::low(3);

fn check_envelope(facts: &PacketFacts, packet: &Packet<'_>) -> Option<Break> {
    let wrong = |found: String| Some(Break::new(&rules::MAD_ENVELOPE, found));
    if facts.opcode != Opcode::UD_SEND_ONLY {
        return wrong(format!("{} to queue pair {}", facts.opcode, facts.dest_qp.get()));
    }
    if facts.payload_len as usize != MAD_LEN {
        return wrong(format!("{} bytes of payload", facts.payload_len));
    }
    let deth = packet.deth()?;
    let is_gsi = facts.dest_qp == Qpn::GSI && deth.src_qp() == Qpn::GSI;
    if is_gsi && deth.qkey() != QKey::GSI {
        return wrong(format!("Q_Key {}", deth.qkey()));
    }
    None
}

fn check_header(mad: &Mad<'_>) -> Option<Break> {
    let header = mad.header;
    let wrong = |found: String| Some(Break::new(&rules::MAD_HEADER, found));
    if header.base_version() != 1 {
        return wrong(format!("base version {}", header.base_version()));
    }
    let is_message =
        (AttributeId::CM_REQ.0..=AttributeId::CM_APR.0).contains(&header.attribute().0);
    if header.class() != MgmtClass::CM || !is_message {
        return None;
    }
    if header.class_version() != 2 {
        return wrong(format!(
            "class version {} of the connection manager",
            header.class_version()
        ));
    }
    if header.response() || header.method() != METHOD_SEND {
        let method = u32::from(header.response()) << 7 | header.method().get();
        return wrong(format!("method {method:#04x}, expected 0x03"));
    }
    if header.status() != 0 {
        return wrong(format!("status {}", header.status()));
    }
    None
}

fn check_transaction(found: u64, expected: u64, frame: u64) -> Result<(), Break> {
    if found == expected {
        return Ok(());
    }
    let found = format!("transaction ID {found:#018x}, expected {expected:#018x}");
    Err(Break::new(&rules::CM_TRANSACTION, found).with_frame(frame))
}

fn check_dreq_qpn(exchange: &Exchange, is_active: bool, qpn: Qpn) -> Result<(), Break> {
    let expected = if is_active { exchange.passive_qps } else { Some([exchange.active_qp; 2]) };
    match expected {
        Some(expected) if !expected.contains(&qpn) => {
            let found = format!("queue pair {qpn}, that of the receiver is {}", expected[0]);
            Err(Break::new(&rules::CM_DREQ_QPN, found).with_frame(exchange.req.frame))
        }
        _ => Ok(()),
    }
}

/// Whether a message is the same as when it was seen first.
fn same(first: &Seen, seen: &Seen, name: &str) -> Checked {
    if first.digest == seen.digest {
        return Ok(None);
    }
    let found = format!("{name} differs from the one before");
    Err(Break::new(&rules::CM_RETRY_CHANGED, found).with_frame(first.frame))
}

impl Judge for Management {
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        let is_damaged = self.survey.is_damaged(input.facts);
        if input.note.role != PacketRole::Management {
            return;
        }
        let checked = if is_damaged { Ok(Some(Undecided::Damaged)) } else { self.check(input) };
        if input.source.is_none() {
            // The sender's shard says it.
            return;
        }
        out.step(step(input, Subject::Management, verdict_of(checked, input)));
    }

    fn finish(&mut self, _: &mut dyn Sink) {}
}
