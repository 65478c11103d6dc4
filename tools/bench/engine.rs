//! How fast the engine is: two of them pass packets in memory on one core, every ICRC sealed and checked.
//!
//! ```text
//! cargo run --release --example bench-engine
//! ```
//!
//! Bandwidth is told as a ratio against a rival measured in the same run: `memcpy` and `crc32fast` over the same bytes,
//! twice, which is the least that sender and receiver have to do.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant as Clock};

use roce::engine::{
    Batch, Config, CqHandle, Engine, ICRC_ROOM, MrAttr, MrHandle, QpCreate, QpHandle, Received,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AhAttr, AttrMask, Data, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::{Gid, Path, Prefixes};

/// How many messages are posted at a time.
const BURST: usize = 64;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

struct Side {
    engine: Engine,
    gid: Gid,
    cq: CqHandle,
    qps: Vec<QpHandle>,
    mr: MrHandle,
    buffer: Buffer,
    sealing: Prefixes,
    checking: Prefixes,
}

impl Side {
    fn new(number: u8, qps: usize, size: usize) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, number));
        let mut engine = Engine::new(Config::new(gid), number.into());
        let pd = engine.create_pd().unwrap();
        let cq = engine.create_cq(1 << 16).unwrap();
        let depth = if qps > 1 { 4 } else { BURST as u32 * 2 };
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qps = (0..qps).map(|_| engine.create_qp(pd, create).unwrap()).collect();
        let buffer = Buffer::new(size.max(4096));
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access: ALL };
        let mr = engine.register(pd, attr).unwrap();
        let nowhere = Path {
            source: gid,
            destination: gid,
            source_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
        };
        let (sealing, checking) = (Prefixes::new(nowhere), Prefixes::new(nowhere));
        Self { engine, gid, cq, qps, mr, buffer, sealing, checking }
    }

    fn sge(&self, length: usize) -> Sge {
        Sge { addr: self.buffer.addr(), length: length as u32, lkey: self.mr.lkey() }
    }
}

fn connect(a: &mut Side, b: &Side) {
    for (&qp, &peer) in a.qps.iter().zip(&b.qps) {
        let attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: Mtu::M4096,
            dest_qp_num: b.engine.qp_number(peer).unwrap(),
            ah_attr: AhAttr::new(b.gid, 0),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let rts = AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (qp_state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            let attr = QpAttr { qp_state, ..attr };
            a.engine.modify_qp(qp, &attr, mask | AttrMask::STATE).unwrap();
        }
    }
}

/// Passes everything that `from` has to send to `to`: sealed there, checked here.
fn pass(from: &mut Side, to: &mut Side, batch: &mut Batch, now: Instant) -> bool {
    batch.clear();
    if from.engine.poll_transmit(now, batch) == 0 {
        return false;
    }
    for mut train in batch.trains_mut() {
        let path = train.path;
        from.sealing.set_path(path);
        to.checking.set_path(path);
        train.for_each_mut(|packet| {
            from.sealing.of(packet.len()).seal(packet);
            assert!(to.checking.of(packet.len()).verifies(packet), "the wire is sound");
            let received = Received {
                source: path.source,
                destination: path.destination,
                source_port: path.source_port,
                ecn: 0,
                network: &[],
                packet: &packet[..packet.len() - ICRC_ROOM],
            };
            to.engine.handle_packet(now, &received);
        });
    }
    true
}

/// How long a run is.
const RUN: Duration = Duration::from_millis(1500);

/// What is sent, and over what.
struct Traffic<F> {
    qps: usize,
    /// What to ask for.
    op: F,
    len: usize,
    /// Whether the other side must post receives.
    receives: bool,
    /// How many messages are posted before anything is sent.
    burst: usize,
    /// How many packets are sent at a time.
    batch: usize,
}

