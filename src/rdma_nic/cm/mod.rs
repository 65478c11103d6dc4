//! Connections of a real RNIC: the kernel's connection manager, through the system's `librdmacm`.
//!
//! `librdmacm` opens devices for itself. An id of it belongs to an open device that is not the one
//! of [`RdmaNic`], and nothing of that is used here but its name: queue pairs stay those of the
//! `RdmaNic`, are named by their number in `rdma_connect` and `rdma_accept`, and are moved to RTR
//! and RTS by the attributes that `rdma_init_qp_attr` gives, as programs do that do not call
//! `rdma_create_qp`. Both are the same device to the kernel, so that numbers of queue pairs and
//! indices of GIDs mean the same.
//!
//! | file | holds |
//! |---|---|
//! | `library` | the functions of the library, by name |
//! | `channel` | an event channel |
//! | `id` | an id with an event channel of its own, and its events |
//! | `address` | addresses as C has them |

mod address;
mod channel;
mod id;
mod library;

use std::io;
use std::sync::Arc;

pub(crate) use self::id::{CallError, SystemId};
use self::library::CmLibrary;
use super::RdmaNic;

impl RdmaNic {
    /// Whether the system's connection manager can be used; the error says what is missing.
    pub(crate) fn check_cm(&self) -> io::Result<()> {
        let library = CmLibrary::of_system()?;
        channel::EventChannel::create(library)
            .map(drop)
            .map_err(|error| io::Error::new(error.io_kind(), format!("{error}{}", error.hint())))
    }

    /// Creates an id for a listener or a reliable connection of this device.
    pub(crate) fn create_cm_id(&self) -> Result<SystemId, CallError> {
        // A library that could be loaded once is loaded.
        let library = CmLibrary::of_system().map_err(|_| CallError::missing())?;
        SystemId::create(library, Arc::clone(&self.context))
    }
}
