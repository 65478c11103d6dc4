//! Every operation, on every kind of queue pair that does it.

use roce::memory::Buffer;
use roce::verbs::{
    Access, CqHandle, Data, DeviceCaps, LKey, MrAttr, PortState, QpCap, QpCreate, QpInitAttr,
    QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, SrqCreate, Target, WcOpcode, WcStatus,
    WrId,
};
use roce::wire::Gid;

use crate::stage::*;

/// Offset at which data arrive, at either side.
const THERE: usize = 1 << 15;

/// Length of the header before a datagram.
const GRH: usize = 40;

#[test]
fn a_device_says_what_it_is() {
    for nic in devices() {
        let (attr, port) = (nic.query_device().unwrap(), nic.query_port().unwrap());
        assert!(attr.max_qp > 0 && attr.max_cq > 0 && attr.max_mr > 0 && attr.max_sge > 0);
        assert_eq!(port.state, PortState::Active);
        assert!(port.gid_tbl_len as usize >= nic.gids().len() && !nic.gids().is_empty());
        assert!(nic.name().contains(':') && nic.broken().is_none());
    }
}

#[test]
fn messages_arrive_on_every_kind_of_queue_pair() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let pair = Pair::new(kind);
        let (a, b) = (&pair.a, &pair.b);
        let mtu = a.how().mtu.bytes();
        let (header, lengths) = match kind {
            QpType::Ud => (GRH, vec![0, 1, mtu]),
            _ => (0, vec![0, 1, mtu, 3 * mtu + 5]),
        };
        for (id, len) in lengths.into_iter().enumerate() {
            for imm in [None, Some(*b"roce")] {
                let id = 10 + 2 * id as u64 + u64::from(imm.is_some());
                let bytes = pattern(id as u8, len);
                a.buffer.write(0, &bytes).unwrap();
                b.recv(pair.b_qp, id, THERE, len + header);
                let sges = [a.sge(0, len)];
                let wr = SendWr::new(WrId(id), SendOp::Send { imm }, Data::Gather(&sges));
                a.nic.post_send(pair.a_qp, &SendWr { target: pair.target, ..wr }).unwrap();
                assert_eq!(a.done(id).opcode, WcOpcode::Send);
                let came = b.done(id);
                assert_eq!((came.opcode, came.imm()), (WcOpcode::Recv, imm), "{kind}");
                assert_eq!(came.byte_len as usize, len + header);
                assert_eq!(Some(came.qp_num), b.nic.qp_number(pair.b_qp));
                if kind == QpType::Ud {
                    assert_eq!(Some(came.src_qp), a.nic.qp_number(pair.a_qp));
                }
                b.holds(THERE + header, &bytes);
            }
        }
    }
}

#[test]
fn data_is_gathered_scattered_and_copied() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    a.buffer.write(0, b"one two three").unwrap();
    let from = [a.sge(0, 4), a.sge(8, 5), a.sge(4, 3)];
    let to = [b.sge(THERE, 5), b.sge(THERE + 100, 7)];
    b.nic.post_recv(pair.b_qp, &RecvWr { id: WrId(1), sges: &to }).unwrap();
    a.nic.post_send(pair.a_qp, &SendWr::new(WrId(1), SEND, Data::Gather(&from))).unwrap();
    a.done(1);
    assert_eq!(b.done(1).byte_len, 12);
    b.holds(THERE, b"one t");
    b.holds(THERE + 100, b"hreetwo");

    b.recv(pair.b_qp, 2, THERE, 64);
    let bytes = *b"gone before it is sent";
    a.nic.post_send(pair.a_qp, &SendWr::new(WrId(2), SEND, Data::Inline(&bytes))).unwrap();
    a.done(2);
    b.done(2);
    b.holds(THERE, &bytes);
}

