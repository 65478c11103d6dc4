//! RoCEv2 in pure userspace: see it, speak it, replay it, compare it, stand in for a NIC.
//!
//! RDMA over Converged Ethernet is usually the business of a network card. This crate does it in a process, with
//! no kernel module, no hardware and no privilege, and is built so that each part can be used alone:
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
//! | `random` | seeded randomness, the same on every machine | — |
//! | `counters` | named counters of drops and refusals | — |
//! | `setters` | methods that set one field of a configuration each | — |
//! | `secret` | randomness that peers cannot guess | random |
//! | [`wire`] | every header as a view over bytes and as something to emit; the one opcode table; ICRC; MAD and CM | — |
//! | [`memory`] | memory that a NIC may touch, and the one place that touches it | — |
//! | [`verbs`] | the vocabulary of verbs, with the numbers and texts of `ibv_*` | setters, wire, memory |
//! | `table` | objects by slot and generation, with the tag of their device | secret, verbs |
//! | [`device`] | the interface of RNICs, soft and real, and objects that own what they create on one | time, wire, memory, verbs, table |
//! | [`pool`] | registered memory in slabs: items of a few sizes, allocated and freed in O(1) | setters, memory, verbs, device |
//! | [`capture`] | pcap and pcapng, in and out, plain or compressed, in bounded memory | time, wire |
//! | [`decode`] | packets in words: fields by tshark's names, filters, summaries | time, wire, capture |
//! | `analysis` | connections, messages, causes and findings of captures; with the feature of this name | time, wire, decode |
//! | [`engine`] | a software RNIC as a state machine, told packets and time | time, random, counters, secret, wire, memory, verbs, table |
//! | [`cm`] | the connection manager as a state machine, told messages, commands and time | time, counters, secret, wire, verbs, table |
//! | [`link`] | ways onto a network, simulated or real; faults and taps around them | time, random, wire, verbs, capture |
//! | `raw_eth` | raw packet queue pairs, flow steering and RSS: frames that are not RoCE; with the feature of this name | time, wire, verbs, engine, link |
//! | [`nic`] | an engine on a link, and the thread that drives them: a software NIC that runs | time, wire, memory, verbs, device, engine, link, raw_eth |
//! | [`ping`] | UD probes with six time stamps: prober and responder as state machines, on any device; what a fleet of them tells | time, secret, wire, verbs, device |
//! | [`ibverbs`] | the C ABI of `libibverbs`, and the files that its devices have | wire, verbs, link |
//! | [`rdma_nic`] | a real RNIC, through the system's `libibverbs` and `librdmacm` | time, secret, wire, memory, verbs, table, device, cm, ibverbs |
//! | [`connect`] | connections by the connection manager, of soft NICs and of the system: listeners and connections | time, secret, wire, verbs, device, cm, link, nic, rdma_nic |
//! | [`net`] | messages and remote memory for programs that know sockets, on any device | setters, wire, memory, verbs, device, link, nic, connect, rdma_nic |
//! | [`group`] | a mesh of peers: servers and their threads from one list, messages in place, memory by number, re-connection | random, secret, setters, time, device, net |
//! | `conform` | scenarios, run on any two devices, and what differs; with the feature of this name | time, wire, memory, verbs, device, decode, link, nic, connect |
//! | `replay` | captures, checked against the engine and the rules of the protocol; with the feature of this name | time, random, wire, memory, verbs, capture, decode, analysis, engine, conform |
//!
//! Nothing imports upwards in this table; `tests/tidy.rs` holds the source against it. Each room's own page says how
//! it is built.
//!
//! # Rules that hold everywhere
//!
//! - Nothing that comes from a network or a file can panic, or size an allocation.
//! - `wire`, `verbs`, `engine` and `cm` read no clock, socket, environment or global random source: the same input gives the
//!   same output.
//! - An error names the layer or the offset, what was needed and what was there.
//! - Facts about an opcode stand in one table; the layout of a header in one declaration.
//!
//! # Features
//!
//! `cli` (on by default) builds the `roce` command and pulls in what only it needs. A program that uses the library
//! wants `default-features = false`. `conform`, which `cli` contains, is the room of this name. `raw_eth` is for
//! `libibverbs.so.1`, which `tools/ibverbs` builds.

#[cfg(feature = "analysis")]
pub mod analysis;
pub mod capture;
pub mod cm;
#[cfg(feature = "conform")]
pub mod conform;
#[cfg(target_os = "linux")]
pub mod connect;
mod counters;
pub mod decode;
pub mod device;
pub mod engine;
#[cfg(target_os = "linux")]
pub mod group;
#[cfg(target_os = "linux")]
pub mod ibverbs;
pub mod link;
pub mod memory;
#[cfg(target_os = "linux")]
pub mod net;
pub mod nic;
pub mod ping;
pub mod pool;
mod random;
#[cfg(feature = "raw_eth")]
pub mod raw_eth;
#[cfg(target_os = "linux")]
pub mod rdma_nic;
#[cfg(feature = "replay")]
pub mod replay;
mod secret;
mod setters;
mod table;
pub mod time;
pub mod verbs;
pub mod wire;
