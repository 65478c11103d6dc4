//! Rounds that are repeated, each with objects of its own.

use std::time::Duration;

use roce::device::Device;
use roce::memory::Buffer;
use roce::verbs::{
    Access, AckTimeout, AhAttr, AttrMask, Data, MwBind, MwType, QpAttr, QpHandle, QpState, QpType,
    RecvWr, RetryCount, SendOp, SendWr, SrqCreate, Target, UdTarget, Wc, WcOpcode, WcStatus, WrId,
};
use roce::wire::{Bits, RKey};

use crate::mixed::mixed;
use crate::stage::{
    Clock, Dice, Outcome, Side, Stage, connect_attr, describe, ensure, pair, pattern,
};

/// One kind of round.
pub(crate) type Round = fn(&mut Side<'_>, &mut Side<'_>, &mut Dice) -> Outcome;

pub(crate) const ROUNDS: [(&str, Round); 8] = [
    ("mixed", mixed),
    ("mixed", mixed),
    ("sleeper", sleeper),
    ("shared queue", shared_queue),
    ("window", window),
    ("unreliable", unreliable),
    ("datagrams", datagrams),
    ("killed", killed),
];

const SEND: SendOp = SendOp::Send { imm: None };

/// Offset at the peer at which data arrive.
const THERE: usize = 1 << 16;

/// Distance of slots for messages.
const STRIDE: usize = 5120;

/// Sleeps for every completion, and is woken for each, though its peer does nothing.
fn sleeper(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    let how = connect_attr(dice);
    let (qp, _) = pair(a, b, QpType::Rc, &how, dice)?;
    for number in 0..8 {
        let length = dice.below(STRIDE);
        let bytes = pattern(dice.next(), length);
        let (remote_addr, rkey) = (b.buffer.addr() + THERE as u64, b.mr.rkey());
        let is_read = dice.below(2) == 0;
        if is_read {
            b.buffer.write(THERE, &bytes).unwrap();
            a.send(qp, number, SendOp::Read { remote_addr, rkey }, (0, length))?;
        } else {
            a.buffer.write(0, &bytes).unwrap();
            a.send(qp, number, SendOp::Write { remote_addr, rkey, imm: None }, (0, length))?;
        }
        let wc = a.sleep_for_completion()?;
        ensure!(wc.is_success() && wc.id == WrId(number), "{wc:?}");
        let found = if is_read { a.read(0, length) } else { b.read(THERE, length) };
        ensure!(found == bytes, "{length} bytes are wrong");
    }
    Ok(())
}

/// Several connections feed one queue of receives, and mostly there are fewer receives than
/// messages.
fn shared_queue(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    const MESSAGES: usize = 48;
    const IN_FLIGHT_MAX: usize = 16;
    const RECEIVES: usize = 8;
    let create = SrqCreate { max_wr: 32, max_sge: 1, limit: 0, xrc: None };
    let srq = describe("a shared queue", b.nic.create_srq(b.pd, create))?;
    b.srq = Some(srq);
    let how = connect_attr(dice);
    let mut qps = Vec::new();
    for _ in 0..3 {
        qps.push(pair(a, b, QpType::Rc, &how, dice)?.0);
    }
    let post = |b: &Side<'_>, slot: usize| {
        let sges = [b.sge(THERE + slot * STRIDE, STRIDE)];
        let wr = RecvWr { id: WrId(1 << 32 | slot as u64), sges: &sges };
        describe("a shared receive", b.nic.post_srq_recv(srq, &wr))
    };
    (0..RECEIVES).try_for_each(|slot| post(b, slot))?;
    let seed = dice.next() >> 8;
    let lengths: Vec<usize> = (0..MESSAGES).map(|_| dice.below(STRIDE)).collect();
    for (at, &length) in lengths.iter().enumerate() {
        let place = at * STRIDE;
        if at >= IN_FLIGHT_MAX {
            take_shared(a, b, &post, seed, &lengths)?;
        }
        a.buffer.write(place, &pattern(seed + at as u64, length)).unwrap();
        let op = SendOp::Send { imm: Some((at as u32).to_be_bytes()) };
        a.send(qps[at % qps.len()], at as u64, op, (place, length))?;
        if at + 1 == MESSAGES {
            for _ in 0..IN_FLIGHT_MAX {
                take_shared(a, b, &post, seed, &lengths)?;
            }
        }
    }
    Ok(())
}

