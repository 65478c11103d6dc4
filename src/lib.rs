//! RDMA over Converged Ethernet (RoCEv2) in a process, without a network card, a kernel module or a
//! privilege.
//!
//! ```
//! use roce::net::{Connection, Listener};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A soft NIC at this address: UDP port 4791 of it is all that it needs.
//! let listener = Listener::bind("127.20.19.1:0")?;
//! let address = listener.local_addr()?;
//! let memory = listener.endpoint().allocate(4096)?;
//! listener.endpoint().publish(1, &memory.slice(..)?)?;
//! let server = std::thread::spawn(move || {
//!     let connection = listener.accept()?;
//!     while let Some(message) = connection.recv()? {
//!         connection.send(&message)?;
//!     }
//!     connection.close()
//! });
//!
//! let connection = Connection::connect(address)?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
//! // The server's memory, by RDMA WRITE and READ: its program does nothing for them.
//! let published = connection.lookup(1)?.expect("it is published from the start");
//! connection.write(b"written", published)?;
//! assert_eq!(connection.read(published.part(0, 7).unwrap())?, b"written");
//! connection.close()?;
//! server.join().unwrap()?;
//! assert_eq!(memory.to_vec()[..7], *b"written");
//! # Ok(())
//! # }
//! ```
//!
//! # By task
//!
//! | to | begin at |
//! |---|---|
//! | send messages and use a peer's memory, as with sockets | [`net`]; many peers: [`group`]; registered memory for both: [`pool`] |
//! | program with verbs: queue pairs, memory regions, completions | [`device`] on a [`nic::SoftNic`], or on a card by [`rdma_nic`] |
//! | connect queue pairs as rdma_cm does | [`connect`] |
//! | test such programs without a network | [`link::cable`], two NICs in memory; [`link::fault`], losses and delays |
//! | read captures, and name their fields | [`capture`], [`decode`]; single headers: [`wire`] |
//! | find what went wrong in a capture | `analysis`, `replay` |
//! | compare two NICs | `conform` |
//! | measure the paths between hosts | [`ping`] |
//! | simulate: an RNIC without clock, socket or thread | [`engine`], [`cm`], driven by your own code |
//!
//! The folder `examples` has a program for most of these, and `docs` the guides. Programs in C have
//! `libroce.so`, and unmodified verbs programs the command `roce run`.
//!
//! # One name in several rooms
//!
//! | name | room |
//! |---|---|
//! | Config | [`net::Config`], [`group::Config`]: connections and meshes; [`pool::Config`]: layout of a pool; [`engine::Config`]: a NIC without its link; [`cm::Config`], [`connect::Config`]: the connection manager, without and with its NIC; [`link::raw::Config`], [`link::xdp::Config`], `link::phy::Config`: links; `analysis::Config`: the reading of a capture |
//! | Connection, Listener | [`net::Connection`], [`net::Listener`]: messages, as with sockets; [`connect::Connection`], [`connect::Listener`]: a queue pair that rdma_cm's messages connect; `analysis::Connection`: one that a capture shows |
//! | Finding | `analysis::Finding`: a fault in a capture; `conform::judge::Finding`: a difference of two devices |
//! | Error | [`net::Error`], [`group::Error`], [`connect::Error`], [`cm::Error`], [`capture::Error`]: of the calls of its room |
//! | Event | [`engine::Event`], [`cm::Event`]: what a state machine tells; [`ping::Event`]: the end of a probe |
//!
//! # Features
//!
//! A program that uses the library wants `default-features = false`.
//!
//! - `cli`, on by default: the command `roce`, with `analysis`, `conform`, `replay` and the
//!   dependencies that only the command needs.
//! - `analysis`: connections, messages, causes and findings of captures.
//! - `conform`: scenarios for any two devices, and the comparison of what they do.
//! - `replay`: captures held against the engine and the rules of the protocol. It contains
//!   `analysis` and `conform`.
//! - `tokio`: connections of [`net`] by futures, in `net::asynchronous`.
//! - `smoltcp`: soft NICs on devices that smoltcp drives, and on TAP devices, in `link::phy`.
//! - `parquet`: tables of packets, messages and connections (`roce decode --parquet`,
//!   `roce flows --parquet`). It contains `cli`.
//!
//! # Rooms
//!
//! Each part can be used alone:
//!
//! ```text
//!             bytes               state                movement             words
//!  capture ─► wire ──► engine ◄──────────────► nic ◄──► link ◄──► network
//!  (files)    headers  queue pairs, keys,      threads  udp · raw · cable · mem
//!             ICRC     timers: no clock,       events   fault · tap
//!               │      socket, thread            ▲
//!               │         ▲                      │
//!               │         └── verbs: work requests, completions, attributes
//!               └────────────────────────────────────────────────► decode ─► lines, trees, JSON, summaries
//! ```
//!
//! | room | holds | may use |
//! |---|---|---|
//! | [`time`] | the only time this crate knows: nanoseconds, told from outside | — |
//! | `proof` | proofs that a peer knows a secret: HMAC-SHA256 over labeled fields | — |
//! | `random` | seeded randomness, the same on every machine | — |
//! | [`histogram`] | times counted in ranges that grow with them, and their percentiles | — |
//! | `counters` | named counters of drops and refusals | — |
//! | `setters` | methods that set one field of a configuration each | — |
//! | `secret` | randomness that peers cannot guess | random |
//! | [`memory`] | memory that a NIC may touch, and the one place that touches it | — |
//! | [`wire`] | every header as a view over bytes and as something to emit; the one opcode table; ICRC; MAD and CM | memory |
//! | [`verbs`] | the vocabulary of verbs, with the numbers and texts of `ibv_*` | setters, wire, memory |
//! | `table` | objects by slot and generation, with the tag of their device | secret, memory, verbs |
//! | [`device`] | the interface of RNICs, soft and real, and objects that own what they create on one | time, wire, memory, verbs, table |
//! | [`pool`] | registered memory in slabs: items of a few sizes, allocated and freed in O(1) | setters, memory, verbs, device |
//! | [`capture`] | pcap and pcapng, in and out, plain or compressed, in bounded memory | time, wire |
//! | [`decode`] | packets in words: fields by tshark's names, filters, summaries | time, wire, capture |
//! | `observe` | a connection as its captured packets show it, for `analysis` and `replay`; with the feature `analysis` | time, wire, decode |
//! | `analysis` | connections, messages, causes and findings of captures; with the feature of this name | time, histogram, wire, decode, observe |
//! | [`engine`] | a software RNIC as a state machine, told packets and time | time, random, counters, secret, wire, memory, verbs, table |
//! | [`cm`] | the connection manager as a state machine, told messages, commands and time | time, counters, secret, wire, verbs, table |
//! | [`link`] | ways onto a network, simulated or real; faults and taps around them | time, random, memory, wire, verbs, capture, proof |
//! | `raw_eth` | raw packet queue pairs, flow steering and RSS: frames that are not RoCE | time, wire, verbs, engine, link |
//! | [`nic`] | an engine on a link, and the thread that drives them: a software NIC that runs | time, wire, memory, verbs, device, engine, link, raw_eth |
//! | [`ping`] | UD probes with six time stamps: prober and responder as state machines, on any device; what a fleet of them tells | time, histogram, secret, wire, verbs, device |
//! | `ibverbs` | the C ABI of `libibverbs`, and the files that its devices have | wire, verbs, engine, link |
//! | [`rdma_nic`] | a real RNIC, through the system's `libibverbs` and `librdmacm` | time, secret, wire, memory, verbs, table, device, cm, ibverbs |
//! | [`connect`] | connections by the connection manager, of soft NICs and of the system: listeners and connections | time, secret, wire, verbs, device, cm, link, nic, rdma_nic |
//! | [`net`] | messages and remote memory for programs that know sockets, on any device | counters, setters, wire, memory, verbs, device, engine, link, nic, connect, rdma_nic |
//! | [`group`] | a mesh of peers: servers and their threads from one list, messages in place, memory by number, re-connection | random, counters, secret, setters, time, proof, device, net |
//! | `control` | the control connection of commands that serve others: framing, limits, admission, token; with the feature `conform` | proof, wire, verbs, decode |
//! | `conform` | scenarios, run on any two devices, and what differs; with the feature of this name | time, wire, memory, verbs, device, decode, link, nic, connect, control |
//! | `replay` | captures, checked against the engine and the rules of the protocol; with the feature of this name | time, random, wire, memory, verbs, capture, decode, observe, analysis, engine, conform |
//!
//! Nothing imports upwards in this table; `tests/tidy.rs` holds the source against it. Each room's
//! own page says how it is built.
//!
//! # Rules that hold everywhere
//!
//! - Nothing that comes from a network or a file can panic, or size an allocation.
//! - `wire`, `verbs`, `engine` and `cm` read no clock, socket, environment or global random source:
//!   the same input gives the same output.
//! - An error names the layer or the offset, what was needed and what was there.
//! - Facts about an opcode stand in one table; the layout of a header in one declaration.

