//! Ways between NICs. For now the one that is nobody's: a network in memory.
#![forbid(unsafe_code)]

pub mod mem;
