//! Receive side of a queue pair: requests are checked and executed.
//!
//! A request passes PSN, opcode sequence, access rights of the queue pair, resources, length and
//! key, in this order, before it is executed: the order of the checks is observable. Read §9.7 and
//! §9.8 of the specification (volume 1) before changing this folder.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | state; PSN check, NAKs, posting, flushing |
//! | `execute` | checks of a request, SEND and WRITE |
//! | `run` | MIDDLEs of a WRITE, one after the other |
//! | `resources` | READ, atomics and FLUSH: responder resources, and duplicates |
//! | `receive` | receive work requests: own or shared queue |
//! | `early` | packets that come before others: held, placed, executed when the gap closes |
//! | `unreliable` | UC: no responses, and a gap abandons the message |

mod early;
mod execute;
mod receive;
mod resources;
mod run;
mod unreliable;

pub(super) use receive::check_srq_limit;
pub(in crate::engine) use run::Run;

use std::collections::VecDeque;

use super::super::Counter;
use super::super::env::Env;
use super::super::recovery::ReceiveMode;
use super::super::recv_queue::{RecvQueue, RecvSlot};
use super::super::reorder::Reorder;
use super::Failure;
use super::attr::Attributes;
use super::responses::{AckKind, ReadFault, ResponseQueue};
use crate::verbs::{
    CqHandle, EventType, PostError, QpState, QpType, RecvWr, SrqHandle, Wc, WcOpcode, WcStatus,
    WrId,
};
use crate::wire::aeth::{Credits, NakCode};
use crate::wire::batch::Batch;
use crate::wire::{Msn, Opcode, OpcodeInfo, Packet, Psn, RKey};
use resources::ResponderResource;

/// Receive side of a queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Rx {
    rq: RecvQueue,
    /// Expected PSN.
    epsn: Psn,
    /// Number of completed requests.
    msn: Msn,
    /// Message that was begun and not ended.
    message: Option<Message>,
    /// Receive work request that an abandoned message left behind.
    spare: Option<(RecvSlot, Option<SrqHandle>)>,
    /// PSN of the last request that has a response other than an ACK.
    last_rd_atomic: Option<Psn>,
    /// Whether a NAK was sent and the packet it asks for has not come (P-03).
    nak_sent: bool,
    /// Responder resources, oldest first.
    resources: VecDeque<ResponderResource>,
    responses: ResponseQueue,
    /// Whether ACKs advertise the receives that are posted.
    advertise_credits: bool,
    /// Whether a packet has come since RTR was entered.
    established: bool,
    /// Whether the last NAK was an RNR NAK, and the packet that it is for has not come.
    rnr_sent: bool,
    /// Packets that came before the expected one.
    early: Option<Box<Reorder>>,
}

/// A message that was begun and not ended.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { taken: RecvSlot, srq: Option<SrqHandle>, received: u32 },
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Reason for which a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// No receive work request is posted.
    NotReady,
    /// The request is NAKed; a receive work request that it took completes with this status.
    Nak(NakCode, WcStatus),
    /// The request fails here without a NAK.
    Silent(WcStatus),
    /// Too many responses are pending: the request is dropped.
    Backlog,
    /// The request was executed, but its completion was lost: the completion queue overran.
    CqOverrun,
}

// Rule: P-08.1.
const INVALID: Fault = Fault::Nak(NakCode::InvalidRequest, WcStatus::LocQpOpErr);
const LENGTH: Fault = Fault::Nak(NakCode::InvalidRequest, WcStatus::LocLenErr);
// Rule: Q-10.
const ACCESS: Fault = Fault::Nak(NakCode::RemoteAccessError, WcStatus::LocAccessErr);

impl Rx {
    /// A receive side with a receive queue of its own for `depth` work requests.
    pub(super) fn new(depth: u32, max_sge: u32, advertise_credits: bool) -> Self {
        Self {
            rq: RecvQueue::new(depth, max_sge),
            epsn: Psn::new(0),
            msn: Msn::new(0),
            message: None,
            spare: None,
            last_rd_atomic: None,
            nak_sent: false,
            resources: VecDeque::new(),
            responses: ResponseQueue::default(),
            advertise_credits,
            established: false,
            rnr_sent: false,
            early: None,
        }
    }

    /// Number of bytes that the receive queue takes when it is in use.
    pub(super) fn bytes(&self) -> u64 {
        RecvQueue::bytes(self.rq.depth(), self.rq.max_sge())
    }