// On docs.rs, items say which feature they need.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("roce needs Linux: its links, its memory and its event queues are built on it");

// Tests of rooms share files with tests of the crate, which name it from outside.
#[cfg(test)]
extern crate self as roce;

#[cfg(feature = "analysis")]
pub mod analysis;
pub mod capture;
pub mod cm;
#[cfg(feature = "conform")]
pub mod conform;
pub mod connect;
// Only the command and its tests use it: no promise is made about it.
#[cfg(feature = "conform")]
#[doc(hidden)]
pub mod control;
mod counters;
pub mod decode;
pub mod device;
pub mod engine;
pub mod group;
pub mod histogram;
// Only `rdma_nic` and the C library of this repository use it: no promise is made about it.
#[doc(hidden)]
pub mod ibverbs;
pub mod link;
pub mod memory;
pub mod net;
pub mod nic;
#[cfg(feature = "analysis")]
mod observe;
pub mod ping;
pub mod pool;
mod proof;
mod random;
// Only the C library of this repository uses it: no promise is made about it.
#[doc(hidden)]
pub mod raw_eth;
pub mod rdma_nic;
#[cfg(feature = "replay")]
pub mod replay;
mod secret;
mod setters;
mod table;
pub mod time;
pub mod verbs;
pub mod wire;
