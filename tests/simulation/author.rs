//! Generator of stories.

use std::time::Duration;

use roce::engine::Notify;
use roce::link::fault::{Action, Faults};
use roce::verbs::{Access, Mtu, MwType, QpType, SendFlags};

use super::dice::Dice;
use super::model::{Local, Piece, Recv, Remote, Request};
use super::plan::{
    ALL, End, Flow, Found, Key, Kill, Link, Mode, Nic, Plan, RECV, Race, Srq, Story,
};

/// Maximum number of operations of a flow.
pub const OPS_MAX: usize = 10;
/// Number of operations of the flows of long stories.
const LONG_OPS: usize = 120;
/// Number of bytes between two pieces of memory, which no operation may touch, and their value.
const GAP: usize = 24;
const GAP_BYTE: u8 = 0xfe;
/// A key that there is not.
pub const NO_KEY: usize = usize::MAX;
/// The low byte that windows are bound under.
const LOW: u8 = 0x77;

pub struct Author {
    pub dice: Dice,
    pub plan: Plan,
    /// Whether every other message is long.
    long: bool,
}

fn micros(count: usize) -> Duration {
    Duration::from_micros(count as u64)
}

/// The story of a seed in a mode of recovery.
pub fn write(seed: u64, mode: Mode) -> Plan {
    let mut plan = write_usual(seed);
    plan.mode = mode;
    if mode.paths > 1 {
        // Packets on several paths overtake each other.
        plan.faults.jitter = plan.faults.jitter.max(micros(20));
    }
    plan
}

fn write_usual(seed: u64) -> Plan {
    let mut dice = Dice::new(seed);
    let nics = dice.pick(&[2, 2, 3, 4, 8]);
    let plan = Plan {
        mode: Mode::USUAL,
        nics: (0..nics).map(|_| nic(&mut dice)).collect(),
        faults: faults(&mut dice),
        chance: dice.roll(),
        keys: Vec::new(),
        srqs: Vec::new(),
        links: Vec::new(),
        races: Vec::new(),
        sockets: Vec::new(),
        group: Vec::new(),
        ipv6: dice.one_in(3),
    };
    let mut author = Author { dice, plan, long: false };
    author.races();
    author.srqs();
    for _ in 0..author.dice.pick(&[1, 1, 2, 3, 5]) {
        author.link();
    }
    author.fill_srqs();
    if author.dice.one_in(3) {
        author.sockets();
    }
    author.plan
}

/// A NIC: every other one as `SoftNic` configures it, the rest at random.
fn nic(dice: &mut Dice) -> Nic {
    let seed = dice.roll();
    let random = Nic {
        seed,
        window_packets: dice.pick(&[4, 16, 128]),
        quantum: dice.pick(&[1, 4, 16]),
        credits: dice.one_in(3),
        peer_window_bytes: None,
        ack_delay: Duration::ZERO,
        defers: 0,
        batch: 64,
    };
    let mut own = Dice::new(seed ^ 0x5eed);
    if own.one_in(2) {
        let defaults = roce::engine::Config::new(roce::wire::Gid::default());
        return Nic {
            seed,
            window_packets: defaults.window_packets,
            quantum: defaults.quantum,
            credits: defaults.advertise_credits,
            // Half of Linux' default receive buffer, or of the largest that the UDP link asks for.
            peer_window_bytes: Some(own.pick(&[106_496, 2 << 20])),
            ack_delay: micros(25),
            defers: own.pick(&[1, 1, 2, 5]),
            batch: 256,
        };
    }
    Nic {
        peer_window_bytes: own.pick(&[None, Some(106_496), Some(16_384), Some(5000)]),
        ack_delay: micros(own.pick(&[0, 5, 25, 400])),
        defers: own.pick(&[0, 1, 2, 5]),
        batch: own.pick(&[1, 7, 64]),
        ..random
    }
}

fn faults(dice: &mut Dice) -> Faults {
    let delay = micros(1 + dice.below(50));
    let bits_per_second = dice.pick(&[0, 10_000_000_000, 1_000_000_000]);
    if dice.one_in(3) {
        return Faults { delay, bits_per_second, ..Faults::default() };
    }
    Faults {
        delay,
        jitter: if dice.one_in(2) { Duration::ZERO } else { micros(dice.below(20)) },
        loss: dice.pick(&[0, 1000, 10_000, 30_000]),
        duplicate: dice.pick(&[0, 0, 20_000]),
        reorder: dice.pick(&[0, 0, 30_000]),
        corrupt: dice.pick(&[0, 0, 10_000]),
        mark: dice.pick(&[0, 0, 10_000]),
        bits_per_second,
        queue: dice.pick(&[0, 0, 64, 512]),
    }
}

