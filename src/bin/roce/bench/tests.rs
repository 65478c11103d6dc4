//! Both sides in one process: two NICs on a cable, and TCP on the loopback interface.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use roce::link::{cable, fault};
use roce::nic::SoftNic;
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, Psn, Qpn, RKey};

use super::bandwidth::Outcome;
use super::control::Control;
use super::control::lines::LINE_MAX;
use super::control::messages::{
    Done, MAGIC, Reach, Seen, answer, hello, introduce, read_answer, read_hello, welcome,
};
use super::control::pingpong_message::{MESSAGE_BYTES, from_message};
use super::control::plan::{Connection, Extent, Metric, Op, Plan};
use super::pingpong;
use super::report::{self, End, Unit};
use super::session::{
    self, Audience, ClientOptions, Counts, RETRIES, ServerOptions, Setting, Step,
};
use super::tcp::Tcp;

fn nics() -> (SoftNic, SoftNic) {
    let gid = |host| Gid::from(Ipv4Addr::new(192, 0, 2, host));
    let (a, b) = cable(gid(1), gid(2)).unwrap();
    (SoftNic::start(a).unwrap(), SoftNic::start(b).unwrap())
}

/// The two ends of a TCP connection: the client's, then the server's.
fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn control(stream: TcpStream, peer: &'static str) -> Control {
    Control::new(Box::new(Tcp::new(stream, None).unwrap()), peer)
}

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

static NEVER: AtomicBool = AtomicBool::new(false);

fn options() -> ClientOptions<'static> {
    ClientOptions { gid_index: 0, mtu: None, server: HOST, interrupt: &NEVER }
}

/// Serves one client, as a server without limits does.
fn serve(nic: &SoftNic, stream: TcpStream) -> anyhow::Result<Plan> {
    serve_with(nic, stream, |_| {})
}

fn serve_with(
    nic: &SoftNic,
    stream: TcpStream,
    meddle: impl Fn(&super::side::Side<'_>),
) -> anyhow::Result<Plan> {
    let mut control = control(stream, "the client");
    let (plan, peer) = read_hello(&mut control)?;
    let options = ServerOptions { gid_index: 0, client: HOST };
    session::server_with(nic, &mut control, &plan, peer, options, meddle)?;
    Ok(plan)
}

fn plan(op: Op, metric: Metric, connection: Connection) -> Plan {
    Plan {
        op,
        metric,
        connection,
        sizes: vec![if op == Op::Atomic { 8 } else { 64 }],
        extent: Extent::Iterations(300),
        qps: 1,
        mtu: Mtu::M1024,
        tx_depth: 16,
        bidirectional: false,
        verify: true,
    }
}

#[derive(Default)]
struct Notes {
    steps: Vec<Step>,
    setting: Option<Setting>,
}

impl Audience for Notes {
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.setting = Some(setting.clone());
        Ok(())
    }

    fn bar(&mut self, _: &Plan, _: u32) -> ProgressBar {
        ProgressBar::hidden()
    }

    fn step(&mut self, _: &Plan, step: &Step) -> anyhow::Result<()> {
        self.steps.push(step.clone());
        Ok(())
    }
}

fn run(plan: &Plan) -> (Notes, Counts) {
    let (a, b) = nics();
    let (client, server) = tcp();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&b, server));
        let mut notes = Notes::default();
        let mut control = control(client, "the server");
        let counts = session::client(&a, &mut control, plan, options(), &mut notes);
        let served = server.join().unwrap();
        let counts = counts.unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
        assert_eq!(served.unwrap(), *plan);
        (notes, counts)
    })
}

/// Everything that perftest can measure.
fn possible() -> Vec<(Op, Connection)> {
    use Connection::{Rc, Uc, Ud};
    let (send, write) = (Op::Send, Op::Write);
    vec![
        (send, Rc),
        (send, Uc),
        (send, Ud),
        (write, Rc),
        (write, Uc),
        (Op::Read, Rc),
        (Op::Atomic, Rc),
    ]
}

