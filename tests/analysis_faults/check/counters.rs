//! The numbers of the report.

use core::time::Duration;
use std::collections::BTreeSet;

use roce::analysis::RetransmissionCause;
use roce::link::fault::Action;

use super::super::plan::Class;
use super::super::truth::{Captured, Transmission};
use super::Check;

impl Check<'_> {
    /// The numbers of the report.
    pub(super) fn counters(&self) {
        let all = &self.seen.report.totals.all;
        let frames = |is: &dyn Fn(usize, &Captured) -> bool| {
            let frames = self.seen.frames.iter().filter(|(point, captured)| is(*point, captured));
            let mut once: BTreeSet<(usize, bool, &[u8])> = BTreeSet::new();
            // In merged captures each packet counts once; damaged a second time on its way, it is
            // another one.
            let mut count = 0;
            for (_, captured) in frames {
                let fresh = once.insert((captured.transmission, captured.is_copy, &captured.bytes));
                count += u64::from(fresh || !self.is_merged());
            }
            count
        };
        let damaged = frames(&|_, captured| captured.is_corrupted);
        let stray: u64 = all.icrc_errors;
        if stray > damaged {
            self.say(format!("{stray} ICRC errors and not {damaged}"));
        }
        if !self.is_merged() {
            let marked = frames(&|_, captured| captured.is_marked && !captured.is_corrupted);
            if all.ce_marked != marked {
                self.say(format!("{} CE marks and not {marked}", all.ce_marked));
            }
            let cnps = frames(&|_, captured| {
                self.truth.transmissions[captured.transmission].is_cnp && !captured.is_corrupted
            });
            if all.cnps != cnps {
                self.say(format!("{} CNPs and not {cnps}", all.cnps));
            }
        }
        if self.has_both_ends() {
            self.count_causes();
        }
        self.spurious();
    }

    /// Retransmissions that are said to be spurious: a timeout caused them, and an earlier
    /// transmission was answered, by a response that left before they could arrive.
    fn spurious(&self) {
        let real = self.truth.transmissions.iter().filter(|packet| {
            let arrival = packet.time.saturating_add(Duration::from_micros(4));
            let is_answer = |other: &Transmission| {
                (other.connection, other.requester()) == (packet.connection, packet.sender)
                    && other.class != Class::Request
                    && other.sequence >= packet.sequence
                    && other.time < arrival
                    && other.delivered
                    && !other.is_nak
            };
            packet.cause == Some(RetransmissionCause::Timeout)
                && self.truth.transmissions.iter().any(is_answer)
        });
        let (told, real) =
            (self.seen.report.totals.all.retransmissions.spurious.packets, real.count() as u64);
        if told > real {
            self.say(format!("{told} spurious retransmissions and not {real}"));
        }
    }

    /// Retransmitted packets by cause.
    pub(super) fn count_causes(&self) {
        let count = |cause| {
            let packets = self.truth.transmissions.iter();
            packets.filter(|packet| packet.cause == Some(cause)).count() as u64
        };
        let all = self.seen.report.totals.all.retransmissions;
        let mut told =
            [all.timeout, all.sequence_nak, all.implied_nak, all.rnr].map(|some| some.packets);
        told[0] += all.spurious.packets;
        use RetransmissionCause::{ImpliedNak, Rnr, SequenceNak, Timeout};
        let real = [Timeout, SequenceNak, ImpliedNak, Rnr].map(count);
        if told != real {
            self.say(format!("retransmissions by cause {told:?} and not {real:?}"));
        }
    }

    /// Several points: how long packets took.
    pub(super) fn transits(&self) {
        if !self.is_merged() {
            return;
        }
        let transits = &self.seen.report.capture.transits;
        if !self.has_both_ends()
            || self.truth.injected.iter().any(|fault| fault.action != Action::Mark)
        {
            return;
        }
        // With packets of one direction only, the clocks are taken to be right.
        let sends = |sender| {
            let mut packets = self.truth.transmissions.iter().skip(1);
            packets.any(|packet| packet.sender == sender)
        };
        if !sends(0) || !sends(1) {
            return;
        }
        let hops = self.seen.points.len() as u64 - 1;
        for transit in transits {
            let least = transit.nanos.percentiles().min;
            let real = 4_000 / hops;
            // The delay by rule is the same both ways, so the clocks are corrected exactly.
            if least.abs_diff(real) > 2 {
                self.say(format!(
                    "transit {} → {} of {least} ns and not {real}",
                    transit.from, transit.to
                ));
            }
        }
    }
}
