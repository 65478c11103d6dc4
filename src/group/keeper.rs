//! The thread of a group that makes its connections.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::counters::Counter;
use super::error::Undelivered;
use super::handshake;
use super::hello::{Hello, Nonce};
use super::limits::ANSWERS_MAX;
use super::link::{Link, Refusal};
use super::mesh::{LOOK, Mesh, lock};
use crate::net::{self, Connection, Listener, Request};
use crate::secret::SecretRandom;
use crate::time::Instant;

/// Time after which links are looked at while the group ends.
const LOOK_CLOSING: Duration = Duration::from_millis(1);

/// The thread that makes connections.
pub(super) struct Keeper {
    mesh: Arc<Mesh>,
    listener: Listener,
    /// Nonces come from here.
    random: SecretRandom,
    attempts: Vec<Attempt>,
}

/// A thread that connects or accepts.
struct Attempt {
    thread: usize,
    server: usize,
    running: JoinHandle<()>,
}

impl Keeper {
    pub(super) fn new(mesh: Arc<Mesh>, listener: Listener, random: SecretRandom) -> Self {
        Self { mesh, listener, random, attempts: Vec::new() }
    }

    /// Makes connections until the group is to end, and all is delivered then. Returns what is not.
    pub(super) fn run(mut self) -> Vec<Undelivered> {
        let keepalive = self.mesh.config.net.keepalive;
        let mut probe_at = self.mesh.now().saturating_add(keepalive);
        let mut deadline = None;
        loop {
            self.attempts.retain(|attempt| !attempt.running.is_finished());
            let now = self.mesh.now();
            let is_probe_due = now >= probe_at;
            if is_probe_due {
                probe_at = now.saturating_add(keepalive);
            }
            let next = self.look(now, is_probe_due);
            let mut timeout = next.map_or(LOOK, |next| next.saturating_since(now)).min(LOOK);
            if self.mesh.is_closing.load(Ordering::Relaxed) {
                let linger = self.mesh.config.linger;
                let deadline = *deadline.get_or_insert_with(|| now.saturating_add(linger));
                if self.poll_close(now) || now >= deadline {
                    break;
                }
                timeout = timeout.min(LOOK_CLOSING);
            }
            match self.listener.request_timeout(timeout.max(Duration::from_millis(1))) {
                Ok(request) => self.answer(request),
                Err(net::Error::TimedOut) => {}
                // The device is gone, and so is every connection.
                Err(_) => std::thread::sleep(timeout),
            }
        }
        self.end()
    }

    /// Goes on with the end of all links. Returns whether nothing is left to do.
    fn poll_close(&self, now: Instant) -> bool {
        let mut is_done = true;
        for link in self.mesh.links() {
            let mut link = lock(link);
            link.begin_close();
            is_done &= link.poll_close(now);
        }
        is_done
    }

    /// Ends all links. Returns what is not delivered.
    fn end(self) -> Vec<Undelivered> {
        let mut undelivered = Vec::new();
        for (thread, links) in self.mesh.threads.iter().enumerate() {
            for (server, link) in links.links.iter().enumerate() {
                let messages = link.as_ref().map(|link| lock(link).close()).unwrap_or_default();
                if !messages.is_empty() {
                    undelivered.push(Undelivered { server, thread, messages });
                }
            }
        }
        for attempt in self.attempts {
            let _ = attempt.running.join();
        }
        undelivered
    }

    /// Looks at every link: notices losses, dials where it is time to. Returns when it is time for
    /// the next.
    fn look(&mut self, now: Instant, is_probe_due: bool) -> Option<Instant> {
        let mesh = Arc::clone(&self.mesh);
        let mut next: Option<Instant> = None;
        for (thread, links) in mesh.threads.iter().enumerate() {
            for (server, link) in links.links.iter().enumerate() {
                let Some(link) = link else { continue };
                let mut link = lock(link);
                if link.is_done() {
                    continue;
                }
                if look_at(&mut link, now, is_probe_due) {
                    mesh.notify(thread);
                }
                next = next.into_iter().chain(link.poll_timeout()).min();
                let hello = link.poll_dial(now, || nonce(&mut self.random));
                drop(link);
                if let Some(hello) = hello {
                    self.attempt(thread, server, move |mesh| {
                        handshake::dial(mesh, thread, server, hello);
                    });
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
            mesh.count(Counter::UnknownMember);
            return refuse(request, b"no such member of this group");
        };
        // The request must come from where the list has that server.
        let source = request.peer_addr().map(|peer| canonical(peer.ip()));
        let listed = mesh.hosts.get(server).map(|host| canonical(host.ip()));
        if source != listed {
            let source = source.map_or_else(String::new, |source| source.to_string());
            mesh.note_failure(server, format!("a request in its name came from {source}"));
            mesh.count(Counter::WrongSource);
            return refuse(request, b"not from the address of that server");
        }
        let is_of_link = |attempt: &&Attempt| (attempt.thread, attempt.server) == (thread, server);
        if self.attempts.iter().filter(is_of_link).count() >= ANSWERS_MAX {
            mesh.count(Counter::Busy);
            return refuse(request, Refusal::Busy.text());
        }
        let answer = lock(link).answer(&hello, nonce(&mut self.random));
        match answer {
            Ok(answer) => self.attempt(thread, server, move |mesh| {
                handshake::accept(mesh, request, hello, answer);
            }),
            Err(refusal) => {
                mesh.count(refusal.counter());
                refuse(request, refusal.text());
            }
        }
    }

    /// Runs an attempt to connect in a thread of its own: it waits for the peer.
    fn attempt(&mut self, thread: usize, server: usize, run: impl FnOnce(&Mesh) + Send + 'static) {
        let mesh = Arc::clone(&self.mesh);
        let spawned =
            std::thread::Builder::new().name("roce-group".to_owned()).spawn(move || run(&mesh));
        match spawned {
            Ok(running) => self.attempts.push(Attempt { thread, server, running }),
            Err(error) => {
                handshake::fail(&self.mesh, thread, server, &error.into());
            }
        }
    }
}

/// Polls the connection of a link, and notices its end. Returns whether the link has changed.
fn look_at(link: &mut Link<Connection>, now: Instant, is_probe_due: bool) -> bool {
    link.pump();
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
    let is_lost = link.handle_time(now);
    ending.is_some() || is_lost
}

fn refuse(request: Request, text: &[u8]) {
    // A peer that is gone needs no answer.
    let _ = request.refuse(text);
}

/// An IPv4 address in either of its two forms.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn nonce(random: &mut SecretRandom) -> Nonce {
    let words = [random.next(), random.next()].map(u64::to_le_bytes);
    words.as_flattened().try_into().expect("two words are 16 bytes")
}
