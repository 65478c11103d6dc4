//! Notification points: when CNPs are sent, how they travel, and whom they slow down.

use std::collections::BTreeMap;

use roce::engine::congestion::Congestion;
use roce::engine::{CnpScope, Counter, Ect, TransmitClasses};
use roce::verbs::QpType;
use roce::wire::{Batch, BthRepr, Extensions, Opcode, PacketRepr, Psn, RKey, Received, RethRepr};

use crate::Dice;
use crate::host::{Host, Sent, gid, us};

const LINE: u64 = 100_000_000_000;

fn dcqcn(kind: QpType) -> [Host; 2] {
    Host::pair(kind, |config| config.congestion = Congestion::dcqcn())
}

/// A host with queue pairs to several peers, which the test plays.
struct Receiver {
    host: Host,
    /// Peers by queue pair, and their next PSNs.
    peers: Vec<(u8, Psn)>,
}

impl Receiver {
    fn new(scope: CnpScope) -> Self {
        let mut host = Host::new(1, QpType::Rc, |config| {
            config.congestion = Congestion::dcqcn();
            config.cnp_scope = scope;
        });
        let peers: Vec<(u8, Psn)> = [2, 2, 3, 3, 3, 4].map(|peer| (peer, Psn::new(7))).to_vec();
        for (at, (peer, _)) in peers.iter().enumerate() {
            host.add_qp(gid(*peer), at);
        }
        Self { host, peers }
    }

    /// Lets a peer send a WRITE without data, with an ECN field.
    fn take(&mut self, at: usize, now: u64, ecn: u8) {
        let (peer, psn) = &mut self.peers[at];
        let bth = BthRepr::new(Opcode::RC_RDMA_WRITE_ONLY, self.host.qpns[at], *psn);
        *psn = psn.plus(1);
        let reth = RethRepr { va: 0, rkey: RKey::new(0), dma_len: 0 };
        let ext = Extensions { reth: Some(reth), ..Extensions::default() };
        let mut packet = Vec::new();
        PacketRepr::new(bth, ext, &[]).unwrap().emit(&mut packet);
        let received = Received {
            source: gid(*peer),
            destination: gid(1),
            source_port: 0xc000,
            ecn,
            network: &[],
            packet: &packet,
            payload: None,
        };
        self.host.engine.handle_packet(us(now), &received);
    }
}

#[test]
fn one_cnp_is_sent_in_an_interval_of_each_scope() {
    for scope in [CnpScope::Qp, CnpScope::Peer, CnpScope::Port] {
        for seed in 0..20 {
            let (mut dice, mut receiver) = (Dice::new(seed), Receiver::new(scope));
            let (mut now, mut after, mut marks) = (0, BTreeMap::new(), 0);
            for _ in 0..400 {
                now += dice.below([1, 4, 40, 90][(seed % 4) as usize]);
                let qp = dice.below(6) as usize;
                let ecn = [0, 2, 3][dice.below(3) as usize];
                receiver.take(qp, now, ecn);
                let key = match scope {
                    CnpScope::Qp => qp,
                    CnpScope::Peer => receiver.peers[qp].0.into(),
                    CnpScope::Port => 0,
                };
                marks += u64::from(ecn == 3);
                let due = ecn == 3 && after.get(&key).is_none_or(|after| now >= *after);
                if due {
                    after.insert(key, now + 50);
                }
                let sent = receiver.host.all(us(now));
                let cnps: Vec<&Sent> = sent.iter().filter(|packet| packet.is_cnp()).collect();
                assert_eq!(cnps.len(), usize::from(due), "{scope:?}, seed {seed}, {now} µs");
                for cnp in cnps {
                    assert_eq!(cnp.path.destination, gid(receiver.peers[qp].0));
                }
            }
            assert_eq!(receiver.host.count(Counter::CongestionMarked), marks);
        }
    }
}

#[test]
fn marks_on_read_responses_slow_the_responder_down() {
    let [mut a, mut b] = dcqcn(QpType::Rc);
    let memory = b.memory();
    a.read(memory, 64 << 10);
    for request in a.all(us(1)) {
        b.take(us(2), &request, 2);
    }
    let responses = b.all(us(2));
    assert!(responses.len() >= 64);
    assert!(responses.iter().all(|response| response.ecn() == 2), "READ responses are ECT(0)");
    a.take(us(3), &responses[0], 3);
    a.take(us(3), &responses[1], 3);
    let cnps = a.all(us(3));
    assert_eq!((cnps.len(), cnps[0].is_cnp()), (1, true));
    assert_eq!((a.rate(), b.rate()), (LINE, LINE));
    b.take(us(4), &cnps[0], 0);
    assert_eq!((a.rate(), b.rate()), (LINE, LINE / 2), "the responder is the reaction point");
    assert_eq!((a.count(Counter::RateCut), b.count(Counter::RateCut)), (0, 1));
}

