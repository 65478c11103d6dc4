//! Checks of a request, and the execution of SEND and WRITE.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::recv_queue::RecvSlot;
use super::super::attr::Attributes;
use super::receive::{memory_domain, recv_cq_of};
use super::resources::flush_access;
use super::{ACCESS, Fault, INVALID, LENGTH, Message, Run, Rx};
use crate::verbs::{Access, SrqHandle, Wc, WcOpcode, WcStatus, WrId, limits};
use crate::wire::{Opcode, OpcodeInfo, Operation, Packet, Psn, Right};

impl Rx {
    /// Executes the request that is next in sequence.
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.execute_as::<false>(packet, info, attr, env)
    }

    /// Executes a MIDDLE of a WRITE, of which a long message mostly consists. With an opcode that
    /// the compiler knows it takes 70 instructions less.
    #[inline(never)]
    pub(super) fn execute_middle(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        let info = Opcode::RC_RDMA_WRITE_MIDDLE.info().unwrap_or(info);
        self.execute_as::<true>(packet, info, attr, env)
    }

    /// Executes a request. It is inlined, so that the compiler drops the other operations where
    /// `info` is a constant. After one that is `IN_RUN`, others like it may follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn execute_as<const IN_RUN: bool>(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.check_sequence(info)?;
        check_access(packet, info, attr)?;
        match info.operation {
            Operation::Send => self.execute_send::<false>(packet, info, attr, env),
            Operation::Write => self.execute_write::<IN_RUN>(packet, info, attr, env),
            Operation::ReadRequest => self.execute_read(packet, info, attr, env),
            Operation::CompareSwap | Operation::FetchAdd => {
                self.execute_atomic(packet, info, attr, env)
            }
            Operation::AtomicWrite => self.execute_atomic_write(packet, info, attr, env),
            Operation::Flush => self.execute_flush(packet, attr, env),
            _ => Err(INVALID),
        }
    }

    /// Checks the opcode sequence: a message begins with FIRST or ONLY and is not interrupted.
    #[inline]
    pub(super) fn check_sequence(&self, info: &OpcodeInfo) -> Result<(), Fault> {
        let fits = match self.message {
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

    /// Executes a packet of a SEND. `PLAIN` tells the compiler that it is a whole message without
    /// extension headers, for a receive queue of its own.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn execute_send<const PLAIN: bool>(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        let (taken, srq, before) = if PLAIN {
            (self.rq.take().ok_or(Fault::NotReady)?, None, 0)
        } else if info.position.begins() {
            let (taken, srq) = self.take_receive(packet, attr, env)?;
            (taken, srq, 0)
        } else if let Some(Message::Send { taken, srq, received }) = self.message {
            (taken, srq, received)
        } else {
            return Err(INVALID);
        };
        let message = |received| Some(Message::Send { taken, srq, received });
        let filled = self.fill_receive::<PLAIN>(packet, info, (taken, srq), before, attr, env);
        let received = filled.inspect_err(|_| self.message = message(before))?;
        if !PLAIN && !info.position.ends() {
            self.message = message(received);
            self.accepted(packet, false, attr);
            return Ok(());
        }
        let mut wc =
            Wc::new(WrId(0), WcStatus::Success, WcOpcode::Recv, attr.qpn).with_byte_len(received);
        if !PLAIN && let Some(imm) = packet.imm_dt() {
            wc = wc.with_imm(imm.data());
        }
        if !PLAIN && let Some(ieth) = packet.ieth() {
            wc = wc.with_invalidated(ieth.rkey());
        }
        self.finish_receive(packet, (taken, srq), wc, attr, env)
    }

    /// Writes the payload of a SEND behind the `received` bytes of its message, and invalidates the
    /// key that it names; returns the number of bytes that the message has then.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn fill_receive<const PLAIN: bool>(
        &self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        (taken, srq): (RecvSlot, Option<SrqHandle>),
        received: u32,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<u32, Fault> {
        check_length(packet, info, attr)?;
        let data = packet.data();
        self.scatter(taken, srq, received, data, attr, env)?;
        if !PLAIN && let Some(ieth) = packet.ieth() {
            // §9.9.6.3: a key that cannot be invalidated is a local failure, without a NAK.
            let pd = memory_domain(packet, attr, env);
            env.keys
                // Rule: Q-11.
                .invalidate(pd, attr.window_owner(), ieth.rkey())
                .map_err(|_| Fault::Silent(WcStatus::LocAccessErr))?;
        }
        Ok(received + u32::try_from(data.len()).map_err(|_| INVALID)?)
    }

    /// Completes the receive work request of a message.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn finish_receive(
        &mut self,
        packet: &Packet<'_>,
        (taken, srq): (RecvSlot, Option<SrqHandle>),
        mut wc: Wc,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        self.message = None;
        if let Some(queue) = self.recv_queue(srq, env) {
            wc.id = queue.release(taken);
        }
        let cq = recv_cq_of(srq, attr, env);
        if !env.complete(cq, wc, packet.bth().solicited()) {
            // A message whose completion was lost is not acknowledged.
            return Err(Fault::CqOverrun);
        }
        self.accepted(packet, true, attr);
        Ok(())
    }

    /// Advances the expected PSN, counts a message that ends (P-12), and acknowledges the packet if
    /// it asks for that.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn accepted(&mut self, packet: &Packet<'_>, ends: bool, attr: &Attributes) {
        let psn = self.epsn;
        self.epsn = psn.plus(1);
        if ends {
            // Rule: P-12.1.
            self.msn = self.msn.plus(1);
        }
        // Rules: P-14.3, Q-05.
        if packet.bth().ack_req() && attr.kind.is_reliable() {
            self.forget_wrapped();
            self.responses.acknowledge(psn, self.msn);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn execute_write<const IN_RUN: bool>(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Fault> {
        // P-11: a WRITE with immediate data takes a receive at its last packet. If none is posted,
        // it is RNR-NAKed before anything is written.
        let receive =
            // Rule: P-11.1.
            if info.receive.takes() { Some(self.take_receive(packet, attr, env)?) } else { None };
        let total = match self.write_packet::<IN_RUN>(packet, info, attr, env) {
            Ok(total) => total,
            Err(fault) => {
                self.message = None;
                self.spare = receive.or(self.spare);
                return Err(fault);
            }
        };
        if info.position.ends() {
            env.count(Counter::WriteReceived);
        }
        let Some(receive) = receive else {
            self.accepted(packet, info.position.ends(), attr);
            return Ok(());
        };
        // Rule: P-11.2.
        let opcode = WcOpcode::RecvRdmaWithImm;
        let mut wc = Wc::new(WrId(0), WcStatus::Success, opcode, attr.qpn).with_byte_len(total);
        if let Some(imm) = packet.imm_dt() {
            wc = wc.with_imm(imm.data());
        }
        self.finish_receive(packet, receive, wc, attr, env)
    }

    /// Writes the payload of a WRITE packet to memory; returns the length of the whole message.
    /// After a packet that is `IN_RUN`, a MIDDLE on a reliable connection, others like it may
    /// follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_packet<const IN_RUN: bool>(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<u32, Fault> {
        check_length(packet, info, attr)?;
        let (pd, owner) = (memory_domain(packet, attr, env), attr.window_owner());
        if let Some(reth) = packet.reth() {
            let (va, rkey, total) = (reth.va(), reth.rkey(), reth.dma_len());
            // C9-94
            if u64::from(total) > limits::MESSAGE_BYTES_MAX {
                return Err(LENGTH);
            }
            check_total(packet, info, total)?;
            // The key is checked for the whole message. A zero-length request skips the check
            // (C9-88).
            // Rule: P-10.
            if total > 0 {
                env.keys
                    .remote(Some(pd), owner, rkey, va, total.into(), Access::REMOTE_WRITE)
                    .map_err(|_| ACCESS)?;
            }
            self.message = Some(Message::Write { va, rkey, left: total, total });
        }
        let Some(Message::Write { va, rkey, left, total }) = self.message else {
            return Err(INVALID);
        };
        check_total(packet, info, left)?;
        // Payload that arrived out of order may have been placed already: the packet has none then.
        let data = packet.data();
        let len = u32::try_from(packet.payload_len()).map_err(|_| INVALID)?;
        if len > 0 {
            let remote = |len: u32| {
                env.keys.remote(Some(pd), owner, rkey, va, len.into(), Access::REMOTE_WRITE)
            };
            let whole = if IN_RUN { remote(left).ok() } else { None };
            let grant = whole.map_or_else(|| remote(len), Ok).map_err(|_| ACCESS)?;
            grant.region.write_payload(grant.offset, data).map_err(|_| ACCESS)?;
            if whole.is_some() {
                let place = (grant.slot, grant.offset.wrapping_sub(va));
                env.run = Run::new(packet, rkey, place, attr, env.keys.version());
            }
        }
        let next =
            Message::Write { va: va.wrapping_add(len.into()), rkey, left: left - len, total };
        self.message = if info.position.ends() { None } else { Some(next) };
        Ok(total)
    }

    /// PSN before the expected one: the last that was executed.
    pub(super) fn last_psn(&self) -> Psn {
        self.epsn.plus(Psn::HALF * 2 - 1)
    }
}

