//! A probe for life: a WRITE and a READ of the same bytes, which must come back.

use crate::wire::aeth::Answer;
use crate::wire::{
    BthRepr, Extensions, Msn, Opcode, Operation, Packet, PacketRepr, Psn, Qpn, RKey, RethRepr,
};

/// Destination of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    /// The queue pair, which expects PSN 0 next.
    pub qpn: Qpn,
    /// The memory: its address.
    pub address: u64,
    /// Key.
    pub rkey: RKey,
}

/// Next action with a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Wait for more answers.
    Pending,
    /// The peer lives.
    Alive,
    /// The peer answered wrongly.
    Wrong(String),
}

/// A WRITE of some bytes and a READ of them.
#[derive(Clone, Debug)]
pub struct Probe {
    data: Vec<u8>,
    is_written: bool,
}

impl Probe {
    /// A probe with bytes of its own, of at most one packet.
    pub fn new(data: Vec<u8>) -> Self {
        Self { data, is_written: false }
    }

    /// The two requests, from the BTH to the last pad byte.
    pub fn requests(&self, target: &ProbeTarget) -> [Vec<u8>; 2] {
        let request = |opcode, psn, payload: &[u8]| {
            let bth = BthRepr { ack_req: true, ..BthRepr::new(opcode, target.qpn, Psn::new(psn)) };
            let dma_len = u32::try_from(self.data.len()).unwrap_or(0);
            let reth = Some(RethRepr { va: target.address, rkey: target.rkey, dma_len });
            let extensions = Extensions { reth, ..Extensions::default() };
            let mut bytes = Vec::new();
            if let Ok(repr) = PacketRepr::new(bth, extensions, payload) {
                repr.emit(&mut bytes);
            }
            bytes
        };
        [
            request(Opcode::RC_RDMA_WRITE_ONLY, 0, &self.data),
            request(Opcode::RC_RDMA_READ_REQUEST, 1, &[]),
        ]
    }

    /// The peer answered.
    pub fn answer(&mut self, bytes: &[u8]) -> Probed {
        let Ok(packet) = Packet::parse(bytes) else { return Probed::Pending };
        let (Some(info), psn) = (packet.info(), packet.bth().psn().get()) else {
            return Probed::Pending;
        };
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome().answer());
        match (info.operation, syndrome, psn) {
            (Operation::Acknowledge, Some(Answer::Ack(_)), 0) => {
                self.is_written = true;
                Probed::Pending
            }
            (Operation::ReadResponse, _, 1) if packet.payload() == self.data => {
                let msn = packet.aeth().map(|aeth| aeth.msn());
                if msn == Some(Msn::new(2)) {
                    Probed::Alive
                } else {
                    Probed::Wrong(format!("the READ response has the MSN {msn:?}, expected 2"))
                }
            }
            (Operation::ReadResponse, _, 1) => {
                Probed::Wrong("a READ returns other bytes than were written".to_owned())
            }
            (Operation::Acknowledge, Some(answer), psn) => {
                Probed::Wrong(format!("PSN {psn} of a probe was answered with {answer}"))
            }
            _ => Probed::Pending,
        }
    }
}
