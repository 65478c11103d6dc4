//! Runs: MIDDLEs of a WRITE, of which a long message mostly consists.
//!
//! They differ by their PSN alone. After one was executed, the next is known by one comparison of
//! its header, and its key needs no second check as long as no key has changed. What does not
//! continue a run takes the path of all packets, which refuses it or executes it.

use super::super::super::env::Env;
use super::super::attr::Attributes;
use super::{Message, Rx};
use crate::memory::Payload;
use crate::table::SlotId;
use crate::wire::{Bth, Packet, Psn, RKey, Received};

/// Bytes of a BTH that are the same in all packets of a run: all but the PSN and the bit that asks
/// for an ACK.
const SAME: usize = Bth::LEN - size_of::<u32>();

/// MIDDLEs of WRITEs that come in one after the other.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Run {
    /// Queue pair that they are for. Its attributes have not changed since the run began.
    pub(in crate::engine) slot: SlotId,
    /// Their headers, as far as these are the same.
    header: [u8; SAME],
    /// Key of the memory that is written, and the version of the keys for which the peer's access
    /// was checked.
    rkey: RKey,
    version: u64,
    /// Region of this memory, and its offset less the address.
    region: SlotId,
    offset: u64,
}

impl Run {
    /// Begins a run behind a MIDDLE: the peer may write all that its message has left. `region` is
    /// where, with its offset less the address.
    #[inline]
    pub(super) fn new(
        packet: &Packet<'_>,
        rkey: RKey,
        (region, offset): (SlotId, u64),
        attr: &Attributes,
        version: u64,
    ) -> Option<Self> {
        let header = *packet.bytes().first_chunk()?;
        Some(Self { slot: attr.slot, header, rkey, version, region, offset })
    }

    /// Returns the PSN and the payload of a packet if it continues the run, and does not ask for an
    /// ACK.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in crate::engine) fn parse<'a>(
        &self,
        received: &Received<'a>,
    ) -> Option<(Psn, Payload<'a>)> {
        let (header, payload) = received.packet.split_first_chunk::<{ Bth::LEN }>()?;
        let (same, tail) = header.split_first_chunk()?;
        let tail = u32::from_be_bytes(*tail.first_chunk()?);
        let payload = match received.payload {
            None => Payload::Private(payload),
            Some(shared) if payload.is_empty() => Payload::Shared(shared),
            Some(_) => return None,
        };
        (*same == self.header && tail >> 24 == 0).then(|| (Psn::new(tail), payload))
    }
}

impl Rx {
    /// Executes a packet that continues a run; returns whether it did. If not, nothing has changed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(in super::super) fn continue_run(
        &mut self,
        run: &Run,
        psn: Psn,
        payload: Payload<'_>,
        attr: &Attributes,
        env: &Env,
    ) -> bool {
        let Some(Message::Write { va, rkey, left, total }) = self.message else { return false };
        let is_expected = psn == self.epsn
            && payload.len() == attr.mtu as usize
            && left > attr.mtu
            && rkey == run.rkey
            && self.early.is_none()
            && env.keys.version() == run.version;
        if !is_expected {
            return false;
        }
        let Some(region) = env.keys.region(run.region) else { return false };
        if region.write_payload(va.wrapping_add(run.offset), payload).is_err() {
            return false;
        }
        (self.nak_sent, self.rnr_sent) = (false, false);
        self.responses.note_request();
        self.epsn = psn.plus(1);
        let (va, left) = (va.wrapping_add(attr.mtu.into()), left - attr.mtu);
        self.message = Some(Message::Write { va, rkey, left, total });
        true
    }
}
