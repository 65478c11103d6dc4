//! A real RNIC as a [`Device`](crate::device::Device): a card, or the kernel's own `rxe`, through
//! `libibverbs`.
//!
//! The library is loaded when the first device is asked for, so that a program that uses none needs
//! none. Control goes through its functions; work requests and completions go to the driver
//! directly, as in a program of C.
//!
//! | file | holds |
//! |---|---|
//! | `library`, `list` | the functions of the library, by name; the devices that it lists |
//! | `context` | an open device, its tables of functions, and what it says of itself |
//! | `object`, `objects` | objects of C with what they need, and the tables of them |
//! | `make`, `device` | how each is made, and all that a device does |
//! | `data` | work requests and completions |
//! | `events` | channels, and events beside the work |
//! | `cm` | connections by the system's connection manager, for [`connect`](crate::connect) |
//! | `sysfs`, `errors` | what the kernel tells in files, and how C says that something failed |

mod cm;
mod context;
mod data;
mod device;
mod errors;
mod events;
mod library;
mod list;
mod make;
mod object;
mod objects;
mod sysfs;
mod timed;

use std::io;
use std::sync::Arc;

pub(crate) use self::cm::{CallError, SystemId};
use self::context::Context;
use self::events::{Asynchronous, never_block};
use self::library::Library;
use self::list::List;
use self::objects::Objects;
use crate::ibverbs::{ibv_ah, ibv_cq, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq, ibv_xrcd};
use crate::secret::{SecretRandom, Seed};
use crate::verbs::{DeviceTag, Errno, Guid, NodeType, TransportType};

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Name, for [`RdmaNic::open`].
    pub name: String,
    /// Kind of the device, if it is a known one.
    pub node_type: Option<NodeType>,
    /// Transport protocol, if it is a known one.
    pub transport: Option<TransportType>,
    /// GUID.
    pub guid: Guid,
}

/// An RNIC of this machine, open. Of its ports the first is used.
///
/// # Examples
///
/// ```
/// use roce::device::Device;
/// use roce::rdma_nic::RdmaNic;
///
/// match RdmaNic::list() {
///     Err(error) => println!("no real RNICs: {error}"),
///     Ok(devices) => {
///         for device in devices {
///             let nic = RdmaNic::open(&device.name)?;
///             println!("{}: {}", nic.name(), nic.query_port()?.state);
///         }
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct RdmaNic {
    /// Name by which it was opened: `verbs:mlx5_0`.
    name: String,
    // What is built on others is destroyed before them. A window that is bound is built on its
    // queue pair.
    mws: Objects<ibv_mw>,
    qps: Objects<ibv_qp>,
    ahs: Objects<ibv_ah>,
    srqs: Objects<ibv_srq>,
    mrs: Objects<ibv_mr>,
    cqs: Objects<ibv_cq>,
    xrcds: Objects<ibv_xrcd>,
    pds: Objects<ibv_pd>,
    asynchronous: Asynchronous,
    context: Arc<Context>,
    /// Source of initial PSNs.
    psns: SecretRandom,
}

impl RdmaNic {
    /// The devices of this machine that verbs know. An error says what is missing: the library, or
    /// the kernel's half.
    pub fn list() -> io::Result<Vec<Info>> {
        let library = Library::of_system()?;
        Ok(List::new(library)?.devices().map(|device| device.info(library)).collect())
    }

    /// Opens a device by its name. If there is none of this name, the error names those that there
    /// are.
    pub fn open(name: &str) -> io::Result<Self> {
        let library = Library::of_system()?;
        let list = List::new(library)?;
        let Some(device) = list.devices().find(|device| device.name(library) == name) else {
            let names: Vec<String> = list.devices().map(|device| device.name(library)).collect();
            let have = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let error = format!("there is no verbs device {name}; this machine has {have}");
            return Err(io::Error::new(io::ErrorKind::NotFound, error));
        };
        let at = device.open(library);
        let random = SecretRandom::new(Seed::from_system()?);
        let tag = DeviceTag::from_random(random.of(u64::MAX));
        let context = Context::new(library, at, name.to_owned(), device.directory(), tag);
        let context = Arc::new(context.map_err(|errno| cannot_open(name, errno))?);
        never_block(context.async_fd())?;
        Ok(Self {
            name: format!("verbs:{name}"),
            qps: Objects::new(tag),
            mws: Objects::new(tag),
            ahs: Objects::new(tag),
            srqs: Objects::new(tag),
            mrs: Objects::new(tag),
            cqs: Objects::new(tag),
            xrcds: Objects::new(tag),
            pds: Objects::new(tag),
            asynchronous: Asynchronous(Arc::clone(&context)),
            context,
            psns: random,
        })
    }
}

fn cannot_open(name: &str, errno: Errno) -> io::Error {
    let reason = errors::to_io(errno);
    let hint = match reason.kind() {
        io::ErrorKind::PermissionDenied => {
            "; its file /dev/infiniband/uverbs* must be readable and writable"
        }
        _ => "",
    };
    io::Error::new(reason.kind(), format!("cannot open the verbs device {name}: {reason}{hint}"))
}
