//! Responders with a flaw, one at a time.

use std::cell::RefCell;
use std::time::Duration;

use roce::link::mem::Action;
use roce::wire::{Opcode, Operation, Packet};

use super::craft::*;
use super::device::{Cx, Device, Mark, nth_out, outgoing};
use super::flaw::{AT_REQUESTER, AT_RESPONDER, EVERYWHERE, Flaw};
use super::setup::{Connection, FaultRule, Hop, Key, Op, Setup, Work, at_once, posting, spaced};
use super::world::{ALL, BASE, initial};

const PAUSE: Duration = Duration::from_micros(20);

fn setup(work: Vec<Work>) -> Setup {
    Setup::new(vec![posting(work)])
}

/// Messages of one packet, each acknowledged before the next is posted.
fn sends(count: usize) -> Setup {
    setup(spaced(PAUSE, &vec![(Op::Send, Key::All, 0, 100); count]))
}

/// The same with a packet lost on the way: at B there is a gap.
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
        connection.retry_count = 2;
    }
    setup
}

fn adds(count: usize) -> Setup {
    setup(spaced(PAUSE, &vec![(Op::FetchAdd(5), Key::All, 64, 8); count]))
}

/// Shows that two connections are of one protection domain: both may use the key.
const SAME_DOMAIN: (Op, Key, u64, u32) = (Op::Write, Key::All, 0, 16);

/// The same work on two connections, on the second one later.
fn twice(work: &[(Op, Key, u64, u32)]) -> Setup {
    let first = posting(spaced(PAUSE, work));
    let mut second = Connection { psns: [700_000, 900_000], ..first.clone() };
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

/// Counts messages in MSNs: numbers, order, duplicates.
const COUNTING: &[Flaw] = &[
    Flaw::responder(
        "msn-ahead",
        &["response-msn"],
        EVERYWHERE,
        || sends(5),
        || nth_ack(3, |ack| msn_moved(ack, 1)),
    ),
    Flaw::responder(
        "msn-stuck",
        &["response-msn"],
        EVERYWHERE,
        || sends(5),
        || with_msns(|msn| msn.min(2)),
    ),
    Flaw::responder(
        "msn-decreases",
        &["response-msn"],
        EVERYWHERE,
        || sends(5),
        || nth_ack(3, |ack| msn_moved(ack, -2)),
    ),
    Flaw::responder(
        "msn-of-read",
        &["response-msn"],
        EVERYWHERE,
        || reads(&[(0, 100), (0, 3000)]),
        || nth_read(2, |first| msn_moved(first, -1)),
    ),
    Flaw::responder(
        "msn-counts-packets",
        &["response-msn"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Send, Key::All, 0, 3000); 3])),
        || with_msns(|msn| msn * 3),
    ),
    Flaw::responder(
        "duplicate-send-executed",
        &["response-msn"],
        EVERYWHERE,
        || {
            let mut work = spaced(Duration::from_millis(3), &[(Op::Send, Key::All, 0, 100); 3]);
            // Just after the second one was retransmitted: no MSN is beyond what was sent.
            work[2].at = Duration::from_micros(4050);
            Setup { rules: vec![lost_response(is_ack, 2)], ..setup(work) }
        },
        || nth_ack(3, |ack| msn_moved(ack, 1)),
    ),
    Flaw::responder(
        "old-psn-new-after-wrap",
        &["response-msn", "ack-not-received", "response-psn"],
        EVERYWHERE,
        || {
            let work = at_once(&[(Op::Send, Key::All, 0, 100); 5]);
            let mut setup = setup(work);
            setup.connections[0].psns[0] = 0xff_fffe;
            setup.connections[0].work[0][4].at = Duration::from_micros(50);
            let action = Action::Duplicate;
            setup.rules.push(FaultRule { action, ..lost_request(1) });
            setup
        },
        // The fifth acknowledges the copy.
        || nth_ack(5, |ack| msn_moved(ack, 1)),
    ),
];