#[test]
fn a_list_is_posted_at_once_and_in_order() {
    const COUNT: u64 = 50;
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let to: Vec<[Sge; 1]> = (0..COUNT).map(|at| [b.sge(THERE + at as usize * 8, 8)]).collect();
    let recvs: Vec<RecvWr<'_>> =
        to.iter().zip(0..).map(|(sges, id)| RecvWr { id: WrId(id), sges }).collect();
    b.nic.post_recvs(pair.b_qp, &recvs).unwrap();
    let bytes = pattern(3, COUNT as usize * 8);
    a.buffer.write(0, &bytes).unwrap();
    let from: Vec<[Sge; 1]> = (0..COUNT).map(|at| [a.sge(at as usize * 8, 8)]).collect();
    let sends: Vec<SendWr<'_>> = from
        .iter()
        .zip(0..)
        .map(|(sges, id)| SendWr::new(WrId(id), SEND, Data::Gather(sges)))
        .collect();
    a.nic.post_sends(pair.a_qp, &sends).unwrap();
    for id in 0..COUNT {
        a.done(id);
        b.done(id);
    }
    b.holds(THERE, &bytes);
}

#[test]
fn memory_is_written_and_read() {
    for kind in [QpType::Rc, QpType::Uc] {
        let pair = Pair::new(kind);
        let (a, b) = (&pair.a, &pair.b);
        let bytes = pattern(kind.code() as u8, 5000);
        a.buffer.write(0, &bytes).unwrap();
        let (remote_addr, rkey) = pair.there(THERE);
        a.post(pair.a_qp, 1, SendOp::Write { remote_addr, rkey, imm: None }, 0, 4000);
        a.done(1);
        b.recv(pair.b_qp, 2, 0, 0);
        let (remote_addr, rkey) = pair.there(THERE + 4000);
        let imm = Some([1, 2, 3, 4]);
        a.post(pair.a_qp, 2, SendOp::Write { remote_addr, rkey, imm }, 4000, 1000);
        a.done(2);
        let came = b.done(2);
        assert_eq!((came.opcode, came.imm()), (WcOpcode::RecvRdmaWithImm, imm));
        b.holds(THERE, &bytes);
        if kind == QpType::Rc {
            let (remote_addr, rkey) = pair.there(THERE);
            a.post(pair.a_qp, 3, SendOp::Read { remote_addr, rkey }, THERE, 5000);
            assert_eq!(a.done(3).opcode, WcOpcode::RdmaRead);
            a.holds(THERE, &bytes);
        }
    }
}

#[test]
fn atomics_return_what_was_there() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    b.buffer.write(THERE, &40_u64.to_ne_bytes()).unwrap();
    let (remote_addr, rkey) = pair.there(THERE);
    a.post(pair.a_qp, 1, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, 0, 8);
    assert_eq!(a.done(1).opcode, WcOpcode::FetchAdd);
    a.holds(0, &40_u64.to_ne_bytes());
    for (id, compare, was) in [(2, 41, 42_u64), (3, 42, 42)] {
        a.post(pair.a_qp, id, SendOp::CompareSwap { remote_addr, rkey, compare, swap: 7 }, 0, 8);
        assert_eq!(a.done(id).opcode, WcOpcode::CompSwap);
        a.holds(0, &was.to_ne_bytes());
    }
    b.holds(THERE, &7_u64.to_ne_bytes());
}

#[test]
fn memory_can_have_another_address() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let memory = Buffer::from_bytes(&pattern(1, 4096));
    // Another page, but the same place in it.
    let base = 0x10_0000 + memory.addr() % 4096;
    let attr = MrAttr { region: memory.region(), base, access: Access::REMOTE_READ };
    let mr = b.nic.register_region(b.pd, attr).unwrap();
    // The registration keeps the memory.
    drop(memory);
    let read = SendOp::Read { remote_addr: base + 100, rkey: mr.rkey() };
    a.post(pair.a_qp, 1, read, 0, 500);
    a.done(1);
    a.holds(0, &pattern(1, 4096)[100..600]);
    b.nic.deregister(mr).unwrap();
}

