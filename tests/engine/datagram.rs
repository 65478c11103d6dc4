//! Datagrams. P-15.

use std::net::Ipv6Addr;

use roce::engine::{Config, Counter, Disposition, Engine, QpCreate, QpHandle};
use roce::verbs::{
    AhAttr, AhHandle, Data, Mtu, PostError, QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr,
    Sge, Target, UdTarget, WcFlags, WcOpcode, WcStatus, WrId,
};
use roce::wire::{Gid, Opcode, PKey, QKey, Qpn};

use super::script::*;

const QKEY: u32 = 0x1111;

fn ud() -> Script {
    Setup::new(QpType::Ud).build()
}

fn datagram(len: usize) -> Pkt {
    pkt(Opcode::UD_SEND_ONLY, 1).deth(QKEY, PEER).fill(len)
}

fn ah(s: &mut Script) -> AhHandle {
    s.engine.create_ah(s.pd, AhAttr::new(peer_gid(), 0)).unwrap()
}

fn post(s: &mut Script, id: u64, ah: AhHandle, qkey: u32, len: u32) -> Result<(), PostError> {
    let target = Target::Ud(UdTarget { ah, qpn: PEER, qkey: QKey::new(qkey) });
    let sges = [s.sge(0, len)];
    let sges = if len == 0 { &[][..] } else { &sges[..] };
    let wr = SendWr { target, ..SendWr::new(WrId(id), SEND, Data::Gather(sges)) };
    s.engine.post_send(s.qp, &wr, &[])
}

#[test]
fn the_first_forty_bytes_hold_an_ipv4_header_in_their_second_half() {
    // Rule: P-15.3.
    let mut s = ud();
    s.recv(1, 0, 100);
    s.buffer.write(0, &[0xee; 100]).unwrap();
    s.network = (0x45..0x45 + 20).collect();
    let with_imm = pkt(Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 1).deth(QKEY, PEER).imm([9; 4]);
    s.send(with_imm.fill(10));
    let wc = s.received();
    assert_eq!((wc.byte_len, wc.src_qp, wc.opcode), (50, PEER, WcOpcode::Recv));
    assert_eq!((wc.imm(), wc.flags()), (Some([9; 4]), WcFlags::GRH | WcFlags::WITH_IMM));
    assert_eq!(wc.sl, 10, "UDP over IPv4");
    assert_eq!(s.read(0, 20), [0; 20]);
    assert_eq!(s.read(20, 20), s.network);
    assert_eq!(s.read(40, 10), pattern(10));
    assert_eq!(s.read(50, 1), [0xee]);
}

#[test]
fn the_first_forty_bytes_hold_an_ipv6_header_whole() {
    // Rule: P-15.3.
    let mut s = ud();
    let sges = [s.sge(0, 25), s.sge(100, 40)];
    let wr = roce::verbs::RecvWr { id: WrId(1), sges: &sges };
    s.engine.post_recv(s.qp, &wr).unwrap();
    s.network = (0x60..0x60 + 40).collect();
    s.send(datagram(5));
    let wc = s.received();
    assert_eq!((wc.byte_len, wc.sl), (45, 9), "UDP over IPv6");
    assert_eq!([s.read(0, 25), s.read(100, 15)].concat(), s.network);
    assert_eq!(s.read(115, 5), pattern(5));
}

#[test]
fn datagrams_with_wrong_keys_are_dropped_silently() {
    // Rules: P-15.1, P-15.2.
    let mut s = ud();
    s.recv(1, 0, 100);
    s.dropped(pkt(Opcode::UD_SEND_ONLY, 1).deth(QKEY + 1, PEER).fill(4), Counter::BadQKey);
    s.dropped(datagram(4).pkey(0x8123), Counter::BadPKey);
    s.dropped(datagram(4).pkey(0), Counter::BadPKey);
    s.expect_nothing();
    s.receives(&[]);
    // A limited member of the same partition is heard.
    assert_eq!(s.send(datagram(4).pkey(0x7fff)), Disposition::Accepted);
    assert_eq!(s.received().id.0, 1);
}

