//! Slabs of one partition, with their free items, by offsets and not by memory.
//!
//! A slab belongs to one class while any of its items is in use, and to none otherwise. Each class
//! lists its slabs that have a free item. Items of a slab that were never in use since it came to
//! the class are not listed: a counter says where they begin, so that a slab changes its class in
//! O(1).

/// No slab, or no item.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slab {
    class: u8,
    /// Number of items in use.
    used: u32,
    /// First item that was never in use.
    fresh: u32,
    /// First item of the list of free ones.
    free: u32,
    /// Neighbors in the list of the class.
    before: u32,
    behind: u32,
}

const UNUSED: Slab = Slab { class: 0, used: 0, fresh: 0, free: NONE, before: NONE, behind: NONE };

#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Bytes of an item.
    pub(super) size: usize,
    /// Number of items that a slab has.
    per_slab: u32,
    /// First slab with a free item.
    partial: u32,
    /// Number of slabs.
    pub(super) slabs: usize,
    /// Number of items in use.
    pub(super) used: usize,
}

#[derive(Debug)]
pub(super) struct Slabs {
    slab_bytes: usize,
    slabs: Box<[Slab]>,
    /// The list of free items of each slab: the item behind each.
    links: Box<[u32]>,
    /// Number of links of each slab.
    items_max: usize,
    classes: Box<[Class]>,
    /// Slabs that belong to no class.
    free: Vec<u32>,
    /// Bytes that the users of items in use asked for.
    pub(super) requested: usize,
}

impl Slabs {
    pub(super) fn new(count: u32, slab_bytes: usize, sizes: &[usize]) -> Self {
        let smallest = sizes.iter().copied().min().unwrap_or(slab_bytes).max(1);
        let items_max = slab_bytes / smallest;
        let class = |size: &usize| {
            let per_slab = u32::try_from(slab_bytes / size).unwrap_or(NONE - 1);
            Class { size: *size, per_slab, partial: NONE, slabs: 0, used: 0 }
        };
        Self {
            slab_bytes,
            slabs: vec![UNUSED; count as usize].into_boxed_slice(),
            links: vec![NONE; count as usize * items_max].into_boxed_slice(),
            items_max,
            classes: sizes.iter().map(class).collect(),
            free: (0..count).rev().collect(),
            requested: 0,
        }
    }

    pub(super) fn classes(&self) -> &[Class] {
        &self.classes
    }

    pub(super) fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    pub(super) fn slabs(&self) -> usize {
        self.slabs.len()
    }

    pub(super) fn free_slabs(&self) -> usize {
        self.free.len()
    }

    fn slab(&mut self, at: u32) -> &mut Slab {
        self.slabs.get_mut(at as usize).expect("slabs are named by their own numbers")
    }

    fn class(&mut self, at: usize) -> &mut Class {
        self.classes.get_mut(at).expect("classes are named by their own numbers")
    }

    fn link(&mut self, slab: u32, item: u32) -> &mut u32 {
        let at = slab as usize * self.items_max + item as usize;
        self.links.get_mut(at).expect("each item has a link")
    }

    /// Takes an item of a class for `len` bytes; returns its offset. `None` if there is neither an
    /// item nor a slab left.
    pub(super) fn take(&mut self, class: usize, len: usize) -> Option<usize> {
        let Class { size, per_slab, partial, .. } = *self.class(class);
        let at = if partial == NONE { self.adopt(class)? } else { partial };
        let Slab { free, fresh, .. } = *self.slab(at);
        let item = if free == NONE {
            self.slab(at).fresh += 1;
            fresh
        } else {
            self.slab(at).free = *self.link(at, free);
            free
        };
        self.slab(at).used += 1;
        if self.slab(at).used == per_slab {
            self.unlist(at);
        }
        self.class(class).used += 1;
        self.requested += len;
        Some(at as usize * self.slab_bytes + item as usize * size)
    }

    /// Gives a slab that belongs to no class to this one.
    fn adopt(&mut self, class: usize) -> Option<u32> {
        let at = self.free.pop()?;
        let class_number = u8::try_from(class).expect("there are at most 64 classes");
        *self.slab(at) = Slab { class: class_number, ..UNUSED };
        self.class(class).slabs += 1;
        self.list(at);
        Some(at)
    }

