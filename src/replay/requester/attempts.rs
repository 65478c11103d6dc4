//! Rewinds of one requester without progress, which its retry counts limit.

/// Cause of a rewind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Rnr,
    /// NAK, missing response, or timeout.
    Loss,
    /// Any of these.
    Unknown,
}

/// Rewinds since the last progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) losses: u32,
    pub(super) rnrs: u32,
    /// First unacknowledged sequence number at the first of them, and where that went back to.
    una: u64,
    start: u64,
}

impl Attempts {
    /// Begins at a sequence number.
    pub(super) fn start_at(&mut self, sequence: u64) {
        *self = Self { una: sequence, ..Self::default() };
    }

    /// Counts a rewind to a sequence number.
    pub(super) fn count(&mut self, cause: Cause, sequence: u64, una: u64) {
        // A rewind to a later packet shows progress, too.
        if self.una != una || sequence > self.start {
            *self = Self { una, start: sequence, ..Self::default() };
        }
        self.losses += u32::from(cause == Cause::Loss);
        self.rnrs += u32::from(cause == Cause::Rnr);
    }

    /// Whether the requester went back for a loss since the last progress.
    pub(super) fn is_retrying(&self, una: u64) -> bool {
        self.losses > 0 && self.una == una
    }
}