#[test]
fn the_partition_is_that_of_the_index() {
    let mut s = Script::of(QpType::Ud, |setup| setup.attr.pkey_index = 1);
    s.recv(1, 0, 100);
    s.dropped(datagram(4), Counter::BadPKey);
    s.send(datagram(4).pkey(0x123));
    assert_eq!(s.received().id.0, 1);
    let ah = ah(&mut s);
    post(&mut s, 1, ah, 5, 0).unwrap();
    s.expect([pkt(Opcode::UD_SEND_ONLY, SQ).pkey(0x8123).deth(5, s.qpn)]);
}

#[test]
fn two_limited_members_do_not_receive_from_each_other() {
    // Rule: P-15.2.
    let mut s = Script::of(QpType::Ud, |setup| setup.config.pkeys = vec![PKey::new(0x7fff)]);
    s.dropped(datagram(4).pkey(0x7fff), Counter::BadPKey);
}

#[test]
fn a_datagram_that_does_not_fit_is_dropped_and_its_receive_waits() {
    let mut s = ud();
    s.recv(1, 0, 49);
    s.dropped(datagram(10), Counter::TooLong);
    s.receives(&[]);
    s.send(datagram(9));
    assert_eq!(s.received().byte_len, 49);
    s.dropped(datagram(9), Counter::NoReceive);
    s.expect_nothing();
}

#[test]
fn datagram_longer_than_the_port_mtu_is_dropped() {
    let mut s = Script::of(QpType::Ud, |setup| setup.config.port_mtu = Mtu::M1024);
    s.recv(1, 0, 4096);
    s.dropped(datagram(1025), Counter::OverMtu);
    s.receives(&[]);
    s.send(datagram(1024));
    assert_eq!(s.received().byte_len, 1064);
}

#[test]
fn a_datagram_is_padded_as_its_length_wants() {
    // Rule: W-50.2.
    let mut s = ud();
    s.recv(1, 0, 100);
    let whole = datagram(8).to(s.qpn).bytes();
    // Seven bytes without padding; then eight of which some are said to be padding, once more than
    // can be.
    let short = &whole[..whole.len() - 1];
    for (bytes, pad) in [(short, 0), (&whole[..], 3), (short, 3), (&whole[..whole.len() - 4], 3)] {
        let mut bytes = bytes.to_vec();
        bytes[1] |= pad << 4;
        let got = s.send_bytes(peer_gid(), own_gid(), &bytes);
        let right = bytes.len() % 4 == 0;
        let expected =
            if right { Disposition::Accepted } else { Disposition::Dropped(Counter::BadPadding) };
        assert_eq!(got, expected, "{} bytes, {pad} of padding", bytes.len());
        if right {
            s.recv(1, 0, 100);
        }
    }
    assert_eq!(s.count(Counter::BadPadding), 2);
}

#[test]
fn psns_are_counted_when_sent_and_not_looked_at_when_received() {
    let mut s = ud();
    for id in 0..3 {
        s.recv(id, 0, 100);
    }
    for psn in [500, 500, 3] {
        s.send(pkt(Opcode::UD_SEND_ONLY, psn).deth(QKEY, PEER));
    }
    s.receives(&[(0, OK), (1, OK), (2, OK)]);
    let ah = ah(&mut s);
    for id in 0..3 {
        post(&mut s, id, ah, QKEY, 0).unwrap();
    }
    let sent = s.expect_count(3);
    let psns: Vec<_> = sent.iter().map(|packet| packet.bth.psn.get()).collect();
    assert_eq!(psns, [SQ, SQ + 1, SQ + 2]);
    s.completes(&[(0, OK), (1, OK), (2, OK)]);
    assert!(sent.iter().all(|packet| !packet.bth.ack_req && packet.bth.dest_qp == PEER));
}

