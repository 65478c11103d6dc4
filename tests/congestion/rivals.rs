//! HPCC and TIMELY on a bottleneck.

use std::time::Duration;

use roce::engine::congestion::{Congestion, Hpcc, Timely};

use crate::Dice;
use crate::dumbbell::{Plan, World};
use crate::seeds_asked;

const MS: u64 = 1_000_000;

fn plan(congestion: Vec<Congestion>, rate: u64, starts: Vec<u64>, end: u64, seed: u64) -> Plan {
    Plan {
        congestion,
        rate,
        // Nothing is marked: what they need they measure.
        kmin: f64::MAX,
        kmax: f64::MAX,
        pmax: 0.0,
        delay: 1000,
        // Each message is one packet, and each packet is acknowledged.
        message: 1024,
        depth: 512,
        starts,
        end,
        warm: end / 2,
        seed,
        cnp_interval: 50,
    }
}

#[test]
fn hpcc_shares_the_link_with_a_queue_of_less_than_a_packet_a_flow() {
    let (flows, seeds, end) = match seeds_asked() {
        None => (vec![4], 1, 12 * MS),
        Some(seeds) => (vec![2, 4, 8, 16], seeds.min(100), 36 * MS),
    };
    for (count, seed) in flows.iter().flat_map(|flows| (0..seeds).map(move |seed| (*flows, seed))) {
        let rate = 100_000_000_000;
        // Steps of a fiftieth of the link together, so that flows converge within milliseconds.
        let ai_rate = Some(rate / 50 / count as u64);
        let hpcc = Hpcc { ai_rate, ..Hpcc::default() };
        let mut plan = plan(vec![Congestion::Hpcc(hpcc)], rate, vec![0; count], end, seed);
        // Two links there and two back are 12 µs, and 13 with packets.
        (plan.delay, plan.warm) = (3000, end / 3);
        let results = World::new(plan).run();
        let fair = 0.95 * rate as f64 / 1e9 / count as f64;
        println!("N={count}: {:?} Gb/s, queue at most {}", results.rates, results.steady_peak);
        let mean = results.rates.iter().sum::<f64>() / count as f64;
        assert!((mean / fair - 1.0).abs() < 0.03, "N={count}: mean {mean}, {fair} is fair");
        // The steps lift all flows together by up to their sum.
        for flow in &results.rates {
            assert!((flow / mean - 1.0).abs() < 0.03, "N={count}: {flow} of a mean of {mean}");
        }
        let most = count as f64 * results.packet;
        assert!((results.steady_peak as f64) < most, "N={count}: queue {}", results.steady_peak);
    }
}

/// TIMELY has no unique fixed point: with every start the link is full, but the shares stay those
/// of the start for long.
#[test]
fn timely_fills_the_link_and_its_shares_depend_on_the_start() {
    // The shares of one of these starts stay as they are, those of the other do not.
    let starts: Vec<u64> = if seeds_asked().is_some() { (0..20).collect() } else { vec![0, 12] };
    let (mut least, rate) = (1.0_f64, 10_000_000_000);
    for &seed in &starts {
        // Shares of 5 to 95 % of the link at the start.
        let first = rate / 20 * (1 + Dice::new(seed + 5).below(19));
        // As the authors published them for pacing of packets.
        let (low, high) = (Duration::ZERO, Duration::from_millis(1));
        let timely = |initial_rate| {
            let initial_rate = Some(initial_rate);
            Timely { low, high, weight: 20, initial_rate, ..Timely::default() }
        };
        let both = [first, rate - first].map(|rate| Congestion::Timely(timely(rate))).to_vec();
        let results = World::new(plan(both, rate, vec![0, 0], 20 * MS, seed)).run();
        let sum: f64 = results.rates.iter().sum();
        let jain = results.jain();
        println!("start {seed}, {first}: {:?} Gb/s, Jain {jain:.3}", results.rates);
        assert!(sum > 9.5, "start {seed}: the link is full: {sum}");
        least = least.min(jain);
    }
    assert!(least < 0.9, "the least fair of {starts:?} has Jain {least}");
}
