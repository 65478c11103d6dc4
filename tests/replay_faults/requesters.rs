//! Requesters with a flaw, one at a time: scripts in place of an engine, answered by one.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use roce::link::fault::Action;
use roce::verbs::Mtu;
use roce::wire::{Opcode, Packet, Qpn, RKey};

use super::craft::*;
use super::device::{Device, Mark, script};
use super::flaw::{AT_REQUESTER, EVERYWHERE, Flaw, flaws};
use super::management::LEAD;
use super::setup::{Connection, FaultRule, Setup};
use super::two_hosts::pair::PairAttr;
use super::wire::Hop;
use super::world::BASE;

/// The first PSN of the script.
const PSN: u32 = 100;
const MTU: usize = 1024;
/// A retransmission timeout of 67 ms.
const LONG: u32 = 14;

/// A script of packets, with times in microseconds.
struct Script {
    qps: Vec<Qpn>,
    /// Keys of the responder: for everything, read-only, for a page, of another protection domain.
    keys: [RKey; 4],
    at: Cell<u64>,
    packets: RefCell<Vec<(u64, Mark, Vec<u8>)>>,
}

impl Script {
    /// Sends packets at this time from now on, and right after.
    fn at(&self, micros: u64) -> &Self {
        self.at.set(micros);
        self
    }

    fn put(&self, mark: Mark, packet: Vec<u8>) -> &Self {
        self.packets.borrow_mut().push((self.at.get(), mark, packet));
        self
    }

    fn send(&self, packet: Request) -> &Self {
        self.put(Mark::Honest, packet.build())
    }

    fn broken(&self, packet: Request) -> &Self {
        self.put(Mark::Broken, packet.build())
    }

    /// A SEND packet.
    fn packet(&self, opcode: Opcode, offset: u32, len: usize) -> Request {
        Request::new(opcode, self.qps[0], PSN.wrapping_add(offset), len)
    }

    /// A SEND of one packet.
    fn only(&self, offset: u32) -> Request {
        self.packet(Opcode::RC_SEND_ONLY, offset, 100)
    }

    /// A request with a RETH, through the key for everything.
    fn access(&self, opcode: Opcode, offset: u32, len: usize, total: u32) -> Request {
        self.packet(opcode, offset, len).reth(BASE, self.keys[0], total)
    }

    fn read(&self, offset: u32, len: u32) -> Request {
        self.access(Opcode::RC_RDMA_READ_REQUEST, offset, 0, len)
    }

    /// A message of two packets, so that the path MTU is known.
    fn long(&self) -> &Self {
        self.send(self.packet(Opcode::RC_SEND_FIRST, 0, MTU));
        self.send(self.packet(Opcode::RC_SEND_LAST, 1, 10))
    }
}

fn scripted(write: fn(&Script) -> &Script) -> Device {
    script(move |cx| {
        let qps = cx.qpns.iter().map(|qpns| qpns[1]).collect();
        let (at, packets) = (Cell::new(0), RefCell::default());
        let script = Script { qps, keys: cx.peer_keys, at, packets };
        write(&script);
        for (at, mark, packet) in script.packets.into_inner() {
            cx.send_as(&packet, mark, LEAD + Duration::from_micros(at));
        }
    })
}

fn is_behind_first(packet: &Packet<'_>) -> bool {
    is_request(packet) && packet.bth().psn().get() > PSN
}

/// Enough receives, and nothing to do for engines.
fn plain() -> Setup {
    let connection = Connection {
        attr: PairAttr { psns: [PSN, 5000], ..PairAttr::default() },
        receives: [Vec::new(), vec![Duration::ZERO; 16]],
        ..Connection::default()
    };
    Setup::new(vec![connection])
}

/// A set-up that the connection manager tells.
fn managed() -> Setup {
    let mut setup = plain();
    setup.connections[0].is_managed = true;
    setup.connections[0].attr.timeout = LONG;
    setup
}

