//! Fills the corpora with what the captures hold: `cargo run --example seed`, in `fuzz/`.
//!
//! Of frames that look alike (same opcode, same length up to a power of two) one is enough.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use roce::capture::{self, PcapWriter, PcapngWriter};
use roce::control::Protocol;
use roce::wire::{Frame, LinkType, ROCE_PORT};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(root.join("../testdata/captures"))? {
        let mut reader = capture::open(&entry?.path())?;
        while let Some(record) = reader.next()? {
            let frame = Frame::parse(record.link, record.data, ROCE_PORT);
            let opcode = frame.packet().map(|packet| packet.bth().opcode().0);
            if seen.insert((opcode, frame.ethertype().map(|t| t.0), record.data.len().ilog2())) {
                frames.push(record.data.to_vec());
            }
        }
    }
    for (i, bytes) in frames.iter().enumerate() {
        put(root, "frame", i, &[&[0], bytes.as_slice()].concat())?;
        put(root, "raw_link", i, &[&[0; 4], bytes.as_slice()].concat())?;
        let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
        let Some(packet) = frame.packet() else { continue };
        put(root, "packet", i, packet.bytes())?;
        put(root, "udp_link", i, &[&[0; 4], packet.bytes(), &[0; 4]].concat())?;
        if packet.mad().is_some() {
            put(root, "mad", i, packet.payload())?;
            put(root, "cm", i, &[&[0, 0, 0, 0], packet.payload(), &[1, 0, 0, 0]].concat())?;
        }
    }
    // A packet of 12 bytes is written, published and taken.
    let record = [&12_u32.to_le_bytes()[..], &[0; 24]].concat();
    let steps = [&[0; 4][..], &[28 << 2, 0, 0], &record, &[2, 32, 0], &[3, 0, 0]].concat();
    put(root, "ring", 0, &steps)?;
    seed_captures(root, &frames)?;
    let filters =
        ["infiniband.bth.destqp == 0x11 && roce.icrc == bad", "!(ip.addr == 10.0.0.0/8) or roce"];
    for (i, filter) in filters.iter().enumerate() {
        put(root, "filter", i, filter.as_bytes())?;
    }
    seed_flows(root)?;
    seed_hostile(root)?;
    seed_operations(root)?;
    seed_scenarios(root)?;
    seed_control(root)?;
    seed_bench_control(root)?;
    seed_cm(root)?;
    seed_net(root)?;
    seed_group(root)?;
    seed_libroce(root)?;
    seed_congestion(root)?;
    seed_sack(root)?;
    seed_status(root)?;
    println!("{} frames", frames.len());
    Ok(())
}

/// Hellos of honest peers; and rings into which a message, a large message and the end were
/// written.
fn seed_net(root: &Path) -> std::io::Result<()> {
    let mut hello = b"rN\x01\x10\x40\x00\x07\x12".to_vec();
    hello.extend([0; 12]);
    hello.extend(b"private");
    hello.resize(56, 0);
    put(root, "net_hello", 0, &hello)?;
    put(root, "net_hello", 1, &[&[0; 26], hello.as_slice()].concat())?;
    let mut start = vec![1, 1];
    start.extend([0; 13]);
    let write = |at: u16, bytes: &[u8], imm: [u8; 4]| {
        let mut step = vec![0];
        step.extend(at.to_le_bytes());
        step.push(u8::try_from(bytes.len()).unwrap_or_default());
        step.extend(bytes);
        step.extend([0, 0]);
        step.extend(imm);
        step
    };
    let message = [4, 0, 0, 0, 1, 0, 0, 0, b'a', b'b', b'c', b'd', 0, 0, 0, 0];
    let mut large = vec![20, 0, 0, 0, 2, 0, 0, 0];
    large.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let steps = [
        write(0, &message, [0; 4]),
        vec![9],
        write(16, &large, [0; 4]),
        vec![9, 3, 0, 3, 0, 3, 0, 9],
    ];
    put(root, "net_ring", 0, &[start.clone(), steps.concat()].concat())?;
    let steps = [vec![4, 8, 0, 4, 8, 0, 3, 0, 8, 1, 3, 0], write(0, &[], [0, 2, 0, 1]), vec![9, 9]];
    put(root, "net_ring", 1, &[start, steps.concat()].concat())
}

