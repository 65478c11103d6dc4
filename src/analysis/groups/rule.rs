//! The rule by which a group stands out from the rest.
//!
//! Three conditions, all of which must hold:
//! - at least [`AFFECTED_MIN`] of its connections are affected;
//! - the affected share of its connections is at least [`SHARE_RATIO`] times that of all others;
//! - chance alone would make one of the candidates look like this in fewer than one of [`CHANCE`]
//!   captures: the log likelihood ratio of two shares against one common share (the G-test) exceeds
//!   the bound for as many candidates as are compared.

/// Fewest affected connections of a group.
pub(super) const AFFECTED_MIN: u64 = 5;

/// Least ratio of the affected share of a group to that of the rest.
pub(super) const SHARE_RATIO: f64 = 3.0;

/// Margin by which one direction of a path must explain more than the path does, to be named
/// instead of it: chance makes a direction of a bad path look well in fewer than one of 500 paths.
pub(super) const DIRECTION_MARGIN: f64 = 10.0;

/// Captures of which fewer than one would name a group by chance.
const CHANCE: f64 = 1000.0;

/// Connections of a group and of all, and how many of them are affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) affected: u64,
    pub(super) connections: u64,
    pub(super) all_affected: u64,
    pub(super) all_connections: u64,
}

impl Split {
    /// Whether the group stands out, if it is one of so many candidates.
    pub(super) fn stands_out(&self, candidates: u64) -> bool {
        let rest = self.rest();
        self.affected >= AFFECTED_MIN
            && rest.1 > 0
            && share(self.affected, self.connections) >= SHARE_RATIO * share(rest.0, rest.1)
            && self.surprise() > surprise_min(candidates)
    }

    /// Affected and all connections outside of the group.
    fn rest(&self) -> (u64, u64) {
        // What is affected in one direction of a group may be affected by the other only.
        let affected = self.all_affected.saturating_sub(self.affected);
        let connections = self.all_connections.saturating_sub(self.connections);
        (affected.min(connections), connections)
    }

    /// Returns the G statistic: the evidence for two shares against one.
    pub(super) fn surprise(&self) -> f64 {
        let rest = self.rest();
        let apart =
            log_likelihood(self.affected, self.connections) + log_likelihood(rest.0, rest.1);
        let (affected, connections) =
            (self.affected + rest.0, self.connections.saturating_add(rest.1));
        2.0 * (apart - log_likelihood(affected, connections))
    }
}

/// The least G that chance reaches in fewer than one of [`CHANCE`] captures among so many
/// candidates. The tail of the distribution (chi-squared of one degree) is less than `exp(-G / 2)`.
pub(super) fn surprise_min(candidates: u64) -> f64 {
    2.0 * (float(candidates.max(1)) * CHANCE).ln()
}

/// A part of a whole.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    float(part) / float(whole.max(1))
}

/// Logarithm of the likelihood of `part` of `whole` at the share that fits best.
fn log_likelihood(part: u64, whole: u64) -> f64 {
    weighted_log(part, whole) + weighted_log(whole.saturating_sub(part), whole)
}

/// `part × ln(part / whole)`, which is 0 for nothing.
pub(super) fn weighted_log(part: u64, whole: u64) -> f64 {
    if part == 0 { 0.0 } else { float(part) * share(part, whole).ln() }
}

#[expect(clippy::cast_precision_loss, reason = "for shares")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}
