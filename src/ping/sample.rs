//! Times that the time stamps of a probe tell.

use core::time::Duration;

use crate::histogram::Histogram;
use crate::time::Instant;

/// The six time stamps of a probe, as R-Pingmesh has them.
///
/// Three clocks are involved, and no two are compared: 1 and 6 are of the prober's program, 2 and 5
/// of the prober's NIC, 3 and 4 of the responder's NIC, which tells only their difference.
///
/// ```text
///  prober program   1 post ──────────────────────────────────────────────► 6 processed
///  prober NIC            2 send completion ──────► 5 receive completion
///  responder NIC              3 receive completion ► 4 send completion
/// ```
///
/// ```
/// use std::time::Duration;
/// use roce::ping::Stamps;
/// use roce::time::Instant;
///
/// let us = |us: u64| Instant::from_nanos(us * 1000);
/// let stamps = Stamps {
///     posted: us(100),
///     sent: us(3),
///     received: us(23),
///     processed: us(130),
///     responder: Duration::from_micros(8),
/// };
/// assert_eq!(stamps.network(), Some(Duration::from_micros(12)));
/// assert_eq!(stamps.prober(), Some(Duration::from_micros(10)));
/// assert_eq!(stamps.total(), Duration::from_micros(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// 1: the prober's program posts the probe.
    pub posted: Instant,
    /// 2: the send of the probe completes.
    pub sent: Instant,
    /// 5: the acknowledgement is received.
    pub received: Instant,
    /// 6: the prober's program has processed the acknowledgement.
    pub processed: Instant,
    /// Time from 3, the probe is received, to 4, the send of the acknowledgement completes. It is
    /// the responder's word.
    pub responder: Duration,
}

impl Stamps {
    /// Returns the time from the send completion of the probe to the receive completion of its
    /// acknowledgement.
    fn round_trip(&self) -> Duration {
        self.received.saturating_since(self.sent)
    }

    /// Returns the round trip time of the network: without the responder's and without the prober's
    /// part. `None` if the responder claims to have taken longer than all of the round trip took.
    pub fn network(&self) -> Option<Duration> {
        self.round_trip().checked_sub(self.responder)
    }

    /// Returns how long the prober's host took: to send, and to see the acknowledgement. `None` if
    /// the clock of its NIC does not agree with its own.
    pub fn prober(&self) -> Option<Duration> {
        self.total().checked_sub(self.round_trip())
    }

    /// Returns the time that the prober's program saw in all.
    pub fn total(&self) -> Duration {
        self.processed.saturating_since(self.posted)
    }
}

/// Statistics of the probes of one path: counts, and times as histograms.
///
/// ```
/// use roce::ping::{Ending, PathStats};
///
/// let mut stats = PathStats::default();
/// stats.add(&Ending::Lost { reached: false });
/// assert_eq!((stats.sent(), stats.lost, stats.loss()), (1, 1, Some(1.0)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Probes that were acknowledged.
    pub answered: u64,
    /// Probes that were not acknowledged in time.
    pub lost: u64,
    /// Lost probes whose second acknowledgement came: the probe arrived, its first acknowledgement
    /// was lost.
    pub lost_after_arrival: u64,
    /// Probes that were acknowledged, and whose second acknowledgement did not come.
    pub untimed: u64,
    /// Probes whose time stamps contradict each other: no time of theirs is counted.
    pub implausible: u64,
    /// Probes that the NIC did not send.
    pub not_sent: u64,
    /// Round trip times of the network.
    pub network: Histogram,
    /// Times that the prober's host took.
    pub prober: Histogram,
    /// Times that the responder took.
    pub responder: Histogram,
}

impl PathStats {
    /// Counts the end of a probe.
    pub fn add(&mut self, ending: &Ending) {
        match ending {
            Ending::Answered(stamps) => {
                self.answered += 1;
                match (stamps.network(), stamps.prober()) {
                    (Some(network), Some(prober)) => {
                        self.network.add(network);
                        self.prober.add(prober);
                        self.responder.add(stamps.responder);
                    }
                    _ => self.implausible += 1,
                }
            }
            Ending::Untimed { .. } => {
                self.answered += 1;
                self.untimed += 1;
            }
            Ending::Lost { reached } => {
                self.lost += 1;
                self.lost_after_arrival += u64::from(*reached);
            }
            Ending::NotSent => self.not_sent += 1,
        }
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        self.answered += other.answered;
        self.lost += other.lost;
        self.lost_after_arrival += other.lost_after_arrival;
        self.untimed += other.untimed;
        self.implausible += other.implausible;
        self.not_sent += other.not_sent;
        self.network.merge(&other.network);
        self.prober.merge(&other.prober);
        self.responder.merge(&other.responder);
    }

    /// Returns how many probes were sent and have ended.
    pub fn sent(&self) -> u64 {
        self.answered + self.lost
    }

    /// Returns the share of probes that were lost, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn loss(&self) -> Option<f64> {
        (self.sent() > 0).then(|| self.lost as f64 / self.sent() as f64)
    }
}

/// End of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both acknowledgements came.
    Answered(Stamps),
    /// The first acknowledgement came, the second did not: the round trip includes the responder's
    /// part.
    Untimed {
        /// Time from the post to the processing.
        total: Duration,
    },
    /// No acknowledgement came in time.
    Lost {
        /// Whether the second one came: the probe arrived then.
        reached: bool,
    },
    /// The NIC did not send it.
    NotSent,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(sent: u64, received: u64, processed: u64, responder: u64) -> Stamps {
        let at = Instant::from_nanos;
        let responder = Duration::from_nanos(responder);
        Stamps {
            posted: at(0),
            sent: at(sent),
            received: at(received),
            processed: at(processed),
            responder,
        }
    }

    #[test]
    fn contradicting_stamps_count_as_answered_and_give_no_time() {
        let mut stats = PathStats::default();
        // The responder took longer than the round trip; the NIC's round trip is longer than the
        // program's.
        for bad in [stamps(10, 20, 100, 11), stamps(0, 200, 100, 5), stamps(9, 0, 100, 1)] {
            stats.add(&Ending::Answered(bad));
        }
        assert_eq!((stats.answered, stats.implausible, stats.network.count()), (3, 3, 0));
        stats.add(&Ending::Answered(stamps(10, 40, 50, 12)));
        assert_eq!((stats.implausible, stats.network.count()), (3, 1));
        assert_eq!(stats.network.max().unwrap().as_nanos(), 18);
        assert_eq!(stats.prober.max().unwrap().as_nanos(), 20);
        assert_eq!(stats.responder.max().unwrap().as_nanos(), 12);
    }
}
