//! The receiving side of a connected queue pair: requests are checked and executed.
//!
//! Read the specification on the responder (volume 1, §9.7 and §9.8) before changing this file: the order of the checks
//! is observable. A request passes PSN, opcode sequence, rights of the queue pair, resources, length and key, in this
//! order, before it is executed.

use std::collections::VecDeque;

use super::Counter;
use super::hold::Hold;
use super::owed::{Debts, Owed, Owing};
use super::qp::{Env, Qp};
use super::queue::Taken;
use super::reads::{Replay, flush_access};
use crate::verbs::SrqHandle;
use crate::verbs::{Access, EventType, QpState, QpType, Wc, WcOpcode, WcStatus, limits};
use crate::wire::aeth::NakCode;
use crate::wire::{Msn, OpcodeInfo, Operation, Packet, Psn, RKey};

/// What the receiving side remembers.
#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN that must come next.
    pub(super) epsn: Psn,
    /// How many requests were completed.
    pub(super) msn: Msn,
    /// The message that was begun and not ended.
    message: Option<Message>,
    /// A receive work request that an abandoned message left behind.
    pub(super) spare: Option<(Taken, Option<SrqHandle>)>,
    /// The last request that is answered by more than an acknowledgement.
    pub(super) asked: Option<Psn>,
    /// Whether a refusal is out and the packet it asks for has not come.
    refused: bool,
    /// Answers that were given to reads and atomics, to be given again.
    pub(super) replays: VecDeque<Replay>,
    /// Answers that are owed, in order.
    pub(super) owed: Debts,
    /// Whether a congestion notification is owed.
    pub(super) cnp_owed: bool,
    /// Whether an acknowledgement had to wait, and goes first in the next turn.
    pub(super) passed_over: bool,
    /// Whether it is held back.
    pub(super) hold: Hold,
    /// Whether acknowledgements count the receives that are posted.
    pub(super) advertise: bool,
    /// Whether a packet has come since the queue pair was made ready to receive.
    established: bool,
}

/// A message that was begun and not ended.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { taken: Taken, srq: Option<SrqHandle>, received: u32 },
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No receive work request is posted.
    NotReady,
    /// It is refused; a receive work request that it took completes with this status.
    Refused(NakCode, WcStatus),
    /// It fails here without the requester being told.
    Silent(WcStatus),
    /// More answers are owed than can be kept: it is as if it had been lost.
    Backlog,
}

// Rule: P-08.1.
pub(super) const INVALID: Fault = Fault::Refused(NakCode::InvalidRequest, WcStatus::LocQpOpErr);
const LENGTH: Fault = Fault::Refused(NakCode::InvalidRequest, WcStatus::LocLenErr);
// Rule: Q-10.
pub(super) const ACCESS: Fault = Fault::Refused(NakCode::RemoteAccessError, WcStatus::LocAccessErr);

impl Responder {
    pub(super) fn new(advertise: bool) -> Self {
        Self {
            advertise,
            established: false,
            epsn: Psn::new(0),
            msn: Msn::new(0),
            message: None,
            spare: None,
            asked: None,
            refused: false,
            replays: VecDeque::new(),
            owed: Debts::default(),
            cnp_owed: false,
            passed_over: false,
            hold: Hold::default(),
        }
    }

    /// Whether an answer is owed.
    pub(super) fn owes(&self) -> bool {
        self.cnp_owed || !self.owed.is_empty()
    }

    /// Whether nothing but one acknowledgement of something accepted is owed, and has not waited before.
    pub(super) fn may_acknowledge_later(&mut self) -> bool {
        let passed_over = core::mem::take(&mut self.passed_over);
        !passed_over && !self.cnp_owed && self.owed.is_one_acceptance()
    }

    /// Owes nothing any more.
    pub(super) fn forget_owed(&mut self) {
        self.owed.clear();
        self.cnp_owed = false;
    }

    /// Gives up the message that was begun; returns the receive work request that it had taken.
    pub(super) fn abandon(&mut self) -> Option<(Taken, Option<SrqHandle>)> {
        match self.message.take() {
            Some(Message::Send { taken, srq, .. }) => Some((taken, srq)),
            Some(Message::Write { .. }) | None => self.spare.take(),
        }
    }

    /// Whether so many answers are owed that no further ones can be kept.
    pub(super) fn is_backlogged(&self, reads: u8) -> bool {
        self.owed.len() >= 2 * usize::from(reads) + 4
    }

