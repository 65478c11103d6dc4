//! The way to a server: a NIC here, and a TCP connection from the address of that NIC.
//!
//! A server takes only queue pairs whose GID is the address that the TCP connection comes from;
//! otherwise a stranger could have it send to a third party.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use roce::control::Tcp;
use roce::device::Device;

use super::args::ReachArgs;
use super::control::messages::address_of;
use super::path::{check_addresses, is_this_host};
use super::tcp;
use crate::device;
use crate::resolve::resolve;

/// A connection to a server.
pub(crate) struct Reached {
    pub(crate) nic: Arc<dyn Device>,
    pub(crate) stream: Tcp,
    pub(crate) gid_index: u8,
}

/// Address families that the NIC and the TCP connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Equal families.
    Same,
    /// Equal or different families.
    Any,
}

/// Starts the NIC that was named, or one on the address that leads to the server, and connects.
pub(crate) fn reach(host: &str, args: &ReachArgs, family: Family) -> anyhow::Result<Reached> {
    let servers = resolve(host, args.port)?;
    let start = |spec| device::start(spec, &args.soft);
    let named = args.device.as_ref().map(start).transpose()?;
    let mut failure = None;
    for server in servers {
        match try_server(server, named.clone(), args, family) {
            Ok(reached) => return Ok(reached),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.with_context(|| format!("'{host}' has no address"))?)
}

fn try_server(
    server: SocketAddr,
    named: Option<Arc<dyn Device>>,
    args: &ReachArgs,
    family: Family,
) -> anyhow::Result<Reached> {
    let to = server.ip().to_canonical();
    let same_host = is_this_host(to);
    let from = tcp::source_for(server).with_context(|| format!("{to} cannot be reached"))?;
    let nic = match named {
        Some(nic) => nic,
        None => device::start_at(from, &args.soft)?,
    };
    let gid_index = device::choose_gid(args.gid_index, &*nic, from)?;
    let gid = nic.gids().get(usize::from(gid_index)).copied().unwrap_or_default();
    let own: IpAddr = address_of(gid);
    if family == Family::Same || own.is_ipv4() == to.is_ipv4() {
        check_addresses(own, to, same_host)?;
    }
    let stream = tcp::connect(Some(own), server, "roce serve")?;
    Ok(Reached { nic, stream, gid_index })
}