/// A hello, and links that are connected, lost, connected once more and closed.
fn seed_group(root: &Path) -> std::io::Result<()> {
    let mut hello = b"rG\x02\0\x01\0\0\0".to_vec();
    hello.extend([5; 28]);
    put(root, "group_hello", 0, &hello)?;
    put(root, "group_hello", 1, &[b"rA\x02\0".as_slice(), &[0; 40]].concat())?;
    let dialer =
        [0, 1, 3, 5, 1, 0, 9, 1, 9, 2, 11, 7, 1, 0, 0, 10, 7, 0, 60, 1, 3, 5, 2, 1, 10, 13, 13];
    put(root, "group_link", 0, &dialer)?;
    let acceptor = [1, 2, 5, 1, 3, 5, 1, 0, 9, 1, 11, 7, 0, 1, 1, 3, 5, 2, 0, 10, 10, 8, 12, 13, 6];
    put(root, "group_link", 1, &acceptor)
}

/// Writes seeds for each operation: to every queue pair a receive, a send, a packet of the
/// operation, and its answer fetched.
fn seed_hostile(root: &Path) -> std::io::Result<()> {
    for operation in 0..32 {
        let mut steps = Vec::new();
        for at in 0..40 {
            steps.extend([12, at, 0, 4, 0, 0, 4, 0, 1]);
            steps.extend([11, at, 0, 0, 0, 0, 8, operation, 0, 2, 0, 0, 2, 0, 1, 0]);
            // Answers are to what was sent last; requests are the next that is expected.
            let near = if (0x0d..=0x12).contains(&operation) { 0xf8 } else { 0 };
            steps.extend([9, 2, 0, at, operation, 0, near, 4, 0, 0, 0, 3, 0, 0, 0, 0, 1, 17, 3, 0]);
            // Once of 32 times a long flood.
            steps.extend([7, if operation == 0 { 5 } else { 4 }, 9, 2, 13, 0]);
        }
        put(root, "hostile", operation.into(), &steps)?;
    }
    Ok(())
}

/// Small captures in each format, plain and compressed.
fn seed_captures(root: &Path, frames: &[Vec<u8>]) -> Result<(), Box<dyn std::error::Error>> {
    let some = || frames.iter().filter(|frame| frame.len() < 200).take(6);
    let mut pcap = PcapWriter::new(Vec::new(), LinkType::ETHERNET)?;
    let mut pcapng = PcapngWriter::new(Vec::new())?;
    let interface = pcapng.add_interface(LinkType::ETHERNET, "eth0")?;
    for (i, frame) in (0..).zip(some()) {
        let time = roce::time::Instant::from_nanos(1_700_000_000_000_000_000 + i);
        pcap.write(time, frame.len().try_into()?, frame)?;
        pcapng.write(interface, time, frame.len().try_into()?, frame)?;
    }
    put(root, "capture", 0, &pcap.into_inner())?;
    put(root, "capture", 1, &pcapng.into_inner())?;
    Ok(())
}

/// Some packets of each capture, whole and damaged, and exchanges of packets in the form of the
/// target.
fn seed_flows(root: &Path) -> Result<(), Box<dyn std::error::Error>> {
    /// The longest packet, and the most of them: short inputs are many per second.
    const LONGEST: usize = 120;
    const PACKETS: usize = 24;
    let mut number = 0;
    let mut put_next = |bytes: &[u8]| {
        number += 1;
        put(root, "flows", number, bytes)
    };
    for entry in fs::read_dir(root.join("../testdata/captures"))? {
        let mut reader = capture::open(&entry?.path())?;
        let mut pcap = PcapWriter::new(Vec::new(), LinkType::ETHERNET)?;
        let mut count = 0;
        while let Some(record) = reader.next()? {
            let is_packet = Frame::parse(record.link, record.data, ROCE_PORT).packet().is_some();
            if let (true, Some(time)) = (is_packet && record.data.len() <= LONGEST, record.time) {
                pcap.write(time, record.len, record.data)?;
                count += 1;
            }
            if count == PACKETS {
                break;
            }
        }
        let bytes = pcap.into_inner();
        for (files, damage) in [(0, None), (1, None), (0, Some(0)), (0, Some(0xff)), (4, Some(7))] {
            let mut bytes = bytes.clone();
            let middle = bytes.len() / 2;
            if let (Some(byte), Some(part)) = (damage, bytes.get_mut(middle..middle + 20)) {
                part.fill(byte);
            }
            put_next(&[&[0, files], bytes.as_slice()].concat())?;
        }
    }
    // When, who, opcode, PSN, what, AETH, length, file: a SEND of three packets and its
    // acknowledgement, a READ and its responses, a loss with its NAK and retransmissions, RNR NAKs,
    // a timeout.
    let [send, middle, last, only, read, ack] = [0, 1, 2, 3, 9, 15];
    let step = |when, who, opcode, near, aeth| [when, who, opcode, near, 1, aeth, 3, 0];
    let exchanges: [Vec<[u8; 8]>; 5] = [
        [send, middle, last]
            .map(|opcode| step(2, 0, opcode, 0, 0))
            .into_iter()
            .chain([step(3, 1, ack, 131, 0)])
            .collect(),
        vec![
            step(2, 0, read, 0, 0),
            step(3, 1, 11, 131, 0),
            step(2, 1, 12, 0, 0),
            step(2, 1, 13, 0, 0),
        ],
        vec![
            step(2, 0, only, 0, 0),
            step(2, 0, only, 225, 0),
            step(3, 1, ack, 139, 8),
            step(3, 0, only, 135, 0),
            step(2, 0, only, 0, 0),
            step(3, 1, ack, 131, 0),
        ],
        vec![
            step(2, 0, only, 0, 0),
            step(3, 1, ack, 131, 6),
            step(5, 0, only, 131, 0),
            step(3, 1, ack, 131, 0),
        ],
        vec![
            step(2, 0, only, 0, 0),
            step(6, 0, only, 131, 0),
            step(6, 0, only, 131, 0),
            step(3, 1, ack, 131, 0),
        ],
    ];
    for exchange in &exchanges {
        for times in [1, 4] {
            put_next(&[&[1, 0], exchange.repeat(times).concat().as_slice()].concat())?;
        }
    }
    put_next(&[&[1, 1], exchanges.concat().concat().as_slice()].concat())?;
    Ok(())
}