    /// Frees the item at an offset, of which `len` bytes were asked for.
    pub(super) fn free(&mut self, offset: usize, len: usize) {
        let at = u32::try_from(offset / self.slab_bytes).expect("slabs are counted by 32 bits");
        let Slab { class, used, free, .. } = *self.slab(at);
        let Class { size, per_slab, .. } = *self.class(usize::from(class));
        let item = u32::try_from(offset % self.slab_bytes / size).expect("as above");
        debug_assert!(used > 0 && item < per_slab, "an item is freed once");
        *self.link(at, item) = free;
        self.slab(at).free = item;
        self.slab(at).used -= 1;
        self.class(usize::from(class)).used -= 1;
        self.requested -= len;
        if used == per_slab {
            self.list(at);
        }
        if used == 1 {
            self.unlist(at);
            self.class(usize::from(class)).slabs -= 1;
            self.free.push(at);
        }
    }

    /// Adds a slab to those of its class that have a free item.
    fn list(&mut self, at: u32) {
        let class = usize::from(self.slab(at).class);
        let first = std::mem::replace(&mut self.class(class).partial, at);
        (self.slab(at).before, self.slab(at).behind) = (NONE, first);
        if first != NONE {
            self.slab(first).before = at;
        }
    }

    fn unlist(&mut self, at: u32) {
        let Slab { class, before, behind, .. } = *self.slab(at);
        match before {
            NONE => self.class(usize::from(class)).partial = behind,
            before => self.slab(before).behind = behind,
        }
        if behind != NONE {
            self.slab(behind).before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SLAB: usize = 1024;
    const SIZES: [usize; 4] = [64, 192, 448, 1024];

    #[test]
    fn a_slab_that_is_free_serves_another_class() {
        let mut slabs = Slabs::new(1, SLAB, &SIZES);
        let small: Vec<usize> = std::iter::from_fn(|| slabs.take(0, 64)).collect();
        assert_eq!(small, (0..16).map(|item| item * 64).collect::<Vec<_>>());
        assert_eq!(slabs.take(3, 1024), None);
        small.iter().for_each(|offset| slabs.free(*offset, 64));
        assert_eq!((slabs.free_slabs(), slabs.requested), (1, 0));
        assert_eq!(slabs.take(3, 1000), Some(0));
        assert_eq!(slabs.requested, 1000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { class: usize },
        Free { at: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..SIZES.len()).prop_map(|class| Step::Take { class }),
            2 => any::<usize>().prop_map(|at| Step::Free { at }),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        /// The model: live items by offset. Items never overlap, a take fails only if it must, and
        /// a slab whose items are free belongs to no class.
        #[test]
        fn slabs_do_what_a_model_does(steps in steps(), count in 1_u32..6) {
            let mut slabs = Slabs::new(count, SLAB, &SIZES);
            let mut live = BTreeMap::<usize, (usize, usize)>::new();
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Take { class } => {
                        let (size, len) = (SIZES[class], SIZES[class] - number % 50);
                        let of_class = |slab: usize| {
                            let within = slab * SLAB..(slab + 1) * SLAB;
                            live.range(within).map(|(_, item)| item.0).collect::<Vec<_>>()
                        };
                        let has_room = (0..count as usize).map(of_class).any(|items| {
                            items.is_empty() || items[0] == class && items.len() < SLAB / size
                        });
                        let taken = slabs.take(class, len);
                        prop_assert_eq!(taken.is_some(), has_room);
                        let Some(offset) = taken else { continue };
                        prop_assert_eq!(offset % SLAB % size, 0);
                        prop_assert!(offset + size <= count as usize * SLAB);
                        let below = live.range(..offset + size).next_back();
                        prop_assert!(below.is_none_or(|(at, item)| at + SIZES[item.0] <= offset));
                        live.insert(offset, (class, len));
                    }
                    Step::Free { at } => {
                        let Some(offset) = live.keys().nth(at % live.len().max(1)).copied() else {
                            continue;
                        };
                        let (_, len) = live.remove(&offset).unwrap();
                        slabs.free(offset, len);
                    }
                }
                let used: usize = slabs.classes().iter().map(|class| class.used).sum();
                prop_assert_eq!(used, live.len());
                prop_assert_eq!(slabs.requested, live.values().map(|item| item.1).sum::<usize>());
                let held = (0..count as usize).filter(|slab| {
                    live.range(slab * SLAB..(slab + 1) * SLAB).next().is_some()
                });
                prop_assert_eq!(slabs.slabs() - slabs.free_slabs(), held.count());
            }
        }
    }
}
