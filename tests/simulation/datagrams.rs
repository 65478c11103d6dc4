//! Datagrams: to one or to a group. They may get lost, and come twice if the network doubles them.

use std::time::Duration;

use roce::engine::{CqHandle, QpHandle};
use roce::verbs::{
    AhAttr, AhHandle, PostError, QpType, SendFlags, Target, UdTarget, Wc, WcFlags, WcOpcode,
    WcStatus,
};
use roce::wire::{Gid, QKey, Qpn};

use super::author::{Author, OPS_MAX};
use super::build::datagram_qp;
use super::model::{AREA, Local, Piece, Recv, Request, Work};
use super::names::drain;
use super::plan::{ALL, Datagram, Plan, RECV, Socket};
use super::world::{World, group};

/// The longest datagram.
const LONGEST: usize = 4096;

impl Author {
    pub fn sockets(&mut self) {
        let nics = self.plan.nics.len();
        let count = 2 + self.dice.below(4);
        for number in 0..count {
            let nic = self.dice.below(nics);
            let first = self.plan.sockets.iter().all(|s| (s.nic, s.kind) != (nic, QpType::Gsi));
            let gsi = first && self.dice.one_in(4);
            let kind = if gsi { QpType::Gsi } else { QpType::Ud };
            let qkey = if gsi { QKey::GSI.get() } else { 0x1111 };
            let home = self.region(nic, ALL);
            let (sends, recvs) = (Vec::new(), Vec::new());
            self.plan.sockets.push(Socket { nic, kind, qkey, home, sends, recvs });
            if !gsi && self.dice.one_in(2) {
                self.plan.group.push(number);
            }
        }
        for from in 0..count {
            for op in 0..self.dice.below(OPS_MAX) {
                self.datagram(from, op, count);
            }
        }
        // More than enough for everything to come twice.
        for to in 0..count {
            for number in 0..2 * count * OPS_MAX {
                let key = self.plan.sockets[to].home;
                let longest = if number % 8 == 0 { LONGEST } else { 600 };
                let piece = Piece { key, at: 0, len: AREA + longest };
                let at = self.place(key, &vec![0xcd; piece.len]);
                let pieces = self.split(Piece { at, ..piece });
                let recv = Recv { id: RECV | number as u64, pieces };
                self.plan.sockets[to].recvs.push((Duration::ZERO, recv));
            }
        }
    }

    fn datagram(&mut self, from: usize, op: usize, count: usize) {
        let to = self.dice.below(count + 1);
        let socket = &self.plan.sockets[from];
        let home = socket.home;
        let sizes = [0, 1, 63, 64, 256, 257, 512];
        let len = self.dice.pick(&sizes);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !self.dice.one_in(4));
        flags.set(SendFlags::SOLICITED, self.dice.one_in(4));
        let (request, local) = (Request::Send { imm: self.dice.imm() }, self.outgoing(home, len));
        let at = Duration::from_micros(self.dice.below(200) as u64);
        let work = Work { id: op as u64, request, local, flags };
        let datagram =
            Datagram { at, to: (to < count).then_some(to), welcome: !self.dice.one_in(6), work };
        self.plan.sockets[from].sends.push(datagram);
    }
}

/// Queue pairs by which datagrams are sent and received.
#[derive(Default)]
pub struct Datagrams {
    qps: Vec<DatagramQp>,
}

struct DatagramQp {
    nic: usize,
    qp: QpHandle,
    qpn: Qpn,
    cq: CqHandle,
    /// The way to every socket, and to the group.
    ways: Vec<AhHandle>,
    posted: usize,
    sent: Vec<Wc>,
    got: Vec<Wc>,
}

