//! Tests of both sides of `roce bench` in one process: two NICs on a cable, and TCP on loopback.

mod control;
mod losses;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use roce::control::limits::{LINE_WAIT, MESSAGE_MAX, OPENING_LINE_MAX};
use roce::control::{Channel, Incoming, OpeningError, Protocol, Tcp, Token};
use roce::device::Context as Nic;
use roce::link::{cable, fault};
use roce::nic::SoftNic;
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, Psn, Qpn, RKey};

use super::bandwidth::Outcome;
use super::control::messages::{Answer, Done, Hello, Message, Reach, Seen};
use super::control::pingpong_message::{MESSAGE_BYTES, from_message};
use super::control::plan::{Connection, Extent, Metric, Op, Plan};
use super::control::request::Request;
use super::pingpong;
use super::report::{self, End, Unit};
use super::session::{
    self, ClientOptions, Counts, Observer, RETRIES, ServerOptions, Setting, Step,
};

fn nics() -> (Nic, Nic) {
    let gid = |host| Gid::from(Ipv4Addr::new(192, 0, 2, host));
    let (a, b) = cable(gid(1), gid(2)).unwrap();
    (Nic::new(SoftNic::start(a).unwrap()), Nic::new(SoftNic::start(b).unwrap()))
}

/// The two ends of a TCP connection: the client's, then the server's.
fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn to_server(stream: TcpStream) -> Channel {
    Channel::to_server(Tcp::new(stream, None).unwrap()).unwrap()
}

fn to_client(stream: TcpStream) -> Channel {
    Channel::to_client(Tcp::new(stream, None).unwrap()).unwrap()
}

/// Receives the hello of a client that needs no token, and welcomes it.
fn receive(control: &mut Channel) -> anyhow::Result<Hello> {
    let applicant = Request::read(control, None)?;
    match control.welcome(applicant)? {
        Request::Bench(hello) => Ok(hello),
        other => panic!("{other:?}"),
    }
}

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

static NEVER: AtomicBool = AtomicBool::new(false);

fn options() -> ClientOptions<'static> {
    ClientOptions {
        protocol: Protocol::Bench,
        token: None,
        gid_index: 0,
        mtu: None,
        server: HOST,
        any_gid: true,
        interrupt: &NEVER,
        manager: None,
    }
}

/// Serves one client, as a server without limits does.
fn serve(nic: &Nic, stream: TcpStream) -> anyhow::Result<Plan> {
    serve_with(nic, stream, |_| {})
}

fn serve_with(
    nic: &Nic,
    stream: TcpStream,
    meddle: impl Fn(&super::side::Side),
) -> anyhow::Result<Plan> {
    let mut control = to_client(stream);
    let Hello { plan, client: peer } = receive(&mut control)?;
    let options = ServerOptions { gid_index: 0, client: HOST, any_gid: true, manager: None };
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

/// Observer that keeps all results.
#[derive(Default)]
struct Notes {
    steps: Vec<Step>,
    setting: Option<Setting>,
}

impl Observer for Notes {
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
        let mut control = to_server(client);
        let counts = session::client(&a, &mut control, plan, options(), &mut notes);
        let served = server.join().unwrap();
        let counts = counts.unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
        assert_eq!(served.unwrap(), *plan);
        (notes, counts)
    })
}

