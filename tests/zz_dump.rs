#![allow(warnings)]

use std::collections::BTreeMap;
use std::path::Path;

use roce::analysis::{
    Analysis, Config, LossNote, Message, Outcome, PacketFacts, PacketNote, PacketRole, Pairing,
    Report, Sink, operation_name,
};
use roce::capture;
use roce::decode::Decoder;
use roce::wire::ROCE_PORT;

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

#[test]
fn dump() {
    let Ok(path) = std::env::var("DUMP") else { return };
    let (report, recorder) = analyze(path);
    for finding in &report.findings {
        println!(
            "{:?} {:?} {:?} {:?} {}",
            finding.kind, finding.flow, finding.certainty, finding.frames, finding.text
        );
    }
    for c in &report.connections {
        println!(
            "{} {:?} {:?} {:?} mtu {:?}",
            c.flow,
            c.service,
            c.pairing,
            c.ends.each_ref().map(|e| (e.address.to_string(), e.qpn)),
            c.path_mtu
        );
        for d in &c.directions {
            println!("   {}", serde_json::to_string(d).unwrap());
        }
    }
    if std::env::var("PACKETS").is_ok() {
        for (f, n) in &recorder.packets {
            println!(
                "{} {} {:?} q{:x} psn {} {:?}",
                f.frame,
                f.opcode,
                f.aeth.map(|a| a.0.answer().to_string()),
                f.dest_qp.get(),
                f.psn.get(),
                n
            );
        }
        for l in &recorder.losses {
            println!("{l:?}");
        }
    }
    if std::env::var("MESSAGES").is_ok() {
        for m in &recorder.messages {
            println!("{m:?}");
        }
    }
}
