//! Conversions between the structures of C and the types of [`verbs`](crate::verbs).
//!
//! What comes from a C program may be anything; each conversion from C checks what it uses, and
//! only that. What goes to C cannot be wrong. A C library that stands in for `libibverbs` needs one
//! direction of each, a client of the real one the other.

mod attr;
mod work;

pub use work::{SendObjects, bind_mw, recv_wr, send_wr, sges};
