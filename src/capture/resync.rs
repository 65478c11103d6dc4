//! The search for the next sound record behind damage.
//!
//! Each format says of the bytes at a position whether a record plausibly begins there
//! ([`Verdict`]); the search goes through the stream once, from the damage on. Its work is linear:
//! a position is looked at once, each look reads at most a few headers, and the window that they
//! may lie in is the reader's own buffer.

use std::io::Read;

use super::buffer::Buffer;
use super::error::Error;
use super::limits::{BUFFER_SIZE, READ_SIZE};

/// Verdict of a format on the bytes at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A sound record begins here.
    Sound,
    /// No record begins here, and none within this many bytes, which are at least one.
    Not(usize),
    /// Number of bytes from here on that are needed to tell, at most half of the buffer.
    Needs(usize),
}

/// End of the stream, as far as a [`Verdict`] must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The stream ends with the bytes that are shown.
    Ends,
    /// Later.
    GoesOn,
}

/// Moves the front of the buffer to the next sound record behind the damage that is at its front,
/// if there is one. If there is none, the buffer is as it was, or empty.
///
/// `first` is the verdict on the damage itself, which is only asked how far to go; `judge` that on
/// what follows.
pub(super) fn search<R: Read>(
    buffer: &mut Buffer<R>,
    first: impl Fn(&[u8], Rest) -> Verdict,
    judge: impl Fn(&[u8], Rest) -> Verdict,
) -> Result<bool, Error> {
    let (mut at, mut is_first, mut rest) = (0, true, Rest::GoesOn);
    let mut failure = None;
    loop {
        let bytes = buffer.available().get(at..).unwrap_or_default();
        let verdict = if is_first { first(bytes, rest) } else { judge(bytes, rest) };
        match verdict {
            Verdict::Sound => {
                buffer.take(at);
                return Ok(true);
            }
            Verdict::Not(step) if step.max(1) <= bytes.len() => {
                at += step.max(1);
                is_first = false;
            }
            // Whatever is needed beyond the end is not there.
            Verdict::Not(_) | Verdict::Needs(_) if rest == Rest::Ends => {
                return failure.map_or(Ok(false), Err);
            }
            Verdict::Not(need) | Verdict::Needs(need) => {
                if at >= BUFFER_SIZE / 2 {
                    buffer.take(at);
                    at = 0;
                }
                // In whole reads, so that no refill is for a few bytes.
                let want = (at + need).next_multiple_of(READ_SIZE).min(BUFFER_SIZE);
                if buffer.available().len() >= want {
                    // More than the buffer holds, which no verdict asks for.
                    at += 1;
                    continue;
                }
                match buffer.want(want) {
                    Ok(bytes) if bytes.len() < want => rest = Rest::Ends,
                    Ok(_) => {}
                    Err(error) => (rest, failure) = (Rest::Ends, Some(error)),
                }
            }
        }
    }
}
