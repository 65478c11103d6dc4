//! The analysis of whole captures, compared with what the programs logged and with what can be counted independently.
#![cfg(feature = "analysis")]

use std::collections::BTreeMap;
use std::path::Path;

use roce::analysis::{
    Analysis, Config, LossNote, Message, Outcome, PacketFacts, PacketNote, Pairing, Report, Sink,
    operation_name,
};
use roce::capture;
use roce::decode::Decoder;
use roce::wire::aeth::NakCode;
use roce::wire::{Qpn, ROCE_PORT};

/// Everything that an analysis tells.
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

/// What a program's log says of its completions: `client wc WR_ID STATUS op OPCODE len BYTES`.
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
    let log = completions(include_str!("../testdata/captures/rxe_all_ops.client.log"));
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
            _ => Pairing::Acknowledgements,
        };
        (Some(Qpn::new(qpn)), pairing)
    });
    assert_eq!(pairings, expected.collect::<Vec<_>>());
    let mtus: Vec<_> = report.connections.iter().take(3).map(|c| c.path_mtu).collect();
    assert_eq!(mtus, [Some(1024), Some(256), Some(4096)]);
}
