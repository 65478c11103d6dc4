//! The two ends of a connection.

use core::ops::{Index, IndexMut};

use serde::{Serialize, Serializer};

/// One of the two ends of a connection. What there is of either is kept in arrays of two, which an
/// `End` indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// First end: the one whose packets were captured first, or the one that asked the connection
    /// manager for the connection.
    #[default]
    A,
    /// Second end.
    B,
}

impl End {
    /// Both ends.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Returns the other end if the two are `exchanged`.
    #[must_use]
    pub const fn exchanged_if(self, exchanged: bool) -> Self {
        if exchanged { self.other() } else { self }
    }

    /// Index in an array of what there is of either end: 0 or 1.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl<T> Index<End> for [T; 2] {
    type Output = T;

    fn index(&self, end: End) -> &T {
        let [a, b] = self;
        match end {
            End::A => a,
            End::B => b,
        }
    }
}

impl<T> IndexMut<End> for [T; 2] {
    fn index_mut(&mut self, end: End) -> &mut T {
        let [a, b] = self;
        match end {
            End::A => a,
            End::B => b,
        }
    }
}

impl Serialize for End {
    /// Its index.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}
