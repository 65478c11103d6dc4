//! Probes: a client tells a server its queue pair, and learns that of a responder that answers it.
//!
//! Lines as in the protocol of `roce bench`:
//!
//! 1. The client sends `prober GID QPN QKEY`, `rate PROBES` a second, and `end`.
//! 2. The server sends `responder GID QPN QKEY INSTANCE` and `end`, and answers probes from this
//!    queue pair at this GID.
//! 3. The client sends `bye`, or closes the connection, and the responder is destroyed.

use anyhow::{Context, bail, ensure};
use roce::ping::Address;
use roce::ping::limits::RATE_MAX;
use roce::wire::{Gid, QKey, Qpn};

use super::lines::Control;
use super::messages::{hex, hex24, number};

/// First message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Address of its queue pair.
    pub(crate) prober: Address,
    /// Maximum number of its probes a second.
    pub(crate) rate: u32,
}

/// Answer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Address of its queue pair.
    pub(crate) responder: Address,
    /// Instance number of the responder.
    pub(crate) instance: u64,
}

impl Hello {
    /// Returns the lines of the message.
    pub(crate) fn to_lines(self) -> String {
        format!("prober {}\nrate {}\nend\n", words_of(self.prober), self.rate)
    }

    /// Receives the first message of a client.
    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let words = control.expect("prober")?;
        let [gid, qpn, qkey] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'prober {words}' is no queue pair");
        };
        let prober = address(gid, qpn, qkey)?;
        let rate = number(&control.expect("rate")?)?;
        ensure!((1..=RATE_MAX).contains(&rate), "1 to {RATE_MAX} probes a second");
        control.expect("end")?;
        Ok(Self { prober, rate })
    }
}

impl Welcome {
    /// Returns the lines of the message.
    pub(crate) fn to_lines(self) -> String {
        format!("responder {} {:#x}\nend\n", words_of(self.responder), self.instance)
    }

    /// Receives the answer of a server.
    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let words = control.expect("responder")?;
        let [gid, qpn, qkey, instance] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'responder {words}' is no queue pair");
        };
        let welcome = Self { responder: address(gid, qpn, qkey)?, instance: hex(instance)? };
        control.expect("end")?;
        Ok(welcome)
    }
}

fn words_of(address: Address) -> String {
    format!("{} {:#x} {:#x}", address.gid, address.qpn.get(), address.qkey.get())
}

fn address(gid: &str, qpn: &str, qkey: &str) -> anyhow::Result<Address> {
    let gid: std::net::Ipv6Addr = gid.parse().with_context(|| format!("'{gid}' is no GID"))?;
    let gid = Gid::from(gid);
    ensure!(gid != Gid::default() && !gid.is_multicast(), "'{gid}' is no address of a host");
    let qkey = QKey::new(u32::try_from(hex(qkey)?)?);
    Ok(Address { gid, qpn: Qpn::new(hex24(qpn)?), qkey })
}
