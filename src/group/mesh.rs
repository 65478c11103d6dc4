//! A group: the links of all threads, and the thread that makes their connections.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::config::Config;
use super::error::Error;
use super::hello::Hello;
use super::hosts::Hosts;
use super::link::{Backoff, Link, Own, Role};
use super::member::Member;
use crate::device::{Mr, MrSlice};
use crate::net::{self, Connection, Endpoint, Listener, Request};
use crate::secret::{SecretRandom, Seed};
use crate::time::Instant;

/// How often links are looked at, at least.
const LOOK: Duration = Duration::from_millis(50);

/// A server of a group: N servers of T threads each, from one list. Thread i of each server is connected to thread i of the
/// others.
///
/// The connections are made, and made again, by a thread of the group's own, so that no other one waits for a peer that is not
/// there. The threads of the program each take a [`Member`], which sends and receives. Dropping the group closes the
/// connections.
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
/// other.join().unwrap()?;
/// # Ok::<(), roce::group::Error>(())
/// ```
#[derive(Debug)]
pub struct Group {
    mesh: Arc<Mesh>,
    keeper: Option<JoinHandle<()>>,
}

/// What the members and the keeper share.
#[derive(Debug)]
pub(super) struct Mesh {
    hosts: Hosts,
    pub(super) own: usize,
    pub(super) config: Config,
    incarnation: u64,
    endpoint: Endpoint,
    pub(super) threads: Vec<ThreadLinks>,
    /// Threads whose member was taken.
    taken: Mutex<Vec<bool>>,
    published: Mutex<Vec<(u64, MrSlice)>>,
    /// Guards nothing: the condition is in the links, and those that wait look again after a while.
    changing: Mutex<()>,
    changed: Condvar,
    is_closed: AtomicBool,
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
        let endpoint = endpoint.clone().with(config.net);
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
                (server != own).then(|| Mutex::new(Link::new(own_side, role, backoff)))
            };
            let links = (0..hosts.len()).map(&mut link).collect();
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let wake = wake.map_err(|error| net::Error::Io(error.into()))?;
            threads.push(ThreadLinks { links, wake });
        }
        let mesh = Arc::new(Mesh {
            hosts: hosts.clone(),
            own,
            config: *config,
            incarnation,
            endpoint,
            taken: Mutex::new(vec![false; threads.len()]),
            threads,
            published: Mutex::default(),
            changing: Mutex::default(),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
            origin: net_now(),
        });
        let keep = {
            let mesh = Arc::clone(&mesh);
            move || Keeper { mesh, listener, attempts: Vec::new() }.run()
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

    /// Returns the list of servers.
    pub fn hosts(&self) -> &Hosts {
        &self.mesh.hosts
    }

    /// Returns the member of a thread. Each can be taken once; it may be sent to the thread that uses it.
    pub fn member(&self, thread: usize) -> Result<Member, Error> {
        let mut taken = lock(&self.mesh.taken);
        let is_free = taken.get_mut(thread).is_some_and(|taken| !std::mem::replace(taken, true));
        let member = is_free.then(|| Member::new(Arc::clone(&self.mesh), thread));
        member.ok_or(Error::NoMember(thread))
    }

    /// Waits until every thread is connected to all its peers.
    pub fn wait_connected(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = net_now() + timeout;
        let mut changing = lock(&self.mesh.changing);
        while !self.mesh.is_connected() {
            let left = deadline.saturating_duration_since(net_now());
            if left.is_zero() {
                return Err(Error::TimedOut);
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
    /// [`Member::lookup`], now and after a new connection. What was published under the number before is replaced.
    pub fn publish(&self, id: u64, memory: &MrSlice) -> Result<(), Error> {
        let mut published = lock(&self.mesh.published);
        self.mesh.endpoint.publish(id, memory)?;
        published.retain(|(known, _)| *known != id);
        published.push((id, memory.clone()));
        for link in self.mesh.links() {
            if let Some(connection) = lock(link).pipe() {
                connection.publish(id, memory)?;
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.mesh.is_closed.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        let open: Vec<Connection> =
            self.mesh.links().filter_map(|link| lock(link).close()).collect();
        // All of them tell their peers before the first one waits.
        open.iter().for_each(Connection::begin_close);
        for connection in &open {
            let _ = connection.close();
        }
    }
}

impl Mesh {
    pub(super) fn now(&self) -> Instant {
        let elapsed = net_now().saturating_duration_since(self.origin);
        Instant::ZERO.saturating_add(elapsed)
    }

    fn links(&self) -> impl Iterator<Item = &Mutex<Link<Connection>>> {
        self.threads.iter().flat_map(|thread| thread.links.iter().flatten())
    }

    fn link(&self, thread: usize, server: usize) -> Option<&Mutex<Link<Connection>>> {
        self.threads.get(thread)?.links.get(server)?.as_ref()
    }

    fn is_connected(&self) -> bool {
        self.links().all(|link| lock(link).pipe().is_some())
    }

    /// A link of a thread has changed.
    fn notify(&self, thread: usize) {
        if let Some(links) = self.threads.get(thread) {
            // A counter that is full wakes, too.
            let _ = rustix::io::write(&links.wake, &1_u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }

    /// The outcome of an attempt to connect.
    fn finish_attempt(
        &self,
        (thread, server): (usize, usize),
        made: Result<(Connection, Option<Hello>), net::Error>,
    ) {
        let Some(link) = self.link(thread, server) else { return };
        let now = self.now();
        match made {
            Ok((connection, answer)) => {
                // What was published while the connection was made.
                let published = lock(&self.published);
                for (id, memory) in published.iter() {
                    let _ = connection.publish(*id, memory);
                }
                lock(link).handle_connected(connection, answer, now);
            }
            Err(_) => lock(link).handle_failed(now),
        }
        self.notify(thread);
    }

    /// Connects to a server.
    fn dial(&self, thread: usize, server: usize, hello: &Hello) {
        let to = self.hosts.get(server).expect("a link is to a server of the list");
        let made = self.endpoint.connect_with(to, &hello.emit()).and_then(|connection| {
            let answer = Hello::parse(connection.private_data());
            let is_right =
                |it: &Hello| (usize::from(it.server), usize::from(it.thread)) == (server, thread);
            match answer.filter(is_right) {
                Some(answer) => Ok((connection, Some(answer))),
                None => {
                    connection.abort();
                    Err(net::Error::Foreign)
                }
            }
        });
        self.finish_attempt((thread, server), made);
    }
}

/// The thread that makes connections.
struct Keeper {
    mesh: Arc<Mesh>,
    listener: Listener,
    /// Threads that connect or accept: at most one for each link.
    attempts: Vec<JoinHandle<()>>,
}

impl Keeper {
    fn run(mut self) {
        let keepalive = self.mesh.config.net.keepalive;
        let mut probe_at = self.mesh.now().saturating_add(keepalive);
        while !self.mesh.is_closed.load(Ordering::Relaxed) {
            self.attempts.retain(|attempt| !attempt.is_finished());
            let now = self.mesh.now();
            let is_probe_due = now >= probe_at;
            if is_probe_due {
                probe_at = now.saturating_add(keepalive);
            }
            let next = self.look(now, is_probe_due);
            let timeout = next.map_or(LOOK, |next| next.saturating_since(now)).min(LOOK);
            match self.listener.request_timeout(timeout.max(Duration::from_millis(1))) {
                Ok(request) => self.answer(request),
                Err(net::Error::TimedOut) => {}
                // The device is gone, and so is every connection.
                Err(_) => std::thread::sleep(LOOK),
            }
        }
        for attempt in self.attempts {
            let _ = attempt.join();
        }
    }

    /// Looks at every link: notices losses, dials where it is time to. Returns when it is time for the next.
    fn look(&mut self, now: Instant, is_probe_due: bool) -> Option<Instant> {
        let mesh = Arc::clone(&self.mesh);
        let mut next: Option<Instant> = None;
        for (thread, links) in mesh.threads.iter().enumerate() {
            for (server, link) in links.links.iter().enumerate() {
                let Some(link) = link else { continue };
                let mut link = lock(link);
                link.pump();
                next = next.into_iter().chain(link.poll_timeout()).min();
                let hello = link.poll_dial(now);
                let ending = link.pipe().and_then(|connection| {
                    connection.poll();
                    let probed = if is_probe_due { connection.keep_alive() } else { Ok(()) };
                    connection.ending().or_else(|| probed.err())
                });
                match ending {
                    Some(net::Error::Closed) => link.handle_closed(now),
                    Some(_) => link.handle_lost(now),
                    None => {}
                }
                if ending.is_some() {
                    mesh.notify(thread);
                }
                drop(link);
                if let Some(hello) = hello {
                    self.attempt(thread, server, move |mesh| mesh.dial(thread, server, &hello));
                }
            }
        }
        next
    }

    /// Answers a peer that asks for a connection.
    fn answer(&mut self, request: Request) {
        let mesh = Arc::clone(&self.mesh);
        let hello = Hello::parse(request.private_data());
        let found = hello.and_then(|hello| {
            let (server, thread) = (usize::from(hello.server), usize::from(hello.thread));
            Some((hello, server, thread, mesh.link(thread, server)?))
        });
        let Some((hello, server, thread, link)) = found else {
            let _ = request.refuse(b"no such member of this group");
            return;
        };
        let answer = lock(link).handle_request(&hello);
        mesh.notify(thread);
        match answer {
            Ok(answer) => self.attempt(thread, server, move |mesh| {
                let made = request.accept_with(&answer.emit()).map(|made| (made, None));
                mesh.finish_attempt((thread, server), made);
            }),
            Err(refusal) => drop(request.refuse(refusal.text())),
        }
    }

    /// Runs an attempt to connect in a thread of its own: it waits for the peer.
    fn attempt(&mut self, thread: usize, server: usize, run: impl FnOnce(&Mesh) + Send + 'static) {
        let mesh = Arc::clone(&self.mesh);
        let spawned =
            std::thread::Builder::new().name("roce-group".to_owned()).spawn(move || run(&mesh));
        match spawned {
            Ok(handle) => self.attempts.push(handle),
            Err(error) => self.mesh.finish_attempt((thread, server), Err(error.into())),
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "programs wait in real time")]
fn net_now() -> std::time::Instant {
    std::time::Instant::now()
}
