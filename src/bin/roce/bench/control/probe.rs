//! Probes: a client tells a server its queue pair, and learns that of a responder that answers it.
//!
//! 1. The client's request is a [`Hello`].
//! 2. The server sends a [`Welcome`], and answers probes from this queue pair at this GID.
//! 3. The client sends a [`Goodbye`], or closes the connection, and the responder is destroyed.

use anyhow::ensure;
use roce::control::Channel;
use roce::control::limits::ANSWER_WAIT;
use roce::ping::Address;
use roce::ping::limits::RATE_MAX;
use roce::wire::{Gid, QKey, Qpn};
use serde::{Deserialize, Serialize};

/// Request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// Address of its queue pair.
    #[serde(with = "AddressFields")]
    pub(crate) prober: Address,
    /// Maximum number of its probes a second.
    pub(crate) rate: u32,
}

/// Answer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Welcome {
    /// Address of its queue pair.
    #[serde(with = "AddressFields")]
    pub(crate) responder: Address,
    /// Instance number of the responder.
    pub(crate) instance: u64,
}

/// Last message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goodbye {
    Bye,
}

/// An [`Address`] in a message.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Address", deny_unknown_fields)]
struct AddressFields {
    gid: Gid,
    qpn: Qpn,
    qkey: QKey,
}

impl Hello {
    /// Checks what a client asks for.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        check_address(self.prober)?;
        ensure!((1..=RATE_MAX).contains(&self.rate), "1 to {RATE_MAX} probes a second");
        Ok(())
    }
}

impl Welcome {
    /// Receives the answer of a server.
    pub(crate) fn receive(control: &mut Channel) -> anyhow::Result<Self> {
        let welcome: Self = control.receive_in_all(ANSWER_WAIT, "a responder")?;
        check_address(welcome.responder)?;
        Ok(welcome)
    }
}

fn check_address(address: Address) -> anyhow::Result<()> {
    let gid = address.gid;
    ensure!(gid != Gid::default() && !gid.is_multicast(), "'{gid}' is no address of a host");
    Ok(())
}
