//! One side of a run: its objects on a NIC.

use anyhow::{Context, bail, ensure};
use roce::device::{Ah, AnyQp, Context as Nic, Cq, Device, Mr, Pd};
use roce::memory::Region;
use roce::verbs::limits::GRH_BYTES;
use roce::verbs::{
    Access, AckTimeout, AhAttr, Connect, Data, Endpoint, Mtu, QpHandle, RecvWr, SendFlags, SendOp,
    SendWr, Sge, Target, UdTarget, Wc, WcStatus, WrId,
};
use roce::wire::Psn;

use super::control::layout::Layout;
use super::control::messages::Reach;
use super::control::plan::{ATOMIC_SIZE, Connection, Op, Plan};
use crate::output::remark;

/// Bit of a work request ID that marks a receive.
const RECEIVE: u64 = 1 << 63;

/// One side of a run.
pub(crate) struct Side {
    nic: Nic,
    plan: Plan,
    gid_index: u8,
    layout: Layout,
    /// Connections of queue pairs that the connection manager connected. They end before the queue
    /// pairs are destroyed.
    connections: Vec<roce::connect::Connection>,
    pd: Pd,
    cq: Cq,
    qps: Vec<AnyQp>,
    own: Vec<Endpoint>,
    mr: Mr,
    region: Region,
    peer: Option<Reach>,
    ways: Vec<Ah>,
    /// Contents of every message.
    pattern: Vec<u8>,
    /// Buffer in which messages are compared.
    scratch: Vec<u8>,
}

