//! A record of all that the analysis says about a capture.
#![allow(clippy::unwrap_used, dead_code, reason = "each test uses a part of it")]

use std::io::Read;

use roce::analysis::{Analysis, Config, LossNote, Message, PacketFacts, PacketNote, Report, Sink};
use roce::capture::Reader;
use roce::decode::Decoder;
use roce::wire::ROCE_PORT;

/// Packets with their notes, losses and messages, in the order of the reports.
#[derive(Default)]
pub struct Recorder {
    pub packets: Vec<(PacketFacts, PacketNote)>,
    pub losses: Vec<LossNote>,
    pub messages: Vec<Message>,
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

/// Analyzes a capture.
pub fn analyze(mut capture: Reader<impl Read>) -> (Report, Recorder) {
    let mut decoder = Decoder::new(ROCE_PORT);
    let (mut analysis, mut recorder) = (Analysis::new(Config::default()), Recorder::default());
    while let Some(record) = capture.next().unwrap() {
        let context = decoder.decode(&record);
        match PacketFacts::new(&context, 0) {
            Some(facts) => analysis.handle_packet(&facts, &mut recorder),
            None => analysis.handle_other_frame(context.time, context.wire_len, 0),
        }
    }
    (analysis.finish(&mut recorder), recorder)
}

/// Analyzes packets of several captures, in the order in which they are.
pub fn analyze_merged(
    files: Vec<String>,
    packets: impl IntoIterator<Item = PacketFacts>,
) -> (Report, Recorder) {
    let mut config = Config::default();
    config.files = files;
    let (mut analysis, mut recorder) = (Analysis::new(config), Recorder::default());
    packets.into_iter().for_each(|facts| analysis.handle_packet(&facts, &mut recorder));
    (analysis.finish(&mut recorder), recorder)
}
