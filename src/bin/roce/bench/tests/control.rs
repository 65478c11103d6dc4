//! Tests of the control connection: messages that are refused, tokens, slow clients.

use super::*;

#[test]
fn refused_plan_names_the_option() {
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
    Reach {
        qps: vec![qp],
        addr: 0x7f00_0000_1000,
        rkey: RKey::new(0xdead_beef),
        link,
        selective_repeat: false,
        reorder_span: 0,
    }
}

/// First line of a client, apart from its nonce.
const MAGIC: &str = Protocol::Bench.magic();

/// Returns all that a client sends before anything is measured.
fn opening(plan: &Plan) -> String {
    let hello = Hello { plan: plan.clone(), client: reach() };
    format!("{MAGIC} {}\n{}\n", "0f".repeat(16), serde_json::to_string(&hello).unwrap())
}

/// Parses the bytes of a client as a server does.
fn received(bytes: &[u8]) -> anyhow::Result<Hello> {
    let (mut client, server) = tcp();
    client.write_all(bytes).unwrap();
    // Only this half is closed: the server sends its answer over the other.
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let received = receive(&mut to_client(server));
    drop(client);
    received
}

#[test]
fn messages_are_parsed_as_they_were_sent() {
    let hello = |plan: &Plan| Hello { plan: plan.clone(), client: reach() };
    for metric in Metric::ALL {
        for (op, connection) in possible() {
            let plan = plan(op, metric, connection);
            assert_eq!(received(opening(&plan).as_bytes()).unwrap(), hello(&plan));
        }
    }
    let sizes = (1..=23).map(|power| 1 << power).collect();
    let extent = Extent::Seconds(5);
    let all = Plan { sizes, extent, ..plan(Op::Send, Metric::Bw, Connection::Rc) };
    assert_eq!(received(opening(&all).as_bytes()).unwrap(), hello(&all));
    let (server, client) = tcp();
    let answer = Answer { mtu: Mtu::M512, server: reach() };
    to_client(server).send(&Message::Answer(answer.clone())).unwrap();
    assert_eq!(Answer::receive(&mut to_server(client), &all).unwrap(), answer);
}

#[test]
fn a_hello_that_is_cut_short_anywhere_is_refused() {
    let whole = opening(&plan(Op::Send, Metric::Bw, Connection::Rc));
    for end in 0..whole.len() {
        let error = received(&whole.as_bytes()[..end]).unwrap_err();
        assert!(format!("{error:#}").contains("closed the connection"), "{end}: {error:#}");
    }
}

