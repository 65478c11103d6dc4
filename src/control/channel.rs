//! Control connections in messages: a line of JSON each, after the opening.
//!
//! Two lines are no JSON, and may come at any time: `alive`, by which a peer that has nothing to
//! say says that it is there, and `error` with a reason, which is the last line of a failed run.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::admission::Ticket;
use super::limits::{
    ANSWER_WAIT, HELLO_WAIT, MESSAGE_MAX, OPENING_LINE_MAX, REASON_MAX, SHOWN_MAX,
};
use super::lines::{LineError, Lines, Stream};
use super::opening::{Addresses, ClientOpening, OpeningError, Request, ServerOpening};
use super::protocol::Protocol;
use super::tcp::Tcp;
use super::text::printable;
use super::token::{Nonce, Token};

/// The line of a peer that is there, and has nothing to say.
const ALIVE: &str = "alive";

/// Error of a control connection. `peer` is the name of the other side: `the server`, `the client`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer sent nothing in time.
    #[error("waiting for {peer}: {why}; expected {expected}")]
    Silent {
        /// Name of the peer.
        peer: &'static str,
        /// The limit that was reached.
        why: String,
        /// The expected message.
        expected: &'static str,
    },
    /// The peer closed the connection.
    #[error("{0} closed the connection")]
    Closed(&'static str),
    /// The peer reports that it cannot continue.
    #[error("{peer} says: {why}")]
    Failed {
        /// Name of the peer.
        peer: &'static str,
        /// Reason that the peer gave.
        why: String,
    },
    /// The peer sent another message than the expected one.
    #[error("{peer} sent `{line}`; expected {expected}")]
    Unexpected {
        /// Name of the peer.
        peer: &'static str,
        /// Beginning of the line.
        line: String,
        /// The expected message, and why the line is none.
        expected: String,
    },
    /// The peer sent a message with an impossible value.
    #[error("{peer}: {what}: {why}")]
    Unsound {
        /// Name of the peer.
        peer: &'static str,
        /// The message.
        what: &'static str,
        /// Fault of the message.
        why: String,
    },
    /// The peer sent a line that is too long, or not text.
    #[error("{peer} sent {what}")]
    Malformed {
        /// Name of the peer.
        peer: &'static str,
        /// The line.
        what: LineError,
    },
    /// The opening failed: another protocol, or no proof of the token.
    #[error(transparent)]
    Opening(#[from] OpeningError),
    /// The connection broke.
    #[error("control connection")]
    Io(#[from] io::Error),
}

impl ControlError {
    /// Whether the peer answered, and refuses to go on. A server that asks for no token where this
    /// side has one does not refuse: it may be another than the one that is meant.
    pub fn is_refusal(&self) -> bool {
        use OpeningError::{Refused, TokenWanted};
        matches!(self, Self::Failed { .. } | Self::Opening(Refused(_) | TokenWanted))
    }
}

/// A line of a peer that is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<M> {
    /// No line has come.
    Nothing,
    /// The peer is there.
    Alive,
    /// A message.
    Message(M),
}

/// One side of a control connection.
#[derive(Debug)]
pub struct Channel {
    lines: Lines,
    /// Addresses of both sides, which proofs of a token cover.
    addresses: Addresses,
    /// Name of the other side in errors.
    peer: &'static str,
    /// The place of a client, which notes when the client last said something.
    ticket: Option<Arc<Ticket>>,
}

impl Channel {
    /// Exchanges messages of at most [`MESSAGE_MAX`] bytes with a peer of this name.
    pub fn new(stream: Box<dyn Stream>, addresses: Addresses, peer: &'static str) -> Self {
        Self { lines: Lines::new(stream, MESSAGE_MAX), addresses, peer, ticket: None }
    }

    /// Returns the client's side of a connection, before its opening.
    pub fn to_server(stream: Tcp) -> io::Result<Self> {
        let addresses = stream.addresses_of_client()?;
        Ok(Self::new(Box::new(stream), addresses, "the server"))
    }

    /// Returns the server's side of a connection, before its opening.
    pub fn to_client(stream: Tcp) -> io::Result<Self> {
        let addresses = stream.addresses_of_server()?;
        Ok(Self::new(Box::new(stream), addresses, "the client"))
    }

    /// Takes bytes that were read before.
    #[must_use]
    pub fn with_pending(mut self, pending: &[u8]) -> Self {
        self.lines = self.lines.with_pending(pending);
        self
    }

    /// Notes at this ticket when the peer says something; without the ticket's place, the peer
    /// counts as gone.
    #[must_use]
    pub fn with_ticket(mut self, ticket: Arc<Ticket>) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Sets the maximum length of a message: more is taken of a server that was asked for much.
    pub fn set_message_max(&mut self, message_max: usize) {
        self.lines.set_line_max(message_max);
    }

    /// Returns the addresses of both sides.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Returns the name of the other side.
    pub fn peer(&self) -> &'static str {
        self.peer
    }

    /// Sends a message.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        let mut line = serde_json::to_string(message).map_err(io::Error::other)?;
        line.push('\n');
        self.send_text(&line)
    }

    /// Tells the peer that this side is there.
    pub fn send_alive(&mut self) -> Result<(), ControlError> {
        self.send_text("alive\n")
    }

    /// Tells the peer why this side cannot continue. The peer may be gone already.
    pub fn send_error(&mut self, why: &impl Display) {
        let _ = self.lines.send(&error_line(why));
    }

    fn send_text(&mut self, text: &str) -> Result<(), ControlError> {
        self.lines.send(text).map_err(|error| self.failure(error, "nothing"))
    }

    /// Waits for the next message. Each line has the time anew, also that of a peer that says that
    /// it is alive.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        within: Duration,
        expected: &'static str,
    ) -> Result<M, ControlError> {
        loop {
            self.set_wait(Some(within))?;
            let line = self.next_line(expected)?;
            if line != ALIVE {
                return self.parse(&line, expected);
            }
        }
    }

    /// Waits for the next message, which has this time in all: a peer that only says that it is
    /// alive is given up.
    pub fn receive_in_all<M: DeserializeOwned>(
        &mut self,
        within: Duration,
        expected: &'static str,
    ) -> Result<M, ControlError> {
        self.set_wait(Some(within))?;
        loop {
            let line = self.next_line(expected)?;
            if line != ALIVE {
                return self.parse(&line, expected);
            }
        }
    }

    /// Returns the next message if it has come.
    pub fn try_receive<M: DeserializeOwned>(
        &mut self,
        expected: &'static str,
    ) -> Result<Incoming<M>, ControlError> {
        self.set_wait(None)?;
        match self.lines.try_line().map_err(|error| self.failure(error, expected))? {
            None => Ok(Incoming::Nothing),
            Some(line) if line == ALIVE => Ok(Incoming::Alive),
            Some(line) => Ok(Incoming::Message(self.parse(&line, expected)?)),
        }
    }

    /// Whether the peer is known to be gone, without waiting. A client that lost its place is gone,
    /// too, even if it has sent more.
    pub fn is_closed(&mut self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.is_displaced()) || self.lines.is_closed()
    }

    /// Returns the error for a message that is not the expected one.
    pub fn unexpected(&self, message: &impl Serialize, expected: &'static str) -> ControlError {
        let line = serde_json::to_string(message).unwrap_or_default();
        let (peer, line) = (self.peer, printable(&line, SHOWN_MAX));
        ControlError::Unexpected { peer, line, expected: expected.to_owned() }
    }

    /// Returns the error for a message with an impossible value.
    pub fn unsound(&self, what: &'static str, why: String) -> ControlError {
        ControlError::Unsound { peer: self.peer, what, why }
    }

    fn set_wait(&mut self, wait: Option<Duration>) -> Result<(), ControlError> {
        self.lines.set_wait(wait).map_err(|error| self.failure(error, "nothing"))
    }

    /// Returns the next line, in the time that was set.
    fn next_line(&mut self, expected: &'static str) -> Result<String, ControlError> {
        let line = self.lines.next_line().map_err(|error| self.failure(error, expected))?;
        if let Some(ticket) = &self.ticket {
            ticket.heard();
        }
        match line.strip_prefix("error ") {
            Some(why) => {
                let (peer, why) = (self.peer, printable(why, REASON_MAX));
                Err(ControlError::Failed { peer, why })
            }
            None => Ok(line),
        }
    }

    fn parse<M: DeserializeOwned>(
        &self,
        line: &str,
        expected: &'static str,
    ) -> Result<M, ControlError> {
        serde_json::from_str(line).map_err(|error| {
            let why = printable(&error.to_string(), REASON_MAX);
            let (peer, line) = (self.peer, printable(line.trim_end(), SHOWN_MAX));
            ControlError::Unexpected { peer, line, expected: format!("{expected}: {why}") }
        })
    }

    fn failure(&self, error: LineError, expected: &'static str) -> ControlError {
        let peer = self.peer;
        match error {
            LineError::Closed => ControlError::Closed(peer),
            LineError::TimedOut(why) => ControlError::Silent { peer, why, expected },
            what @ (LineError::TooLong(_) | LineError::NotText) => {
                ControlError::Malformed { peer, what }
            }
            LineError::Io(error) => ControlError::Io(error),
        }
    }
}