#[test]
fn bandwidth_of_everything() {
    for (op, connection) in possible() {
        let (notes, counts) = run(&plan(op, Metric::Bw, connection));
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        let own = step.outcome.own;
        assert_eq!((own.messages, step.outcome.peer.messages), (300, 0), "{op:?} {connection:?}");
        assert!(own.nanos > 0 && own.peak > 0);
        assert_eq!(step.wrong(), 0, "{op:?} {connection:?}");
        let lost = step.lost(&plan(op, Metric::Bw, connection)).unwrap();
        if connection == Connection::Rc {
            assert_eq!(lost, 0);
        }
        if op == Op::Send || connection == Connection::Uc {
            assert_eq!(step.peer_saw.unwrap().received.unwrap() + lost, 300);
        }
        let sent = |counted: &[(String, u64)]| {
            counted.iter().find(|(name, _)| name == "sent_pkts").map_or(0, |(_, count)| *count)
        };
        assert!(sent(&counts.own) >= 300);
        assert!(counts.peer.iter().any(|(name, _)| name == RETRIES));
    }
}

#[test]
fn latency_of_everything() {
    for (op, connection) in possible() {
        let (notes, _) = run(&plan(op, Metric::Lat, connection));
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        let times = step.latency.clone().unwrap();
        assert_eq!(times.count, 300, "{op:?} {connection:?}");
        assert!(0.0 < times.min && times.min <= times.typical && times.typical <= times.p99);
        assert!(times.p99 <= times.p999 && times.p999 <= times.max);
        assert_eq!(step.wrong(), 0, "{op:?} {connection:?}");
        if matches!(op, Op::Send | Op::Write) {
            let received = (step.peer_saw.unwrap().received, step.outcome.seen.received);
            assert_eq!(received, (Some(300), Some(300)));
        }
    }
}

#[test]
fn both_ways_many_queue_pairs_and_sizes_that_are_no_multiple_of_anything() {
    for op in Op::ALL {
        let sizes = if op == Op::Atomic { vec![8] } else { vec![0, 1, 1025, 70_001] };
        let extent = Extent::Iterations(37);
        let plan = Plan {
            sizes: sizes.clone(),
            extent,
            qps: 3,
            tx_depth: 5,
            bidirectional: true,
            ..plan(op, Metric::Bw, Connection::Rc)
        };
        let (notes, _) = run(&plan);
        let measured: Vec<u32> = notes.steps.iter().map(|step| step.size).collect();
        assert_eq!(measured, sizes);
        for step in &notes.steps {
            let messages = (step.outcome.own.messages, step.outcome.peer.messages);
            assert_eq!(messages, (111, 111), "{op:?}");
            assert_eq!((step.wrong(), step.lost(&plan)), (0, Some(0)), "{op:?}");
            if op == Op::Send {
                let received = (step.outcome.seen.received, step.peer_saw.unwrap().received);
                assert_eq!(received, (Some(111), Some(111)));
            }
        }
    }
}

#[test]
fn a_run_by_time_ends_when_it_is_over() {
    for metric in Metric::ALL {
        let plan = Plan { extent: Extent::Seconds(1), ..plan(Op::Write, metric, Connection::Rc) };
        let (notes, _) = run(&plan);
        let [step] = &notes.steps[..] else { panic!() };
        let took = Duration::from_nanos(step.outcome.own.nanos);
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
        assert!(step.outcome.own.messages > 0);
    }
}

#[test]
fn the_smaller_mtu_wins_unless_one_was_asked_for() {
    let (a, b) = nics();
    // A server on a port that can do less than the client wants.
    let served = |options: ClientOptions<'_>, mtu: Mtu| {
        let (client, server) = tcp();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut control = control(server, "the client");
                let (plan, _) = read_hello(&mut control).unwrap();
                let mtu = plan.mtu.min(Mtu::M512);
                let link = "cable".to_owned();
                let reach = Reach { qps: vec![b_endpoint(&b)], addr: 0, rkey: RKey::new(1), link };
                control.send(&answer(mtu, &reach)).unwrap();
                control.send("error that is enough\n").unwrap();
            });
            let mut control = control(client, "the server");
            let plan = Plan { mtu, ..plan(Op::Send, Metric::Bw, Connection::Rc) };
            let mut notes = Notes::default();
            let error = session::client(&a, &mut control, &plan, options, &mut notes).unwrap_err();
            (notes.setting.map(|setting| setting.plan.mtu), format!("{error:#}"))
        })
    };
    let (agreed, error) = served(options(), Mtu::M4096);
    assert_eq!((agreed, error.as_str()), (Some(Mtu::M512), "the server says: that is enough"));
    let exact = ClientOptions { mtu: Some(Mtu::M4096), ..options() };
    let (_, error) = served(exact, Mtu::M4096);
    assert!(error.contains("-m: the server can do an MTU of 512, not 4096"), "{error}");
}