#[test]
fn only_what_is_signaled_completes() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let cap = QpCap::ORDINARY;
    let [a_qp, b_qp] = [a, b].map(|side| {
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let (send_cq, recv_cq) = (side.cq, side.cq);
        let create = QpCreate { init, send_cq, recv_cq, srq: None, xrcd: None };
        side.nic.create_qp(side.pd, create).unwrap()
    });
    join(a, a_qp, b, b_qp);
    let (remote_addr, rkey) = pair.there(THERE);
    let sges = [a.sge(0, 8)];
    let write = SendOp::Write { remote_addr, rkey, imm: None };
    let silent =
        SendWr { flags: SendFlags::empty(), ..SendWr::new(WrId(1), write, Data::Gather(&sges)) };
    a.nic.post_send(a_qp, &silent).unwrap();
    a.nic.post_send(a_qp, &SendWr::new(WrId(2), write, Data::Gather(&sges))).unwrap();
    a.done(2);
}

#[test]
fn a_shared_queue_serves_several_queue_pairs() {
    let [a, b] = devices().map(Side::new);
    let shared = SrqCreate { max_wr: 16, max_sge: 2, limit: 0, xrc: None };
    let srq = b.nic.create_srq(b.pd, shared).unwrap();
    let make = |cq: CqHandle| {
        let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: Some(srq), xrcd: None };
        b.nic.create_qp(b.pd, create).unwrap()
    };
    let ends = [make(b.cq), make(b.cq)];
    for id in 0..4 {
        let sges = [b.sge(THERE + id as usize * 64, 64)];
        b.nic.post_srq_recv(srq, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }
    let mut received = Vec::new();
    for (at, &b_qp) in ends.iter().enumerate() {
        let a_qp = a.nic.create_simple_qp(a.pd, a.cq, QpType::Rc).unwrap();
        join(&a, a_qp, &b, b_qp);
        a.buffer.write(0, &[at as u8; 8]).unwrap();
        for id in 0..2 {
            a.post(a_qp, id, SEND, 0, 8);
            a.done(id);
            let came = b.nic.wait_cq(b.cq).unwrap();
            assert!(came.is_success());
            assert_eq!(Some(came.qp_num), b.nic.qp_number(b_qp));
            b.holds(THERE + came.id.0 as usize * 64, &[at as u8; 8]);
            received.push(came.id.0);
        }
    }
    received.sort_unstable();
    assert_eq!(received, [0, 1, 2, 3], "each receive is used once");
}

#[test]
fn xrc_works_or_is_refused() {
    let [a, b] = devices().map(Side::new);
    if !b.has(DeviceCaps::XRC) {
        b.nic.create_xrcd().expect_err("it says that it has none");
        return;
    }
    let xrcd = b.nic.create_xrcd().unwrap();
    let shared = SrqCreate { max_wr: 16, max_sge: 1, limit: 0, xrc: Some((xrcd, b.cq)) };
    let srq = b.nic.create_srq(b.pd, shared).unwrap();
    let make = |side: &Side, qp_type, xrcd| {
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..QpCap::ORDINARY };
        let init = QpInitAttr { qp_type, cap, sq_sig_all: true };
        let (send_cq, recv_cq) = (side.cq, side.cq);
        let create = QpCreate { init, send_cq, recv_cq, srq: None, xrcd };
        side.nic.create_qp(side.pd, create).unwrap()
    };
    let a_qp = make(&a, QpType::XrcSend, None);
    let b_qp = make(&b, QpType::XrcRecv, Some(xrcd));
    join(&a, a_qp, &b, b_qp);
    let sges = [b.sge(THERE, 64)];
    b.nic.post_srq_recv(srq, &RecvWr { id: WrId(5), sges: &sges }).unwrap();
    a.buffer.write(0, b"through XRC").unwrap();
    let sges = [a.sge(0, 11)];
    let target = Target::Xrc(b.nic.srq_number(srq));
    let wr = SendWr { target, ..SendWr::new(WrId(1), SEND, Data::Gather(&sges)) };
    a.nic.post_send(a_qp, &wr).unwrap();
    a.done(1);
    assert_eq!(b.done(5).byte_len, 11);
    b.holds(THERE, b"through XRC");
    b.nic.destroy_xrcd(xrcd).expect_err("queues belong to it");
    b.nic.destroy_qp(b_qp).unwrap();
    b.nic.destroy_srq(srq).unwrap();
    b.nic.destroy_xrcd(xrcd).unwrap();
}

