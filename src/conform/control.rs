//! Messages of the control connection of two agents: a line of JSON each, between threads or over
//! TCP.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::expand::Instance;
use super::text::printable;
use super::trace::Outcome;
use super::{Side, memory};
use crate::control::limits::{ANSWER_WAIT, HELLO_WAIT};
use crate::control::opening::Request;
use crate::control::{
    Addresses, ClientOpening, LineError, Lines, Nonce, OpeningError, ServerOpening, Tcp, Token,
};
use crate::wire::Gid;

/// The version of these words. Agents of different versions do not play.
pub const VERSION: u32 = 1;

/// Maximum length of a line that is received from a server: the outcome of an instance, with its
/// packets.
const LINE_MAX: usize = 64 << 20;

/// Maximum length of a line that is received from a client: an instance.
pub const CLIENT_LINE_MAX: usize = 256 << 10;

/// Maximum length of a text of the peer that is shown, in characters.
pub(super) const SHOWN_MAX: usize = 300;

/// Maximum length of the name of a device that is shown, in characters.
const DEVICE_MAX: usize = 80;

/// A message of the control connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Identity of the sender; the first message in either direction.
    Hello(Hello),
    /// An instance to run, and the side that the receiver of this message takes.
    Begin {
        /// The instance.
        instance: Box<Instance>,
        /// Side of the receiver.
        play: Side,
    },
    /// Numbers, addresses and keys of the sender's objects.
    Reach(Reach),
    /// The queue pairs of the sender can receive.
    Ready,
    /// A step is done; the keys of one's windows are these now.
    Done {
        /// Index of the step.
        step: usize,
        /// Keys of the windows, by name.
        windows: BTreeMap<String, u32>,
    },
    /// All that one expects is there, or will not come.
    Settled,
    /// Result of the instance at the sender's side.
    Outcome(Box<Outcome>),
    /// The sender cannot continue.
    Failed(String),
    /// No further instance follows.
    Bye,
}

/// Identity of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the control protocol.
    pub version: u32,
    /// The name of its device.
    pub device: String,
    /// The largest payload that a packet can have there.
    pub mtu: u32,
    /// Whether it sees its packets and can lose them.
    pub wire: bool,
}

/// Numbers, addresses and keys of the objects of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The address of its port.
    pub gid: [u8; 16],
    /// The number and the first PSN of each queue pair.
    pub qps: Vec<(u32, u32)>,
    /// Buffers.
    pub buffers: Vec<RemoteBuffer>,
    /// The keys of its windows, by name.
    pub windows: BTreeMap<String, u32>,
    /// Whether the connection manager connects its queue pairs, and of a responder, where it
    /// listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cm_port: Option<u16>,
}

/// A buffer, for the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// Name.
    pub name: String,
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

impl Hello {
    /// The greeting with a name that can be shown.
    pub(super) fn shown(self) -> Self {
        Self { device: printable(&self.device, DEVICE_MAX), ..self }
    }
}

/// The largest QPN and PSN.
const BITS_24: u32 = 0xff_ffff;

impl Reach {
    /// Whether these can be the objects of a side of an instance.
    pub(super) fn check(&self, instance: &Instance, side: Side) -> Result<(), String> {
        let scenario = &instance.scenario;
        if self.qps.len() != scenario.qps {
            return Err(format!("{} queue pairs instead of {}", self.qps.len(), scenario.qps));
        }
        if self.qps.iter().any(|(qpn, psn)| *qpn > BITS_24 || *psn > BITS_24) {
            return Err("a QPN or PSN has more than 24 bits".to_owned());
        }
        let buffers = scenario.buffers(side);
        let same = |(spec, place): (&super::scenario::BufferSpec, &RemoteBuffer)| {
            spec.name == place.name
                && memory::len_of(instance, side, &spec.name) == Ok(place.len)
                && place.addr.checked_add(place.len).is_some()
        };
        if buffers.len() != self.buffers.len() || !buffers.iter().zip(&self.buffers).all(same) {
            return Err("buffers that are not those of the scenario".to_owned());
        }
        check_windows(&self.windows, instance, side)
    }

