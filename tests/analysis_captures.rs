//! The analysis of real captures: messages by operation, size and outcome as the completion logs
//! beside them say, and as tshark counts packets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use roce::analysis::{
    Analysis, Config, End, Message, Outcome, PacketFacts, PacketNote, PacketRole, Pairing, Report,
    Sink, operation_name,
};
use roce::capture;
use roce::decode::Decoder;
use roce::wire::aeth::NakCode;
use roce::wire::{Gid, Psn, ROCE_PORT, Service};

/// Output of the analysis.
#[derive(Default)]
struct Output {
    messages: Vec<Message>,
    /// Sender's address, PSN, note.
    notes: Vec<(Gid, Psn, PacketNote)>,
}

impl Sink for Output {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.notes.push((facts.source, facts.psn, *note));
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

/// Analyzes a capture; the messages come in the order of their first frames.
fn analyze(path: &Path) -> (Report, Vec<Message>) {
    let (report, output) = analyze_packets(path);
    (report, output.messages)
}

/// Analyzes a capture; what is told of packets, too.
fn analyze_packets(path: &Path) -> (Report, Output) {
    let mut reader = capture::open(path).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    let mut config = Config::default();
    config.files = vec![path.display().to_string()];
    let (mut analysis, mut output) = (Analysis::new(config), Output::default());
    while let Some(record) = reader.next().unwrap() {
        let context = decoder.decode(&record);
        match PacketFacts::new(&context, 0) {
            Some(facts) => analysis.handle_packet(&facts, &mut output),
            None => analysis.handle_other_frame(context.time, context.wire_len, 0),
        }
    }
    let report = analysis.finish(&mut output);
    output.messages.sort_by_key(|message| message.first_frame);
    (report, output)
}

fn ours(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures").join(name)
}

/// A capture that may not be distributed, where it is there.
fn public(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/captures/public").join(name);
    let found = path.exists();
    println!("{}: {}", path.display(), if found { "found" } else { "not here, so not compared" });
    found.then_some(path)
}

/// Status, opcode and length of each completion of a log:
/// `client wc WR_ID STATUS op OPCODE len BYTES`.
fn completions(name: &str) -> Vec<(u32, u32, u64)> {
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/completions");
    let text = fs::read_to_string(logs.join(name)).unwrap();
    let mut all = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "wc", _, status, "op", opcode, "len", bytes] = words[..] {
            all.push((status.parse().unwrap(), opcode.parse().unwrap(), bytes.parse().unwrap()));
        }
    }
    all
}

/// The completion that a message of this outcome has: `IBV_WC_…`.
fn status(message: &Message) -> u32 {
    match message.outcome {
        Outcome::Completed => 0,
        Outcome::Refused(NakCode::InvalidRequest) => 9,
        Outcome::Refused(NakCode::RemoteAccessError) => 10,
        Outcome::Refused(NakCode::RemoteOperationalError) => 11,
        Outcome::RetryExceeded => 12,
        Outcome::RnrRetryExceeded => 13,
        _ => u32::MAX,
    }
}

/// Counts messages by operation, size and outcome.
fn counts<'m>(
    messages: impl IntoIterator<Item = &'m Message>,
) -> BTreeMap<(&'static str, u64), u64> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry((operation_name(message.operation), message.bytes)).or_default() += 1;
    }
    counts
}

#[test]
fn messages_of_all_operations_are_those_of_the_clients_log() {
    let (_, messages) = analyze(&ours("rxe_all_ops.pcap"));
    let log = completions("rxe_all_ops.client.log");
    assert_eq!(log.len(), 542);
    let of_log = |&(status, opcode, bytes): &(u32, u32, u64)| match status {
        0 => (
            status,
            Some(["SEND", "WRITE", "READ", "CMP_SWAP", "FETCH_ADD"][opcode as usize]),
            Some(bytes),
        ),
        // rxe does not say what a failed request was.
        _ => (status, None, None),
    };
    let of_message = |message: &Message| match status(message) {
        0 => (0, Some(operation_name(message.operation)), Some(message.bytes)),
        status => (status, None, None),
    };
    // One by one, in order.
    let told: Vec<_> = messages.iter().map(of_message).collect();
    let real: Vec<_> = log.iter().map(of_log).collect();
    for (number, (told, real)) in told.iter().zip(&real).enumerate() {
        assert_eq!(told, real, "message {number}: {:?}", messages[number]);
    }
    assert_eq!(told.len(), real.len());
}