/// Gaps, ACKs for what never came, refusals without reason.
const SEQUENCE: &[Flaw] = &[
    Flaw::responder("gap-without-nak", &["nak-missing"], AT_RESPONDER, gap, || without(is_nak)),
    Flaw::responder("nak-twice", &["nak-repeated"], AT_RESPONDER, gap, || {
        nth_out(is_nak, 1, |nak, cx| {
            cx.send(nak);
            cx.send_as(nak, Mark::Broken, Duration::from_nanos(90));
            cx.send_as(nak, Mark::Broken, Duration::from_nanos(180));
        })
    }),
    Flaw::responder(
        "nak-psn-received",
        &["nak-psn"],
        AT_RESPONDER,
        || impatient(gap()),
        || nth_out(is_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1))),
    ),
    Flaw::responder(
        "nak-without-gap",
        &["nak-unfounded"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, |ack| with_syndrome(&msn_moved(ack, -1), SEQUENCE_NAK)),
    ),
    Flaw::responder(
        "ack-not-received",
        &["ack-not-received"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, |ack| psn_moved(ack, 5)),
    ),
    Flaw::responder(
        "ack-behind-gap",
        &["ack-not-received", "response-msn"],
        AT_REQUESTER,
        || {
            let work = at_once(&[(Op::Send, Key::All, 0, 100); 4]);
            Setup { rules: vec![lost_request(2)], ..setup(work) }
        },
        || {
            nth_out(is_nak, 1, |nak, cx| {
                let ack = |by: i32| with_syndrome(&msn_moved(&psn_moved(nak, by), by), ACK);
                cx.send_broken(&ack(1));
                cx.send_as(&ack(2), Mark::Broken, Duration::from_nanos(90));
            })
        },
    ),
    Flaw::responder(
        "ack-goes-back",
        &["response-msn", "response-psn"],
        &[0, 2],
        || sends(4),
        || nth_ack(3, |ack| psn_moved(ack, -2)),
    ),
    Flaw::responder(
        "ack-missing",
        &["response-missing"],
        AT_RESPONDER,
        || impatient(sends(2)),
        || without(|packet| packet.bth().psn().get() == 101),
    ),
    Flaw::responder(
        "ack-before-read-response",
        &["response-order"],
        AT_RESPONDER,
        || setup(at_once(&[(Op::Read, Key::All, 0, 2000), (Op::Send, Key::All, 0, 100)])),
        || {
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
        },
    ),
    Flaw::responder(
        "ack-to-wrong-qp",
        &["response-psn", "ack-not-received", "response-unsolicited"],
        EVERYWHERE,
        || {
            let mut setup = twice(&[(Op::Send, Key::All, 0, 100); 3]);
            // That the PSN was not sent is shown by the next.
            let next = Work { at: Duration::from_millis(2), ..setup.connections[0].work[0][0] };
            setup.connections[0].work[0].push(next);
            setup
        },
        || nth_out(is_ack, 5, |ack, cx| cx.send_broken(&with_qp(ack, cx.qpns[0][0]))),
    ),
];

