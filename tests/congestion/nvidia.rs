//! NVIDIA's rules on a bottleneck of 100 Gb/s, beside an independent packet model with the same
//! plan.

use roce::engine::congestion::{Congestion, Nvidia};

use crate::dumbbell::{Plan, Results, World};
use crate::seeds_asked;

const MS: u64 = 1_000_000;

/// N flows with the thresholds of the queue in bytes, the chance of a mark at the second, and the
/// interval of CNPs in µs.
fn run(flows: usize, rules: Nvidia, (kmin, kmax, pmax): (f64, f64, f64), interval: u64) -> Results {
    let end = if seeds_asked().is_some() { 100 } else { 20 } * MS;
    let plan = Plan {
        congestion: vec![Congestion::Nvidia(rules)],
        rate: 100_000_000_000,
        kmin,
        kmax,
        pmax,
        delay: 1000,
        message: 1 << 20,
        depth: 8,
        starts: vec![0; flows],
        end,
        warm: end / 2,
        seed: 7,
        cnp_interval: interval,
    };
    let results = World::new(plan).run();
    println!(
        "{flows} flows: link {:.4}, queue {:.0} of {:.0}, Jain {:.3}, rates {:.1?}",
        results.used,
        results.queue,
        results.peak,
        results.jain(),
        results.rates
    );
    results
}

#[test]
fn flows_share_a_line_with_a_deep_queue() {
    let rules = Nvidia { rp_ai_rate: 20, rp_hai_rate: 200, ..Nvidia::default() };
    // Mean queue of the model.
    let rows = [(2, 215e3), (8, 256e3), (16, 391e3)];
    for (flows, queue) in &rows[..if seeds_asked().is_some() { 3 } else { 1 }] {
        let results = run(*flows, rules, (400e3, 1600e3, 0.2), 0);
        assert!(results.used > 0.99);
        assert!((0.5 * queue..2.0 * queue).contains(&results.queue), "{}", results.queue);
        assert!(results.jain() > 0.95, "{}", results.jain());
    }
}
