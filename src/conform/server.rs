//! An agent for clients on a network, of which none is trusted.
//!
//! Each client has a thread, and gets the device in turns. What it says is bounded and checked as if it were read from a
//! file, and its packets go to its own address. There are at most [`CLIENTS_MAX`] clients: a further one takes the
//! place of the one that has been silent for longest, of those that never greeted first.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::agent::{Agent, Client};
use super::control::{self, CLIENT_LINE_MAX, ControlError, Line};
use super::now;
use super::turns::Turns;

/// Maximum number of clients at once.
pub const CLIENTS_MAX: usize = 16;

/// Maximum number of threads that serve clients. Those of clients that lost their place need a moment to end; beyond this
/// number, further clients wait in the backlog until one has.
const THREADS_MAX: usize = 2 * CLIENTS_MAX;

/// How long to wait before accepting again when there is no client, too many threads are running, or the system refuses
/// for lack of descriptors.
const RETRY: Duration = Duration::from_millis(20);

/// What a server tells of a client: its address, and how many instances it played or why it was given up.
pub type Report<'r> = dyn Fn(IpAddr, Result<usize, ControlError>) + Send + Sync + 'r;

/// An agent for clients on a network.
#[derive(Debug)]
pub struct Server {
    agent: Agent,
    /// Whether the packets of clients may go to other addresses than their own.
    any_gid: bool,
    turns: Turns,
    clients: Mutex<Clients>,
    /// How many threads serve clients.
    threads: AtomicUsize,
}

/// A thread that serves a client counts until this is dropped.
struct Counted(Arc<Server>);

impl Counted {
    fn new(server: &Arc<Server>) -> Self {
        server.threads.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(server))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct Clients {
    accepted: u64,
    here: BTreeMap<u64, Entry>,
}

/// A client that is connected.
#[derive(Debug)]
struct Entry {
    stream: TcpStream,
    address: IpAddr,
    greeted: bool,
    /// When it last said something.
    heard: Instant,
}

impl Clients {
    /// The client that is missed least: it never greeted, many share its address, it has been silent for longest.
    fn least(&self) -> Option<u64> {
        let crowd = |entry: &Entry| {
            self.here.values().filter(|other| other.address == entry.address).count()
        };
        let rank = |entry: &Entry| (entry.greeted, std::cmp::Reverse(crowd(entry)), entry.heard);
        self.here.iter().min_by_key(|(_, entry)| rank(entry)).map(|(number, _)| *number)
    }
}

impl Server {
    /// A server that plays with this agent. With `any_gid`, clients may have packets sent to any address, and not only to
    /// the one that their control connection comes from.
    pub fn new(agent: Agent, any_gid: bool) -> Self {
        let (turns, clients, threads) = Default::default();
        Self { agent, any_gid, turns, clients, threads }
    }

    /// The agent that plays.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves clients, each in a thread. With `once`, until the first one that played a scenario is gone.
    pub fn run(
        self: &Arc<Self>,
        listener: &TcpListener,
        once: bool,
        report: &Arc<Report<'static>>,
    ) -> io::Result<()> {
        let done = Arc::new(AtomicBool::new(false));
        listener.set_nonblocking(once)?;
        while !done.load(Ordering::Acquire) {
            let has_room = self.threads.load(Ordering::Acquire) < THREADS_MAX;
            let Some(Ok((stream, from))) = has_room.then(|| listener.accept()) else {
                std::thread::sleep(RETRY);
                continue;
            };
            let address = from.ip().to_canonical();
            let Some((number, line)) = self.admit(stream, address) else { continue };
            let (counted, report, done) =
                (Counted::new(self), Arc::clone(report), Arc::clone(&done));
            let named = std::thread::Builder::new().name("roce-conform".to_owned());
            let spawned = named.spawn(move || {
                let served = counted.0.serve(number, line, address);
                let played = matches!(served, Ok(1..));
                report(address, served);
                done.fetch_or(once && played, Ordering::AcqRel);
            });
            if spawned.is_err() {
                self.clients().here.remove(&number);
            }
        }
        Ok(())
    }

    /// Takes in a client, if need be in the place of another.
    fn admit(&self, stream: TcpStream, address: IpAddr) -> Option<(u64, Box<dyn Line>)> {
        let line = control::bounded(stream.try_clone().ok()?, CLIENT_LINE_MAX).ok()?;
        let mut clients = self.clients();
        while clients.here.len() >= CLIENTS_MAX {
            let least = clients.least()?;
            let gone = clients.here.remove(&least)?;
            // Its thread finds the connection closed, and ends.
            let _ = gone.stream.shutdown(Shutdown::Both);
        }
        clients.accepted += 1;
        let number = clients.accepted;
        clients.here.insert(number, Entry { stream, address, greeted: false, heard: now() });
        Some((number, line))
    }

