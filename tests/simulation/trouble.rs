//! Stories in which one request fails.

use roce::verbs::{Access, QpType};

use super::author::{Author, NO_KEY, OPS_MAX};
use super::model::{Local, Piece, Remote, Request, message_len, takes_receive};
use super::plan::{ALL, Found, Link, Story};

/// Error in a request.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    WrongKey,
    OutOfRange,
    NoRight,
    QueuePairForbids,
    Misaligned,
    NoReceive,
    Unreachable,
    LocalKey,
    AnswerKey,
    ReceiveTooShort,
    ReceiveKey,
    NothingToInvalidate,
    BadBind,
}

const TROUBLES: [Trouble; 13] = [
    Trouble::WrongKey,
    Trouble::OutOfRange,
    Trouble::NoRight,
    Trouble::QueuePairForbids,
    Trouble::Misaligned,
    Trouble::NoReceive,
    Trouble::Unreachable,
    Trouble::LocalKey,
    Trouble::AnswerKey,
    Trouble::ReceiveTooShort,
    Trouble::ReceiveKey,
    Trouble::NothingToInvalidate,
    Trouble::BadBind,
];

impl Author {
    /// Good requests, one that fails, and more behind it.
    pub fn fault(&mut self, link: &mut Link) {
        let mut trouble = self.dice.pick(&TROUBLES);
        if matches!(trouble, Trouble::NoReceive | Trouble::ReceiveTooShort | Trouble::ReceiveKey) {
            // That needs a receive queue of one's own.
            match link.kind {
                QpType::XrcSend => trouble = Trouble::WrongKey,
                _ => link.ends[1].srq = None,
            }
        }
        let before = match trouble {
            Trouble::Unreachable => 0,
            _ => self.dice.below(OPS_MAX / 2),
        };
        for _ in 0..before {
            match trouble {
                Trouble::QueuePairForbids => self.push_harmless(link),
                _ => self.push_good(link, 0),
            }
        }
        let op = self.push_trouble(link, trouble);
        for _ in 0..self.dice.below(OPS_MAX / 2) {
            self.push_good(link, 0);
        }
        let found = match trouble {
            Trouble::NoReceive | Trouble::Unreachable | Trouble::LocalKey | Trouble::BadBind => {
                Found::Locally
            }
            Trouble::AnswerKey => Found::InAnswer,
            _ => Found::AtPeer,
        };
        link.story = Story::Fault { flow: 0, op, found };
        if matches!(trouble, Trouble::NoReceive) {
            // Neither it nor what is behind it finds one.
            let behind = |id: u64| id as u32 as usize >= op;
            link.flows[0].recvs.retain(|(_, recv)| !behind(recv.id));
            link.ends[0].rnr_retry = self.dice.below(4) as u32;
        }
    }

    /// A send, which needs no right of the queue pair's.
    fn push_harmless(&mut self, link: &mut Link) {
        let len = self.size(link.mtu.bytes());
        let local = self.outgoing(link.ends[0].home, len);
        let imm = self.dice.imm();
        self.push(link, 0, Request::Send { imm }, local);
    }

    /// A request that reaches for `place`.
    fn reaching(&mut self, link: &Link, place: Remote, least: usize) -> (Request, Local) {
        let near = link.ends[0].home;
        let len = least + self.size(link.mtu.bytes());
        match self.dice.below(4) {
            0 => (Request::Write { to: place, imm: self.dice.imm() }, self.outgoing(near, len)),
            1 => (Request::Read { from: place }, self.incoming(near, len)),
            2 => {
                let at = Remote { at: place.at / 8 * 8, ..place };
                (Request::Add { at, add: 1 }, self.incoming(near, 8))
            }
            _ => {
                let at = Remote { at: place.at / 8 * 8, ..place };
                (Request::Store { at }, self.outgoing(near, 8))
            }
        }
    }

    fn push_trouble(&mut self, link: &mut Link, trouble: Trouble) -> usize {
        let (request, local) = self.troubled(link, trouble);
        let op = self.push(link, 0, request, local);
        if takes_receive(&request)
            && matches!(trouble, Trouble::ReceiveTooShort | Trouble::ReceiveKey)
        {
            self.spoil_receive(link, trouble);
        }
        op
    }

    /// Returns a request that fails for the given reason, and prepares the reason.
    fn troubled(&mut self, link: &mut Link, trouble: Trouble) -> (Request, Local) {
        let [near, far] = [link.ends[0].home, link.ends[1].home];
        let nothing = Local::Pieces(Vec::new());
        let inside = Remote { key: far, low: 0, at: 8 };
        match trouble {
            Trouble::WrongKey => self.reaching(link, Remote { key: NO_KEY, ..inside }, 1),
            Trouble::OutOfRange => {
                let at = self.dice.pick(&[1 << 30, 1 << 40]);
                self.reaching(link, Remote { at, ..inside }, 1)
            }
            Trouble::NoRight => {
                let key = self.region(link.ends[1].nic, Access::LOCAL_WRITE);
                self.place(key, &[0xcc; 30_000]);
                self.reaching(link, Remote { key, ..inside }, 1)
            }
            Trouble::QueuePairForbids => {
                let closed = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                link.ends[1].rights = ALL.difference(closed);
                self.reaching(link, inside, 1)
            }
            Trouble::Misaligned => {
                let at = Remote { at: 12, ..inside };
                (Request::Add { at, add: 1 }, self.incoming(near, 8))
            }
            Trouble::NoReceive | Trouble::Unreachable => {
                let len = self.size(link.mtu.bytes());
                link.ends[1].cut_off = matches!(trouble, Trouble::Unreachable);
                (Request::Send { imm: self.dice.imm() }, self.outgoing(near, len))
            }
            Trouble::LocalKey => {
                let len = 1 + self.size(link.mtu.bytes());
                (
                    Request::Send { imm: None },
                    Local::Pieces(vec![Piece { key: NO_KEY, at: 0, len }]),
                )
            }
            Trouble::AnswerKey => {
                let read_only = self.region(link.ends[0].nic, Access::empty());
                let place = self.place(read_only, &[1; 8]);
                let pieces = vec![Piece { key: read_only, at: place, len: 8 }];
                let at = self.place(far, &[7; 8]);
                (Request::Add { at: Remote { at, ..inside }, add: 5 }, Local::Pieces(pieces))
            }
            Trouble::ReceiveTooShort | Trouble::ReceiveKey => {
                let len = 1 + self.size(link.mtu.bytes());
                (Request::Send { imm: None }, self.outgoing(near, len))
            }
            Trouble::NothingToInvalidate => {
                let len = self.size(link.mtu.bytes());
                (Request::SendWithInv { key: far, low: 0 }, self.outgoing(near, len))
            }
            Trouble::BadBind => {
                let bind = Request::Bind {
                    window: NO_KEY,
                    now: 0,
                    low: 1,
                    region: near,
                    at: 0,
                    len: 8,
                    rights: Access::REMOTE_READ,
                };
                (bind, nothing)
            }
        }
    }

    /// Makes the last receive too short, or one that may not be written.
    fn spoil_receive(&mut self, link: &mut Link, trouble: Trouble) {
        let len = message_len(&link.flows[0].posts.last().unwrap().work);
        let piece = match trouble {
            Trouble::ReceiveKey => Piece { key: NO_KEY, at: 0, len },
            _ => {
                let short = self.dice.below(len);
                let key = link.ends[1].home;
                Piece { key, at: self.place(key, &vec![0xdd; short]), len: short }
            }
        };
        link.flows[0].recvs.last_mut().unwrap().1.pieces = vec![piece];
    }
}
