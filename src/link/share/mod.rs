//! One address, many processes: sockets of one user at one address, between which the kernel
//! divides packets by their destination QPN.
#![allow(dead_code, reason = "the link does not use it yet")]

mod claims;
mod meeting;
mod place;
mod steering;
