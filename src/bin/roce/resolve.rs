//! Addresses of servers by name.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context as _, Result, ensure};

/// Returns the addresses of a host, at least one, with the port on which its server listens.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    ensure!(!host.is_empty(), "HOST is empty: name the host on which the server runs");
    ensure!(port != 0, "no server listens on TCP port 0: name the port of '{host}' with -p");
    lookup((host, port), host)
}

/// Returns the addresses of `HOST:PORT`, at least one.
pub(crate) fn resolve_with_port(host: &str) -> Result<Vec<SocketAddr>> {
    let found = lookup(host, host)?;
    let has_port = found.iter().all(|at| at.port() != 0);
    ensure!(has_port, "no server listens on TCP port 0: name that of the server, as in HOST:4000");
    Ok(found)
}

fn lookup(at: impl ToSocketAddrs, host: &str) -> Result<Vec<SocketAddr>> {
    let found = at.to_socket_addrs().with_context(|| format!("cannot find '{host}'"))?;
    let found: Vec<SocketAddr> = found.collect();
    ensure!(!found.is_empty(), "'{host}' has no address");
    Ok(found)
}

/// Reads an address to listen on.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "an IP address and a port, such as 127.0.0.1:9465 or [::1]:9465; port 0 is any that is free"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_cannot_be_are_refused_with_the_cure() {
        let error = |found: Result<Vec<SocketAddr>>| found.unwrap_err().to_string();
        assert!(error(resolve("", 18515)).contains("name the host"));
        assert!(error(resolve("127.0.0.1", 0)).contains("with -p"));
        assert!(error(resolve_with_port("127.0.0.1:0")).contains("HOST:4000"));
        assert!(error(resolve_with_port("127.0.0.1")).contains("cannot find '127.0.0.1'"));
        let found = resolve("127.0.0.1", 18515).unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 18515))]);
    }

    #[test]
    fn address_to_listen_on_is_read() {
        assert!(parse_listen("[::1]:0").is_ok());
        for text in ["", "9465", "127.0.0.1", "localhost:9465"] {
            assert!(parse_listen(text).unwrap_err().contains("127.0.0.1:9465"), "{text}");
        }
    }
}