/// Takes in what was received until one more message was sent and acknowledged.
fn take_shared(
    a: &Side<'_>,
    b: &Side<'_>,
    post: &impl Fn(&Side<'_>, usize) -> Outcome,
    seed: u64,
    lengths: &[usize],
) -> Outcome {
    let (clock, mut wcs) = (Clock::start(), [Wc::default()]);
    loop {
        if b.nic.poll_cq(b.cq, &mut wcs) == 1 {
            let [wc] = wcs;
            ensure!(wc.is_success(), "{wc:?}");
            let at = u32::from_be_bytes(wc.imm().ok_or("no immediate data")?) as usize;
            let length = *lengths.get(at).ok_or("a message that was not sent")?;
            ensure!(wc.byte_len as usize == length, "message {at} of {length} bytes: {wc:?}");
            let slot = (wc.id.0 & 0xffff) as usize;
            let found = b.read(THERE + slot * STRIDE, length);
            ensure!(found == pattern(seed + at as u64, length), "message {at} is wrong");
            post(b, slot)?;
        }
        if a.nic.poll_cq(a.cq, &mut wcs) == 1 {
            ensure!(wcs[0].is_success(), "{:?}", wcs[0]);
            return Ok(());
        }
        clock.check(&[a, b])?;
    }
}

/// A window is opened, used, and closed by either side; then access through it is refused.
fn window(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    let how = connect_attr(dice);
    let (a_qp, b_qp) = pair(a, b, QpType::Rc, &how, dice)?;
    let mw = describe("a window", b.nic.create_mw(b.pd, MwType::Type2))?;
    let old = b.nic.mw_key(mw).ok_or("a window without a key")?;
    let rkey = RKey::new(old.get() ^ 0x5a);
    let (addr, length) = (b.buffer.addr() + THERE as u64, 1 + dice.below(STRIDE));
    let (mr, access) = (b.mr.lkey(), Access::REMOTE_WRITE | Access::REMOTE_READ);
    let bind = MwBind { mr, addr, length: length as u64, access };
    let locally = |op| {
        describe("a request", b.nic.post_send(b_qp, &SendWr::new(WrId(9), op, Data::EMPTY)))?;
        let wc = b.complete()?;
        ensure!(wc.is_success() && wc.id == WrId(9), "{wc:?}");
        Ok(())
    };
    locally(SendOp::BindMw { mw: old, rkey, bind })?;
    let bytes = pattern(dice.next(), length);
    a.buffer.write(0, &bytes).unwrap();
    a.send(a_qp, 1, SendOp::Write { remote_addr: addr, rkey, imm: None }, (0, length))?;
    a.send(a_qp, 2, SendOp::Read { remote_addr: addr, rkey }, (THERE, length))?;
    for id in 1..=2 {
        let wc = a.complete()?;
        ensure!(wc.is_success() && wc.id == WrId(id), "{wc:?}");
    }
    ensure!(b.read(THERE, length) == bytes, "what was written through a window is wrong");
    ensure!(a.read(THERE, length) == bytes, "what was read through a window is wrong");
    if dice.below(2) == 0 {
        locally(SendOp::LocalInv { rkey })?;
    } else {
        b.recv(b_qp, 3, THERE, STRIDE)?;
        a.send(a_qp, 3, SendOp::SendWithInv { rkey }, (0, length))?;
        let (sent, received) = (a.complete()?, b.complete()?);
        ensure!(sent.is_success(), "{sent:?}");
        ensure!(received.invalidated() == Some(rkey), "{received:?}");
    }
    a.send(a_qp, 4, SendOp::Write { remote_addr: addr, rkey, imm: None }, (0, length))?;
    let wc = a.complete()?;
    // The refusal may get lost, and is not said again.
    let refused = matches!(wc.status, WcStatus::RemAccessErr | WcStatus::RetryExcErr);
    ensure!(refused, "through a closed window: {wc:?}");
    describe("unmaking a window", b.nic.destroy_mw(mw))
}

/// Checks that a message over an unreliable connection arrives whole. A packet that begins a
/// message is taken with any number, so a network that doubles and reorders shows.
fn unreliable(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    let how = connect_attr(dice);
    let (a_qp, b_qp) = pair(a, b, QpType::Uc, &how, dice)?;
    lossy(a, b, [a_qp, b_qp], (Target::Peer, STRIDE), dice).map(|_| ())
}

/// Datagrams that come are whole.
fn datagrams(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    let how = connect_attr(dice);
    let (a_qp, b_qp) = (a.add_qp(QpType::Ud)?, b.add_qp(QpType::Ud)?);
    describe("opening", a.nic.open_datagram(a_qp, &how))?;
    describe("opening", b.nic.open_datagram(b_qp, &how))?;
    let to = describe("an end", b.nic.endpoint(b_qp))?;
    let ah = describe("a way", a.nic.create_ah(a.pd, AhAttr::new(to.gid, 0)))?;
    let target = Target::Ud(UdTarget { ah, qpn: to.qpn, qkey: how.qkey });
    let arrived = lossy(a, b, [a_qp, b_qp], (target, 256), dice)?;
    ensure!(arrived > 0, "of all datagrams none came");
    describe("unmaking a way", a.nic.destroy_ah(ah))
}

/// Sends messages of which some may not arrive, or twice; how many did.
fn lossy(
    a: &Side<'_>,
    b: &Side<'_>,
    [a_qp, b_qp]: [QpHandle; 2],
    (target, longest): (Target, usize),
    dice: &mut Dice,
) -> Outcome<u32> {
    const MESSAGES: u64 = 24;
    const GRH: usize = 40;
    let before = if target == Target::Peer { 0 } else { GRH };
    let seed = dice.next() >> 8;
    let lengths: Vec<usize> = (0..MESSAGES).map(|_| dice.below(longest)).collect();
    for slot in 0..2 * MESSAGES {
        b.recv(b_qp, slot, THERE + slot as usize * STRIDE, STRIDE + GRH)?;
    }
    for (at, &length) in lengths.iter().enumerate() {
        a.buffer.write(0, &pattern(seed + at as u64, length)).unwrap();
        let sges = [a.sge(0, length)];
        let op = SendOp::Send { imm: Some((at as u32).to_be_bytes()) };
        let wr = SendWr { target, ..SendWr::new(WrId(at as u64), op, Data::Gather(&sges)) };
        describe("a message", a.nic.post_send(a_qp, &wr))?;
        let wc = a.complete()?;
        ensure!(wc.is_success() && wc.id == WrId(at as u64), "{wc:?}");
    }
    // Longer than packets are held back, and both sides were asked so often that they have seen to
    // it.
    let (mut arrived, mut wcs, mut quiet) = (0, [Wc::default()], 0);
    while quiet < 20 {
        ensure!(a.nic.poll_cq(a.cq, &mut wcs) == 0, "more completions than requests: {:?}", wcs[0]);
        if b.nic.poll_cq(b.cq, &mut wcs) == 0 {
            quiet += 1;
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let [wc] = wcs;
        ensure!(wc.is_success() && wc.opcode == WcOpcode::Recv, "{wc:?}");
        let at = u64::from(u32::from_be_bytes(wc.imm().ok_or("no immediate data")?));
        let length = *lengths.get(at as usize).ok_or("a message that was not sent")?;
        ensure!(wc.byte_len as usize == length + before, "message {at} of {length}: {wc:?}");
        let found = b.read(THERE + wc.id.0 as usize * STRIDE + before, length);
        ensure!(found == pattern(seed + at, length), "message {at} is wrong");
        arrived += 1;
        quiet = 0;
    }
    Ok(arrived)
}

/// One end goes in the middle of the work: everything that was posted completes nevertheless.
fn killed(a: &mut Side<'_>, b: &mut Side<'_>, dice: &mut Dice) -> Outcome {
    const REQUESTS: usize = 16;
    let (timeout, retry_cnt) = (AckTimeout(Bits::low(10)), RetryCount(Bits::low(3)));
    let how = connect_attr(dice).timeout(timeout).retry_cnt(retry_cnt);
    let (a_qp, b_qp) = pair(a, b, QpType::Rc, &how, dice)?;
    for slot in 0..REQUESTS {
        b.recv(b_qp, slot as u64, THERE, STRIDE)?;
    }
    for at in 0..REQUESTS {
        let (remote_addr, rkey) = (b.buffer.addr() + THERE as u64, b.mr.rkey());
        let op = match dice.below(3) {
            0 => SendOp::Write { remote_addr, rkey, imm: None },
            1 => SendOp::Read { remote_addr, rkey },
            _ => SEND,
        };
        a.send(a_qp, at as u64, op, (0, dice.below(STRIDE)))?;
    }
    let survives = dice.below(REQUESTS);
    let failed = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    let (mut sent, mut received, mut victim) = (0, 0, Some(dice.below(3)));
    let (clock, mut wcs, mut well) = (Clock::start(), [Wc::default()], true);
    loop {
        if sent >= survives
            && let Some(victim) = victim.take()
        {
            match victim {
                0 => b.remove_qp(b_qp)?,
                1 => describe("a failure", b.nic.modify_qp(b_qp, &failed, AttrMask::STATE))?,
                _ => describe("a failure", a.nic.modify_qp(a_qp, &failed, AttrMask::STATE))?,
            }
        }
        if sent == REQUESTS {
            break;
        }
        if a.nic.poll_cq(a.cq, &mut wcs) == 1 {
            ensure!(wcs[0].id == WrId(sent as u64), "request {sent} is overtaken by {:?}", wcs[0]);
            ensure!(well || !wcs[0].is_success(), "success behind a failure: {:?}", wcs[0]);
            well = wcs[0].is_success();
            sent += 1;
        }
        if b.nic.poll_cq(b.cq, &mut wcs) == 1 {
            received += 1;
            ensure!(received <= REQUESTS, "more receives than were posted");
        }
        clock.check(&[a, b])?;
    }
    // A queue pair that is gone has no completions.
    if b.qps.contains(&b_qp) {
        describe("a failure", b.nic.modify_qp(b_qp, &failed, AttrMask::STATE))?;
        while received < REQUESTS {
            b.complete()?;
            received += 1;
        }
    }
    Ok(())
}

/// Begins work that does not end: the caller destroys the stage meanwhile.
pub(crate) fn abandon(stage: &Stage, buffers: &[Buffer; 2], dice: &mut Dice) -> Outcome {
    let [mut a, mut b] = [Side::new(&stage.a, &buffers[0])?, Side::new(&stage.b, &buffers[1])?];
    let how = connect_attr(dice);
    for _ in 0..1 + dice.below(4) {
        let (a_qp, b_qp) = pair(&mut a, &mut b, QpType::Rc, &how, dice)?;
        for id in 0..16 {
            let (there, rkey) = (b.buffer.addr() + THERE as u64, b.mr.rkey());
            let write = SendOp::Write { remote_addr: there, rkey, imm: None };
            a.send(a_qp, id, write, (0, dice.below(STRIDE)))?;
            let (there, rkey) = (a.buffer.addr() + THERE as u64, a.mr.rkey());
            b.send(b_qp, id, SendOp::Read { remote_addr: there, rkey }, (0, dice.below(STRIDE)))?;
        }
    }
    for _ in 0..dice.below(20) {
        a.nic.poll_cq(a.cq, &mut [Wc::default(); 8]);
        b.nic.poll_cq(b.cq, &mut [Wc::default(); 8]);
    }
    Ok(())
}
