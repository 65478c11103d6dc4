//! Runs: MIDDLEs of one message, of which a long message mostly consists.
//!
//! They have no header but the BTH, of which their PSN differs and whether they ask for an ACK, and
//! as much payload each. So the work request is looked at once for all of them, and the key of its
//! memory is checked once. A packet that is not like the others is [sent by
//! itself](Tx::transmit_next).

use super::super::super::env::Env;
use super::super::super::send_queue::{Source, packets};
use super::super::super::{Counter, peer_window};
use super::super::attr::Attributes;
use super::Tx;
use super::headers::request_opcode;
use super::transmit::completes_half;
use crate::wire::batch::{Batch, Run};
use crate::wire::{BthRepr, Position};

/// Minimum number of packets that are sent as a run.
const RUN_MIN: u32 = 2;

impl Tx {
    /// Sends MIDDLEs of the message whose last packet was just sent, at most `max`; returns their
    /// number. The packet behind them is sent by itself, if it can be.
    #[inline]
    pub(super) fn transmit_middles(
        &mut self,
        max: usize,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> usize {
        let is_within = self.packet > 0 && self.cursor != self.sq.tail() && self.gaps.is_none();
        if is_within && self.is_plain_next(attr) {
            self.transmit_plain_middles(max, attr, env, batch)
        } else {
            0
        }
    }

    #[inline(never)]
    fn transmit_plain_middles(
        &mut self,
        max: usize,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> usize {
        let (wqe, mtu) = (self.sq.get(self.cursor), attr.mtu);
        let middles = (packets(wqe.len(), mtu) - 1).saturating_sub(self.packet);
        let max = middles.min(u32::try_from(max).unwrap_or(u32::MAX));
        let opcode = attr.opcode(request_opcode(wqe.opcode(), Position::Middle));
        let is_bare = opcode.info().is_some_and(|info| info.headers.is_empty());
        if max < RUN_MIN || !is_bare || !wqe.is_begun() {
            return 0;
        }
        let (offset, len) = (u64::from(self.packet) * u64::from(mtu), max as usize * mtu as usize);
        // Memory that is not accessible is found by the first packet that needs it.
        let Source::Gather(&[sge]) = self.sq.source_of(wqe, self.cursor) else { return 0 };
        if offset + len as u64 > u64::from(sge.length) {
            return 0;
        }
        let addr = sge.addr.wrapping_add(offset);
        let Ok(grant) = env.keys.local(attr.pd, sge.lkey, addr, len as u64, false) else {
            return 0;
        };
        let Ok(payload) = grant.region.part(grant.offset, len) else { return 0 };
        let psn = wqe.psn().plus(self.packet);
        let bth = BthRepr { pkey: attr.pkey, ..BthRepr::new(opcode, attr.dest, psn) };
        let mut run = batch.run(payload, mtu as usize);
        let sent = self.put_middles(max, bth, attr, env, &mut run);
        run.finish();
        if sent > 0 {
            self.packet += sent;
            let end = psn.plus(sent);
            if end.since(self.sent) > 0 {
                self.sent = end;
            }
            self.start_rto(attr, env);
        }
        sent as usize
    }

    /// Adds packets to a run, from the one with header `bth` on, as far as the window, the peer
    /// window and the batch have room; returns their number.
    #[inline]
    fn put_middles(
        &mut self,
        max: u32,
        bth: BthRepr,
        attr: &Attributes,
        env: &mut Env,
        run: &mut Run<'_>,
    ) -> u32 {
        let (window, cost) = (self.window(attr), peer_window::cost(attr.mtu));
        let distance = bth.psn.since(self.una).unsigned_abs();
        let Env { peer_windows, active, counters, .. } = env;
        let mut sent = 0;
        while sent < max && !run.is_full() {
            let unacknowledged = (distance + sent).saturating_sub(self.read_psns);
            let (credit, to) = (&mut self.credit, attr.path.destination);
            if unacknowledged >= window || !peer_windows.admits(credit, to, cost, attr.slot, active)
            {
                break;
            }
            let ack_req = completes_half(unacknowledged + 1, window)
                || peer_windows.is_filled_by(&self.credit, cost);
            let psn = bth.psn.plus(sent);
            if !run.push(&BthRepr { ack_req, psn, ..bth }.to_bytes()) {
                break;
            }
            counters.add(Counter::Sent);
            peer_windows.sent(&mut self.credit, cost);
            sent += 1;
        }
        sent
    }
}
