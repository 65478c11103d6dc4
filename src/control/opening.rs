//! The opening of a control connection as two state machines: no socket, no clock, no randomness.

use std::net::{IpAddr, SocketAddr};

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::limits::{REASON_MAX, SHOWN_MAX};
use super::text::printable;
use super::token::{Nonce, Token, hex, unhex};
use crate::proof::{Proof, TAG};

/// Reason that an opening fails.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpeningError {
    /// The first line names no protocol of this server.
    #[error("the client speaks '{0}' instead of '{1}'; use the same version of roce on both sides")]
    Protocol(String, &'static str),
    /// The server refuses, and says why.
    #[error("the server says: {0}")]
    Refused(String),
    /// A line is not what the opening has there.
    #[error("the peer sent '{0}' instead of {1}")]
    Unexpected(String, &'static str),
    /// The server has a token, and the client has none.
    #[error("the server wants a token: set ROCE_TOKEN or --token to that of the server")]
    TokenWanted,
    /// The client has a token, and the server asks for none.
    #[error(
        "the server asks for no token, and this side has one: it is not the server that you mean, or was started \
         without ROCE_TOKEN"
    )]
    TokenNotWanted,
    /// The client's proof is wrong.
    #[error(
        "the client does not prove the token of this server: set ROCE_TOKEN or --token to it, and connect without \
         address translation (this side sees {client} connected to {server})"
    )]
    ClientUnproven {
        /// Address of the client, as this side sees it.
        client: SocketAddr,
        /// Address of the server, as this side sees it.
        server: SocketAddr,
    },
    /// The server's proof is wrong or absent.
    #[error("the server does not prove the token: it is not the server that you mean")]
    ServerUnproven,
}

fn unexpected(line: &str, instead_of: &'static str) -> OpeningError {
    match line.strip_prefix("error ") {
        Some(why) => OpeningError::Refused(printable(why, REASON_MAX)),
        None => OpeningError::Unexpected(printable(line, SHOWN_MAX), instead_of),
    }
}

/// Addresses of both ends of a connection: a relay has others on one of its two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
}

/// Side of a connection that proves itself.
#[derive(Clone, Copy, Debug)]
enum Role {
    Client,
    Server,
}

/// Fields that a proof covers, apart from the request.
#[derive(Clone, Copy, Debug)]
struct Binding {
    protocol: &'static str,
    addresses: Addresses,
    client_nonce: Nonce,
    server_nonce: Nonce,
}

impl Binding {
    fn proof(&self, token: &Token, role: Role, request: [u8; 32]) -> Proof {
        let role: &[u8] = match role {
            Role::Client => b"client",
            Role::Server => b"server",
        };
        let Addresses { client, server } = self.addresses;
        Proof::new(token.bytes(), self.protocol)
            .field("role", role)
            .field("client", &address_bytes(client))
            .field("server", &address_bytes(server))
            .field("client nonce", &self.client_nonce.0)
            .field("server nonce", &self.server_nonce.0)
            .field("request", &request)
    }
}

/// Address and port, the same for both families of an address. Without the scope, which differs
/// between the hosts of a link.
fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 18];
    let (start, end) = bytes.split_at_mut(16);
    start.copy_from_slice(&ip.octets());
    end.copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// Digest of the lines by which a client says what it asks for.
#[derive(Clone, Debug, Default)]
pub struct Request(Sha256);

impl Request {
    /// Returns the digest of a text of whole lines.
    pub fn of(text: &str) -> Self {
        let mut request = Self::default();
        text.lines().for_each(|line| request.add(line));
        request
    }

    /// Adds a line, without its end.
    pub fn add(&mut self, line: &str) {
        self.0.update(line.as_bytes());
        self.0.update(b"\n");
    }

    fn digest(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// The client's side of an opening.
#[derive(Clone, Debug)]
pub struct ClientOpening<'t> {
    protocol: &'static str,
    addresses: Addresses,
    token: Option<&'t Token>,
    nonce: Nonce,
    /// The server's proof that is awaited.
    awaited: Option<Proof>,
}

impl<'t> ClientOpening<'t> {
    /// Begins an opening; the nonce is a new one. `protocol` has its version behind a blank.
    pub fn new(
        protocol: &'static str,
        addresses: Addresses,
        token: Option<&'t Token>,
        nonce: Nonce,
    ) -> Self {
        Self { protocol, addresses, token, nonce, awaited: None }
    }

