//! RNICs, soft and real: the interface that they share, and objects that own what they create on
//! one.
//!
//! [`Device`] is the interface: every operation of verbs, with objects named by handles.
//! [`Context`] and what it creates own their objects: each is destroyed when it is dropped, after
//! everything that was built on it, and each keeps what it was built on. A program that uses them
//! is the same on a [`SoftNic`](crate::nic::SoftNic), on a card through
//! [`RdmaNic`](crate::rdma_nic::RdmaNic), and on two NICs joined by a [`cable`](crate::link::cable)
//! in a unit test.
//!
//! | type | is | created by |
//! |---|---|---|
//! | [`Context`] | an open device | [`Context::new`] |
//! | [`Pd`] | a protection domain | [`Context::create_pd`] |
//! | [`Cq`] | a completion queue | [`Context::create_cq`], [`Context::create_cq_with_events`] |
//! | [`Mr`], [`MrSlice`] | memory that the program shares with the NIC and, by its rights, with peers; a part of it | [`Pd::allocate`], [`Pd::register`], [`Mr::slice`] |
//! | [`Buf`] | memory that belongs either to the program or to the NIC | [`Pd::create_buf`], [`Pd::create_bufs`] |
//! | [`Loan`] | the same, of a [pool](crate::pool) that gets it back | [`Pool::alloc`](crate::pool::Pool::alloc) |
//! | [`Qp<Rc>`](Qp), [`Qp<Uc>`](Qp), [`Qp<Ud>`](Qp) | a queue pair whose transport and state the compiler knows | [`Pd::qp`] |
//! | [`AnyQp`] | a queue pair whose transport and state are known at run time | [`QpBuilder::build_any`] |
//! | [`Srq`], [`Ah`], [`Mw`] | a shared receive queue, an address handle, a memory window | [`Pd`] |
//!
//! # Memory
//!
//! No call is `unsafe`, and no reference to memory that the NIC may write is ever formed. A [`Buf`]
//! is moved into a work request and comes back in its [`Completion`]: meanwhile the program cannot
//! reach it. A [`MrSlice`] is lent: the program may read and write the [`Mr`] at any time, by
//! copying, and what it reads while the NIC or a peer writes may be torn. Either keeps its region
//! registered until the work request completes or its queue pair is destroyed.
//!
//! # Examples
//!
//! Two NICs on a cable; with sockets it would be [`link::udp`](crate::link::udp) on either machine.
//!
//! ```
//! use roce::device::{Context, Rc};
//! use roce::link::cable;
//! use roce::nic::SoftNic;
//! use roce::verbs::Connect;
//! use roce::wire::Gid;
//!
//! let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
//! let (a, b) = cable(gids[0], gids[1])?;
//! let (a, b) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
//!
//! // On each NIC a protection domain, a completion queue and a queue pair.
//! let (a_pd, a_cq) = (a.create_pd()?, a.create_cq(16)?);
//! let (b_pd, b_cq) = (b.create_pd()?, b.create_cq(16)?);
//! let (a_qp, b_qp) = (a_pd.qp(&a_cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);
//!
//! // A receive may be posted before the queue pair is connected.
//! b_qp.recv(7, b_pd.create_buf(4096)?)?;
//!
//! // Each learns the other's endpoint, out of band.
//! let (a_end, b_end) = (a_qp.endpoint()?, b_qp.endpoint()?);
//! let a_qp = a_qp.connect(&b_end, &Connect::default())?;
//! let _b_qp = b_qp.connect(&a_end, &Connect::default())?;
//!
//! let mut message = a_pd.create_buf(5)?;
//! message.write(0, b"hello")?;
//! a_qp.send(1, message)?;
//!
//! let received = b_cq.wait(None)?;
//! assert_eq!((received.wc.id.0, received.payload()), (7, b"hello".to_vec()));
//! // The buffer that was sent is the program's again.
//! let message = a_cq.wait(None)?.into_buf().unwrap();
//! assert_eq!(message.to_vec(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod context;
mod cq;
mod interface;
mod memory;
mod pending;
mod qp;
mod typed;
mod work;

pub use context::{Ah, Context, Mw, Pd, Srq};
pub use cq::{Completion, Cq};
pub(crate) use interface::sealed;
pub use interface::{Channel, Device, Events};
pub use memory::{Buf, Lender, Loan, Memory, Mr, MrSlice, RemoteSlice};
pub use qp::{AnyQp, QpBuilder};
pub use typed::{Connected, Init, Qp, Rc, Ready, Transport, Uc, Ud};
pub use work::{Destination, Payload, Refused, Work};
