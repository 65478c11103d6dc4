//! `roce::capture` against captures and numbers that others made.
//!
//! Truth comes from outside wherever it can: `capinfos` and `tshark` (Wireshark 4.0.17) for the numbers,
//! the `pcap-file` crate as a second reader, and files built here byte by byte from the drafts
//! `draft-ietf-opsawg-pcap` and `draft-ietf-opsawg-pcapng`, which `tshark` read alike when they were made (but it
//! counts a custom block as a frame).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "capture/batch.rs"]
mod batch;
#[path = "capture/build.rs"]
mod build;
#[path = "capture/compression.rs"]
mod compression;
#[path = "capture/copy.rs"]
mod copy;
#[path = "capture/cut.rs"]
mod cut;
#[path = "capture/damage.rs"]
mod damage;
#[path = "capture/merge.rs"]
mod merge;
#[path = "capture/pcap.rs"]
mod pcap;
#[path = "capture/pcapng.rs"]
mod pcapng;
#[path = "capture/properties.rs"]
mod properties;
#[path = "capture/real.rs"]
mod real;
#[path = "capture/source.rs"]
mod source;
#[path = "capture/writers.rs"]
mod writers;
#[path = "capture/wrong.rs"]
mod wrong;
