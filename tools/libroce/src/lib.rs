//! `libroce.so`: connections of `roce::net` for programs in C. `roce.h` documents each call.
//!
//! Every call goes through [`call`], so that nothing unwinds into C, and every failure is a number
//! with a text. What a program holds is a number that is looked up in [`handles`], never a pointer
//! of the library's. Memory of the program is never made a reference of: it is copied, and memory
//! that is not mapped is an error.
//!
//! | file | holds |
//! |---|---|
//! | `call` | the border to C: panics, errors, the text of the last one |
//! | `error` | error numbers and their texts |
//! | `pointer` | strings and memory of the program |
//! | `handles` | the table of handles |
//! | `device`, `listener`, `connection`, `inbox`, `remote` | the calls of this library |
//! | `exit` | delivery at the end of the process |
//! | `snow`, `snow/` | the calls of SnowRDMA, over those of this library |
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

pub mod call;
pub mod connection;
pub mod device;
mod error;
mod exit;
mod handles;
mod inbox;
pub mod listener;
mod pointer;
pub mod remote;
pub mod snow;
