//! Connections by the connection manager, on soft NICs.
//!
//! A [`CmService`] owns the one [`cm::Manager`](crate::cm::Manager) of a process and drives it: it gives it the MADs that
//! come to queue pair 1 of its NICs and the time, and does what it wants: transmits MADs, resolves addresses, reports
//! readable channels.
//!
//! | file | holds |
//! |---|---|
//! | `service.rs` | the service: its lock, its thread, its end |
//! | `nics.rs` | the NICs of a service, and what they look like to the manager |
//! | `resolve.rs` | the source address and the NIC that reach a destination |
#![forbid(unsafe_code)]

mod nics;
mod resolve;
mod service;

pub use service::{CmService, Config, ServiceClosed};
