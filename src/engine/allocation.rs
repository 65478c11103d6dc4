//! Fallible allocation: programs choose the sizes of queues, and a size that memory does not allow
//! is an error.

use std::collections::TryReserveError;

use crate::verbs::{CreateError, PostError};

/// Not enough memory.
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

/// Allocates an array of `len` copies of `value`.
pub(super) fn array<T: Clone>(value: T, len: usize) -> Result<Box<[T]>, NoMemory> {
    let mut array = Vec::new();
    array.try_reserve_exact(len)?;
    array.resize(len, value);
    Ok(array.into_boxed_slice())
}

/// Accounts for the memory that the queues of all objects take when they are full, against a limit.
/// An object reserves all of it when it is created, so that it does not run out of memory later.
#[derive(Debug)]
pub(super) struct Promised {
    bytes: u64,
    limit: u64,
}

impl Promised {
    pub(super) fn new(limit: u64) -> Self {
        Self { bytes: 0, limit }
    }

    /// Raises the limit by `bytes`.
    pub(super) fn raise_limit(&mut self, bytes: u64) {
        self.limit = self.limit.saturating_add(bytes);
    }

    /// Reserves `bytes`.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), NoMemory> {
        let sum = self.bytes.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.bytes = sum.ok_or(NoMemory)?;
        Ok(())
    }

    /// Releases `bytes`.
    pub(super) fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
