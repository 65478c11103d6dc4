//! Responders with a flaw, one at a time.

mod data;
mod refusals;

use std::cell::RefCell;
use std::time::Duration;

use roce::link::fault::Action;
use roce::wire::{Opcode, Operation, Packet};

use super::craft::*;
use super::device::{Cx, Device, Mark, nth_out, outgoing};
use super::flaw::{AT_ENDS, AT_REQUESTER, AT_RESPONDER, EVERYWHERE, Flaw, flaws};
use super::setup::{FaultRule, Key, Op, Setup, Work, at_once, posting, spaced};
use super::wire::Hop;
use super::world::{ALL, BASE, initial};

const PAUSE: Duration = Duration::from_micros(20);

fn setup(work: Vec<Work>) -> Setup {
    Setup::new(vec![posting(work)])
}

/// Messages of one packet, each acknowledged before the next is posted.
fn sends(count: usize) -> Setup {
    setup(spaced(PAUSE, &vec![(Op::Send, Key::All, 0, 100); count]))
}

/// Sends of which a packet is lost on the way: at B there is a gap.
fn gap() -> Setup {
    let work = at_once(&[(Op::Send, Key::All, 0, 5000), (Op::Send, Key::All, 0, 100)]);
    Setup { rules: vec![lost_request(2)], ..setup(work) }
}

fn lost_request(nth: usize) -> FaultRule {
    FaultRule { sender: 0, hop: Hop::A, which: is_request, nth, action: Action::Drop }
}

/// A response is lost before the switch: the requester asks once more.
fn lost_response(which: fn(&Packet<'_>) -> bool, nth: usize) -> FaultRule {
    FaultRule { sender: 1, hop: Hop::B, which, nth, action: Action::Drop }
}

fn reads(work: &[(u64, u32)]) -> Setup {
    let work: Vec<_> = work.iter().map(|&(at, len)| (Op::Read, Key::All, at, len)).collect();
    setup(spaced(PAUSE, &work))
}

/// The connection has few retries: what is never answered ends soon.
fn impatient(mut setup: Setup) -> Setup {
    for connection in &mut setup.connections {
        connection.attr.retry_count = 2;
    }
    setup
}

fn adds(count: usize) -> Setup {
    setup(spaced(PAUSE, &vec![(Op::FetchAdd(5), Key::All, 64, 8); count]))
}

/// Shows that two connections are of one protection domain: both may use the key.
const SAME_DOMAIN: (Op, Key, u64, u32) = (Op::Write, Key::All, 0, 16);

/// Repeats the work on two connections, on the second one later.
fn twice(work: &[(Op, Key, u64, u32)]) -> Setup {
    let first = posting(spaced(PAUSE, work));
    let mut second = first.clone();
    second.attr.psns = [700_000, 900_000];
    for work in &mut second.work[0] {
        work.at += Duration::from_millis(1);
    }
    Setup::new(vec![first, second])
}

/// Changes the n-th ACK.
fn nth_ack(nth: usize, change: fn(&[u8]) -> Vec<u8>) -> Device {
    nth_out(is_ack, nth, move |packet, cx| cx.send_broken(&change(packet)))
}

/// Changes the n-th packet with READ data.
fn nth_read(nth: usize, change: fn(&[u8]) -> Vec<u8>) -> Device {
    nth_out(is_read_response, nth, move |packet, cx| cx.send_broken(&change(packet)))
}

/// Sends packets with their numbers, from 1.
fn numbered(mut send: impl FnMut(usize, &[u8], &mut Cx<'_>) + 'static) -> Device {
    let mut number = 0;
    outgoing(move |packet, cx| {
        number += 1;
        send(number, packet, cx);
    })
}

/// Sends whatever is not such a packet.
fn without(which: impl Fn(&Packet<'_>) -> bool + 'static) -> Device {
    outgoing(move |packet, cx| if which(&parse(packet)) { cx.omit() } else { cx.send(packet) })
}

/// Changes MSNs; what differs is broken.
fn with_msns(mut change: impl FnMut(u32) -> u32 + 'static) -> Device {
    outgoing(move |packet, cx| {
        let Some(aeth) = parse(packet).aeth() else { return cx.send(packet) };
        let changed = with_msn(packet, change(aeth.msn().get()));
        if changed == packet { cx.send(packet) } else { cx.send_broken(&changed) }
    })
}

fn add_to_memory(cx: &mut Cx<'_>, at: usize, add: u64) {
    let mut bytes = [0; 8];
    cx.host.buffer.read(at, &mut bytes).unwrap();
    let sum = u64::from_ne_bytes(bytes).wrapping_add(add);
    cx.host.buffer.write(at, &sum.to_ne_bytes()).unwrap();
}

flaws! {
    /// Counts messages in MSNs: numbers, order, duplicates.
    COUNTING: responder {
        "msn-ahead", &["response-msn"], EVERYWHERE, sends(5) => nth_ack(3, |ack| msn_moved(ack, 1));
        "msn-stuck", &["response-msn"], EVERYWHERE, sends(5) => with_msns(|msn| msn.min(2));
        "msn-decreases", &["response-msn"], EVERYWHERE,
            sends(5) => nth_ack(3, |ack| msn_moved(ack, -2));
        "msn-of-read", &["response-msn"], EVERYWHERE,
            reads(&[(0, 100), (0, 3000)]) => nth_read(2, |first| msn_moved(first, -1));
        "msn-counts-packets", &["response-msn"], EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Send, Key::All, 0, 3000); 3])) => with_msns(|msn| msn * 3);
        // Elsewhere the acknowledgement of the duplicate may have waited until the third one was
        // executed.
        "duplicate-send-executed", &["response-msn"], AT_RESPONDER,
            {
                let mut work = spaced(Duration::from_millis(3), &[(Op::Send, Key::All, 0, 100); 3]);
                // Just after the second one was retransmitted: no MSN is beyond what was sent.
                work[2].at = Duration::from_micros(4050);
                Setup { rules: vec![lost_response(is_ack, 2)], ..setup(work) }
            } => nth_ack(3, |ack| msn_moved(ack, 1));
        // The fifth acknowledges the copy.
        "old-psn-new-after-wrap", &["response-msn", "ack-not-received", "response-psn"], EVERYWHERE,
            {
                let work = at_once(&[(Op::Send, Key::All, 0, 100); 5]);
                let mut setup = setup(work);
                setup.connections[0].attr.psns[0] = 0xff_fffe;
                setup.connections[0].work[0][4].at = Duration::from_micros(50);
                let action = Action::Duplicate;
                setup.rules.push(FaultRule { action, ..lost_request(1) });
                setup
            } => nth_ack(5, |ack| msn_moved(ack, 1));
    }
}

