//! Owning objects over a device: each is destroyed when it is dropped, and memory in flight belongs
//! to the NIC.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use roce::device::{
    Buf, Completion, Context, Cq, Device, Init, Memory, Pd, Qp, Rc, Transport, Ud, Work,
};
use roce::engine::Limits;
use roce::link::cable;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, AhAttr, Connect, Data, PostError, QpState, QpType, RecvWr, SendOp, SendWr, WcOpcode,
    WcStatus, WrId,
};
use roce::wire::Gid;

/// Longer than anything here takes on a loaded machine.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, host))
}

/// Two NICs on a cable.
fn contexts() -> [Context; 2] {
    let (a, b) = cable(gid(1), gid(2)).unwrap();
    [a, b].map(|link| Context::new(SoftNic::start(link).unwrap()))
}

/// A NIC that can hold so few objects that each must be destroyed before the next is created.
fn small(limits: impl FnOnce(&mut Limits)) -> Context {
    let (link, _) = cable(gid(1), gid(2)).unwrap();
    Context::new(SoftNic::start_with(link, |config| limits(&mut config.limits)).unwrap())
}

struct Side {
    pd: Pd,
    cq: Cq,
}

impl Side {
    fn new(context: &Context) -> Self {
        Self { pd: context.create_pd().unwrap(), cq: context.create_cq(64).unwrap() }
    }

    fn qp<T: Transport>(&self) -> Qp<T, Init> {
        self.pd.qp(&self.cq).build().unwrap()
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pd.create_buf(bytes.len()).unwrap();
        buf.write(0, bytes).unwrap();
        buf
    }

    #[track_caller]
    fn wait(&self) -> Completion {
        self.cq.wait(TIMEOUT).unwrap()
    }

    #[track_caller]
    fn done(&self, id: u64) -> Completion {
        let done = self.wait();
        assert!(done.wc.is_success() && done.wc.id == WrId(id), "of {id}: {:?}", done.wc);
        done
    }
}

fn connected(a: &Side, b: &Side) -> (Qp<Rc>, Qp<Rc>) {
    let (a_qp, b_qp) = (a.qp::<Rc>(), b.qp::<Rc>());
    let (a_end, b_end) = (a_qp.endpoint().unwrap(), b_qp.endpoint().unwrap());
    let how = Connect::default();
    (a_qp.connect(&b_end, &how).unwrap(), b_qp.connect(&a_end, &how).unwrap())
}

fn sides() -> [Side; 2] {
    contexts().map(|context| Side::new(&context))
}

#[test]
fn what_is_dropped_is_destroyed_in_any_order() {
    let context = small(|limits| {
        (limits.pds, limits.cqs, limits.qps) = (1, 1, 1);
        (limits.keys, limits.srqs, limits.ahs) = (1, 1, 1);
    });
    for round in 0..6 {
        let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(4).unwrap());
        assert!(context.create_pd().is_err() && context.create_cq(4).is_err(), "there is one");
        let srq = pd.create_srq(4, 1).unwrap();
        let mr = pd.allocate(64, ALL).unwrap();
        let ah = pd.create_ah(AhAttr::new(gid(2), 0)).unwrap();
        let qp = pd.qp(&cq).srq(&srq).build::<Rc>().unwrap();
        let mut objects: [Option<Box<dyn std::any::Any>>; 6] = [
            Some(Box::new(pd)),
            Some(Box::new(cq)),
            Some(Box::new(srq)),
            Some(Box::new(mr)),
            Some(Box::new(ah)),
            Some(Box::new(qp)),
        ];
        for at in 0..objects.len() {
            objects[(round + at) % 6] = None;
        }
    }
}

#[test]
fn memory_in_flight_is_freed_with_its_queue_pair() {
    let context = small(|limits| limits.keys = 2);
    let side = Side::new(&context);
    for _ in 0..3 {
        let qp = side.qp::<Rc>();
        qp.recv(1, side.pd.create_buf(8).unwrap()).unwrap();
        qp.recv(2, side.pd.create_buf(8).unwrap()).unwrap();
        assert!(side.pd.create_buf(8).is_err(), "the NIC has both");
        drop(qp);
    }
    // Completions of a queue pair that is gone complete nothing.
    assert!(side.cq.next().is_none());
}

