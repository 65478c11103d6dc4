//! Conversions between the structures of C and the types of [`verbs`](crate::verbs).
//!
//! A structure from a C program may hold any bytes; each conversion from C checks the fields that
//! it uses, and only those. A value of [`verbs`](crate::verbs) is always valid in C. A C library
//! that stands in for `libibverbs` needs one direction of each, a client of the real one the
//! other.

mod attr;
mod work;

pub use work::{SendObjects, bind_mw, recv_wr, send_wr, sges};