/// Every operation on every queue pair alone, and behind a receive at the peer.
fn seed_operations(root: &Path) -> std::io::Result<()> {
    let mut number = 0;
    for who in 0..12 {
        let receive = [14, who ^ 1, 0, 7, 64, 0, 0, 0];
        let mut all = Vec::new();
        for what in 0..20 {
            let operation = [what, who, 0x44, 6, 1, 2, 0, 9];
            put(root, "operations", number, &[receive, operation].concat())?;
            number += 1;
            all.extend(operation);
        }
        put(root, "operations", number, &[receive.as_slice(), &all].concat())?;
        number += 1;
    }
    Ok(())
}

/// Every scenario of the crate, by itself, and as a client sends it.
fn seed_scenarios(root: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut number = 0;
    for entry in fs::read_dir(root.join("../src/conform/scenarios"))? {
        let text = fs::read_to_string(entry?.path())?;
        for scenario in text.split("[[scenario]]").skip(1) {
            put(root, "scenarios", number, format!("[[scenario]]{scenario}").as_bytes())?;
            number += 1;
        }
    }
    for step in STEPS {
        put(root, "scenarios", number, begin(step, "requester").as_bytes())?;
        number += 1;
    }
    Ok(())
}

/// Steps of a conversation with a server.
const STEPS: [&str; 12] = [
    r#"{"requester":"write"}"#,
    r#"{"requester":"send","sges":[10,20],"flags":["inline","unsignaled"]}"#,
    r#"{"requester":"read","times":3,"to":"size","at":16}"#,
    r#"{"requester":"fetch_add","value":2},{"requester":"compare_swap","compare":1,"value":5}"#,
    r#"{"responder":"recv","len":"2*size"},{"requester":"send_imm","imm":7}"#,
    r#"{"responder":"bind_mw","remote":"w","access":["remote_read"]},{"responder":"local_inv","remote":"w"}"#,
    r#"{"requester":"send_inv","remote":"w"},{"requester":"op"}"#,
    r#"{"requester":"modify","state":"err"},{"requester":"flush"}"#,
    r#"{"requester":"see","packet":"ACKNOWLEDGE"},{"requester":"atomic_write"}"#,
    r#"{"responder":"srq_recv","times":2},{"responder":"sleep","ms":1}"#,
    r#"{"requester":"write_imm","wrong_rkey":true,"refused":true},{"requester":"wait","count":2}"#,
    r#"{"requester":"write","qp":1,"wrong_lkey":true},{"responder":"wait"},{"requester":"write"}"#,
];

