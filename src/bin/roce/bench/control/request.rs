//! Requests of the clients of a server, by protocol.

use roce::control::{Applicant, Channel, Protocol, Token};
use serde_json::from_str;

use super::{mesh, messages, offer, probe};

/// Protocols of `roce serve`.
const PROTOCOLS: [Protocol; 5] =
    [Protocol::Bench, Protocol::BenchByCm, Protocol::Offer, Protocol::Ping, Protocol::Mesh];

/// Request of a client.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Bench(messages::Hello),
    /// The connection manager connects the queue pairs.
    BenchByCm(messages::Hello),
    Offer(offer::Wish),
    Ping(probe::Hello),
    Mesh(mesh::Task),
}

impl Request {
    /// Reads the opening of a client up to its proof of the token, and checks the request against
    /// the limits that are the same for all servers.
    pub(crate) fn read<'t>(
        control: &mut Channel,
        token: Option<&'t Token>,
    ) -> anyhow::Result<Applicant<'t, Self>> {
        let applicant = control.accept(&PROTOCOLS, token, Self::parse)?;
        applicant.request.check()?;
        Ok(applicant)
    }

    fn parse(protocol: Protocol, line: &str) -> serde_json::Result<Self> {
        match protocol {
            Protocol::BenchByCm => from_str(line).map(Self::BenchByCm),
            Protocol::Offer => from_str(line).map(Self::Offer),
            Protocol::Ping => from_str(line).map(Self::Ping),
            Protocol::Mesh => from_str(line).map(Self::Mesh),
            Protocol::Bench | Protocol::Conform => from_str(line).map(Self::Bench),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Bench(hello) | Self::BenchByCm(hello) => hello.check(),
            Self::Offer(wish) => wish.check(),
            Self::Ping(hello) => hello.check(),
            Self::Mesh(task) => task.check(),
        }
    }
}
