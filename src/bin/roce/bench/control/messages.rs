//! The messages of `roce bench` and its server.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::ensure;
use roce::control::limits::LINE_WAIT;
use roce::control::text::printable;
use roce::control::{Channel, ControlError};
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, RKey};
use serde::{Deserialize, Serialize};

use super::plan::{Plan, QPS_MAX};
use super::rendezvous::Rendezvous;

/// Maximum number of counters in a message.
const COUNTERS_MAX: usize = 256;

/// Maximum length of the name of a counter or of a kind of link.
const NAME_MAX: usize = 64;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) plan: Plan,
    /// The client's side.
    pub(crate) client: Reach,
}

/// A message after the opening.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// Answer of the server to the request.
    Answer(Answer),
    /// Port and key for queue pairs that the connection manager connects.
    Rendezvous(Rendezvous),
    /// The sender is ready for the next size.
    Ready,
    /// The sender wants this size to end now.
    Stop,
    /// The sender has sent everything.
    Done(Done),
    /// Count of the messages that arrived at the sender of this message.
    Result(Seen),
    /// The client is done.
    Bye,
    /// Counters of the server's NIC.
    Counters(Counted),
}

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// The MTU, which may be less than what was asked for.
    pub(crate) mtu: Mtu,
    /// The server's side.
    pub(crate) server: Reach,
}

/// Queue pairs, memory and link of one side, as the other side has to know them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reach {
    /// Queue pairs.
    pub(crate) qps: Vec<Endpoint>,
    /// Start address of the memory.
    pub(crate) addr: u64,
    /// Remote key.
    pub(crate) rkey: RKey,
    /// Kind of the link: `udp`, `raw`, `verbs`.
    pub(crate) link: String,
    /// Whether this side does selective repeat.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) selective_repeat: bool,
    /// Number of PSNs by which packets may overtake others; 0 if this side drops such packets.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) reorder_span: u32,
}

/// Whether a field is left out: servers of earlier versions do not know it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Whether a field is left out: servers of earlier versions do not know it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Receives the next message.
pub(crate) fn receive(
    control: &mut Channel,
    expected: &'static str,
) -> Result<Message, ControlError> {
    control.receive(LINE_WAIT, expected)
}

/// Waits until the other side is ready.
pub(crate) fn expect_ready(control: &mut Channel) -> Result<(), ControlError> {
    const READY: &str = "ready";
    match receive(control, READY)? {
        Message::Ready => Ok(()),
        other => Err(control.unexpected(&other, READY)),
    }
}

impl Hello {
    /// Checks what a client asks for.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.client.check()?;
        let qps = self.client.qps.len();
        ensure!(qps == self.plan.qps as usize, "{qps} queue pairs instead of {}", self.plan.qps);
        self.plan.check()
    }
}

impl Answer {
    /// Receives the answer of a server.
    pub(crate) fn receive(control: &mut Channel, plan: &Plan) -> anyhow::Result<Self> {
        const ANSWER: &str = "an answer";
        let answer = match receive(control, ANSWER)? {
            Message::Answer(answer) => answer,
            other => return Err(control.unexpected(&other, ANSWER).into()),
        };
        ensure!(answer.mtu <= plan.mtu, "the server wants a larger MTU than this side can do");
        answer.server.check()?;
        let (count, wanted) = (answer.server.qps.len(), plan.qps);
        ensure!(count == wanted as usize, "the server has {count} queue pairs instead of {wanted}");
        Ok(answer)
    }
}

impl Reach {
    /// The address of its queue pairs.
    pub(crate) fn address(&self) -> IpAddr {
        address_of(self.qps.first().map(|qp| qp.gid).unwrap_or_default())
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            is_name(&self.link),
            "'{}' is not the name of a kind of link",
            printable(&self.link, NAME_MAX)
        );
        ensure!(self.qps.len() <= QPS_MAX as usize, "more than {QPS_MAX} queue pairs");
        let one_address = self.qps.windows(2).all(|pair| matches!(pair, [a, b] if a.gid == b.gid));
        ensure!(one_address, "the queue pairs have several GIDs");
        Ok(())
    }
}

/// Returns the IP address that a GID stands for.
pub(crate) fn address_of(gid: Gid) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(gid.0)).to_canonical()
}

fn is_name(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    (1..=NAME_MAX).contains(&word.len()) && word.bytes().all(is_part)
}

/// A receiver's count of the sender's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Seen {
    /// Messages that arrived, if this side can tell: by completions, or by the NIC's counter of
    /// writes.
    pub(crate) received: Option<u64>,
    /// Number of messages, or of memory areas, with wrong content.
    pub(crate) wrong: u64,
    /// Time from the start until the last message arrived, in nanoseconds; 0 if unknown.
    pub(crate) nanos: u64,
    /// Packets that the NIC received, if it counts them.
    pub(crate) packets: Option<u64>,
}

impl Seen {
    /// Receives the other side's count.
    pub(crate) fn receive(control: &mut Channel) -> Result<Self, ControlError> {
        const RESULT: &str = "a result";
        match receive(control, RESULT)? {
            Message::Result(seen) => Ok(seen),
            other => Err(control.unexpected(&other, RESULT)),
        }
    }
}

/// Final message of a side that has sent everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    /// Number of messages that were sent.
    pub(crate) messages: u64,
    /// Time that they took, in nanoseconds.
    pub(crate) nanos: u64,
    /// Peak rate in messages a second.
    pub(crate) peak: u64,
}

/// Counters by name.
pub(crate) type Counted = Vec<(String, u64)>;

/// Receives the counters of a server.
pub(crate) fn receive_counters(control: &mut Channel) -> anyhow::Result<Counted> {
    const COUNTERS: &str = "counters";
    let counters = match receive(control, COUNTERS)? {
        Message::Counters(counters) => counters,
        other => return Err(control.unexpected(&other, COUNTERS).into()),
    };
    ensure!(counters.len() <= COUNTERS_MAX, "more than {COUNTERS_MAX} counters");
    ensure!(
        counters.iter().all(|(name, _)| is_name(name)),
        "the name of a counter is not 1 to {NAME_MAX} of a-z, A-Z, 0-9, '_' and '.'"
    );
    Ok(counters)
}
