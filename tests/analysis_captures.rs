//! The analysis of real captures: messages by operation, size and outcome as the completion logs
//! beside them say, and as tshark counts packets.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test that cannot go on fails")]

#[path = "common/recorder.rs"]
mod recorder;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use recorder::Recorder;
use roce::analysis::{
    FindingKind, LossNote, LossPlace, Message, Outcome, PacketRole, Pairing, Report, operation_name,
};
use roce::capture;
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, Qpn, Service};

/// Analyzes a capture; the messages come in the order of their first frames.
fn analyze(path: &Path) -> (Report, Recorder) {
    let (report, mut recorder) = recorder::analyze(capture::open(path).unwrap());
    recorder.messages.sort_by_key(|message| message.first_frame);
    (report, recorder)
}

fn ours(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures").join(name)
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

/// Number of occurrences of each.
fn counted<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.into_iter().for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

#[test]
fn messages_of_all_operations_are_those_of_the_clients_log() {
    let (report, Recorder { messages, .. }) = analyze(&ours("rxe_all_ops.pcap"));
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
    let begun = report.totals.all.operations.iter().map(|operation| operation.messages);
    assert_eq!(begun.sum::<u64>(), messages.len() as u64);
}

#[test]
fn failed_requests_are_those_that_the_client_made_to_fail() {
    let (report, Recorder { messages, .. }) = analyze(&ours("rxe_all_ops.pcap"));
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
    let (report, Recorder { messages, .. }) = analyze(&ours("rxe_all_ops.pcap"));
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
    let pairings: Vec<_> = report.connections.iter().map(|c| (c.ends[1].qpn, c.pairing)).collect();
    let expected = (0x11..=0x1e).map(|qpn| {
        let pairing = match qpn {
            0x14 | 0x1e => Pairing::Unpaired,
            0x15 | 0x16 => Pairing::Datagram,
            _ => Pairing::SourcePort,
        };
        (Some(Qpn::new(qpn)), pairing)
    });
    assert_eq!(pairings, expected.collect::<Vec<_>>());
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
    let (report, recorder) = analyze(&ours("rxe_lossy.pcap"));
    let [connection] = &report.connections[..] else { panic!("{:?}", report.connections) };
    assert_eq!(connection.ends.each_ref().map(|end| end.qpn), [Some(Qpn::new(0x11)); 2]);
    assert_eq!(connection.pairing, Pairing::SourcePort);
    // tshark -r rxe_lossy.pcap -Y infiniband.bth -T fields -e ip.src -e infiniband.bth.opcode -e
    // infiniband.bth.psn | sort -u | awk '$2==0' | wc -l: 30 first packets from each side. For the
    // last one its requester gave up.
    let messages = recorder.messages.iter();
    let ends = counted(
        messages
            .map(|it| (it.requester.index(), operation_name(it.operation), it.bytes, status(it))),
    );
    let of = |side, status| (side, "SEND", 6000, status);
    assert_eq!(ends, BTreeMap::from([(of(0, 0), 30), (of(1, 0), 29), (of(1, 12), 1)]));
    assert_eq!(report.findings[0].kind, FindingKind::RetryLimit);
    assert_eq!(report.totals.all.naks, [13, 0, 0, 0, 0], "as tshark counts syndrome 0x60");
}

#[test]
fn retransmissions_of_a_lossy_ping_pong_are_those_that_can_be_counted() {
    let (report, recorder) = analyze(&ours("rxe_lossy.pcap"));
    // Independently: packets that are no acknowledgement, by sender and PSN.
    let requests: Vec<_> = recorder
        .packets
        .iter()
        .filter(|(facts, _)| facts.opcode != Opcode::RC_ACKNOWLEDGE)
        .collect();
    let occurrences = counted(requests.iter().map(|(facts, _)| (facts.source.0, facts.psn.get())));
    let repeats: usize = occurrences.values().map(|count| count - 1).sum();
    assert_eq!((requests.len(), repeats), (1559, 1199));
    assert_eq!(occurrences.values().max(), Some(&375));
    // Each repeat is a retransmission or a copy. A few retransmissions are the first of their PSN
    // in the capture, because what was sent before was lost before the capture point.
    let mut seen = BTreeSet::new();
    let (mut first_retransmissions, mut judged) = (0, 0);
    for (facts, note) in &requests {
        let is_first = seen.insert((facts.source.0, facts.psn.get()));
        let is_judged = note.retransmission.is_some() || note.duplicate;
        judged += usize::from(is_judged && !is_first);
        first_retransmissions += usize::from(is_judged && is_first);
        assert!(is_judged || is_first, "frame {} comes again", facts.frame);
    }
    assert_eq!(judged, repeats);
    // Others of those that were lost there had been captured before.
    let is_new = |loss: &&LossNote| {
        let psn = u32::try_from(loss.sequence & 0xff_ffff).unwrap();
        let mut before = requests.iter().filter(|(facts, _)| facts.frame < loss.proof);
        !before.any(|(facts, _)| facts.psn.get() == psn)
    };
    let lost_before = recorder.losses.iter().filter(is_new).filter(|loss| {
        loss.place == LossPlace::BeforeCapturePoint && loss.role == PacketRole::Request
    });
    assert_eq!(first_retransmissions, lost_before.count());
    // The next packet showed of a few that they were late, and are no retransmissions.
    let total = report.totals.all.retransmissions.total().packets;
    let noted = recorder.packets.iter().filter(|(_, n)| n.retransmission.is_some()).count() as u64;
    let late = report.totals.all.reordered;
    assert!((noted.saturating_sub(late)..=noted).contains(&total), "{total} {noted} {late}");
}

#[test]
fn connections_of_rxe_cm_are_paired_by_the_connection_manager() {
    let (report, recorder) = analyze(&ours("rxe_cm.pcap"));
    let rc: Vec<_> = report.connections.iter().filter(|c| c.service == Service::Rc).collect();
    // rping listens on 7174, ucmatose on 7471.
    let ports: Vec<_> = rc.iter().map(|c| c.setup.as_ref().unwrap().application_port).collect();
    assert_eq!(ports, [7174, 7471, 7471, 7174].map(Some));
    for connection in rc {
        assert_eq!(connection.pairing, Pairing::ConnectionManager);
        let setup = connection.setup.as_ref().unwrap();
        assert!(setup.request_frame < setup.reply_frame);
        assert!(setup.reply_frame < Some(connection.first_frame));
        assert!(setup.disconnect_frame > Some(connection.first_frame));
    }
    assert!(recorder.messages.iter().all(|message| message.outcome == Outcome::Completed));
    assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Stall));
}