#[test]
fn cnps_have_a_code_point_and_a_priority_of_their_own_and_data_is_ecn_capable() {
    for kind in [QpType::Rc, QpType::Uc] {
        let [mut a, mut b] = dcqcn(kind);
        let memory = b.memory();
        a.write(memory, 2048);
        let data = a.all(us(1));
        assert_eq!(data.len(), 2);
        for packet in &data {
            assert_eq!((packet.path.traffic_class, packet.path.sl), (2, 0), "ECT(0)");
            b.take(us(2), packet, 3);
        }
        let answers = b.all(us(2));
        let cnp = answers.iter().find(|packet| packet.is_cnp()).expect("a CNP");
        assert_eq!((cnp.path.traffic_class, cnp.path.sl), (48 << 2, 6), "not ECT");
        assert_eq!(cnp.bytes.len(), 12 + 16);
        for answer in answers.iter().filter(|packet| !packet.is_cnp()) {
            assert_eq!(answer.path.traffic_class, 2, "an ACK goes as data does");
        }
    }
}

#[test]
fn without_congestion_control_nothing_is_ecn_capable_and_no_rate_changes() {
    let [mut a, mut b] = Host::pair(QpType::Rc, |_| {});
    let memory = b.memory();
    a.write(memory, 1 << 20);
    let data = a.all(us(1));
    assert_eq!(data.len(), 1024, "nothing is paced");
    assert!(data.iter().all(|packet| packet.path.traffic_class == 0));
    b.take(us(2), &data[0], 3);
    let cnps = b.all(us(2));
    assert_eq!((cnps.len(), cnps[0].is_cnp()), (1, true));
    assert_eq!(cnps[0].path, roce::wire::Path { ..cnps[0].path });
    assert_eq!(cnps[0].path.traffic_class, 0);
    a.take(us(3), &cnps[0], 0);
    assert_eq!((a.rate(), a.count(Counter::CnpReceived)), (LINE, 1));
    assert_eq!((a.count(Counter::RateCut), a.count(Counter::PacedWait)), (0, 0));
}

#[test]
fn ect_can_be_chosen_alone() {
    for (ect, on, class) in [
        (Ect::Always, false, 2),
        (Ect::Never, true, 0),
        (Ect::Controlled, true, 2),
        (Ect::Controlled, false, 0),
    ] {
        let [mut a, b] = Host::pair(QpType::Rc, |config| {
            config.ect = ect;
            config.congestion = if on { Congestion::dcqcn() } else { Congestion::None };
        });
        a.write(b.memory(), 8);
        assert_eq!(a.all(us(1))[0].path.traffic_class, class, "{ect:?}, {on}");
    }
}

#[test]
fn datagrams_cause_no_cnp_and_have_no_rate() {
    let mut host = Host::new(1, QpType::Ud, |config| config.congestion = Congestion::Fixed(1000));
    assert_eq!(host.rate(), LINE);
    assert!(host.all(us(1)).is_empty());
}

/// Packets of some classes.
fn allowed(host: &mut Host, now: u64, classes: TransmitClasses) -> Vec<Sent> {
    let mut batch = Batch::new(64);
    let count = host.engine.poll_transmit_class(us(now), &mut batch, classes);
    assert_eq!(count, batch.len());
    let sent = |(path, bytes): (&roce::wire::Path, &[u8])| Sent {
        path: *path,
        bytes: bytes[..bytes.len() - 4].to_vec(),
    };
    batch.iter().map(sent).collect()
}

#[test]
fn cnps_and_acks_pass_data_that_is_paused() {
    let [mut a, mut b] = dcqcn(QpType::Rc);
    let (to_a, to_b) = (a.memory(), b.memory());
    b.write(to_a, 16 << 10);
    a.write(to_b, 1024);
    a.read(to_b, 4096);
    let requests = a.all(us(1));
    b.take(us(2), &requests[0], 3);
    let control = TransmitClasses::empty();
    let passed = allowed(&mut b, 2, control);
    let opcodes: Vec<Opcode> = passed.iter().map(Sent::opcode).collect();
    assert_eq!(opcodes, [Opcode::CNP, Opcode::RC_ACKNOWLEDGE]);
    assert!(!b.engine.has_transmit(), "what waits is not offered");
    // A READ response is data, and so it waits.
    b.take(us(3), &requests[1], 0);
    assert!(allowed(&mut b, 3, control).is_empty());
    let others = TransmitClasses::DATA.difference(TransmitClasses::priority(0));
    assert!(allowed(&mut b, 4, others).is_empty(), "another priority");
    // The first packet behind the pause may go at once, the others wait for the pacer.
    let data = allowed(&mut b, 5, TransmitClasses::priority(0));
    assert!(data.len() >= 20 && data.iter().all(|packet| !packet.is_cnp()), "{}", data.len());
}

#[test]
fn a_queue_pair_that_is_destroyed_while_it_is_paused_leaves_nothing_behind() {
    let [mut a, b] = dcqcn(QpType::Rc);
    a.write(b.memory(), 4096);
    assert!(allowed(&mut a, 1, TransmitClasses::empty()).is_empty());
    a.engine.destroy_qp(a.qp).unwrap();
    assert!(allowed(&mut a, 2, TransmitClasses::DATA).is_empty());
}
