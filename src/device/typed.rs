//! Queue pairs whose transport and state the compiler knows.

use core::fmt;
use core::marker::PhantomData;

use super::context::Ah;
use super::memory::{Memory, RemoteSlice};
use super::qp::AnyQp;
use super::work::{Payload, Refused, Work};
use crate::verbs::{Connect, ConnectError, Endpoint, ModifyError, QpType, SendOp};
use crate::wire::{QKey, Qpn};

mod sealed {
    #[expect(unnameable_types, reason = "that seals the trait")]
    pub trait Sealed {}
}

/// A transport of queue pairs: [`Rc`], [`Uc`] or [`Ud`].
pub trait Transport: sealed::Sealed + 'static {
    /// Type in verbs.
    const TYPE: QpType;
}

/// A transport whose queue pairs have one peer: [`Rc`] or [`Uc`].
pub trait Connected: Transport {}

macro_rules! transports {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl Transport for $name {
            const TYPE: QpType = QpType::$name;
        }
    )*};
}

transports! {
    /// Reliable connection: every operation, in order, acknowledged, retransmitted.
    Rc;
    /// Unreliable connection: SEND and WRITE, of which messages may be lost.
    Uc;
    /// Unreliable datagram: messages of at most one MTU to any peer.
    Ud;
}

impl Connected for Rc {}
impl Connected for Uc {}

/// State of a [`Qp`] that is not connected yet: receives can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {}

/// State of a [`Qp`] that was connected or opened: everything can be posted. The queue pair may
/// have failed since, and flushes then what is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {}

/// A queue pair of the transport `T`.
///
/// What its transport or its state does not allow does not compile: a READ on [`Uc`], a SEND before
/// [`connect`](Self::connect). Ids are the program's own, and come back in the completions.
///
/// ```
/// # use roce::{device::{Context, Rc}, link::cable, nic::SoftNic, verbs::{Access, Connect}, wire::Gid};
/// # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// # let (a, b) = cable(gids[0], gids[1])?;
/// # let (a, b) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
/// # let (a_pd, a_cq, b_pd, b_cq) = (a.create_pd()?, a.create_cq(16)?, b.create_pd()?, b.create_cq(16)?);
/// # let (a_qp, b_qp) = (a_pd.qp(&a_cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);
/// # let (a_end, b_end) = (a_qp.endpoint()?, b_qp.endpoint()?);
/// let qp = a_qp.connect(&b_end, &Connect::default())?;
/// # let _b_qp = b_qp.connect(&a_end, &Connect::default())?;
/// // The peer has published memory, and told where it is.
/// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
/// let published = b_pd.allocate(4096, access)?;
/// let remote = published.remote();
///
/// qp.write(1, b"written", remote)?;
/// qp.read(2, remote, a_pd.create_buf(7)?)?;
/// qp.fetch_add(3, remote.part(8, 8).unwrap(), 5, a_pd.create_buf(8)?)?;
/// let done = [a_cq.wait(None)?, a_cq.wait(None)?, a_cq.wait(None)?];
/// assert_eq!(done[1].payload(), b"written");
/// assert_eq!(published.to_vec()[8..16], 5_u64.to_ne_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail
/// # use roce::device::{Init, Qp, Rc};
/// fn too_early(qp: &Qp<Rc, Init>) {
///     let _ = qp.send(1, b"not connected");
/// }
/// ```
///
/// ```compile_fail
/// # use roce::device::{Memory, Qp, RemoteSlice, Uc};
/// fn not_of_this_transport(qp: &Qp<Uc>, from: RemoteSlice) {
///     let _ = qp.read(1, from, Memory::None);
/// }
/// ```
pub struct Qp<T, S = Ready> {
    qp: AnyQp,
    kind: PhantomData<fn() -> (T, S)>,
}

impl<T, S> fmt::Debug for Qp<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp.fmt(f)
    }
}

impl<T: Transport, S> Qp<T, S> {
    pub(super) fn new(qp: AnyQp) -> Self {
        Self { qp, kind: PhantomData }
    }

