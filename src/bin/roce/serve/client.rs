//! One client of a server, from its first byte to its last.

use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use roce::control::channel::error_line;
use roce::control::limits::HELLO_WAIT;
use roce::control::{Channel, Tcp, Ticket, Use};
use roce::ping::QP_MEMORY;

use super::nics::Served;
use super::offer::Offer;
use super::{Server, probes};
use crate::bench::control::admission::admit;
use crate::bench::control::mesh::Task;
use crate::bench::control::messages::{self, address_of};
use crate::bench::control::offer::Wish;
use crate::bench::control::pingpong_message::{MESSAGE_BYTES, from_message, is_message};
use crate::bench::control::plan::{Connection, Plan};
use crate::bench::control::probe;
use crate::bench::control::request::Request;
use crate::bench::path::{check_addresses, is_this_host};
use crate::bench::pingpong::{self, ServerLimits};
use crate::bench::{self, ServerOptions};
use crate::device;
use crate::mesh::agent::Conditions;
use crate::output::{chain, counted, remark};

/// The largest message of a pingpong.
const PINGPONG_BYTES: u32 = 1 << 20;

/// Number of receives that a pingpong has posted.
const PINGPONG_RECEIVES: u32 = 500;

/// Upper bound for the memory of a pingpong.
const PINGPONG_MEMORY: u64 = 2 << 20;

/// Time without a message after which a pingpong is over. No message says when it is.
const PINGPONG_IDLE: Duration = Duration::from_secs(5);

/// Message of a server that only offers.
const ONLY_OFFERS: &str =
    "this server only offers queue pairs (roce replay --to): start roce serve for benchmarks";

/// Counts a client as served when it is dropped, even by a panic: with `--once` the server ends
/// then.
struct Counted<'s> {
    served: &'s AtomicU64,
    /// Whether it was one. A stranger that was never welcome does not end a server.
    is_client: bool,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.served.fetch_add(u64::from(self.is_client), Ordering::SeqCst);
    }
}

impl Server {
    /// Tells a client that it cannot be served.
    pub(super) fn refuse(&self, mut stream: &TcpStream, error: &anyhow::Error) {
        let _ = stream.set_nonblocking(true);
        let _ = stream.write_all(error_line(&chain(error)).as_bytes());
    }

    /// Serves one client, and says what became of it.
    pub(super) fn serve(&self, stream: Arc<TcpStream>, address: IpAddr, ticket: Ticket) {
        let mut counted = Counted { served: &self.served, is_client: true };
        // It is given back before the client counts as served.
        let mut ticket = ticket;
        let served = self.try_serve(stream, address, &mut ticket);
        counted.is_client = ticket.is_welcome();
        match served {
            Ok(what) => remark(&format!("{address}: {what}")),
            Err(error) => remark(&format!("{address}: {}", chain(&error))),
        }
    }

    fn try_serve(
        &self,
        stream: Arc<TcpStream>,
        client: IpAddr,
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        let limit = Duration::from_secs(self.admission.limits().seconds);
        // Opening and closing are not part of what is measured.
        let mut stream = Tcp::new(stream, Some(limit + 2 * HELLO_WAIT))?;
        let mut start = [0; 5];
        stream.read_all(&mut start, HELLO_WAIT).context("the client sent nothing")?;
        if is_message(&start) {
            return self.play(stream, client, start, ticket);
        }
        if start != *b"roce-" {
            bail!(
                "neither roce bench nor a pingpong of rdma-core ('{}…'); perftest's own programs speak otherwise",
                start.escape_ascii()
            );
        }
        let local = stream.local()?;
        let mut control = Channel::to_client(stream)?.with_pending(&start);
        let done = self.welcome(&mut control, client, local, ticket);
        if let Err(error) = &done {
            control.send_error(&chain(error));
        }
        done
    }

