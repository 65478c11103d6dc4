//! What memory held, and what it must hold.

use super::Side;
use super::expand::{Instance, Values, sum};
use super::scenario::{BufferSpec, MAIN};

/// What is claimed of some bytes.
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
    /// What somebody's buffer held at the beginning, from there on.
    Of(Side, &'t str, &'t str),
    /// A number of eight bytes.
    Word(u64),
    /// Nobody knows.
    Anything,
}

/// A byte as it must be, if it must.
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
        let (side, buffer) = place(name).ok_or_else(form)?;
        let (from, to) = range.trim().split_once("..").ok_or_else(form)?;
        let right = right.trim();
        let is = match right.split_once(' ') {
            None if right == "anything" => Content::Anything,
            Some(("word", number)) => Content::Word(number.trim().parse().map_err(|_| form())?),
            Some((name, from)) => {
                let (side, buffer) = place(name).ok_or_else(form)?;
                Content::Of(side, buffer, from.trim())
            }
            None => return Err(form()),
        };
        Ok(Self { side, buffer, from: from.trim(), to: to.trim(), is })
    }

    /// Every buffer that it names.
    pub(super) fn names(&self) -> Vec<(Side, &'t str)> {
        let mut names = vec![(self.side, self.buffer)];
        if let Content::Of(side, buffer, _) = self.is {
            names.push((side, buffer));
        }
        names
    }

    /// Puts what it claims into the image of a buffer.
    fn apply(&self, instance: &Instance, image: &mut Image) -> Result<(), String> {
        let values = instance.values();
        let (from, to) = (index(self.from, values)?, index(self.to, values)?);
        let len = image.len();
        let outside = || format!("{}..{} is not within {} bytes", self.from, self.to, len);
        let place = image.get_mut(from..to).ok_or_else(outside)?;
        let bytes: Image = match &self.is {
            Content::Anything => vec![None; place.len()],
            Content::Word(word) => word.to_ne_bytes().map(Some).to_vec(),
            Content::Of(side, buffer, start) => {
                let bytes = initial(instance, *side, buffer)?;
                let start = index(start, values)?;
                bytes
                    .get(start..start + place.len())
                    .ok_or_else(outside)?
                    .iter()
                    .copied()
                    .map(Some)
                    .collect()
            }
        };
        if bytes.len() != place.len() {
            return Err(format!("{}..{} is not as long as {:?}", self.from, self.to, self.is));
        }
        place.copy_from_slice(&bytes);
        Ok(())
    }
}

fn index(text: &str, values: Values) -> Result<usize, String> {
    usize::try_from(sum(text, values)?).map_err(|error| error.to_string())
}

fn place(name: &str) -> Option<(Side, &str)> {
    let (side, buffer) = name.split_once('.').unwrap_or((name, MAIN));
    let side = Side::BOTH.into_iter().find(|known| known.name() == side)?;
    Some((side, buffer))
}

/// What a buffer holds at the beginning: a pattern that tells sides, buffers and places apart, and its words.
pub(super) fn initial(instance: &Instance, side: Side, name: &str) -> Result<Vec<u8>, String> {
    let buffers = instance.scenario.buffers(side);
    let found = buffers.iter().enumerate().find(|(_, buffer)| buffer.name == name);
    let Some((number, buffer)) = found else { return Err(format!("the {side} has no `{name}`")) };
    contents(instance, side, number, buffer)
}

fn contents(
    instance: &Instance,
    side: Side,
    number: usize,
    buffer: &BufferSpec,
) -> Result<Vec<u8>, String> {
    let len = buffer.len.value(instance.values())?;
    if len > BUFFER_MAX {
        return Err(format!("buffer {}: {len} bytes are more than {BUFFER_MAX}", buffer.name));
    }
    let seed = (number as u64 + 1) * 2 + side as u64;
    let pattern = |at: u64| (at * 7 + at / 251 + seed * 37).to_le_bytes()[0];
    let mut bytes: Vec<u8> = (0..len).map(pattern).collect();
    let words = buffer.words.iter().flat_map(|word| word.to_ne_bytes());
    bytes.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
    Ok(bytes)
}

/// The longest buffer of a scenario.
const BUFFER_MAX: u64 = 1 << 26;

/// What a buffer must hold in the end.
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

/// The first byte that is not as it must be: where, what it must be, what it is.
pub(super) fn mismatch(image: &Image, bytes: &[u8]) -> Option<(usize, u8, u8)> {
    let pairs = image.iter().zip(bytes).enumerate();
    pairs.filter_map(|(at, (must, is))| Some((at, (*must)?, *is))).find(|(_, must, is)| must != is)
}