    /// Returns the queue pair without its types.
    pub fn as_any(&self) -> &AnyQp {
        &self.qp
    }

    /// Returns its number on the wire.
    pub fn number(&self) -> Qpn {
        self.qp.number()
    }

    /// Returns what a peer must be told of it.
    pub fn endpoint(&self) -> Result<Endpoint, ConnectError> {
        self.qp.endpoint()
    }

    /// Posts a receive. Of a datagram queue pair, the first 40 bytes are for the network header.
    #[inline]
    pub fn recv(&self, id: u64, memory: impl Into<Memory>) -> Result<(), Refused> {
        self.qp.recv(id, memory)
    }
}

impl<T: Connected> Qp<T, Init> {
    /// Connects it to a peer, which connects its own to this one's [`endpoint`](Self::endpoint). If
    /// that fails the queue pair is destroyed.
    pub fn connect(self, peer: &Endpoint, how: &Connect) -> Result<Qp<T>, ConnectError> {
        self.qp.connect(peer, how)?;
        Ok(Qp::new(self.qp))
    }
}

impl Qp<Ud, Init> {
    /// Opens it for datagrams with the Q_Key of `how`.
    pub fn open(self, how: &Connect) -> Result<Qp<Ud>, ConnectError> {
        self.qp.open_datagram(how)?;
        Ok(Qp::new(self.qp))
    }
}

impl<T: Transport> Qp<T> {
    /// Posts sends with one doorbell. What the transport does not allow is refused.
    pub fn post<'w>(&self, work: impl IntoIterator<Item = Work<'w>>) -> Result<(), Refused> {
        self.qp.post(work)
    }

    /// Has all work in flight complete, and ends the connection on this side.
    pub fn flush(&self) -> Result<(), ModifyError> {
        self.qp.flush()
    }
}

impl<T: Connected> Qp<T> {
    /// Sends a message to a receive of the peer.
    #[inline]
    pub fn send<'w>(&self, id: u64, payload: impl Into<Payload<'w>>) -> Result<(), Refused> {
        self.qp.post_one(Work::send(id, payload))
    }

    /// Writes to the beginning of `to`.
    #[inline]
    pub fn write<'w>(
        &self,
        id: u64,
        payload: impl Into<Payload<'w>>,
        to: RemoteSlice,
    ) -> Result<(), Refused> {
        self.qp.post_one(Work::write(id, payload, to))
    }
}

impl Qp<Rc> {
    /// Reads from the beginning of `from` as many bytes as `into` has.
    #[inline]
    pub fn read(&self, id: u64, from: RemoteSlice, into: impl Into<Memory>) -> Result<(), Refused> {
        self.qp.post_one(Work::read(id, from, into))
    }

    /// Replaces the eight bytes at `at` by `swap` if they are `compare`. What they were goes to
    /// `into`, eight bytes in the byte order of the peer's host.
    pub fn compare_swap(
        &self,
        id: u64,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
        into: impl Into<Memory>,
    ) -> Result<(), Refused> {
        let op = SendOp::CompareSwap { remote_addr: at.addr, rkey: at.rkey, compare, swap };
        self.qp.post_one(Work::new(id, op, into.into()))
    }

    /// Adds to the eight bytes at `at`. What they were goes to `into`, as for
    /// [`compare_swap`](Self::compare_swap).
    pub fn fetch_add(
        &self,
        id: u64,
        at: RemoteSlice,
        add: u64,
        into: impl Into<Memory>,
    ) -> Result<(), Refused> {
        let op = SendOp::FetchAdd { remote_addr: at.addr, rkey: at.rkey, add };
        self.qp.post_one(Work::new(id, op, into.into()))
    }
}

impl Qp<Ud> {
    /// Sends a datagram to a queue pair of the peer that `ah` leads to.
    #[inline]
    pub fn send_to<'w>(
        &self,
        id: u64,
        payload: impl Into<Payload<'w>>,
        ah: &Ah,
        qpn: Qpn,
        qkey: QKey,
    ) -> Result<(), Refused> {
        self.qp.post_one(Work::send(id, payload).to(ah, qpn, qkey))
    }
}
