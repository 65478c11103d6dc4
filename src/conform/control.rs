//! Messages of the control connection of two agents, between threads or over TCP.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::expand::Instance;
use super::trace::Outcome;
use super::{Side, memory};
use crate::control::limits::{OUTCOME_MAX, REASON_MAX};
use crate::control::text::printable;
use crate::control::{Channel, ControlError, Protocol, Tcp, Token};
use crate::wire::{Gid, Psn, Qpn};

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
    /// All completions that the sender expects have come.
    Completed,
    /// All that the sender expects is there, or will not come.
    Settled,
    /// Result of the instance at the sender's side.
    Outcome(Box<Outcome>),
    /// The sender cannot continue with this instance.
    Stopped(String),
    /// No further instance follows.
    Bye,
}

/// Identity of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of its device.
    pub device: String,
    /// The largest payload that a packet can have there.
    pub mtu: u32,
    /// Whether it sees its packets and can lose them.
    pub wire: bool,
    /// Whether the connection manager connects its queue pairs.
    #[serde(default)]
    pub uses_cm: bool,
}

/// Numbers, addresses and keys of the objects of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The address of its port.
    pub gid: Gid,
    /// The number and the first PSN of each queue pair.
    pub qps: Vec<(Qpn, Psn)>,
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

impl Reach {
    /// Whether these can be the objects of a side of an instance.
    pub(super) fn check(&self, instance: &Instance, side: Side) -> Result<(), String> {
        let scenario = &instance.scenario;
        if self.qps.len() != scenario.qps {
            return Err(format!("{} queue pairs instead of {}", self.qps.len(), scenario.qps));
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
        let gid = self.gid;
        let address = gid.to_ipv4().map_or_else(|| IpAddr::from(gid.0), IpAddr::from);
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

/// Receives a message; `expected` is awaited.
pub(super) fn receive(
    channel: &mut Channel,
    within: Duration,
    expected: &'static str,
) -> Result<Message, ControlError> {
    match channel.receive(within, expected)? {
        Message::Stopped(why) => {
            let (peer, why) = (channel.peer(), printable(&why, REASON_MAX));
            Err(ControlError::Failed { peer, why })
        }
        Message::Hello(hello) => Ok(Message::Hello(hello.shown())),
        message => Ok(message),
    }
}

/// Request of a client in the opening: what it asks for is in the messages that follow.
const REQUEST: &str = "scenarios";

/// Opens the client's side of a control connection over TCP.
pub fn open(stream: TcpStream, token: Option<&Token>) -> Result<Channel, ControlError> {
    let mut channel = Channel::to_server(Tcp::new(stream, None)?)?;
    channel.open(Protocol::Conform, token, &REQUEST)?;
    channel.set_message_max(OUTCOME_MAX);
    Ok(channel)
}

/// Opens the server's side of a control connection over TCP. A client that is refused is told why.
pub(super) fn accept(
    stream: Arc<TcpStream>,
    token: Option<&Token>,
) -> Result<Channel, ControlError> {
    let mut channel = Channel::to_client(Tcp::new(stream, None)?)?;
    let opened = welcome(&mut channel, token);
    if let Err(error) = opened {
        channel.send_error(&error);
        return Err(error);
    }
    Ok(channel)
}

fn welcome(channel: &mut Channel, token: Option<&Token>) -> Result<(), ControlError> {
    let read = |_, line: &str| serde_json::from_str::<String>(line);
    let applicant = channel.accept(&[Protocol::Conform], token, read)?;
    channel.welcome(applicant).map(drop)
}