    /// Returns the first line.
    pub fn first_line(&self) -> String {
        format!("{} {}\n", self.protocol, self.nonce)
    }

    /// Takes the server's answer to the first line. Returns what follows the lines of the request:
    /// a line with the proof, or nothing.
    pub fn answer(&mut self, line: &str, request: &str) -> Result<String, OpeningError> {
        let nonce = match (line.split_once(' '), self.token) {
            (None, None) if line == "open" => return Ok(String::new()),
            (None, Some(_)) if line == "open" => return Err(OpeningError::TokenNotWanted),
            (Some(("challenge", nonce)), _) => Nonce::parse(nonce),
            _ => None,
        };
        let server_nonce = nonce.ok_or_else(|| unexpected(line, "'open' or 'challenge'"))?;
        let token = self.token.ok_or(OpeningError::TokenWanted)?;
        let Self { protocol, addresses, nonce: client_nonce, .. } = *self;
        let binding = Binding { protocol, addresses, client_nonce, server_nonce };
        let request = Request::of(request).digest();
        self.awaited = Some(binding.proof(token, Role::Server, request));
        Ok(format!("proof {}\n", hex(&binding.proof(token, Role::Client, request).tag())))
    }

    /// Takes the server's welcome, which proves the token if there is one.
    pub fn finish(self, line: &str) -> Result<(), OpeningError> {
        let Some(awaited) = self.awaited else {
            return (line == "welcome").then_some(()).ok_or_else(|| unexpected(line, "'welcome'"));
        };
        let Some(rest) = line.strip_prefix("welcome") else {
            return Err(unexpected(line, "'welcome'"));
        };
        let proof = rest.strip_prefix(' ').and_then(unhex::<TAG>);
        let proven = proof.is_some_and(|proof| awaited.verify(&proof));
        proven.then_some(()).ok_or(OpeningError::ServerUnproven)
    }
}

/// The server's side of an opening.
#[derive(Clone, Debug)]
pub struct ServerOpening<'t> {
    token: Option<&'t Token>,
    binding: Binding,
}

impl<'t> ServerOpening<'t> {
    /// Takes the first line of a client of one of these protocols; the nonce is a new one. Returns
    /// the number of the protocol in the list, and the answer.
    pub fn begin(
        line: &str,
        protocols: &[&'static str],
        addresses: Addresses,
        token: Option<&'t Token>,
        server_nonce: Nonce,
    ) -> Result<(usize, Self, String), OpeningError> {
        let found = protocols.iter().enumerate().find_map(|(index, &protocol)| {
            let nonce = line.strip_prefix(protocol)?.strip_prefix(' ')?;
            Some((index, protocol, Nonce::parse(nonce)?))
        });
        let Some((index, protocol, client_nonce)) = found else {
            let expected = protocols.first().copied().unwrap_or_default();
            return Err(OpeningError::Protocol(printable(line, SHOWN_MAX), expected));
        };
        let answer = match token {
            None => "open\n".to_owned(),
            Some(_) => format!("challenge {server_nonce}\n"),
        };
        let binding = Binding { protocol, addresses, client_nonce, server_nonce };
        Ok((index, Self { token, binding }, answer))
    }

    /// Whether a line with the client's proof follows the request.
    pub fn wants_proof(&self) -> bool {
        self.token.is_some()
    }

    /// Takes the line with the client's proof, if one is wanted. Returns the welcome.
    pub fn finish(self, line: Option<&str>, request: Request) -> Result<String, OpeningError> {
        let Some(token) = self.token else { return Ok("welcome\n".to_owned()) };
        let line = line.unwrap_or_default();
        let Some(proof) = line.strip_prefix("proof ") else {
            return Err(unexpected(line, "'proof'"));
        };
        let request = request.digest();
        let right = self.binding.proof(token, Role::Client, request);
        if !unhex::<TAG>(proof).is_some_and(|proof| right.verify(&proof)) {
            let Addresses { client, server } = self.binding.addresses;
            return Err(OpeningError::ClientUnproven { client, server });
        }
        let own = self.binding.proof(token, Role::Server, request);
        Ok(format!("welcome {}\n", hex(&own.tag())))
    }
}

#[cfg(test)]
mod tests;