    /// Whether its address is the peer's own: packets must not be directed at a third party.
    pub(super) fn check_address(&self, peer: IpAddr) -> Result<(), String> {
        let gid = Gid(self.gid);
        let address = gid.to_ipv4().map_or_else(|| IpAddr::from(self.gid), IpAddr::from);
        let peer = peer.to_canonical();
        if address == peer {
            return Ok(());
        }
        Err(format!(
            "the GID {gid} is not the address {peer} of the control connection; connect from and to addresses of the \
             devices, or use --any-gid on the side that says this"
        ))
    }
}

/// Whether these can be the windows of a side of an instance.
pub(super) fn check_windows(
    windows: &BTreeMap<String, u32>,
    instance: &Instance,
    side: Side,
) -> Result<(), String> {
    let specs = &instance.scenario.side(side).windows;
    let known = |name: &String| specs.iter().any(|window| window.name == *name);
    if windows.len() == specs.len() && windows.keys().all(known) {
        return Ok(());
    }
    Err("memory windows that are not those of the scenario".to_owned())
}

/// Error of the control connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer sent nothing in time.
    #[error("the peer sent nothing for {0:?}; expected {1}")]
    Silent(Duration, &'static str),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Gone,
    /// The peer reports that it cannot continue.
    #[error("the peer: {0}")]
    Failed(String),
    /// The peer sent another message than the expected one.
    #[error("the peer sent `{0}`; expected {1}")]
    Unexpected(String, &'static str),
    /// The peer sent a message with an impossible value.
    #[error("the peer: {0}: {1}")]
    Unsound(&'static str, String),
    /// The peer sent a message that exceeds the maximum length.
    #[error("the peer sent a line of more than {0} bytes")]
    TooLong(usize),
    /// The opening failed: another protocol, or no proof of the token.
    #[error(transparent)]
    Opening(#[from] OpeningError),
    /// The connection broke.
    #[error("control connection")]
    Io(#[from] io::Error),
}

impl From<LineError> for ControlError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Closed => Self::Gone,
            LineError::TooLong(most) => Self::TooLong(most),
            LineError::TimedOut(why) => Self::Failed(why),
            LineError::NotText => Self::Failed("what it sent is not text".to_owned()),
            LineError::Io(error) => Self::Io(error),
        }
    }
}

/// A way to the other agent.
pub trait Line: Send {
    /// Says a line.
    fn say(&mut self, line: &str) -> Result<(), ControlError>;

    /// Hears the next line; `what` is awaited.
    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError>;

    /// Whether the other agent is known to be gone, without waiting.
    fn is_gone(&mut self) -> bool {
        false
    }
}

impl dyn Line + '_ {
    /// Sends a message.
    pub fn send(&mut self, message: &Message) -> Result<(), ControlError> {
        let line = serde_json::to_string(message).map_err(io::Error::other)?;
        self.say(&line)
    }

    /// Receives a message.
    pub fn receive(
        &mut self,
        within: Duration,
        what: &'static str,
    ) -> Result<Message, ControlError> {
        let line = self.hear(within, what)?;
        let unexpected = || ControlError::Unexpected(shorten(&line), what);
        match serde_json::from_str(&line).map_err(|_| unexpected())? {
            Message::Failed(why) => Err(ControlError::Failed(printable(&why, SHOWN_MAX))),
            Message::Hello(hello) => Ok(Message::Hello(hello.shown())),
            message => Ok(message),
        }
    }
}

pub(super) fn unexpected(message: &Message, what: &'static str) -> ControlError {
    ControlError::Unexpected(shorten(&serde_json::to_string(message).unwrap_or_default()), what)
}

