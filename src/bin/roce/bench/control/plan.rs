//! Plan of a measurement, agreed upon by both sides before anything is sent.

use std::time::Duration;

use anyhow::ensure;
use roce::verbs::{Mtu, QpType};
use serde::{Deserialize, Serialize};

/// Operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Send,
    Write,
    Read,
    Atomic,
}

impl Op {
    /// Returns the name in the command and in the protocol.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// Quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Bandwidth: bytes and messages a second.
    Bw,
    /// Latency: time that a message takes.
    Lat,
}

impl Metric {
    pub(crate) const ALL: [Self; 2] = [Self::Bw, Self::Lat];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Lat => "lat",
        }
    }
}

/// The kind of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Connection {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Connection {
    pub(crate) const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    pub(crate) const fn name(self) -> &'static str {
        self.qp_type().text()
    }

    pub(crate) const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }
}

/// Length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Extent {
    /// Number of messages on each queue pair.
    Iterations(u64),
    /// Number of seconds.
    Seconds(u64),
}

impl Extent {
    /// Returns the maximum number of messages that a queue pair sends.
    pub(crate) const fn quota(self) -> u64 {
        match self {
            Self::Iterations(count) => count,
            Self::Seconds(_) => u64::MAX,
        }
    }

    /// Returns the time that the measurement takes, if time ends it.
    pub(crate) const fn time(self) -> Option<Duration> {
        match self {
            Self::Iterations(_) => None,
            Self::Seconds(seconds) => Some(Duration::from_secs(seconds)),
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) metric: Metric,
    pub(crate) connection: Connection,
    /// The sizes to measure with, in bytes, one after the other.
    pub(crate) sizes: Vec<u32>,
    pub(crate) extent: Extent,
    pub(crate) qps: u32,
    pub(crate) mtu: Mtu,
    /// Maximum number of messages in flight on a queue pair.
    pub(crate) tx_depth: u32,
    /// Whether the server sends as well.
    pub(crate) bidirectional: bool,
    /// Whether received messages are compared with the pattern.
    pub(crate) verify: bool,
}

/// The largest message. `-a` ends here, too.
pub(crate) const SIZE_MAX: u32 = 1 << 23;

/// Maximum number of queue pairs of a run.
pub(crate) const QPS_MAX: u32 = 1024;

/// Maximum value of `tx_depth`.
pub(crate) const TX_DEPTH_MAX: u32 = 8192;

/// Maximum number of receives that a queue pair has posted.
pub(crate) const RECEIVES: u32 = 512;

/// Maximum number of receives that all queue pairs of a run have posted.
const RECEIVES_IN_ALL: u32 = 1 << 16;

/// Maximum number of messages in flight and receives posted, over all queue pairs.
const COMPLETIONS_MAX: u32 = (1 << 20) - 1;

/// The most sizes of a run.
pub(crate) const SIZES_MAX: usize = 32;

/// The longest run by time: a day.
pub(crate) const SECONDS_MAX: u64 = 86_400;

/// Maximum number of messages on each queue pair: more than a day's worth.
pub(crate) const ITERATIONS_MAX: u64 = 1 << 40;

/// Length of the operand of an ATOMIC.
pub(crate) const ATOMIC_SIZE: u32 = roce::verbs::limits::ATOMIC_BYTES;

impl Plan {
    /// Whether it can be done, and within bounds. A server asks this of what a client wants.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (op, connection) = (self.op.name(), self.connection.name());
        let possible = match self.op {
            Op::Send => true,
            Op::Write => self.connection != Connection::Ud,
            Op::Read | Op::Atomic => self.connection == Connection::Rc,
        };
        ensure!(possible, "{connection} has no {op}: use -c rc");
        ensure!(!self.sizes.is_empty() && self.sizes.len() <= SIZES_MAX, "no size, or too many");
        for &size in &self.sizes {
            ensure!(size <= SIZE_MAX, "-s: a message has 0 to {SIZE_MAX} bytes");
            ensure!(
                size > 0 || self.op != Op::Write || self.metric == Metric::Bw,
                "-s: the latency of a write is measured with its last byte: at least 1 byte"
            );
            ensure!(
                self.op != Op::Atomic || size == ATOMIC_SIZE,
                "-s: an atomic operation works on {ATOMIC_SIZE} bytes"
            );
            ensure!(
                self.connection != Connection::Ud || size as usize <= self.mtu.bytes(),
                "-s: a datagram of {size} bytes does not fit an MTU of {}",
                self.mtu
            );
        }
        ensure!((1..=QPS_MAX).contains(&self.qps), "-q: 1 to {QPS_MAX} queue pairs");
        ensure!((1..=TX_DEPTH_MAX).contains(&self.tx_depth), "-t: 1 to {TX_DEPTH_MAX}");
        ensure!(
            self.qps * (self.tx_depth + self.receives_per_qp_max()) <= COMPLETIONS_MAX,
            "-q and -t: together more than {COMPLETIONS_MAX} messages in flight"
        );
        match self.extent {
            Extent::Iterations(count) => {
                ensure!((1..=ITERATIONS_MAX).contains(&count), "-n: 1 to {ITERATIONS_MAX}");
            }
            Extent::Seconds(seconds) => {
                ensure!((1..=SECONDS_MAX).contains(&seconds), "-D: 1 to {SECONDS_MAX} seconds");
            }
        }
        if self.metric == Metric::Lat {
            ensure!(self.qps == 1, "-q: latency is measured on one queue pair");
            ensure!(!self.bidirectional, "-b: latency is not measured both ways at once");
        }
        Ok(())
    }

    /// The largest size.
    pub(crate) fn size_max(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Maximum number of receives that one queue pair has posted: fewer if there are many queue
    /// pairs.
    pub(crate) fn receives_per_qp_max(&self) -> u32 {
        (RECEIVES_IN_ALL / self.qps.max(1)).clamp(1, RECEIVES)
    }

    /// Returns the minimum time of the run in seconds, if time ends it.
    pub(crate) fn seconds(&self) -> Option<u64> {
        match self.extent {
            Extent::Iterations(_) => None,
            Extent::Seconds(seconds) => Some(seconds.saturating_mul(self.sizes.len() as u64)),
        }
    }

    /// Whether messages take receives at the other side.
    pub(crate) fn takes_receives(&self) -> bool {
        self.op == Op::Send
    }
}
