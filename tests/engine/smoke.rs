//! Every operation once, over a wire that loses nothing, and over one that loses.

use roce::verbs::{FlushLevel, FlushPlacement, Mtu, QpState, QpType, SendOp, WcOpcode, WcStatus};
use roce::wire::Operation;

use super::pair::Pair;

fn fill(pair: &Pair, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    pair.a.buffer.write(0, &bytes).unwrap();
    bytes
}

fn remote(pair: &Pair, offset: u64) -> (u64, roce::wire::RKey) {
    (pair.b.buffer.addr() + offset, pair.b.mr.rkey())
}

fn read_b(pair: &Pair, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pair.b.buffer.read(offset, &mut bytes).unwrap();
    bytes
}

const SIZES: [usize; 9] = [0, 1, 3, 1023, 1024, 1025, 5000, 20_003, 300_000];

#[test]
fn a_send_of_any_size_arrives() {
    for mtu in Mtu::ALL {
        for size in SIZES {
            for kind in [QpType::Rc, QpType::Uc] {
                let mut pair = Pair::new(kind, *mtu);
                let bytes = fill(&pair, size);
                pair.b.recv(7, 1000, 400_000);
                pair.a.send(3, SendOp::Send { imm: Some([1, 2, 3, 4]) }, 0, size as u32);
                pair.run();
                let (sent, got) = (pair.a.completions(), pair.b.completions());
                assert_eq!(sent.len(), 1, "{kind} {mtu} {size}");
                assert_eq!((sent[0].id.0, sent[0].status), (3, WcStatus::Success));
                assert_eq!(got.len(), 1);
                assert_eq!((got[0].id.0, got[0].status), (7, WcStatus::Success));
                assert_eq!((got[0].byte_len as usize, got[0].imm()), (size, Some([1, 2, 3, 4])));
                assert_eq!(read_b(&pair, 1000, size), bytes);
            }
        }
    }
}

#[test]
fn a_write_of_any_size_arrives() {
    for size in SIZES {
        for kind in [QpType::Rc, QpType::Uc] {
            let mut pair = Pair::new(kind, Mtu::M1024);
            let bytes = fill(&pair, size);
            let (remote_addr, rkey) = remote(&pair, 500);
            pair.a.send(1, SendOp::Write { remote_addr, rkey, imm: None }, 0, size as u32);
            pair.run();
            assert_eq!(pair.a.completions()[0].status, WcStatus::Success, "{kind} {size}");
            assert_eq!(pair.b.completions(), []);
            assert_eq!(read_b(&pair, 500, size), bytes);
            pair.b.recv(9, 0, 0);
            let imm = Some(*b"abcd");
            pair.a.send(2, SendOp::Write { remote_addr, rkey, imm }, 0, size as u32);
            pair.run();
            let got = pair.b.completions();
            assert_eq!((got[0].opcode, got[0].imm()), (WcOpcode::RecvRdmaWithImm, imm));
            assert_eq!(got[0].byte_len as usize, size);
        }
    }
}

#[test]
fn a_read_of_any_size_returns() {
    for size in SIZES {
        let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
        let bytes: Vec<u8> = (0..size).map(|i| (i * 3) as u8).collect();
        pair.b.buffer.write(64, &bytes).unwrap();
        let (remote_addr, rkey) = remote(&pair, 64);
        pair.a.send(1, SendOp::Read { remote_addr, rkey }, 128, size as u32);
        pair.run();
        let wc = pair.a.completions();
        assert_eq!((wc[0].status, wc[0].byte_len as usize), (WcStatus::Success, size));
        let mut got = vec![0; size];
        pair.a.buffer.read(128, &mut got).unwrap();
        assert_eq!(got, bytes);
    }
}

#[test]
fn atomics_and_flushes_do_what_they_say() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
    let (remote_addr, rkey) = remote(&pair, 8);
    pair.b.buffer.write(8, &40_u64.to_ne_bytes()).unwrap();
    pair.a.send(1, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, 0, 8);
    pair.a.send(2, SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 }, 8, 8);
    pair.a.send(3, SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 9 }, 16, 8);
    pair.a.buffer.write(24, b"ATOMICAL").unwrap();
    pair.a.send(4, SendOp::AtomicWrite { remote_addr: remote_addr + 8, rkey }, 24, 8);
    let flush = SendOp::Flush {
        remote_addr,
        rkey,
        length: 16,
        placement: FlushPlacement::GLOBAL,
        level: FlushLevel::Range,
    };
    pair.a.send(5, flush, 0, 0);
    pair.run();
    let ids: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success)));
    let mut words = [0; 24];
    pair.a.buffer.read(0, &mut words).unwrap();
    let values: Vec<_> =
        words.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(values, [40, 42, 7]);
    assert_eq!(read_b(&pair, 8, 8), 7_u64.to_ne_bytes());
    assert_eq!(read_b(&pair, 16, 8), b"ATOMICAL");
}

