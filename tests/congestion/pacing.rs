//! Pacing of queue pairs in virtual time.

use std::sync::Arc;
use std::time::Duration;

use roce::engine::congestion::{Allowance, Congestion, Controller, Factory, FlowInfo, State};
use roce::engine::{Config, Counter};
use roce::time::Instant;
use roce::verbs::QpType;

use crate::host::{Host, at, us};

const GIGA: u64 = 1_000_000_000;

/// Sends until nothing is left, with the time that the engine asks for; returns times and bytes.
fn send_all(host: &mut Host, mut now: Instant, until: Instant) -> Vec<(u64, u64)> {
    let mut sent = Vec::new();
    loop {
        let packets = host.all(now);
        sent.extend(packets.iter().map(|packet| (now.as_nanos(), packet.wire())));
        let Some(next) = host.engine.poll_timeout().filter(|next| *next <= until) else { break };
        assert!(next > now, "a deadline is later: {next} at {now}");
        now = next;
        host.engine.handle_timeout(now);
    }
    sent
}

/// Checks every window: at most rate · (w + burst) and one packet.
fn check_windows(sent: &[(u64, u64)], rate: u64, burst: u64) {
    for (first, &(start, _)) in sent.iter().enumerate() {
        let mut bytes = 0;
        for &(time, size) in &sent[first..] {
            let share = u128::from(rate) * u128::from(time - start + burst);
            assert!(
                u128::from(bytes) * 8 * u128::from(GIGA) <= share,
                "{bytes} bytes before a packet at {time}, from {start} on",
            );
            bytes += size;
        }
    }
}

fn fixed(rate: u64, burst: u64) -> impl Fn(&mut Config) {
    move |config| {
        config.congestion = Congestion::Fixed(rate);
        config.pacing_burst = Duration::from_nanos(burst);
    }
}

#[test]
fn requests_and_read_responses_are_paced_in_every_window() {
    for (rate, burst) in [(GIGA, 0), (7 * GIGA / 3, 0), (40 * GIGA, 0), (GIGA, 20_000)] {
        let [mut a, mut b] = Host::pair(QpType::Rc, fixed(rate, burst));
        let (to_a, to_b) = (a.memory(), b.memory());
        a.read(to_b, 300_000);
        for request in a.all(us(1)) {
            b.take(us(1), &request, 0);
        }
        // Half of its data are READ responses, the other half requests of its own.
        b.write(to_a, 300_000);
        let sent = send_all(&mut b, us(1), us(9000));
        assert_eq!(sent.len(), 2 * 293);
        check_windows(&sent, rate, burst);
        let bytes: u64 = sent.iter().map(|(_, size)| size).sum();
        let ideal = bytes * 8 * GIGA / rate;
        let took = sent.last().unwrap().0 - sent[0].0;
        assert!(took <= ideal + sent.len() as u64, "it takes no longer than it must: {took}");
        assert!(burst > 0 || took >= ideal * 99 / 100, "{took} of {ideal}");
        assert!(b.count(Counter::PacedWait) > 0);
    }
}

#[test]
fn acks_are_not_paced() {
    let [mut a, mut b] = Host::pair(QpType::Rc, fixed(1_000_000, 0));
    let (to_a, to_b) = (a.memory(), b.memory());
    b.write(to_a, 10_000);
    assert_eq!(b.all(us(1)).len(), 1, "the others wait");
    a.write(to_b, 100);
    let request = a.all(us(1)).remove(0);
    b.take(us(2), &request, 0);
    let answers = b.all(us(2));
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].opcode(), roce::wire::Opcode::RC_ACKNOWLEDGE);
}

/// A controller whose rate is 1 Gb/s after an odd number of CNPs.
#[derive(Debug)]
struct Toggle(bool);

impl Controller for Toggle {
    fn on_cnp(&mut self, _now: Instant) {
        self.0 = !self.0;
    }

    fn advance(&mut self, _now: Instant) -> Allowance {
        Allowance::rate(if self.0 { GIGA } else { 100 * GIGA })
    }

    fn state(&self) -> State {
        State::default()
    }
}

#[derive(Debug)]
struct Toggles;

impl Factory for Toggles {
    fn start(&self, _now: Instant, info: &FlowInfo) -> Box<dyn Controller> {
        assert_eq!(info.packet, 1024 + 36 + 66, "a whole packet on the wire");
        Box::new(Toggle(false))
    }
}

#[test]
fn after_a_cut_and_a_recovery_no_wait_is_longer_than_a_packet_of_the_new_rate() {
    let configure = |config: &mut Config| config.congestion = Congestion::custom(Arc::new(Toggles));
    let [mut a, mut b] = Host::pair(QpType::Rc, configure);
    let memory = b.memory();
    a.write(memory, 1 << 20);
    assert_eq!(a.all(at(1000)).len(), 1);
    let packet = |rate: u64| (1024 + 36 + 66) * 8 * GIGA / rate + 1;
    b.write(a.memory(), 1);
    // CNPs come in the middle of waits.
    let cnp = crate::strangers::cnp(&a, &b);
    let mut now = 1000;
    for turn in 1..=100_u64 {
        a.engine.handle_packet(at(now), &cnp.received(0));
        let rate = if turn % 2 == 1 { GIGA } else { 100 * GIGA };
        let next = a.engine.poll_timeout().unwrap().as_nanos();
        assert!(next > now && next - now <= packet(rate), "turn {turn}: {} ns", next - now);
        now = if turn % 2 == 1 { now + (next - now) / 2 } else { next };
        a.engine.handle_timeout(at(now));
        let sent = a.all(at(now)).len();
        assert_eq!(sent, usize::from(turn % 2 == 0), "turn {turn}");
    }
}

#[test]
fn a_paced_queue_pair_that_is_destroyed_or_fails_leaves_no_deadline() {
    for fails in [false, true] {
        let [mut a, b] = Host::pair(QpType::Uc, fixed(GIGA, 0));
        a.write(b.memory(), 1 << 20);
        assert_eq!(a.all(us(1)).len(), 1);
        assert!(a.engine.poll_timeout().is_some());
        if fails {
            let attr = roce::verbs::QpAttr {
                qp_state: roce::verbs::QpState::Err,
                ..roce::verbs::QpAttr::default()
            };
            a.engine.modify_qp(a.qp, &attr, roce::verbs::AttrMask::STATE).unwrap();
        } else {
            a.engine.destroy_qp(a.qp).unwrap();
        }
        assert_eq!(a.engine.poll_timeout(), None);
        assert!(a.all(us(100)).is_empty());
    }
}

#[test]
fn the_window_of_a_controller_limits_packets_in_flight() {
    let configure = |config: &mut Config| config.congestion = Congestion::swift();
    let [mut a, b] = Host::pair(QpType::Rc, configure);
    a.write(b.memory(), 1 << 20);
    let in_flight = send_all(&mut a, us(1), us(1000)).len();
    assert_eq!(in_flight, 100 * (1024 + 36 + 66) / 1024 + 1, "a hundred packets on the wire");
}
