//! Initial contents of buffers, and the contents that a scenario expects.

use std::ops::Range;

use super::Side;
use super::expand::{Instance, Values, sum};
use super::scenario::MAIN;
use super::scenario::limits::BYTES_MAX;

/// A line of `expect.memory`: what a range of a buffer must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim<'t> {
    side: Side,
    buffer: &'t str,
    from: &'t str,
    to: &'t str,
    is: Content<'t>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content<'t> {
    /// Initial content of a buffer of a side, from an offset on.
    Of(Side, &'t str, &'t str),
    /// A 64-bit number.
    Word(u64),
    /// Any bytes.
    Anything,
}

/// Expected bytes; `None` may be anything.
pub(super) type Image = Vec<Option<u8>>;

impl<'t> Claim<'t> {
    /// Reads `SIDE[.BUFFER] FROM..TO = …`.
    pub(super) fn parse(text: &'t str) -> Result<Self, String> {
        let form = || {
            format!(
                "`{text}` is not `SIDE[.BUFFER] FROM..TO =` and `SIDE[.BUFFER] FROM`, `word N` or `anything`"
            )
        };
        let (left, right) = text.split_once('=').ok_or_else(form)?;
        let (name, range) = left.trim().split_once(' ').ok_or_else(form)?;
        let (side, buffer) = buffer_of(name).ok_or_else(form)?;
        let (from, to) = range.trim().split_once("..").ok_or_else(form)?;
        let right = right.trim();
        let is = match right.split_once(' ') {
            None if right == "anything" => Content::Anything,
            Some(("word", number)) => Content::Word(number.trim().parse().map_err(|_| form())?),
            Some((name, from)) => {
                let (side, buffer) = buffer_of(name).ok_or_else(form)?;
                Content::Of(side, buffer, from.trim())
            }
            None => return Err(form()),
        };
        Ok(Self { side, buffer, from: from.trim(), to: to.trim(), is })
    }

    /// Returns every buffer that it names.
    pub(super) fn names(&self) -> Vec<(Side, &'t str)> {
        let mut names = vec![(self.side, self.buffer)];
        if let Content::Of(side, buffer, _) = self.is {
            names.push((side, buffer));
        }
        names
    }

    /// Returns the range that it is about, and the offset of the content it must have. Both are
    /// within their buffers.
    fn range(&self, instance: &Instance) -> Result<(Range<usize>, usize), String> {
        let values = instance.values();
        let (from, to) = (index(self.from, values)?, index(self.to, values)?);
        let len = len_of(instance, self.side, self.buffer)?;
        if from > to || to as u64 > len {
            let Self { from, to, buffer, .. } = self;
            return Err(format!("{from}..{to} is not within the {len} bytes of {buffer}"));
        }
        let count = to - from;
        let start = match &self.is {
            Content::Anything => 0,
            Content::Word(_) if count == size_of::<u64>() => 0,
            Content::Word(_) => {
                return Err(format!("a word has 8 bytes, {}..{} has {count}", self.from, self.to));
            }
            Content::Of(side, buffer, start) => {
                let at = index(start, values)?;
                let end = at.checked_add(count).map(|end| end as u64);
                if end
                    .is_none_or(|end| !len_of(instance, *side, buffer).is_ok_and(|len| end <= len))
                {
                    return Err(format!("{buffer} has no {count} bytes from {start} on"));
                }
                at
            }
        };
        Ok((from..to, start))
    }

    /// Writes what it claims to the image of a buffer.
    fn apply(&self, instance: &Instance, image: &mut Image) -> Result<(), String> {
        let (range, start) = self.range(instance)?;
        let count = range.len();
        let place = image.get_mut(range).ok_or_else(|| "not within the buffer".to_owned())?;
        match &self.is {
            Content::Anything => place.fill(None),
            Content::Word(word) => {
                place.iter_mut().zip(word.to_ne_bytes()).for_each(|(at, byte)| *at = Some(byte));
            }
            Content::Of(side, buffer, _) => {
                let bytes = piece(instance, *side, buffer, start..start + count)?;
                place.iter_mut().zip(bytes).for_each(|(at, byte)| *at = Some(byte));
            }
        }
        Ok(())
    }
}

