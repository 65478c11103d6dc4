//! Single transitions of the driver.

use std::time::Duration;

use super::super::*;

/// A view that a test sets.
#[derive(Clone, Debug, Default)]
struct Fixed {
    now: Instant,
    cpu_time: Duration,
    polls: Polls,
    deferred: bool,
}

impl View for Fixed {
    fn now(&self) -> Instant {
        self.now
    }

    fn cpu_time(&self) -> Duration {
        self.cpu_time
    }

    fn polls(&self) -> Polls {
        self.polls
    }

    fn has_deferred(&self) -> bool {
        self.deferred
    }
}

impl Fixed {
    /// Time passes, while the program runs.
    fn pass(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
        self.cpu_time += time;
    }

    fn poll(&mut self, times: u64) {
        self.polls = Polls { count: self.polls.count + times, last: self.now };
    }
}

const DOORBELL: Event = Event::Woken(Wake::Doorbell);
const READABLE: Event = Event::Woken(Wake::Readable);
const TIMEOUT: Event = Event::Woken(Wake::Timeout);

fn until(view: &Fixed, time: Duration, for_packets: bool, polled: bool) -> Action {
    Action::Sleep(Sleep::Until { until: view.now.saturating_add(time), for_packets, polled })
}

/// A driver that leaves the NIC to a busy poller, in its first check interval.
fn busy_polled() -> (Driver, Fixed) {
    let (mut driver, mut view) = (Driver::new(), Fixed::default());
    view.pass(Duration::from_millis(10));
    view.poll(STEADY);
    let left_alone = until(&view, Duration::from_micros(200), false, true);
    assert_eq!(driver.decide(&view), left_alone);
    (driver, view)
}

/// A driver that assists a poller, and waits for packets beside it.
fn assisted() -> (Driver, Fixed) {
    let (mut driver, mut view) = busy_polled();
    view.pass(Duration::from_micros(200));
    assert_eq!(driver.step(TIMEOUT, &view), until(&view, RECENT, true, true));
    assert_eq!(driver.step(READABLE, &view), Action::Receive);
    let courtesy = driver.step(Event::Received { packets: true }, &view);
    assert_eq!(courtesy, until(&view, COURTESY, false, true));
    view.poll(20);
    assert_eq!(driver.step(TIMEOUT, &view), until(&view, RECENT, true, true));
    assert_eq!(driver.state, State::Assisted(Step::Listening));
    (driver, view)
}

#[test]
fn idle_nic_receives_transmits_and_sleeps_until_due() {
    let (mut driver, view) = (Driver::new(), Fixed::default());
    assert_eq!(driver.decide(&view), Action::TakeOver { restart_polls: false });
    for event in [DOORBELL, READABLE, TIMEOUT] {
        assert_eq!(driver.step(Event::Received { packets: true }, &view), Action::Transmit);
        assert_eq!(driver.step(Event::Transmitted, &view), Action::Sleep(Sleep::UntilDue));
        assert_eq!(driver.step(event, &view), Action::TakeOver { restart_polls: false });
    }
}

#[test]
fn busy_poller_is_left_alone_for_growing_intervals() {
    let (mut driver, mut view) = busy_polled();
    let mut intervals = Vec::new();
    for _ in 0..100 {
        view.pass(Duration::from_millis(1));
        view.poll(16);
        let Action::Sleep(Sleep::Until { until, for_packets: false, polled: true }) =
            driver.step(TIMEOUT, &view)
        else {
            panic!("{driver:?}");
        };
        intervals.push(until.saturating_since(view.now));
    }
    assert!(intervals.is_sorted() && intervals.last() == Some(&CHECK_INTERVAL_MAX));
}

#[test]
fn poller_that_stopped_is_replaced() {
    let (mut driver, mut view) = busy_polled();
    view.pass(Duration::from_micros(200));
    assert_eq!(driver.step(TIMEOUT, &view), until(&view, RECENT, true, true));
    view.pass(RECENT);
    assert_eq!(driver.step(TIMEOUT, &view), Action::TakeOver { restart_polls: true });
    // The program may reply before its peer is acknowledged only if it was a busy poller until now.
    assert_eq!(driver.step(Event::Received { packets: true }, &view), Action::Transmit);
}