impl<F: Fn(&Side) -> SendOp> Traffic<F> {
    /// Nanoseconds a message, from post to both completions.
    fn run(&self) -> f64 {
        let Self { qps, len, receives, burst, .. } = *self;
        let (mut a, mut b) = (Side::new(1, qps, len), Side::new(2, qps, len));
        connect(&mut a, &b);
        connect(&mut b, &a);
        let (mut batch, mut wcs) = (Batch::new(self.batch), [Wc::default(); BURST]);
        let (start, mut done, mut now, mut next) = (Clock::now(), 0_u32, 1, 0);
        while start.elapsed() < RUN {
            for _ in 0..BURST / burst {
                for _ in 0..burst {
                    let (from, to) = (a.qps[next], b.qps[next]);
                    next = (next + 1) % qps;
                    if receives {
                        let sges = [b.sge(len)];
                        b.engine.post_recv(to, &RecvWr { id: WrId(1), sges: &sges }).unwrap();
                    }
                    let sges = [a.sge(len)];
                    let wr = SendWr::new(WrId(2), (self.op)(&b), Data::Gather(&sges));
                    a.engine.post_send(from, &wr, &[]).unwrap();
                }
                now += 1000;
                let time = Instant::from_nanos(now);
                let (mut sent, mut received) = (0, if receives { 0 } else { burst });
                while sent < burst || received < burst {
                    pass(&mut a, &mut b, &mut batch, time);
                    pass(&mut b, &mut a, &mut batch, time);
                    sent += a.engine.poll_cq(a.cq, &mut wcs);
                    received += b.engine.poll_cq(b.cq, &mut wcs);
                }
            }
            done += BURST as u32;
        }
        start.elapsed().as_nanos() as f64 / f64::from(done)
    }
}

/// Bytes a second of copying and checking the same bytes twice.
fn rival(len: usize) -> f64 {
    let (source, mut packet, mut target) = (vec![1_u8; len], vec![0_u8; len], vec![0_u8; len]);
    let (start, mut bytes) = (Clock::now(), 0_u64);
    while start.elapsed() < RUN {
        for _ in 0..16 {
            for (from, to) in source.chunks(4096).zip(packet.chunks_mut(4096)) {
                to.copy_from_slice(black_box(from));
                black_box(crc32fast::hash(to));
            }
            for (from, to) in packet.chunks(4096).zip(target.chunks_mut(4096)) {
                black_box(crc32fast::hash(from));
                to.copy_from_slice(black_box(from));
            }
            bytes += len as u64;
        }
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let wanted = std::env::args().nth(1);
    let wants = |name| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let op = |_: &Side| SendOp::Send { imm: None };
    let sends = Traffic { qps: 1, op, len: 64, receives: true, burst: BURST, batch: BURST };
    if wants("send") {
        let each = sends.run();
        println!(
            "64-byte SENDs, one queue pair: {:.2} million a second, {each:.0} ns each",
            1e3 / each
        );
    }
    if wants("scale") {
        let one = Traffic { burst: 1, ..sends }.run();
        let many = Traffic { qps: 100_000, ..sends }.run();
        println!(
            "64-byte SENDs, each acknowledged by itself: {one:.0} ns on one queue pair, {many:.0} ns on 100000 in \
             turn; {:.2} times the cost",
            many / one
        );
    }
    if wants("write") {
        let op = |b: &Side| {
            let (remote_addr, rkey) = (b.buffer.addr(), b.mr.rkey());
            SendOp::Write { remote_addr, rkey, imm: None }
        };
        let writes = Traffic { qps: 1, op, len: 65_536, receives: false, burst: BURST, batch: 8 };
        let bytes = 65_536.0 / writes.run();
        let least = rival(65_536) / 1e9;
        println!(
            "64 KiB WRITEs at 4 KiB: {bytes:.2} GB/s; memcpy and crc32fast twice: {least:.2} GB/s; {:.2} times as fast",
            bytes / least
        );
    }
}