fn b_endpoint(nic: &SoftNic) -> Endpoint {
    Endpoint { gid: nic.port().gids[0], qpn: Qpn::new(0x11), psn: Psn::new(0) }
}

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

/// Everything that a client sends before anything is measured.
fn opening(plan: &Plan) -> String {
    format!("{MAGIC}\n{}", hello(plan, &reach()))
}

/// What a server makes of the bytes of a client.
fn heard(bytes: &[u8]) -> anyhow::Result<(Plan, Reach)> {
    let (mut client, server) = tcp();
    client.write_all(bytes).unwrap();
    drop(client);
    let mut control = control(server, "the client");
    welcome(&mut control, None)?;
    read_hello(&mut control)
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
        (MAGIC, "roce-bench 1", "use the same version"),
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
        ("end\n", "error a\u{202e}b\u{9b}2J\n", "the client says: a b 2J"),
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
    assert!(text.starts_with("error why: äö ü") && text.ends_with("ü\n"));
    assert_eq!((text.lines().count(), text.len() <= LINE_MAX + 1), (1, true));
}

#[test]
fn pingpong_with_oneself() {
    for connection in Connection::ALL {
        let (a, b) = nics();
        let (client, server) = tcp();
        let client = Tcp::new(client, None).unwrap();
        let mut server = Tcp::new(server, None).unwrap();
        let options = pingpong::Options {
            connection,
            mtu: Mtu::M1024,
            gid_index: 0,
            size: 1024,
            rx_depth: 50,
        };
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let mut message = [0; MESSAGE_BYTES];
                server.read_exact(&mut message).unwrap();
                let larger = pingpong::Options { size: 8192, ..options };
                let (idle, in_all) = (Duration::from_millis(500), Duration::from_secs(60));
                let limits = pingpong::ServerLimits { idle, in_all };
                let peer = from_message(&message).unwrap();
                pingpong::server(&b, &mut server, peer, larger, limits)
            });
            let played = pingpong::client(&a, client, options, 200).unwrap();
            let echoed = echo.join().unwrap().unwrap();
            assert_eq!((played.rounds, echoed.rounds), (200, 200), "{connection:?}");
            assert_eq!((played.own, played.peer), (echoed.peer, echoed.own));
        });
    }
}

/// The same with a digit for every number, and as many spaces as there were.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for character in text.chars() {
        match character {
            '0'..='9' if masked.ends_with('9') => {}
            '0'..='9' => masked.push('9'),
            _ => masked.push(character),
        }
    }
    masked
}

#[test]
fn tables_are_those_of_perftest() {
    let (notes, _) = run(&plan(Op::Send, Metric::Bw, Connection::Rc));
    let setting = notes.setting.unwrap();
    assert_eq!(
        report::heading(&setting.plan, Unit::Megabytes),
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
    );
    let row = report::row(&setting.plan, &notes.steps[0], Unit::Megabytes);
    assert!(row.starts_with(" 64         300            "), "{row}");
    let columns: Vec<String> = row.split_whitespace().map(masked).collect();
    assert_eq!(columns, ["9", "9", "9.9", "9.9", "9.9"], "{row}");
    assert!(report::heading(&setting.plan, Unit::Gigabits).contains("BW average[Gb/sec]"));

    let (notes, _) = run(&plan(Op::Read, Metric::Lat, Connection::Rc));
    let setting = notes.setting.unwrap();
    let heading = report::heading(&setting.plan, Unit::Megabytes);
    assert!(heading.ends_with(" 99% percentile[usec]   99.9% percentile[usec]"), "{heading}");
    let row = report::row(&setting.plan, &notes.steps[0], Unit::Megabytes);
    assert_eq!(row.split_whitespace().count(), 9, "{row}");
}