#[test]
fn buffers_are_the_nics_until_they_complete() {
    let [a, b] = sides();
    let (a_qp, b_qp) = connected(&a, &b);
    let parts: Memory = vec![b.pd.create_buf(3).unwrap(), b.pd.create_buf(8).unwrap()].into();
    b_qp.recv(7, parts).unwrap();
    a_qp.send(1, a.buf(b"hello")).unwrap();
    let received = b.done(7);
    assert_eq!((received.payload(), received.memory.len()), (b"hello".to_vec(), 11));
    let sent = a.done(1).into_buf().unwrap();
    assert_eq!(sent.to_vec(), b"hello");
    // A region that is lent can be used meanwhile.
    let mr = b.pd.allocate(16, Access::LOCAL_WRITE).unwrap();
    b_qp.recv(8, mr.slice(4..12).unwrap()).unwrap();
    mr.write(0, b"here").unwrap();
    a_qp.send(2, sent).unwrap();
    assert_eq!(b.done(8).payload(), b"hello");
    assert_eq!(&mr.to_vec()[..9], b"herehello");
}

#[test]
fn one_sided_operations_reach_published_memory() {
    let [a, b] = sides();
    let (a_qp, _b_qp) = connected(&a, &b);
    let published = b.pd.allocate(64, ALL).unwrap();
    published.write(0, &7_u64.to_ne_bytes()).unwrap();
    let remote = published.slice(..8).unwrap().remote();
    a_qp.compare_swap(1, remote, 7, 9, a.pd.create_buf(8).unwrap()).unwrap();
    a_qp.fetch_add(2, remote, 3, a.pd.create_buf(8).unwrap()).unwrap();
    assert_eq!(a.done(1).payload(), 7_u64.to_ne_bytes());
    assert_eq!(a.done(2).payload(), 9_u64.to_ne_bytes());
    a_qp.write(3, a.buf(b"written"), published.slice(8..).unwrap().remote()).unwrap();
    a_qp.read(4, published.remote(), a.pd.create_buf(15).unwrap()).unwrap();
    assert!(!a.done(3).memory.is_empty());
    assert_eq!(a.done(4).payload(), [&12_u64.to_ne_bytes()[..], b"written"].concat());
    assert_eq!(published.remote().part(60, 5), None);
}

#[test]
fn an_unsignaled_send_gives_its_memory_back_with_the_next_that_is_signaled() {
    let [a, b] = sides();
    let (a_qp, b_qp) = connected(&a, &b);
    b.pd.create_bufs(3, 8).unwrap().into_iter().for_each(|buf| b_qp.recv(0, buf).unwrap());
    let work = |id| Work::send(id, a.buf(&[b'0' + u8::try_from(id).unwrap()]));
    a_qp.post([work(1).unsignaled(), work(2).unsignaled().with_imm(*b"imm2"), work(3)]).unwrap();
    for id in 1..=3 {
        let done = a.done(id);
        assert_eq!((done.wc.opcode, done.memory.len()), (WcOpcode::Send, 1));
        assert_eq!(done.into_buf().unwrap().to_vec(), [b'0' + u8::try_from(id).unwrap()]);
    }
    let received = [b.done(0), b.done(0), b.done(0)];
    assert_eq!(received[1].wc.imm(), Some(*b"imm2"));
    assert_eq!(received[2].payload(), b"3");
}

#[test]
fn what_is_refused_comes_back_at_once() {
    let [a, b] = sides();
    let (a_qp, _b_qp) = connected(&a, &b);
    // Of another device, and of another protection domain of the same.
    for stranger in [&b.pd, &a.cq.context().create_pd().unwrap()] {
        let refused = a_qp.send(1, stranger.create_buf(5).unwrap()).unwrap_err();
        assert_eq!((refused.error, refused.memory.len()), (PostError::ForeignMemory, 5));
        let refused = a_qp.recv(1, stranger.create_buf(6).unwrap()).unwrap_err();
        assert_eq!((refused.error, refused.memory.len()), (PostError::ForeignMemory, 6));
    }
    // No more than the queue takes: of three, the third comes back.
    let qp = a.pd.qp(&a.cq).depth(2, 1).build::<Rc>().unwrap();
    let qp = qp.connect(&b.qp::<Rc>().endpoint().unwrap(), &Connect::default()).unwrap();
    let depth = (1..).find(|id| qp.send(*id, a.buf(b"x")).is_err()).unwrap() - 1;
    qp.flush().unwrap();
    (0..depth).for_each(|_| assert_eq!(a.wait().wc.status, WcStatus::WrFlushErr));
    let qp = a.pd.qp(&a.cq).depth(2, 1).build::<Rc>().unwrap();
    let qp = qp.connect(&b.qp::<Rc>().endpoint().unwrap(), &Connect::default()).unwrap();
    let refused = qp.post((0..=depth).map(|id| Work::send(id, a.buf(b"xy")))).unwrap_err();
    assert_eq!((refused.error, refused.posted as u64), (PostError::QueueFull, depth));
    assert_eq!(refused.memory.len(), 2);
    // An inline message has no memory, and is refused if it is too long.
    let refused = a_qp.send(1, &[0; 4096]).unwrap_err();
    assert!(matches!(refused.error, PostError::InlineTooLong { .. }), "{refused}");
}

