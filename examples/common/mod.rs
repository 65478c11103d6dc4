//! Arguments and failures of the examples: a wrong argument is named with what is expected, and a
//! failure is one line.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::str::FromStr;

/// Ends an example: a failure is told in one line, and has status 1.
pub(crate) fn end(name: &str, result: Result<(), impl Display>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the value of an argument.
pub(crate) fn parse<T: FromStr>(name: &str, value: &str, expected: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}: '{value}' is not {expected}"))
}

/// Parses an address and a port; the address may be a host's name.
pub(crate) fn address(value: &str) -> Result<SocketAddr, String> {
    let wrong = |why: &str| format!("'{value}' is not ADDRESS:PORT, as 127.0.0.1:7000: {why}");
    let mut found = value.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    found.next().ok_or_else(|| wrong("the name has no address"))
}

/// Returns the message for arguments that are too few, too many or unknown.
pub(crate) fn wrong(arguments: &[impl AsRef<str>], usage: &str) -> String {
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    match arguments.as_slice() {
        [] => format!("an argument is missing; usage: {usage}"),
        ["-h" | "--help"] => format!("usage: {usage}"),
        _ => format!("wrong arguments '{}'; usage: {usage}", arguments.join(" ")),
    }
}

/// Fails if there are arguments.
pub(crate) fn none() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let message = format!("wrong arguments '{}': it takes none", arguments.join(" "));
    if arguments.is_empty() { Ok(()) } else { Err(message) }
}