#[test]
fn a_queue_pair_goes_into_a_group_and_out() {
    let pair = Pair::new(QpType::Ud);
    let (nic, qp) = (&pair.b.nic, pair.b_qp);
    let group = Gid::from("ff0e::77".parse::<std::net::Ipv6Addr>().unwrap());
    nic.attach_multicast(qp, group).unwrap();
    nic.detach_multicast(qp, group).unwrap();
    nic.detach_multicast(qp, group).expect_err("it is not in it");
    nic.destroy_qp(qp).unwrap();
    nic.attach_multicast(qp, group).expect_err("it is gone");
}

#[test]
fn attributes_can_be_asked() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let attr = a.nic.query_qp(pair.a_qp).unwrap();
    assert_eq!((attr.qp_state, a.nic.qp_state(pair.a_qp)), (QpState::Rts, Some(QpState::Rts)));
    assert_eq!(Some(attr.dest_qp_num), b.nic.qp_number(pair.b_qp));
    assert_eq!((attr.path_mtu, attr.ah_attr.dgid), (a.how().mtu, b.address().1));
    assert_eq!((attr.timeout, attr.retry_cnt), (a.how().timeout, a.how().retry_cnt));
    assert_eq!(a.nic.qp_kind(pair.a_qp), Some(QpType::Rc));
}

#[test]
fn everything_is_counted() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    let packets = || {
        let all = a.nic.statistics().into_iter().chain(b.nic.statistics());
        all.filter(|(name, _)| name == "rcvd_pkts").map(|(_, count)| count).sum::<u64>()
    };
    let before = packets();
    b.recv(pair.b_qp, 1, THERE, 64);
    a.post(pair.a_qp, 1, SEND, 0, 8);
    a.done(1);
    b.done(1);
    // A kernel may take a moment to tell.
    let told = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        packets() > before
    });
    assert!(told, "{:?}", a.nic.statistics());
}

#[test]
fn many_threads_use_one_device() {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 50;
    let [a, b] = devices().map(Side::new);
    std::thread::scope(|scope| {
        for thread in 0..THREADS as usize {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                // Each creates and destroys its own while the others work.
                let make = |side: &Side| {
                    let cq = side.nic.create_cq(64).unwrap();
                    (cq, side.nic.create_simple_qp(side.pd, cq, QpType::Rc).unwrap())
                };
                let ((a_cq, a_qp), (b_cq, b_qp)) = (make(a), make(b));
                join(a, a_qp, b, b_qp);
                for id in 0..MESSAGES {
                    b.recv(b_qp, id, THERE + thread * 64, 64);
                    a.post(a_qp, id, SEND, thread * 64, 32);
                    assert!(b.nic.wait_cq(b_cq).unwrap().is_success());
                    assert!(a.nic.wait_cq(a_cq).unwrap().is_success());
                }
                for (side, cq, qp) in [(a, a_cq, a_qp), (b, b_cq, b_qp)] {
                    side.nic.destroy_qp(qp).unwrap();
                    side.nic.destroy_cq(cq).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_device_can_be_dropped_with_all_that_it_has() {
    for _ in 0..3 {
        let pair = Pair::new(QpType::Rc);
        pair.b.recv(pair.b_qp, 1, THERE, 64);
        let shared = SrqCreate { max_wr: 16, max_sge: 2, limit: 0, xrc: None };
        pair.b.nic.create_srq(pair.b.pd, shared).unwrap();
        let channel = pair.a.nic.create_channel().unwrap();
        pair.a.nic.create_cq_on(16, &channel).unwrap();
        drop(pair);
        // What outlives its device does no harm.
        drop(channel);
    }
}

#[test]
fn a_wrong_key_of_ones_own_is_found_out() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    b.recv(pair.b_qp, 1, THERE, 64);
    let sges = [Sge { lkey: LKey::new(a.mr.lkey().get() ^ 0x8000), ..a.sge(0, 8) }];
    a.nic.post_send(pair.a_qp, &SendWr::new(WrId(1), SEND, Data::Gather(&sges))).unwrap();
    // What it is called then differs: rxe flushes the request.
    assert!([WcStatus::LocProtErr, WcStatus::WrFlushErr].contains(&a.next(1).status));
    assert_eq!(a.nic.qp_state(pair.a_qp), Some(QpState::Err));
}
