//! Losses that selective repeat repairs reach the controllers of congestion control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roce::engine::congestion::{Allowance, Congestion, Controller, Factory, FlowInfo, Loss, State};
use roce::engine::{Config, Counter};
use roce::time::Instant;

use super::line::{Line, Work, selective};

#[derive(Clone, Debug, Default)]
struct Losses {
    naks: Arc<AtomicU64>,
    timeouts: Arc<AtomicU64>,
}

impl Factory for Losses {
    fn start(&self, _now: Instant, _info: &FlowInfo) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
}

impl Controller for Losses {
    fn on_loss(&mut self, _now: Instant, loss: Loss) {
        match loss {
            Loss::Nak => self.naks.fetch_add(1, Ordering::Relaxed),
            Loss::Timeout => self.timeouts.fetch_add(1, Ordering::Relaxed),
            Loss::Rnr => panic!("there are receives"),
        };
    }

    fn advance(&mut self, _now: Instant) -> Allowance {
        Allowance::rate(100_000_000_000)
    }

    fn state(&self) -> State {
        State::default()
    }
}

#[test]
fn controller_gets_the_losses_that_selective_repeat_repairs() {
    for work in [Work::Write, Work::Read] {
        let losses = [Losses::default(), Losses::default()];
        let configure = [0, 1].map(|side: usize| {
            let losses = losses[side].clone();
            move |config: &mut Config| {
                selective(config);
                config.congestion = Congestion::custom(Arc::new(losses.clone()));
            }
        });
        let mut line = Line::new([&configure[0], &configure[1]], true);
        line.loss = 5_000_000;
        line.stream(work, 200);
        // The side that sends the data.
        let sender = usize::from(work == Work::Read);
        let told = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let received = line.counter(sender, Counter::SackReceived);
        assert!(received > 0 && line.counter(sender, Counter::Retry) == 0);
        assert_eq!(told(&losses[sender].naks), received, "{work:?}");
        let timeouts = line.counter(sender, Counter::EarlyTimeout);
        assert_eq!(told(&losses[sender].timeouts), timeouts, "{work:?}");
    }
}
