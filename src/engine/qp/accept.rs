//! Acceptance of packets: the checks that a packet passes before a side of the queue pair handles
//! it, in the order of rxe.
//!
//! Most packets are of a reliable connection, come from its peer as those before, and are expected
//! next: they pass [one check](Qp::is_of_peer). All others take every check in its order.

use super::super::Counter;
use super::super::env::Env;
use super::flow::{CONGESTION_EXPERIENCED, Evidence};
use super::tx::ResponseOutcome;
use super::{Failure, Qp, Run, raw, ud};
use crate::memory::Payload;
use crate::verbs::{QpHandle, QpType};
use crate::wire::aeth::Answer;
use crate::wire::{Bth, Opcode, OpcodeInfo, Operation, Packet, Psn, Received, Role};

impl Qp {
    /// Accepts a packet for its QPN, or names the reason to drop it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::engine) fn accept(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Counter> {
        if self.is_of_peer(received, packet, info) {
            let (rules, role) = (*self.attr.rules(), info.role);
            if role == Role::Request && rules.requests && self.rx.expects(packet) {
                let psn = self.rx.epsn();
                let executed = self.rx.execute_expected(packet, info, &self.attr, env);
                self.request_handled(executed, env);
                self.learn_port(self.rx.epsn() != psn, received, env);
                return Ok(());
            }
            let is_sack = info.operation == Operation::SelectiveAcknowledge;
            if role == Role::Response && !is_sack && rules.responses {
                let una = self.tx.una();
                self.handle_response(packet, env);
                self.learn_port(self.tx.una() != una, received, env);
                return Ok(());
            }
        }
        self.accept_checked(received, packet, info, env)
    }

    /// Whether a packet for a reliable connection comes from its peer, by the port and through the
    /// partition that are known, and tells nothing to congestion control: of the checks of
    /// [`accept_checked`](Self::accept_checked) only that of the state is left. So most packets
    /// take 150 instructions less.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_of_peer(&self, received: &Received<'_>, packet: &Packet<'_>, info: &OpcodeInfo) -> bool {
        info.service == self.attr.service
            && self.attr.kind == QpType::Rc
            && self.is_from_peer(received)
            && self.port.is(received.source_port)
            && self.attr.pkey.matches(packet.bth().pkey())
            && received.ecn != CONGESTION_EXPERIENCED
            && self.cc.is_none()
    }

    /// Executes a packet that continues a run, with this PSN and payload. Returns whether it did;
    /// if not, nothing has changed. It saves some 200 instructions.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::engine) fn continue_run(
        &mut self,
        received: &Received<'_>,
        run: &Run,
        (psn, payload): (Psn, Payload<'_>),
        env: &mut Env,
    ) -> bool {
        let is_of_peer = self.is_from_peer(received)
            && self.port.is(received.source_port)
            && received.ecn != CONGESTION_EXPERIENCED
            && self.cc.is_none()
            && self.attr.rules().requests;
        if !is_of_peer || !self.rx.continue_run(run, psn, payload, &self.attr, env) {
            return false;
        }
        self.request_handled(Ok(()), env);
        self.learn_port(true, received, env);
        true
    }

    /// Checks a packet and accepts it, or names the reason to drop it.
    #[inline(never)]
    fn accept_checked(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        env: &mut Env,
    ) -> Result<(), Counter> {
        if info.service != self.attr.service || self.attr.kind == QpType::RawPacket {
            return Err(Counter::WrongService);
        }
        if self.attr.kind.is_datagram() {
            return self.receive_datagram(received, packet, env);
        }
        let rules = self.attr.rules();
        // Rule: S-02.2.
        let allowed = match info.role {
            Role::Request => rules.requests,
            Role::Response
                if info.operation == Operation::SelectiveAcknowledge
                    && !self.attr.is_selective() =>
            {
                return Err(Counter::BadOpcode);
            }
            Role::Response => rules.responses,
            Role::Notification => return Err(Counter::BadOpcode),
        };
        if !allowed {
            return Err(Counter::WrongState);
        }
        if !self.is_from_peer(received) {
            return Err(Counter::WrongPeer);
        }
        if !self.port.admits(received.source_port, env) {
            return Err(Counter::WrongPort);
        }
        if !self.attr.pkey.matches(packet.bth().pkey()) {
            return Err(Counter::BadPKey);
        }
        if received.ecn == CONGESTION_EXPERIENCED {
            self.note_congestion(env);
        }
        let before = self.progress();
        let evidence = self.cc.is_some().then(|| Evidence::new(env));
        if info.role == Role::Request {
            self.handle_request(packet, env);
        } else if is_sack_of_responses(packet, info) {
            self.rx.handle_response_sack(packet, &self.attr, env);
            self.schedule(env);
        } else {
            self.handle_response(packet, env);
        }
        if let Some(evidence) = evidence {
            self.note_response(before.1, evidence, received.ecn, env);
        }
        self.learn_port(self.progress() != before, received, env);
        Ok(())
    }

    /// Accepts a packet with a reserved opcode: a reliable connection NAKs one of its own service,
    /// others drop it.
    pub(in crate::engine) fn accept_unassigned(
        &mut self,
        received: &Received<'_>,
        bth: &Bth,
        env: &mut Env,
    ) -> Result<(), Counter> {
        let ours = self.attr.kind.is_reliable()
            && self.attr.opcode(Opcode(bth.opcode().0 & 0x1f)) == bth.opcode()
            && self.is_from_peer(received)
            && self.port.admits(received.source_port, env)
            && self.attr.pkey.matches(bth.pkey())
            && self.attr.rules().requests;
        if !ours {
            return Err(Counter::BadOpcode);
        }
        let handled = self.rx.handle_unassigned(bth.psn(), &self.attr, env);
        self.check(handled, env);
        self.schedule(env);
        Ok(())
    }

    /// Accepts a CNP; returns whether it is the first since the last
    /// [`take_congestion`](Self::take_congestion).
    pub(in crate::engine) fn accept_cnp(
        &mut self,
        received: &Received<'_>,
        env: &mut Env,
    ) -> Result<bool, Counter> {
        if !self.is_from_peer(received) {
            env.count(Counter::CnpIgnored);
            return Err(Counter::WrongPeer);
        }
        if !self.attr.rules().requests && !self.attr.rules().responses {
            env.count(Counter::CnpIgnored);
            return Err(Counter::WrongState);
        }
        env.count(Counter::CnpReceived);
        if env.config.congestion.is_on() {
            self.note_cnp(env);
        }
        Ok(!core::mem::replace(&mut self.congested, true))
    }

    /// Whether a CNP came that was not reported.
    pub(in crate::engine) fn is_congested(&self) -> bool {
        self.congested
    }

    /// Reports the CNPs that came: the next one is a new one.
    pub(in crate::engine) fn take_congestion(&mut self) -> QpHandle {
        self.congested = false;
        self.attr.handle
    }

    /// Receives a datagram.
    pub(in crate::engine) fn receive_datagram(
        &mut self,
        received: &Received<'_>,
        packet: &Packet<'_>,
        env: &mut Env,
    ) -> Result<(), Counter> {
        let completed = ud::receive(&mut self.rx, received, packet, &self.attr, env)?;
        self.check(completed, env);
        Ok(())
    }

    /// Receives a raw frame, or names the reason to drop it.
    pub(in crate::engine) fn receive_frame(
        &mut self,
        frame: &[u8],
        env: &mut Env,
    ) -> Result<(), Counter> {
        let completed = raw::receive(&mut self.rx, frame, &self.attr, env)?;
        self.check(completed, env);
        Ok(())
    }

    #[inline]
    fn handle_request(&mut self, packet: &Packet<'_>, env: &mut Env) {
        let handled = self.rx.handle_request(packet, &self.attr, env);
        self.request_handled(handled, env);
    }

    /// Fails the queue pair if its receive side did, and schedules the responses.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn request_handled(&mut self, handled: Result<(), Failure>, env: &mut Env) {
        self.check(handled, env);
        if self.rx.responses().is_pending() {
            self.schedule(env);
        }
    }

    fn handle_response(&mut self, packet: &Packet<'_>, env: &mut Env) {
        match self.tx.handle_response(packet, &self.attr, env) {
            Ok(ResponseOutcome::Ignored) => return,
            Ok(ResponseOutcome::MaySend) => {}
            Err(failure) => self.fail_with(failure, env),
        }
        self.schedule(env);
    }

    /// Learns the port of a packet that moved the connection forward, if it did.
    #[inline]
    fn learn_port(&mut self, has_moved: bool, received: &Received<'_>, env: &Env) {
        if has_moved {
            self.port.learn(received.source_port, env.now);
        }
    }

    /// Returns the PSNs that change when a packet of the peer moves the connection forward.
    #[inline]
    fn progress(&self) -> (Psn, Psn) {
        (self.rx.epsn(), self.tx.una())
    }

    /// Whether a packet comes from the peer it is connected to.
    #[inline]
    fn is_from_peer(&self, received: &Received<'_>) -> bool {
        // Rule: Q-20.
        self.attr.kind.is_connected()
            && received.source == self.attr.path.destination
            && received.destination == self.attr.path.source
    }

    /// Sends a CNP for a packet that a switch marked.
    #[cold]
    fn note_congestion(&mut self, env: &mut Env) {
        env.count(Counter::CongestionMarked);
        let peer = self.attr.path.destination;
        if self.rx.responses().request_cnp(peer, env) {
            self.schedule(env);
        }
    }
}

/// Whether a packet is a SACK of READ responses, of the peer's requester.
#[inline]
fn is_sack_of_responses(packet: &Packet<'_>, info: &OpcodeInfo) -> bool {
    info.operation == Operation::SelectiveAcknowledge
        && packet.aeth().is_some_and(|aeth| matches!(aeth.syndrome().answer(), Answer::Ack(_)))
}
