//! Fallible allocation: programs choose the sizes of queues, and one that asks for too much gets an error.

use std::collections::TryReserveError;

use crate::verbs::{CreateError, PostError};

/// There is not enough memory.
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

/// Memory that the queues of all objects take when they are full, and its limit. What an object was promised counts, not
/// what it uses so far: it must not fail later for lack of memory.
#[derive(Debug)]
pub(super) struct Promised {
    bytes: u64,
    limit: u64,
}

impl Promised {
    pub(super) fn new(limit: u64) -> Self {
        Self { bytes: 0, limit }
    }

    /// Promises up to `bytes` more than the limit that it was made with.
    pub(super) fn raise_limit(&mut self, bytes: u64) {
        self.limit = self.limit.saturating_add(bytes);
    }

    /// Promises `bytes`.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), NoMemory> {
        let sum = self.bytes.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.bytes = sum.ok_or(NoMemory)?;
        Ok(())
    }

    /// Returns `bytes` that are not needed any more.
    pub(super) fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
