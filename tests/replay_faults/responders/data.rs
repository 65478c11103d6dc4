//! READs and ATOMICs.

use super::*;

flaws! {
    /// READ responses: kinds, sizes, bytes.
    pub READS: responder {
        "stale-read-data", &["read-data"], EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Write, Key::All, 0, 600), (Op::Read, Key::All, 0, 600)])) =>
            nth_read(1, |only| with_payload(only, &initial(2, 0..600)));
        "read-wrong-offset", &["read-data"], EVERYWHERE,
            reads(&[(0, 200), (0, 64)]) =>
            nth_read(2, |only| with_payload(only, &initial(2, 8..72)));
        "read-last-missing", &["response-missing"], AT_RESPONDER,
            impatient(reads(&[(0, 3000)])) => without(|packet| packet.bth().psn().get() == 102);
        "read-ends-early", &["read-response-opcode", "read-response-length"], EVERYWHERE,
            reads(&[(0, 3000)]) => numbered(|number, packet, cx| match number {
                2 => {
                    let payload = parse(packet).payload();
                    let opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
                    cx.send_broken(&remade(packet, opcode, 1, payload));
                }
                3 => cx.omit(),
                _ => cx.send(packet),
            });
        "read-one-too-many", &["response-unsolicited", "read-response-opcode", "response-psn"],
            EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Read, Key::All, 0, 3000), (Op::Send, Key::All, 0, 10)])) =>
            nth_out(is_read_response, 3, |last, cx| {
                cx.send(last);
                cx.send_broken(&with_payload(&psn_moved(last, 1), &[1; 8]));
            });
        "read-middle-for-last", &["read-response-opcode"], EVERYWHERE,
            reads(&[(0, 3072)]) => nth_read(3, |last| {
                remade(last, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 1, parse(last).payload())
            });
        "read-only-for-first", &["read-response-opcode"], EVERYWHERE,
            reads(&[(0, 3072)]) => nth_read(1, |first| {
                remade(first, Opcode::RC_RDMA_READ_RESPONSE_ONLY, 1, parse(first).payload())
            });
        "read-middle-not-mtu", &["read-response-length"], EVERYWHERE,
            reads(&[(0, 3072)]) =>
            nth_read(2, |middle| with_payload(middle, &parse(middle).payload()[..1020]));
        "read-last-short", &["read-response-length"], EVERYWHERE,
            reads(&[(0, 3000)]) =>
            nth_read(3, |last| with_payload(last, &parse(last).payload()[4..]));
        "read-psn-skips", &["response-psn", "read-response-opcode", "response-unsolicited"],
            EVERYWHERE,
            {
                let work = [(Op::Read, Key::All, 0, 3072), (Op::Send, Key::All, 0, 10)];
                setup(spaced(PAUSE, &work))
            } => numbered(|number, packet, cx| match number {
                2 | 3 => cx.send_broken(&psn_moved(packet, 1)),
                _ => cx.send(packet),
            });
        "duplicate-read-other-bytes", &["read-data"], EVERYWHERE,
            {
                let rules = vec![lost_response(is_read_response, 2)];
                Setup { rules, ..reads(&[(0, 100), (0, 100)]) }
            } => nth_read(3, |only| with_payload(only, &initial(2, 300..400)));
        "duplicate-read-unanswered", &["response-missing"], AT_RESPONDER,
            {
                let rules = vec![lost_response(is_read_response, 1)];
                impatient(Setup { rules, ..reads(&[(0, 100)]) })
            } => numbered(|number, packet, cx| {
                if number == 1 { cx.send(packet) } else { cx.omit() }
            });
        "duplicate-read-restarts", &["read-data"], EVERYWHERE,
            Setup { rules: vec![lost_response(is_read_response, 2)], ..reads(&[(0, 3000)]) } =>
            numbered(|number, packet, cx| {
                if number <= 3 {
                    return cx.send(packet);
                }
                let at = (psn(packet) as usize - 101) * 1024;
                let len = parse(packet).payload_len();
                cx.send_broken(&with_payload(packet, &initial(2, at..at + len)));
            });
        "read-answered-by-ack", &["response-kind", "response-order"], EVERYWHERE,
            reads(&[(0, 100)]) => nth_read(1, |only| remade(only, Opcode::RC_ACKNOWLEDGE, 1, &[]));
        "zero-length-read-unanswered", &["response-missing"], AT_RESPONDER,
            impatient(reads(&[(0, 64), (0, 0)])) =>
            without(|packet| packet.bth().psn().get() == 101);
        "zero-length-read-with-data", &["read-response-length"], EVERYWHERE,
            reads(&[(0, 0)]) => nth_read(1, |only| with_payload(only, &[0; 4]));
        "response-bad-pad", &["response-pad", "read-response-length"], EVERYWHERE,
            reads(&[(0, 5)]) => nth_read(1, |only| with_pad_count(only, 1));
        "read-response-unsolicited", &["response-unsolicited"], EVERYWHERE,
            sends(3) => nth_out(is_ack, 2, |ack, cx| {
                cx.send(ack);
                let opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
                cx.send_broken(&remade(&psn_moved(ack, 1), opcode, 2, &[7; 16]));
            });
        "duplicate-write-executed", &["read-data"], EVERYWHERE,
            {
                let mut work = at_once(&[
                    (Op::Write, Key::All, 0, 100),
                    (Op::Write, Key::All, 0, 100),
                    (Op::Read, Key::All, 0, 100),
                ]);
                work[2].at = Duration::from_micros(50);
                let rules = vec![FaultRule { action: Action::Duplicate, ..lost_request(1) }];
                Setup { rules, ..setup(work) }
            } => {
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
            };
    }
}

flaws! {
    /// Atomics: original values, repeated execution.
    pub ATOMICS: responder {
        "duplicate-atomic-executed", &["duplicate-atomic", "atomic-original"], EVERYWHERE,
            Setup { rules: vec![lost_response(is_atomic_ack, 2)], ..adds(2) } =>
            nth_out(is_atomic_ack, 3, |ack, cx| {
                cx.send_broken(&with_original(ack, original(ack).wrapping_add(5)));
            });
        "atomic-executed-twice", &["atomic-original"], EVERYWHERE,
            adds(3) => numbered(|number, packet, cx| match number {
                2 => {
                    add_to_memory(cx, 64, 5);
                    cx.send(packet);
                }
                3 => cx.send_broken(packet),
                _ => cx.send(packet),
            });
        "atomic-returns-new-value", &["atomic-original"], EVERYWHERE,
            adds(3) => nth_out(is_atomic_ack, 2, |ack, cx| {
                cx.send_broken(&with_original(ack, original(ack).wrapping_add(5)));
            });
        "misaligned-atomic-executed", &["invalid-request-accepted"], EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Send, Key::All, 0, 8), (Op::FetchAdd(5), Key::All, 4, 8)]))
            =>
            nth_out(is_nak, 1, |nak, cx| cx.send_broken(&as_atomic_ack(nak, 7)));
        "failed-compare-swaps", &["atomic-original"], EVERYWHERE,
            {
                let swap = |compare, swap| (Op::CompareSwap { compare, swap }, Key::All, 64, 8);
                let work = [
                    (Op::FetchAdd(0), Key::All, 64, 8),
                    swap(1, 2),
                    (Op::FetchAdd(0), Key::All, 64, 8),
                ];
                setup(spaced(PAUSE, &work))
            } => nth_out(is_atomic_ack, 3, |ack, cx| cx.send_broken(&with_original(ack, 2)));
    }
}