flaws! {
    /// Gaps, ACKs for what never came, refusals without reason.
    SEQUENCE: responder {
        "gap-without-nak", &["nak-missing"], AT_RESPONDER, gap() => without(is_nak);
        "nak-twice", &["nak-repeated"], AT_RESPONDER,
            gap() => nth_out(is_nak, 1, |nak, cx| {
                cx.send(nak);
                cx.send_as(nak, Mark::Broken, Duration::from_nanos(90));
                cx.send_as(nak, Mark::Broken, Duration::from_nanos(180));
            });
        "nak-psn-received", &["nak-psn"], AT_RESPONDER,
            impatient(gap()) => nth_out(is_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1)));
        "nak-without-gap", &["nak-unfounded"], EVERYWHERE,
            sends(3) => nth_ack(2, |ack| with_syndrome(&msn_moved(ack, -1), SEQUENCE_NAK));
        "ack-not-received", &["ack-not-received"], EVERYWHERE,
            sends(3) => nth_ack(2, |ack| psn_moved(ack, 5));
        // Nothing comes later that shows what was not sent.
        "nak-without-gap-at-last", &["nak-unfounded"], AT_ENDS,
            sends(3) => nth_ack(3, |ack| with_syndrome(&msn_moved(ack, -1), SEQUENCE_NAK));
        "ack-of-unsent-at-last", &["ack-not-received"], AT_ENDS,
            impatient(sends(3)) => nth_ack(3, |ack| psn_moved(ack, 5));
        "nak-of-first-without-gap", &["nak-unfounded"], AT_RESPONDER,
            {
                let mut setup = setup(at_once(&[(Op::Send, Key::All, 0, 100); 3]));
                setup.connections[0].is_managed = true;
                setup
            } => nth_ack(1, |ack| with_syndrome(&msn_moved(ack, -1), SEQUENCE_NAK));
        "ack-behind-gap", &["ack-not-received", "response-msn"], AT_REQUESTER,
            {
                let work = at_once(&[(Op::Send, Key::All, 0, 100); 4]);
                Setup { rules: vec![lost_request(2)], ..setup(work) }
            } => nth_out(is_nak, 1, |nak, cx| {
                let ack = |by: i32| with_syndrome(&msn_moved(&psn_moved(nak, by), by), ACK);
                cx.send_broken(&ack(1));
                cx.send_as(&ack(2), Mark::Broken, Duration::from_nanos(90));
            });
        // Elsewhere a copy of the first request that the network made may be what it acknowledges.
        "ack-goes-back", &["response-msn", "response-psn"], AT_RESPONDER,
            sends(4) => nth_ack(3, |ack| psn_moved(ack, -2));
        "ack-missing", &["response-missing"], AT_RESPONDER,
            impatient(sends(2)) => without(|packet| packet.bth().psn().get() == 101);
        "ack-before-read-response", &["response-order"], AT_RESPONDER,
            setup(at_once(&[(Op::Read, Key::All, 0, 2000), (Op::Send, Key::All, 0, 100)])) => {
                let held = RefCell::new(Vec::new());
                outgoing(move |packet, cx| {
                    let mut held = held.borrow_mut();
                    match is_ack(&parse(packet)) {
                        false if held.len() < 2 => held.push(packet.to_vec()),
                        true if held.len() == 2 => {
                            cx.send_broken(packet);
                            held.iter().for_each(|late| cx.send_broken(late));
                            held.push(Vec::new());
                        }
                        _ => cx.send(packet),
                    }
                })
            };
        "ack-to-wrong-qp", &["response-psn", "ack-not-received", "response-unsolicited"],
            EVERYWHERE,
            {
                let mut setup = twice(&[(Op::Send, Key::All, 0, 100); 3]);
                // That the PSN was not sent is shown by the next.
                let next = Work { at: Duration::from_millis(2), ..setup.connections[0].work[0][0] };
                setup.connections[0].work[0].push(next);
                setup
            } => nth_out(is_ack, 5, |ack, cx| cx.send_broken(&with_qp(ack, cx.qpns[0][0])));
    }
}

/// All of them.
pub const RESPONDERS: &[&[Flaw]] =
    &[COUNTING, SEQUENCE, data::READS, data::ATOMICS, refusals::REFUSALS, refusals::HEADERS];
