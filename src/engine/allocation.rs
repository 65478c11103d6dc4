//! Memory that may not be there: queues are as large as programs ask for, and one that asks for too much is refused.

use std::collections::TryReserveError;

use crate::verbs::{CreateError, PostError};

/// There is no memory for what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

impl From<TryReserveError> for NoMemory {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

impl From<NoMemory> for CreateError {
    fn from(NoMemory: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<NoMemory> for PostError {
    fn from(NoMemory: NoMemory) -> Self {
        Self::NoMemory
    }
}

/// An array of `len` times `value`.
pub(super) fn array<T: Clone>(value: T, len: usize) -> Result<Box<[T]>, NoMemory> {
    let mut array = Vec::new();
    array.try_reserve_exact(len)?;
    array.resize(len, value);
    Ok(array.into_boxed_slice())
}

/// How much memory the queues of all objects take when they are used as they may be, and how much they may take. What
/// an object was promised counts, not what it has used so far: it must not find out later that there is no more.
#[derive(Debug)]
pub(super) struct Promised {
    bytes: u64,
    limit: u64,
}

impl Promised {
    pub(super) fn new(limit: u64) -> Self {
        Self { bytes: 0, limit }
    }

    /// Promises so many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), NoMemory> {
        let sum = self.bytes.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.bytes = sum.ok_or(NoMemory)?;
        Ok(())
    }

    /// So many bytes are not needed any more.
    pub(super) fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