/// READ responses: kinds, sizes, bytes.
const READS: &[Flaw] = &[
    Flaw::responder(
        "stale-read-data",
        &["read-data"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Write, Key::All, 0, 600), (Op::Read, Key::All, 0, 600)])),
        || nth_read(1, |only| with_payload(only, &initial(2, 0..600))),
    ),
    Flaw::responder(
        "read-wrong-offset",
        &["read-data"],
        EVERYWHERE,
        || reads(&[(0, 200), (0, 64)]),
        || nth_read(2, |only| with_payload(only, &initial(2, 8..72))),
    ),
    Flaw::responder(
        "read-last-missing",
        &["response-missing"],
        AT_RESPONDER,
        || impatient(reads(&[(0, 3000)])),
        || without(|packet| packet.bth().psn().get() == 102),
    ),
    Flaw::responder(
        "read-ends-early",
        &["read-response-opcode", "read-response-length"],
        EVERYWHERE,
        || reads(&[(0, 3000)]),
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                match count {
                    2 => {
                        let payload = parse(packet).payload();
                        let opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
                        cx.send_broken(&remade(packet, opcode, 1, payload));
                    }
                    3 => cx.omit(),
                    _ => cx.send(packet),
                }
            })
        },
    ),
    Flaw::responder(
        "read-one-too-many",
        &["response-unsolicited", "read-response-opcode", "response-psn"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Read, Key::All, 0, 3000), (Op::Send, Key::All, 0, 10)])),
        || {
            nth_out(is_read_response, 3, |last, cx| {
                cx.send(last);
                cx.send_broken(&with_payload(&psn_moved(last, 1), &[1; 8]));
            })
        },
    ),
    Flaw::responder(
        "read-middle-for-last",
        &["read-response-opcode"],
        EVERYWHERE,
        || reads(&[(0, 3072)]),
        || {
            nth_read(3, |last| {
                remade(last, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 1, parse(last).payload())
            })
        },
    ),
    Flaw::responder(
        "read-only-for-first",
        &["read-response-opcode"],
        EVERYWHERE,
        || reads(&[(0, 3072)]),
        || {
            nth_read(1, |first| {
                remade(first, Opcode::RC_RDMA_READ_RESPONSE_ONLY, 1, parse(first).payload())
            })
        },
    ),
    Flaw::responder(
        "read-middle-not-mtu",
        &["read-response-length"],
        EVERYWHERE,
        || reads(&[(0, 3072)]),
        || nth_read(2, |middle| with_payload(middle, &parse(middle).payload()[..1020])),
    ),
    Flaw::responder(
        "read-last-short",
        &["read-response-length"],
        EVERYWHERE,
        || reads(&[(0, 3000)]),
        || nth_read(3, |last| with_payload(last, &parse(last).payload()[4..])),
    ),
    Flaw::responder(
        "read-psn-skips",
        &["response-psn", "read-response-opcode", "response-unsolicited"],
        EVERYWHERE,
        || {
            let work = [(Op::Read, Key::All, 0, 3072), (Op::Send, Key::All, 0, 10)];
            setup(spaced(PAUSE, &work))
        },
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                match count {
                    2 | 3 => cx.send_broken(&psn_moved(packet, 1)),
                    _ => cx.send(packet),
                }
            })
        },
    ),
    Flaw::responder(
        "duplicate-read-other-bytes",
        &["read-data"],
        EVERYWHERE,
        || {
            let rules = vec![lost_response(is_read_response, 2)];
            Setup { rules, ..reads(&[(0, 100), (0, 100)]) }
        },
        || nth_read(3, |only| with_payload(only, &initial(2, 300..400))),
    ),
    Flaw::responder(
        "duplicate-read-unanswered",
        &["response-missing"],
        AT_RESPONDER,
        || {
            let rules = vec![lost_response(is_read_response, 1)];
            impatient(Setup { rules, ..reads(&[(0, 100)]) })
        },
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                if count == 1 { cx.send(packet) } else { cx.omit() }
            })
        },
    ),
    Flaw::responder(
        "duplicate-read-restarts",
        &["read-data"],
        EVERYWHERE,
        || Setup { rules: vec![lost_response(is_read_response, 2)], ..reads(&[(0, 3000)]) },
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                if count <= 3 {
                    return cx.send(packet);
                }
                let at = (psn(packet) as usize - 101) * 1024;
                let len = parse(packet).payload_len();
                cx.send_broken(&with_payload(packet, &initial(2, at..at + len)));
            })
        },
    ),
    Flaw::responder(
        "read-answered-by-ack",
        &["response-kind", "response-order"],
        EVERYWHERE,
        || reads(&[(0, 100)]),
        || nth_read(1, |only| remade(only, Opcode::RC_ACKNOWLEDGE, 1, &[])),
    ),
    Flaw::responder(
        "zero-length-read-unanswered",
        &["response-missing"],
        AT_RESPONDER,
        || impatient(reads(&[(0, 64), (0, 0)])),
        || without(|packet| packet.bth().psn().get() == 101),
    ),
    Flaw::responder(
        "zero-length-read-with-data",
        &["read-response-length"],
        EVERYWHERE,
        || reads(&[(0, 0)]),
        || nth_read(1, |only| with_payload(only, &[0; 4])),
    ),
    Flaw::responder(
        "response-bad-pad",
        &["response-pad", "read-response-length"],
        EVERYWHERE,
        || reads(&[(0, 5)]),
        || nth_read(1, |only| with_pad_count(only, 1)),
    ),
    Flaw::responder(
        "read-response-unsolicited",
        &["response-unsolicited"],
        EVERYWHERE,
        || sends(3),
        || {
            nth_out(is_ack, 2, |ack, cx| {
                cx.send(ack);
                let opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
                cx.send_broken(&remade(&psn_moved(ack, 1), opcode, 2, &[7; 16]));
            })
        },
    ),
    Flaw::responder(
        "duplicate-write-executed",
        &["read-data"],
        EVERYWHERE,
        || {
            let mut work = at_once(&[
                (Op::Write, Key::All, 0, 100),
                (Op::Write, Key::All, 0, 100),
                (Op::Read, Key::All, 0, 100),
            ]);
            work[2].at = Duration::from_micros(50);
            let rules = vec![FaultRule { action: Action::Duplicate, ..lost_request(1) }];
            Setup { rules, ..setup(work) }
        },
        || {
            let first = RefCell::new(Vec::new());
            let device = nth_out(is_read_response, 1, |only, cx| cx.send_broken(only));
            Device {
                incoming: Some(Box::new(move |packet, cx| {
                    let mut first = first.borrow_mut();
                    if first.is_empty() {
                        *first = parse(packet).payload().to_vec();
                    } else if is_operation(&parse(packet), Operation::ReadRequest) {
                        cx.host.buffer.write(0, &first).unwrap();
                    }
                    cx.take(packet);
                })),
                ..device
            }
        },
    ),
];