#[test]
fn a_controlled_key_is_replaced_by_the_queue_pairs_own() {
    // Rule: Q-15.
    let mut s = ud();
    let ah = ah(&mut s);
    post(&mut s, 1, ah, 0x8000_0005, 0).unwrap();
    post(&mut s, 2, ah, 0x7fff_ffff, 0).unwrap();
    s.expect([
        pkt(Opcode::UD_SEND_ONLY, SQ).deth(QKEY, s.qpn),
        pkt(Opcode::UD_SEND_ONLY, SQ + 1).deth(0x7fff_ffff, s.qpn),
    ]);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_a_length_error() {
    // Rule: Q-14.
    let mut s = Script::of(QpType::Ud, |setup| setup.config.port_mtu = Mtu::M1024);
    let ah = ah(&mut s);
    post(&mut s, 1, ah, QKEY, 1024).unwrap();
    s.expect_count(1);
    s.completes(&[(1, OK)]);
    post(&mut s, 2, ah, QKEY, 1025).unwrap();
    post(&mut s, 3, ah, QKEY, 1).unwrap();
    s.expect_nothing();
    s.completes(&[(2, WcStatus::LocLenErr), (3, FLUSHED)]);
    s.state(QpState::Sqe);
}

#[test]
fn an_address_handle_that_is_gone_or_of_another_domain_is_an_error() {
    let mut s = ud();
    let gone = ah(&mut s);
    post(&mut s, 1, gone, QKEY, 4).unwrap();
    s.engine.destroy_ah(gone).unwrap();
    s.expect_nothing();
    s.completes(&[(1, WcStatus::LocQpOpErr)]);
    s.enter(QpState::Rts);
    let other = s.engine.create_pd().unwrap();
    let foreign = s.engine.create_ah(other, AhAttr::new(peer_gid(), 0)).unwrap();
    post(&mut s, 2, foreign, QKEY, 4).unwrap();
    s.expect_nothing();
    s.completes(&[(2, WcStatus::LocQpOpErr)]);
}

#[test]
fn a_datagram_queue_pair_is_told_where_to_send_and_only_sends() {
    let mut s = ud();
    assert_eq!(
        s.try_post(1, SEND, &[], SendFlags::SIGNALED),
        Err(PostError::MissingAddress(QpType::Ud))
    );
    for op in [READ, WRITE, ADD, SendOp::SendWithInv { rkey: REMOTE_KEY }] {
        let refused = s.try_post(1, op, &[], SendFlags::SIGNALED).unwrap_err();
        assert!(matches!(refused, PostError::NotAllowedOnQpType { .. }), "{refused}");
    }
}

#[test]
fn unsupported_operation_completes_with_an_error_in_its_turn() {
    // Rule: Q-37.
    let mut s = ud();
    let ah = ah(&mut s);
    post(&mut s, 1, ah, QKEY, 4).unwrap();
    s.engine.post_unsupported(s.qp, WrId(2)).unwrap();
    post(&mut s, 3, ah, QKEY, 4).unwrap();
    s.expect_count(1);
    s.completes(&[(1, OK), (2, WcStatus::LocQpOpErr), (3, FLUSHED)]);
    s.state(QpState::Sqe);
}

#[test]
fn a_receive_at_fault_fails_the_datagram_queue_pair() {
    let mut s = ud();
    let sges = [Sge { lkey: roce::verbs::LKey::new(1), ..s.sge(0, 100) }];
    let wr = roce::verbs::RecvWr { id: WrId(1), sges: &sges };
    s.engine.post_recv(s.qp, &wr).unwrap();
    s.send(datagram(4));
    s.receives(&[(1, WcStatus::LocProtErr)]);
    s.state(QpState::Err);
}

#[test]
fn the_general_services_queue_pair_is_number_one_with_its_own_key() {
    let mut s = Setup::new(QpType::Gsi).build();
    assert_eq!(s.qpn, Qpn::GSI);
    s.recv(1, 0, 400);
    s.recv(2, 0, 400);
    s.dropped(datagram(4), Counter::BadQKey);
    let mad = pkt(Opcode::UD_SEND_ONLY, 1).deth(QKey::GSI.get(), Qpn::GSI).fill(256);
    s.send(mad.clone());
    assert_eq!(s.received().byte_len, 296);
    // Any partition of the port will do.
    s.send(mad.clone().pkey(0x8123));
    assert_eq!(s.received().id.0, 2);
    s.dropped(mad.pkey(0x8124), Counter::BadPKey);
    let ah = ah(&mut s);
    post(&mut s, 1, ah, QKey::GSI.get(), 0).unwrap();
    s.expect([pkt(Opcode::UD_SEND_ONLY, SQ).deth(QKey::GSI.get(), Qpn::GSI)]);
}

fn another(s: &mut Script) -> QpHandle {
    let cap = roce::verbs::QpCap { max_recv_wr: 4, max_recv_sge: 1, ..Default::default() };
    let init = QpInitAttr { qp_type: QpType::Ud, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
    let qp = s.engine.create_qp(s.pd, create).unwrap();
    s.climb(qp, QpState::Rts);
    qp
}

#[test]
fn a_multicast_packet_goes_to_every_member_that_can_take_it() {
    // Rule: P-15.4.
    // A bug that rxe had: the wrong queue pair number on multicast completions.
    let mut s = ud();
    let group = Gid::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 5));
    let (second, third) = (another(&mut s), another(&mut s));
    let to_group =
        |s: &mut Script, packet: Pkt| s.send_from(peer_gid(), group, packet.to(Qpn::MULTICAST));
    assert_eq!(to_group(&mut s, datagram(4)), Disposition::Dropped(Counter::NoGroup));
    for qp in [s.qp, second, third, second] {
        s.engine.attach_multicast(qp, group).unwrap();
    }
    s.recv(1, 0, 100);
    let sges = [s.sge(200, 100)];
    let wr = roce::verbs::RecvWr { id: WrId(2), sges: &sges };
    s.engine.post_recv(second, &wr).unwrap();
    // The third has no receive: the others receive it all the same.
    assert_eq!(to_group(&mut s, datagram(6)), Disposition::Accepted);
    assert_eq!(s.count(Counter::NoReceive), 1);
    let all = s.poll(s.recv_cq);
    let numbers: Vec<_> = all.iter().map(|wc| (wc.id.0, Some(wc.qp_num), wc.src_qp)).collect();
    let own = |s: &Script, qp| s.engine.qp_number(qp);
    assert_eq!(numbers, [(1, own(&s, s.qp), PEER), (2, own(&s, second), PEER)]);
    assert_eq!((s.read(40, 6), s.read(240, 6)), (pattern(6), pattern(6)));
    let wrong = pkt(Opcode::RC_SEND_ONLY, 1).to(Qpn::MULTICAST);
    let got = s.send_from(peer_gid(), group, wrong);
    assert_eq!(got, Disposition::Dropped(Counter::WrongService));
    assert!(s.engine.destroy_qp(third).is_err(), "it is still attached");
    s.engine.detach_multicast(third, group).unwrap();
    s.engine.destroy_qp(third).unwrap();
}