#[test]
fn the_same_capture_gives_the_same_report() {
    let report = || serde_json::to_string(&analyze(&ours("rxe_lossy.pcap")).0).unwrap();
    assert_eq!(report(), report());
}

/// Messages by operation.
type Counts = &'static [(&'static str, u64)];

/// Captures of others are not committed: they are in the folder that `ROCE_CAPTURES` names, if it
/// names one.
#[test]
fn captures_have_the_messages_that_tshark_counts() {
    let others = std::env::var_os("ROCE_CAPTURES").map(PathBuf::from);
    // tshark -r FILE -Y infiniband.bth -T fields -e infiniband.bth.destqp -e infiniband.bth.opcode
    // | sort | uniq -c
    let all: [(&str, Counts, usize); 6] = [
        // 44 SEND Only, 12 UD SEND Only with Immediate, 8 WRITE Only, 8 READ Request, of 6 pairs.
        ("rxe_cm.pcap", &[("SEND", 56), ("READ", 8), ("WRITE", 8)], 6),
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
        let folder = others.as_ref().filter(|_| !ours(name).exists());
        let path = folder.map_or_else(|| ours(name), |folder| folder.join(name));
        if others.is_none() && !path.exists() {
            continue;
        }
        let (report, Recorder { messages, .. }) = analyze(&path);
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
    let (report, _) = analyze(&ours("tunnels.pcap"));
    let found: BTreeSet<String> = report
        .connections
        .iter()
        .map(|connection| connection.tunnel.map_or_else(String::new, |it| it.to_string()))
        .collect();
    // All its tunnels carry one connection; tshark has these addresses of its first frame.
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["VXLAN 192.0.2.1 → 192.0.2.2"]);
}