/// Atomics: original values, repeated execution.
const ATOMICS: &[Flaw] = &[
    Flaw::responder(
        "duplicate-atomic-executed",
        &["duplicate-atomic", "atomic-original"],
        EVERYWHERE,
        || Setup { rules: vec![lost_response(is_atomic_ack, 2)], ..adds(2) },
        || {
            nth_out(is_atomic_ack, 3, |ack, cx| {
                cx.send_broken(&with_original(ack, original(ack).wrapping_add(5)));
            })
        },
    ),
    Flaw::responder(
        "atomic-executed-twice",
        &["atomic-original"],
        EVERYWHERE,
        || adds(3),
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                match count {
                    2 => {
                        add_to_memory(cx, 64, 5);
                        cx.send(packet);
                    }
                    3 => cx.send_broken(packet),
                    _ => cx.send(packet),
                }
            })
        },
    ),
    Flaw::responder(
        "atomic-returns-new-value",
        &["atomic-original"],
        EVERYWHERE,
        || adds(3),
        || {
            nth_out(is_atomic_ack, 2, |ack, cx| {
                cx.send_broken(&with_original(ack, original(ack).wrapping_add(5)));
            })
        },
    ),
    Flaw::responder(
        "misaligned-atomic-executed",
        &["invalid-request-accepted"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Send, Key::All, 0, 8), (Op::FetchAdd(5), Key::All, 4, 8)])),
        || nth_out(is_nak, 1, |nak, cx| cx.send_broken(&as_atomic_ack(nak, 7))),
    ),
    Flaw::responder(
        "failed-compare-swaps",
        &["atomic-original"],
        EVERYWHERE,
        || {
            let swap = |compare, swap| (Op::CompareSwap { compare, swap }, Key::All, 64, 8);
            let work = [
                (Op::FetchAdd(0), Key::All, 64, 8),
                swap(1, 2),
                (Op::FetchAdd(0), Key::All, 64, 8),
            ];
            setup(spaced(PAUSE, &work))
        },
        || nth_out(is_atomic_ack, 3, |ack, cx| cx.send_broken(&with_original(ack, 2))),
    ),
];

