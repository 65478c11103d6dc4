//! The control connection: what is refused, and by whom a server lets itself be held up.

use super::*;

#[test]
fn a_plan_that_cannot_be_is_refused_with_the_letter() {
    let rc = plan(Op::Send, Metric::Bw, Connection::Rc);
    let wrong = |plan: Plan| plan.check().unwrap_err().to_string();
    assert!(rc.check().is_ok());
    assert!(wrong(plan(Op::Read, Metric::Bw, Connection::Uc)).contains("UC has no read"));
    assert!(wrong(plan(Op::Write, Metric::Bw, Connection::Ud)).contains("UD has no write"));
    let large = Plan { sizes: vec![2048], ..plan(Op::Send, Metric::Bw, Connection::Ud) };
    assert!(wrong(large).contains("does not fit an MTU of 1024"));
    let empty = Plan { sizes: vec![0], ..plan(Op::Write, Metric::Lat, Connection::Rc) };
    assert!(wrong(empty).contains("at least 1 byte"));
    assert!(wrong(Plan { sizes: vec![(8 << 20) + 1], ..rc.clone() }).starts_with("-s"));
    assert!(wrong(Plan { sizes: vec![64; 33], ..rc.clone() }).contains("too many"));
    assert!(wrong(Plan { qps: 0, ..rc.clone() }).starts_with("-q"));
    assert!(wrong(Plan { qps: 1025, ..rc.clone() }).starts_with("-q"));
    assert!(wrong(Plan { qps: 256, tx_depth: 8192, ..rc.clone() }).starts_with("-q and -t"));
    assert!(wrong(Plan { tx_depth: 0, ..rc.clone() }).starts_with("-t"));
    assert!(wrong(Plan { extent: Extent::Iterations(0), ..rc.clone() }).starts_with("-n"));
    assert!(wrong(Plan { extent: Extent::Seconds(u64::MAX), ..rc.clone() }).starts_with("-D"));
    let sizes = vec![4];
    assert!(
        wrong(Plan { sizes, ..plan(Op::Atomic, Metric::Bw, Connection::Rc) }).contains("8 bytes")
    );
    let lat = Plan { metric: Metric::Lat, qps: 2, ..rc };
    assert!(wrong(lat).contains("one queue pair"));
}

fn reach() -> Reach {
    let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
    let qp = Endpoint { gid, qpn: Qpn::new(0xabcdef), psn: Psn::new(7) };
    let link = "udp".to_owned();
    Reach { qps: vec![qp], addr: 0x7f00_0000_1000, rkey: RKey::new(0xdead_beef), link }
}

/// First line of a client, apart from its nonce.
const MAGIC: &str = "roce-bench 3";

/// Returns all that a client sends before anything is measured.
fn opening(plan: &Plan) -> String {
    format!("{MAGIC} {}\n{}", "0f".repeat(16), hello(plan, &reach()))
}

/// Parses the bytes of a client as a server does.
fn heard(bytes: &[u8]) -> anyhow::Result<(Plan, Reach)> {
    let (mut client, server) = tcp();
    client.write_all(bytes).unwrap();
    // The answer has to go somewhere.
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let heard = receive(&mut control(server, "the client"));
    drop(client);
    heard
}

#[test]
fn what_a_client_says_is_what_a_server_hears() {
    for metric in Metric::ALL {
        for (op, connection) in possible() {
            let plan = plan(op, metric, connection);
            assert_eq!(heard(opening(&plan).as_bytes()).unwrap(), (plan, reach()));
        }
    }
    let sizes = (1..=23).map(|power| 1 << power).collect();
    let extent = Extent::Seconds(5);
    let all = Plan { sizes, extent, ..plan(Op::Send, Metric::Bw, Connection::Rc) };
    assert_eq!(heard(opening(&all).as_bytes()).unwrap(), (all.clone(), reach()));
    let (mut server, client) = tcp();
    server.write_all(answer(Mtu::M512, &reach()).as_bytes()).unwrap();
    let mut control = control(client, "the server");
    assert_eq!(read_answer(&mut control, &all).unwrap(), (Mtu::M512, reach()));
}

#[test]
fn a_hello_that_is_cut_short_anywhere_is_refused() {
    let whole = opening(&plan(Op::Send, Metric::Bw, Connection::Rc));
    for end in 0..whole.len() {
        let error = heard(&whole.as_bytes()[..end]).unwrap_err();
        assert!(format!("{error:#}").contains("closed the connection"), "{end}: {error:#}");
    }
}

