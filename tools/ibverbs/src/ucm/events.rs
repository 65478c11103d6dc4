//! Events, as C has them.

use std::time::Duration;

use roce::cm::{ConnEvent, Event, EventKind, EventParam, UdEvent};
use roce::ibverbs::ibv_ah_attr;
use zerocopy::{FromZeros, IntoBytes};

use super::abi;
use super::channel::{self, Target};
use super::commands::{Call, write_program};
use crate::call::{Attempt, Failed, Result};
use crate::events::lock;
use crate::kern::KernAhAttr;

/// Interval at which a thread that waits for an event checks again while the process exits.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Takes the oldest event of the channel. Without one, the program waits, unless its descriptor
/// does not block.
pub(super) fn get_event(call: &Call<'_>) -> Result<Attempt> {
    if call.answer_len < abi::EVENT_ANSWER_MIN {
        return Err(Failed::ENOSPC);
    }
    let command: abi::GetEvent = call.body();
    // An event that cannot be answered stays in the channel.
    let room = call.answer_len.min(size_of::<abi::EventAnswer>());
    write_program(command.response, [0; size_of::<abi::EventAnswer>()].get(..room).unwrap_or(&[]))?;
    let taken = call.process.command(|manager, _| {
        let event = manager.poll_event(call.channel.id);
        call.channel.settle(manager.is_readable(call.channel.id), call.fd);
        if call.has_waited {
            call.channel.end_wait();
        }
        Ok(event)
    });
    let taken = match taken {
        // `exit` has ended the manager, and this thread with it soon: until then no event comes, as
        // from the kernel's file.
        Err(_) if super::is_exiting() => {
            std::thread::sleep(EXIT_POLL_INTERVAL);
            None
        }
        taken => taken?,
    };
    let Some(event) = taken else { return wait(call) };
    let mut answer = answer(&event);
    if event.kind == EventKind::MulticastJoin || event.kind == EventKind::MulticastError {
        let uid = u64::from_ne_bytes(answer.uid);
        if let Some(membership) = lock(&call.process.memberships).report(event.id, uid) {
            answer.id = membership;
        }
    }
    call.answer(command.response, &answer)?;
    Ok(Attempt::Done)
}

fn wait(call: &Call<'_>) -> Result<Attempt> {
    // SAFETY: a system call without pointers.
    let flags = unsafe { libc::fcntl(call.fd, libc::F_GETFL) };
    if flags & libc::O_NONBLOCK != 0 {
        return Err(Failed::EAGAIN);
    }
    // The number may stand for another file by now, which must not be read from.
    if channel::target(call.fd) != Target::Channel(call.channel.id) {
        return Ok(Attempt::Closed);
    }
    call.channel.begin_wait();
    Ok(Attempt::Wait(call.fd))
}

/// An event, for C.
fn answer(event: &Event) -> abi::EventAnswer {
    let mut answer = abi::EventAnswer::new_zeroed();
    answer.uid = event.context.to_ne_bytes();
    answer.id = event.id.number();
    answer.event = event.kind.code();
    answer.status = event.status;
    answer.ece = abi::Ece { vendor_id: event.ece.vendor_id, options: event.ece.options };
    match &event.param {
        EventParam::None => {}
        EventParam::Conn(conn) => put(&mut answer.param, conn_param(conn).as_bytes()),
        EventParam::Ud(ud) => {
            if event.kind == EventKind::MulticastJoin || event.kind == EventKind::MulticastError {
                answer.uid = ud.join_context.to_ne_bytes();
            }
            put(&mut answer.param, ud_param(ud).as_bytes());
        }
    }
    answer
}

/// Copies to the beginning of a field.
fn put(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

fn conn_param(conn: &ConnEvent) -> abi::ConnParam {
    let mut param = abi::ConnParam::new_zeroed();
    let data = conn.private_data.as_slice();
    put(&mut param.private_data, data);
    param.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    param.qpn = conn.qpn.get();
    param.srq = conn.srq.into();
    param.responder_resources = conn.responder_resources;
    param.initiator_depth = conn.initiator_depth;
    param.flow_control = conn.flow_control.into();
    param.retry_count = conn.retry_count;
    param.rnr_retry_count = conn.rnr_retry_count;
    param
}

fn ud_param(ud: &UdEvent) -> abi::UdParam {
    let mut param = abi::UdParam::new_zeroed();
    let data = ud.private_data.as_slice();
    put(&mut param.private_data, data);
    param.private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    param.qpn = ud.qpn.get();
    param.q_key = ud.q_key.get();
    if let Some(ah) = &ud.ah {
        param.ah = KernAhAttr::from(&ibv_ah_attr::from(*ah));
    }
    param
}
