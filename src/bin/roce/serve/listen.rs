//! Listening addresses of a server: those of its NIC, so that no other network sees it.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener};

use anyhow::{Context, bail};
use roce::device::Device;
use roce::link::interface::interfaces;
use roce::wire::Gid;

use crate::bench::control::messages::address_of;
use crate::output::remark;

/// Listens on the addresses that were named, or else on those of the NIC, or else on those of every
/// interface.
pub(super) fn listen(
    named: &[IpAddr],
    nic: Option<&dyn Device>,
    port: u16,
) -> anyhow::Result<Vec<TcpListener>> {
    let addresses = match (named, nic) {
        ([_, ..], _) => named.to_vec(),
        ([], Some(nic)) => addresses_of(nic),
        ([], None) => addresses_of_interfaces()?,
    };
    let (mut listeners, mut failure, mut port) = (Vec::new(), None, port);
    for address in addresses {
        match bind(address, port) {
            Ok(listener) => {
                // Where any port will do, all addresses have the same.
                port = listener.local_addr()?.port();
                listeners.push(listener);
            }
            Err(error) => {
                let error = anyhow::Error::from(error).context(format!(
                    "cannot listen on {address} TCP port {port}; -p chooses another port, --listen another address"
                ));
                // An address may be gone, or not usable yet: the others will do, unless this one
                // was asked for.
                if !named.is_empty() {
                    return Err(error);
                }
                if let Some(error) = failure.replace(error) {
                    remark(&format!("{error:#}"));
                }
            }
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => return Err(error),
        Some(error) => remark(&format!("{error:#}")),
        None if listeners.is_empty() => {
            bail!("there is no address to listen on; --listen names one")
        }
        None => {}
    }
    Ok(listeners)
}

fn bind(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let at = match address {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, port, 0, interface_of(address)?).into()
        }
        _ => SocketAddr::new(address, port),
    };
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the index of the interface that has an address.
fn interface_of(address: IpAddr) -> io::Result<u32> {
    let found = interfaces()?.into_iter().find(|one| one.addresses.contains(&address));
    found.map(|one| one.index).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn addresses_of(nic: &dyn Device) -> Vec<IpAddr> {
    let gids = nic.gids();
    gids.into_iter().filter(|gid| *gid != Gid::default()).map(address_of).collect()
}

fn addresses_of_interfaces() -> anyhow::Result<Vec<IpAddr>> {
    let all = interfaces().context("cannot list the interfaces")?;
    Ok(all.into_iter().filter(|one| one.up).flat_map(|one| one.addresses).collect())
}

/// Returns the port and the addresses, for people.
pub(super) fn describe(listeners: &[TcpListener]) -> io::Result<String> {
    let at: Vec<SocketAddr> =
        listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    let port = at.first().map_or(0, SocketAddr::port);
    let addresses: Vec<String> = at.iter().map(|at| at.ip().to_string()).collect();
    Ok(format!("TCP port {port} of {}", addresses.join(", ")))
}