impl Side {
    /// Creates the objects that a plan needs.
    pub(crate) fn new(nic: &Nic, plan: &Plan, gid_index: u8) -> anyhow::Result<Self> {
        let gids = nic.gids();
        let gid = *gids.get(usize::from(gid_index)).with_context(|| {
            format!("-x: {} has {} GIDs, counted from 0", nic.name(), gids.len())
        })?;
        let (mtu, most) = (plan.mtu, nic.query_port()?.active_mtu);
        ensure!(mtu <= most, "-m: {} supports an MTU of at most {most}, not {mtu}", nic.name());
        let layout = Layout::new(plan)?;
        let pd = nic.create_pd()?;
        let depth = plan.tx_depth as usize + layout.receives_per_qp;
        let cq = nic.create_cq(plan.qps as usize * depth + 1)?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = pd.allocate(layout.end, access)?;
        let pattern = pattern(plan.size_max() as usize);
        mr.write(layout.source, &pattern)?;
        let mut side = Self {
            nic: nic.clone(),
            plan: plan.clone(),
            gid_index,
            layout,
            pd,
            cq,
            qps: Vec::new(),
            own: Vec::new(),
            region: mr.buffer().region(),
            mr,
            peer: None,
            ways: Vec::new(),
            connections: Vec::new(),
            scratch: vec![0; pattern.len()],
            pattern,
        };
        let receives = u32::try_from(layout.receives_per_qp)?.max(1);
        for _ in 0..plan.qps {
            let qp = side.pd.qp(&side.cq).depth(plan.tx_depth, receives);
            let qp = qp.max_sge(1, 1).max_inline_data(0).build_any(plan.connection.qp_type())?;
            side.own.push(Endpoint { gid, ..qp.endpoint()? });
            side.qps.push(qp);
        }
        Ok(side)
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn nic(&self) -> &dyn Device {
        self.nic.device()
    }

    /// Sets the MTU that both sides agreed upon.
    pub(crate) fn set_mtu(&mut self, mtu: Mtu) -> anyhow::Result<()> {
        self.plan.mtu = mtu;
        self.plan.check()
    }

    /// Returns the numbers, address and key that the peer needs.
    pub(crate) fn reach(&self) -> Reach {
        Reach {
            qps: self.own.clone(),
            addr: self.mr.addr(),
            rkey: self.mr.rkey(),
            link: self.nic.name().split(':').next().unwrap_or_default().to_owned(),
            selective_repeat: self.nic.device().offers_selective_repeat(),
            reorder_span: self.nic.device().reorder_span(),
        }
    }

    /// Connects every queue pair to the peer's queue pair of the same index.
    pub(crate) fn connect(&mut self, peer: &Reach) -> anyhow::Result<()> {
        for (q, (qp, other)) in self.qps.iter().zip(&peer.qps).enumerate() {
            let psn = self.own.get(q).map_or(Psn::new(0), |own| own.psn);
            let how = Connect::default()
                .gid_index(self.gid_index)
                .mtu(self.plan.mtu)
                .psn(psn)
                .timeout(ack_timeout(self.plan.qps))
                .selective_repeat(peer.selective_repeat);
            if self.plan.connection == Connection::Ud {
                qp.open_datagram(&how)?;
                self.ways.push(self.pd.create_ah(AhAttr::new(other.gid, self.gid_index))?);
            } else {
                qp.connect(other, &how)?;
            }
        }
        Ok(())
    }

    /// Has the connection manager connect every queue pair to the peer's queue pair of the same
    /// index, in their order, and takes over the MTU that it chose.
    pub(crate) fn connect_with(
        &mut self,
        peer: &Reach,
        mut connect: impl FnMut(u32, QpHandle) -> anyhow::Result<roce::connect::Connection>,
    ) -> anyhow::Result<()> {
        for (q, (qp, other)) in (0..).zip(self.qps.iter().zip(&peer.qps)) {
            self.connections.push(connect(q, qp.handle())?);
            let attr = self.nic.device().query_qp(qp.handle()).context("the queue pair is gone")?;
            ensure!(
                attr.dest_qp_num == other.qpn,
                "queue pair {q} is connected to QP {} instead of {}",
                attr.dest_qp_num,
                other.qpn
            );
            let gid = attr.ah_attr.dgid;
            ensure!(
                gid == other.gid,
                "queue pair {q} is connected to {gid} instead of {}",
                other.gid
            );
            self.plan.mtu = attr.path_mtu;
        }
        self.plan.check()
    }

    /// Keeps what the peer said of itself, agrees on spraying, and posts receives.
    pub(crate) fn begin(&mut self, peer: Reach) -> anyhow::Result<()> {
        let takes_sprayed = peer.reorder_span > 0;
        let device = self.nic.device();
        let wanted = |qp: &AnyQp| device.agree_spraying(qp.handle(), true);
        let narrowed = self
            .qps
            .iter()
            .filter(|qp| wanted(qp) && !device.agree_spraying(qp.handle(), takes_sprayed));
        if narrowed.count() > 0 {
            remark(
                "--paths is not used: the other side drops packets that come before others; start \
                 it with --receive buffer, or with --paths",
            );
        }
        self.peer = Some(peer);
        for q in 0..self.qps.len() {
            for receive in 0..self.layout.receives_per_qp {
                self.post_receive(q, receive)?;
            }
        }
        Ok(())
    }

    /// Returns the offset of the slot of a receive.
    fn slot(&self, q: usize, receive: usize) -> usize {
        let at = (q * self.layout.receives_per_qp + receive) % self.layout.slot_count.max(1);
        self.layout.slots + at * self.layout.stride
    }

    fn post_receive(&self, q: usize, receive: usize) -> anyhow::Result<()> {
        let Some(qp) = self.qps.get(q) else { bail!("a receive of no queue pair") };
        let sges = [self.mr.sge(self.slot(q, receive), self.layout.stride)];
        let id = WrId(RECEIVE | (q as u64) << 32 | receive as u64);
        qp.post_recv(&RecvWr { id, sges: &sges }).context("cannot post a receive")
    }

    /// Returns the local memory of a message of a queue pair.
    pub(crate) fn local(&self, q: usize, size: u32) -> Sge {
        match self.plan.op {
            Op::Send | Op::Write => self.mr.sge(self.layout.source, size as usize),
            Op::Read => self.mr.sge(self.layout.landing, size as usize),
            Op::Atomic => {
                let size = ATOMIC_SIZE as usize;
                self.mr.sge(self.layout.results + q * size, size)
            }
        }
    }

    /// Returns a signaled work request for a message of a queue pair.
    pub(crate) fn message<'s>(&self, q: usize, sges: &'s [Sge]) -> anyhow::Result<SendWr<'s>> {
        let peer = self.peer.as_ref().context("not connected")?;
        let at = |offset: usize| peer.addr.wrapping_add(offset as u64);
        let (layout, rkey) = (&self.layout, peer.rkey);
        let op = match self.plan.op {
            Op::Send => SendOp::Send { imm: None },
            Op::Write => SendOp::Write { remote_addr: at(layout.target), rkey, imm: None },
            Op::Read => SendOp::Read { remote_addr: at(layout.source), rkey },
            Op::Atomic => {
                let remote_addr = at(layout.counters + q * ATOMIC_SIZE as usize);
                SendOp::FetchAdd { remote_addr, rkey, add: 1 }
            }
        };
        let target = match (self.ways.get(q), peer.qps.get(q)) {
            (Some(ah), Some(other)) => Target::Ud(UdTarget {
                ah: ah.handle(),
                qpn: other.qpn,
                qkey: Connect::default().qkey,
            }),
            _ => Target::Peer,
        };
        Ok(SendWr { target, ..SendWr::new(WrId(q as u64), op, Data::Gather(sges)) })
    }

    /// Returns work requests of a group of messages, of which the last is signaled.
    pub(crate) fn group<'s>(
        &self,
        q: usize,
        sges: &'s [Sge],
        count: usize,
    ) -> anyhow::Result<Vec<SendWr<'s>>> {
        let last = self.message(q, sges)?;
        let mut group = vec![SendWr { flags: SendFlags::empty(), ..last }; count];
        if let Some(end) = group.last_mut() {
            *end = last;
        }
        Ok(group)
    }

    /// Posts messages to a queue pair.
    pub(crate) fn post(&self, q: usize, wrs: &[SendWr<'_>]) -> anyhow::Result<()> {
        let Some(qp) = self.qps.get(q) else { bail!("there is no queue pair {q}") };
        qp.post_sends(wrs).map_err(|(_, error)| error).context("cannot post a message")
    }

    /// Polls for completions. A failed completion is an error.
    pub(crate) fn poll(&self, wcs: &mut [Wc]) -> anyhow::Result<usize> {
        let count = self.cq.poll_wcs(wcs);
        for wc in wcs.iter().take(count) {
            if !wc.is_success() {
                return Err(failure(self.plan.op.name(), wc));
            }
        }
        Ok(count)
    }

    /// Returns an error if the NIC has failed. Called when nothing has completed for a while.
    pub(crate) fn check_nic(&self) -> anyhow::Result<()> {
        match self.nic().broken() {
            Some(error) => Err(error).with_context(|| format!("{} failed", self.nic.name())),
            None => Ok(()),
        }
    }

    /// Checks a message that was received, and posts its receive again. Returns whether the message
    /// is what was sent.
    pub(crate) fn take(&mut self, wc: &Wc, size: u32) -> anyhow::Result<bool> {
        let (q, receive) = receive_of(wc).context("not a receive")?;
        let grh = if self.plan.connection == Connection::Ud { GRH_BYTES } else { 0 };
        let mut right = wc.byte_len == size + grh;
        if self.plan.verify {
            let at = self.slot(q, receive) + grh as usize;
            right &= self.holds_pattern(at, size as usize)?;
            self.clear(at, size as usize)?;
        }
        self.post_receive(q, receive)?;
        Ok(right)
    }

    /// Whether memory holds the pattern of messages.
    fn holds_pattern(&mut self, offset: usize, len: usize) -> anyhow::Result<bool> {
        let bytes = self.scratch.get_mut(..len).context("longer than any message")?;
        self.region.read(offset as u64, bytes)?;
        Ok(self.pattern.get(..len) == Some(bytes))
    }

    fn clear(&mut self, offset: usize, len: usize) -> anyhow::Result<()> {
        let bytes = self.scratch.get_mut(..len).context("longer than any message")?;
        bytes.fill(0);
        Ok(self.region.write(offset as u64, bytes)?)
    }

    /// Resets the memory before messages of another size.
    pub(crate) fn prepare(&mut self) -> anyhow::Result<()> {
        let size = self.plan.size_max() as usize;
        self.clear(self.layout.target, size)?;
        self.clear(self.layout.landing, size)?;
        self.mr.write(self.layout.source, &self.pattern)?;
        for q in 0..self.qps.len() {
            self.region.store(self.counter(q), [0; 8])?;
        }
        Ok(())
    }

    fn counter(&self, q: usize) -> u64 {
        (self.layout.counters + q * ATOMIC_SIZE as usize) as u64
    }

    /// Returns the number of errors in memory after `sent` messages were sent and `came` arrived,
    /// whose last byte may be `varied`.
    pub(crate) fn mistakes(
        &mut self,
        size: u32,
        sent: u64,
        came: u64,
        varied: bool,
    ) -> anyhow::Result<u64> {
        if !self.plan.verify {
            return Ok(0);
        }
        let len = (size as usize).saturating_sub(usize::from(varied));
        let right = match self.plan.op {
            Op::Send => true,
            Op::Write => came == 0 || self.holds_pattern(self.layout.target, len)?,
            Op::Read => sent == 0 || self.holds_pattern(self.layout.landing, len)?,
            Op::Atomic => {
                let adds = (0..self.qps.len()).map(|q| self.region.fetch_add(self.counter(q), 0));
                adds.sum::<Result<u64, _>>()? == came
            }
        };
        Ok(u64::from(!right))
    }

    /// Returns the last byte that the peer writes with messages of a size.
    #[inline]
    pub(crate) fn last_written(&self, size: u32) -> anyhow::Result<u8> {
        let mut byte = [0];
        self.region.read((self.layout.target + size as usize - 1) as u64, &mut byte)?;
        Ok(byte[0])
    }

    /// Changes the last byte of the messages to send.
    #[inline]
    pub(crate) fn set_last(&self, size: u32, byte: u8) -> anyhow::Result<()> {
        Ok(self.region.write((self.layout.source + size as usize - 1) as u64, &[byte])?)
    }
}

