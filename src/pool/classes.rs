//! Size classes: the sizes that items of a pool have, and the class of each length.

use super::PoolError;

/// Items begin at multiples of this, and their sizes are multiples of it: a cache line, so that no
/// two share one, and atomics of a peer find their eight bytes aligned.
pub const ALIGN: usize = 64;

/// Maximum number of size classes of a pool.
pub const CLASSES_MAX: usize = 64;

/// The sizes that items have, and the class of each length.
#[derive(Debug)]
pub(super) struct Classes {
    sizes: Vec<usize>,
    /// The class of each length, by the number of cache lines that it takes.
    by_lines: Box<[u8]>,
}

impl Classes {
    /// Sizes from `smallest` to `slab`, each larger than the one before by the factor, as far as
    /// the alignment allows.
    pub(super) fn new(smallest: usize, slab: usize, factor: f64) -> Result<Self, PoolError> {
        let sizes = sizes(smallest, slab, factor)?;
        let mut by_lines = vec![0; slab / ALIGN + 1].into_boxed_slice();
        let mut class = 0;
        for (lines, entry) in by_lines.iter_mut().enumerate() {
            while sizes.get(class).is_some_and(|size| *size < lines * ALIGN) {
                class += 1;
            }
            *entry = u8::try_from(class).expect("there are at most 64 classes");
        }
        Ok(Self { sizes, by_lines })
    }

    /// The class of items of `len` bytes; `None` if no item is that large.
    #[inline]
    pub(super) fn of(&self, len: usize) -> Option<usize> {
        self.by_lines.get(len.div_ceil(ALIGN)).map(|class| usize::from(*class))
    }

    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The largest part of an item that may be unused, of those that are larger than the smallest.
    pub(super) fn waste_max(&self) -> f64 {
        let steps = self.sizes.iter().zip(self.sizes.iter().skip(1));
        steps.map(|(below, size)| share(size - below - 1, *size)).fold(0.0, f64::max)
    }
}

/// A part of a whole; none of nothing.
#[expect(clippy::cast_precision_loss, reason = "a share of bytes for people to read")]
pub(super) fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn sizes(smallest: usize, slab: usize, factor: f64) -> Result<Vec<usize>, PoolError> {
    let invalid = |what| Err(PoolError::Invalid(what));
    if !(1.01..=16.0).contains(&factor) {
        return invalid("the growth factor of size classes is between 1.01 and 16");
    }
    if slab == 0 || !slab.is_multiple_of(ALIGN) || slab > 1 << 30 {
        return invalid("a slab is a multiple of 64 bytes, and at most 1 GiB");
    }
    if smallest > slab {
        return invalid("the smallest item is not larger than a slab");
    }
    let mut sizes = vec![smallest.max(1).next_multiple_of(ALIGN)];
    // The last class is a whole slab.
    while let Some(last) = sizes.last().copied().filter(|last| *last < slab) {
        let next = scaled(last, factor).next_multiple_of(ALIGN).max(last + ALIGN);
        let is_last = sizes.len() == CLASSES_MAX - 1;
        sizes.push(if is_last { slab } else { next.min(slab) });
    }
    Ok(sizes)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "sizes are below 2^30, factors at most 16"
)]
fn scaled(size: usize, factor: f64) -> usize {
    (size as f64 * factor) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_the_factor() {
        let classes = Classes::new(40, 1024, 2.0).unwrap();
        assert_eq!(classes.sizes(), [64, 128, 256, 512, 1024]);
        let of = [0, 1, 64, 65, 128, 129, 1023, 1024, 1025].map(|len| classes.of(len));
        let expected = [0, 0, 0, 1, 1, 2, 4, 4].map(Some);
        assert_eq!(of[..8], expected);
        assert_eq!(of[8], None);
        assert!(classes.waste_max() < 0.5);
    }

    #[test]
    fn there_are_at_most_64_classes_and_the_last_is_a_slab() {
        for (smallest, slab, factor) in [(64, 1 << 20, 1.01), (1, 1 << 26, 1.25), (4096, 4096, 2.0)]
        {
            let classes = Classes::new(smallest, slab, factor).unwrap();
            assert!(classes.sizes().len() <= CLASSES_MAX);
            assert_eq!(classes.sizes().last(), Some(&slab));
            assert!(classes.sizes().is_sorted_by(|a, b| a < b));
            for len in (1..=slab).step_by(slab / 1000 + 1) {
                let class = classes.of(len).unwrap();
                assert!(classes.sizes()[class] >= len);
                assert!(class == 0 || classes.sizes()[class - 1] < len, "the smallest that fits");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (smallest, slab, factor) in
            [(64, 1000, 2.0), (64, 0, 2.0), (128, 64, 2.0), (64, 1024, 1.0), (64, 1024, f64::NAN)]
        {
            Classes::new(smallest, slab, factor).unwrap_err();
        }
    }
}
