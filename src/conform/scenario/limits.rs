//! The bounds of a scenario, whether it is read from a file or received from another machine.
//!
//! Together they bound what one instance costs: memory, traffic and time.

use super::super::expand::Expr;

/// Maximum length of a name, in bytes: scenarios, buffers, windows, words of packets.
pub const NAME_MAX: usize = 200;

/// Maximum length of a description, in bytes.
pub const ABOUT_MAX: usize = 1000;

/// Maximum length of an expression or of a claim about memory, in bytes.
pub const EXPRESSION_MAX: usize = 200;

/// Maximum number of queue pairs of a side.
pub const QPS_MAX: usize = 16;

/// Maximum number of steps.
pub const STEPS_MAX: usize = 256;

/// Maximum number of faults.
pub const FAULTS_MAX: usize = 64;

/// Maximum number of buffers of a side, `main` among them.
pub const BUFFERS_MAX: usize = 16;

/// Maximum number of memory windows of a side.
pub const WINDOWS_MAX: usize = 16;

/// Maximum number of words at the beginning of a buffer.
pub const WORDS_MAX: usize = 1024;

/// Maximum number of pieces of a message.
pub const SGES_MAX: usize = 32;

/// Maximum number of work requests of all steps.
pub const POSTS_MAX: u64 = 4096;

/// Maximum number of completions that a side expects or waits for, and that each of its completion
/// queues holds.
pub const COMPLETIONS_MAX: usize = 1024;

/// Maximum number of claims about memory.
pub const CLAIMS_MAX: usize = 64;

/// Maximum number of events that a side expects.
pub const EVENTS_MAX: usize = 64;

/// Maximum number of expectations about packets.
pub const PACKETS_MAX: usize = 64;

/// Maximum number of bytes that the buffers of a side have together.
pub const BYTES_MAX: u64 = 16 << 20;

/// Maximum number of bytes that all steps post together, as far as their buffers reach.
pub const TRAFFIC_MAX: u64 = 16 << 20;

/// Maximum number of seconds that an instance may take.
pub const LIMIT_MAX: u64 = 60;

const _: () = assert!(POSTS_MAX >= COMPLETIONS_MAX as u64, "what is awaited can be posted");
const _: () = assert!(TRAFFIC_MAX >= BYTES_MAX, "a message can be as long as a buffer");

/// Refuses a list that is longer than `most`.
pub(super) fn few<T>(field: &str, list: &[T], most: usize) -> Result<(), String> {
    if list.len() > most {
        return Err(format!("{field}: {} are more than {most}", list.len()));
    }
    Ok(())
}

/// Refuses a text that is empty, too long, or holds what a terminal would not print.
pub(super) fn plain(field: &str, text: &str, most: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{field}: it is empty"));
    }
    if text.len() > most {
        return Err(format!("{field}: {} bytes are more than {most}", text.len()));
    }
    match text.chars().find(|c| !crate::decode::is_plain(*c)) {
        Some(c) => Err(format!("{field}: it holds the character {}", c.escape_unicode())),
        None => Ok(()),
    }
}

/// Refuses an expression that is too long to be meant.
pub(super) fn short(field: &str, expr: &Expr) -> Result<(), String> {
    match expr {
        Expr::Text(text) => plain(field, text, EXPRESSION_MAX),
        Expr::Number(_) => Ok(()),
    }
}

/// Refuses a number that is more than `most`.
pub(super) fn at_most<T: PartialOrd + std::fmt::Display>(
    field: &str,
    number: Option<T>,
    most: T,
) -> Result<(), String> {
    match number {
        Some(number) if number > most => Err(format!("{field}: {number} is more than {most}")),
        _ => Ok(()),
    }
}
