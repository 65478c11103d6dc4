//! Control connections to servers.

use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use roce::control::limits::CONNECT_WAIT;
use roce::control::{Tcp, tcp};

/// Connects to a server, from `source` if this host has that address. The error names `command`,
/// which starts such a server.
pub(crate) fn connect(
    source: Option<IpAddr>,
    server: SocketAddr,
    command: &str,
) -> anyhow::Result<Tcp> {
    let stream = tcp::connect(source, server, CONNECT_WAIT).with_context(|| {
        format!("cannot connect to {server}; is a server ({command}) running there?")
    })?;
    Ok(Tcp::new(stream, None)?)
}

/// Returns the address of this host from which it reaches `server`, without sending anything.
pub(crate) fn source_for(server: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip().to_canonical())
}