    /// Owes an acknowledgement of everything through `psn`; one that has not gone out yet is overtaken.
    pub(super) fn owe_ack(&mut self, psn: Psn) {
        // Rule: T-32.
        let msn = self.msn;
        match self.owed.newest() {
            Some(Owed::Ack { psn: old, msn: count, answer: Owing::Accepted }) => {
                // One that is owed already and reaches further is not taken back.
                *old = if psn.since(*old) > 0 { psn } else { *old };
                *count = msn;
            }
            _ => self.owed.push(Owed::Ack { psn, msn, answer: Owing::Accepted }),
        }
    }

    fn owe_refusal(&mut self, psn: Psn, answer: Owing) {
        // A peer that repeats itself before it can be answered is answered once.
        if let Some(Owed::Ack { psn: last, answer: same, .. }) = self.owed.newest()
            && (*last, *same) == (psn, answer)
        {
            return;
        }
        // Rule: P-12.3.
        self.owed.push(Owed::Ack { psn, msn: self.msn, answer });
    }
}

impl Qp {
    /// Takes a request in.
    pub(super) fn handle_request(&mut self, packet: &Packet<'_>, env: &mut Env) {
        let Some(info) = packet.info() else { return };
        if !self.resp.established {
            self.resp.established = true;
            if self.state() == QpState::Rtr {
                // Nobody told us that the connection is up, but here is a packet.
                self.raise(EventType::CommEst, env);
            }
        }
        if self.kind == QpType::Uc {
            return self.handle_unreliable(packet, info, env);
        }
        let psn = packet.bth().psn();
        match psn.since(self.resp.epsn) {
            0 => {
                self.resp.refused = false;
                self.resp.hold.note_request();
                if let Err(fault) = self.execute(packet, info, env) {
                    self.refuse(psn, fault, env);
                }
            }
            1.. => self.out_of_sequence(env),
            _ => {
                // The peer misses an answer.
                self.resp.passed_over = true;
                self.handle_duplicate(packet, info, psn, env);
            }
        }
        if self.resp.owes() {
            self.schedule(env);
        }
    }

    /// Takes a request in whose opcode nobody has assigned: in its turn it is refused, as others that make no sense.
    pub(super) fn handle_unassigned(&mut self, psn: Psn, env: &mut Env) {
        // Rule: Q-25.
        match psn.since(self.resp.epsn) {
            0 => self.refuse(psn, INVALID, env),
            1.. => self.out_of_sequence(env),
            _ => env.count(Counter::Duplicate),
        }
        self.schedule(env);
    }

    /// A packet is missing before this one: say so, once.
    fn out_of_sequence(&mut self, env: &mut Env) {
        // Rule: P-03.1.
        env.count(Counter::OutOfSequence);
        // Rule: P-03.2.
        if !self.resp.refused {
            self.resp.refused = true;
            let epsn = self.resp.epsn;
            self.resp.owe_refusal(epsn, Owing::Refused(NakCode::PsnSequenceError));
        }
    }

    /// A request was not executed: tell the requester, and complete what it took.
    pub(super) fn refuse(&mut self, psn: Psn, fault: Fault, env: &mut Env) {
        // Rule: P-08.2.
        let (answer, status) = match fault {
            Fault::NotReady => {
                // Rule: Q-07.
                env.count(Counter::RnrSent);
                // What follows it comes too early as well, and needs no refusal of its own.
                self.resp.refused = true;
                return self.resp.owe_refusal(psn, Owing::NotReady);
            }
            Fault::Refused(code, status) => (Some(code), status),
            Fault::Silent(status) => (None, status),
            Fault::Backlog => return env.count(Counter::Backlog),
        };
        env.count(Counter::Refused);
        if let Some(code) = answer {
            self.resp.owe_refusal(psn, Owing::Refused(code));
        }
        match self.resp.abandon() {
            Some(begun) => self.complete_begun(begun, status, env),
            // Rule: Q-30.
            None if answer == Some(NakCode::RemoteAccessError) => {
                self.raise(EventType::QpAccessErr, env);
            }
            None => self.raise(EventType::QpReqErr, env),
        }
        self.fail(env);
    }

    /// Completes a receive work request with an error.
    fn complete_begun(
        &mut self,
        (taken, srq): (Taken, Option<SrqHandle>),
        status: WcStatus,
        env: &mut Env,
    ) {
        let Some(id) = self.recv_queue(srq, env).map(|queue| queue.release(taken)) else { return };
        let wc = Wc::new(id, status, WcOpcode::Recv, self.qpn);
        let cq = self.recv_cq_of(srq, env);
        env.complete(cq, wc, true);
    }

