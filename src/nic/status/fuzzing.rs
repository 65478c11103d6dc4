//! Entry point of a fuzz target: the text of a status, of a process that says anything. Not part of
//! the interface.

use super::{RATES_MAX, text};

/// A status of a stranger: what is taken from it is within bounds, and says the same when it is
/// written.
pub fn status_text(input: &[u8]) {
    let Ok(said) = std::str::from_utf8(input) else { return };
    let Some(status) = text::parse(said) else { return };
    let lengths = [status.gids.len(), status.counters.len(), status.controlled.len()];
    assert!(lengths.iter().all(|len| *len <= text::LINES_MAX.max(RATES_MAX)));
    assert_eq!(status.pid, 0, "a process does not say its own number");
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    assert!(status.counters.iter().all(|(name, _)| name.chars().all(is_name)));
    let written = text::write(&status);
    let Some(read) = text::parse(&written) else { panic!("{written:?} is malformed") };
    // What does not fit a line of the text is left out when it is written.
    let (device, expected) = (read.device.clone(), status.device.as_str());
    assert!(device.chars().all(|char| !char.is_control()) && device.len() <= expected.len());
    assert_eq!(super::NicStatus { device, ..status }, read);
}
