//! Queue pairs whose transport and state are known at run time.

use super::context::{Pd, Srq};
use super::cq::Cq;
use super::interface::Device;
use super::memory::Memory;
use super::pending::{Entry, Order, Queue};
use super::typed::{Init, Qp, Transport};
use super::work::{Destination, Refused, Work};
use crate::verbs::{
    AttrMask, Connect, ConnectError, CreateError, Data, Endpoint, ModifyError, PostError, QpAttr,
    QpCap, QpCreate, QpHandle, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, Target,
    UdTarget, WcOpcode, WrId,
};
use crate::wire::Qpn;

/// Creates a queue pair: [`Pd::qp`] begins, [`build`](Self::build) ends.
///
/// ```
/// # use roce::{device::{Context, Rc}, link::cable, nic::SoftNic, wire::Gid};
/// # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// # let (link, _other_end) = cable(gids[0], gids[1])?;
/// # let context = Context::new(SoftNic::start(link)?);
/// let (pd, cq, receives) = (context.create_pd()?, context.create_cq(64)?, context.create_cq(64)?);
/// let qp = pd.qp(&cq).recv_cq(&receives).depth(64, 32).max_inline_data(32).build::<Rc>()?;
/// # drop(qp);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder creates nothing until it is built"]
pub struct QpBuilder<'a> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    srq: Option<&'a Srq>,
    cap: QpCap,
    signal_all: bool,
}

impl<'a> QpBuilder<'a> {
    pub(super) fn new(pd: &'a Pd, cq: &'a Cq) -> Self {
        let (srq, cap, signal_all) = (None, QpCap::ORDINARY, false);
        Self { pd, send_cq: cq, recv_cq: cq, srq, cap, signal_all }
    }

    /// Has receives complete to another completion queue.
    pub fn recv_cq(self, cq: &'a Cq) -> Self {
        Self { recv_cq: cq, ..self }
    }

    /// Takes receives from a shared receive queue.
    pub fn srq(self, srq: &'a Srq) -> Self {
        Self { srq: Some(srq), ..self }
    }

    /// Sets the number of sends and of receives that can be posted at a time.
    pub fn depth(mut self, sends: u32, receives: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, receives);
        self
    }

    /// Sets the maximum number of scatter/gather entries of sends and of receives.
    pub fn max_sge(mut self, sends: u32, receives: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (sends, receives);
        self
    }

    /// Sets the maximum number of bytes that a send carries [inline](super::Payload::Inline).
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Has every send reported, signaled or not.
    pub fn signal_all(self) -> Self {
        Self { signal_all: true, ..self }
    }

    /// Creates a queue pair of a transport that the compiler knows, and takes it to INIT: receives
    /// can be posted.
    pub fn build<T: Transport>(self) -> Result<Qp<T, Init>, ConnectError> {
        let qp = self.build_any(T::TYPE).map_err(ConnectError::Create)?;
        qp.bring_up(QpState::Init)?;
        Ok(Qp::new(qp))
    }

    /// Creates a queue pair of any transport, in RESET.
    pub fn build_any(self, qp_type: QpType) -> Result<AnyQp, CreateError> {
        let init = QpInitAttr { qp_type, cap: self.cap, sq_sig_all: self.signal_all };
        let create = QpCreate {
            init,
            send_cq: self.send_cq.handle(),
            recv_cq: self.recv_cq.handle(),
            srq: self.srq.map(Srq::handle),
            xrcd: None,
        };
        let device = self.pd.device();
        let handle = device.create_qp(self.pd.handle(), create)?;
        // From here on it is destroyed by its drop.
        let mut qp = AnyQp {
            sends: None,
            receives: None,
            pd: self.pd.clone(),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            srq: self.srq.cloned(),
            handle,
            qp_type,
            number: device.qp_number(handle).unwrap_or_default(),
        };
        qp.sends = Some(self.send_cq.queues().add(Order::All).ok_or(CreateError::Full)?);
        qp.receives = Some(self.recv_cq.queues().add(Order::One).ok_or(CreateError::Full)?);
        Ok(qp)
    }
}

/// A queue pair of any transport, in any state: the device checks at run time what [`Qp`] has the
/// compiler check.
///
/// Dropping it destroys the queue pair. The memory of its work in flight is freed then;
/// [`flush`](Self::flush) and a poll get it back.
#[derive(Debug)]
pub struct AnyQp {
    /// Both are there once it is built.
    sends: Option<Queue>,
    receives: Option<Queue>,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    handle: QpHandle,
    qp_type: QpType,
    number: Qpn,
}

impl Drop for AnyQp {
    fn drop(&mut self) {
        // Afterwards the NIC does not touch the memory of its work.
        let _ = self.device().destroy_qp(self.handle);
        for (cq, queue) in [(&self.send_cq, &self.sends), (&self.recv_cq, &self.receives)] {
            queue.iter().for_each(|queue| cq.queues().remove(queue));
        }
    }
}

impl AnyQp {
    #[inline]
    fn device(&self) -> &dyn Device {
        self.pd.device()
    }

    /// Returns its handle, for [`Device`].
    pub fn handle(&self) -> QpHandle {
        self.handle
    }

    /// Returns its number on the wire.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Returns its transport.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the completion queue of its sends.
    pub fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// Returns the shared receive queue that it takes receives from.
    pub fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Returns its state.
    pub fn state(&self) -> Option<QpState> {
        self.device().qp_state(self.handle)
    }

    /// Returns what a peer must be told of it.
    pub fn endpoint(&self) -> Result<Endpoint, ConnectError> {
        self.device().endpoint(self.handle)
    }