#[test]
fn json_has_the_same_numbers_by_name() {
    let (notes, _) = run(&plan(Op::Send, Metric::Bw, Connection::Rc));
    let counted = |count| vec![("sent_pkts".to_owned(), count), (RETRIES.to_owned(), 0)];
    let counts = Counts { own: counted(300), peer: counted(20) };
    let text = report::to_json(notes.setting.as_ref().unwrap(), &notes.steps, &counts, &End::Whole);
    assert_eq!(
        masked(&text),
        "{\"test\":\"send\",\"metric\":\"bw\",\"connection\":\"RC\",\"device\":\"cable:a\",\
         \"gid\":\"::ffff:9.9.9.9\",\"peer_gid\":\"::ffff:9.9.9.9\",\"mtu\":9,\"qps\":9,\"tx_depth\":9,\
         \"bidirectional\":false,\"verified\":true,\"iterations_per_qp\":9,\"results\":[{\"bytes\":9,\
         \"iterations\":9,\"bw_peak_MiB_per_s\":9.9,\"bw_average_MiB_per_s\":9.9,\
         \"bw_peak_Gbit_per_s\":9.9,\"bw_average_Gbit_per_s\":9.9,\"msg_rate_Mpps\":9.9,\
         \"received_messages\":9,\"lost_messages\":9,\"wrong\":9}],\"counters\":{\"local\":{\"sent_pkts\":9,\"retry_count\":9},\
         \"peer\":{\"sent_pkts\":9,\"retry_count\":9}}}"
    );
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["results"][0]["bytes"], 64);
    assert_eq!(json["counters"]["peer"]["sent_pkts"], 20);

    let (notes, counts) = run(&plan(Op::Atomic, Metric::Lat, Connection::Rc));
    let text = report::to_json(notes.setting.as_ref().unwrap(), &notes.steps, &counts, &End::Whole);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let result = &json["results"][0];
    for name in
        ["t_min_us", "t_max_us", "t_typical_us", "t_avg_us", "t_stdev_us", "t_p99_us", "t_p99_9_us"]
    {
        assert!(result[name].as_f64().is_some_and(|time| time >= 0.0), "{name}: {text}");
    }
}

#[test]
fn wrong_bytes_are_found() {
    // A server whose memory is not what it says: one byte of what is read is another.
    let (a, b) = nics();
    let (client, server) = tcp();
    let plan = plan(Op::Read, Metric::Bw, Connection::Rc);
    std::thread::scope(|scope| {
        scope.spawn(|| serve_with(&b, server, |side| side.set_last(64, 0).unwrap()));
        let mut notes = Notes::default();
        let mut control = control(client, "the server");
        session::client(&a, &mut control, &plan, options(), &mut notes).unwrap();
        assert_eq!(notes.steps[0].wrong(), 1);
        let remark = report::remark(&plan, &notes.steps[0]).unwrap();
        assert_eq!(remark, "64 bytes: 1 have not the content that was sent");
    });
}

/// A client whose messages meet a fault on their way.
fn run_with_fault(plan: &Plan, fault: &str) -> (Notes, Counts) {
    let gid = |host| Gid::from(Ipv4Addr::new(192, 0, 2, host));
    let (a, b) = cable(gid(1), gid(2)).unwrap();
    let a = SoftNic::start(fault::inject(a, &fault.parse().unwrap())).unwrap();
    let b = SoftNic::start(b).unwrap();
    let (client, server) = tcp();
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(&b, server));
        let mut notes = Notes::default();
        let mut control = control(client, "the server");
        let counts = session::client(&a, &mut control, plan, options(), &mut notes).unwrap();
        served.join().unwrap().unwrap();
        (notes, counts)
    })
}

fn unreliable() -> [(Op, Connection); 3] {
    [(Op::Send, Connection::Uc), (Op::Send, Connection::Ud), (Op::Write, Connection::Uc)]
}