#[test]
fn failed_requests_are_those_that_the_client_made_to_fail() {
    let (report, messages) = analyze(&ours("rxe_all_ops.pcap"));
    let failed: Vec<_> = messages
        .iter()
        .filter(|message| status(message) != 0)
        .map(|message| (operation_name(message.operation), status(message)))
        .collect();
    // In the order of the capture: wrong R_Key, out of bounds, out of bounds, wrong R_Key, too
    // long, RNR, peer gone.
    let real = [
        ("WRITE", 10),
        ("WRITE", 10),
        ("READ", 10),
        ("CMP_SWAP", 10),
        ("SEND", 11),
        ("SEND", 13),
        ("SEND", 12),
    ];
    let is_atomic = |name: &str| matches!(name, "CMP_SWAP" | "FETCH_ADD");
    for ((name, status), (real_name, real_status)) in failed.iter().zip(real) {
        assert!(*name == real_name || (is_atomic(name) && is_atomic(real_name)), "{failed:?}");
        assert_eq!(*status, real_status, "{failed:?}");
    }
    assert_eq!(failed.len(), real.len(), "{failed:?}");
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    use roce::analysis::FindingKind as Kind;
    let count = |kind| kinds.iter().filter(|&&found| found == kind).count();
    assert_eq!((count(Kind::RetryLimit), count(Kind::RnrRetryLimit)), (1, 1), "{kinds:?}");
    assert_eq!(count(Kind::RequestRefused), 5, "{kinds:?}");
    // Nothing was lost, and rxe breaks no rule that shows here.
    assert_eq!(
        count(Kind::Loss) + count(Kind::ProtocolViolation) + count(Kind::CaptureLoss),
        0,
        "{:?}",
        report.findings
    );
}

#[test]
fn messages_that_take_a_receive_are_those_of_the_servers_log() {
    let (report, messages) = analyze(&ours("rxe_all_ops.pcap"));
    let log = completions("rxe_all_ops.server.log");
    let service = |message: &Message| {
        let flow = report.flow_of(message.flow).unwrap().0;
        report.connections.iter().find(|connection| connection.flow == flow).unwrap().service
    };
    let mut received = BTreeMap::new();
    for message in messages.iter().filter(|message| message.outcome == Outcome::Completed) {
        let opcode = match (operation_name(message.operation), message.immediate) {
            ("SEND", _) => 128,
            ("WRITE", true) => 129,
            _ => continue,
        };
        // A datagram is received behind 40 bytes for the GRH.
        let grh = if service(message) == Service::Ud { 40 } else { 0 };
        *received.entry((opcode, message.bytes + grh)).or_insert(0) += 1;
    }
    let mut real = BTreeMap::new();
    for (_, opcode, bytes) in log.iter().filter(|(status, ..)| *status == 0) {
        *real.entry((*opcode, *bytes)).or_insert(0) += 1;
    }
    assert_eq!(received, real);
    assert_eq!(
        log.iter().filter(|(status, ..)| *status != 0).count(),
        1,
        "the one that is too long"
    );
}

#[test]
fn every_connection_of_all_operations_is_paired() {
    let (report, _) = analyze(&ours("rxe_all_ops.pcap"));
    // tshark -r rxe_all_ops.pcap -T fields -e ip.src -e ipv6.src -e infiniband.bth.destqp | sort
    // -u: QPs 0x11 to 0x1e, each with the same number on both sides; UC (0x14) and UD (0x15, 0x16)
    // have no responses, and nothing answers for 0x1e.
    let qpns: Vec<_> = report
        .connections
        .iter()
        .filter(|connection| connection.service == Service::Rc)
        .map(|connection| connection.ends.each_ref().map(|end| end.qpn.map(|qpn| qpn.get())))
        .collect();
    let both: Vec<_> = (0x11..=0x13).chain(0x17..=0x1d).map(|qpn| [Some(qpn), Some(qpn)]).collect();
    assert_eq!(qpns[..both.len()], both[..], "{qpns:x?}");
    assert_eq!(qpns.len(), both.len() + 1, "{qpns:x?}");
    assert!(qpns[both.len()].contains(&Some(0x1e)));
    let unpaired: Vec<_> =
        report.connections.iter().filter(|c| c.pairing == Pairing::Unpaired).collect();
    assert!(unpaired.iter().all(|connection| {
        connection.service != Service::Rc
            || connection.ends.iter().any(|end| end.qpn.is_some_and(|qpn| qpn.get() == 0x1e))
    }));
    // Path MTUs as in the log's program: 1024, 256, 4096.
    let mtus: Vec<_> =
        report.connections.iter().take(3).map(|connection| connection.path_mtu).collect();
    assert_eq!(mtus, [Some(1024), Some(256), Some(4096)]);
}

#[test]
fn packets_of_all_operations_are_those_that_tshark_counts() {
    let (report, _) = analyze(&ours("rxe_all_ops.pcap"));
    // tshark -r rxe_all_ops.pcap -Y infiniband.bth -T fields -e infiniband.bth.destqp -e
    // infiniband.bth.opcode | sort | uniq -c Requests to 0x11: 354 packets, 182 responses. To 0x12:
    // 1286, 269. To 0x13: 183, of which 5 are there twice (uniq -d), 168.
    let counts: Vec<_> = report.connections[..3]
        .iter()
        .map(|connection| {
            let all = &connection.directions;
            (
                all[0].request_packets + all[1].request_packets,
                all[0].response_packets + all[1].response_packets,
            )
        })
        .collect();
    assert_eq!(counts, [(354, 182), (1286, 269), (178, 168)]);
    assert_eq!(report.connections[2].directions[0].duplicate_packets, 5);
    let all = &report.totals.all.retransmissions;
    // The receiver that is not ready: 18 packets of which 3 are new; and 7 of which 3 are new.
    // Without any answer: 9 of which 3 are new. tshark: requests to 0x1c, 0x1d, 0x1e.
    assert_eq!(all.rnr.packets, 15 + 4, "{all:?}");
    assert_eq!(all.timeout.packets, 6, "{all:?}");
    assert_eq!(all.sequence_nak.packets + all.implied_nak.packets, 0, "{all:?}");
}