/// Receives, rights, refusals.
const REFUSALS: &[Flaw] = &[
    Flaw::responder(
        "rnr-wrong-psn",
        &["nak-psn"],
        EVERYWHERE,
        || {
            let mut setup = sends(3);
            setup.connections[0].receives[1] = vec![Duration::ZERO, Duration::from_micros(300)];
            setup
        },
        || nth_out(is_rnr_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1))),
    ),
    Flaw::responder(
        "nak-after-rnr",
        &["nak-after-rnr"],
        EVERYWHERE,
        || {
            let mut setup = setup(at_once(&[(Op::Send, Key::All, 0, 100); 3]));
            setup.connections[0].receives[1] = vec![Duration::from_micros(50)];
            setup
        },
        || {
            nth_out(is_rnr_nak, 1, |nak, cx| {
                cx.send(nak);
                let nak = with_syndrome(nak, SEQUENCE_NAK);
                cx.send_as(&nak, Mark::Broken, Duration::from_nanos(60));
            })
        },
    ),
    Flaw::responder(
        "rnr-despite-credits",
        &["rnr-with-credits"],
        EVERYWHERE,
        || {
            let mut setup = sends(4);
            setup.connections[0].receives[1] = vec![Duration::ZERO; 8];
            Setup { advertise_credits: true, ..setup }
        },
        || nth_ack(3, |ack| with_syndrome(&msn_moved(ack, -1), RNR_NAK)),
    ),
    Flaw::responder(
        "nak-wrong-code",
        &["nak-code"],
        EVERYWHERE,
        || {
            setup(spaced(
                PAUSE,
                &[(Op::Write, Key::All, 0, 100), (Op::Write, Key::Unknown, 0, 100)],
            ))
        },
        || nth_out(is_nak, 1, |nak, cx| cx.send_broken(&with_syndrome(nak, INVALID_NAK))),
    ),
    Flaw::responder(
        "nak-fatal-wrong-psn",
        &["nak-psn"],
        AT_RESPONDER,
        || {
            setup(spaced(
                PAUSE,
                &[(Op::Write, Key::All, 0, 100), (Op::Write, Key::Unknown, 0, 3000)],
            ))
        },
        || nth_out(is_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1))),
    ),
    Flaw::responder(
        "access-check-skipped",
        &["access-accepted"],
        EVERYWHERE,
        || twice(&[SAME_DOMAIN, (Op::Write, Key::ReadOnly, 0, 100)]),
        redirect_second,
    ),
    Flaw::responder(
        "key-of-other-pd-accepted",
        &["access-accepted"],
        EVERYWHERE,
        || twice(&[SAME_DOMAIN, (Op::Write, Key::OtherDomain, 0, 100)]),
        redirect_second,
    ),
    Flaw::responder(
        "write-beyond-region-accepted",
        &["access-accepted"],
        EVERYWHERE,
        || twice(&[SAME_DOMAIN, (Op::Write, Key::Page, 4000, 200)]),
        redirect_second,
    ),
    Flaw::responder(
        "read-beyond-region-accepted",
        &["access-accepted"],
        EVERYWHERE,
        || twice(&[SAME_DOMAIN, (Op::Read, Key::Page, 4000, 200)]),
        redirect_second,
    ),
    Flaw::responder(
        "refused-after-accepted",
        &["access-refused"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Write, Key::Page, 0, 100); 2])),
        || {
            nth_out(is_ack, 2, |ack, cx| {
                cx.send_broken(&with_syndrome(&msn_moved(ack, -1), ACCESS_NAK));
            })
        },
    ),
    Flaw::responder(
        "zero-length-write-key-checked",
        &["zero-length-key", "access-refused"],
        EVERYWHERE,
        || setup(spaced(PAUSE, &[(Op::Write, Key::All, 0, 8), (Op::Write, Key::Unknown, 0, 0)])),
        || nth_ack(2, |ack| with_syndrome(&msn_moved(ack, -1), ACCESS_NAK)),
    ),
    Flaw::responder(
        "acks-after-fatal-nak",
        &["after-fatal-nak"],
        EVERYWHERE,
        || {
            setup(at_once(&[
                (Op::Write, Key::Unknown, 0, 100),
                (Op::Send, Key::All, 0, 100),
                (Op::Send, Key::All, 0, 100),
            ]))
        },
        || {
            nth_out(is_nak, 1, |nak, cx| {
                cx.send(nak);
                let ack = |by: i32| with_syndrome(&msn_moved(&psn_moved(nak, by), by), ACK);
                cx.send_as(&ack(1), Mark::Broken, Duration::from_nanos(100));
                cx.send_as(&ack(2), Mark::Broken, Duration::from_nanos(200));
            })
        },
    ),
];

/// Fields of headers.
const HEADERS: &[Flaw] = &[
    Flaw::responder(
        "response-wrong-pkey",
        &["response-pkey"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, |ack| with_pkey(ack, 0x8001)),
    ),
    Flaw::responder(
        "response-version-nonzero",
        &["response-version"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, |ack| with_version(ack, 1)),
    ),
    Flaw::responder(
        "reserved-syndrome",
        &["response-syndrome"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, |ack| with_syndrome(ack, 0x45)),
    ),
    Flaw::responder(
        "reserved-nak-code",
        &["response-syndrome", "nak-code"],
        EVERYWHERE,
        || sends(3),
        || {
            let mut count = 0;
            outgoing(move |packet, cx| {
                count += 1;
                match count {
                    1 | 2 => cx.send(packet),
                    3 => cx.send_broken(&with_syndrome(packet, 0x6a)),
                    // Whether such a NAK ends the connection, no rule says.
                    _ => cx.send_as(packet, Mark::Consequence, Duration::ZERO),
                }
            })
        },
    ),
    Flaw::responder(
        "response-asks-for-ack",
        &["response-bits"],
        EVERYWHERE,
        || sends(3),
        || nth_ack(2, with_ack_request),
    ),
];

/// On the second connection accepts what was refused on the first: the engine is given a key that is good.
fn redirect_second() -> Device {
    let device = outgoing(|packet, cx| {
        let is_second = parse(packet).bth().dest_qp() == cx.qpns[1][0] && psn(packet) > 700_000;
        if is_second { cx.send_broken(packet) } else { cx.send(packet) }
    });
    Device {
        incoming: Some(Box::new(|packet, cx| {
            let is_second = parse(packet).bth().dest_qp() == cx.qpns[1][1];
            if is_second && parse(packet).reth().is_some() {
                let all = cx.host.keys[0].rkey();
                return cx.take(&redirected(packet, BASE + ALL / 2, all));
            }
            cx.take(packet);
        })),
        ..device
    }
}

/// All of them.
pub const RESPONDERS: &[&[Flaw]] = &[COUNTING, SEQUENCE, READS, ATOMICS, REFUSALS, HEADERS];
