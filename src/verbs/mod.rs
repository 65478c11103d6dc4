//! The vocabulary of verbs: requests of a program to an RNIC, and its answers.
//!
//! A software RNIC, a C library that stands in for `libibverbs` and a wrapper of real RNICs all
//! speak of the same things. Here they are once, with the numbers, names and texts of `ibv_*`, so
//! that a value passes between the three unchanged. There are no devices, no queues and no memory
//! in this room: only words.
//!
//! | file | holds |
//! |---|---|
//! | `status`, `opcode`, `event` | why work ended, what it was, what happens beside it |
//! | `flags`, `num`, `mtu` | sets of flags, and a type for every number that has a meaning |
//! | `wr`, `post` | work requests as callers post them, and why one is refused |
//! | `wc` | a completion, in 32 bytes |
//! | `attr`, `device_attr` | attributes of address handles, queue pairs, devices and ports |
//! | `handle`, `object` | names of objects, what one shall be and why it cannot |
//! | `connect` | what two queue pairs must know of each other |
//! | `qp_type`, `state` | kinds of queue pairs, and what each state does |
//! | `qpn_share` | QPNs of one NIC among several at an address |
//! | [`transition`] | which attributes take a queue pair from one state to the next |
//!
//! Every enumeration has `code()` and `from_code()` for its number in C, `name()` for its constant
//! there, and prints as the text that `ibv_*_str` gives. An unassigned number is `None`: what comes
//! from a C program is checked once, at the border.
//!
//! # Examples
//!
//! ```
//! use roce::verbs::{AttrMask, QpState, QpType, WcStatus, transition};
//!
//! assert_eq!(WcStatus::from_code(12), Some(WcStatus::RetryExcErr));
//! assert_eq!(WcStatus::RetryExcErr.name(), "IBV_WC_RETRY_EXC_ERR");
//! assert_eq!(WcStatus::RetryExcErr.to_string(), "transport retry counter exceeded");
//!
//! let mask = AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
//! let error = transition::check(QpType::Rc, QpState::Rtr, QpState::Rts, mask).unwrap_err();
//! assert_eq!(error.to_string(), "RC from RTR to RTS: missing IBV_QP_MAX_QP_RD_ATOMIC");
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod attr;
mod codes;
mod connect;
mod device_attr;
mod errno;
mod event;
mod flags;
mod handle;
pub mod limits;
mod mtu;
mod num;
mod object;
mod opcode;
mod post;
mod qp_type;
mod qpn_share;
mod state;
mod status;
pub mod transition;
mod wc;
mod wr;

#[cfg(test)]
pub(crate) use attr::tests::other as other_qp_attr;
pub use attr::*;
pub(crate) use codes::{codes, names};
pub(crate) use connect::bring_up;
pub use connect::{Connect, ConnectError, Endpoint};
pub use device_attr::*;
pub use errno::Errno;
pub use event::{AsyncEvent, EventSubject, EventType};
pub use flags::*;
pub use handle::{
    AhHandle, CqHandle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle, XrcdHandle,
};
pub(crate) use handle::{DeviceTag, Id};
pub use mtu::Mtu;
pub use num::*;
pub use object::{CreateError, DestroyError, KeyError, MrAttr, Notify, QpCreate, SrqCreate};
pub use opcode::{LengthRule, LocalData, WcOpcode, WrInfo, WrOpcode};
pub use post::PostError;
pub use qp_type::{QpType, QpTypes};
pub use qpn_share::QpnShare;
pub use state::{Posting, QpState, Sending, StateRules};
pub use status::WcStatus;
pub use transition::ModifyError;
pub use wc::Wc;
pub use wr::{Data, MwBind, RecvWr, SendOp, SendWr, Sge, Target, UdTarget};
