//! `roce::capture` against captures and numbers that others made.
//!
//! Truth comes from outside wherever it can: `capinfos` and `tshark` (Wireshark 4.0.17) for the
//! numbers, the `pcap-file` crate as a second reader, and files built here byte by byte from the
//! drafts `draft-ietf-opsawg-pcap` and `draft-ietf-opsawg-pcapng`, which `tshark` read alike when
//! they were made (but it counts a custom block as a frame).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod batch;
mod build;
mod compression;
mod copy;
mod cut;
mod damage;
mod merge;
mod pcap;
mod pcapng;
mod properties;
mod real;
mod source;
mod writers;
mod wrong;
