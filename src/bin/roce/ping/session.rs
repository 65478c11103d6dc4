//! The control connection of a prober: as long as it lasts, the server answers probes. After a restart of the server there
//! is another one.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use roce::ping::Address;
use roce::ping::limits::RATE_MAX;

use crate::bench::Token;
use crate::bench::control::Control;
use crate::bench::control::messages::{self, Protocol};
use crate::bench::control::probe::{Hello, Welcome};
use crate::bench::tcp::{self, Tcp};
use crate::bench::watch::now;

/// How often to look after the connection, and to try for another one.
const ROUND: Duration = Duration::from_secs(1);

/// Returns the rate of probes with an interval between them.
pub(crate) fn rate_of(interval: Duration) -> u32 {
    let rate = (1.0 / interval.as_secs_f64()).ceil().min(RATE_MAX.into());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
    let rate = rate as u32;
    rate.max(1)
}

/// Asks a server for a responder.
pub(crate) fn ask(
    control: &mut Control,
    token: Option<&Token>,
    hello: Hello,
) -> anyhow::Result<Address> {
    let prove = token.map(|token| |nonce: &str| token.proof(nonce));
    let prove = prove.as_ref().map(|prove| prove as &dyn Fn(&str) -> String);
    messages::introduce_as(Protocol::Ping, control, prove)?;
    control.send(&hello.to_lines())?;
    Ok(Welcome::read(control)?.responder)
}

/// The connection, or the attempt to make one.
enum State {
    Connected(Control),
    Connecting(Receiver<anyhow::Result<TcpStream>>),
    Waiting,
}

/// The control connection to a server that may restart.
pub(super) struct Session {
    state: State,
    token: Option<Token>,
    hello: Hello,
    server: SocketAddr,
    source: std::net::IpAddr,
    checked: Instant,
}

impl Session {
    /// Asks a server for a responder over a connection to it.
    pub(super) fn open(
        stream: Tcp,
        token: Option<Token>,
        prober: Address,
        rate: u32,
    ) -> anyhow::Result<(Self, Address)> {
        let (server, source) = (stream.peer_address()?, stream.local()?);
        let hello = Hello { prober, rate };
        let mut control = Control::new(Box::new(stream), "the server");
        let target = ask(&mut control, token.as_ref(), hello)?;
        control.set_waiting(false)?;
        let state = State::Connected(control);
        Ok((Self { state, token, hello, server, source, checked: now() }, target))
    }

    /// Looks after the connection once in a while. Returns the responder of a new one.
    pub(super) fn check(&mut self) -> Option<Address> {
        if self.checked.elapsed() < ROUND {
            return None;
        }
        self.checked = now();
        match &mut self.state {
            State::Connected(control) => {
                if let Err(error) = control.try_line() {
                    eprintln!(
                        "roce: the server is gone ({error:#}); probes are lost until it is back"
                    );
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

    fn reopen(&mut self, stream: TcpStream) -> Option<Address> {
        self.state = State::Waiting;
        let opened = Tcp::new(stream, None).and_then(|stream| {
            Self::open(stream, self.token.clone(), self.hello.prober, self.hello.rate)
        });
        match opened.context("the server is back, but does not answer probes") {
            Ok((session, target)) => {
                eprintln!("roce: the server is back");
                *self = session;
                Some(target)
            }
            Err(error) => {
                eprintln!("roce: {error:#}");
                None
            }
        }
    }

    /// Tells the server that nothing more comes.
    pub(super) fn close(&mut self) {
        if let State::Connected(control) = &mut self.state {
            let _ = control.send("bye\n");
        }
    }
}