#[test]
fn a_hostile_hello_is_refused_and_named() {
    let sound = opening(&plan(Op::Send, Metric::Bw, Connection::Rc));
    assert!(received(sound.as_bytes()).is_ok());
    let long = format!("\"op\":\"{}\"", "9".repeat(MESSAGE_MAX));
    let many = format!("[{}64]", "64,".repeat(40));
    let qps = format!("[{}{{", r#"{"gid":"::1","qpn":1,"psn":1},"#.repeat(1200));
    for (from, to, word) in [
        (MAGIC, "roce-bench 2", "use the same version"),
        (r#""op":"send""#, r#""op":"dance""#, "unknown variant `dance`"),
        (r#""op":"send","#, "", "missing field `op`"),
        (r#""op":"send""#, &long, "more than 262144 bytes"),
        ("[64]", &many, "too many"),
        ("[64]", "[4294967296]", "expected u32"),
        ("[64]", "[8388609]", "0 to 8388608 bytes"),
        ("[64]", "[+4]", "expected value"),
        ("[64]", "[]", "no size"),
        ("[64]", "[64\x1b[2J]", "expected"),
        (r#""sizes""#, r#""seizes""#, "unknown field `seizes`"),
        (r#""op""#, r#""\u001b[2J""#, "unknown field `\\u{1b}[2J`"),
        (r#""iterations":300"#, r#""iterations":-1"#, "expected u64"),
        (r#""iterations":300"#, r#""iterations":18446744073709551615"#, "-n: 1 to"),
        (r#""udp""#, r#""../x""#, "'../x' is not the name"),
        ("[{", r#"[{"gid":"::1","qpn":1,"psn":1},{"#, "several GIDs"),
        (r#""iterations":300"#, r#""minutes":3"#, "unknown variant `minutes`"),
        ("1024", "1000", "1000 is no MTU"),
        (r#""tx_depth":16"#, r#""tx_depth":99999"#, "-t"),
        (r#""verify":true"#, r#""verify":"maybe""#, "expected a boolean"),
        ("3735928559", "8030895855", "an R_Key has at most 32 bits"),
        ("3735928559", "-1", "expected u64"),
        ("11259375", "28036591", "a QPN has at most 24 bits"),
        ("::ffff:10.0.0.1", "10.0.0.1", "invalid IPv6 address"),
        ("[{", &qps, "more than 1024 queue pairs"),
        (r#""qps":1"#, r#""qps":2"#, "1 queue pairs instead of 2"),
        ("{\"plan\"", "error out of memory\n", "the client says: out of memory"),
        ("{\"plan\"", "error a\u{202e}b\u{9b}2J\n", "the client says: a\\u{202e}b\\u{9b}2J"),
    ] {
        assert!(sound.contains(from), "{from}: {sound}");
        let error = received(sound.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{to}: {error:#}");
    }
    let binary = received(&[0xff; 2000]).unwrap_err();
    assert!(format!("{binary:#}").contains("more than 512 bytes"));
}

#[test]
fn an_error_is_told_to_the_other_side_in_one_line() {
    let (client, mut server) = tcp();
    let mut control = to_server(client);
    let error = anyhow::anyhow!("äö\n{}", "ü".repeat(2000)).context("why");
    control.send_error(&format_args!("{error:#}"));
    drop(control);
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("error why: äö\\nü") && text.ends_with("ü\n"), "{text}");
    assert_eq!((text.lines().count(), text.len() <= OPENING_LINE_MAX + 1), (1, true));
}

/// Lets a client and a server open a connection. Returns whether the server welcomed the client,
/// and the client's error.
fn open_connection(own: Option<&Token>, known: Option<&Token>) -> (bool, Option<String>) {
    let (client, server) = tcp();
    let plan = plan(Op::Send, Metric::Bw, Connection::Rc);
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let mut control = to_client(server);
            let serve = |control: &mut Channel| -> anyhow::Result<Request> {
                let applicant = Request::read(control, own)?;
                Ok(control.welcome(applicant)?)
            };
            let served = serve(&mut control);
            if let Err(error) = &served {
                control.send_error(error);
            }
            matches!(served, Ok(Request::BenchByCm(_)))
        });
        let mut control = to_server(client);
        let hello = Hello { plan, client: reach() };
        let met = control.open(Protocol::BenchByCm, known, &hello);
        drop(control);
        (served.join().unwrap(), met.err().map(|error| error.to_string()))
    })
}

#[test]
fn only_sides_with_the_same_token_open_a_connection() {
    let [token, other] = ["correct horse", "another horse"].map(|it| Token::new(it).unwrap());
    assert_eq!(open_connection(None, None), (true, None));
    assert_eq!(open_connection(Some(&token), Some(&token)), (true, None));
    let (welcome, error) = open_connection(Some(&token), Some(&other));
    assert!(!welcome && error.unwrap().contains("does not prove the token"));
    let (welcome, error) = open_connection(Some(&token), None);
    assert_eq!((welcome, error), (false, Some(OpeningError::TokenWanted.to_string())));
    let (welcome, error) = open_connection(None, Some(&token));
    assert_eq!((welcome, error), (false, Some(OpeningError::TokenNotWanted.to_string())));
}

#[test]
fn slow_writer_does_not_extend_the_time_for_its_hello() {
    let (mut client, server) = tcp();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Ends when the server has closed the connection.
            while client.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut control = to_client(server);
        let wait = Duration::from_millis(300);
        let error = control.receive::<Message>(wait, "a hello").unwrap_err();
        assert!(error.to_string().contains("nothing came in time"), "{error}");
        drop(control);
    });
}

#[test]
fn session_ends_when_its_time_is_over() {
    let (client, server) = tcp();
    let limited = Tcp::new(server, Some(Duration::from_millis(50))).unwrap();
    let mut control = Channel::to_client(limited).unwrap();
    let error = control.receive::<Message>(LINE_WAIT, "a hello").unwrap_err();
    assert!(error.to_string().contains("as long as it may"), "{error}");
    let received: Result<Incoming<Message>, _> = control.try_receive("a hello");
    assert!(received.is_err(), "later receives fail too");
    drop(client);
}
