//! Status of running NICs: counters, and rates of queue pairs, for other processes of the user.
//!
//! A NIC whose status is [published](super::SoftNic::publish_status) has an abstract Unix socket,
//! which is gone with its process. A process of the same user, or of root, that connects there gets
//! one message and is disconnected; nothing is read from it. [`published`] finds the sockets of a
//! network namespace and asks each.
//!
//! | file | holds |
//! |---|---|
//! | `text.rs` | a status as text |
//! | `socket.rs` | the socket of a NIC |
//! | `ask.rs` | questions to the sockets of all NICs |
//! | `fuzzing.rs` | entry point of the fuzz target `status_text` |
//!
//! ```no_run
//! for nic in roce::nic::status::published()?.nics {
//!     for qp in &nic.controlled {
//!         println!("{} of process {}: {:?}", nic.device, nic.pid, qp);
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod ask;
#[doc(hidden)]
pub mod fuzzing;
mod socket;
mod text;

use std::io;

pub(super) use socket::StatusSocket;

use super::shared::Shared;
use crate::engine::congestion::State;
use crate::wire::{Gid, Qpn};

/// Maximum number of queue pairs whose rates a status has.
pub const RATES_MAX: usize = 1024;

/// Status of a running NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NicStatus {
    /// Name under which its program published it.
    pub device: String,
    /// Process that it belongs to; 0 if it is in another PID namespace.
    pub pid: u32,
    /// GIDs of its port, without empty rows.
    pub gids: Vec<Gid>,
    /// Counters of engine and link that are not 0, by name.
    pub counters: Vec<(String, u64)>,
    /// Number of queue pairs.
    pub qps: u64,
    /// Queue pairs that congestion control slows down, at most [`RATES_MAX`].
    pub controlled: Vec<QpRate>,
}

/// Rate of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpRate {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Rate, target, α and cuts.
    pub state: State,
}

/// Running NICs whose status is published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// NICs that answered.
    pub nics: Vec<NicStatus>,
    /// Number of NICs whose process did not answer in time: it is stopped, or busy.
    pub silent: usize,
    /// Number of status sockets that were not asked, because there are too many: 512 of this user
    /// are asked, and as root 64 of each other user.
    pub unasked: usize,
}

/// Asks every NIC of this user in this network namespace for its status, if it is published; as
/// root, those of every user. They are asked at once, and have 0.3 s.
pub fn published() -> io::Result<Published> {
    ask::ask_all()
}

impl Shared {
    /// Answers the processes that have connected to the status socket.
    #[cold]
    pub(super) fn serve_status(&self) {
        if let Some(socket) = self.status_socket() {
            socket.answer(|| text::write(&self.status(socket.device())));
        }
    }

    fn status(&self, device: &str) -> NicStatus {
        let (gids, qps, controlled, counters) = {
            let core = self.core();
            let engine = &core.engine;
            let rates = engine.controlled_rates().take(RATES_MAX);
            let controlled = rates.map(|(qpn, state)| QpRate { qpn, state }).collect();
            let gids = engine.config().gids.clone();
            (gids, engine.qp_numbers().count() as u64, controlled, engine.counters().clone())
        };
        let counters = counters.iter().map(|(counter, count)| (counter.name(), count));
        let counters = counters.chain(self.link_counters()).filter(|(_, count)| *count > 0);
        NicStatus {
            device: device.to_owned(),
            pid: 0,
            gids: gids.into_iter().filter(|gid| *gid != Gid::default()).collect(),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).collect(),
            qps,
            controlled,
        }
    }
}
