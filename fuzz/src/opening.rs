//! The opening of control connections: a stranger between two sides that know a token.
//!
//! Whatever the stranger does to the lines, a side that concludes that the other knows the token
//! talks to the other, for the same protocol, addresses, nonces and request.

use std::net::SocketAddr;

use roce::control::opening::Request;
use roce::control::{Addresses, ClientOpening, Nonce, ServerOpening, Token};

const PROTOCOLS: [&str; 2] = ["roce-bench 4", "roce-mesh 3"];

/// The first byte says what the stranger changes, the second and third where and how; the rest is
/// the request.
pub fn opening(input: &[u8]) {
    let [change, at, with, rest @ ..] = input else { return };
    let Ok(text) = core::str::from_utf8(rest) else { return };
    if *change == 0xff {
        return lines(text);
    }
    let request: String = text.lines().map(|line| format!("{line}\n")).collect();
    let tokens = ["correct horse", "another horse"].map(|it| Token::new(it).expect("it is long"));
    let changes = |bit: u8| change >> bit & 1 != 0;
    let address = |host: u8| SocketAddr::from(([192, 0, 2, host], 18515));
    let addresses = Addresses { client: address(1), server: address(2) };
    let seen = Addresses {
        client: address(if changes(0) { 66 } else { 1 }),
        server: address(if changes(1) { 66 } else { 2 }),
    };
    let token = &tokens[usize::from(changes(2))];
    let mut client =
        ClientOpening::new(PROTOCOLS[0], addresses, Some(&tokens[0]), Nonce([*at; 16]));
    let first = tamper(&client.first_line(), changes(3).then_some((*at, *with)));
    let begun = ServerOpening::begin(&first, &PROTOCOLS, seen, Some(token), Nonce([*with; 16]));
    let Ok((protocol, server, challenge)) = begun else { return };
    let challenged = tamper(&challenge, changes(4).then_some((*at, *with)));
    let Ok(proof) = client.answer(&challenged, &request) else { return };
    let received = if changes(5) { format!("{request}{with}\n") } else { request.clone() };
    let proof = tamper(&proof, changes(6).then_some((*at, *with)));
    let finished = server.finish(Some(&proof), Request::of(&received));
    let is_honest = protocol == 0
        && seen == addresses
        && *token == tokens[0]
        && first == client.first_line().trim_end()
        && challenged == challenge.trim_end()
        && received == request;
    // A changed proof is none, but for a change that changes nothing.
    assert!(finished.is_err() || is_honest, "the server takes a proof for something else");
    assert!(finished.is_ok() || !is_honest || changes(6), "honest sides understand each other");
    if let Ok(welcome) = finished {
        let seen = tamper(&welcome, changes(7).then_some((*at, *with)));
        let concluded = client.finish(&seen);
        assert_eq!(concluded.is_ok(), seen == welcome.trim_end());
    }
}

/// Returns a line without its end, with one byte replaced.
fn tamper(line: &str, change: Option<(u8, u8)>) -> String {
    let mut bytes = line.trim_end().as_bytes().to_vec();
    if let Some((at, with)) = change {
        let len = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(usize::from(at) % len) {
            *byte = with % 0x80;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lines of a stranger that knows no token: no side takes any of them for a proof.
fn lines(text: &str) {
    let token = Token::new("correct horse").expect("it is long enough");
    let address = SocketAddr::from(([192, 0, 2, 1], 1));
    let addresses = Addresses { client: address, server: address };
    for line in text.lines() {
        let nonce = Nonce([7; 16]);
        let shown = |error: &dyn core::fmt::Display| {
            assert!(!error.to_string().contains(char::is_control), "{error}");
        };
        match ServerOpening::begin(line, &PROTOCOLS, addresses, Some(&token), nonce) {
            Err(error) => shown(&error),
            Ok((index, server, _)) => {
                assert!(line.starts_with(PROTOCOLS[index]));
                text.lines().for_each(|line| {
                    let finished = server.clone().finish(Some(line), Request::of(text));
                    shown(&finished.expect_err("no proof is guessed"));
                });
            }
        }
        let mut client = ClientOpening::new(PROTOCOLS[0], addresses, Some(&token), nonce);
        match client.answer(line, text) {
            Err(error) => shown(&error),
            Ok(_) => text.lines().for_each(|line| {
                shown(&client.clone().finish(line).expect_err("no proof is guessed"));
            }),
        }
    }
}
