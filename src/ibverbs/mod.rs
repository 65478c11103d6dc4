//! The C ABI of `libibverbs`, and of `librdmacm` as far as it is called: every structure as C lays
//! it out, every number that only C knows, and the way between them and [`verbs`](crate::verbs).
//!
//! Two need it: `tools/ibverbs`, which stands in for `libibverbs` so that unmodified programs run
//! on a soft NIC, and [`rdma_nic`](crate::rdma_nic), a client of the real one. No header is needed
//! to build it; `tests/abi.rs` asks a C compiler and an installed header whether every size, offset
//! and number of [`table`] is right.
//!
//! | file | holds |
//! |---|---|
//! | `device`, `context` | devices, ports, open devices with their tables of functions, events |
//! | `memory`, `address` | protection domains, memory, windows; identifiers and address handles |
//! | `cq`, `srq`, `qp`, `wr` | queues, their attributes, and what is posted to them |
//! | `wq`, `flow` | what only raw packets have |
//! | `rdmacm` | ids and events of `librdmacm` |
//! | `constants` | numbers without a type in `verbs` |
//! | [`files`] | the files that a kernel has for devices |
//! | [`convert`] | from C to `verbs` and back |
//! | [`table`] | all of it as a list, to be checked |
//!
//! Names are those of C, so that the manual pages hold. Enumerations are plain numbers: what comes
//! from a C program is checked when it is converted, and what a newer one asks is refused rather
//! than misread.
#![allow(non_camel_case_types, non_snake_case, reason = "the names are those of C")]

mod address;
mod constants;
mod context;
pub mod convert;
mod cq;
mod device;
pub mod files;
mod flow;
mod layout;
mod memory;
mod qp;
mod rdmacm;
mod srq;
mod sync;
pub mod table;
mod wq;
mod wr;

pub use address::*;
pub use constants::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use layout::{Field, Layout};
pub use memory::*;
pub use qp::*;
pub use rdmacm::*;
pub use srq::*;
pub use sync::*;
pub use wq::*;
pub use wr::*;
