//! Goodput under random loss, held against closed forms: with loss p and W packets in flight,
//! go-back-N reaches (1−p)/(1−p+pW) of the line, selective repeat 1−p.
//!
//! `ROCE_LOSSES=1e-5,1e-4,…` measures other losses, with twenty times as many messages; with
//! `--nocapture` the figures are printed as the lines of a table, which `tools/bench/recovery`
//! draws.

use roce::engine::ReceiveMode;

use super::line::{Line, MESSAGE, MTU, Work, selective};

/// Packets in flight.
const IN_FLIGHT: f64 = 37.0;

/// Goodput of a stream, as a share of the line.
fn goodput(loss: f64, selects: bool, work: Work, messages: usize) -> f64 {
    let configure = |config: &mut roce::engine::Config| {
        if selects {
            selective(config);
            config.receive = ReceiveMode::Place;
        }
    };
    let mut line = Line::new([&configure, &configure], selects);
    line.loss = (loss * 1e9) as u64;
    line.stream(work, messages)
}

#[test]
fn goodput_is_that_of_the_closed_forms() {
    let asked = std::env::var("ROCE_LOSSES").ok();
    let losses = asked.as_deref().unwrap_or("1e-5,1e-4,1e-3,1e-2").split(',');
    let messages = if asked.is_some() { 5000 } else { 200 };
    println!("loss,go_back_n,form,selective,form,selective_read");
    for loss in losses.map(|loss| loss.parse::<f64>().unwrap()) {
        let form = (1.0 - loss) / (1.0 - loss + loss * IN_FLIGHT);
        let gbn = goodput(loss, false, Work::Write, messages);
        let selective = goodput(loss, true, Work::Write, messages);
        let read = goodput(loss, true, Work::Read, messages);
        println!("{loss},{gbn:.4},{form:.4},{selective:.4},{:.4},{read:.4}", 1.0 - loss);
        assert!((gbn - form).abs() < 0.05, "go-back-N with loss {loss}: {gbn} instead of {form}");
        for (work, share) in [(Work::Write, selective), (Work::Read, read)] {
            let form = 1.0 - loss;
            assert!((share - form).abs() < 0.05, "{work:?} with loss {loss}: {share}, not {form}");
        }
    }
}

#[test]
fn selective_repeat_retransmits_only_what_was_lost() {
    for work in [Work::Write, Work::Read] {
        let mut line = Line::new([&selective, &selective], true);
        line.loss = 10_000_000;
        line.stream(work, 300);
        let data = line.data(if work == Work::Write { 0 } else { 1 });
        let whole = 300 * MESSAGE / MTU;
        let more = data as f64 / whole as f64 - 1.0;
        assert!((0.005..0.015).contains(&more), "{work:?}: {more} sent more for a loss of 0.01");
    }
}