#[test]
fn only_datagram_queue_pairs_join_groups_and_not_too_many() {
    let mut config = Config::new(own_gid());
    config.limits.group_members = 1;
    let mut s = Script::of(QpType::Ud, |setup| setup.config = config);
    let group = Gid::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 5));
    let second = another(&mut s);
    s.engine.attach_multicast(s.qp, group).unwrap();
    assert!(s.engine.attach_multicast(second, group).is_err());
    assert!(s.engine.detach_multicast(second, group).is_err());
    let mut rc = Script::rc();
    assert!(rc.engine.attach_multicast(rc.qp, group).is_err());
    let _: &Engine = &rc.engine;
}

/// Both engines' first address handles have the same slot: only the tag of the device tells them
/// apart.
#[test]
fn an_address_handle_of_another_device_is_refused() {
    let mut s = ud();
    let own = ah(&mut s);
    let mut other = Engine::new(Config::new(own_gid()), 99);
    let pd = other.create_pd().unwrap();
    let foreign = other.create_ah(pd, AhAttr::new(peer_gid(), 0)).unwrap();
    assert_eq!(foreign.to_c(), own.to_c());
    assert_eq!(post(&mut s, 1, foreign, QKEY, 0), Err(PostError::UnknownAddress));
    assert!(s.engine.destroy_ah(foreign).is_err());
    // C has no room for a tag.
    assert_eq!(post(&mut s, 1, AhHandle::from_c(own.to_c()), QKEY, 0), Ok(()));
    assert_eq!(s.engine.destroy_ah(own), Ok(()));
}
