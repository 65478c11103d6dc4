//! What two agents say to each other: a line of JSON each, between threads or over TCP.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Side;
use super::expand::Instance;
use super::trace::Outcome;

/// The version of these words. Agents of different versions do not play.
pub const VERSION: u32 = 1;

/// The longest line that is read.
const LINE_MAX: u64 = 64 << 20;

/// What one says to the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Who one is; the first thing that either says.
    Hello(Hello),
    /// What is to be played, and which side the one who hears this plays.
    Begin {
        /// What.
        instance: Box<Instance>,
        /// As whom.
        play: Side,
    },
    /// How one's objects are called.
    Reach(Reach),
    /// One's queue pairs can receive.
    Ready,
    /// A step is done; the keys of one's windows are these now.
    Done {
        /// Which.
        step: usize,
        /// By name.
        windows: BTreeMap<String, u32>,
    },
    /// All that one expects is there, or will not come.
    Settled,
    /// What came of it.
    Outcome(Box<Outcome>),
    /// One cannot go on.
    Failed(String),
    /// There is nothing more to play.
    Bye,
}

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Which words it speaks.
    pub version: u32,
    /// The name of its device.
    pub device: String,
    /// The largest payload that a packet can have there.
    pub mtu: u32,
    /// Whether it sees its packets and can lose them.
    pub wire: bool,
}

/// How the objects of a side are called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The address of its port.
    pub gid: [u8; 16],
    /// The number and the first PSN of each queue pair.
    pub qps: Vec<(u32, u32)>,
    /// Its buffers.
    pub buffers: Vec<Place>,
    /// The keys of its windows, by name.
    pub windows: BTreeMap<String, u32>,
}

/// A buffer, for the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// What it is called.
    pub name: String,
    /// Where it begins.
    pub addr: u64,
    /// How long it is.
    pub len: u64,
    /// The key to it.
    pub rkey: u32,
}

/// Why two agents do not understand each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nothing came in time.
    #[error("the other agent said nothing for {0:?} while {1} was awaited")]
    Silent(Duration, &'static str),
    /// The other one is gone.
    #[error("the other agent is gone")]
    Gone,
    /// The other one cannot go on.
    #[error("the other agent: {0}")]
    Failed(String),
    /// It said something else.
    #[error("the other agent said `{0}` where {1} was awaited")]
    Unexpected(String, &'static str),
    /// The connection broke.
    #[error("control connection")]
    Io(#[from] io::Error),
}

/// A way to the other agent.
pub trait Line: Send {
    /// Says a line.
    fn say(&mut self, line: &str) -> Result<(), ControlError>;

    /// Hears the next line; `what` is awaited.
    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError>;
}

impl dyn Line + '_ {
    /// Says something.
    pub fn send(&mut self, message: &Message) -> Result<(), ControlError> {
        let line = serde_json::to_string(message).map_err(io::Error::other)?;
        self.say(&line)
    }

    /// Hears something.
    pub fn receive(
        &mut self,
        within: Duration,
        what: &'static str,
    ) -> Result<Message, ControlError> {
        let line = self.hear(within, what)?;
        let unexpected = || ControlError::Unexpected(shorten(&line), what);
        match serde_json::from_str(&line).map_err(|_| unexpected())? {
            Message::Failed(why) => Err(ControlError::Failed(why)),
            message => Ok(message),
        }
    }
}

pub(super) fn unexpected(message: &Message, what: &'static str) -> ControlError {
    ControlError::Unexpected(shorten(&serde_json::to_string(message).unwrap_or_default()), what)
}

/// The beginning of a line, for people.
fn shorten(line: &str) -> String {
    line.chars().take(80).collect()
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

/// A line over TCP.
pub fn over(stream: TcpStream) -> io::Result<Box<dyn Line>> {
    stream.set_nodelay(true)?;
    let out = stream.try_clone()?;
    Ok(Box::new(Tcp { out, incoming: BufReader::new(stream) }))
}

struct Tcp {
    out: TcpStream,
    incoming: BufReader<TcpStream>,
}

impl Line for Tcp {
    fn say(&mut self, line: &str) -> Result<(), ControlError> {
        Ok(self.out.write_all(format!("{line}\n").as_bytes())?)
    }

    fn hear(&mut self, within: Duration, what: &'static str) -> Result<String, ControlError> {
        use io::ErrorKind::{TimedOut, WouldBlock};
        self.out.set_read_timeout(Some(within))?;
        let mut line = String::new();
        let mut bounded = io::Read::take(&mut self.incoming, LINE_MAX);
        match bounded.read_line(&mut line) {
            Ok(0) => Err(ControlError::Gone),
            Ok(_) if !line.ends_with('\n') => Err(ControlError::Gone),
            Ok(_) => Ok(line),
            Err(error) if matches!(error.kind(), TimedOut | WouldBlock) => {
                Err(ControlError::Silent(within, what))
            }
            Err(error) => Err(error.into()),
        }
    }
}
