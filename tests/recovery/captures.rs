//! Captures of selective repeat, as the analysis and the replay see them.
#![cfg(feature = "replay")]

use roce::analysis::{Analysis, Config, Message, Outcome, PacketFacts, PacketNote, Report, Sink};
use roce::capture::{PcapWriter, Reader};
use roce::decode::Decoder;
use roce::engine::Counter;
use roce::replay::{Options, ReplayReport, replay_capture};
use roce::wire::{LinkType, ROCE_PORT};

use super::line::{Line, Work, selective};

/// A capture at the sender of requests on a line that loses data, and the number of packets that
/// were retransmitted.
fn capture(work: Work) -> (Vec<u8>, u64) {
    let mut line = Line::new([&selective, &selective], true);
    line.capture = Some(PcapWriter::new(Vec::new(), LinkType::RAW).unwrap());
    line.loss = 4_000_000;
    line.stream(work, 60);
    let retransmitted = line.counter(0, Counter::Retransmitted);
    (line.capture.unwrap().into_inner(), retransmitted)
}

#[derive(Default)]
struct Recorder {
    messages: Vec<Message>,
    retransmissions: u64,
}

impl Sink for Recorder {
    fn packet(&mut self, _: &PacketFacts, note: &PacketNote) {
        self.retransmissions += u64::from(note.retransmission.is_some());
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

fn analyze(bytes: &[u8]) -> (Report, Recorder) {
    let mut capture = Reader::new(bytes).unwrap();
    let (mut decoder, mut recorder) = (Decoder::new(ROCE_PORT), Recorder::default());
    let mut analysis = Analysis::new(Config::default());
    while let Some(record) = capture.next().unwrap() {
        let facts = PacketFacts::new(&decoder.decode(&record), 0).unwrap();
        analysis.handle_packet(&facts, &mut recorder);
    }
    let report = analysis.finish(&mut recorder);
    (report, recorder)
}

#[test]
fn analysis_sees_that_packets_were_retransmitted_after_sacks_and_all_completed() {
    for work in [Work::Write, Work::Read] {
        let (bytes, retransmitted) = capture(work);
        assert!(retransmitted > 5);
        let (_, recorder) = analyze(&bytes);
        let done = recorder.messages.iter().filter(|it| it.outcome == Outcome::Completed).count();
        assert_eq!(done, 60, "{work:?}");
        if work == Work::Write {
            assert_eq!(recorder.retransmissions, retransmitted, "{work:?}");
        }
    }
}

#[test]
fn replay_leaves_connections_with_sacks_undecided() {
    for work in [Work::Write, Work::Read] {
        let (bytes, _) = capture(work);
        let mut report = ReplayReport::default();
        let survey = replay_capture(&bytes, &Options::default(), &mut report).unwrap();
        report.finish(&survey);
        assert_eq!(report.counts.different, 0, "{work:?}");
    }
}