    /// Sets the expected PSN: `rq_psn`.
    pub(super) fn start_at(&mut self, psn: Psn) {
        self.epsn = psn;
    }

    /// Expected PSN.
    #[inline]
    pub(super) fn epsn(&self) -> Psn {
        self.epsn
    }

    /// Adds a receive to the queue.
    #[inline]
    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.rq.push(wr)
    }

    /// Prefetches the receive work request that the next message takes.
    #[inline]
    pub(super) fn prefetch_next(&self) {
        self.rq.prefetch();
    }

    /// Prefetches the slot of the next receive that is posted.
    #[inline]
    pub(super) fn prefetch_free(&self) {
        self.rq.prefetch_free();
    }

    /// The pending responses.
    #[inline]
    pub(super) fn responses(&mut self) -> &mut ResponseQueue {
        &mut self.responses
    }

    /// Sends the next packet of the pending responses.
    pub(super) fn transmit_response(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<(), Failure> {
        let credits = self.credits(attr);
        if self.transmit_sack(attr, env, batch) {
            return Ok(());
        }
        match self.responses.transmit_next(credits, attr, env, batch) {
            Ok(()) => Ok(()),
            // Rule: Q-13.
            Err(ReadFault { psn }) => self.refuse(psn, ACCESS, attr, env),
        }
    }

    /// Credits that an ACK advertises.
    fn credits(&self, attr: &Attributes) -> Credits {
        // Rule: P-13.3.
        if self.advertise_credits && attr.srq.is_none() && self.rq.depth() > 0 {
            Credits::advertise(self.rq.len())
        } else {
            Credits::UNLIMITED
        }
    }

    /// Whether a request is the next in sequence, and nothing but its own checks may refuse it:
    /// [`execute_expected`](Self::execute_expected) does what
    /// [`handle_request`](Self::handle_request) would.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn expects(&self, packet: &Packet<'_>) -> bool {
        packet.bth().psn() == self.epsn && self.established && self.early.is_none()
    }

    /// Executes a request that is [expected](Self::expects).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn execute_expected(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        (self.nak_sent, self.rnr_sent) = (false, false);
        self.responses.note_request();
        // A whole SEND between others, for a receive of its own, passes the checks of sequence and
        // access. Its opcode is a constant here, so its properties are not looked up.
        let is_between = self.message.is_none() && self.spare.is_none() && attr.srq.is_none();
        let executed = match info.opcode {
            opcode @ Opcode::RC_SEND_ONLY if is_between => {
                self.execute_send::<true>(packet, opcode.info().unwrap_or(info), attr, env)
            }
            Opcode::RC_RDMA_WRITE_MIDDLE => self.execute_middle(packet, info, attr, env),
            _ => self.execute(packet, info, attr, env),
        };
        match executed {
            Ok(()) => Ok(()),
            Err(fault) => self.refuse(packet.bth().psn(), fault, attr, env),
        }
    }

    /// Handles a request.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        let Some(info) = packet.info() else { return Ok(()) };
        if !self.established {
            self.established = true;
            if attr.state() == QpState::Rtr {
                // No RTU came, but this packet shows that the connection is established.
                attr.raise(EventType::CommEst, env);
            }
        }
        if attr.kind == QpType::Uc {
            return self.handle_unreliable(packet, info, attr, env);
        }
        let psn = packet.bth().psn();
        match psn.since(self.epsn) {
            0 => {
                (self.nak_sent, self.rnr_sent) = (false, false);
                self.responses.note_request();
                if let Err(fault) = self.execute(packet, info, attr, env) {
                    return self.refuse(psn, fault, attr, env);
                }
                if self.early.is_some() {
                    return self.execute_early(attr, env);
                }
            }
            1.. if env.config.receive == ReceiveMode::InOrder => self.nak_sequence(env),
            1.. => self.handle_early(packet, info, attr, env),
            _ => {
                // The peer misses a response.
                self.responses.expedite_ack();
                self.handle_duplicate(packet, info, psn, attr, env);
            }
        }
        Ok(())
    }

    /// Handles a request with a reserved opcode: in sequence it is NAKed, as any other invalid
    /// request.
    pub(super) fn handle_unassigned(
        &mut self,
        psn: Psn,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        // Rule: Q-25.
        match psn.since(self.epsn) {
            0 => return self.refuse(psn, INVALID, attr, env),
            1.. => self.nak_sequence(env),
            _ => env.count(Counter::Duplicate),
        }
        Ok(())
    }

    /// NAKs a gap before the packet, once until the expected PSN comes (P-03).
    fn nak_sequence(&mut self, env: &mut Env) {
        // Rule: P-03.1.
        env.count(Counter::OutOfSequence);
        // Rule: P-03.2.
        if !self.nak_sent {
            self.nak_sent = true;
            let kind = AckKind::Nak(NakCode::PsnSequenceError);
            self.responses.nak(self.epsn, self.msn, kind);
        }
    }

    /// Refuses a request: sends the NAK, and completes the receive work request that it took.
    #[cold]
    fn refuse(
        &mut self,
        psn: Psn,
        fault: Fault,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        // Rule: P-08.2.
        let (code, status) = match fault {
            Fault::NotReady => {
                // Rule: Q-07.
                env.count(Counter::RnrSent);
                // Packets after it are out of sequence, and get no NAK of their own.
                (self.nak_sent, self.rnr_sent) = (true, true);
                env.reorder.close(&mut self.early);
                self.responses.nak(psn, self.msn, AckKind::RnrNak);
                return Ok(());
            }
            Fault::Nak(code, status) => (Some(code), status),
            Fault::Silent(status) => (None, status),
            Fault::Backlog => {
                env.count(Counter::Backlog);
                return Ok(());
            }
            Fault::CqOverrun => return Err(Failure::Fatal),
        };
        env.count(Counter::Refused);
        if let Some(code) = code {
            self.responses.nak(psn, self.msn, AckKind::Nak(code));
        }
        match self.abandon() {
            Some(begun) => self.complete_begun(begun, status, attr, env),
            // Rule: Q-30.
            None if code == Some(NakCode::RemoteAccessError) => {
                attr.raise(EventType::QpAccessErr, env);
            }
            None => attr.raise(EventType::QpReqErr, env),
        }
        Err(Failure::Reported)
    }

    /// Abandons the message that was begun; returns the receive work request that it had taken.
    fn abandon(&mut self) -> Option<(RecvSlot, Option<SrqHandle>)> {
        match self.message.take() {
            Some(Message::Send { taken, srq, .. }) => Some((taken, srq)),
            Some(Message::Write { .. }) | None => self.spare.take(),
        }
    }

    /// Completes a receive work request with an error.
    fn complete_begun(
        &mut self,
        (taken, srq): (RecvSlot, Option<SrqHandle>),
        status: WcStatus,
        attr: &Attributes,
        env: &mut Env,
    ) {
        let Some(id) = self.recv_queue(srq, env).map(|queue| queue.release(taken)) else { return };
        let wc = Wc::new(id, status, WcOpcode::Recv, attr.qpn);
        let cq = receive::recv_cq_of(srq, attr, env);
        env.complete(cq, wc, true);
    }

    /// Completes every receive as flushed, the one that was begun first.
    pub(super) fn flush(&mut self, attr: &Attributes, env: &mut Env) {
        env.reorder.close(&mut self.early);
        if let Some((taken, srq)) = self.abandon()
            && let Some(queue) = self.recv_queue(srq, env)
        {
            // Once begun, it cannot return to its queue, not even to a shared one.
            let id = queue.release(taken);
            let cq = receive::recv_cq_of(srq, attr, env);
            flush_one(id, cq, attr, env);
        }
        while let Some(taken) = self.rq.take() {
            let id = self.rq.release(taken);
            flush_one(id, attr.recv_cq, attr, env);
        }
    }

    /// Releases the receive work request that a message has taken, without a completion.
    pub(super) fn release_begun(&mut self, env: &mut Env) {
        env.reorder.close(&mut self.early);
        if let Some((taken, srq)) = self.abandon()
            && let Some(queue) = self.recv_queue(srq, env)
        {
            queue.release(taken);
        }
    }

    /// Returns to the state of a new queue pair; posted receives are forgotten without completions.
    /// The caller [releases](Self::release_begun) the receives of begun messages before.
    pub(super) fn reset(&mut self) {
        self.rq.clear();
        (self.epsn, self.msn) = (Psn::new(0), Msn::new(0));
        (self.message, self.spare, self.last_rd_atomic) = (None, None, None);
        (self.nak_sent, self.rnr_sent, self.established) = (false, false, false);
        self.resources = VecDeque::new();
        self.responses.reset();
    }
}

fn flush_one(id: WrId, cq: CqHandle, attr: &Attributes, env: &mut Env) {
    let wc = Wc::new(id, WcStatus::WrFlushErr, WcOpcode::Recv, attr.qpn);
    env.complete(cq, wc, false);
}

#[cfg(test)]
mod tests;