    /// Welcomes a client, and serves it what it asks for.
    fn welcome(
        &self,
        control: &mut Channel,
        client: IpAddr,
        local: IpAddr,
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        let applicant = Request::read(control, self.token.as_ref())?;
        let request = control.welcome(applicant)?;
        // Nothing is made for a client before.
        ticket.welcome();
        let addresses = (client, local);
        match request {
            Request::Bench(hello) => self.bench(control, hello, addresses, ticket, false),
            Request::BenchByCm(hello) => self.bench(control, hello, addresses, ticket, true),
            Request::Offer(wish) => self.offer(control, &wish, addresses, ticket),
            Request::Ping(hello) => self.ping(control, hello, addresses, ticket),
            Request::Mesh(task) => self.mesh(control, &task, local, ticket),
        }
    }

    /// Serves a client of roce bench: nothing is given to it before it is welcome, admitted, and
    /// where it says it is.
    fn bench(
        &self,
        control: &mut Channel,
        messages::Hello { plan, client: peer }: messages::Hello,
        (client, local): (IpAddr, IpAddr),
        ticket: &mut Ticket,
        by_cm: bool,
    ) -> anyhow::Result<String> {
        ensure!(self.settings.serves_bench, ONLY_OFFERS);
        ensure!(
            !by_cm || self.nics.have_managers(),
            "this server has no connection manager: start it with roce serve -R"
        );
        self.check_gid(peer.address(), client)?;
        admit(ticket, &plan)?;
        ensure!(
            !by_cm || plan.connection == Connection::Rc,
            "the connection manager connects queue pairs of RC here"
        );
        let served = self.nics.get(local)?;
        let gid_index = device::choose_gid(self.settings.gid_index, &*served.nic, local)?;
        let manager = served.manager.as_ref().filter(|_| by_cm);
        let any_gid = self.is_trusting();
        let options = ServerOptions { gid_index, client, any_gid, manager };
        bench::server(&Arc::clone(&served.nic).into(), control, &plan, peer, options)?;
        Ok(describe(&plan, by_cm))
    }

    /// Serves a client that wants a queue pair and memory, under the same conditions.
    fn offer(
        &self,
        control: &mut Channel,
        wish: &Wish,
        (client, local): (IpAddr, IpAddr),
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        ensure!(
            self.settings.offers,
            "this server offers no queue pairs: start it with roce serve --offer"
        );
        self.check_gid(wish.address(), client)?;
        ticket.take(Use { clients: 0, qps: 1, memory: wish.memory() })?;
        let (nic, gid_index) = self.nic_and_gid(local)?;
        let own = nic.nic.gids().get(usize::from(gid_index)).copied().unwrap_or_default();
        check_addresses(address_of(own), wish.address(), is_this_host(client))?;
        Offer::new(Arc::clone(&nic.nic).into(), gid_index, wish)?.serve(control, wish)
    }

    /// Serves a client that probes, under the same conditions.
    fn ping(
        &self,
        control: &mut Channel,
        hello: probe::Hello,
        (client, local): (IpAddr, IpAddr),
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        ensure!(self.settings.serves_bench, ONLY_OFFERS);
        let peer = address_of(hello.prober.gid);
        self.check_gid(peer, client)?;
        ticket.take(Use { clients: 0, qps: 1, memory: QP_MEMORY })?;
        let (nic, gid_index) = self.nic_and_gid(local)?;
        let own = nic.nic.gids().get(usize::from(gid_index)).copied().unwrap_or_default();
        check_addresses(address_of(own), peer, is_this_host(client))?;
        probes::answer(&Arc::clone(&nic.nic).into(), gid_index, hello, control)
    }

