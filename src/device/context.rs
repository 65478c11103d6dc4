//! An open device, and the small objects on it.

use std::io;
use std::sync::Arc;

use super::cq::Cq;
use super::interface::{Channel, Device};
use super::memory::{Buf, Mr, RemoteSlice};
use super::qp::QpBuilder;
use crate::memory::Buffer;
use crate::verbs::{
    Access, AhAttr, AhHandle, CreateError, DeviceAttr, KeyError, MwHandle, MwType, PdHandle,
    PortAttr, PostError, RecvWr, SrqCreate, SrqHandle,
};
use crate::wire::{Gid, RKey};

/// An open device. Cloning gives another handle to the same one, which is closed with the last of
/// them and of the objects on it.
///
/// ```
/// use roce::device::Context;
/// use roce::link::cable;
/// use roce::nic::SoftNic;
/// use roce::wire::Gid;
///
/// let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// let (link, _other_end) = cable(gids[0], gids[1])?;
/// let context = Context::new(SoftNic::start(link)?);
/// assert_eq!(context.gids(), gids[..1]);
/// let pd = context.create_pd()?;
/// # drop(pd);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Context(Arc<dyn Device>);

impl<D: Device + 'static> From<Arc<D>> for Context {
    fn from(device: Arc<D>) -> Self {
        Self(device)
    }
}

impl From<Arc<dyn Device>> for Context {
    fn from(device: Arc<dyn Device>) -> Self {
        Self(device)
    }
}

impl Context {
    /// Takes over a device.
    pub fn new(device: impl Device + 'static) -> Self {
        Self(Arc::new(device))
    }

    /// Returns the device, for what objects do not do.
    #[inline]
    pub fn device(&self) -> &dyn Device {
        &*self.0
    }

    /// Returns the device as it is shared.
    pub(crate) fn shared(&self) -> &Arc<dyn Device> {
        &self.0
    }

    /// Returns the name of the device: `udp:192.0.2.1`, `verbs:mlx5_0`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns what the device can do.
    pub fn query_device(&self) -> io::Result<DeviceAttr> {
        self.0.query_device()
    }

    /// Returns the state of the port.
    pub fn query_port(&self) -> io::Result<PortAttr> {
        self.0.query_port()
    }

    /// Returns the addresses of the port for RoCEv2, by index; zero is an empty entry.
    pub fn gids(&self) -> Vec<Gid> {
        self.0.gids()
    }

    /// Creates a protection domain.
    pub fn create_pd(&self) -> Result<Pd, CreateError> {
        let handle = self.0.create_pd()?;
        Ok(Pd(Arc::new(PdInner { context: self.clone(), handle })))
    }

    /// Creates a completion queue that is polled.
    pub fn create_cq(&self, capacity: usize) -> Result<Cq, CreateError> {
        Ok(Cq::new(self, self.0.create_cq(capacity)?, None))
    }

    /// Creates a completion queue with a channel of its own: [`Cq::wait`] sleeps until a completion
    /// comes, and the channel's descriptor can be polled with others.
    pub fn create_cq_with_events(&self, capacity: usize) -> io::Result<Cq> {
        let channel = self.create_channel()?;
        let handle = self.0.create_cq_on(capacity, &channel).map_err(io::Error::other)?;
        Ok(Cq::new(self, handle, Some(channel)))
    }

    /// Creates the same, whose completions have the [time](super::Completion::time) at which the
    /// device reported them, by its own clock, if the device can tell it.
    pub fn create_timed_cq_with_events(&self, capacity: usize) -> io::Result<Cq> {
        let channel = self.create_channel()?;
        let handle = self.0.create_timed_cq_on(capacity, &channel).map_err(io::Error::other)?;
        Ok(Cq::new(self, handle, Some(channel)).timed())
    }

    /// Creates a channel for the events of several completion queues.
    pub fn create_channel(&self) -> io::Result<Channel> {
        self.0.create_channel()
    }

    /// Creates a completion queue whose events go to a channel that others may share. [`Cq::wait`]
    /// polls it: the program waits on the channel.
    pub fn create_cq_on(&self, capacity: usize, channel: &Channel) -> Result<Cq, CreateError> {
        Ok(Cq::new(self, self.0.create_cq_on(capacity, channel)?, None))
    }
}

/// A protection domain: queue pairs use only memory of their own one. Cloning gives another handle
/// to the same one.
#[derive(Clone, Debug)]
pub struct Pd(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    context: Context,
    handle: PdHandle,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // A device that refuses to destroy an object keeps it until the device is closed; the other
        // drops of this room leave it so, too.
        let _ = self.context.device().destroy_pd(self.handle);
    }
}

impl Pd {
    /// Returns its handle, for [`Device`].
    pub fn handle(&self) -> PdHandle {
        self.0.handle
    }