#[test]
fn total_loss_of_unreliable_messages_is_reported_as_zero_received() {
    for (op, connection) in unreliable() {
        let plan = Plan { verify: false, ..plan(op, Metric::Bw, connection) };
        let (notes, _) = run_with_fault(&plan, "loss=100%");
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        assert_eq!(step.outcome.own.messages, 300, "{op:?} {connection:?}");
        assert_eq!(step.lost(&plan), Some(300), "{op:?} {connection:?}");
        assert!(step.is_all_lost(&plan));
        let row = report::row(&plan, step, Unit::Megabytes);
        let columns: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(columns[5..], ["0.00", "300"], "{row}");
        let heading = report::heading(&plan, Unit::Megabytes);
        assert!(heading.ends_with("BW received[MB/sec]   Lost"), "{heading}");
        let remark = report::remark(&plan, step).unwrap();
        assert_eq!(remark, "64 bytes: all 300 messages were lost: nothing arrived");
        let setting = notes.setting.as_ref().unwrap();
        let text = report::to_json(setting, &notes.steps, &Counts::default(), &End::Whole);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let result = &json["results"][0];
        assert_eq!(
            (&result["lost_messages"], &result["received_messages"]),
            (&300.into(), &0.into())
        );
        assert_eq!(result["bw_received_MiB_per_s"].as_f64(), Some(0.0));
    }
}

#[test]
fn partial_loss_is_counted_by_the_receiver() {
    for (op, connection) in unreliable() {
        let plan = Plan { verify: false, ..plan(op, Metric::Bw, connection) };
        let (notes, counts) = run_with_fault(&plan, "loss=50%,seed=7");
        let [step] = &notes.steps[..] else { panic!("{op:?}") };
        let lost = step.lost(&plan).unwrap();
        assert!((1..300).contains(&lost), "{op:?} {connection:?}: {lost}");
        let [there, _] = step.arrived(&plan);
        assert_eq!(there.unwrap().messages + lost, 300);
        if op == Op::Write {
            let writes = counts.peer.iter().find(|(name, _)| name == "rx_write_requests").unwrap();
            assert_eq!(writes.1 + lost, 300);
        }
    }
}

#[test]
fn losses_without_a_count_of_messages_are_estimated_from_packets_or_unknown() {
    let plan = plan(Op::Write, Metric::Bw, Connection::Uc);
    let own = Done { messages: 100, nanos: 1000, peak: 0 };
    let seen = |packets| Seen { packets, ..Seen::default() };
    let step = |packets, sent| Step {
        size: 4096,
        outcome: Outcome { own, ..Outcome::default() },
        peer_saw: Some(seen(packets)),
        packets_sent: sent,
        latency: None,
    };
    assert_eq!(step(Some(300), Some(400)).lost(&plan), Some(25));
    assert_eq!(step(Some(0), Some(400)).lost(&plan), Some(100));
    assert_eq!(step(Some(500), Some(400)).lost(&plan), Some(0));
    assert_eq!((step(None, Some(400)).lost(&plan), step(None, None).lost(&plan)), (None, None));
    assert!(report::row(&plan, &step(None, None), Unit::Megabytes).ends_with(" -"));
}

/// An audience that gets to know the progress bar when the measurement of a size begins.
struct Then<F: FnMut(ProgressBar)>(Notes, F);

/// Waits until a progress bar shows messages.
fn wait_for_progress(bar: &ProgressBar) {
    while bar.position() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl<F: FnMut(ProgressBar)> Audience for Then<F> {
    fn begin(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.0.begin(setting)
    }

    fn bar(&mut self, plan: &Plan, size: u32) -> ProgressBar {
        let bar = self.0.bar(plan, size);
        (self.1)(bar.clone());
        bar
    }

    fn step(&mut self, plan: &Plan, step: &Step) -> anyhow::Result<()> {
        self.0.step(plan, step)
    }
}

#[test]
fn interrupt_ends_a_run_with_what_was_measured() {
    for (metric, bidirectional) in [(Metric::Bw, false), (Metric::Bw, true), (Metric::Lat, false)] {
        let plan = Plan {
            sizes: vec![64, 128],
            extent: Extent::Iterations(1 << 40),
            bidirectional,
            ..plan(Op::Send, metric, Connection::Rc)
        };
        let (a, b) = nics();
        let (client, server) = tcp();
        let interrupt = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&b, server));
            let interrupt = &interrupt;
            let mut audience = Then(Notes::default(), |bar| {
                scope.spawn(move || {
                    wait_for_progress(&bar);
                    interrupt.store(true, Ordering::SeqCst);
                });
            });
            let mut control = control(client, "the server");
            let options = ClientOptions { interrupt, ..options() };
            let counts = session::client(&a, &mut control, &plan, options, &mut audience).unwrap();
            let [step] = &audience.0.steps[..] else { panic!("{:?}", audience.0.steps) };
            assert!(step.outcome.own.messages > 0 && step.peer_saw.is_some(), "{step:?}");
            assert!(!counts.peer.is_empty(), "the server told its counters");
            served.join().unwrap().unwrap();
        });
    }
}

