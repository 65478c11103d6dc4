//! DCQCN at its fixed point, against a fluid model; the queue at the start, and a second flow.

use roce::engine::congestion::Congestion;

use crate::dumbbell::{Plan, Results, World};
use crate::seeds_asked;

const MS: u64 = 1_000_000;
const RATE: u64 = 40_000_000_000;
const KMIN: f64 = 5e3;
const KMAX: f64 = 200e3;
const PMAX: f64 = 0.01;

fn plan(starts: Vec<u64>, end: u64, warm: u64, seed: u64) -> Plan {
    Plan {
        congestion: vec![Congestion::dcqcn()],
        rate: RATE,
        kmin: KMIN,
        kmax: KMAX,
        pmax: PMAX,
        delay: 1000,
        message: 1 << 20,
        depth: 8,
        starts,
        end,
        warm,
        seed,
        cnp_interval: 50,
    }
}

/// Fixed point of the fluid model for N flows: the share of marked packets, and α. "ECN or Delay",
/// CoNEXT 2016: α·a²/τ² = R_AI·R·(b+d)(c+e), by bisection.
fn fluid(flows: f64, packet_bytes: f64) -> (f64, f64) {
    let (capacity, bits) = (RATE as f64, packet_bytes * 8.0);
    let (rate, bytes) = (capacity / bits / flows, 10e6 * 8.0 / bits);
    let (tau, alpha_tau, timer, stages) = (50e-6, 55e-6, 55e-6, 5.0);
    let ai = 40e6 / bits;
    let alpha_of = |p: f64| 1.0 - (1.0 - p).powf(alpha_tau * rate);
    let excess = |p: f64| {
        let a = 1.0 - (1.0 - p).powf(tau * rate);
        let b = p / ((1.0 - p).powf(-bytes) - 1.0);
        let c = b * (1.0 - p).powf(stages * bytes);
        let d = p / ((1.0 - p).powf(-timer * rate) - 1.0);
        let e = d * (1.0 - p).powf(stages * timer * rate);
        alpha_of(p) * a * a / (tau * tau) - ai * rate * (b + d) * (c + e)
    };
    let (mut low, mut high) = (1e-9_f64, 0.9_f64);
    for _ in 0..200 {
        let middle = (low * high).sqrt();
        if excess(middle) > 0.0 { high = middle } else { low = middle }
    }
    (low, alpha_of(low))
}

/// Expected queue at the start, before the first cuts have taken hold: C/8·[(N−1)·t_f +
/// N_cnp·Σ (N/2^j − 1)].
fn peak(flows: f64) -> f64 {
    let mut burst = (flows - 1.0) * 6e-6;
    let mut left = flows / 2.0;
    while left > 1.0 {
        burst += 50e-6 * (left - 1.0);
        left /= 2.0;
    }
    RATE as f64 / 8.0 * burst
}

fn check(flows: usize, is_settled: bool, results: &Results) -> Vec<String> {
    let (marked, alpha) = fluid(flows as f64, results.packet);
    let fair = RATE as f64 / 1e9 / flows as f64;
    let mean = results.rates.iter().sum::<f64>() / flows as f64;
    let mut wrong = Vec::new();
    let mut check = |name: &str, value: f64, low: f64, high: f64| {
        println!("N={flows} {name}: {value:.5}, of {low:.5} to {high:.5}");
        if !(low..=high).contains(&value) {
            wrong.push(format!("N={flows} {name}: {value}, not in {low} to {high}"));
        }
    };
    check("mean rate", mean, 0.9 * fair, 1.1 * fair);
    check("Jain", results.jain(), 0.99, 1.0);
    check("link", results.used, 0.99, 1.0 + 1e-3);
    if is_settled {
        // α forgets its start with a time constant of 14 ms.
        check("alpha", results.alpha, 0.75 * alpha, 1.25 * alpha);
    }
    check("marked", results.marked, 0.5 * marked, 2.5 * marked);
    if marked <= PMAX {
        let queue = KMIN + marked / PMAX * (KMAX - KMIN);
        check("queue", results.queue, 0.8 * queue, 2.0 * queue);
    } else {
        check("queue", results.queue, 0.85 * KMAX, KMAX);
    }
    if [8, 16].contains(&flows) {
        // The formula counts rounds of CNPs: few flows have too few. With 32, packets of a flow
        // come so seldom that increases fall between the CNPs, and the queue grows to 13 MB.
        check("peak", results.peak as f64, 0.75 * peak(flows as f64), 1.25 * peak(flows as f64));
    }
    wrong
}

fn run(flows: usize, seed: u64, end: u64) -> Vec<String> {
    let results = World::new(plan(vec![0; flows], end, end / 2, seed)).run();
    check(flows, end >= 100 * MS, &results)
}

#[test]
fn flows_meet_at_the_fixed_point_of_the_fluid_model() {
    let mut wrong = Vec::new();
    match seeds_asked() {
        None => wrong.extend(run(8, 7, 40 * MS)),
        Some(seeds) => {
            for (flows, seed) in [2, 4, 8, 16, 32]
                .iter()
                .flat_map(|flows| (0..seeds.min(100)).map(move |seed| (*flows, seed)))
            {
                wrong.extend(run(flows, seed, 100 * MS));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_second_flow_gets_its_share() {
    let (end, seeds) = seeds_asked().map_or((30, 1), |seeds| (100, seeds.min(100)));
    for seed in 0..seeds {
        let starts = vec![0, 10 * MS];
        let results = World::new(plan(starts, (end + 1) * MS, 0, seed)).run();
        let rate = |flow, from, to| results.rate_between(flow, from, to);
        println!("seed {seed}: alone {:.2}", rate(0, 1, 10));
        assert!(rate(0, 1, 10) > 39.5, "alone: {}", rate(0, 1, 10));
        // Between 10 and 11 ms.
        let first = &results.allowed[101..=110];
        let is_cut = |rates: &&Vec<f64>| rates.iter().all(|rate| *rate < 25.0);
        let cut = first.iter().find(is_cut).expect("both are under 25 Gb/s within a millisecond");
        println!("seed {seed}: both cut to {cut:.2?}");
        for flow in 0..2 {
            let later = rate(flow, 20, end as usize);
            println!("seed {seed} flow {flow}: {later:.2} Gb/s after 10 ms");
            assert!((17.0..23.0).contains(&later), "seed {seed}: flow {flow} has {later} Gb/s");
        }
        let both = rate(0, 20, end as usize) + rate(1, 20, end as usize);
        assert!(both > 39.6, "the link is full: {both}");
    }
}