/// Returns the message of a client that begins an instance with these steps.
fn begin(steps: &str, play: &str) -> String {
    format!(
        r#"{{"begin":{{"instance":{{"name":"x","scenario":{{"name":"x","about":"x","qps":2,"limit":1,"steps":[{steps}],"responder":{{"windows":[{{"name":"w"}}],"srq_limit":0}},"faults":[{{"from":"requester","psn":0,"do":"drop"}}],"expect":{{"requester":[{{"opcode":"send"}}],"memory":["responder 0..8 = word 1"]}}}},"mtu":256,"size":64,"op":"write"}},"play":"{play}"}}}}"#
    )
}

/// Whole conversations of clients.
fn seed_control(root: &Path) -> std::io::Result<()> {
    let hello = r#"{"hello":{"device":"d","mtu":4096,"wire":false}}"#;
    let reach = |windows: &str| {
        format!(
            r#"{{"reach":{{"gid":"::ffff:192.0.2.2","qps":[[17,0],[18,5]],"buffers":[{{"name":"main","addr":4096,"len":256,"rkey":1}}],"windows":{windows}}}}}"#
        )
    };
    let mut number = 0;
    for steps in STEPS {
        for (play, windows) in [("requester", r#"{"w":9}"#), ("responder", "{}")] {
            let (begin, reach) = (begin(steps, play), reach(windows));
            let done = format!(r#"{{"done":{{"step":0,"windows":{windows}}}}}"#);
            let [ready, completed, settled, bye] =
                ["ready", "completed", "settled", "bye"].map(|word| format!("{word:?}"));
            let all = [hello, &begin, &reach, &ready, &done, &completed, &settled, &bye];
            put(root, "conform_control", number, all.join("\n").as_bytes())?;
            number += 1;
        }
    }
    let odd =
        [r#"{"stopped":"no"}"#, r#"{"outcome":{}}"#, r#""bye""#, "{", r#"{"hello":{"wire":2}}"#];
    for line in odd {
        put(root, "conform_control", number, [hello, line, r#""settled""#].join("\n").as_bytes())?;
        number += 1;
    }
    Ok(())
}

/// Whole sessions of good clients and servers of `roce bench`, which the fuzzer takes apart.
fn seed_bench_control(root: &Path) -> std::io::Result<()> {
    let qps = [(17, 0xab_cdef), (18, 0)]
        .map(|(qpn, psn)| format!(r#"{{"gid":"::ffff:10.0.0.1","qpn":{qpn},"psn":{psn}}}"#));
    let reach = |qps: &[String]| {
        let qps = qps.join(",");
        format!(r#"{{"qps":[{qps}],"addr":139637976731648,"rkey":3735928559,"link":"udp"}}"#)
    };
    let step = [
        r#""ready""#,
        "alive",
        r#""stop""#,
        r#"{"done":{"messages":300,"nanos":123456,"peak":7}}"#,
        r#"{"result":{"received":300,"wrong":0,"nanos":5000,"packets":null}}"#,
    ];
    let step = step.map(|line| format!("{line}\n")).concat();
    let mut number = 0;
    let nonce = "0f".repeat(16);
    for (part, protocol) in [(0, Protocol::Bench), (1, Protocol::BenchByCm)] {
        for (op, metric, connection) in [
            ("send", "bw", "rc"),
            ("send", "lat", "ud"),
            ("write", "bw", "uc"),
            ("read", "bw", "rc"),
            ("atomic", "lat", "rc"),
        ] {
            let sizes = if op == "atomic" { "8" } else { "0,64,4096" };
            let qps = &qps[..if metric == "lat" { 1 } else { 2 }];
            let plan = format!(
                r#"{{"op":"{op}","metric":"{metric}","connection":"{connection}","sizes":[{sizes}],"extent":{{"seconds":5}},"qps":{},"mtu":4096,"tx_depth":128,"bidirectional":false,"verify":true}}"#,
                qps.len()
            );
            let hello = format!(
                "{} {nonce}\n{{\"plan\":{plan},\"client\":{}}}\n{}\"bye\"\n",
                protocol.magic(),
                reach(qps),
                step.repeat(3)
            );
            put(root, "bench_control", number, &[&[part, 255], hello.as_bytes()].concat())?;
            number += 1;
        }
    }
    let answer = format!(r#"{{"answer":{{"mtu":1024,"server":{}}}}}"#, reach(&qps));
    let counters = r#"{"counters":[["sent_pkts",7]]}"#;
    let server = format!("open\nwelcome\n{answer}\n{step}{counters}\n");
    put(root, "bench_control", number, &[&[2, 9], server.as_bytes()].concat())?;
    let path = r#"{"path":{"target":0,"path":1,"answered":5,"lost":0,"lost_after_arrival":0,"untimed":0,"implausible":0,"not_sent":0,"network":[[100,3],[101,2]],"prober":[],"responder":[]}}"#;
    let failed = r#"{"failed":{"target":1,"reason":"no"}}"#;
    let result = format!("{path}\n{failed}\n\"end\"\n");
    put(root, "bench_control", number + 1, &[&[3, 0], result.as_bytes()].concat())?;
    seed_opening(root)?;
    let pingpong = b"0000:000011:abcdef:00000000000000000000ffff0a090002\0";
    put(root, "bench_control", number + 2, &[&[3, 0], pingpong.as_slice()].concat())
}

/// Openings of control connections: honest ones, and lines that strangers send.
fn seed_opening(root: &Path) -> std::io::Result<()> {
    for part in 0..16 {
        put(root, "opening", part.into(), &[&[part][..], b"\x05\x01send 5\nend"].concat())?;
    }
    let nonce = "0f".repeat(16);
    let lines =
        format!("roce-bench 4 {nonce}\nproof {nonce}{nonce}\nchallenge {nonce}\nopen\nwelcome\n");
    put(root, "opening", 16, &[&[0xff, 0, 0], lines.as_bytes()].concat())
}

fn put(root: &Path, target: &str, number: usize, bytes: &[u8]) -> std::io::Result<()> {
    let dir = root.join("corpus").join(target);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join(format!("seed-{number}")), bytes)
}

/// Connections of a manager with itself: request, events, accept, reply, events, establish, and an
/// end of each kind.
fn seed_cm(root: &Path) -> std::io::Result<()> {
    for end in [22, 25, 26, 13, 11] {
        let mut steps = vec![1, 1];
        for round in 0..4 {
            steps.extend([12, 0, round % 2, 0, 0, 1, 2, 3, 4, 5]);
            steps.extend([5, 0, 0, 2, 31, 0]);
            steps.extend([20, 3 + round, 0, 1, 2, 3, 4, 5]);
            steps.extend([5, 0, 0, 2, 31, 0, 23, 2 + round, 5, 0, 0, 2, 31, 0]);
            steps.extend([end, 2 + round, 1, 5, 0, 0, 2, 11, 0, 9]);
        }
        put(root, "cm", 1000 + usize::from(end), &steps)?;
    }
    Ok(())
}

/// Each controller by its name, with each event in turn.
fn seed_congestion(root: &Path) -> std::io::Result<()> {
    let names = ["dcqcn:rp_ai_rate=20", "timely:low=1", "swift", "hpcc", "fixed:1G", "none", "cnp"];
    let events: Vec<u8> = (0..60).flat_map(|at: u8| [at % 6, 1, at, at % 40]).collect();
    for (at, name) in names.iter().enumerate() {
        put(root, "congestion", at, &[name.as_bytes(), b"\n", &events].concat())?;
    }
    Ok(())
}

/// Requests in both directions with losses, reordering and SACKs of a stranger, in each mode.
fn seed_sack(root: &Path) -> std::io::Result<()> {
    for mode in 0..6_u8 {
        let mut steps = vec![mode % 3 | mode / 3 * 0x30];
        for at in 0..60_u8 {
            steps.extend([at % 8, at % 5, at.wrapping_mul(3), at.wrapping_mul(7)]);
        }
        put(root, "sack", mode.into(), &steps)?;
    }
    Ok(())
}

/// Each call of the C library by the newest handles, and all of them one behind the other.
fn seed_libroce(root: &Path) -> std::io::Result<()> {
    let mut all = Vec::new();
    for op in 0..24 {
        // Call, handle, a length of 64 in memory that is there, an offset, a timeout.
        let call = [op, 7, op % 4, 0, 64, 3, 0, 8, 1];
        put(root, "libroce", op.into(), &[[4, 7, 1, 0, 64, 1, 0, 64, 7], call].concat())?;
        all.extend(call);
    }
    put(root, "libroce", 24, &all)
}

/// A status with a line of each kind, and one of a later version.
fn seed_status(root: &Path) -> std::io::Result<()> {
    let head = "roce status 1\ndevice roce0 (udp:10.0.0.1)\nqps 3\ngid ::ffff:10.0.0.1\n";
    let rates = "counter rcvd_pkts 7\nqp 17 40000000000 - - 0\nqp 18 1000 2000 500000 3\n";
    put(root, "status_text", 0, format!("{head}{rates}").as_bytes())?;
    put(root, "status_text", 1, format!("{head}color blue\n{rates}").as_bytes())
}
