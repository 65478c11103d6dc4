//! Scenes of the demo: each shows an operation or an error.

use anyhow::{Context as _, Result, ensure};
use roce::engine::Counter;
use roce::verbs::{
    Access, AhAttr, Data, FlushLevel, FlushPlacement, MwBind, MwType, QpType, RecvWr, SendFlags,
    SendOp, SendWr, Target, UdTarget, WcStatus, WrId,
};
use roce::wire::RKey;

use super::stage::{Play, Side, connect_attr, short_timeouts};

/// An operation or an error that the demo shows.
pub(super) struct Scene {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) play: fn(&mut Play<'_>) -> Result<()>,
}

/// All scenes, in the order in which they are played.
pub(super) const SCENES: &[Scene] = &[
    Scene {
        title: "SEND",
        about: "Needs a receive posted by the peer. The sender does not know the address of its buffer.",
        play: send,
    },
    Scene {
        title: "SEND with immediate data, in several packets",
        about: "2500 bytes from two SGEs, with a path MTU of 1024. Only the last packet requests an ACK.",
        play: send_imm,
    },
    Scene {
        title: "SEND of inline data",
        about: "The data is copied when the work request is posted; its memory need not be registered.",
        play: send_inline,
    },
    Scene {
        title: "RDMA WRITE",
        about: "Writes to the peer's memory, by address and R_Key. The peer's program is not notified.",
        play: write,
    },
    Scene {
        title: "RDMA WRITE with immediate data",
        about: "An RDMA WRITE that also consumes a receive of the peer, whose completion notifies the program.",
        play: write_imm,
    },
    Scene {
        title: "RDMA READ",
        about: "One request packet; the response takes one PSN per packet.",
        play: read,
    },
    Scene {
        title: "Atomic FETCH ADD and COMPARE SWAP",
        about: "The response carries the original value.",
        play: atomics,
    },
    Scene {
        title: "ATOMIC WRITE and FLUSH",
        about: "Eight bytes at once; FLUSH is answered when all writes before it have been placed.",
        play: atomic_write,
    },
    Scene {
        title: "Memory window: bind, use, invalidate",
        about: "A memory window opens a part of a region under its own R_Key, which a SEND can invalidate.",
        play: window,
    },
    Scene { title: "UC: unreliable connection", about: "No ACKs.", play: unreliable },
    Scene {
        title: "UD: datagram",
        about: "Each work request names its destination. A receive buffer begins with 40 bytes for the GRH.",
        play: datagram,
    },
    Scene {
        title: "Error: receiver not ready",
        about: "No receive is posted. The RNR NAK says how long to wait; then the request is retransmitted.",
        play: not_ready,
    },
    Scene {
        title: "Error: remote access",
        about: "An invalid R_Key. Both QPs enter the error state, and later work requests are flushed.",
        play: access,
    },
    Scene {
        title: "Error: no response",
        about: "Retransmitted three times, then the retry counter is exceeded.",
        play: silent_peer,
    },
];

const SEND: SendOp = SendOp::Send { imm: None };

/// Returns a work request whose data is at `sges`.
fn request<'a>(id: u64, op: SendOp, sges: &'a [roce::verbs::Sge]) -> SendWr<'a> {
    SendWr::new(WrId(id), op, Data::Gather(sges))
}

/// Writes a pattern to the start of a side's memory.
fn fill(side: &Side, len: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
    Ok(side.mr.write(0, &bytes)?)
}

/// Checks that the memory of B at `to` has the bytes of the memory of A at `from`.
fn check_same(play: &Play<'_>, from: usize, to: usize, len: usize) -> Result<()> {
    let (sent, received) = (play.a().mr.to_vec(), play.b().mr.to_vec());
    ensure!(
        sent[from..from + len] == received[to..to + len],
        "the data received differs from the data sent"
    );
    Ok(())
}

fn send(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    a.mr.write(0, b"hello, RoCE")?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(100), sges: &[b.sge(0, 64)] })?;
    play.send(a, &a_qp, &request(1, SEND, &[a.sge(0, 11)]))?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    check_same(play, 0, 0, 11)
}