impl Datagrams {
    pub fn open(world: &mut World<'_>) -> Self {
        let plan = world.plan;
        let mut qps = Vec::new();
        for socket in &plan.sockets {
            let depth = socket.recvs.len().max(1) + OPS_MAX * 2;
            let nics = &mut world.net.hosts;
            let (qp, cq) = datagram_qp(&mut nics[socket.nic], socket.kind, socket.qkey, depth);
            let gids: Vec<Gid> = plan.sockets.iter().map(|to| nics[to.nic].gid).collect();
            let nic = &mut nics[socket.nic];
            let mut ways = Vec::new();
            for gid in gids.into_iter().chain([group(plan)]) {
                ways.push(nic.engine.create_ah(nic.pd, AhAttr::new(gid, 0)).unwrap());
            }
            for (_, recv) in &socket.recvs {
                world.names.post_recv(&mut nic.engine, qp, recv).unwrap();
            }
            let qpn = nic.engine.qp_number(qp).unwrap();
            let (sent, got) = (Vec::new(), Vec::new());
            qps.push(DatagramQp { nic: socket.nic, qp, qpn, cq, ways, posted: 0, sent, got });
        }
        for &member in &plan.group {
            let datagram_qp = &qps[member];
            world.net.hosts[datagram_qp.nic]
                .engine
                .attach_multicast(datagram_qp.qp, group(plan))
                .unwrap();
        }
        Self { qps }
    }

    /// Returns the times at which the next datagrams are posted.
    pub fn later<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Duration> + 'a {
        plan.sockets.iter().zip(&self.qps).flat_map(|(socket, datagram_qp)| {
            socket.sends.iter().skip(datagram_qp.posted).map(|datagram| datagram.at)
        })
    }

    /// Posts what is due; whether anything was.
    pub fn feed(world: &mut World<'_>) -> bool {
        let mut fed = false;
        for from in 0..world.datagrams.qps.len() {
            let socket = &world.plan.sockets[from];
            while let Some(datagram) = socket.sends.get(world.datagrams.qps[from].posted)
                && world.is_time(datagram.at)
            {
                let qps = &world.datagrams.qps;
                let (qpn, right) = match datagram.to {
                    Some(to) => (qps[to].qpn, world.plan.sockets[to].qkey),
                    None => (Qpn::MULTICAST, 0x1111),
                };
                let qkey = QKey::new(if datagram.welcome { right & 0x7fff_ffff } else { 0x2222 });
                // The Q_Key of GSI is controlled: the queue pair's own is sent instead.
                let qkey =
                    if datagram.welcome && right >> 31 == 1 { QKey::new(right) } else { qkey };
                let ah = qps[from].ways[datagram.to.unwrap_or(qps.len())];
                let target = Target::Ud(UdTarget { ah, qpn, qkey });
                let datagram_qp = &mut world.datagrams.qps[from];
                let engine = &mut world.net.hosts[datagram_qp.nic].engine;
                match world.names.post(engine, datagram_qp.qp, target, &datagram.work) {
                    Err(PostError::QueueFull) => break,
                    posted => posted.unwrap(),
                }
                datagram_qp.posted += 1;
                fed = true;
            }
        }
        fed
    }

    pub fn poll(world: &mut World<'_>) -> bool {
        let mut polled = 0;
        for datagram_qp in &mut world.datagrams.qps {
            let mut all = Vec::new();
            polled += drain(&mut world.net.hosts[datagram_qp.nic].engine, datagram_qp.cq, &mut all);
            let (got, sent) = all.into_iter().partition::<Vec<_>, _>(|wc| wc.id.0 & RECV != 0);
            datagram_qp.got.extend(got);
            datagram_qp.sent.extend(sent);
        }
        polled > 0
    }
}

/// Whether a datagram from one socket is let in at another.
fn is_let_in(plan: &Plan, from: usize, datagram: &Datagram, to: usize) -> bool {
    let key = match datagram.to {
        Some(at) if at != to => return false,
        None if !plan.group.contains(&to) => return false,
        _ if !datagram.welcome => 0x2222,
        None => 0x1111,
        Some(_) => plan.sockets[to].qkey,
    };
    // A key that only the privileged may name is replaced by the sender's own.
    let key = if key >> 31 == 1 { plan.sockets[from].qkey } else { key };
    key == plan.sockets[to].qkey
}

/// Checks the outcome of the datagrams. Updates `expected` by what was received.
pub fn check(world: &World<'_>, expected: &mut [Vec<u8>], label: &str) {
    let plan = world.plan;
    for (number, (socket, datagram_qp)) in plan.sockets.iter().zip(&world.datagrams.qps).enumerate()
    {
        let signaled = |datagram: &&Datagram| datagram.work.flags.contains(SendFlags::SIGNALED);
        let want: Vec<_> =
            socket.sends.iter().filter(signaled).map(|l| (l.work.id, WcStatus::Success)).collect();
        let sent: Vec<_> = datagram_qp.sent.iter().map(|wc| (wc.id.0, wc.status)).collect();
        assert_eq!(sent, want, "{label}: datagrams sent by {number}");
        check_received(world, number, expected, label);
    }
}

