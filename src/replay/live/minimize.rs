//! The smallest part of a sequence that still fails: delta debugging.

/// Attempts that one minimization may take.
pub const ATTEMPTS_MAX: usize = 400;

/// Finds a part of `items` that still fails and of which no single item can be left out, as far as
/// [`ATTEMPTS_MAX`] attempts go (Zeller's ddmin). `fails` is asked about parts in their order; it
/// is known to fail for all of them.
pub fn minimize<T: Clone, E>(
    items: &[T],
    mut fails: impl FnMut(&[T]) -> Result<bool, E>,
) -> Result<Vec<T>, E> {
    let mut kept = items.to_vec();
    let (mut parts, mut attempts) = (2, 0);
    while kept.len() > 1 && attempts < ATTEMPTS_MAX {
        let size = kept.len().div_ceil(parts);
        let mut is_smaller = false;
        for start in (0..kept.len()).step_by(size) {
            let end = (start + size).min(kept.len());
            // One part alone where that is the larger step, else all but one part.
            let without: Vec<T> = kept
                .iter()
                .enumerate()
                .filter(|(at, _)| !(start..end).contains(at))
                .map(|(_, it)| it.clone())
                .collect();
            attempts += 1;
            if !without.is_empty() && fails(&without)? {
                kept = without;
                parts = parts.saturating_sub(1).max(2);
                is_smaller = true;
                break;
            }
            if attempts >= ATTEMPTS_MAX {
                break;
            }
        }
        if !is_smaller {
            if parts >= kept.len() {
                break;
            }
            parts = (2 * parts).min(kept.len());
        }
    }
    Ok(kept)
}