/// The beginning of a line, for people.
fn shorten(line: &str) -> String {
    printable(line.trim_end(), 80)
}

/// Two ends of a line between threads.
pub fn pair() -> (Box<dyn Line>, Box<dyn Line>) {
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    (
        Box::new(Thread { out: to_b, incoming: from_b }),
        Box::new(Thread { out: to_a, incoming: from_a }),
    )
}

struct Thread {
    out: Sender<String>,
    incoming: Receiver<String>,
}

impl Line for Thread {
    fn say(&mut self, line: &str) -> Result<(), ControlError> {
        self.out.send(line.to_owned()).map_err(|_| ControlError::Gone)
    }

    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError> {
        self.incoming.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => ControlError::Silent(within, what),
            RecvTimeoutError::Disconnected => ControlError::Gone,
        })
    }
}

/// Protocol of the control connection, with its version.
pub const PROTOCOL: &str = "roce-conform 2";

/// Request of a client in the opening: what it asks for is in the messages that follow.
const REQUEST: &str = "scenarios\n";

/// Opens the client's side of a control connection over TCP.
pub fn open(stream: TcpStream, token: Option<&Token>) -> Result<Box<dyn Line>, ControlError> {
    let stream = Tcp::new(stream, None)?;
    let addresses = stream.addresses_of_client()?;
    let mut lines = Lines::new(Box::new(stream), LINE_MAX);
    lines.set_wait(Some(ANSWER_WAIT))?;
    let mut opening = ClientOpening::new(PROTOCOL, addresses, token, Nonce::random()?);
    lines.send(&opening.first_line())?;
    let proof = opening.answer(&lines.next_line()?, REQUEST)?;
    lines.send(&format!("{REQUEST}{proof}"))?;
    opening.finish(&lines.next_line()?)?;
    Ok(Box::new(Remote(lines)))
}

/// Opens the server's side of a control connection over TCP, within the time for an opening. A
/// client that is refused is told why.
pub(super) fn accept(
    stream: Arc<TcpStream>,
    token: Option<&Token>,
) -> Result<Box<dyn Line>, ControlError> {
    let stream = Tcp::new(stream, None)?;
    let addresses = stream.addresses_of_server()?;
    let mut lines = Lines::new(Box::new(stream), CLIENT_LINE_MAX);
    let opened = welcome(&mut lines, addresses, token);
    if let Err(error) = opened {
        let _ = lines.send(&format!("error {}\n", printable(&error.to_string(), SHOWN_MAX)));
        return Err(error);
    }
    Ok(Box::new(Remote(lines)))
}

fn welcome(
    lines: &mut Lines,
    addresses: Addresses,
    token: Option<&Token>,
) -> Result<(), ControlError> {
    lines.set_wait(Some(HELLO_WAIT))?;
    let first = lines.next_line()?;
    let nonce = Nonce::random()?;
    let (_, opening, answer) = ServerOpening::begin(&first, &[PROTOCOL], addresses, token, nonce)?;
    lines.send(&answer)?;
    let mut request = Request::default();
    request.add(&lines.next_line()?);
    let proof = opening.wants_proof().then(|| lines.next_line()).transpose()?;
    Ok(lines.send(&opening.finish(proof.as_deref(), request)?)?)
}

/// A line over TCP.
struct Remote(Lines);

impl Line for Remote {
    fn say(&mut self, line: &str) -> Result<(), ControlError> {
        Ok(self.0.send(&format!("{line}\n"))?)
    }

    /// The time is for the whole line, however many pieces it comes in.
    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError> {
        self.0.set_wait(Some(within))?;
        self.0.next_line().map_err(|error| match error {
            LineError::TimedOut(_) => ControlError::Silent(within, what),
            LineError::NotText => ControlError::Unexpected("what is not text".to_owned(), what),
            error => error.into(),
        })
    }

    fn is_gone(&mut self) -> bool {
        self.0.is_closed()
    }
}
