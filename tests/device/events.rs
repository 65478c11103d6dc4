//! Events that wake a sleeping program.

use std::os::fd::AsFd;
use std::time::Duration;

use roce::device::Channel;
use roce::verbs::{
    AsyncEvent, AttrMask, Data, EventType, Notify, QpAttr, QpCap, QpCreate, QpHandle, QpInitAttr,
    QpState, QpType, RecvWr, SendFlags, SendWr, SrqCreate, Wc, WrId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stage::*;

/// A pair whose second side has a completion queue with a channel for its receives.
struct Sleeper {
    pair: Pair,
    channel: Channel,
    cq: roce::verbs::CqHandle,
    a_qp: QpHandle,
    b_qp: QpHandle,
}

fn sleeper() -> Sleeper {
    let pair = Pair::new(QpType::Rc);
    let b = &pair.b;
    let channel = b.nic.create_channel().unwrap();
    let cq = b.nic.create_cq_on(64, &channel).unwrap();
    let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: true };
    let create = QpCreate { init, send_cq: b.cq, recv_cq: cq, srq: None, xrcd: None };
    let b_qp = b.nic.create_qp(b.pd, create).unwrap();
    let a_qp = pair.a.nic.create_simple_qp(pair.a.pd, pair.a.cq, QpType::Rc).unwrap();
    join(&pair.a, a_qp, b, b_qp);
    Sleeper { pair, channel, cq, a_qp, b_qp }
}

impl Sleeper {
    fn send(&self, id: u64, flags: SendFlags) {
        let (a, b) = (&self.pair.a, &self.pair.b);
        b.recv(self.b_qp, id, 0, 64);
        let sges = [a.sge(0, 8)];
        let flags = flags | SendFlags::SIGNALED;
        let wr = SendWr { flags, ..SendWr::new(WrId(id), SEND, Data::Gather(&sges)) };
        a.nic.post_send(self.a_qp, &wr).unwrap();
        a.done(id);
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    fn take(&self) -> Wc {
        self.pair.b.nic.wait_cq(self.cq).unwrap()
    }
}

#[test]
fn a_completion_wakes_who_asked_for_it_once() {
    let sleeper = sleeper();
    let nic = &sleeper.pair.b.nic;
    sleeper.send(1, SendFlags::empty());
    assert!(sleeper.take().is_success());
    assert!(!sleeper.is_readable(), "no event was requested");
    assert_eq!(sleeper.channel.wait(Some(Duration::from_millis(10))).unwrap(), None);
    nic.request_notify(sleeper.cq, Notify::Next);
    sleeper.send(2, SendFlags::empty());
    assert_eq!(sleeper.channel.wait(EVENT_TIMEOUT).unwrap(), Some(sleeper.cq));
    assert!(!sleeper.is_readable(), "it was taken");
    assert!(sleeper.take().is_success());
    sleeper.send(3, SendFlags::empty());
    assert!(sleeper.take().is_success());
    assert!(!sleeper.is_readable(), "once was asked for");
}

#[test]
fn only_what_is_solicited_wakes_who_asked_for_that() {
    let sleeper = sleeper();
    sleeper.pair.b.nic.request_notify(sleeper.cq, Notify::Solicited);
    sleeper.send(1, SendFlags::empty());
    assert!(sleeper.take().is_success());
    assert!(!sleeper.is_readable());
    sleeper.send(2, SendFlags::SOLICITED);
    assert_eq!(sleeper.channel.wait(EVENT_TIMEOUT).unwrap(), Some(sleeper.cq));
    assert!(sleeper.take().is_success());
}

#[test]
fn a_channel_serves_several_queues_of_its_device() {
    let [a, _b] = devices();
    let channel = a.create_channel().unwrap();
    let cqs = [16, 32].map(|capacity| a.create_cq_on(capacity, &channel).unwrap());
    assert_ne!(cqs[0], cqs[1]);
    for cq in cqs {
        a.destroy_cq(cq).unwrap();
    }
}

#[test]
fn a_shared_queue_that_runs_low_says_so() {
    let [a, b] = devices().map(Side::new);
    let shared = SrqCreate { max_wr: 16, max_sge: 1, limit: 0, xrc: None };
    let srq = b.nic.create_srq(b.pd, shared).unwrap();
    let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: true };
    let create = QpCreate { init, send_cq: b.cq, recv_cq: b.cq, srq: Some(srq), xrcd: None };
    let b_qp = b.nic.create_qp(b.pd, create).unwrap();
    let a_qp = a.nic.create_simple_qp(a.pd, a.cq, QpType::Rc).unwrap();
    join(&a, a_qp, &b, b_qp);
    for id in 0..4 {
        let sges = [b.sge(0, 64)];
        b.nic.post_srq_recv(srq, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }
    b.nic.modify_srq(srq, None, Some(3)).unwrap();
    for id in 0..2 {
        a.post(a_qp, id, SEND, 0, 8);
        a.done(id);
        assert!(b.nic.wait_cq(b.cq).unwrap().is_success());
    }
    let event = b.nic.async_events().wait(EVENT_TIMEOUT).unwrap();
    assert_eq!(event, Some(AsyncEvent::Srq(EventType::SrqLimitReached, srq)));
    let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    b.nic.modify_qp(b_qp, &attr, AttrMask::STATE).unwrap();
    let event = b.nic.async_events().wait(EVENT_TIMEOUT).unwrap();
    assert_eq!(event, Some(AsyncEvent::Qp(EventType::QpLastWqeReached, b_qp)));
    assert_eq!(b.nic.async_events().wait(Some(Duration::from_millis(10))).unwrap(), None);
}

#[test]
fn a_send_queue_says_that_it_is_drained() {
    let pair = Pair::new(QpType::Rc);
    let (a, b) = (&pair.a, &pair.b);
    b.recv(pair.b_qp, 1, 0, 64);
    a.post(pair.a_qp, 1, SEND, 0, 8);
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    a.nic.modify_qp(pair.a_qp, &attr, mask).unwrap();
    let event = a.nic.async_events().wait(EVENT_TIMEOUT).unwrap();
    assert_eq!(event, Some(AsyncEvent::Qp(EventType::SqDrained, pair.a_qp)));
}