/// Returns the line that tells a peer of an error.
pub fn error_line(why: &impl Display) -> String {
    let mut line = format!("error {}", printable(&why.to_string(), REASON_MAX));
    line.truncate(line.floor_char_boundary(OPENING_LINE_MAX));
    line.push('\n');
    line
}

/// The opening of a client.
impl Channel {
    /// Opens the connection to a server, which has [`ANSWER_WAIT`] for all of it.
    pub fn open(
        &mut self,
        protocol: Protocol,
        token: Option<&Token>,
        request: &impl Serialize,
    ) -> Result<(), ControlError> {
        self.lines.set_line_max(OPENING_LINE_MAX);
        self.set_wait(Some(ANSWER_WAIT))?;
        let mut request = serde_json::to_string(request).map_err(io::Error::other)?;
        request.push('\n');
        let mut opening =
            ClientOpening::new(protocol.magic(), self.addresses, token, Nonce::random()?);
        self.send_text(&opening.first_line())?;
        let proof = opening.answer(&self.next_line("an answer")?, &request)?;
        self.send_text(&format!("{request}{proof}"))?;
        opening.finish(&self.next_line("a welcome")?)?;
        self.lines.set_line_max(MESSAGE_MAX);
        Ok(())
    }
}

/// A client whose request is known, and that was not welcomed yet.
#[derive(Debug)]
pub struct Applicant<'t, R> {
    /// Protocol that the client asked for.
    pub protocol: Protocol,
    /// First message of the client: its request.
    pub request: R,
    opening: ServerOpening<'t>,
    digest: Request,
}