impl Author {
    /// A region of a NIC's, with nothing in it.
    pub fn region(&mut self, nic: usize, rights: Access) -> usize {
        self.plan.keys.push(Key::Region { nic, rights, bytes: vec![GAP_BYTE; 8] });
        self.plan.keys.len() - 1
    }

    fn window(&mut self, nic: usize, kind: MwType) -> usize {
        self.plan.keys.push(Key::Window { nic, kind });
        self.plan.keys.len() - 1
    }

    /// A place in a region for these bytes, which begins at a multiple of eight.
    pub fn place(&mut self, key: usize, content: &[u8]) -> usize {
        let Key::Region { bytes, .. } = &mut self.plan.keys[key] else { unreachable!("a region") };
        let at = bytes.len();
        bytes.extend_from_slice(content);
        bytes.resize((bytes.len() + GAP).next_multiple_of(8), GAP_BYTE);
        at
    }

    /// A place for something that is yet to come.
    pub fn room(&mut self, key: usize, len: usize) -> Piece {
        Piece { key, at: self.place(key, &vec![0xee; len]), len }
    }

    /// A piece of memory as up to three.
    pub fn split(&mut self, piece: Piece) -> Vec<Piece> {
        let (first, second) = (self.dice.below(piece.len + 1), self.dice.below(piece.len + 1));
        let cuts = [0, first.min(second), first.max(second), piece.len];
        let part = |w: &[usize]| Piece { at: piece.at + w[0], len: w[1] - w[0], ..piece };
        match self.dice.below(3) {
            0 => vec![piece],
            1 => vec![part(&[0, first]), part(&[first, piece.len])],
            _ => cuts.windows(2).map(part).collect(),
        }
    }

    fn races(&mut self) {
        for nic in 0..self.plan.nics.len() {
            let key = self.region(nic, ALL);
            for _ in 0..self.dice.below(3) {
                let first = self.dice.roll().to_ne_bytes();
                let at = self.place(key, &first);
                self.plan.races.push(Race { key, at, ops: Vec::new() });
            }
        }
    }

    fn srqs(&mut self) {
        for nic in 0..self.plan.nics.len() {
            for xrc in [false, true] {
                let recvs = Vec::new();
                self.plan.srqs.push(Srq { nic, xrc, room: 0, messages: 0, recvs });
            }
        }
    }

    /// Adds as many receives for each shared queue as messages may come to it, and a few more.
    fn fill_srqs(&mut self) {
        for index in 0..self.plan.srqs.len() {
            let Srq { nic, room, messages, .. } = self.plan.srqs[index];
            if messages == 0 {
                continue;
            }
            let key = self.region(nic, ALL);
            for number in 0..messages + 4 {
                let piece = self.room(key, room);
                let pieces = self.split(piece);
                let late =
                    if self.dice.one_in(3) { micros(self.dice.below(400)) } else { micros(0) };
                let id = RECV | 1 << 31 | (index as u64) << 16 | number as u64;
                self.plan.srqs[index].recvs.push((late, Recv { id, pieces }));
            }
            self.plan.srqs[index].recvs.sort_by_key(|(at, _)| *at);
        }
    }

