//! Named counters: every drop and refusal of a room has one.

/// Declares `Counter`, an enumeration of counters with their names, and `Counters`, their values.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A counter: a reason to drop or refuse, or another event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name; that of rxe's `hw_counters` where the meaning is the same.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        /// Values of all counters.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Counters([u64; Counter::ALL.len()]);

        impl Default for Counters {
            fn default() -> Self {
                Self([0; Counter::ALL.len()])
            }
        }

        impl Counters {
            /// Returns the value of a counter.
            #[expect(clippy::indexing_slicing, reason = "there is a value for each counter")]
            pub fn get(&self, counter: Counter) -> u64 {
                self.0[counter as usize]
            }

            /// Returns all counters with their values.
            pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
                Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
            }

            #[inline]
            #[expect(clippy::indexing_slicing, reason = "there is a value for each counter")]
            pub(super) fn add(&mut self, counter: Counter) {
                self.0[counter as usize] += 1;
            }
        }
    };
}

pub(crate) use counters;
