//! The progress thread: performs what the [driver](super::driver) decides.

use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::core::Work;
use super::driver::{
    Action, Driver, Event, Polls, STEADY, STEADY_AGAIN, Sleep, SleepKind, View, Wake,
};
use super::event_queue::which_readable;
use super::port::PortWatch;
use super::shared::Shared;
use crate::time::Instant;

impl Shared {
    /// Makes progress until the NIC is stopped, or fails.
    pub(super) fn run(&self) {
        self.signals.enter_progress_thread();
        if catch_unwind(AssertUnwindSafe(|| self.make_progress())).is_err() {
            self.signals.fail();
        }
        if self.signals.has_failed() {
            // The panic message has the reason.
            self.core().fail(&io::Error::other("a thread panicked while it worked on the NIC"));
            let _ = catch_unwind(AssertUnwindSafe(|| self.serve_gsi()));
        }
    }

    fn make_progress(&self) {
        // Delayed ACKs have to be on time.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
        let mut driver = Driver::new();
        let mut action = driver.decide(self);
        while !self.signals.load().is_ending() {
            let event = match action {
                Action::TakeOver { restart_polls } => self.take_over(restart_polls),
                Action::Receive => self.receive_now(Work::NONE),
                Action::Transmit => {
                    self.signals.take_deferred();
                    self.transmit(self.now());
                    Event::Transmitted
                }
                Action::Sleep(sleep) => Event::Woken(self.sleep(sleep)),
            };
            self.serve_gsi();
            action = driver.step(event, self);
        }
    }

    fn take_over(&self, restart_polls: bool) -> Event {
        self.signals.take_over();
        if restart_polls {
            self.polls.restart(STEADY - STEADY_AGAIN);
        }
        self.receive_now(Work::ALL)
    }

    /// Waits for the receiving half: as long as packets wait there, the thread would not sleep
    /// either.
    fn receive_now(&self, work: Work) -> Event {
        let rx = self.receiver();
        let now = rx.since();
        Event::Received { packets: self.receive(Some(rx), now, work, |_| 0).packets }
    }

    fn sleep(&self, sleep: Sleep) -> Wake {
        let (kind, until, for_packets) = match sleep {
            Sleep::UntilDue => {
                let deadline = self.deadline();
                (SleepKind::UntilDue(deadline), deadline, true)
            }
            Sleep::Until { until, for_packets, polled: true } => {
                (SleepKind::Polled, Some(until), for_packets)
            }
            Sleep::Until { until, for_packets, polled: false } => {
                (SleepKind::Briefly, Some(until), for_packets)
            }
        };
        if !self.signals.try_sleep(kind) {
            return Wake::Doorbell;
        }
        if for_packets && !self.receiver().prepare_to_sleep() {
            return if self.signals.awake(false) { Wake::Doorbell } else { Wake::Readable };
        }
        let until = match sleep {
            // From now on a thread that sets an earlier deadline wakes this one; one that did just
            // before did not.
            Sleep::UntilDue => [until, self.deadline()].into_iter().flatten().min(),
            Sleep::Until { .. } => until,
        };
        self.wait_readable_until(until, for_packets)
    }

    fn wait_readable_until(&self, until: Option<Instant>, for_packets: bool) -> Wake {
        let timeout = until.map(|until| until.saturating_since(self.now()));
        let doorbell = self.signals.as_fd();
        let port = self.port_watch.as_ref().map_or(doorbell, PortWatch::fd);
        let members = self.members_fd().unwrap_or(doorbell);
        let status = self.status_socket().map_or(doorbell, |socket| socket.as_fd());
        let fds = [doorbell, port, members, status, self.watched_rx_fd()];
        let fds = if for_packets { &fds[..] } else { &fds[..4] };
        let [rung, port_changed, is_called, is_asked, packets] =
            which_readable(fds, timeout).unwrap_or([true; 5]);
        let is_woken = self.signals.awake(rung);
        if is_called && self.members_fd().is_some() {
            self.serve_members();
        }
        if is_asked {
            self.serve_status();
        }
        if port_changed {
            self.refresh_port();
        }
        if is_woken || port_changed {
            Wake::Doorbell
        } else if packets || is_called {
            Wake::Readable
        } else {
            Wake::Timeout
        }
    }
}

impl View for Shared {
    fn now(&self) -> Instant {
        self.now()
    }

    fn cpu_time(&self) -> Duration {
        Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
    }

    fn polls(&self) -> Polls {
        self.polls.load()
    }

    fn has_deferred(&self) -> bool {
        self.signals.load().has_deferred()
    }
}
