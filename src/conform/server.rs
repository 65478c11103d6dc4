//! An agent for clients on a network, of which none is trusted.
//!
//! Each client has a thread, and gets the device in turns. What it says is bounded and checked as
//! if it were read from a file, and its packets go to its own address. There are at most
//! [`CONFORM_CLIENTS_MAX`] clients: a further one takes the place of the one that has been silent
//! for longest, of those that never greeted first.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::agent::{Agent, Terms};
use super::control;
use super::turns::Turns;
use crate::control::limits::CONFORM_CLIENTS_MAX;
use crate::control::tcp::close_of;
use crate::control::{Admission, ControlError, Limits, Ticket, Token};

/// Time to wait before accepting again when there is no client, too many threads are ending, or the
/// system refuses for lack of descriptors.
const RETRY: Duration = Duration::from_millis(20);

/// Limits of a server. The newest client gets a place: a silent client that was welcomed loses its
/// own, too.
const LIMITS: Limits = Limits {
    clients: CONFORM_CLIENTS_MAX as u64,
    qps: u64::MAX,
    memory: u64::MAX,
    seconds: u64::MAX,
    share: 1,
    displaces_welcomed: true,
};

/// Callback for the end of a client's session: its address, and the number of instances it ran or
/// the error that ended it.
pub type Report<'r> = dyn Fn(IpAddr, Result<usize, ControlError>) + Send + Sync + 'r;

/// An agent for clients on a network.
#[derive(Debug)]
pub struct Server {
    agent: Agent,
    /// Whether the packets of clients may go to other addresses than their own.
    any_gid: bool,
    /// Token that clients prove, if there is one.
    token: Option<Token>,
    turns: Turns,
    admission: Arc<Admission>,
}

impl Server {
    /// A server that plays with this agent. With `any_gid`, clients may have packets sent to any
    /// address, and not only to the one that their control connection comes from.
    pub fn new(agent: Agent, any_gid: bool, token: Option<Token>) -> Self {
        let admission = Admission::new(LIMITS);
        Self { agent, any_gid, token, turns: Turns::default(), admission }
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Serves clients, each in a thread. With `once`, until the first one that played a scenario is
    /// gone.
    pub fn run(
        self: &Arc<Self>,
        listener: &TcpListener,
        once: bool,
        report: &Arc<Report<'static>>,
    ) -> io::Result<()> {
        let done = Arc::new(AtomicBool::new(false));
        listener.set_nonblocking(once)?;
        while !done.load(Ordering::Acquire) {
            if !self.admission.wait_for_room(RETRY) {
                continue;
            }
            let Ok((stream, from)) = listener.accept() else {
                std::thread::sleep(RETRY);
                continue;
            };
            let address = from.ip().to_canonical();
            let stream = Arc::new(stream);
            let Some(ticket) = self.admit(&stream, address) else { continue };
            let (server, report, done) = (Arc::clone(self), Arc::clone(report), Arc::clone(&done));
            let named = std::thread::Builder::new().name("roce-conform".to_owned());
            // If there is no thread, the client is disconnected, and its place is free again.
            let _ = named.spawn(move || {
                let served = server.serve(stream, ticket, address);
                let played = matches!(served, Ok(1..));
                report(address, served);
                done.fetch_or(once && played, Ordering::AcqRel);
            });
        }
        Ok(())
    }

    /// Takes in a client, if need be in the place of another.
    fn admit(&self, stream: &Arc<TcpStream>, address: IpAddr) -> Option<Ticket> {
        self.admission.enter(address, close_of(stream)).ok()
    }

    fn serve(
        &self,
        stream: Arc<TcpStream>,
        ticket: Ticket,
        address: IpAddr,
    ) -> Result<usize, ControlError> {
        let ticket = Arc::new(ticket);
        let line = control::accept(stream, self.token.as_ref())?;
        let mut line = line.with_ticket(Arc::clone(&ticket));
        let address = (!self.any_gid).then_some(address);
        let terms = Terms { turns: Some(&self.turns), address };
        self.agent.serve_client(&mut line, &terms, &|| ticket.welcome())
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
        let agent = Agent { device, wire: None, gid_index: None, manager: None };
        Arc::new(Server::new(agent, false, None))
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
    fn newcomer_takes_the_place_of_a_silent_client() {
        let (server, listener) = (server(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |host: u8| IpAddr::from([192, 0, 2, host]);
        let mut admit = |host: u8| {
            let (client, stream) = connection(&listener);
            let stream = Arc::new(stream);
            (client, server.admit(&stream, address(host)).unwrap(), stream)
        };
        let all: Vec<_> = (1..).take(CONFORM_CLIENTS_MAX).map(&mut admit).collect();
        all.iter().skip(1).for_each(|(_, ticket, _)| ticket.welcome());
        let _newcomer = admit(100);
        let gone: Vec<usize> = (0..all.len())
            .filter(|at| all[*at].1.is_displaced() && is_closed(&all[*at].0))
            .collect();
        assert_eq!(gone, [0], "the one that never greeted");
        assert!(all.iter().skip(1).all(|(client, _, _)| !is_closed(client)));
    }

    #[test]
    fn clients_wait_in_the_backlog_while_too_many_threads_run() {
        let (server, listener) = (server(), TcpListener::bind("127.0.0.1:0").unwrap());
        // As many clients as there may be have lost their place, and their threads have not ended.
        let count = 2 * CONFORM_CLIENTS_MAX;
        let enter = |_| server.admission.enter(IpAddr::from([192, 0, 2, 1]), Box::new(|| ()));
        let tickets: Vec<Ticket> = (0..count).map(|at| enter(at).unwrap()).collect();
        assert!(!server.admission.wait_for_room(Duration::ZERO));
        let report: Arc<Report<'static>> = Arc::new(|_, _| {});
        let backlog = listener.try_clone().unwrap();
        let running = Arc::clone(&server);
        std::thread::spawn(move || running.run(&listener, true, &report));
        let _client = TcpStream::connect(backlog.local_addr().unwrap()).unwrap();
        // The server leaves it in the backlog: it is still there to be accepted.
        std::thread::sleep(4 * RETRY);
        backlog.set_nonblocking(true).unwrap();
        assert!(backlog.accept().is_ok(), "the server took it");
        // With room for a thread again, the next one is accepted.
        drop(tickets);
        let _client = TcpStream::connect(backlog.local_addr().unwrap()).unwrap();
        while server.admission.in_all().clients == 0 {
            std::thread::sleep(RETRY);
        }
    }
}
