//! Questions to the status sockets of a network namespace: to all at once, with one deadline.
//!
//! Every user can listen at such names, and need not answer. So the sockets of a process's own user
//! are asked first, those of each other user up to a bound, and all together have one time to
//! answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, UCred, connect, recv};
use rustix::process::Uid;

use super::super::shared::monotonic;
use super::socket::Name;
use super::{NicStatus, Published, text};
use crate::link::local_socket::{is_own_user, local_socket, peer_of};

/// Maximum number of bytes of a status.
const STATUS_MAX: usize = 128 << 10;

/// Maximum number of bytes that are read of the list of sockets, and of sockets that are looked at.
const SOCKETS_MAX: u64 = 16 << 20;
const NAMES_MAX: usize = 4096;

/// Maximum number of sockets that are asked: of this user, of each other user, and of all other
/// users together.
const OWN_MAX: usize = 512;
const USER_MAX: usize = 64;
const OTHERS_MAX: usize = 256;

/// Time that all have to answer. A process may be stopped.
const ANSWER_WAIT: Duration = Duration::from_millis(300);

/// Asks all sockets, and waits for their answers.
pub(super) fn ask_all() -> io::Result<Published> {
    let mut published = Published::default();
    let mut names = names()?;
    in_order(&mut names, is_own_process);
    published.unasked = names.len().saturating_sub(NAMES_MAX);
    let (mut asked, mut bounds) = (Vec::new(), Bounds::default());
    for name in names.into_iter().take(NAMES_MAX) {
        match question(name) {
            Ok(question) if !is_believed(&question.answerer) => {}
            Ok(question) if bounds.admit(question.answerer.uid) => asked.push(question),
            // Its program has just ended.
            Err(Errno::CONNREFUSED) => {}
            // So many wait for its answer already that no more fit.
            Err(Errno::AGAIN) => published.silent += 1,
            // The bound is reached, or that of open files.
            Ok(_) | Err(_) => published.unasked += 1,
        }
    }
    collect(asked, &mut published)?;
    Ok(published)
}

/// Returns the names of all status sockets of this network namespace.
fn names() -> io::Result<Vec<Name>> {
    let mut list = Vec::new();
    fs::File::open("/proc/net/unix")?.take(SOCKETS_MAX).read_to_end(&mut list)?;
    let list = String::from_utf8_lossy(&list);
    // A connection has the name of its listener, too.
    let names: BTreeSet<&str> =
        list.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@')).collect();
    Ok(names.into_iter().filter_map(Name::parse).collect())
}

/// Puts the sockets in front that belong to a process of this user, and of all processes the first
/// ones. A name may lie about its process; it is the order alone that rests on it.
fn in_order(names: &mut [Name], is_own: impl Fn(u32) -> bool) {
    let pids: BTreeSet<u32> = names.iter().map(|name| name.pid).collect();
    let own: BTreeSet<u32> = pids.into_iter().filter(|pid| is_own(*pid)).collect();
    names.sort_unstable_by_key(|name| (!own.contains(&name.pid), name.number, name.pid));
}

/// Whether a process of this PID namespace is this user's.
fn is_own_process(pid: u32) -> bool {
    let folder = fs::metadata(format!("/proc/{pid}"));
    folder.is_ok_and(|folder| is_own_user(Uid::from_raw(folder.uid())))
}

/// Whether a process says the truth about its NICs: one of this user does, and root believes all.
fn is_believed(answerer: &UCred) -> bool {
    rustix::process::geteuid().is_root() || is_own_user(answerer.uid)
}

/// Numbers of sockets that are asked, by user.
#[derive(Debug, Default)]
struct Bounds {
    by_user: BTreeMap<u32, usize>,
    others: usize,
}

impl Bounds {
    /// Whether one more socket of a user may be asked; counts it.
    fn admit(&mut self, uid: Uid) -> bool {
        let is_own = is_own_user(uid);
        let count = self.by_user.entry(uid.as_raw()).or_default();
        let fits = match is_own {
            true => *count < OWN_MAX,
            false => *count < USER_MAX && self.others < OTHERS_MAX,
        };
        *count += usize::from(fits);
        self.others += usize::from(fits && !is_own);
        fits
    }
}

/// A connection at which an answer is expected.
struct Question {
    socket: OwnedFd,
    answerer: UCred,
}

fn question(name: Name) -> Result<Question, Errno> {
    let socket = local_socket().map_err(|_| Errno::MFILE)?;
    connect(&socket, &name.address().map_err(|_| Errno::INVAL)?)?;
    let answerer = peer_of(&socket).ok_or(Errno::INVAL)?;
    Ok(Question { socket, answerer })
}

/// Takes the answers that come in time, in the order of the questions.
fn collect(asked: Vec<Question>, published: &mut Published) -> io::Result<()> {
    let end = monotonic().saturating_add(ANSWER_WAIT.as_nanos().try_into().unwrap_or(u64::MAX));
    let mut buffer = vec![0; STATUS_MAX];
    let mut open: Vec<(usize, Question)> = asked.into_iter().enumerate().collect();
    let mut answers = BTreeMap::new();
    while !open.is_empty() {
        let left = Duration::from_nanos(end.saturating_sub(monotonic()));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled: Vec<PollFd<'_>> =
            open.iter().map(|(_, question)| PollFd::new(&question.socket, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&left)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        open.retain(|(at, question)| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            if let Some(status) = answer(question, &mut buffer) {
                answers.insert(*at, status);
            }
            false
        });
    }
    published.nics = answers.into_values().collect();
    published.silent += open.len();
    Ok(())
}

/// Returns the status that came; `None` if it is none.
fn answer(question: &Question, buffer: &mut [u8]) -> Option<NicStatus> {
    let (count, _) = recv(&question.socket, &mut *buffer, RecvFlags::DONTWAIT).ok()?;
    let status = text::parse(std::str::from_utf8(buffer.get(..count)?).ok()?)?;
    // The kernel gives 0 for a process of another PID namespace.
    let pid = u32::try_from(question.answerer.pid.as_raw_nonzero().get()).unwrap_or(0);
    Some(NicStatus { pid, ..status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_sockets_are_asked_first() {
        let name = |pid, number| Name { pid, number };
        let mut names =
            vec![name(3, 0), name(3, 1), name(1, 1), name(2, 0), name(1, 0), name(4, 0)];
        in_order(&mut names, |pid| pid == 1 || pid == 4);
        let expected = [name(1, 0), name(4, 0), name(1, 1), name(2, 0), name(3, 0), name(3, 1)];
        assert_eq!(names, expected);
    }

    #[test]
    fn sockets_of_each_user_are_bounded() {
        let own = rustix::process::geteuid();
        let other = |number: u32| Uid::from_raw(own.as_raw().wrapping_add(number));
        let mut bounds = Bounds::default();
        let mut admitted = |uid: Uid| (0..2 * OWN_MAX).filter(|_| bounds.admit(uid)).count();
        assert_eq!(admitted(own), OWN_MAX);
        let others: Vec<usize> = (1..=5).map(|number| admitted(other(number))).collect();
        assert_eq!(others, [USER_MAX, USER_MAX, USER_MAX, USER_MAX, 0]);
        const { assert!(OTHERS_MAX == 4 * USER_MAX) };
    }
}
