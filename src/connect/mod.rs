//! Connections by the connection manager, on any device.
//!
//! A [`ConnectionManager`] is for programs in Rust: it listens, connects, accepts and rejects, with
//! calls that block. On a [`SoftNic`](crate::nic::SoftNic) it has a manager of its own; on an
//! [`RdmaNic`](crate::rdma_nic::RdmaNic) it uses that of the kernel through the system's
//! `librdmacm`. The program is the same. Peers are programs of any kind that speak the connection
//! manager's protocol on RoCEv2, such as those that use librdmacm on Linux.
//!
//! A [`CmService`] is the layer beneath on soft NICs, with the interface of the
//! [manager](crate::cm::Manager) itself: it owns the one of a process and drives it. It gives it
//! the MADs that come to queue pair 1 of its NICs and the time, and does what it wants: transmits
//! MADs, resolves addresses, reports readable channels.
//!
//! | file | holds |
//! |---|---|
//! | `service.rs` | the service: its lock, its thread, its end |
//! | `nics.rs` | the NICs of a service, and what they look like to the manager |
//! | `resolve.rs` | the source address and the NIC that reach a destination |
//! | `registry.rs` | which of several processes at one address answers what none of them knows |
//! | `manager.rs` | the connection manager of a program in Rust, on any device |
//! | `listener.rs`, `connection.rs` | listeners, requests, connections |
//! | `linger.rs` | how long the end of a connection waits for what was posted |
//! | `backend.rs`, `soft.rs`, `system.rs` | what a connection manager does for them; that of a soft NIC, and the system's |
//!
//! # Examples
//!
//! A server that echoes a message, and its client. Each has a NIC at a loopback address of its own.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use roce::connect::{ConnectionManager, Options};
//! use roce::device::Device;
//! use roce::link::udp;
//! use roce::memory::Buffer;
//! use roce::nic::SoftNic;
//! use roce::verbs::{Access, Data, QpType, RecvWr, SendOp, SendWr, Sge, WrId};
//!
//! let start = |address: [u8; 4]| -> Result<_, Box<dyn std::error::Error>> {
//!     let nic = SoftNic::start(udp::open(&udp::Options::new(address.into()))?)?;
//!     Ok(ConnectionManager::start(Arc::new(nic))?)
//! };
//! let server = start([127, 18, 0, 1])?;
//! let listener = server.listen("127.18.0.1:7174".parse()?)?;
//!
//! let client = std::thread::spawn(move || {
//!     let client = start([127, 18, 0, 2]).unwrap();
//!     let nic = client.nic();
//!     let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(16).unwrap());
//!     let qp = nic.create_simple_qp(pd, cq, QpType::Rc).unwrap();
//!     let options = Options::with_private_data(b"who are you?");
//!     let connection = client.connect(qp, "127.18.0.1:7174".parse().unwrap(), &options).unwrap();
//!     assert_eq!(&connection.private_data()[..8], b"a server");
//!     let send = SendWr::new(WrId(1), SendOp::Send { imm: None }, Data::Inline(b"hello"));
//!     nic.post_send(qp, &send).unwrap();
//!     assert!(nic.wait_cq(cq).unwrap().is_success());
//!     assert!(connection.disconnect(Duration::from_secs(10)).unwrap());
//! });
//!
//! let nic = server.nic();
//! let (pd, cq) = (nic.create_pd()?, nic.create_cq(16)?);
//! let qp = nic.create_simple_qp(pd, cq, QpType::Rc)?;
//! let buffer = Buffer::new(64);
//! let mr = nic.register(pd, &buffer, Access::LOCAL_WRITE)?;
//! let request = listener.accept()?;
//! assert_eq!(&request.private_data()[..12], b"who are you?");
//! // The receive is posted before the client can send.
//! server.prepare(qp)?;
//! let sges = [Sge { addr: buffer.addr(), length: 64, lkey: mr.lkey() }];
//! nic.post_recv(qp, &RecvWr { id: WrId(1), sges: &sges })?;
//! let connection = request.accept(qp, &Options::with_private_data(b"a server"))?;
//! assert_eq!(nic.wait_cq(cq)?.byte_len, 5);
//! assert!(connection.wait_disconnected(Duration::from_secs(10))?);
//! client.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod backend;
mod connection;
mod deadline;
mod error;
mod linger;
mod listener;
mod manager;
mod nics;
mod registry;
mod resolve;
mod service;
mod soft;
mod system;

pub use connection::Connection;
pub use error::Error;
pub use listener::{Accepting, Listener, Request};
pub use manager::{ConnectionManager, Options};
pub use service::{CmService, Config, ServiceClosed};
