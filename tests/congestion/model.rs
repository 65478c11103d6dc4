//! Controllers, step by step, against what the independent model in `tools/congestion/model.py`
//! recorded.

use std::time::Duration;

use roce::engine::congestion::{AckSample, Congestion, Controller, FlowInfo, Hop, Loss, Profile};
use roce::time::Instant;

/// Number of steps that a recording must have.
const STEPS_MIN: usize = 40;

fn controller(head: &str) -> Box<dyn Controller> {
    let words: Vec<&str> = head.trim_start_matches("# ").split(' ').collect();
    let profile: Profile = words[0].parse().unwrap();
    let info = FlowInfo { line_rate: words[1].parse().unwrap(), packet: words[2].parse().unwrap() };
    let congestion = Congestion::parse(words[3], profile).unwrap();
    congestion.start(Instant::ZERO, &info).unwrap()
}

fn hops(text: &str) -> Vec<Hop> {
    let hop = |text: &str| {
        let numbers: Vec<u64> = text.split('/').map(|number| number.parse().unwrap()).collect();
        let [time, sent, queue, rate] = numbers[..] else { panic!("a hop: {text}") };
        Hop { time: Instant::from_nanos(time), sent, queue, rate }
    };
    text.split(',').filter(|text| *text != "-").map(hop).collect()
}

/// Tells a controller one event.
fn tell(controller: &mut dyn Controller, now: Instant, words: &[&str]) {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    match words[0] {
        "cnp" => controller.on_cnp(now),
        "sent" => controller.on_sent(now, number(1).try_into().unwrap()),
        "nak" => controller.on_loss(now, Loss::Nak),
        "timeout" => controller.on_loss(now, Loss::Timeout),
        "rnr" => controller.on_loss(now, Loss::Rnr),
        "look" => {}
        "ack" => {
            let rtt = (words[4] != "-").then(|| Duration::from_nanos(number(4)));
            let hops = hops(words[5]);
            let ack = AckSample {
                packets: number(1).try_into().unwrap(),
                bytes: number(2).try_into().unwrap(),
                in_flight: number(3),
                rtt,
                ecn: false,
                telemetry: &hops,
            };
            controller.on_ack(now, &ack);
        }
        other => panic!("event {other}"),
    }
}

/// Rate, window, target and α of a controller, as in a recording.
fn says(controller: &mut dyn Controller, now: Instant) -> String {
    let allowance = controller.advance(now);
    let state = controller.state();
    let or_dash = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let window = (allowance.window != u64::MAX).then_some(allowance.window);
    [Some(allowance.rate), window, state.target, state.alpha.map(u64::from)].map(or_dash).join(" ")
}

#[test]
fn controllers_agree_with_the_model_to_the_bit() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/congestion");
    let mut played = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, steps) = text.split_once('\n').unwrap();
        let mut controller = controller(head);
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for (at, line) in steps.lines().enumerate() {
            let (event, expected) = line.split_once(" => ").unwrap();
            let words: Vec<&str> = event.split(' ').collect();
            let now = Instant::from_nanos(words[0].parse().unwrap());
            tell(&mut *controller, now, &words[1..]);
            let found = says(&mut *controller, now);
            assert_eq!(found, expected, "{name}, step {}: {event}", at + 1);
        }
        let count = steps.lines().count();
        assert!(count >= STEPS_MIN, "{name} has {count} steps");
        played.push(name);
    }
    for variant in ["paper", "nvidia", "timely", "swift", "hpcc"] {
        assert!(played.iter().any(|name| name.starts_with(variant)), "{variant}: {played:?}");
    }
}