/// Returns the ACK timeout. Many queue pairs share one link: the more there are, the longer an ACK
/// takes.
fn ack_timeout(qps: u32) -> AckTimeout {
    let usual = Connect::default().timeout;
    let longer = usual.0.get() + qps.max(1).ilog2().div_ceil(2);
    AckTimeout::from_code(longer).unwrap_or(usual)
}

/// Returns the queue pair of a receive that completed, and its number there, or `None` if a send
/// completed.
fn receive_of(wc: &Wc) -> Option<(usize, usize)> {
    let WrId(id) = wc.id;
    let (q, receive) = ((id & !RECEIVE) >> 32, id & u64::from(u32::MAX));
    (id & RECEIVE != 0).then_some((usize::try_from(q).ok()?, usize::try_from(receive).ok()?))
}

/// Whether a receive completed.
pub(crate) fn is_receive(wc: &Wc) -> bool {
    wc.id.0 & RECEIVE != 0
}

/// Returns the contents of messages: bytes that differ from their neighbors, and from those of a
/// page or a packet before.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| at.wrapping_mul(0x9e37_79b1).to_le_bytes()[2] | 1).collect()
}

/// Returns the error of a failed completion, with its likely cause.
pub(crate) fn failure(what: &str, wc: &Wc) -> anyhow::Error {
    let hint = match wc.status {
        WcStatus::RetryExcErr => {
            "; no ACK came: can the two sides reach each other on UDP port 4791, with this MTU?"
        }
        _ => "",
    };
    anyhow::anyhow!("{what} on QP {}: {}{hint}", wc.qp_num, wc.status)
}
