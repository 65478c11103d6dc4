//! Agents: one runs the instances of one side on a device.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Side;
use super::control::{Hello, Message, receive};
use super::expand::Instance;
use super::objects::Stop;
use super::play::Play;
use super::trace::Outcome;
use super::turns::Turns;
use super::wire::Wire;
use crate::control::{Channel, ControlError};
use crate::device::Device;

/// Time to wait for the next message of the other agent, beyond the time limit of the scenario.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a server waits for the hello of a client.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that an agent waits for the next instance.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs sides of instances on a device.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The link's wire, if packets can be logged and dropped.
    pub wire: Option<Wire>,
    /// GID index; by default that of the first IPv4 address, or else the first.
    pub gid_index: Option<u8>,
    /// Connects the queue pairs of RC, if the other one has that as well.
    pub manager: Option<crate::connect::ConnectionManager>,
}

impl Agent {
    /// Returns its hello message.
    pub fn hello(&self) -> Hello {
        let mtu = self.device.query_port().map_or(0, |port| port.active_mtu.bytes());
        let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        let device = self.device.name().to_owned();
        Hello { device, mtu, wire: self.wire.is_some(), uses_cm: self.manager.is_some() }
    }

    /// Exchanges hello messages with the other agent. Both must use the connection manager, or
    /// neither.
    pub fn meet(&self, line: &mut Channel) -> Result<Hello, ControlError> {
        let hello = self.greet(line, REPLY_TIMEOUT)?;
        if hello.uses_cm == self.manager.is_some() {
            return Ok(hello);
        }
        let side = if hello.uses_cm { "the other side" } else { "this side" };
        Err(line.unsound("hello", format!("only {side} has -R: use it on both or on neither")))
    }

    fn greet(&self, line: &mut Channel, within: Duration) -> Result<Hello, ControlError> {
        line.send(&Message::Hello(self.hello()))?;
        match receive(line, within, "hello")? {
            Message::Hello(hello) => Ok(hello),
            other => Err(line.unexpected(&other, "hello")),
        }
    }

    /// Runs the instances that the other agent asks for until it says goodbye; returns how many.
    pub fn serve(&self, line: &mut Channel) -> Result<usize, ControlError> {
        let turns = Turns::default();
        self.serve_client(line, &Terms { turns: Some(&turns), address: None }, &|| {})
    }

    /// Runs the instances that a client asks for. The client is not trusted: its messages are
    /// checked, and it shares the device with other clients. `greeted` is called after its hello
    /// message.
    pub(super) fn serve_client(
        &self,
        line: &mut Channel,
        terms: &Terms<'_>,
        greeted: &dyn Fn(),
    ) -> Result<usize, ControlError> {
        let peer = self.greet(line, HELLO_TIMEOUT)?;
        greeted();
        let mut played = 0;
        loop {
            // Messages that are left over from an instance that failed are skipped.
            match receive(line, IDLE_TIMEOUT, "a scenario") {
                Ok(Message::Begin { instance, play }) => {
                    let outcome = self.play_as(&instance, play, &peer, line, terms);
                    line.send(&Message::Outcome(Box::new(outcome)))?;
                    played += 1;
                }
                Ok(Message::Bye) | Err(ControlError::Closed(_)) => return Ok(played),
                Ok(_) | Err(ControlError::Failed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs one side of an instance; the other agent runs the other. Packets are sent to `address`
    /// only, if one is given.
    pub fn play(
        &self,
        instance: &Instance,
        side: Side,
        peer: &Hello,
        line: &mut Channel,
        address: Option<IpAddr>,
    ) -> Outcome {
        self.play_as(instance, side, peer, line, &Terms { turns: None, address })
    }

    fn play_as(
        &self,
        instance: &Instance,
        side: Side,
        peer: &Hello,
        line: &mut Channel,
        terms: &Terms<'_>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let sound = instance.check().map_err(|why| Stop::Trouble(format!("scenario: {why}")));
        let stopped =
            match sound.and_then(|()| Play::begin(self, instance, side, peer, line, terms)) {
                Ok(mut play) => {
                    let done = play.run(line);
                    play.finish(&mut outcome);
                    done.err()
                }
                Err(stop) => Some(stop),
            };
        if let Some(stop) = stopped {
            let why = match &stop {
                Stop::Unable(why) | Stop::Trouble(why) => why.clone(),
            };
            // If the message does not reach the other agent, it times out.
            let _ = line.send(&Message::Stopped(why));
            match stop {
                Stop::Unable(why) => outcome.unable = Some(why),
                Stop::Trouble(why) => outcome.trouble = Some(why),
            }
        }
        outcome
    }
}

/// Terms on which an agent plays with a peer.
pub(super) struct Terms<'c> {
    /// Other clients that wait for the device, if this is a server.
    pub(super) turns: Option<&'c Turns>,
    /// The only address that packets may be sent to, if it is restricted.
    pub(super) address: Option<IpAddr>,
}
