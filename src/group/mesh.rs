//! A group: the links of all threads.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::config::Config;
use super::counters::{Counter, Counters};
use super::error::{Error, Undelivered};
use super::hosts::Hosts;
use super::keeper::Keeper;
use super::link::{Backoff, Link, Own, Role};
use super::member::Member;
use super::secret::Secret;
use crate::device::{Mr, MrSlice};
use crate::net::limits::PUBLISHED_MAX;
use crate::net::{self, Connection, Endpoint};
use crate::secret::{SecretRandom, Seed};
use crate::time::Instant;

/// Time after which links are looked at once more, at most.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A server of a group: N servers of T threads each, from one list. Thread i of each server is
/// connected to thread i of the others.
///
/// The connections are made, and made again, by a thread of the group's own, so that no other one
/// waits for a peer that is not there. The threads of the program each take a [`Member`], which
/// sends and receives.
///
/// Dropping the group ends it as [`close`](Self::close) does: it waits until the peers have all
/// messages, at most [`linger`](Config::linger). A process that ends without either, by
/// [`std::process::exit`] for example, may lose messages.
///
/// ```
/// use std::time::Duration;
///
/// use roce::group::{Config, Group, Hosts};
///
/// let hosts: Hosts = "127.20.10.1:7000,127.20.10.2:7000".parse()?;
/// // Each is a program on a machine of its own; here they are two threads.
/// let other = std::thread::spawn({
///     let hosts = hosts.clone();
///     move || {
///         let group = Group::open(&hosts, 1, &Config::default())?;
///         let member = group.member(0)?;
///         let mut is_answered = false;
///         while !is_answered {
///             member.wait(Duration::from_secs(1))?;
///             member.poll(&mut |from: usize, message: &[u8]| {
///                 is_answered = member.send(from, message).is_ok();
///             })?;
///         }
///         Ok::<_, roce::group::Error>(())
///     }
/// });
/// let group = Group::open(&hosts, 0, &Config::default())?;
/// group.wait_connected(Duration::from_secs(60))?;
/// let member = group.member(0)?;
/// member.send(1, b"hello")?;
/// let mut answers = Vec::new();
/// while answers.is_empty() {
///     member.wait(Duration::from_secs(1))?;
///     member.poll(&mut |_: usize, message: &[u8]| answers.push(message.to_vec()))?;
/// }
/// assert_eq!(answers, [b"hello"]);
/// group.close()?;
/// other.join().unwrap()?;
/// # Ok::<(), roce::group::Error>(())
/// ```
#[derive(Debug)]
pub struct Group {
    mesh: Arc<Mesh>,
    keeper: Option<JoinHandle<Vec<Undelivered>>>,
}

/// State that the members and the keeper share.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) hosts: Hosts,
    pub(super) own: usize,
    pub(super) config: Config,
    pub(super) secret: Secret,
    incarnation: u64,
    pub(super) endpoint: Endpoint,
    pub(super) threads: Vec<ThreadLinks>,
    /// Threads whose member was taken.
    taken: Mutex<Vec<bool>>,
    pub(super) published: Mutex<Vec<(u64, MrSlice)>>,
    counters: Mutex<Counters>,
    /// The last failure to connect, by the number of the server.
    failures: Mutex<BTreeMap<usize, String>>,
    /// Guards nothing: the condition is in the links, and those that wait look again after a while.
    changing: Mutex<()>,
    changed: Condvar,
    pub(super) is_closing: AtomicBool,
    origin: std::time::Instant,
}

/// The links of one thread, by the number of the server; the own server has none.
#[derive(Debug)]
pub(super) struct ThreadLinks {
    pub(super) links: Vec<Option<Mutex<Link<Connection>>>>,
    /// Wakes the member when a link changes.
    pub(super) wake: OwnedFd,
}

impl Group {
    /// Starts server `own` of the list, with a soft NIC at its address.
    pub fn open(hosts: &Hosts, own: usize, config: &Config) -> Result<Self, Error> {
        let at = hosts.own(own)?;
        Self::on(&Endpoint::at(at.ip())?, hosts, own, config)
    }

    /// Starts server `own` of the list on a device.
    pub fn on(
        endpoint: &Endpoint,
        hosts: &Hosts,
        own: usize,
        config: &Config,
    ) -> Result<Self, Error> {
        let at = hosts.own(own)?;
        // A message that fits no ring is none of a group's: a peer has none read, least of all
        // before it has proved itself.
        let endpoint = endpoint.clone().with(config.net.message_max(0));
        let listener = endpoint.listen(at)?;
        let mut random = SecretRandom::new(Seed::from_system().map_err(net::Error::Io)?);
        let mut threads = Vec::new();
        // Never 0, which is no incarnation.
        let incarnation = random.next() | 1;
        for thread in 0..config.threads_bounded() {
            let id = |number: usize| u16::try_from(number).expect("the limits are less");
            let own_side = Own { server: id(own), thread: id(thread), incarnation };
            let mut link = |server: usize| {
                let role = if own > server { Role::Dialer } else { Role::Acceptor };
                let backoff = Backoff::new(config.backoff_min, config.backoff_max, random.next());
                let link = || Link::new(own_side, role, backoff, config.lost_after);
                (server != own).then(|| Mutex::new(link()))
            };
            let links = (0..hosts.len()).map(&mut link).collect();
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let wake = wake.map_err(|error| net::Error::Io(error.into()))?;
            threads.push(ThreadLinks { links, wake });
        }
        let mesh = Arc::new(Mesh {
            hosts: hosts.clone(),
            own,
            config: config.clone(),
            secret: config.secret.clone().or_else(Secret::from_environment).unwrap_or_default(),
            incarnation,
            endpoint,
            taken: Mutex::new(vec![false; threads.len()]),
            threads,
            published: Mutex::default(),
            counters: Mutex::default(),
            failures: Mutex::default(),
            changing: Mutex::default(),
            changed: Condvar::new(),
            is_closing: AtomicBool::new(false),
            origin: net_now(),
        });
        let keep = {
            let mesh = Arc::clone(&mesh);
            move || Keeper::new(mesh, listener, random).run()
        };
        let keeper = std::thread::Builder::new().name("roce-group".to_owned()).spawn(keep);
        Ok(Self { mesh, keeper: Some(keeper.map_err(net::Error::Io)?) })
    }

