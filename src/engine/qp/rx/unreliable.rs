//! Requests of an unreliable connection: nothing is acknowledged, and a gap abandons the message
//! (P-14).

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::Failure;
use super::super::attr::Attributes;
use super::{Fault, Rx};
use crate::wire::aeth::NakCode;
use crate::wire::{OpcodeInfo, Packet};

impl Rx {
    /// Handles a request. After a gap, packets are dropped until the next message begins.
    pub(super) fn handle_unreliable(
        &mut self,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        let psn = packet.bth().psn();
        // Rule: P-14.1.
        let in_order = psn == self.epsn && self.check_sequence(info).is_ok();
        // Rule: Q-21.
        if !in_order {
            self.abandon_unreliable();
        }
        self.epsn = psn;
        if self.message.is_none() && !info.position.begins() {
            self.epsn = psn.plus(1);
            env.count(Counter::OutOfMessage);
            return Ok(());
        }
        let dropped = match self.execute(packet, info, attr, env) {
            Ok(()) => return Ok(()),
            Err(Fault::CqOverrun) => return Err(Failure::Fatal),
            Err(Fault::Nak(NakCode::RemoteOperationalError, status)) => {
                // A local buffer is not accessible: the receive completes in error.
                if let Some(begun) = self.abandon() {
                    self.complete_begun(begun, status, attr, env);
                }
                return Err(Failure::Reported);
            }
            Err(Fault::NotReady) => Counter::NoReceive,
            Err(_) => Counter::BadRequest,
        };
        env.count(dropped);
        self.abandon_unreliable();
        self.epsn = psn.plus(1);
        Ok(())
    }

    /// Abandons a message; the next one uses the receive work request that it took.
    fn abandon_unreliable(&mut self) {
        // Rule: P-14.2.
        self.spare = self.abandon();
    }
}
