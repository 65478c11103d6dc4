//! Frames of a raw packet queue pair.

use super::super::Counter;
use super::super::env::Env;
use super::super::send_queue::SendWqe;
use super::super::sge::{gather, scatter_into};
use super::Failure;
use super::attr::Attributes;
use super::rx::Rx;
use super::tx::{Step, Tx};
use crate::verbs::{Wc, WcOpcode, WcStatus};

/// Minimum length of a frame: an Ethernet header.
const FRAME_MIN: usize = 14;

/// Sends the frame at the cursor of the send queue.
pub(super) fn transmit(
    tx: &mut Tx,
    wqe: &SendWqe,
    attr: &Attributes,
    env: &mut Env,
) -> Result<Step, Failure> {
    let index = tx.cursor();
    let len = wqe.len() as usize;
    if !(FRAME_MIN..=env.config.frame_max).contains(&len) {
        return Err(tx.fail_request(index, WcStatus::LocLenErr, attr, env));
    }
    let mut frame = Vec::with_capacity(len);
    if gather(tx.source(index), 0, len, &mut frame, attr.pd, env).is_err() {
        return Err(tx.fail_request(index, WcStatus::LocProtErr, attr, env));
    }
    env.frames.push_back(frame);
    tx.finish_current(attr, env)
}

/// Receives a frame. `Ok` may hold a failure of the queue pair.
pub(super) fn receive(
    rx: &mut Rx,
    frame: &[u8],
    attr: &Attributes,
    env: &mut Env,
) -> Result<Result<(), Failure>, Counter> {
    if !attr.rules().requests {
        return Err(Counter::WrongState);
    }
    let queue = rx.recv_queue(None, env).ok_or(Counter::NoReceive)?;
    let next = queue.peek().ok_or(Counter::NoReceive)?;
    if queue.room(next) < frame.len() as u64 {
        return Err(Counter::TooLong);
    }
    let taken = queue.take().ok_or(Counter::NoReceive)?;
    let written = rx
        .buffers(taken, None, attr, env)
        .is_some_and(|(pd, sges)| scatter_into(pd, sges, 0, frame.into(), env).is_ok());
    let status = if written { WcStatus::Success } else { WcStatus::LocProtErr };
    let id = rx.recv_queue(None, env).ok_or(Counter::NoReceive)?.release(taken);
    let byte_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let wc = Wc::new(id, status, WcOpcode::Recv, attr.qpn).with_byte_len(byte_len);
    let delivered = env.complete(attr.recv_cq, wc, false);
    Ok(if delivered && written { Ok(()) } else { Err(Failure::Fatal) })
}