#[test]
fn deferred_tx_of_a_poller_that_stopped_is_transmitted() {
    let (mut driver, mut view) = busy_polled();
    view.deferred = true;
    view.pass(Duration::from_micros(200));
    assert_eq!(driver.step(TIMEOUT, &view), Action::Receive);
    let courtesy = driver.step(Event::Received { packets: false }, &view);
    assert_eq!(courtesy, until(&view, COURTESY, false, true));
    assert_eq!(driver.step(TIMEOUT, &view), Action::Transmit);
}

#[test]
fn assisted_poller_receives_first() {
    let (mut driver, mut view) = assisted();
    assert_eq!(driver.step(READABLE, &view), until(&view, COURTESY, false, true));
    // It polls, and has received by itself.
    view.poll(1);
    let again = driver.step(TIMEOUT, &view);
    assert_eq!(again, until(&view, Duration::from_micros(200), false, true), "keeps up again");

    let (mut driver, view) = assisted();
    assert_eq!(driver.step(READABLE, &view), until(&view, COURTESY, false, true));
    // It does not.
    assert_eq!(driver.step(TIMEOUT, &view), Action::Receive);
    let courtesy = driver.step(Event::Received { packets: true }, &view);
    assert_eq!(courtesy, until(&view, COURTESY, false, true));
    assert_eq!(driver.step(TIMEOUT, &view), Action::Transmit);
    assert_eq!(driver.step(Event::Transmitted, &view), until(&view, RECENT, true, true));
}

#[test]
fn assisted_poller_transmits_what_it_deferred_first() {
    let (mut driver, mut view) = assisted();
    view.deferred = true;
    assert_eq!(driver.step(READABLE, &view), until(&view, COURTESY, false, true));
    for _ in 0..3 {
        view.poll(1);
        assert_eq!(driver.step(TIMEOUT, &view), until(&view, COURTESY, false, true));
    }
    assert_eq!(driver.step(TIMEOUT, &view), Action::Receive);
}

/// The doorbell does not ring twice: in a short sleep, too, it leads to a new decision. It once did
/// not, and closing a device hung.
#[test]
fn doorbell_leads_to_a_decision_from_every_sleep() {
    // Every state that some sequence of events leads to.
    let (mut reached, mut todo) = (Vec::new(), vec![busy_polled(), assisted()]);
    let mut fresh = (Driver::new(), Fixed::default());
    let action = fresh.0.decide(&fresh.1);
    assert_eq!(action, Action::TakeOver { restart_polls: false });
    todo.push(fresh);
    while let Some((driver, view)) = todo.pop() {
        if reached.contains(&driver.state) {
            continue;
        }
        reached.push(driver.state);
        for event in [
            READABLE,
            TIMEOUT,
            Event::Received { packets: true },
            Event::Received { packets: false },
            Event::Transmitted,
        ] {
            for (polls, time, deferred) in
                [(0, 0, false), (20, 100, false), (0, 100, true), (0, 2000, false)]
            {
                let (mut driver, mut view) = (driver.clone(), view.clone());
                view.pass(Duration::from_micros(time));
                view.poll(polls);
                view.deferred = deferred;
                driver.step(event, &view);
                todo.push((driver, view));
            }
        }
        let (mut driver, mut view) = (driver, view);
        view.pass(Duration::from_secs(1));
        let sleeps = !matches!(
            driver.state,
            State::Idle(Idle::Receiving { .. } | Idle::Transmitting)
                | State::BusyPolled(Step::Receiving | Step::Transmitting { .. })
                | State::Assisted(Step::Receiving | Step::Transmitting { .. })
        );
        if sleeps {
            let state = driver.state;
            let action = driver.step(DOORBELL, &view);
            assert!(matches!(action, Action::TakeOver { .. }), "{state:?}: {action:?}");
        }
    }
    assert!(reached.len() >= 14, "{reached:?}");
}
