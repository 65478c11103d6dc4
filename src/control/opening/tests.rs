//! Openings between honest peers, and what relays, replays and reflections get.

use super::*;

const PROTOCOLS: [&str; 2] = ["roce-bench 4", "roce-mesh 3"];
const REQUEST: &str = "send 5\nto ::1\nend\n";

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn addresses(client: &str, server: &str) -> Addresses {
    Addresses { client: client.parse().unwrap(), server: server.parse().unwrap() }
}

fn near() -> Addresses {
    addresses("192.0.2.1:5000", "192.0.2.2:18515")
}

/// One side of an opening: protocol, addresses, token.
#[derive(Clone, Copy)]
struct Side<'t> {
    protocol: &'static str,
    addresses: Addresses,
    token: Option<&'t Token>,
    request: &'static str,
}

impl<'t> Side<'t> {
    fn new(token: Option<&'t Token>) -> Self {
        Self { protocol: PROTOCOLS[0], addresses: near(), token, request: REQUEST }
    }

    fn client(&self) -> ClientOpening<'t> {
        ClientOpening::new(self.protocol, self.addresses, self.token, Nonce([1; 16]))
    }
}

/// Lets two sides open a connection. Returns what each concluded; a side that was not reached,
/// none.
fn open(
    client: Side<'_>,
    server: Side<'_>,
) -> (Result<(), OpeningError>, Option<Result<usize, OpeningError>>) {
    let mut opening = client.client();
    let first = opening.first_line();
    let begun = ServerOpening::begin(
        first.trim_end(),
        &PROTOCOLS,
        server.addresses,
        server.token,
        Nonce([2; 16]),
    );
    let (index, served, answer) = begun.unwrap();
    let proof = match opening.answer(answer.trim_end(), client.request) {
        Err(error) => return (Err(error), None),
        Ok(proof) => proof,
    };
    assert_eq!(served.wants_proof(), !proof.is_empty());
    let line = served.wants_proof().then(|| proof.trim_end());
    match served.finish(line, Request::of(server.request)) {
        Err(error) => (opening.finish("error").map(drop), Some(Err(error))),
        Ok(welcome) => (opening.finish(welcome.trim_end()), Some(Ok(index))),
    }
}

#[test]
fn honest_sides_open_with_and_without_a_token() {
    let token = token("correct horse");
    assert_eq!(open(Side::new(None), Side::new(None)), (Ok(()), Some(Ok(0))));
    let both = Side::new(Some(&token));
    assert_eq!(open(both, both), (Ok(()), Some(Ok(0))));
    let mesh = Side { protocol: PROTOCOLS[1], ..both };
    assert_eq!(open(mesh, both), (Ok(()), Some(Ok(1))));
}

#[test]
fn addresses_of_one_host_are_the_same_in_both_families() {
    let token = token("correct horse");
    let client = Side::new(Some(&token));
    let mapped = addresses("[::ffff:192.0.2.1]:5000", "[::ffff:192.0.2.2]:18515");
    assert_eq!(open(client, Side { addresses: mapped, ..client }), (Ok(()), Some(Ok(0))));
}

#[test]
fn client_with_a_token_takes_no_server_without_one() {
    let token = token("correct horse");
    let (client, server) = open(Side::new(Some(&token)), Side::new(None));
    assert_eq!((client, server), (Err(OpeningError::TokenNotWanted), None));
    let (client, server) = open(Side::new(None), Side::new(Some(&token)));
    assert_eq!((client, server), (Err(OpeningError::TokenWanted), None));
}

/// A difference in any field that a proof covers ends the opening.
#[test]
fn proof_is_refused_where_anything_differs() {
    let (token, other) = (token("correct horse"), token("another horse"));
    let client = Side::new(Some(&token));
    let relayed_to = addresses("192.0.2.66:5000", "192.0.2.3:18515");
    for (what, server) in [
        ("token", Side { token: Some(&other), ..client }),
        ("client", Side { addresses: addresses("192.0.2.66:5000", "192.0.2.2:18515"), ..client }),
        ("port", Side { addresses: addresses("192.0.2.1:5001", "192.0.2.2:18515"), ..client }),
        ("server", Side { addresses: addresses("192.0.2.1:5000", "192.0.2.3:18515"), ..client }),
        ("relay", Side { addresses: relayed_to, ..client }),
        ("request", Side { request: "send 6\nto ::1\nend\n", ..client }),
    ] {
        let (_, served) = open(client, server);
        let refused = matches!(served, Some(Err(OpeningError::ClientUnproven { .. })));
        assert!(refused, "{what}: {served:?}");
    }
}

/// Returns the proofs of both sides of an honest opening.
fn proofs(side: Side<'_>, server_nonce: Nonce) -> [String; 2] {
    let mut opening = side.client();
    let first = opening.first_line();
    let (_, served, challenge) = ServerOpening::begin(
        first.trim_end(),
        &PROTOCOLS,
        side.addresses,
        side.token,
        server_nonce,
    )
    .unwrap();
    let proof = opening.answer(challenge.trim_end(), side.request).unwrap();
    let welcome = served.finish(Some(proof.trim_end()), Request::of(side.request)).unwrap();
    [proof, welcome].map(|line| line.trim_end().to_owned())
}

#[test]
fn old_proofs_and_those_of_the_other_side_are_refused() {
    let token = token("correct horse");
    let side = Side::new(Some(&token));
    let [proof, welcome] = proofs(side, Nonce([2; 16]));
    let [other, other_welcome] = proofs(side, Nonce([3; 16]));
    assert_ne!(proof, other);
    let begin = || {
        let first = side.client().first_line();
        let nonce = Nonce([3; 16]);
        ServerOpening::begin(first.trim_end(), &PROTOCOLS, near(), side.token, nonce).unwrap().1
    };
    let reflected = welcome.replace("welcome", "proof");
    for line in [&proof, &reflected, "proof ", "proof", "proof zz", "welcome", ""] {
        begin().finish(Some(line), Request::of(REQUEST)).unwrap_err();
    }
    begin().finish(None, Request::of(REQUEST)).unwrap_err();
    begin().finish(Some(&other), Request::of(REQUEST)).unwrap();
    // The client judges the server's proof in the same way.
    for (line, is_right) in [
        (other_welcome.as_str(), true),
        (&welcome, false),
        ("welcome", false),
        ("welcome ", false),
        (&other.replace("proof", "welcome"), false),
    ] {
        let mut opening = side.client();
        opening.answer(&format!("challenge {}", Nonce([3; 16])), REQUEST).unwrap();
        let finished = opening.finish(line);
        assert_eq!(finished == Ok(()), is_right, "{line}: {finished:?}");
        assert!(is_right || finished == Err(OpeningError::ServerUnproven));
    }
}

#[test]
fn first_line_names_a_protocol_and_its_version() {
    let begin = |line: &str| {
        ServerOpening::begin(line, &PROTOCOLS, near(), None, Nonce([2; 16])).map(|it| it.0)
    };
    let nonce = Nonce([1; 16]);
    assert_eq!(begin(&format!("roce-mesh 3 {nonce}")), Ok(1));
    for line in
        ["roce-bench 2", "roce-bench 4", "roce-bench 4 00", &format!("roce-bench 40 {nonce}"), ""]
    {
        let error = begin(line).unwrap_err();
        assert!(error.to_string().contains("use the same version of roce"), "{line}: {error}");
    }
    let hostile = begin(&format!("\x1b[2J\u{202e}{}", "x".repeat(500))).unwrap_err().to_string();
    assert!(!hostile.contains(char::is_control) && hostile.len() < 300, "{hostile}");
}
