//! What the progress thread does.
//!
//! | while | it | what is posted goes out |
//! |---|---|---|
//! | nobody polls | sleeps until something is to be done, and does it | at once |
//! | somebody polls who [gets on](crate::nic::trust) | leaves it alone, the longer the better it does, and looks whether it still polls | with its next poll |
//! | somebody polls who let packets wait | sleeps until packets come, and takes in those that it does not | with its next poll, or soon |

use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{NOTHING, Shared};
use crate::nic::core::Work;
use crate::nic::mailbox::which_readable;
use crate::nic::port::PortWatch;
use crate::nic::trust::{STEADY, Trust};
use crate::time::Instant;

/// How long somebody who polled before, and may look at memory now, has to take in what arrived by itself, and then to answer
/// before it is acknowledged.
const COURTESY: Duration = Duration::from_micros(200);

/// How long after its last poll one is thought to poll on.
const PATIENCE: Duration = Duration::from_millis(1);

/// How often one who polled now and then must poll to be thought to go on again.
const AGAIN: u64 = 16;

/// For how long after its last poll one gets that courtesy.
const AWAY: Duration = Duration::from_millis(5);

impl Shared {
    /// Serves until the NIC ends, or fails because a thread panicked.
    pub(in crate::nic) fn run(&self) {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        if served.is_err() {
            self.alarm.raise();
        }
        if self.alarm.is_raised() {
            // What panicked has said why.
            self.core().fail(&io::Error::other("a thread panicked while it worked on the NIC"));
        }
    }

    fn serve(&self) {
        // It has to be on time when acknowledgements are held back.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
        let mut trust = Trust::default();
        while !self.stopped.load(Ordering::SeqCst) && !self.alarm.is_raised() {
            let now = self.now();
            let polls = self.polls.load(Ordering::Relaxed);
            let steady = trust.is_steady(now, polls);
            if steady && self.is_polled(now, PATIENCE) {
                // Whoever polls minds the deadlines, too.
                self.wakes.store(0, Ordering::SeqCst);
                self.watching.store(true, Ordering::SeqCst);
                let waited = self.help(trust.moment(now, program_ran(), polls));
                trust.looked(self.now(), program_ran(), waited);
                continue;
            }
            // From now on whoever posts sends by itself. Nobody rings while it is awake, least of all itself.
            self.wakes.store(0, Ordering::SeqCst);
            self.watching.store(false, Ordering::SeqCst);
            // It waits for the receiving half: as long as packets wait there, it would not sleep either.
            let everything = Work { due: true, unsent: true };
            let receiver = self.receiver();
            let received = receiver.since();
            let taken = self.take_in(Some(receiver), received, everything, |_| 0);
            trust.end(now, program_ran(), taken.arrived);
            let answers = taken.arrived || self.has_left_something();
            if steady && answers && self.is_polled(now, AWAY) {
                if self.wait(COURTESY) == Meanwhile::Rung {
                    continue;
                }
            } else if !steady && polls >= STEADY {
                // It has to show again that it does.
                self.polls.store(STEADY - AGAIN, Ordering::Relaxed);
            }
            self.deferred.store(NOTHING, Ordering::SeqCst);
            self.transmit(self.now());
            let deadline = self.deadline();
            // From now on whoever sets an earlier deadline rings; whoever did so just before did not.
            self.wakes.store(deadline.map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
            let until = [deadline, self.deadline()].into_iter().flatten().min();
            self.sleep(until, true);
        }
    }

    /// Whether somebody polled within `patience`.
    fn is_polled(&self, now: Instant, patience: Duration) -> bool {
        let last = Instant::from_nanos(self.last_poll.load(Ordering::Relaxed));
        last.saturating_add(patience) > now
    }

    /// Leaves somebody who polls alone for a `moment`. If it has not polled meanwhile, or had no such moment, listens beside
    /// it, and takes in what arrives if it does not; whether that was so.
    fn help(&self, moment: Duration) -> bool {
        let away = !moment.is_zero();
        if away && self.wait(moment) != Meanwhile::Nothing {
            return false;
        }
        let until = self.now().saturating_add(PATIENCE);
        if !self.has_left_something() && self.sleep(Some(until), true) != Woken::Packets {
            return false;
        }
        if !away && self.gets_on() {
            return false;
        }
        let nothing = Work { due: false, unsent: false };
        let taken = self.take_in(Some(self.receiver()), self.now(), nothing, |_| 0);
        // It may look at memory now, and answer to what it finds there.
        if self.wait(COURTESY) == Meanwhile::Nothing {
            self.deferred.store(NOTHING, Ordering::SeqCst);
            self.transmit(self.now());
        }
        taken.arrived
    }

    /// Whether somebody takes in by itself what has just arrived, and sends what it left for its next poll; or there is
    /// something else to look at.
    fn gets_on(&self) -> bool {
        loop {
            match self.wait(COURTESY) {
                Meanwhile::Nothing => return false,
                Meanwhile::Polled if self.has_left_something() => {}
                Meanwhile::Polled | Meanwhile::Rung => return true,
            }
        }
    }

    /// Whether somebody left something for its next poll, and may not poll again.
    fn has_left_something(&self) -> bool {
        self.deferred.load(Ordering::SeqCst) != NOTHING
    }

    /// Sleeps for a moment, or until the doorbell rings: then there may be anything to do, and everything has to be looked
    /// at.
    fn wait(&self, moment: Duration) -> Meanwhile {
        let polls = self.polls.load(Ordering::SeqCst);
        let woken = self.sleep(Some(self.now().saturating_add(moment)), false);
        if woken == Woken::Rung {
            Meanwhile::Rung
        } else if self.polls.load(Ordering::SeqCst) != polls {
            Meanwhile::Polled
        } else {
            Meanwhile::Nothing
        }
    }

    /// Sleeps until then, or until the doorbell rings, or, if it shall, until a packet comes.
    fn sleep(&self, until: Option<Instant>, for_packets: bool) -> Woken {
        let timeout = until.map(|until| {
            let ns = until.as_nanos().saturating_sub(self.now().as_nanos());
            Duration::from_nanos(ns)
        });
        let arrivals = self.arrivals_with_groups.get().unwrap_or(&self.arrivals);
        let doorbell = self.alarm.as_fd();
        let port = self.port_watch.as_ref().map_or(doorbell, PortWatch::fd);
        let fds = [doorbell, port, arrivals.as_fd()];
        let fds = if for_packets { &fds[..] } else { &fds[..2] };
        let ready = which_readable(fds, timeout).unwrap_or([true; 3]);
        if ready[1] {
            self.refresh_port();
        }
        if self.alarm.has_rung() || ready[1] {
            Woken::Rung
        } else if ready[2] {
            Woken::Packets
        } else {
            Woken::InTime
        }
    }
}

/// What woke the progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// The doorbell: whoever is told so looks at everything again, because it does not ring twice.
    Rung,
    Packets,
    /// Nothing did.
    InTime,
}

/// What happened while it slept for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Rung,
    Polled,
    Nothing,
}

/// How long the threads of this program have run so far.
fn program_ran() -> Duration {
    let ran = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(ran).unwrap_or_default()
}
