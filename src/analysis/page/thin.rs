//! A list that stays within a budget by keeping every second, every fourth, … of its items.

/// A list that keeps every `stride`-th item.
#[derive(Clone, Debug)]
pub(super) struct Thin<T> {
    kept: Vec<T>,
    stride: u64,
    seen: u64,
}

impl<T> Default for Thin<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), stride: 1, seen: 0 }
    }
}

impl<T> Thin<T> {
    /// Takes an item. Returns whether it was kept.
    pub(super) fn push(&mut self, item: T) -> bool {
        let keep = self.seen.is_multiple_of(self.stride);
        self.seen += 1;
        if keep {
            self.kept.push(item);
        }
        keep
    }

    /// Drops every second item that was kept, and from now on keeps half as many. Returns how many
    /// were dropped.
    pub(super) fn halve(&mut self) -> usize {
        let before = self.kept.len();
        let mut index = 0;
        self.kept.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        self.stride *= 2;
        before - self.kept.len()
    }

    /// The items that were kept.
    pub(super) fn items(&self) -> &[T] {
        &self.kept
    }

    /// Returns the number of items that were not kept.
    pub(super) fn left_out(&self) -> u64 {
        self.seen - self.kept.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_items_stay_evenly_spread() {
        let mut thin = Thin::default();
        for item in 0..1000u32 {
            thin.push(item);
            if thin.items().len() > 100 {
                thin.halve();
            }
        }
        assert_eq!(thin.items().first(), Some(&0));
        assert!(thin.items().windows(2).all(|pair| pair[1] - pair[0] == 16), "{:?}", thin.items());
        assert_eq!(thin.left_out(), 1000 - thin.items().len() as u64);
    }
}