fn send_imm(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    fill(a, 2500)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(101), sges: &[b.sge(0, 4096)] })?;
    let sges = [a.sge(0, 1500), a.sge(1500, 1000)];
    let op = SendOp::Send { imm: Some(*b"roce") };
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    play.send(a, &a_qp, &SendWr { flags, ..request(2, op, &sges) })?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    check_same(play, 0, 0, 2500)
}

fn send_inline(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(102), sges: &[b.sge(0, 64)] })?;
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let wr = SendWr::new(WrId(3), SEND, Data::Inline(b"small"));
    play.send(a, &a_qp, &SendWr { flags, ..wr })?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    Ok(())
}

fn write(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, _b_qp) = play.connect(QpType::Rc)?;
    fill(a, 3000)?;
    let op = SendOp::Write { remote_addr: b.mr.addr() + 4096, rkey: b.mr.rkey(), imm: None };
    play.send(a, &a_qp, &request(4, op, &[a.sge(0, 3000)]))?;
    play.complete(a, 1)?;
    check_same(play, 0, 4096, 3000)
}

fn write_imm(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(103), sges: &[] })?;
    let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
    let op = SendOp::Write { remote_addr, rkey, imm: Some([0, 0, 0, 42]) };
    play.send(a, &a_qp, &request(5, op, &[a.sge(0, 100)]))?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    Ok(())
}

fn read(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, _b_qp) = play.connect(QpType::Rc)?;
    fill(b, 2100)?;
    let op = SendOp::Read { remote_addr: b.mr.addr(), rkey: b.mr.rkey() };
    play.send(a, &a_qp, &request(6, op, &[a.sge(8192, 2100)]))?;
    play.complete(a, 1)?;
    check_same(play, 8192, 0, 2100)
}

fn atomics(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, _b_qp) = play.connect(QpType::Rc)?;
    b.mr.write(0, &40_u64.to_ne_bytes())?;
    let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
    play.send(
        a,
        &a_qp,
        &request(7, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, &[a.sge(0, 8)]),
    )?;
    play.complete(a, 1)?;
    let swap = SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 };
    play.send(a, &a_qp, &request(8, swap, &[a.sge(8, 8)]))?;
    play.complete(a, 1)?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    let (here, there) = (a.mr.to_vec(), b.mr.to_vec());
    let (was, then, is) = (word(&here[..8]), word(&here[8..16]), word(&there[..8]));
    play.say(&format!("Original values {was} and {then}; the memory now holds {is}."))?;
    ensure!((was, then, is) == (40, 42, 7), "wrong values");
    Ok(())
}

fn atomic_write(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, _b_qp) = play.connect(QpType::Rc)?;
    a.mr.write(0, b"8 bytes!")?;
    let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
    play.send(a, &a_qp, &request(9, SendOp::AtomicWrite { remote_addr, rkey }, &[a.sge(0, 8)]))?;
    let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::Range);
    let flush = SendOp::Flush { remote_addr, rkey, length: 8, placement, level };
    play.send(a, &a_qp, &SendWr::new(WrId(10), flush, Data::EMPTY))?;
    play.complete(a, 2)?;
    check_same(play, 0, 0, 8)
}