/// Returns all operations and transports that perftest can measure.
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
fn bidirectional_run_with_many_queue_pairs_and_odd_sizes() {
    for op in [Op::Send, Op::Write, Op::Read, Op::Atomic] {
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
fn run_by_time_lasts_as_long_as_asked() {
    for metric in Metric::ALL {
        let plan = Plan { extent: Extent::Seconds(1), ..plan(Op::Write, metric, Connection::Rc) };
        let (notes, _) = run(&plan);
        let [step] = &notes.steps[..] else { panic!() };
        let took = Duration::from_nanos(step.outcome.own.nanos);
        assert!(took >= Duration::from_secs(1), "{took:?}");
        assert!(step.outcome.own.messages > 0);
    }
}

#[test]
fn smaller_mtu_is_agreed_unless_one_was_asked_for() {
    let (a, b) = nics();
    // Runs a client with a server whose port supports an MTU of at most 512.
    let served = |options: ClientOptions<'_>, mtu: Mtu| {
        let (client, server) = tcp();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut control = to_client(server);
                let plan = receive(&mut control).unwrap().plan;
                let mtu = plan.mtu.min(Mtu::M512);
                let link = "cable".to_owned();
                let (qps, rkey) = (vec![b_endpoint(&b)], RKey::new(1));
                let reach =
                    Reach { qps, addr: 0, rkey, link, selective_repeat: false, reorder_span: 0 };
                control.send(&Message::Answer(Answer { mtu, server: reach })).unwrap();
                control.send_error(&"that is enough");
            });
            let mut control = to_server(client);
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

fn b_endpoint(nic: &Nic) -> Endpoint {
    Endpoint { gid: nic.gids()[0], qpn: Qpn::new(0x11), psn: Psn::new(0) }
}

#[test]
fn pingpong_client_plays_with_pingpong_server() {
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
                server.read_all(&mut message, Duration::from_secs(60)).unwrap();
                let larger = pingpong::Options { size: 8192, ..options };
                let (idle, in_all) = (Duration::from_millis(500), Duration::from_secs(60));
                let limits = pingpong::ServerLimits { idle, in_all };
                let peer = from_message(&message).unwrap();
                pingpong::server(&b, &mut server, peer, larger, limits)
            });
            let played = pingpong::client(&a, client, options, 200, true).unwrap();
            let echoed = echo.join().unwrap().unwrap();
            assert_eq!((played.rounds, echoed.rounds), (200, 200), "{connection:?}");
            assert_eq!((played.own, played.peer), (echoed.peer, echoed.own));
        });
    }
}

/// Returns the text with a 9 in place of every run of digits.
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
fn remark_on_drops_of_several_paths_names_the_option() {
    let counts = Counts { own: vec![], peer: vec![("drop_wrong_source_port".to_owned(), 5)] };
    let remark = report::remark_on_counts(&counts).unwrap();
    assert!(remark.contains("drop_wrong_source_port 5 at the server"), "{remark}");
    assert!(remark.ends_with("need --receive buffer at the server"), "{remark}");
    let counts = Counts { peer: vec![("drop_wrong_source_port".to_owned(), 0)], ..counts };
    assert_eq!(report::remark_on_counts(&counts), None);
}

#[test]
fn json_has_the_same_numbers_by_name() {
    let (notes, _) = run(&plan(Op::Send, Metric::Bw, Connection::Rc));
    let counted = |count| vec![("sent_pkts".to_owned(), count), (RETRIES.to_owned(), 0)];
    let counts = Counts { own: counted(300), peer: counted(20) };
    let text = report::to_json(notes.setting.as_ref().unwrap(), &notes.steps, &counts, &End::Whole)
        .unwrap();
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
    let text = report::to_json(notes.setting.as_ref().unwrap(), &notes.steps, &counts, &End::Whole)
        .unwrap();
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
    // The server has changed one byte of the memory that the client reads.
    let (a, b) = nics();
    let (client, server) = tcp();
    let plan = plan(Op::Read, Metric::Bw, Connection::Rc);
    std::thread::scope(|scope| {
        scope.spawn(|| serve_with(&b, server, |side| side.set_last(64, 0).unwrap()));
        let mut notes = Notes::default();
        let mut control = to_server(client);
        session::client(&a, &mut control, &plan, options(), &mut notes).unwrap();
        assert_eq!(notes.steps[0].wrong(), 1);
        let remark = report::remark(&plan, &notes.steps[0]).unwrap();
        assert_eq!(remark, "64 bytes: 1 with wrong content");
    });
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