fn index(text: &str, values: Values) -> Result<usize, String> {
    usize::try_from(sum(text, values)?).map_err(|error| error.to_string())
}

fn buffer_of(name: &str) -> Option<(Side, &str)> {
    let (side, buffer) = name.split_once('.').unwrap_or((name, MAIN));
    let side = Side::BOTH.into_iter().find(|known| known.name() == side)?;
    Some((side, buffer))
}

/// The length of a buffer.
pub(super) fn len_of(instance: &Instance, side: Side, name: &str) -> Result<u64, String> {
    let buffers = instance.scenario.buffers(side);
    let found = buffers.iter().find(|buffer| buffer.name == name);
    let buffer = found.ok_or_else(|| format!("the {side} has no `{name}`"))?;
    let len = buffer.len.value(instance.values());
    len.map_err(|text| format!("{side}.buffers.{name}.len: {text}"))
}

/// Returns the initial content of a buffer: a pattern that differs by side, buffer and offset, then
/// the words of the scenario over it.
pub(super) fn initial(instance: &Instance, side: Side, name: &str) -> Result<Vec<u8>, String> {
    let len = usize::try_from(len_of(instance, side, name)?.min(BYTES_MAX));
    piece(instance, side, name, 0..len.map_err(|error| error.to_string())?)
}

/// Returns part of the initial content of a buffer.
fn piece(
    instance: &Instance,
    side: Side,
    name: &str,
    range: Range<usize>,
) -> Result<Vec<u8>, String> {
    let buffers = instance.scenario.buffers(side);
    let found = buffers.iter().enumerate().find(|(_, buffer)| buffer.name == name);
    let Some((number, buffer)) = found else { return Err(format!("the {side} has no `{name}`")) };
    let seed = (number as u64 + 1) * 2 + side as u64;
    let pattern = |at: u64| (at * 7 + at / 251 + seed * 37).to_le_bytes()[0];
    let start = range.start;
    let mut bytes: Vec<u8> = range.map(|at| pattern(at as u64)).collect();
    let words = buffer.words.iter().flat_map(|word| word.to_ne_bytes()).skip(start);
    bytes.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
    Ok(bytes)
}

/// Checks that the buffers of an instance are within [`BYTES_MAX`], and that claims are within the
/// buffers.
pub(super) fn check(instance: &Instance) -> Result<(), String> {
    for side in Side::BOTH {
        let mut bytes = 0_u64;
        for buffer in instance.scenario.buffers(side) {
            bytes = bytes.saturating_add(len_of(instance, side, &buffer.name)?);
        }
        if bytes > BYTES_MAX {
            return Err(format!("{side}.buffers: {bytes} bytes are more than {BYTES_MAX}"));
        }
    }
    for (at, text) in instance.scenario.expect.memory.iter().enumerate() {
        let range = Claim::parse(text).and_then(|claim| claim.range(instance));
        range.map_err(|text| format!("expect.memory[{at}]: {text}"))?;
    }
    Ok(())
}

/// Returns what a buffer must hold at the end.
pub(super) fn image(instance: &Instance, side: Side, name: &str) -> Result<Image, String> {
    let mut image: Image = initial(instance, side, name)?.into_iter().map(Some).collect();
    for text in &instance.scenario.expect.memory {
        let claim = Claim::parse(text)?;
        if (claim.side, claim.buffer) == (side, name) {
            claim.apply(instance, &mut image).map_err(|error| format!("{text}: {error}"))?;
        }
    }
    Ok(image)
}

/// Returns the first byte that is not as expected: its offset, the expected and the actual value.
pub(super) fn mismatch(image: &Image, bytes: &[u8]) -> Option<(usize, u8, u8)> {
    let pairs = image.iter().zip(bytes).enumerate();
    pairs.filter_map(|(at, (must, is))| Some((at, (*must)?, *is))).find(|(_, must, is)| must != is)
}