#[test]
fn flushed_work_gives_its_memory_back() {
    let [a, b] = sides();
    let (a_qp, _b_qp) = connected(&a, &b);
    for id in 0..3 {
        a_qp.recv(id, a.pd.create_buf(10 + usize::try_from(id).unwrap()).unwrap()).unwrap();
    }
    a_qp.flush().unwrap();
    assert_eq!(a_qp.as_any().state(), Some(QpState::Err));
    for id in 0..3 {
        let done = a.wait();
        assert_eq!((done.wc.id.0, done.wc.status), (id, WcStatus::WrFlushErr));
        assert_eq!(done.into_buf().map(|buf| buf.len()), Some(10 + usize::try_from(id).unwrap()));
    }
}

#[test]
fn datagrams_come_without_their_network_header() {
    let [a, b] = sides();
    let how = Connect::default();
    let (a_qp, b_qp) = (a.qp::<Ud>(), b.qp::<Ud>());
    b_qp.recv(7, b.pd.create_buf(40 + 16).unwrap()).unwrap();
    let (to, a_qp) = (b_qp.endpoint().unwrap(), a_qp.open(&how).unwrap());
    let _b_qp = b_qp.open(&how).unwrap();
    let ah = a.pd.create_ah(AhAttr::new(to.gid, 0)).unwrap();
    a_qp.send_to(1, b"datagram", &ah, to.qpn, how.qkey).unwrap();
    // The work request keeps it.
    drop(ah);
    a.done(1);
    let received = b.done(7);
    assert_eq!((received.payload(), received.wc.byte_len), (b"datagram".to_vec(), 48));
}

#[test]
fn a_sleeping_program_is_woken_by_its_completion_queue() {
    let [a, b] = contexts();
    let b_cq = b.create_cq_with_events(16).unwrap();
    let (a, b) = (Side::new(&a), Side { pd: b.create_pd().unwrap(), cq: b_cq });
    let (a_qp, b_qp) = connected(&a, &b);
    b_qp.recv(1, b.pd.create_buf(8).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.wait().payload());
        std::thread::sleep(Duration::from_millis(20));
        a_qp.send(1, b"wake up").unwrap();
        assert_eq!(waiting.join().unwrap(), b"wake up");
    });
}

#[test]
fn bare_work_requests_and_handles_go_with_objects() {
    let nics = {
        let (a, b) = cable(gid(1), gid(2)).unwrap();
        [a, b].map(|link| Arc::new(SoftNic::start(link).unwrap()))
    };
    let [a, b] = nics.clone().map(|nic| Side::new(&Context::from(nic)));
    let [a_qp, b_qp] = [&a, &b].map(|it| it.pd.qp(&it.cq).build_any(QpType::Rc).unwrap());
    a_qp.connect(&b_qp.endpoint().unwrap(), &Connect::default()).unwrap();
    b_qp.connect(&a_qp.endpoint().unwrap(), &Connect::default()).unwrap();
    let [from, to] = [&a, &b].map(|it| it.pd.allocate(8, Access::LOCAL_WRITE).unwrap());
    b_qp.post_recv(&RecvWr { id: WrId(7), sges: &[to.sge(0, 8)] }).unwrap();
    from.write(0, b"bare").unwrap();
    let sges = [from.sge(0, 4)];
    let send = SendWr::new(WrId(1), SendOp::Send { imm: None }, Data::Gather(&sges));
    a_qp.post_send(&send).unwrap();
    assert_eq!(b.done(7).wc.byte_len, 4);
    assert_eq!(&to.to_vec()[..4], b"bare");
    assert!(a.done(1).memory.is_empty());
    // A device does not find an object by a handle of another.
    assert_eq!(nics[1].post_send(a_qp.handle(), &send), Err(PostError::UnknownQp));
    assert!(nics[1].destroy_cq(a.cq.handle()).is_err());
}
