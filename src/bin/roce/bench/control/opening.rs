//! The opening of a control connection over TCP: both sides run the state machines of
//! [`roce::control::opening`].

use roce::control::limits::{ANSWER_WAIT, HELLO_WAIT};
use roce::control::{ClientOpening, Nonce, ServerOpening, Token};

use super::lines::Control;

/// Protocol that a client speaks, by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Protocol of `roce bench`.
    Bench,
    /// Protocol of `roce bench -R`: the connection manager connects the queue pairs.
    BenchByCm,
    /// Protocol of [`offer`](super::offer).
    Offer,
    /// Protocol of [`probe`](super::probe).
    Ping,
    /// Protocol of [`mesh`](super::mesh).
    Mesh,
}

/// Protocols with their versions, in the order of their names.
const PROTOCOLS: [(Protocol, &str); 5] = [
    (Protocol::Bench, "roce-bench 3"),
    (Protocol::BenchByCm, "roce-bench-cm 3"),
    (Protocol::Offer, "roce-offer 2"),
    (Protocol::Ping, "roce-ping 2"),
    (Protocol::Mesh, "roce-mesh 2"),
];

impl Protocol {
    /// Returns its name and version.
    pub(crate) fn magic(self) -> &'static str {
        PROTOCOLS.iter().find(|(it, _)| *it == self).map_or("", |(_, magic)| magic)
    }
}

/// Receives the first line of a client, and challenges the client if there is a token. What the
/// client asks for comes next, within [`HELLO_WAIT`] in all, and then [`welcome`].
pub(crate) fn begin<'t>(
    control: &mut Control,
    token: Option<&'t Token>,
) -> anyhow::Result<(Protocol, ServerOpening<'t>)> {
    control.wait_in_all(HELLO_WAIT)?;
    let line = control.line()?;
    let (protocols, names): (Vec<Protocol>, Vec<&str>) = PROTOCOLS.into_iter().unzip();
    let nonce = Nonce::random()?;
    let (index, opening, answer) =
        ServerOpening::begin(&line, &names, control.addresses(), token, nonce)?;
    control.send(&answer)?;
    control.begin_request();
    let protocol = protocols.get(index).copied().unwrap_or(Protocol::Bench);
    Ok((protocol, opening))
}

/// Ends the opening of a client whose request was read: checks its proof, and welcomes it.
pub(crate) fn welcome(control: &mut Control, opening: ServerOpening<'_>) -> anyhow::Result<()> {
    let request = control.end_request();
    let proof = opening.wants_proof().then(|| control.line()).transpose()?;
    let welcome = opening.finish(proof.as_deref(), request)?;
    control.send(&welcome)?;
    control.wait_per_line()
}

/// Opens a connection as a client that asks for something, in lines of its protocol.
pub(crate) fn introduce(
    control: &mut Control,
    protocol: Protocol,
    token: Option<&Token>,
    request: &str,
) -> anyhow::Result<()> {
    control.wait_in_all(ANSWER_WAIT)?;
    let nonce = Nonce::random()?;
    let mut opening = ClientOpening::new(protocol.magic(), control.addresses(), token, nonce);
    control.send(&opening.first_line())?;
    let proof = opening.answer(&control.line()?, request)?;
    control.send(&format!("{request}{proof}"))?;
    opening.finish(&control.line()?)?;
    control.wait_per_line()
}