    /// Serves a client that has this server probe others: only one that is trusted, because it
    /// directs traffic at them.
    fn mesh(
        &self,
        control: &mut Channel,
        task: &Task,
        local: IpAddr,
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        ensure!(self.settings.serves_bench, ONLY_OFFERS);
        ensure!(
            self.is_trusting(),
            "this server probes others only for clients that know its token: set ROCE_TOKEN to the same secret on all \
             hosts and for roce mesh; in a network of trusted hosts, roce serve --any-gid needs none"
        );
        ticket.take(Use { clients: 0, qps: 1, memory: QP_MEMORY })?;
        let (nic, gid_index) = self.nic_and_gid(local)?;
        let context = Arc::clone(&nic.nic).into();
        let conditions = Conditions { token: self.token.clone(), any_gid: self.settings.any_gid };
        crate::mesh::agent::serve(&context, gid_index, conditions, task, control)
    }

    /// Whether clients may have it send to others: because they know the token, or because all are
    /// trusted.
    fn is_trusting(&self) -> bool {
        self.token.is_some() || self.settings.any_gid
    }

    /// Checks that a client asks for traffic to its own address. A TCP connection proves its
    /// address.
    fn check_gid(&self, gid: IpAddr, client: IpAddr) -> anyhow::Result<()> {
        ensure!(
            gid == client || self.is_trusting(),
            "the queue pairs are on {gid}, but the TCP connection comes from {client}: use a device (-d) or a GID (-x, \
             -g) with that address; roce serve with a token, or with --any-gid, takes others"
        );
        Ok(())
    }

    /// Returns the NIC and the GID index that serve a client.
    fn nic_and_gid(&self, local: IpAddr) -> anyhow::Result<(Arc<Served>, u8)> {
        let nic = self.nics.get(local)?;
        let gid_index = device::choose_gid(self.settings.gid_index, &*nic.nic, local)?;
        Ok((nic, gid_index))
    }

    /// Serves a client of the pingpongs.
    fn play(
        &self,
        mut stream: Tcp,
        client: IpAddr,
        start: [u8; 5],
        ticket: &mut Ticket,
    ) -> anyhow::Result<String> {
        ensure!(self.settings.serves_bench, ONLY_OFFERS);
        ensure!(
            self.token.is_none(),
            "a pingpong cannot know the token of this server: start roce serve without one"
        );
        let mut message = [0; MESSAGE_BYTES];
        let (head, rest) = message.split_at_mut(start.len());
        head.copy_from_slice(&start);
        stream.read_all(rest, HELLO_WAIT).context("the client's address is cut short")?;
        let peer = from_message(&message)?;
        self.check_gid(address_of(peer.gid), client)?;
        ticket.take(Use { clients: 0, qps: 1, memory: PINGPONG_MEMORY })?;
        ticket.welcome();
        let (nic, gid_index) = self.nic_and_gid(stream.local()?)?;
        let own = nic.nic.gids().get(usize::from(gid_index)).copied().unwrap_or_default();
        check_addresses(address_of(own), address_of(peer.gid), is_this_host(client))?;
        let connection = self.settings.pingpong;
        let options = pingpong::Options {
            connection,
            mtu: self.settings.mtu,
            gid_index,
            size: PINGPONG_BYTES,
            rx_depth: PINGPONG_RECEIVES,
        };
        let in_all = Duration::from_secs(self.admission.limits().seconds);
        let limits = ServerLimits { idle: PINGPONG_IDLE, in_all };
        let played =
            pingpong::server(&Arc::clone(&nic.nic).into(), &mut stream, peer, options, limits)?;
        let messages = counted(played.rounds, "message");
        Ok(format!("{} pingpong, {messages}", connection.name()))
    }
}

/// Describes the request of a client in a line.
fn describe(plan: &Plan, by_cm: bool) -> String {
    let (connection, op, metric) = (plan.connection.name(), plan.op.name(), plan.metric.name());
    // The connection manager chooses the MTU.
    let by = if by_cm { "by rdma_cm".to_owned() } else { format!("MTU {}", plan.mtu) };
    format!("{connection} {op} {metric}, {} QP, {by}", plan.qps)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn client_whose_thread_panics_counts_as_served() {
        let served = AtomicU64::new(0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _counted = Counted { served: &served, is_client: true };
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(served.load(Ordering::SeqCst), 1);
    }
}
