//! Queue pairs of a run that the connection manager connects: `-R`.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use roce::connect::{Connection, ConnectionManager, Error, Listener, Options};
use roce::control::limits::HELLO_WAIT;
use roce::verbs::QpHandle;

use super::control::rendezvous::Rendezvous;

/// Maximum time of connecting one queue pair.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

#[expect(clippy::disallowed_methods, reason = "how long a client may take is real time")]
fn now() -> Instant {
    Instant::now()
}

/// Connects one queue pair of a client to the server's of the same number.
pub(crate) fn connect(
    manager: &ConnectionManager,
    server: IpAddr,
    rendezvous: Rendezvous,
    (q, qp): (u32, QpHandle),
) -> anyhow::Result<Connection> {
    let data = rendezvous.private_data(q);
    let mut options = Options::with_private_data(&data);
    options.timeout = CONNECT_WAIT;
    let connected = manager.connect(qp, SocketAddr::new(server, rendezvous.port), &options);
    connected.with_context(|| format!("-R: queue pair {q} does not connect to {server}"))
}

/// Listener of a server for the queue pairs of one client.
pub(crate) struct Waiting {
    listener: Listener,
    rendezvous: Rendezvous,
}

impl Waiting {
    /// Listens at an address of the NIC.
    pub(crate) fn listen(manager: &ConnectionManager, address: IpAddr) -> anyhow::Result<Self> {
        let listener = manager
            .listen(SocketAddr::new(address, 0))
            .with_context(|| format!("the connection manager cannot listen at {address}"))?;
        let port = listener.local_addr()?.port();
        let mut key = [0; 16];
        getrandom::fill(&mut key).context("the system has no random numbers")?;
        Ok(Self { listener, rendezvous: Rendezvous { port, key } })
    }

    /// Returns the address of the listener, for the client.
    pub(crate) fn rendezvous(&self) -> Rendezvous {
        self.rendezvous
    }

    /// Accepts the request of the client's queue pair number `q`, and connects `qp` to it. A
    /// request without the key is rejected. If `client` is given, a request from another address is
    /// rejected and is an error.
    pub(crate) fn accept(
        &self,
        client: Option<IpAddr>,
        q: u32,
        qp: QpHandle,
    ) -> anyhow::Result<Connection> {
        let until = now() + HELLO_WAIT;
        loop {
            let left = until.saturating_duration_since(now());
            let request = match self.listener.accept_timeout(left) {
                Err(Error::Timeout) => {
                    bail!("queue pair {q} of the client did not connect in time")
                }
                request => request.context("the connection manager")?,
            };
            let Some(number) = self.rendezvous.queue_pair(request.private_data()) else {
                let _ = request.reject(b"roce serve: this port is for one client of roce bench -R");
                continue;
            };
            let from = request.peer_addr().ip().to_canonical();
            if client.is_some_and(|client| client != from) {
                let _ = request
                    .reject(b"roce serve: this address is not that of the control connection");
                bail!("queue pair {number} of the client connects from {from}");
            }
            ensure!(
                number == q,
                "queue pair {number} of the client connects before queue pair {q}"
            );
            let mut options = Options::default();
            options.timeout = CONNECT_WAIT;
            return request
                .accept(qp, &options)
                .with_context(|| format!("queue pair {q} of the client does not connect"));
        }
    }
}