#[test]
fn death_of_the_server_leaves_what_was_measured() {
    for metric in Metric::ALL {
        let plan = Plan { extent: Extent::Seconds(600), ..plan(Op::Write, metric, Connection::Uc) };
        let (a, b) = nics();
        let (client, server) = tcp();
        let cut = server.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&b, server));
            let cut = &cut;
            let mut audience = Then(Notes::default(), |bar| {
                scope.spawn(move || {
                    wait_for_progress(&bar);
                    cut.shutdown(std::net::Shutdown::Both).unwrap();
                });
            });
            let mut control = control(client, "the server");
            session::client(&a, &mut control, &plan, options(), &mut audience).unwrap_err();
            let [step] = &audience.0.steps[..] else { panic!("{metric:?}") };
            assert!(step.outcome.own.messages > 0 && step.peer_saw.is_none(), "{metric:?}");
        });
    }
}

#[test]
fn thousand_queue_pairs_and_empty_messages() {
    let plan = Plan {
        sizes: vec![0],
        qps: 1000,
        extent: Extent::Iterations(3),
        ..plan(Op::Send, Metric::Bw, Connection::Rc)
    };
    let (notes, _) = run(&plan);
    assert_eq!(notes.steps[0].peer_saw.unwrap().received, Some(3000));
    for (op, connection) in [(Op::Send, Connection::Ud), (Op::Read, Connection::Rc)] {
        let plan = Plan { sizes: vec![0], ..self::plan(op, Metric::Lat, connection) };
        assert_eq!(run(&plan).0.steps[0].outcome.own.messages, 300, "{op:?}");
    }
}

#[test]
fn server_with_a_token_welcomes_only_clients_that_know_it() {
    let secret = |nonce: &str| format!("{nonce}-proved");
    let other = |nonce: &str| format!("{nonce}-guessed");
    let meet = |token: bool, known: Option<&dyn Fn(&str) -> String>| {
        let (client, server) = tcp();
        std::thread::scope(|scope| {
            let served = scope.spawn(move || {
                let mut control = control(server, "the client");
                let token = token.then_some(("nonce", &secret as &dyn Fn(&str) -> String));
                let welcome = welcome(&mut control, token);
                if let Err(error) = &welcome {
                    control.send_error(error);
                }
                welcome.is_ok()
            });
            let met = introduce(&mut control(client, "the server"), known);
            (served.join().unwrap(), met.err().map(|error| error.to_string()))
        })
    };
    assert_eq!(meet(false, None), (true, None));
    assert_eq!(meet(false, Some(&secret)), (true, None));
    assert_eq!(meet(true, Some(&secret)), (true, None));
    let (welcome, error) = meet(true, Some(&other));
    assert!(!welcome && error.unwrap().contains("does not know the token"));
    let (welcome, error) = meet(true, None);
    assert!(!welcome && error.unwrap().contains("the server wants a token: set ROCE_TOKEN"));
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
    let limit = Some(Duration::from_millis(50));
    let mut control = Control::new(Box::new(Tcp::new(server, limit).unwrap()), "the client");
    let error = control.line().unwrap_err();
    assert!(format!("{error:#}").contains("as long as it may"), "{error:#}");
    control.set_waiting(false).unwrap();
    assert!(control.try_line().is_err(), "neither does it listen any longer");
    drop(client);
}
