//! `libroce.so`: connections of `roce::net` for programs in C. `roce.h` says what each call does.
//!
//! Every call goes through [`call`], so that nothing unwinds into C, and every failure is a text that [`rdmaLastError`] returns.
//! Memory of the program is never made a reference of: it is copied, and memory that is not mapped is an error.
#![allow(
    unsafe_code,
    reason = "C calls, and hands over pointers: each use says why it may be believed"
)]
#![allow(clippy::missing_safety_doc, reason = "roce.h says what each function wants")]
#![allow(non_snake_case, reason = "the names are those of C")]
#![allow(
    unreachable_pub,
    unnameable_types,
    missing_docs,
    reason = "the interface is that of roce.h"
)]

mod call;
mod conn;
mod server;