/// The opening of a server.
impl Channel {
    /// Reads the opening of a client, which has [`HELLO_WAIT`] for all of it, up to its proof of
    /// the token. `read` parses the request of one of these protocols.
    pub fn accept<'t, R>(
        &mut self,
        protocols: &[Protocol],
        token: Option<&'t Token>,
        read: impl FnOnce(Protocol, &str) -> serde_json::Result<R>,
    ) -> Result<Applicant<'t, R>, ControlError> {
        self.lines.set_line_max(OPENING_LINE_MAX);
        self.set_wait(Some(HELLO_WAIT))?;
        let first = self.next_line("an opening")?;
        let names: Vec<&str> = protocols.iter().map(|protocol| protocol.magic()).collect();
        let (index, opening, answer) =
            ServerOpening::begin(&first, &names, self.addresses, token, Nonce::random()?)?;
        let protocol = *protocols.get(index).ok_or(OpeningError::ServerUnproven)?;
        self.send_text(&answer)?;
        self.lines.set_line_max(MESSAGE_MAX);
        let line = self.next_line("a request")?;
        let mut digest = Request::default();
        digest.add(&line);
        let request = read(protocol, &line).map_err(|error| {
            let why = printable(&error.to_string(), REASON_MAX);
            self.unsound("its request", why)
        })?;
        Ok(Applicant { protocol, request, opening, digest })
    }

    /// Ends the opening of a client: checks its proof, welcomes it, and returns its request.
    pub fn welcome<R>(&mut self, applicant: Applicant<'_, R>) -> Result<R, ControlError> {
        let Applicant { request, opening, digest, .. } = applicant;
        let proof = opening.wants_proof().then(|| self.next_line("a proof")).transpose()?;
        let welcome = opening.finish(proof.as_deref(), digest)?;
        self.send_text(&welcome)?;
        Ok(request)
    }
}

/// Returns the two sides of a connection between threads.
pub fn pair(peers: [&'static str; 2]) -> [Channel; 2] {
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    let [b, a] = peers;
    let pipe = |out, incoming| Box::new(Pipe { out, incoming, pending: Vec::new(), wait: None });
    let nowhere = SocketAddr::from(([0; 4], 0));
    let addresses = Addresses { client: nowhere, server: nowhere };
    let side = |pipe, peer| Channel::new(pipe, addresses, peer);
    let mut sides = [side(pipe(to_b, from_b), b), side(pipe(to_a, from_a), a)];
    sides.iter_mut().for_each(|side| side.set_message_max(usize::MAX));
    sides
}

/// One side of a byte stream between threads.
struct Pipe {
    out: Sender<Vec<u8>>,
    incoming: Receiver<Vec<u8>>,
    /// Bytes that came, and were not received yet.
    pending: Vec<u8>,
    wait: Option<Duration>,
}

impl Stream for Pipe {
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.wait = wait;
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.pending.is_empty() {
            self.pending = match self.wait {
                Some(wait) => match self.incoming.recv_timeout(wait) {
                    Ok(sent) => sent,
                    Err(RecvTimeoutError::Disconnected) => return Ok(0),
                    Err(RecvTimeoutError::Timeout) => {
                        let why = "nothing came in time";
                        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                    }
                },
                None => match self.incoming.try_recv() {
                    Ok(sent) => sent,
                    Err(TryRecvError::Disconnected) => return Ok(0),
                    Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                },
            };
        }
        let count = self.pending.len().min(bytes.len());
        for (to, from) in bytes.iter_mut().zip(self.pending.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn send_all(&mut self, bytes: &[u8], _: Duration) -> io::Result<()> {
        let closed = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        self.out.send(bytes.to_vec()).map_err(closed)
    }
}
