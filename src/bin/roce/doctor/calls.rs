//! System calls that soft NICs need, tried one by one where a filter (seccomp) is in force.
//!
//! A filter makes a call fail, or kills the process: each call is tried in a copy of this command.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};
use roce::link::interface::{Interface, interfaces};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketType,
    recvmsg, sendmsg, socket,
};

use super::{Finding, rights};

const CHECK: &str = "system calls";

/// Name of the probe that lets two soft NICs exchange messages.
const NICS: &str = "NICs";

/// A call that soft NICs need, and a way to try it.
type Call = (&'static str, fn() -> Result<()>);

const CALLS: [Call; 10] = [
    ("socket", || UdpSocket::bind("127.0.0.1:0").map(drop).context("a UDP socket")),
    ("socket(AF_NETLINK)", || Ok(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)?)),
    ("setsockopt", || Ok(UdpSocket::bind("127.0.0.1:0")?.set_ttl(64)?)),
    ("sendmsg", || {
        let mut control = SendAncillaryBuffer::default();
        sendmsg(own_socket()?, &[IoSlice::new(b"?")], &mut control, SendFlags::empty())?;
        Ok(())
    }),
    ("recvmsg", || {
        let (socket, mut byte) = (own_socket()?, [0]);
        socket.send(b"?")?;
        let mut control = RecvAncillaryBuffer::default();
        recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())?;
        Ok(())
    }),
    ("sendmmsg", || {
        let (socket, bytes) = (own_socket()?, [[IoSlice::new(b"?")]]);
        let mut headers = MultiHeaders::<()>::preallocate(1, None);
        let nowhere = [None::<()>];
        sendmmsg(socket.as_raw_fd(), &mut headers, &bytes, nowhere, [], MsgFlags::empty())?;
        Ok(())
    }),
    ("recvmmsg", || {
        let (socket, mut byte) = (own_socket()?, [0]);
        socket.send(b"?")?;
        let mut headers = MultiHeaders::<()>::preallocate(1, None);
        let bytes = &mut [[IoSliceMut::new(&mut byte)]];
        recvmmsg(socket.as_raw_fd(), &mut headers, bytes, MsgFlags::empty(), None)?;
        Ok(())
    }),
    ("eventfd2", || Ok(eventfd(0, EventfdFlags::CLOEXEC).map(drop)?)),
    ("poll", || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let mut ready = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(())
    }),
    ("clone", || {
        let started = thread::Builder::new().spawn(|| ()).context("a thread")?;
        started.join().map_err(|_| anyhow::anyhow!("the thread ended"))
    }),
];

/// A socket that sends to itself.
fn own_socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

/// Tries each call if a filter is in force, and two soft NICs.
pub(super) fn check() -> Finding {
    let is_loopback = |it: &Interface| it.loopback && it.up;
    if !interfaces().is_ok_and(|all| all.iter().any(is_loopback)) {
        return Finding::note(CHECK, "not tried: loopback is down");
    }
    let filter = rights::status_field("Seccomp").unwrap_or_default();
    let is_filtered = filter != "0" && !filter.is_empty();
    let filtered =
        if is_filtered { "a filter (seccomp) is in force" } else { "no filter is in force" };
    let refused = if is_filtered { refused_calls() } else { Vec::new() };
    if refused.is_empty() {
        return match super::probe(NICS, |_| ()) {
            Ok(()) => Finding::ok(CHECK, format!("two soft NICs exchange messages; {filtered}")),
            Err(why) => Finding::failure(
                CHECK,
                format!("two soft NICs on loopback exchange no message: {why}; {filtered}"),
                "cure the other findings; if this stays, report it with the output of roce doctor --json",
            ),
        };
    }
    let names = refused.join(", ");
    Finding::failure(
        CHECK,
        format!("a filter (seccomp) refuses what soft NICs need: {names}"),
        format!(
            "allow {names} in the seccomp profile; docker run --security-opt seccomp=PROFILE.json"
        ),
    )
}

/// Returns the calls that fail as filters make them fail.
fn refused_calls() -> Vec<&'static str> {
    let is_refused = |name: &&str| super::probe(name, |_| ()).is_err_and(|why| is_of_filter(&why));
    CALLS.iter().map(|(name, _)| *name).filter(is_refused).collect()
}

/// Whether a probe failed in the way that filters make calls fail.
fn is_of_filter(why: &str) -> bool {
    ["not permitted", "not implemented", "SIGSYS", "signal: 31", "ermission denied"]
        .iter()
        .any(|text| why.contains(text))
}

pub(super) fn try_probe(name: &str) -> Result<()> {
    match CALLS.iter().find(|(known, _)| *known == name) {
        Some((_, call)) => call(),
        None if name == NICS => crate::demo::try_nics(),
        None => bail!("there is no probe {name}"),
    }
}