    /// Returns its device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    #[inline]
    pub(super) fn device(&self) -> &dyn Device {
        self.0.context.device()
    }

    /// Whether both are handles to one protection domain.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Registers a buffer. The program keeps its own handle to it.
    pub fn register(&self, buffer: &Buffer, access: Access) -> Result<Mr, KeyError> {
        Mr::new(self, buffer, access)
    }

    /// Allocates and registers `len` zero bytes.
    pub fn allocate(&self, len: usize, access: Access) -> Result<Mr, KeyError> {
        let buffer = Buffer::try_new(len).map_err(|_| KeyError::NoMemory)?;
        Mr::new(self, &buffer, access)
    }

    /// Allocates a buffer of `len` zero bytes for work requests. Peers cannot reach it by a key.
    pub fn create_buf(&self, len: usize) -> Result<Buf, KeyError> {
        Ok(Buf::new(self.allocate(len, Access::LOCAL_WRITE)?))
    }

    /// Allocates `count` buffers of `len` bytes in one region.
    pub fn create_bufs(&self, count: usize, len: usize) -> Result<Vec<Buf>, KeyError> {
        let mut rest = self.create_buf(count.checked_mul(len).ok_or(KeyError::TooLong)?)?;
        let mut bufs = Vec::new();
        bufs.try_reserve_exact(count).map_err(|_| KeyError::NoMemory)?;
        for _ in 0..count {
            let (buf, behind) = rest.split_at(len);
            bufs.push(buf);
            rest = behind;
        }
        Ok(bufs)
    }

    /// Begins a queue pair that completes to `cq`.
    pub fn qp<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a> {
        QpBuilder::new(self, cq)
    }

    /// Creates an address handle.
    pub fn create_ah(&self, attr: AhAttr) -> Result<Ah, CreateError> {
        let handle = self.device().create_ah(self.handle(), attr)?;
        Ok(Ah(Arc::new(AhInner { pd: self.clone(), handle })))
    }

    /// Creates a shared receive queue of at most `max_wr` receives with at most `max_sge` entries
    /// each.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, CreateError> {
        let create = SrqCreate { max_wr, max_sge, limit: 0, xrc: None };
        let handle = self.device().create_srq(self.handle(), create)?;
        Ok(Srq(Arc::new(SrqInner { pd: self.clone(), handle })))
    }

    /// Creates a memory window.
    pub fn create_mw(&self, kind: MwType) -> Result<Mw, KeyError> {
        let handle = self.device().create_mw(self.handle(), kind)?;
        Ok(Mw { pd: self.clone(), handle })
    }
}

/// An address handle: the path to a peer of datagram queue pairs. Cloning gives another handle to
/// the same one.
#[derive(Clone, Debug)]
pub struct Ah(Arc<AhInner>);

#[derive(Debug)]
struct AhInner {
    pd: Pd,
    handle: AhHandle,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        let _ = self.pd.device().destroy_ah(self.handle);
    }
}

impl Ah {
    /// Returns its handle, for [`Device`].
    pub fn handle(&self) -> AhHandle {
        self.0.handle
    }
}

/// A shared receive queue. Cloning gives another handle to the same one.
///
/// Its receives are posted with [`RecvWr`]s, whose memory the program keeps registered until they
/// complete.
#[derive(Clone, Debug)]
pub struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    pd: Pd,
    handle: SrqHandle,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let _ = self.pd.device().destroy_srq(self.handle);
    }
}

impl Srq {
    /// Returns its handle, for [`Device`].
    pub fn handle(&self) -> SrqHandle {
        self.0.handle
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.0.pd.device().post_srq_recv(self.handle(), wr)
    }

    /// Sets the number of receives below which an event is raised once.
    pub fn set_limit(&self, limit: u32) -> Result<(), CreateError> {
        self.0.pd.device().modify_srq(self.handle(), None, Some(limit))
    }
}

/// A memory window: a part of a region that is opened to peers, and closed, without a system call.
#[derive(Debug)]
pub struct Mw {
    pd: Pd,
    handle: MwHandle,
}

impl Drop for Mw {
    fn drop(&mut self) {
        let _ = self.pd.device().destroy_mw(self.handle);
    }
}

impl Mw {
    /// Returns its handle, for [`Device`].
    pub fn handle(&self) -> MwHandle {
        self.handle
    }

    /// Returns its present key.
    pub fn rkey(&self) -> Option<RKey> {
        self.pd.device().mw_key(self.handle)
    }

    /// Returns what a peer must be told to reach `slice` through the window, once it is bound to
    /// it.
    pub fn remote(&self, slice: RemoteSlice) -> Option<RemoteSlice> {
        Some(RemoteSlice { rkey: self.rkey()?, ..slice })
    }
}