    fn link(&mut self) {
        let kind =
            self.dice.pick(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::XrcSend]);
        let count = self.plan.nics.len();
        let first = self.dice.below(count);
        // Now and then a NIC talks to itself.
        let step = if self.dice.one_in(10) { 0 } else { 1 + self.dice.below(count - 1) };
        let ends = [first, (first + step) % count].map(|nic| self.end(nic));
        let mtu =
            self.dice.pick(&[Mtu::M256, Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
        let mut link = Link {
            kind,
            mtu,
            ends,
            flows: [Flow::default(), Flow::default()],
            story: Story::Good,
            rules: Vec::new(),
            reads: self.dice.pick(&[1, 2, 4, 16]),
        };
        self.share_receives(&mut link);
        match self.dice.below(20) {
            0..3 if kind != QpType::Uc => self.chaos(&mut link),
            3..8 if kind != QpType::Uc => self.fault(&mut link),
            8..10 if kind == QpType::Rc => self.windows(&mut link),
            _ => self.good(&mut link),
        }
        if kind != QpType::Uc {
            self.rules(&mut link);
        }
        self.schedule(&mut link);
        self.plan.links.push(link);
    }

    fn end(&mut self, nic: usize) -> End {
        let dice = &mut self.dice;
        let drain = (micros(dice.below(100)), micros(100 + dice.below(300)));
        End {
            nic,
            srq: None,
            sig_all: dice.one_in(4),
            one_cq: dice.one_in(2),
            send_depth: dice.pick(&[2, 4, OPS_MAX + 2]),
            recv_depth: dice.pick(&[1, 3, OPS_MAX + 2]),
            psn: if dice.one_in(2) { dice.roll() as u32 | 0xff_ffc0 } else { dice.roll() as u32 },
            rnr_retry: 7,
            rights: ALL,
            notify: dice.pick(&[None, Some(Notify::Next), Some(Notify::Solicited)]),
            drain: dice.one_in(6).then_some(drain),
            kill: None,
            cut_off: false,
            home: self.region(nic, ALL),
        }
    }

    fn share_receives(&mut self, link: &mut Link) {
        for side in [0, 1] {
            let xrc = link.kind == QpType::XrcSend;
            if (xrc && side == 1) || (link.kind == QpType::Rc && self.dice.one_in(4)) {
                link.ends[side].srq = Some(link.ends[side].nic * 2 + usize::from(xrc));
            }
        }
    }

    /// Returns the length of a message.
    pub fn size(&mut self, mtu: usize) -> usize {
        if self.long && self.dice.one_in(2) {
            return 20_003;
        }
        match self.dice.below(12) {
            0 => 0,
            1 => 1,
            2 => 3,
            3 | 4 => 8 + self.dice.below(64),
            5 => mtu - 1,
            6 => mtu,
            7 => mtu + 1,
            8 => 2 * mtu,
            9 => self.dice.below(5 * mtu),
            10 => 3 * mtu + 7,
            _ => self.dice.pick(&[20_003, 64, 64, 64]),
        }
    }

    fn good(&mut self, link: &mut Link) {
        if link.kind != QpType::Uc && self.dice.one_in(10) {
            return self.flood(link);
        }
        let both = link.kind != QpType::XrcSend && self.dice.one_in(2);
        // With narrow sequence numbers, so many messages that they wrap several times.
        let long = cfg!(roce_narrow_psn) && link.kind != QpType::Uc && self.dice.one_in(12);
        if long {
            (self.long, link.mtu) = (true, Mtu::M256);
        }
        for flow in 0..if both { 2 } else { 1 } {
            for _ in 0..if long { LONG_OPS } else { 1 + self.dice.below(OPS_MAX - 2) } {
                if link.kind != QpType::Uc && self.dice.one_in(6) {
                    self.push_race(link, flow);
                } else {
                    self.push_good(link, flow);
                }
            }
        }
        self.long = false;
    }

    /// Long reads, all at once: more packets than there is room for on the way.
    fn flood(&mut self, link: &mut Link) {
        link.reads = 16;
        for _ in 0..2 + self.dice.below(5) {
            let content = self.dice.bytes(20_003);
            let (near, far) = (link.ends[0].home, link.ends[1].home);
            let from = Remote { key: far, low: 0, at: self.place(far, &content) };
            let local = self.incoming(near, content.len());
            self.push(link, 0, Request::Read { from }, local);
        }
    }

    fn chaos(&mut self, link: &mut Link) {
        link.story = Story::Chaos;
        let xrc = link.kind == QpType::XrcSend;
        for flow in 0..if xrc { 1 } else { 2 } {
            for _ in 0..2 + self.dice.below(OPS_MAX - 3) {
                self.push_good(link, flow);
            }
        }
        let kill = self.dice.pick(&[Kill::Destroy, Kill::Reset, Kill::Error]);
        let when = micros(self.dice.below(200));
        link.ends[self.dice.below(2)].kill = Some((when, kill));
    }

    /// A window that one end binds and the other uses, until it is taken back.
    fn windows(&mut self, link: &mut Link) {
        let kind = self.dice.pick(&[MwType::Type1, MwType::Type2]);
        let (home, len) = (link.ends[0].home, 1 + self.size(link.mtu.bytes()));
        let window = self.window(link.ends[0].nic, kind);
        let content = self.dice.bytes(len);
        let at = self.place(home, &content);
        let place = Remote { key: window, low: LOW, at };
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.push_good(link, 0);
        let bind = Request::Bind { window, now: 0, low: LOW, region: home, at, len, rights };
        let bound = self.push(link, 0, bind, Local::Pieces(Vec::new()));
        link.flows[0].posts[bound].work.flags |= SendFlags::SIGNALED;
        let local = self.incoming(link.ends[1].home, len);
        let op = self.push(link, 1, Request::Read { from: place }, local);
        link.flows[1].posts[op].after = Some((0, bound));
        let local = self.outgoing(link.ends[1].home, len);
        let op = self.push(link, 1, Request::Write { to: place, imm: None }, local);
        link.flows[1].posts[op].work.flags |= SendFlags::SIGNALED | SendFlags::FENCE;
        let outside = self.dice.one_in(4);
        if !outside {
            self.take_back(link, kind, op, (window, home, at));
            if self.dice.one_in(2) {
                return;
            }
        }
        // A request past its end, or after it, is NAKed; all others are done by then.
        let to = Remote { at: at + usize::from(outside), ..place };
        let local = self.outgoing(link.ends[1].home, len);
        let op = self.push(link, 1, Request::Write { to, imm: None }, local);
        let last = link.flows[0].posts.len() - 1;
        link.flows[0].posts[last].work.flags |= SendFlags::SIGNALED;
        link.flows[1].posts[op].after = Some((0, last));
        link.story = Story::Fault { flow: 1, op, found: Found::AtPeer };
    }

    /// Ends the use of a window, whose last use is request `used` of the second end.
    fn take_back(
        &mut self,
        link: &mut Link,
        kind: MwType,
        used: usize,
        (window, region, at): (usize, usize, usize),
    ) {
        let nothing = Local::Pieces(Vec::new());
        let (flow, op) = match kind {
            MwType::Type2 if self.dice.one_in(2) => {
                let local = self.outgoing(link.ends[1].home, 5);
                let request = Request::SendWithInv { key: window, low: LOW };
                (1, self.push(link, 1, request, local))
            }
            MwType::Type2 => {
                let request = Request::Invalidate { key: window, low: LOW };
                (0, self.push(link, 0, request, nothing))
            }
            MwType::Type1 => {
                let rights = Access::empty();
                let request =
                    Request::Bind { window, now: LOW, low: LOW, region, at, len: 0, rights };
                (0, self.push(link, 0, request, nothing))
            }
        };
        let post = &mut link.flows[flow].posts[op];
        post.work.flags |= SendFlags::SIGNALED;
        if flow == 0 {
            post.after = Some((1, used));
        }
    }

    /// Adds faults of single packets.
    fn rules(&mut self, link: &mut Link) {
        if !self.dice.one_in(4) {
            return;
        }
        let long = link.flows.iter().any(|flow| flow.posts.len() >= LONG_OPS);
        for _ in 0..1 + self.dice.below(4) {
            let action = match self.dice.below(5) {
                0 => Action::Drop,
                1 => Action::Duplicate,
                // Not for longer than half of the sequence numbers take, or it would be taken for a
                // new one.
                2 if long => Action::Drop,
                2 => Action::Delay(micros(self.dice.below(500))),
                3 => Action::Corrupt,
                _ => Action::Mark,
            };
            let (psn, nth) = (self.dice.below(12) as u32, 1 + self.dice.below(2) as u32);
            link.rules.push((self.dice.below(2), psn, nth, action));
        }
    }

    /// Times in order, or all of it at once.
    fn times(&mut self, count: usize) -> Vec<Duration> {
        let end = self.dice.pick(&[1, 400]);
        let mut times: Vec<_> = (0..count).map(|_| micros(self.dice.below(end))).collect();
        times.sort();
        times
    }

    /// Sets the times at which requests are posted.
    fn schedule(&mut self, link: &mut Link) {
        let hurried = link.kind == QpType::Uc || link.ends.iter().any(|end| end.rnr_retry < 7);
        for Flow { posts, recvs } in &mut link.flows {
            let (sends, receives) = (self.times(posts.len()), self.times(recvs.len()));
            if !hurried {
                posts.iter_mut().zip(sends).for_each(|(post, at)| post.at = at);
                recvs.iter_mut().zip(receives).for_each(|(recv, at)| recv.0 = at);
            }
        }
        // A program that never signals fills its send queue for good.
        for (Flow { posts, .. }, end) in link.flows.iter_mut().zip(&link.ends) {
            for post in posts.iter_mut().skip(end.send_depth - 1).step_by(end.send_depth) {
                post.work.flags |= SendFlags::SIGNALED;
            }
        }
        if hurried {
            link.ends.iter_mut().for_each(|end| end.recv_depth = OPS_MAX * 2);
        }
    }
}

/// Maximum number of bytes of inline data.
pub const INLINE: usize = 96;
