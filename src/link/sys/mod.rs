//! The system calls that links make, each behind a small safe function. All `unsafe` code of the links is here.

pub(super) mod ring;