#[test]
fn a_hostile_hello_is_refused_and_named() {
    let sound = opening(&plan(Op::Send, Metric::Bw, Connection::Rc));
    assert!(heard(sound.as_bytes()).is_ok());
    let long = "9".repeat(LINE_MAX + 1);
    let many = "64 ".repeat(40);
    let qps = "qp ::1 0x1 0x1\n".repeat(1200);
    for (from, to, word) in [
        (MAGIC, "roce-bench 2", "use the same version"),
        ("test send", "test dance", "no 'dance'"),
        ("test send bw RC", "test send", "names no test"),
        ("sizes 64", &format!("sizes {long}"), "more than 512 bytes"),
        ("sizes 64", &format!("sizes {}", many.trim()), "more than 32 sizes"),
        ("sizes 64", "sizes 4294967296", "no number, or too large"),
        ("sizes 64", "sizes 8388609", "0 to 8388608 bytes"),
        ("sizes 64", "sizes +4", "no number"),
        ("sizes 64", "sizes ", "no number"),
        ("sizes 64", "sizes 64\x1b[2J", "not text"),
        ("sizes 64", "seizes 64", "'seizes' instead of 'sizes'"),
        ("iterations 300", "iterations -1", "no number"),
        ("iterations 300", "iterations 18446744073709551615", "-n: 1 to"),
        ("link udp", "link ../x", "no kind of link"),
        ("0x7\nend", "0x7\nqp ::ffff:10.0.0.2 0x1 0x7\nend", "several GIDs"),
        ("iterations 300", "minutes 3", "instead of how long"),
        ("mtu 1024", "mtu 1000", "1000 is no MTU"),
        ("tx-depth 16", "tx-depth 99999", "-t"),
        ("verify true", "verify maybe", "neither true nor false"),
        ("0xdeadbeef", "0x1deadbeef", "out of range"),
        ("0xdeadbeef", "deadbeef", "no hexadecimal number"),
        ("0xabcdef", "0x1abcdef", "24 bits"),
        ("::ffff:10.0.0.1", "10.0.0.1", "no GID"),
        ("end\n", &format!("{qps}end\n"), "more than 1024 queue pairs"),
        ("qp ::ffff:10.0.0.1 0xabcdef 0x7\n", "", "-q: 1 to 1024"),
        ("end\n", "error out of memory\n", "the client says: out of memory"),
        ("end\n", "error a\u{202e}b\u{9b}2J\n", "the client says: a\\u{202e}b\\u{9b}2J"),
    ] {
        assert!(sound.contains(from), "{from}");
        let error = heard(sound.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{to}: {error:#}");
    }
    let binary = heard(&[0xff; 2000]).unwrap_err();
    assert!(format!("{binary:#}").contains("more than 512 bytes"));
}

#[test]
fn an_error_is_told_to_the_other_side_in_one_line() {
    let (client, mut server) = tcp();
    let mut control = control(client, "the server");
    control.send_error(&anyhow::anyhow!("äö\n{}", "ü".repeat(2000)).context("why"));
    drop(control);
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("error why: äö\\nü") && text.ends_with("ü\n"), "{text}");
    assert_eq!((text.lines().count(), text.len() <= LINE_MAX + 1), (1, true));
}

/// Lets a client and a server open a connection. Returns whether the server welcomed the client,
/// and the client's error.
fn meet(own: Option<&Token>, known: Option<&Token>) -> (bool, Option<String>) {
    let (client, server) = tcp();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let mut control = control(server, "the client");
            let serve = |control: &mut Control| {
                let (protocol, opening) = begin(control, own)?;
                control.expect("end")?;
                welcome(control, opening).map(|()| protocol)
            };
            let served = serve(&mut control);
            if let Err(error) = &served {
                control.send_error(error);
            }
            served.is_ok_and(|protocol| protocol == Protocol::Mesh)
        });
        let mut control = control(client, "the server");
        let met = introduce(&mut control, Protocol::Mesh, known, "end\n");
        drop(control);
        (served.join().unwrap(), met.err().map(|error| error.to_string()))
    })
}

#[test]
fn sides_that_know_one_token_meet_and_no_others() {
    let [token, other] = ["correct horse", "another horse"].map(|it| Token::new(it).unwrap());
    assert_eq!(meet(None, None), (true, None));
    assert_eq!(meet(Some(&token), Some(&token)), (true, None));
    let (welcome, error) = meet(Some(&token), Some(&other));
    assert!(!welcome && error.unwrap().contains("does not prove the token"));
    let (welcome, error) = meet(Some(&token), None);
    assert_eq!((welcome, error), (false, Some(OpeningError::TokenWanted.to_string())));
    let (welcome, error) = meet(None, Some(&token));
    assert_eq!((welcome, error), (false, Some(OpeningError::TokenNotWanted.to_string())));
}

#[test]
fn slow_writer_does_not_extend_the_time_for_its_hello() {
    let (mut client, server) = tcp();
    let mut control = control(server, "the client");
    control.wait_in_all(Duration::from_millis(300)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Ends when the server has closed the connection.
            while client.write_all(b"alive\n").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let error = control.line().unwrap_err();
        assert!(format!("{error:#}").contains("nothing came in time"), "{error:#}");
        drop(control);
    });
}

#[test]
fn session_ends_when_its_time_is_over() {
    let (client, server) = tcp();
    let mut control = control_within(server, "the client", Some(Duration::from_millis(50)));
    let error = control.line().unwrap_err();
    assert!(format!("{error:#}").contains("as long as it may"), "{error:#}");
    control.set_waiting(false).unwrap();
    assert!(control.try_line().is_err(), "neither does it listen any longer");
    drop(client);
}