    /// Executes the request that is next in sequence.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.check_sequence(info)?;
        self.check_rights(packet, info)?;
        match info.operation {
            Operation::Send => self.execute_send(packet, info, env),
            Operation::Write => self.execute_write(packet, info, env),
            Operation::ReadRequest => self.execute_read(packet, info, env),
            Operation::CompareSwap | Operation::FetchAdd => self.execute_atomic(packet, info, env),
            Operation::AtomicWrite => self.execute_atomic_write(packet, info, env),
            Operation::Flush => self.execute_flush(packet, env),
            _ => Err(INVALID),
        }
    }

    /// A message is not interrupted, and has a beginning.
    fn check_sequence(&self, info: &OpcodeInfo) -> Result<(), Fault> {
        let fits = match self.resp.message {
            None => info.position.begins(),
            Some(Message::Send { .. }) => {
                info.operation == Operation::Send && !info.position.begins()
            }
            Some(Message::Write { .. }) => {
                info.operation == Operation::Write && !info.position.begins()
            }
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    /// What the queue pair does not allow is no valid request, whatever the key says.
    fn check_rights(&self, packet: &Packet<'_>, info: &OpcodeInfo) -> Result<(), Fault> {
        let needed = match info.operation {
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => flush_access(packet).ok_or(INVALID)?,
            _ => return Ok(()),
        };
        if self.attr.qp_access_flags.contains(needed) { Ok(()) } else { Err(INVALID) }
    }

    /// How long a packet may be, its place in the message says.
    pub(super) fn check_length(&self, packet: &Packet<'_>, info: &OpcodeInfo) -> Result<(), Fault> {
        let len = packet.payload_len();
        // Rules: W-50.2, P-09.1.
        let right = info.payload.allows(len, self.mtu as usize);
        if right && usize::from(packet.pad_len()) == len.wrapping_neg() % 4 {
            Ok(())
        } else {
            Err(LENGTH)
        }
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        if info.position.begins() {
            let (taken, srq) = self.take_receive(packet, env)?;
            self.resp.message = Some(Message::Send { taken, srq, received: 0 });
        }
        let Some(Message::Send { taken, srq, received }) = self.resp.message else {
            return Err(INVALID);
        };
        self.check_length(packet, info)?;
        let data = packet.payload();
        self.scatter(taken, srq, received, data, env)?;
        let received = received + u32::try_from(data.len()).map_err(|_| INVALID)?;
        if !info.position.ends() {
            self.resp.message = Some(Message::Send { taken, srq, received });
            self.accepted(packet, 1, false);
            return Ok(());
        }
        let mut wc = Wc::new(crate::verbs::WrId(0), WcStatus::Success, WcOpcode::Recv, self.qpn)
            .with_byte_len(received);
        if let Some(imm) = packet.imm_dt() {
            wc = wc.with_imm(imm.data());
        }
        if let Some(ieth) = packet.ieth() {
            // A key that cannot be invalidated is our failure: the requester is not told.
            let pd = self.memory_domain(packet, env);
            env.keys
                // Rule: Q-11.
                .invalidate(pd, self.owner(), ieth.rkey())
                .map_err(|_| Fault::Silent(WcStatus::LocAccessErr))?;
            wc = wc.with_invalidated(ieth.rkey());
        }
        self.finish_receive(packet, taken, srq, wc, env);
        Ok(())
    }

    /// A message that took a receive work request is complete.
    fn finish_receive(
        &mut self,
        packet: &Packet<'_>,
        taken: Taken,
        srq: Option<SrqHandle>,
        mut wc: Wc,
        env: &mut Env,
    ) {
        self.resp.message = None;
        if let Some(queue) = self.recv_queue(srq, env) {
            wc.id = queue.release(taken);
        }
        let cq = self.recv_cq_of(srq, env);
        if env.complete(cq, wc, packet.bth().solicited()) {
            self.accepted(packet, 1, true);
        } else {
            // What nobody here learns of is not acknowledged.
            self.fail_unheard(env);
        }
    }

    /// A request was executed: it moves the expected PSN by `psns`, and is acknowledged if that was asked for.
    fn accepted(&mut self, packet: &Packet<'_>, psns: u32, ends: bool) {
        self.resp.epsn = self.resp.epsn.plus(psns);
        if ends {
            // Rule: P-12.1.
            self.resp.msn = self.resp.msn.plus(1);
        }
        // Rules: P-14.3, Q-05.
        if packet.bth().ack_req() && self.kind.is_reliable() {
            self.resp.forget_wrapped();
            let psn = self.resp.epsn.plus(Psn::HALF * 2 - 1);
            self.resp.owe_ack(psn);
        }
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Fault> {
        // A message with immediate data takes a receive work request, and without one is not begun to be ended.
        let receive =
            // Rule: P-11.1.
            if info.receive.takes() { Some(self.take_receive(packet, env)?) } else { None };
        let written = self.write_packet(packet, info, env);
        let total = match written {
            Ok(total) => total,
            Err(fault) => {
                self.resp.message = None;
                self.resp.spare = receive.or(self.resp.spare);
                return Err(fault);
            }
        };
        if info.position.ends() {
            env.count(Counter::WriteReceived);
        }
        let Some((taken, srq)) = receive else {
            self.accepted(packet, 1, info.position.ends());
            return Ok(());
        };
        // Rule: P-11.2.
        let opcode = WcOpcode::RecvRdmaWithImm;
        let mut wc = Wc::new(crate::verbs::WrId(0), WcStatus::Success, opcode, self.qpn)
            .with_byte_len(total);
        if let Some(imm) = packet.imm_dt() {
            wc = wc.with_imm(imm.data());
        }
        self.finish_receive(packet, taken, srq, wc, env);
        Ok(())
    }

    /// Puts the payload of a write in its place; returns the length of the whole message.
    fn write_packet(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<u32, Fault> {
        self.check_length(packet, info)?;
        let pd = self.memory_domain(packet, env);
        if let Some(reth) = packet.reth() {
            let (va, rkey, total) = (reth.va(), reth.rkey(), reth.dma_len());
            if u64::from(total) > limits::MESSAGE_BYTES_MAX {
                return Err(LENGTH);
            }
            self.check_total(packet, info, total)?;
            // The whole range is checked up front; of nothing, nothing is.
            // Rule: P-10.
            if total > 0 {
                env.keys
                    .remote(Some(pd), self.owner(), rkey, va, total.into(), Access::REMOTE_WRITE)
                    .map_err(|_| ACCESS)?;
            }
            self.resp.message = Some(Message::Write { va, rkey, left: total, total });
        }
        let Some(Message::Write { va, rkey, left, total }) = self.resp.message else {
            return Err(INVALID);
        };
        self.check_total(packet, info, left)?;
        let data = packet.payload();
        let len = u32::try_from(data.len()).map_err(|_| INVALID)?;
        if len > 0 {
            let grant = env
                .keys
                .remote(Some(pd), self.owner(), rkey, va, len.into(), Access::REMOTE_WRITE)
                .map_err(|_| ACCESS)?;
            grant.region.write(grant.offset, data).map_err(|_| ACCESS)?;
        }
        let next =
            Message::Write { va: va.wrapping_add(len.into()), rkey, left: left - len, total };
        self.resp.message = if info.position.ends() { None } else { Some(next) };
        Ok(total)
    }

    /// The payloads of a write add up to its length, and only the last packet ends it.
    fn check_total(&self, packet: &Packet<'_>, info: &OpcodeInfo, left: u32) -> Result<(), Fault> {
        // Rule: P-09.3.
        let len = packet.payload_len();
        let right = if info.position.ends() { len == left as usize } else { len < left as usize };
        if right { Ok(()) } else { Err(LENGTH) }
    }

    /// A request of an unreliable connection: what is not in order is dropped until a message begins.
    fn handle_unreliable(&mut self, packet: &Packet<'_>, info: &OpcodeInfo, env: &mut Env) {
        let psn = packet.bth().psn();
        // Rule: P-14.1.
        let in_order = psn == self.resp.epsn && self.check_sequence(info).is_ok();
        // Rule: Q-21.
        if !in_order {
            self.abandon_unreliable();
        }
        self.resp.epsn = psn;
        if self.resp.message.is_none() && !info.position.begins() {
            self.resp.epsn = psn.plus(1);
            return env.count(Counter::OutOfMessage);
        }
        match self.execute(packet, info, env) {
            Ok(()) => {}
            Err(Fault::NotReady) => {
                env.count(Counter::NoReceive);
                self.abandon_unreliable();
                self.resp.epsn = psn.plus(1);
            }
            Err(Fault::Refused(NakCode::RemoteOperationalError, status)) => {
                // Our own buffer is at fault.
                if let Some(begun) = self.resp.abandon() {
                    self.complete_begun(begun, status, env);
                }
                self.fail(env);
            }
            Err(_) => {
                env.count(Counter::BadRequest);
                self.abandon_unreliable();
                self.resp.epsn = psn.plus(1);
            }
        }
    }

    /// Gives up a message; the receive work request that it took is for the next one.
    fn abandon_unreliable(&mut self) {
        // Rule: P-14.2.
        self.resp.spare = self.resp.abandon();
    }
}