/// Checks the access flags of the queue pair. What they deny is an invalid request, whatever the
/// key allows.
fn check_access(packet: &Packet<'_>, info: &OpcodeInfo, attr: &Attributes) -> Result<(), Fault> {
    let needed = match info.right {
        Right::None => return Ok(()),
        Right::Flush => flush_access(packet).ok_or(INVALID)?,
        right => Access::needed(right),
    };
    if attr.access.contains(needed) { Ok(()) } else { Err(INVALID) }
}

/// Checks the payload length against the packet's position in the message (C9-92, P-09).
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn check_length(
    packet: &Packet<'_>,
    info: &OpcodeInfo,
    attr: &Attributes,
) -> Result<(), Fault> {
    let len = packet.payload_len();
    // Rules: W-50.2, P-09.1.
    let right = info.payload.allows(len, attr.mtu as usize);
    if right && usize::from(packet.pad_len()) == len.wrapping_neg() % 4 {
        Ok(())
    } else {
        Err(LENGTH)
    }
}

/// Checks that the payloads of a WRITE add up to its DMA length, and that only its last packet ends
/// it (P-09).
fn check_total(packet: &Packet<'_>, info: &OpcodeInfo, left: u32) -> Result<(), Fault> {
    let len = packet.payload_len();
    // Rule: P-09.3.
    let right = if info.position.ends() { len == left as usize } else { len < left as usize };
    if right { Ok(()) } else { Err(LENGTH) }
}
