//! Prints the packets of a capture that a filter lets through, and counts their ICRC verdicts.
//!
//! ```console
//! $ cargo run --example decode_capture -- testdata/captures/rxe_all_ops.pcap 'roce.aeth.kind == NAK'
//! ```

use std::error::Error;
use std::process::ExitCode;

use roce::capture;
use roce::decode::{Decoder, Filter, LineStyle, TimeStyle};
use roce::wire::{Frame, IcrcVerdict, ROCE_PORT};

mod common;

fn run() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let (path, filter) = match *given.as_slice() {
        [] => ("testdata/captures/rxe_all_ops.pcap", "roce.aeth.kind == NAK"),
        [path] if !path.starts_with('-') => (path, "roce.aeth.kind == NAK"),
        [path, filter] => (path, filter),
        _ => return Err(common::wrong(&given, "decode_capture [CAPTURE [FILTER]]").into()),
    };
    let filter = Filter::parse(filter).map_err(|error| format!("FILTER '{filter}': {error}"))?;

    // A capture is read record by record: memory does not grow with the file.
    let cannot_open = |error: capture::Error| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let mut capture = capture::open(path.as_ref()).map_err(cannot_open)?;
    let mut decoder = Decoder::new(ROCE_PORT);
    let style = LineStyle { time: TimeStyle::None, ..LineStyle::default() };
    let (mut line, mut sound, mut bad) = (String::new(), 0, 0);
    while let Some(record) = capture.next()? {
        // One level down: the frame itself, with every header as a view over its bytes.
        match Frame::parse(record.link, record.data, ROCE_PORT).icrc() {
            Some(IcrcVerdict::Ok) => sound += 1,
            Some(IcrcVerdict::Bad) => bad += 1,
            Some(IcrcVerdict::Absent) | None => {}
        }
        // And one level up: fields by tshark's names, filters, lines.
        let packet = decoder.decode(&record);
        if filter.matches(&packet) {
            line.clear();
            style.write(&packet, &mut line);
            println!("{line}");
        }
    }
    println!("{sound} packets with a correct ICRC, {bad} with a wrong one");
    Ok(())
}

fn main() -> ExitCode {
    common::end("decode_capture", run())
}