    /// Changes the attributes that `mask` names.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        self.device().modify_qp(self.handle, attr, mask)
    }

    fn bring_up(&self, to: QpState) -> Result<(), ConnectError> {
        self.device().bring_up(self.handle, to, &Connect::default().attributes(None))
    }

    /// Takes it from RESET or INIT to RTS, connected to a peer.
    pub fn connect(&self, peer: &Endpoint, how: &Connect) -> Result<(), ConnectError> {
        self.device().connect(self.handle, peer, how)
    }

    /// Takes a datagram queue pair from RESET or INIT to RTS.
    pub fn open_datagram(&self, how: &Connect) -> Result<(), ConnectError> {
        self.device().open_datagram(self.handle, how)
    }

    /// Takes it to ERR: all work in flight completes, with
    /// [`WcStatus::WrFlushErr`](crate::verbs::WcStatus::WrFlushErr) if it was not done before.
    pub fn flush(&self) -> Result<(), ModifyError> {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        self.modify(&attr, AttrMask::STATE)
    }

    /// Posts a bare work request, whose memory the program keeps registered until it completes.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.device().post_send(self.handle, wr)
    }

    /// Posts several bare work requests at once; an error says how many were posted before.
    #[inline]
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        self.device().post_sends(self.handle, wrs)
    }

    /// Posts a bare receive, whose memory the program keeps registered until it completes.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.device().post_recv(self.handle, wr)
    }

    fn queue(queue: &Option<Queue>) -> &Queue {
        queue.as_ref().expect("a queue pair is built with its queues")
    }

    /// Posts sends with one doorbell. Their memory comes back in their
    /// [`Completion`](super::Completion)s, or at once in the error.
    pub fn post<'w>(&self, work: impl IntoIterator<Item = Work<'w>>) -> Result<(), Refused> {
        let mut work = work.into_iter();
        let Some(first) = work.next() else { return Ok(()) };
        match work.next() {
            None => self.post_one(first),
            Some(second) => self.post_list([first, second].into_iter().chain(work).collect()),
        }
    }

    pub(super) fn post_one(&self, work: Work<'_>) -> Result<(), Refused> {
        let Work { id, op, payload, flags, target } = work;
        let (memory, inline) = payload.into_parts();
        let queue = Self::queue(&self.sends);
        let pending = &mut *queue.lock();
        pending.sges.clear();
        if !memory.gather(&self.pd, &mut pending.sges) {
            return Err(Refused { error: PostError::ForeignMemory, memory, posted: 0 });
        }
        let to = ud_target(target.as_ref());
        let sequence = pending.push(entry(id, &op, memory, target));
        let data = inline.map_or(Data::Gather(&pending.sges), Data::Inline);
        let wr = SendWr { id: queue.wr_id(sequence), data, flags, target: to, op };
        let posted = self.post_send(&wr);
        posted.map_err(|error| Refused { error, memory: pending.pop(), posted: 0 })
    }

    fn post_list(&self, work: Vec<Work<'_>>) -> Result<(), Refused> {
        let queue = Self::queue(&self.sends);
        let pending = &mut *queue.lock();
        let mut sges = core::mem::take(&mut pending.sges);
        sges.clear();
        // The work requests borrow the list of scatter/gather entries, so that it has to be
        // complete before.
        let (mut parts, mut count, mut own) = (Vec::with_capacity(work.len()), 0, true);
        for Work { id, op, payload, flags, target } in work {
            let (memory, inline) = payload.into_parts();
            own &= memory.gather(&self.pd, &mut sges);
            let to = ud_target(target.as_ref());
            let id = queue.wr_id(pending.push(entry(id, &op, memory, target)));
            let range = count..sges.len();
            count = range.end;
            parts.push((id, op, range, inline, flags, to));
        }
        let wrs: Vec<SendWr<'_>> = parts
            .into_iter()
            .map(|(id, op, range, inline, flags, target)| {
                let gather = Data::Gather(sges.get(range).unwrap_or_default());
                SendWr { id, data: inline.map_or(gather, Data::Inline), flags, target, op }
            })
            .collect();
        let posted = if own { self.post_sends(&wrs) } else { Err((0, PostError::ForeignMemory)) };
        let total = wrs.len();
        pending.sges = sges;
        posted.map_err(|(posted, error)| {
            let mut memory: Vec<Memory> = (posted..total).map(|_| pending.pop()).collect();
            memory.reverse();
            Refused { error, memory: Memory::List(memory), posted }
        })
    }

    /// Posts a receive. Its memory comes back in its [`Completion`](super::Completion), or at once
    /// in the error.
    pub fn recv(&self, id: u64, memory: impl Into<Memory>) -> Result<(), Refused> {
        let memory = memory.into();
        let queue = Self::queue(&self.receives);
        let pending = &mut *queue.lock();
        pending.sges.clear();
        if !memory.gather(&self.pd, &mut pending.sges) {
            return Err(Refused { error: PostError::ForeignMemory, memory, posted: 0 });
        }
        let entry = Entry { id: WrId(id), opcode: WcOpcode::Recv, memory, ah: None };
        let id = queue.wr_id(pending.push(entry));
        let posted = self.post_recv(&RecvWr { id, sges: &pending.sges });
        posted.map_err(|error| Refused { error, memory: pending.pop(), posted: 0 })
    }
}

fn entry(id: WrId, op: &SendOp, memory: Memory, target: Option<Destination>) -> Entry {
    let ah = target.map(|target| target.ah);
    Entry { id, opcode: op.opcode().info().completes_as, memory, ah }
}

fn ud_target(target: Option<&Destination>) -> Target {
    target.map_or(Target::Peer, |Destination { ah, qpn, qkey }| {
        Target::Ud(UdTarget { ah: ah.handle(), qpn: *qpn, qkey: *qkey })
    })
}