#[test]
fn lossy_ping_pong_has_its_messages_and_no_others() {
    let (report, Output { messages, notes }) = analyze_packets(&ours("rxe_lossy.pcap"));
    let [connection] = &report.connections[..] else { panic!("{:?}", report.connections) };
    assert_eq!(
        connection.ends.each_ref().map(|end| end.qpn.map(|qpn| qpn.get())),
        [Some(0x11), Some(0x11)]
    );
    // tshark -r rxe_lossy.pcap -Y infiniband.bth -T fields -e ip.src -e infiniband.bth.opcode -e
    // infiniband.bth.psn | sort -u | awk '$2==0' | wc -l: 30 first packets from each side.
    for requester in End::BOTH {
        let of_it = messages.iter().filter(|message| message.requester == requester);
        assert_eq!(counts(of_it), BTreeMap::from([(("SEND", 6000), 30)]), "{requester:?}");
    }
    // 1,559 packets are no ACKs (tshark, opcodes 0 to 2), 360 of them with a PSN of their own (sort
    // -u): 1,199 are repeats.
    let mut seen = BTreeSet::new();
    let requests = notes.iter().filter(|(.., note)| note.role == PacketRole::Request);
    let repeats: Vec<_> =
        requests.filter(|(source, psn, _)| !seen.insert((source.0, psn.get()))).collect();
    assert_eq!((seen.len(), repeats.len()), (360, 1199));
    let is_explained = |note: &PacketNote| note.retransmission.is_some() || note.duplicate;
    assert!(repeats.iter().all(|(.., note)| is_explained(note)));
    let all = &report.totals.all;
    assert!(all.naks[0] == 13, "tshark: infiniband.aeth.syndrome == 0x60: 13");
}

/// Messages by operation.
type Counts = &'static [(&'static str, u64)];

#[test]
fn public_captures_have_the_messages_that_tshark_counts() {
    // tshark -r FILE -Y infiniband.bth -T fields -e infiniband.bth.destqp -e infiniband.bth.opcode
    // | sort | uniq -c
    let all: [(&str, Counts, usize); 5] = [
        // 33 SEND First, 33 SEND Last with Immediate, 2 SEND Only with Immediate: one from each
        // side; tshark takes the packets of the other side for TFTP without --disable-protocol
        // tftp.
        ("hw_hns_send_imm.pcap", &[("SEND", 35)], 1),
        // 5 FetchAdd, 5 ATOMIC Acknowledge.
        ("rxe_atomic_bw.pcap", &[("FETCH_ADD", 5)], 1),
        ("rxe_pingpong_uc.pcap", &[("SEND", 10)], 1),
        ("rxe_pingpong_ud.pcap", &[("SEND", 10)], 1),
        // 10 SENDs each way, 5 READs with 5 responses, 5 WRITEs.
        ("rxe_rping.pcap", &[("SEND", 20), ("READ", 5), ("WRITE", 5)], 1),
    ];
    for (name, real, connections) in all {
        let Some(path) = public(name) else { continue };
        let (report, messages) = analyze(&path);
        let mut told: BTreeMap<&str, u64> = BTreeMap::new();
        for message in &messages {
            *told.entry(operation_name(message.operation)).or_default() += 1;
        }
        assert_eq!(told, real.iter().copied().collect(), "{name}: {messages:#?}");
        let data = report.connections.iter().filter(|connection| {
            !connection.ends.iter().any(|end| end.qpn.is_some_and(|qpn| qpn.get() == 1))
        });
        let data: Vec<_> = data.collect();
        assert_eq!(data.len(), connections, "{name}: {data:#?}");
        assert!(data.iter().all(|connection| connection.pairing != Pairing::Unpaired), "{name}");
        assert!(
            messages.iter().all(|message| message.outcome == Outcome::Completed),
            "{name}: {messages:#?}"
        );
    }
}

#[test]
fn connections_in_tunnels_name_the_outer_addresses() {
    let (report, _) = analyze_packets(&ours("tunnels.pcap"));
    let found: BTreeSet<String> = report
        .connections
        .iter()
        .map(|connection| connection.tunnel.map_or_else(String::new, |it| it.to_string()))
        .collect();
    // All its tunnels carry one connection; tshark has these addresses of its first frame.
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["VXLAN 192.0.2.1 → 192.0.2.2"]);
}