    fn serve(
        &self,
        number: u64,
        line: Box<dyn Line>,
        address: IpAddr,
    ) -> Result<usize, ControlError> {
        let mut line = Heard { line, server: self, number };
        let greeted = || {
            if let Some(entry) = self.clients().here.get_mut(&number) {
                entry.greeted = true;
            }
        };
        let address = (!self.any_gid).then_some(address);
        let client = Client { turns: &self.turns, address, greeted: &greeted };
        self.agent.serve_client(&mut line, &client)
    }
}

/// A line that notes when its client last said something, and strikes the client off the list in the end.
struct Heard<'s> {
    line: Box<dyn Line>,
    server: &'s Server,
    number: u64,
}

impl Line for Heard<'_> {
    fn say(&mut self, line: &str) -> Result<(), ControlError> {
        self.line.say(line)
    }

    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError> {
        let heard = self.line.hear(within, what)?;
        if let Some(entry) = self.server.clients().here.get_mut(&self.number) {
            entry.heard = now();
        }
        Ok(heard)
    }

    fn is_gone(&mut self) -> bool {
        // One that lost its place is gone, too, even if there is more to hear from it.
        !self.server.clients().here.contains_key(&self.number) || self.line.is_gone()
    }
}

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        self.server.clients().here.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::link::cable;
    use crate::nic::SoftNic;
    use crate::wire::Gid;

    fn server() -> Arc<Server> {
        let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
        let (link, _) = cable(a, b).unwrap();
        let device = Arc::new(SoftNic::start(link).unwrap());
        Arc::new(Server::new(Agent { device, wire: None, gid_index: None, manager: None }, false))
    }

    /// A connection, by its two ends.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Whether the other end has closed a connection.
    fn is_closed(mut client: &TcpStream) -> bool {
        client.set_nonblocking(true).unwrap();
        matches!(io::Read::read(&mut client, &mut [0]), Ok(0))
    }

    #[test]
    fn newcomer_takes_the_place_of_the_least_useful_client() {
        let (server, listener) = (server(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |host: u8| IpAddr::from([192, 0, 2, host]);
        let mut clients = Vec::new();
        let mut admit = |host: u8| {
            let (client, stream) = connection(&listener);
            let (number, _line) = server.admit(stream, address(host)).unwrap();
            clients.push((number, client));
            number
        };
        // One for itself, two that share an address, and others, the first of which has been silent for longest.
        let alone = admit(1);
        let crowd = [admit(2), admit(2)];
        let others: Vec<u64> = (3..).take(CLIENTS_MAX - 3).map(&mut admit).collect();
        for number in crowd.iter().chain(&others) {
            server.clients().here.get_mut(number).unwrap().greeted = true;
        }
        // First goes who never greeted, then one of the crowd, then who has been silent for longest.
        for (host, gone) in (100..).zip([alone, crowd[0], crowd[1]]) {
            let new = admit(host);
            server.clients().here.get_mut(&new).unwrap().greeted = true;
            assert!(!server.clients().here.contains_key(&gone), "client {gone} is still there");
            assert_eq!(server.clients().here.len(), CLIENTS_MAX);
            assert!(server.clients().here.contains_key(&new));
        }
        let closed = clients.iter().filter(|(_, client)| is_closed(client)).map(|it| it.0);
        assert_eq!(closed.collect::<Vec<_>>(), [alone, crowd[0], crowd[1]]);
    }

    #[test]
    fn clients_wait_in_the_backlog_while_too_many_threads_run() {
        let (server, listener) = (server(), TcpListener::bind("127.0.0.1:0").unwrap());
        server.threads.store(THREADS_MAX, Ordering::Release);
        let report: Arc<Report<'static>> = Arc::new(|_, _| {});
        let backlog = listener.try_clone().unwrap();
        let running = Arc::clone(&server);
        std::thread::spawn(move || running.run(&listener, true, &report));
        let _client = TcpStream::connect(backlog.local_addr().unwrap()).unwrap();
        // The server leaves it in the backlog: it is still there to be accepted.
        std::thread::sleep(4 * RETRY);
        backlog.set_nonblocking(true).unwrap();
        assert!(backlog.accept().is_ok(), "the server took it");
        assert_eq!(server.clients().accepted, 0);
        // With room for a thread again, the next one is accepted.
        server.threads.store(0, Ordering::Release);
        let _client = TcpStream::connect(backlog.local_addr().unwrap()).unwrap();
        while server.clients().accepted == 0 {
            std::thread::sleep(RETRY);
        }
    }
}
