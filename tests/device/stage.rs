//! Two devices, and what each side has on its own.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use roce::device::Device;
use roce::link::cable;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, AhAttr, Connect, CqHandle, Data, DeviceCaps, Endpoint, MrHandle, PdHandle, QpHandle,
    QpType, RecvWr, SendOp, SendWr, Sge, Target, UdTarget, Wc, WrId,
};
use roce::wire::Gid;

/// All rights of peers, and windows.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Longer than anything here takes on a busy machine.
pub(crate) const EVENT_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) const SEND: SendOp = SendOp::Send { imm: None };

/// Number of bytes of memory of each side.
pub(crate) const MEMORY: usize = 1 << 16;

/// Two devices that reach each other.
pub(crate) fn devices() -> [Arc<dyn Device>; 2] {
    match std::env::var("ROCE_TEST_DEVICE") {
        Ok(spec) => {
            let name = spec.strip_prefix("verbs:").expect("ROCE_TEST_DEVICE is verbs:NAME");
            real(name)
        }
        Err(_) => {
            let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
            let (a, b) = cable(a, b).unwrap();
            [a, b].map(|link| Arc::new(SoftNic::start(link).unwrap()) as Arc<dyn Device>)
        }
    }
}

fn real(name: &str) -> [Arc<dyn Device>; 2] {
    let open = || roce::rdma_nic::RdmaNic::open(name).unwrap();
    [Arc::new(open()), Arc::new(open())]
}

/// One side: a device, and on it a protection domain, a completion queue and memory.
pub(crate) struct Side {
    pub(crate) nic: Arc<dyn Device>,
    pub(crate) pd: PdHandle,
    pub(crate) cq: CqHandle,
    pub(crate) buffer: Buffer,
    pub(crate) mr: MrHandle,
}

impl Side {
    pub(crate) fn new(nic: Arc<dyn Device>) -> Self {
        let pd = nic.create_pd().unwrap();
        let cq = nic.create_cq(512).unwrap();
        let buffer = Buffer::new(MEMORY);
        let mr = nic.register(pd, &buffer, ALL).unwrap();
        Self { nic, pd, cq, buffer, mr }
    }

    /// The first address for RoCEv2, and its index.
    pub(crate) fn address(&self) -> (u8, Gid) {
        let gids = self.nic.gids();
        let index = gids.iter().position(|gid| *gid != Gid::default()).expect("it has a GID");
        (index as u8, gids[index])
    }

    pub(crate) fn how(&self) -> Connect {
        let attr = self.nic.query_device().unwrap();
        let most = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).min(16);
        let mtu = self.nic.query_port().unwrap().active_mtu;
        Connect::default().gid_index(self.address().0).mtu(mtu).rd_atomic(most as u8)
    }

    pub(crate) fn endpoint(&self, qp: QpHandle) -> Endpoint {
        Endpoint { gid: self.address().1, ..self.nic.endpoint(qp).unwrap() }
    }

    pub(crate) fn connect(&self, qp: QpHandle, peer: &Endpoint) {
        self.nic.connect(qp, peer, &self.how()).unwrap();
    }

    pub(crate) fn has(&self, caps: DeviceCaps) -> bool {
        self.nic.query_device().unwrap().device_cap_flags.contains(caps)
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.buffer.addr() + offset as u64;
        Sge { addr, length: length as u32, lkey: self.mr.lkey() }
    }

    pub(crate) fn recv(&self, qp: QpHandle, id: u64, offset: usize, length: usize) {
        let sges = [self.sge(offset, length)];
        self.nic.post_recv(qp, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }

    /// Posts a request whose data, or room for the answer, is at `offset`.
    pub(crate) fn post(&self, qp: QpHandle, id: u64, op: SendOp, offset: usize, length: usize) {
        let sges = [self.sge(offset, length)];
        self.nic.post_send(qp, &SendWr::new(WrId(id), op, Data::Gather(&sges))).unwrap();
    }

    /// The next completion, whose name must be this.
    #[track_caller]
    pub(crate) fn next(&self, id: u64) -> Wc {
        let wc = self.nic.wait_cq(self.cq).unwrap();
        assert_eq!(wc.id, WrId(id), "{wc:?}");
        wc
    }

    /// The next completion, which must be a success of this name.
    #[track_caller]
    pub(crate) fn done(&self, id: u64) -> Wc {
        let wc = self.next(id);
        assert!(wc.is_success(), "{wc:?}");
        wc
    }

    #[track_caller]
    pub(crate) fn holds(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(&self.buffer.to_vec()[offset..offset + bytes.len()], bytes);
    }
}

/// Two sides with a queue pair of one kind on each, connected or open.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) a_qp: QpHandle,
    pub(crate) b_qp: QpHandle,
    /// Destination of sends of `a`.
    pub(crate) target: Target,
}

impl Pair {
    pub(crate) fn new(kind: QpType) -> Self {
        let [a, b] = devices().map(Side::new);
        let [a_qp, b_qp] =
            [&a, &b].map(|side| side.nic.create_simple_qp(side.pd, side.cq, kind).unwrap());
        let target = join(&a, a_qp, &b, b_qp);
        Self { a, b, a_qp, b_qp, target }
    }

    /// Returns the remote address and key of `offset` in the memory of `b`.
    pub(crate) fn there(&self, offset: usize) -> (u64, roce::wire::RKey) {
        (self.b.buffer.addr() + offset as u64, self.b.mr.rkey())
    }
}

/// Connects two queue pairs, or opens them; says where sends of the first go.
pub(crate) fn join(a: &Side, a_qp: QpHandle, b: &Side, b_qp: QpHandle) -> Target {
    let (to_a, to_b) = (a.endpoint(a_qp), b.endpoint(b_qp));
    if a.nic.qp_kind(a_qp) == Some(QpType::Ud) {
        let how = a.how();
        a.nic.open_datagram(a_qp, &how).unwrap();
        b.nic.open_datagram(b_qp, &b.how()).unwrap();
        let ah = a.nic.create_ah(a.pd, AhAttr::new(to_b.gid, how.gid_index)).unwrap();
        return Target::Ud(UdTarget { ah, qpn: to_b.qpn, qkey: how.qkey });
    }
    a.connect(a_qp, &to_b);
    b.connect(b_qp, &to_a);
    Target::Peer
}

/// Bytes that differ from their neighbors, and from those of another seed.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8 ^ seed).collect()
}