#[test]
fn loss_of_any_one_packet_is_recovered() {
    // Rule: P-02.1.
    for lost in 0..40 {
        let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
        let bytes = fill(&pair, 5000);
        pair.b.recv(1, 100_000, 5000);
        let (remote_addr, rkey) = remote(&pair, 0);
        pair.b.buffer.write(200_000, &5_u64.to_ne_bytes()).unwrap();
        let add = SendOp::FetchAdd { remote_addr: remote_addr + 200_000, rkey, add: 1 };
        pair.a.send(1, SendOp::Send { imm: None }, 0, 5000);
        pair.a.send(2, SendOp::Write { remote_addr, rkey, imm: None }, 0, 5000);
        pair.a.send(3, SendOp::Read { remote_addr, rkey }, 300_000, 5000);
        pair.a.send(4, add, 400_000, 8);
        pair.a.send(5, SendOp::Read { remote_addr, rkey }, 310_000, 3000);
        let mut count = 0;
        pair.lose = Box::new(move |_, _| {
            count += 1;
            count == lost + 1
        });
        pair.run();
        let ids: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success)), "lost {lost}");
        assert_eq!(pair.b.completions().len(), 1, "lost {lost}");
        assert_eq!(read_b(&pair, 100_000, 5000), bytes);
        let mut got = vec![0; 5000];
        pair.a.buffer.read(300_000, &mut got).unwrap();
        assert_eq!(got, bytes, "lost {lost}");
        assert_eq!(read_b(&pair, 200_000, 8), 6_u64.to_ne_bytes(), "once, lost {lost}");
    }
}

#[test]
fn late_receive_is_waited_for() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
    pair.a.send(1, SendOp::Send { imm: None }, 0, 100);
    pair.run();
    // Three waits of 0.64 ms, then retry_cnt is used up.
    assert_eq!(pair.a.completions()[0].status, WcStatus::RnrRetryExcErr);
    assert_eq!(pair.a.state(), QpState::Err);
    assert!(pair.now.as_nanos() >= 3 * 640_000, "{}", pair.now);
}

#[test]
fn silent_peer_is_reported_after_retries() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
    pair.lose = Box::new(|from, _| from == 'a');
    pair.a.send(1, SendOp::Send { imm: None }, 0, 100);
    pair.a.send(2, SendOp::Send { imm: None }, 0, 100);
    pair.run();
    let got: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
    assert_eq!(got, [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn a_bad_key_is_refused_and_both_sides_end_in_error() {
    // Rule: P-08.2.
    let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
    let (remote_addr, _) = remote(&pair, 0);
    let rkey = roce::wire::RKey::new(0x1234_5678);
    pair.b.recv(5, 0, 100);
    pair.a.send(1, SendOp::Write { remote_addr, rkey, imm: None }, 0, 100);
    pair.a.send(2, SendOp::Send { imm: None }, 0, 100);
    pair.run();
    let got: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
    assert_eq!(got, [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    let got: Vec<_> = pair.b.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
    assert_eq!(got, [(5, WcStatus::WrFlushErr)]);
    assert_eq!((pair.a.state(), pair.b.state()), (QpState::Err, QpState::Err));
    assert_eq!(pair.b.events.len(), 1, "{:?}", pair.b.events);
}

#[test]
fn acknowledgements_are_coalesced() {
    let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
    for id in 0..50 {
        pair.b.recv(id, 0, 100);
        pair.a.send(id, SendOp::Send { imm: None }, 0, 64);
    }
    pair.run();
    assert_eq!(pair.a.completions().len(), 50);
    let acks = pair.log.iter().filter(|(_, bytes)| {
        let packet = roce::wire::Packet::parse(bytes).unwrap();
        packet.info().is_some_and(|info| info.operation == Operation::Acknowledge)
    });
    assert!(acks.count() < 10);
}
