//! Raw packet queue pairs, flow steering and RSS: whole Ethernet frames of any protocol, which are
//! not RoCE. For `tools/ibverbs`.
//!
//! The engine sends and receives the frames of a raw packet queue pair, as opaque bytes. What only
//! frames need is here:
//!
//! | file | holds |
//! |---|---|
//! | `flow` | flow rules, and the headers that they match |
//! | `rss` | the Toeplitz hash and indirection tables |
//! | `wq` | WQs: receive queues without a send queue, for RSS |
//! | `steering` | which queue pairs receive a frame, without IO |
//! | `listener` | the thread that receives frames while there are flow rules |
//!
//! Every frame that a raw packet queue pair sends goes onto the wire. A queue pair of the same port
//! whose flow rule matches the frame gets a copy, as through the switch of an RNIC; the default
//! rule does not match it. A frame from the wire goes to the queue pair that a rule names, and is
//! dropped without one.
#![forbid(unsafe_code)]

mod flow;
mod listener;
mod rss;
mod steering;
mod wq;

pub use flow::{FlowKind, FlowLayer, FlowMatch, FlowRule};
pub(crate) use listener::{FrameSink, Listener};
pub use rss::{Rss, RxHash, RxHashFields};
pub use steering::{FlowHandle, Steering};
pub use wq::{WqHandle, WqState};