fn lossy(sender: usize, hop: Hop, which: fn(&Packet<'_>) -> bool, nth: usize, of: Setup) -> Setup {
    let rule = FaultRule { sender, hop, which, nth, action: Action::Drop };
    Setup { rules: vec![rule], ..of }
}

/// The second packet of the response to a READ is lost.
fn read_is_retried() -> Setup {
    lossy(1, Hop::B, is_read_response, 2, plain())
}

/// The ACK is lost.
fn send_is_retried() -> Setup {
    lossy(1, Hop::B, is_ack, 1, plain())
}

const ORDER: &[&str] = &["request-psn-order"];
const SEQUENCE: &[&str] = &["request-opcode-sequence"];
const LENGTH: &[&str] = &["request-payload-length"];
const DMA: &[&str] = &["write-dma-length"];
const RETRY: &[&str] = &["read-retry-reth"];
const CHANGED: &[&str] = &["retransmission-changed"];
const CAUSE: &[&str] = &["retransmission-cause"];

flaws! {
    /// PSNs and positions.
    ORDERING: requester {
        "psn-skipped", ORDER, AT_REQUESTER,
            plain() => scripted(|s| s.send(s.only(0)).send(s.only(1)).broken(s.only(3)));
        "psn-repeated", &["request-psn-order", "retransmission-changed"], EVERYWHERE,
            plain() => scripted(|s| {
                s.send(s.only(0)).send(s.only(1)).at(50);
                s.broken(Request { seed: 99, len: 60, ..s.only(1) })
            });
        "read-psn-advance", ORDER, EVERYWHERE,
            plain() => scripted(|s| s.long().at(50).send(s.read(2, 3000)).broken(s.only(3)));
        "starting-psn", &["starting-psn", "request-psn-order"], AT_REQUESTER,
            managed() => scripted(|s| s.broken(s.only(5)));
        "window-exceeded", &["psn-window"], &[0, 1],
            {
                // The responder, which could not tell old PSNs from new ones, gets only the first
                // request.
                let mut setup = lossy(0, Hop::B, is_behind_first, 0, managed());
                setup.connections[0].attr.mtu = Mtu::M256;
                setup
            } => scripted(|s| {
                s.send(s.only(0)).at(20).send(s.read(1, 1 << 30));
                s.send(s.read(1 + (1 << 22), 1 << 30)).broken(s.only(1 + (1 << 23)))
            });
        "destination-qp-changes", &["request-psn-order", "request-qp"], AT_REQUESTER,
            {
                let mut setup = plain();
                let mut other = setup.connections[0].clone();
                other.attr.psns = [700_000, 900_000];
                setup.connections.push(other);
                setup
            } => scripted(|s| {
                let other = Request { qp: s.qps[1], psn: 700_000, ..s.only(0) };
                s.send(s.only(0)).send(other);
                s.at(20).broken(Request { qp: s.qps[1], ..s.only(1) })
            });
        "middle-after-only", SEQUENCE, EVERYWHERE,
            plain() =>
            scripted(|s| s.send(s.only(0)).broken(s.packet(Opcode::RC_SEND_MIDDLE, 1, MTU)));
        "first-without-last", SEQUENCE, EVERYWHERE,
            plain() =>
            scripted(|s| s.send(s.packet(Opcode::RC_SEND_FIRST, 0, MTU)).broken(s.only(1)));
        "interleaved-messages", SEQUENCE, EVERYWHERE,
            plain() => scripted(|s| {
                s.send(s.access(Opcode::RC_RDMA_WRITE_FIRST, 0, MTU, 3000));
                s.broken(s.packet(Opcode::RC_SEND_MIDDLE, 1, MTU))
            });
        "read-inside-message", SEQUENCE, EVERYWHERE,
            plain() =>
            scripted(|s| s.send(s.packet(Opcode::RC_SEND_FIRST, 0, MTU)).broken(s.read(1, 100)));
        "invalidate-inside-message", SEQUENCE, EVERYWHERE,
            plain() => scripted(|s| {
                s.send(s.packet(Opcode::RC_SEND_FIRST, 0, MTU));
                let only = s.packet(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 1, 10);
                s.broken(Request { invalidate: Some(s.keys[2]), ..only })
            });
    }
}

flaws! {
    /// Lengths and fields.
    SHAPE: requester {
        "middle-not-mtu", LENGTH, EVERYWHERE,
            plain() => scripted(|s| {
                s.long().send(s.packet(Opcode::RC_SEND_FIRST, 2, MTU));
                s.broken(s.packet(Opcode::RC_SEND_MIDDLE, 3, MTU - 4))
            });
        "only-over-mtu", LENGTH, EVERYWHERE,
            managed() => scripted(|s| s.long().broken(s.packet(Opcode::RC_SEND_ONLY, 2, 1500)));
        "last-empty", LENGTH, EVERYWHERE,
            plain() => scripted(|s| {
                s.long().send(s.packet(Opcode::RC_SEND_FIRST, 2, MTU));
                s.broken(s.packet(Opcode::RC_SEND_LAST, 3, 0))
            });
        "dma-length-too-long", DMA, EVERYWHERE,
            plain() => scripted(|s| {
                s.send(s.access(Opcode::RC_RDMA_WRITE_FIRST, 0, MTU, 3000));
                s.broken(s.packet(Opcode::RC_RDMA_WRITE_LAST, 1, 500))
            });
        "dma-length-too-short", DMA, EVERYWHERE,
            plain() => scripted(|s| s.broken(s.access(Opcode::RC_RDMA_WRITE_ONLY, 0, 100, 60)));
        "dma-length-over-2g", &["dma-length-limit"], EVERYWHERE,
            plain() => scripted(|s| s.long().broken(s.read(2, (1 << 31) + 1)));
        "nonzero-pad-bytes", &["request-pad"], EVERYWHERE,
            plain() => scripted(|s| {
                let packet = s.packet(Opcode::RC_SEND_ONLY, 0, 5).build();
                s.put(Mark::Broken, with_last_byte(&packet, 1))
            });
        "wrong-pad-count", &["request-pad", "write-dma-length"], EVERYWHERE,
            plain() => scripted(|s| {
                let packet = s.access(Opcode::RC_RDMA_WRITE_ONLY, 0, 5, 5).build();
                s.put(Mark::Broken, with_pad_count(&packet, 1))
            });
        "version-nonzero", &["header-version"], EVERYWHERE,
            plain() =>
            scripted(|s| s.send(s.only(0)).put(Mark::Broken, with_version(&s.only(1).build(), 1)));
        "request-wrong-pkey", &["request-pkey"], EVERYWHERE,
            plain() =>
            scripted(|s| {
                s.send(s.only(0)).put(Mark::Broken, with_pkey(&s.only(1).build(), 0x8001))
            });
        "solicited-first", &["solicited-event"], EVERYWHERE,
            plain() => scripted(|s| {
                let first = s.packet(Opcode::RC_SEND_FIRST, 0, MTU).build();
                s.put(Mark::Broken, with_solicited(&first));
                s.send(s.packet(Opcode::RC_SEND_LAST, 1, 10))
            });
    }
}

flaws! {
    /// Packets that are sent once more, and when.
    RETRANSMISSIONS: requester {
        "read-retry-address", RETRY, EVERYWHERE,
            read_is_retried() =>
            scripted(|s| s.send(s.read(0, 3000)).at(2000).broken(s.read(1, 3000 - MTU as u32)));
        "read-retry-length", RETRY, EVERYWHERE,
            read_is_retried() => scripted(|s| {
                let retry = s.read(1, 0).reth(BASE + MTU as u64, s.keys[0], 3000);
                s.send(s.read(0, 3000)).at(2000).broken(retry)
            });
        "read-retry-key", RETRY, EVERYWHERE,
            read_is_retried() => scripted(|s| {
                let retry = s.read(1, 0).reth(BASE + MTU as u64, s.keys[1], 3000 - MTU as u32);
                s.send(s.read(0, 3000)).at(2000).broken(retry)
            });
        "retransmission-changed", CHANGED, EVERYWHERE,
            send_is_retried() =>
            scripted(|s| s.send(s.only(0)).at(5000).broken(Request { seed: 1, ..s.only(0) }));
        "retransmission-other-opcode", CHANGED, EVERYWHERE,
            send_is_retried() => scripted(|s| {
                s.send(s.only(0)).at(5000);
                s.broken(s.access(Opcode::RC_RDMA_WRITE_ONLY, 0, 100, 100))
            });
        "retransmission-without-cause", CAUSE, AT_REQUESTER,
            lossy(1, Hop::B, is_ack, 1, managed()) =>
            scripted(|s| s.send(s.only(0)).at(100).broken(s.only(0)));
        "retransmission-of-acknowledged", CAUSE, AT_REQUESTER,
            managed() => scripted(|s| s.send(s.only(0)).at(100).broken(s.only(0)));
        "retransmission-from-wrong-psn", &["retransmission-start"], AT_REQUESTER,
            lossy(0, Hop::A, is_request, 2, plain()) => scripted(|s| {
                s.send(s.only(0)).send(s.only(1)).send(s.only(2)).send(s.only(3));
                s.at(50).broken(s.only(2)).put(Mark::Consequence, s.only(3).build())
            });
        "rnr-timer-ignored", &["rnr-timer"], AT_REQUESTER,
            {
                let mut setup = managed();
                setup.connections[0].receives[1] = vec![Duration::from_millis(5)];
                setup
            } => scripted(|s| s.send(s.only(0)).at(20).broken(s.only(0)));
        "request-after-fatal-nak", &["request-after-fatal-nak"], AT_REQUESTER,
            plain() => scripted(|s| {
                let write = s.packet(Opcode::RC_RDMA_WRITE_ONLY, 0, 100);
                s.send(write.reth(BASE, s.keys[1], 100)).at(1000).broken(s.only(1))
            });
        "retries-beyond-count", &["retry-count"], &[0, 1],
            {
                let mut setup = lossy(0, Hop::B, is_request, 0, managed());
                setup.connections[0].attr.retry_count = 2;
                setup
            } => scripted(|s| {
                s.send(s.only(0)).at(100_000).send(s.only(0)).at(200_000).send(s.only(0));
                s.at(300_000).broken(s.only(0))
            });
        "rnr-retries-beyond-count", &["rnr-retry-count"], EVERYWHERE,
            {
                let mut setup = managed();
                setup.connections[0].attr.rnr_retry = 1;
                setup.connections[0].receives[1] = vec![Duration::from_millis(10)];
                setup
            } =>
            scripted(|s| s.send(s.only(0)).at(1000).send(s.only(0)).at(2000).broken(s.only(0)));
    }
}

flaws! {
    /// Packets in flight at once.
    LIMITS: requester {
        "reads-over-depth", &["reads-in-flight"], AT_REQUESTER,
            {
                let mut setup = managed();
                setup.connections[0].attr.reads = 2;
                setup
            } =>
            scripted(|s| s.send(s.read(0, 2000)).send(s.read(2, 2000)).broken(s.read(4, 2000)));
        // Elsewhere the ACK that told of the limit may have been lost behind the capture point.
        "credits-exceeded", &["credits"], AT_REQUESTER,
            {
                let mut setup = plain();
                setup.connections[0].receives[1] = vec![Duration::ZERO; 2];
                Setup { advertise_credits: true, ..setup }
            } => scripted(|s| {
                // So late that it has handled the ACK.
                s.send(s.only(0)).at(300).send(s.only(1)).send(s.only(2)).broken(s.only(3))
            });
    }
}

/// All of them.
pub const REQUESTERS: &[&[Flaw]] = &[ORDERING, SHAPE, RETRANSMISSIONS, LIMITS];
