//! The other side, on another machine.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use roce::conform::server::{Report, Server};
use roce::device::Device;

use super::{ServeArgs, agent};
use crate::device::address_of;
use crate::output::{counted, remark};
use crate::serve::{OfferSettings, offer_in_background};

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let token = args.token.get()?;
    let agent = agent(&args.device, args.gid_index, args.wire.as_ref(), args.rdma_cm)?;
    let address = args.listen.unwrap_or_else(|| listen_at(&*agent.device, args.gid_index));
    let at = SocketAddr::new(address, args.port);
    let listener = TcpListener::bind(at).with_context(|| {
        format!("cannot listen on {at}; --listen and -p choose another address and port")
    })?;
    let port = listener.local_addr()?.port();
    remark(&format!("{} serves clients on {address}, TCP port {port}", agent.device.name()));
    if let Some(port) = args.offer {
        let settings = OfferSettings {
            listen: args.listen,
            port,
            any_gid: args.any_gid,
            gid_index: args.gid_index,
            token: token.clone(),
        };
        let at = offer_in_background(Arc::clone(&agent.device), settings);
        remark(&format!(
            "{} offers queue pairs on {}",
            agent.device.name(),
            at.context("--offer")?
        ));
    }
    let server = Arc::new(Server::new(agent, args.any_gid, token));
    let report: Arc<Report<'static>> = Arc::new(|client, served| match served {
        Ok(played) => {
            remark(&format!("{client}: {} run", counted(played as u64, "scenario")));
        }
        Err(error) => remark(&format!("{client}: {error}")),
    });
    server.run(&listener, args.once, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the address at which clients are waited for: that of the device, which clients take for
/// its GID. An address that means nothing without its interface stands for any.
fn listen_at(device: &dyn Device, gid_index: Option<u8>) -> IpAddr {
    address_of(device, gid_index).unwrap_or_else(|| Ipv6Addr::UNSPECIFIED.into())
}
