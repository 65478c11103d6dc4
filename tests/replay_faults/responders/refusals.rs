//! Refusals, and what the headers say.

use super::*;

flaws! {
    /// Receives, rights, refusals.
    pub REFUSALS: responder {
        "rnr-wrong-psn", &["nak-psn"], EVERYWHERE,
            {
                let mut setup = sends(3);
                setup.connections[0].receives[1] = vec![Duration::ZERO, Duration::from_micros(300)];
                setup
            } => nth_out(is_rnr_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1)));
        "nak-after-rnr", &["nak-after-rnr"], EVERYWHERE,
            {
                let mut setup = setup(at_once(&[(Op::Send, Key::All, 0, 100); 3]));
                setup.connections[0].receives[1] = vec![Duration::from_micros(50)];
                setup
            } => nth_out(is_rnr_nak, 1, |nak, cx| {
                cx.send(nak);
                let nak = with_syndrome(nak, SEQUENCE_NAK);
                cx.send_as(&nak, Mark::Broken, Duration::from_nanos(60));
            });
        "rnr-despite-credits", &["rnr-with-credits"], EVERYWHERE,
            {
                let mut setup = sends(4);
                setup.connections[0].receives[1] = vec![Duration::ZERO; 8];
                Setup { advertise_credits: true, ..setup }
            } => nth_ack(3, |ack| with_syndrome(&msn_moved(ack, -1), RNR_NAK));
        "nak-wrong-code", &["nak-code"], EVERYWHERE,
            setup(spaced(
                PAUSE,
                &[(Op::Write, Key::All, 0, 100), (Op::Write, Key::Unknown, 0, 100)],
            )) => nth_out(is_nak, 1, |nak, cx| cx.send_broken(&with_syndrome(nak, INVALID_NAK)));
        "nak-fatal-wrong-psn", &["nak-psn"], AT_RESPONDER,
            setup(spaced(
                PAUSE,
                &[(Op::Write, Key::All, 0, 100), (Op::Write, Key::Unknown, 0, 3000)],
            )) => nth_out(is_nak, 1, |nak, cx| cx.send_broken(&psn_moved(nak, 1)));
        "access-check-skipped", &["access-accepted"], EVERYWHERE,
            twice(&[SAME_DOMAIN, (Op::Write, Key::ReadOnly, 0, 100)]) => redirect_second();
        "key-of-other-pd-accepted", &["access-accepted"], EVERYWHERE,
            twice(&[SAME_DOMAIN, (Op::Write, Key::OtherDomain, 0, 100)]) => redirect_second();
        "write-beyond-region-accepted", &["access-accepted"], EVERYWHERE,
            twice(&[SAME_DOMAIN, (Op::Write, Key::Page, 4000, 200)]) => redirect_second();
        "read-beyond-region-accepted", &["access-accepted"], EVERYWHERE,
            twice(&[SAME_DOMAIN, (Op::Read, Key::Page, 4000, 200)]) => redirect_second();
        "refused-after-accepted", &["access-refused"], EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Write, Key::Page, 0, 100); 2])) =>
            nth_out(is_ack, 2, |ack, cx| {
                cx.send_broken(&with_syndrome(&msn_moved(ack, -1), ACCESS_NAK));
            });
        "zero-length-write-key-checked", &["zero-length-key", "access-refused"], EVERYWHERE,
            setup(spaced(PAUSE, &[(Op::Write, Key::All, 0, 8), (Op::Write, Key::Unknown, 0, 0)])) =>
            nth_ack(2, |ack| with_syndrome(&msn_moved(ack, -1), ACCESS_NAK));
        "acks-after-fatal-nak", &["after-fatal-nak"], EVERYWHERE,
            setup(at_once(&[
                (Op::Write, Key::Unknown, 0, 100),
                (Op::Send, Key::All, 0, 100),
                (Op::Send, Key::All, 0, 100),
            ])) => nth_out(is_nak, 1, |nak, cx| {
                cx.send(nak);
                let ack = |by: i32| with_syndrome(&msn_moved(&psn_moved(nak, by), by), ACK);
                cx.send_as(&ack(1), Mark::Broken, Duration::from_nanos(100));
                cx.send_as(&ack(2), Mark::Broken, Duration::from_nanos(200));
            });
    }
}

flaws! {
    /// Fields of headers.
    pub HEADERS: responder {
        "response-wrong-pkey", &["response-pkey"], EVERYWHERE,
            sends(3) => nth_ack(2, |ack| with_pkey(ack, 0x8001));
        "response-version-nonzero", &["response-version"], EVERYWHERE,
            sends(3) => nth_ack(2, |ack| with_version(ack, 1));
        "reserved-syndrome", &["response-syndrome"], EVERYWHERE,
            sends(3) => nth_ack(2, |ack| with_syndrome(ack, 0x45));
        "reserved-nak-code", &["response-syndrome", "nak-code"], EVERYWHERE,
            sends(3) => numbered(|number, packet, cx| match number {
                1 | 2 => cx.send(packet),
                3 => cx.send_broken(&with_syndrome(packet, 0x6a)),
                // Whether such a NAK ends the connection, no rule says.
                _ => cx.send_as(packet, Mark::Consequence, Duration::ZERO),
            });
        "response-asks-for-ack", &["response-bits"], EVERYWHERE,
            sends(3) => nth_ack(2, with_ack_request);
    }
}

/// Device that accepts on the second connection what was refused on the first: the engine is given
/// a key that is good.
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