fn check_received(world: &World<'_>, number: usize, expected: &mut [Vec<u8>], label: &str) {
    let (plan, datagram_qp) = (world.plan, &world.datagrams.qps[number]);
    let socket = &plan.sockets[number];
    // How often each datagram may come, and which of each sender's comes next if the network keeps
    // their order.
    let times = if plan.faults.duplicate > 0 { 2 } else { 1 };
    let mut left: Vec<(usize, usize, usize)> = Vec::new();
    for (from, sender) in plan.sockets.iter().enumerate() {
        let let_in = |datagram: &&Datagram| is_let_in(plan, from, datagram, number);
        left.extend(sender.sends.iter().filter(let_in).map(|l| (from, l.work.id as usize, times)));
    }
    let mut last = vec![[0, 0]; plan.sockets.len()];
    let to_group = |from: usize, op: usize| usize::from(plan.sockets[from].sends[op].to.is_none());
    for (wc, (_, recv)) in datagram_qp.got.iter().zip(&socket.recvs) {
        assert_eq!(wc.id.0, recv.id, "{label}: {number} fills its receives in order");
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv), "{label}");
        assert!(wc.flags().contains(WcFlags::GRH), "{label}");
        let bytes = written(world, recv, wc.byte_len as usize);
        let came = left.iter_mut().find(|(from, op, times)| {
            // Those to the group take another way than those to one.
            let in_order = !plan.keeps_order() || *op >= last[*from][to_group(*from, *op)];
            *times > 0 && in_order && is_from(world, *from, *op, wc, &bytes)
        });
        let (from, op, times) = came.unwrap_or_else(|| {
            panic!("{label}: {number} got a datagram that was not sent: {wc:?}")
        });
        *times -= 1;
        last[*from][to_group(*from, *op)] = *op + 1;
        put(expected, recv, &bytes);
    }
    if plan.is_clean() {
        assert!(left.iter().all(|(.., times)| *times == 0), "{label}: {number} misses {left:?}");
    }
}

/// Returns the bytes that a datagram wrote into a receive.
fn written(world: &World<'_>, recv: &Recv, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in &recv.pieces {
        let mut part = vec![0; piece.len];
        world.buffers[piece.key].read(piece.at, &mut part).unwrap();
        bytes.extend(part);
    }
    bytes.truncate(len);
    bytes
}

fn put(expected: &mut [Vec<u8>], recv: &Recv, mut bytes: &[u8]) {
    for piece in &recv.pieces {
        let (part, rest) = bytes.split_at(bytes.len().min(piece.len));
        expected[piece.key][piece.at..piece.at + part.len()].copy_from_slice(part);
        bytes = rest;
    }
}

/// Whether what came is a datagram of a socket's.
fn is_from(world: &World<'_>, from: usize, op: usize, wc: &Wc, bytes: &[u8]) -> bool {
    let work = &world.plan.sockets[from].sends[op].work;
    let Request::Send { imm } = work.request else { return false };
    let data = match &work.local {
        Local::Inline(data) => data.clone(),
        Local::Pieces(pieces) => {
            written(world, &Recv { id: 0, pieces: pieces.clone() }, usize::MAX)
        }
    };
    let datagram_qp = &world.datagrams.qps[from];
    let (area, payload) = bytes.split_at(AREA);
    let to = world.plan.sockets[from].sends[op]
        .to
        .map(|to| world.net.hosts[world.datagrams.qps[to].nic].gid);
    let way = (world.net.hosts[datagram_qp.nic].gid, to.unwrap_or_else(|| group(world.plan)));
    (wc.src_qp, wc.imm()) == (datagram_qp.qpn, imm)
        && is_header(area, way, world.plan.ipv6)
        && payload == data
}

/// Before the payload stands the network header: all of an IPv6 header, or zeroes and an IPv4
/// header.
fn is_header(area: &[u8], (Gid(source), Gid(destination)): (Gid, Gid), ipv6: bool) -> bool {
    if ipv6 {
        return area[0] >> 4 == 6 && area[8..24] == source && area[24..40] == destination;
    }
    area[..20] == [0; 20]
        && area[20] == 0x45
        && area[32..36] == source[12..]
        && area[36..40] == destination[12..]
}
