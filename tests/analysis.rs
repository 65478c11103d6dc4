//! The analysis of whole captures, compared with what the programs logged and with what can be
//! counted independently.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use roce::analysis::{
    Analysis, Config, FindingKind, LossNote, LossPlace, Message, Outcome, PacketFacts, PacketNote,
    PacketRole, Pairing, Report, Sink, operation_name,
};
use roce::capture;
use roce::decode::Decoder;
use roce::wire::aeth::NakCode;
use roce::wire::{Opcode, Qpn, ROCE_PORT, Service};

/// Recorder of the analysis' output.
#[derive(Default)]
struct Recorder {
    packets: Vec<(PacketFacts, PacketNote)>,
    losses: Vec<LossNote>,
    messages: Vec<Message>,
}

impl Sink for Recorder {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.packets.push((facts.clone(), *note));
    }

    fn loss(&mut self, note: &LossNote) {
        self.losses.push(*note);
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

fn analyze(path: impl AsRef<Path>) -> (Report, Recorder) {
    let mut capture = capture::open(path.as_ref()).unwrap();
    let mut decoder = Decoder::new(ROCE_PORT);
    let mut analysis = Analysis::new(Config::default());
    let mut recorder = Recorder::default();
    while let Some(record) = capture.next().unwrap() {
        let context = decoder.decode(&record);
        match PacketFacts::new(&context, 0) {
            Some(facts) => analysis.handle_packet(&facts, &mut recorder),
            None => analysis.handle_other_frame(context.time, context.wire_len, 0),
        }
    }
    let report = analysis.finish(&mut recorder);
    (report, recorder)
}

/// A completion of a log: operation, length, status.
type Completion = (String, u64, String);

/// Parses the completions in a program's log: `client wc WR_ID STATUS op OPCODE len BYTES`.
fn completions(log: &str) -> Vec<Completion> {
    let lines = log.lines().filter(|line| line.starts_with("client wc"));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let operation = ["SEND", "WRITE", "READ", "CMP_SWAP", "FETCH_ADD"];
            let operation = operation[words[5].parse::<usize>().unwrap()];
            (operation.into(), words[7].parse().unwrap(), words[3].into())
        })
        .collect()
}

/// The status that a requester's completion has for this outcome.
fn status(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "0",
        Outcome::Refused(NakCode::RemoteAccessError) => "10",
        Outcome::Refused(NakCode::RemoteOperationalError) => "11",
        Outcome::RetryExceeded => "12",
        Outcome::RnrRetryExceeded => "13",
        other => panic!("{other:?}"),
    }
}

fn counted<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.into_iter().for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

#[test]
fn messages_of_rxe_all_ops_are_those_of_the_completion_log() {
    let (report, recorder) = analyze("testdata/captures/rxe_all_ops.pcap");
    let log = completions(include_str!("../testdata/completions/rxe_all_ops.client.log"));
    let (logged, failed): (Vec<_>, Vec<_>) =
        log.into_iter().partition(|(.., status)| status == "0");
    let (done, lost): (Vec<_>, Vec<_>) =
        recorder.messages.iter().partition(|message| message.outcome == Outcome::Completed);
    let done = done.into_iter().map(|message| {
        (operation_name(message.operation).to_string(), message.bytes, "0".to_string())
    });
    assert_eq!(counted(done), counted(logged));
    // A failed completion says neither its operation nor its length.
    let statuses = failed.iter().map(|(.., status)| status.as_str());
    assert_eq!(counted(lost.iter().map(|m| status(m.outcome))), counted(statuses));
    let begun = report.totals.all.operations.iter().map(|operation| operation.messages);
    assert_eq!(begun.sum::<u64>(), recorder.messages.len() as u64);
}

#[test]
fn connections_of_rxe_all_ops_are_paired() {
    let (report, _) = analyze("testdata/captures/rxe_all_ops.pcap");
    let pairings: Vec<_> = report.connections.iter().map(|c| (c.ends[1].qpn, c.pairing)).collect();
    let expected = (0x11..=0x1e).map(|qpn| {
        let pairing = match qpn {
            // UC is not answered, and the last one's peer is gone.
            0x14 | 0x1e => Pairing::Unpaired,
            0x15 | 0x16 => Pairing::Datagram,
            _ => Pairing::SourcePort,
        };
        (Some(Qpn::new(qpn)), pairing)
    });
    assert_eq!(pairings, expected.collect::<Vec<_>>());
    let mtus: Vec<_> = report.connections.iter().take(3).map(|c| c.path_mtu).collect();
    assert_eq!(mtus, [Some(1024), Some(256), Some(4096)]);
}

#[test]
fn retransmissions_of_rxe_lossy_are_those_that_can_be_counted() {
    let (report, recorder) = analyze("testdata/captures/rxe_lossy.pcap");
    let [connection] = report.connections.as_slice() else { panic!("{:?}", report.connections) };
    assert_eq!(connection.pairing, Pairing::SourcePort);
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
    // The ping-pong: 30 messages one way, 29 the other, and one for which the requester gave up.
    let ends = counted(
        recorder.messages.iter().map(|m| (m.requester.index(), m.bytes, status(m.outcome))),
    );
    let expected = [((0, 6000, "0"), 30), ((1, 6000, "0"), 29), ((1, 6000, "12"), 1)];
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(report.findings[0].kind, FindingKind::RetryLimit);
    // tshark counts 13 NAKs.
    assert_eq!(report.totals.all.naks, [13, 0, 0, 0, 0]);
}

#[test]
fn connections_of_rxe_cm_are_paired_by_the_connection_manager() {
    let (report, recorder) = analyze("testdata/captures/rxe_cm.pcap");
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
    let report = || serde_json::to_string(&analyze("testdata/captures/rxe_lossy.pcap").0).unwrap();
    assert_eq!(report(), report());
}