fn window(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    let mw = b.pd.create_mw(MwType::Type2)?;
    let now = mw.rkey().context("the memory window has no R_Key")?;
    let rkey = RKey::new(now.get() ^ 0x5a);
    let (addr, access) = (b.mr.addr() + 1024, Access::REMOTE_WRITE);
    let shown = MwBind { mr: b.mr.lkey(), addr, length: 256, access };
    let bind = SendOp::BindMw { mw: now, rkey, bind: shown };
    play.send(b, &b_qp, &SendWr::new(WrId(104), bind, Data::EMPTY))?;
    play.complete(b, 1)?;
    let op = SendOp::Write { remote_addr: addr, rkey, imm: None };
    play.send(a, &a_qp, &request(11, op, &[a.sge(0, 256)]))?;
    play.complete(a, 1)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(105), sges: &[b.sge(0, 64)] })?;
    play.send(a, &a_qp, &request(12, SendOp::SendWithInv { rkey }, &[a.sge(0, 4)]))?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    play.say("The same window once more, invalidated by its owner.")?;
    let again = SendOp::BindMw { mw: rkey, rkey: now, bind: shown };
    play.send(b, &b_qp, &SendWr::new(WrId(106), again, Data::EMPTY))?;
    play.send(b, &b_qp, &SendWr::new(WrId(107), SendOp::LocalInv { rkey: now }, Data::EMPTY))?;
    play.complete(b, 2)?;
    Ok(())
}

fn unreliable(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Uc)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(108), sges: &[b.sge(0, 2048)] })?;
    let op = SendOp::Write { remote_addr: b.mr.addr(), rkey: b.mr.rkey(), imm: None };
    play.send(a, &a_qp, &request(13, op, &[a.sge(0, 64)]))?;
    play.send(a, &a_qp, &request(14, SEND, &[a.sge(0, 1500)]))?;
    play.complete(a, 2)?;
    play.complete(b, 1)?;
    Ok(())
}

fn datagram(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = (a.qp(QpType::Ud)?, b.qp(QpType::Ud)?);
    a_qp.open_datagram(&connect_attr())?;
    b_qp.open_datagram(&connect_attr())?;
    let to = b_qp.endpoint()?;
    let ah = a.pd.create_ah(AhAttr::new(to.gid, 0))?;
    let target = Target::Ud(UdTarget { ah: ah.handle(), qpn: to.qpn, qkey: connect_attr().qkey });
    play.recv(b, &b_qp, &RecvWr { id: WrId(109), sges: &[b.sge(0, 256)] })?;
    play.send(a, &a_qp, &SendWr { target, ..request(15, SEND, &[a.sge(0, 32)]) })?;
    play.complete(a, 1)?;
    play.complete(b, 1)?;
    check_same(play, 0, 40, 32)
}

fn not_ready(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    let refused = a.nic.counters().get(Counter::RnrReceived);
    play.send(a, &a_qp, &request(16, SEND, &[a.sge(0, 16)]))?;
    play.until(a, Counter::RnrReceived, refused)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(110), sges: &[b.sge(0, 64)] })?;
    play.complete(b, 1)?;
    play.complete(a, 1)?;
    Ok(())
}

fn access(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let (a_qp, b_qp) = play.connect(QpType::Rc)?;
    play.recv(b, &b_qp, &RecvWr { id: WrId(111), sges: &[b.sge(0, 64)] })?;
    let op = SendOp::Write {
        remote_addr: b.mr.addr(),
        rkey: RKey::new(b.mr.rkey().get() ^ 0xff),
        imm: None,
    };
    play.send(a, &a_qp, &request(17, op, &[a.sge(0, 64)]))?;
    let done = play.outcome(a, 1)?;
    ensure!(done[0].status == WcStatus::RemAccessErr, "the status is {}", done[0].status);
    play.outcome(b, 1)?;
    play.events(b)?;
    play.send(a, &a_qp, &request(18, SEND, &[a.sge(0, 64)]))?;
    play.outcome(a, 1)?;
    Ok(())
}

fn silent_peer(play: &mut Play<'_>) -> Result<()> {
    let (a, b) = (play.a(), play.b());
    let a_qp = a.qp(QpType::Rc)?;
    // The queue pair is destroyed at once.
    let peer = b.qp(QpType::Rc)?.endpoint()?;
    a_qp.connect(&peer, &short_timeouts())?;
    play.send(a, &a_qp, &request(19, SEND, &[a.sge(0, 16)]))?;
    let done = play.outcome(a, 1)?;
    ensure!(done[0].status == WcStatus::RetryExcErr, "the status is {}", done[0].status);
    Ok(())
}
