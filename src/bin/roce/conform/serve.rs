//! The other side, on another machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use roce::conform::server::{Report, Server};
use roce::device::Device;

use super::{ServeArgs, agent};
use crate::device::address_of;
use crate::serve::offer_in_background;

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let agent = agent(&args.device, args.gid_index, args.wire.as_ref(), args.rdma_cm)?;
    let address = args.listen.unwrap_or_else(|| listen_at(&*agent.device, args.gid_index));
    let at = SocketAddr::new(address, args.port);
    let listener = TcpListener::bind(at).with_context(|| {
        format!("cannot listen on {at}; --listen and -p choose another address and port")
    })?;
    let port = listener.local_addr()?.port();
    eprintln!("roce: {} serves clients on {address}, TCP port {port}", agent.device.name());
    if let Some(port) = args.offer {
        let how = (args.any_gid, args.gid_index);
        let at = offer_in_background(Arc::clone(&agent.device), args.listen, port, how);
        eprintln!("roce: {} offers queue pairs on {}", agent.device.name(), at.context("--offer")?);
    }
    let server = Arc::new(Server::new(agent, args.any_gid));
    let report: Arc<Report<'static>> = Arc::new(|client, served| match served {
        Ok(played) => eprintln!("roce: {client}: {played} scenarios run"),
        Err(error) => eprintln!("roce: {client}: {error}"),
    });
    server.run(&listener, args.once, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Where clients are waited for: at the address of the device. All addresses of loopback are one host, which is called
/// 127.0.0.1; an address that means nothing without its interface stands for any.
fn listen_at(device: &dyn Device, gid_index: Option<u8>) -> IpAddr {
    match address_of(device, gid_index) {
        Some(address) if address.is_loopback() && address.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        Some(address) => address,
        None => Ipv6Addr::UNSPECIFIED.into(),
    }
}