    /// Returns the number of this server.
    pub fn own(&self) -> usize {
        self.mesh.own
    }

    /// Returns the random number of this run of the server: a restart has another one.
    pub fn incarnation(&self) -> u64 {
        self.mesh.incarnation
    }

    /// Returns how many requests were refused, by reason.
    pub fn counters(&self) -> Counters {
        lock(&self.mesh.counters).clone()
    }

    /// Returns the list of servers.
    pub fn hosts(&self) -> &Hosts {
        &self.mesh.hosts
    }

    /// Returns the member of a thread. Each can be taken once; it may be sent to the thread that
    /// uses it.
    pub fn member(&self, thread: usize) -> Result<Member, Error> {
        let mut taken = lock(&self.mesh.taken);
        let is_free = taken.get_mut(thread).is_some_and(|taken| !std::mem::replace(taken, true));
        let member = is_free.then(|| Member::new(Arc::clone(&self.mesh), thread));
        member.ok_or(Error::NoMember(thread))
    }

    /// Waits until every thread is connected to all its peers. The error names one that is not, and
    /// why.
    pub fn wait_connected(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = net_now() + timeout;
        let mut changing = lock(&self.mesh.changing);
        while !self.mesh.is_connected() {
            let left = deadline.saturating_duration_since(net_now());
            if left.is_zero() {
                return Err(self.mesh.unconnected());
            }
            let waited = self.mesh.changed.wait_timeout(changing, left.min(LOOK));
            changing = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Allocates memory that can be [published](Self::publish) with every right.
    pub fn allocate(&self, len: usize) -> Result<Mr, Error> {
        Ok(self.mesh.endpoint.allocate(len)?)
    }

    /// Publishes memory under a number, for every peer: it finds address, length and key by
    /// [`Member::lookup`], now and after a new connection. What was published under the number
    /// before is replaced.
    pub fn publish(&self, id: u64, memory: &MrSlice) -> Result<(), Error> {
        let mut published = lock(&self.mesh.published);
        published.retain(|(known, _)| *known != id);
        if published.len() == PUBLISHED_MAX {
            return Err(net::Error::DirectoryFull(PUBLISHED_MAX).into());
        }
        published.push((id, memory.clone()));
        for link in self.mesh.links() {
            if let Some(connection) = lock(link).pipe() {
                connection.publish(id, memory)?;
            }
        }
        Ok(())
    }

    /// Ends the group: returns when the peers have received all messages that were posted, and know
    /// that this server has left. A connection that is lost meanwhile is made again. After
    /// [`linger`](Config::linger) it fails with [`Error::Undelivered`], which has messages whose
    /// arrival was not confirmed. Messages that were received and not polled are dropped.
    ///
    /// A peer that has left by itself took what it wanted: what it did not take is told by
    /// [`Change::Left`](super::Change::Left), and not here.
    pub fn close(mut self) -> Result<(), Error> {
        let undelivered = self.end();
        if undelivered.is_empty() { Ok(()) } else { Err(Error::Undelivered(undelivered)) }
    }

    fn end(&mut self) -> Vec<Undelivered> {
        self.mesh.is_closing.store(true, Ordering::Relaxed);
        let ended = self.keeper.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

impl Mesh {
    pub(super) fn now(&self) -> Instant {
        let elapsed = net_now().saturating_duration_since(self.origin);
        Instant::ZERO.saturating_add(elapsed)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Mutex<Link<Connection>>> {
        self.threads.iter().flat_map(|thread| thread.links.iter().flatten())
    }

    pub(super) fn link(&self, thread: usize, server: usize) -> Option<&Mutex<Link<Connection>>> {
        self.threads.get(thread)?.links.get(server)?.as_ref()
    }

    fn is_connected(&self) -> bool {
        self.links().all(|link| lock(link).pipe().is_some())
    }

    /// The error of a wait for connections: the first server that has none, and its last failure.
    fn unconnected(&self) -> Error {
        let servers = 0..self.hosts.len();
        let is_missing = |server: &usize| {
            let links =
                self.threads.iter().filter_map(|thread| thread.links.get(*server)?.as_ref());
            links.into_iter().any(|link| lock(link).pipe().is_none())
        };
        let Some(server) = servers.into_iter().find(is_missing) else { return Error::TimedOut };
        let why = lock(&self.failures).get(&server).cloned();
        let why = why.unwrap_or_else(|| "nothing came from it".to_owned());
        Error::Unconnected { server, why }
    }

    pub(super) fn count(&self, counter: Counter) {
        lock(&self.counters).add(counter);
    }

    /// Remembers why a connection to a server could not be made.
    pub(super) fn note_failure(&self, server: usize, why: String) {
        lock(&self.failures).insert(server, why);
    }

    /// A link of a thread has changed.
    pub(super) fn notify(&self, thread: usize) {
        if let Some(links) = self.threads.get(thread) {
            // A counter that is full wakes, too.
            let _ = rustix::io::write(&links.wake, &1_u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "programs wait in real time")]
fn net_now() -> std::time::Instant {
    std::time::Instant::now()
}
