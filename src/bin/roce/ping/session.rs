//! The control connection of a prober: as long as it lasts, the server answers probes. After a
//! restart of the server there is another one.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use roce::control::{Channel, Incoming, Protocol, Tcp, Token};
use roce::ping::Address;
use roce::ping::limits::RATE_MAX;

use crate::bench::control::messages::address_of;
use crate::bench::control::probe::{Goodbye, Hello, Welcome};
use crate::bench::path::check_responder;
use crate::bench::tcp;
use crate::bench::watch::now;
use crate::output::remark;

/// Interval at which the connection is checked, and another one tried.
const ROUND: Duration = Duration::from_secs(1);

/// Returns the rate of probes with an interval between them.
pub(crate) fn rate_of(interval: Duration) -> u32 {
    let rate = (1.0 / interval.as_secs_f64()).ceil().min(RATE_MAX.into());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
    let rate = rate as u32;
    rate.max(1)
}

/// Request to a server, and the conditions under which its answer is accepted.
#[derive(Clone, Debug)]
pub(crate) struct ResponderRequest {
    pub(crate) token: Option<Token>,
    pub(crate) hello: Hello,
    /// Whether the responder may be at another address than the server.
    pub(crate) any_gid: bool,
}

/// Asks a server for a responder.
pub(crate) fn ask(control: &mut Channel, request: &ResponderRequest) -> anyhow::Result<Address> {
    let ResponderRequest { token, hello, any_gid } = request;
    control.open(Protocol::Ping, token.as_ref(), hello)?;
    let responder = Welcome::receive(control)?.responder;
    let server = control.addresses().server.ip().to_canonical();
    check_responder(address_of(responder.gid), server, *any_gid)?;
    Ok(responder)
}

/// The connection, or the attempt to make one.
enum State {
    Connected(Box<Channel>),
    Connecting(Receiver<anyhow::Result<Tcp>>),
    Waiting,
}

/// The control connection to a server that may restart.
pub(super) struct Session {
    state: State,
    request: ResponderRequest,
    server: SocketAddr,
    source: std::net::IpAddr,
    checked: Instant,
}

impl Session {
    /// Asks a server for a responder over a connection to it.
    pub(super) fn open(stream: Tcp, request: ResponderRequest) -> anyhow::Result<(Self, Address)> {
        let (server, source) = (stream.peer_address()?, stream.local()?);
        let mut control = Channel::to_server(stream)?;
        let target = ask(&mut control, &request)?;
        let state = State::Connected(Box::new(control));
        Ok((Self { state, request, server, source, checked: now() }, target))
    }

    /// Looks after the connection once in a while. Returns the responder of a new one.
    pub(super) fn check(&mut self) -> Option<Address> {
        if self.checked.elapsed() < ROUND {
            return None;
        }
        self.checked = now();
        match &mut self.state {
            State::Connected(control) => {
                let heard: Result<Incoming<Goodbye>, _> = control.try_receive("nothing");
                if let Err(error) = heard {
                    remark(&format!(
                        "the server is gone ({error}); probes are lost until it is back"
                    ));
                    self.state = State::Waiting;
                }
            }
            State::Waiting => {
                let (sender, receiver) = channel();
                let (source, server) = (self.source, self.server);
                std::thread::spawn(move || {
                    let _ = sender.send(tcp::connect(Some(source), server, "roce serve"));
                });
                self.state = State::Connecting(receiver);
            }
            State::Connecting(receiver) => match receiver.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(stream)) => return self.reopen(stream),
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => self.state = State::Waiting,
            },
        }
        None
    }

    fn reopen(&mut self, stream: Tcp) -> Option<Address> {
        self.state = State::Waiting;
        let opened = Self::open(stream, self.request.clone());
        match opened.context("the server is back, but does not answer probes") {
            Ok((session, target)) => {
                remark("the server is back");
                *self = session;
                Some(target)
            }
            Err(error) => {
                remark(&format!("{error:#}"));
                None
            }
        }
    }

    /// Tells the server that nothing more comes.
    pub(super) fn close(&mut self) {
        if let State::Connected(control) = &mut self.state {
            let _ = control.send(&Goodbye::Bye);
        }
    }
}
