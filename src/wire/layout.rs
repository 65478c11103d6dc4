//! Macro that declares a header once, like its table in the specification.
//!
//! [`header!`](crate::wire::layout) takes the fields of a header in wire order with their widths in
//! bits and makes
//! - a *view*, a transparent wrapper of the header's bytes that accepts anything and reads fields
//!   in place;
//! - a *repr*, a plain struct of typed fields that cannot hold a value the wire cannot carry, and
//!   emits itself;
//! - a *layout*, the bit range of every field, which the decoder shows and the tests check.
//!
//! Offsets are sums of the widths before them, so a field cannot be misplaced by a typing error
//! without the total going wrong, and the total is checked at compile time, as is the width of each
//! field's type.

/// A run of bits in a header, counted from the most significant bit of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRange {
    /// The first bit.
    pub start: usize,
    /// Number of bits.
    pub len: usize,
}

impl BitRange {
    /// `len` bits from bit `start`.
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// `len` bits of this range, from its bit `start`: a part of a field that has a name of its
    /// own.
    pub const fn part(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "a part lies within its field");
        Self::new(self.start + start, len)
    }

    /// Returns the range from the first bit of `self` to the last of `other`: several fields that
    /// have a name together.
    pub const fn through(self, other: Self) -> Self {
        assert!(self.start <= other.start, "ranges are joined in wire order");
        Self::new(self.start, other.start + other.len - self.start)
    }

    /// Returns the bytes that this range touches.
    #[inline]
    pub const fn bytes(self) -> core::ops::Range<usize> {
        self.start / 8..(self.start + self.len).div_ceil(8)
    }

    /// The value of these bits in `header`, or `None` if it is too short or the range is wider than
    /// 64 bits.
    #[inline]
    pub fn read(self, header: &[u8]) -> Option<u64> {
        let bytes = self.bytes();
        if bytes.len() > 8 || bytes.end > header.len() {
            return None;
        }
        Some(get_bits(header, self.start, self.len))
    }

    /// The bytes of this range in `header`, or `None` if it is too short or the range is not whole
    /// bytes.
    pub fn slice(self, header: &[u8]) -> Option<&[u8]> {
        if !self.start.is_multiple_of(8) || !self.len.is_multiple_of(8) {
            return None;
        }
        header.get(self.bytes())
    }
}

/// A type that stands for some bits of a header.
pub trait Field: Sized {
    /// Number of bits on the wire.
    const WIDTH: usize;

    /// Reads the value from `header` at bit `start`.
    fn get(header: &[u8], start: usize) -> Self;

    /// Writes the value to `header` at bit `start`.
    fn set(&self, header: &mut [u8], start: usize);
}

/// The `len` bits of `bytes` from bit `start`. Callers know that they exist and touch at most eight
/// bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
#[expect(
    clippy::indexing_slicing,
    reason = "headers are whole arrays and their layouts are checked at compile time"
)]
pub(crate) fn get_bits(bytes: &[u8], start: usize, len: usize) -> u64 {
    // One load where there is enough behind or before, which for a header that is known at compile
    // time is known too.
    if let Some(word) = bytes.get(start / 8..).and_then(|rest| rest.first_chunk::<8>()) {
        return (u64::from_be_bytes(*word) << (start % 8)) >> (64 - len);
    }
    let end = (start + len).div_ceil(8);
    if let Some(word) = bytes.get(..end).and_then(|before| before.last_chunk::<8>()) {
        return (u64::from_be_bytes(*word) >> (end * 8 - start - len)) & mask(len);
    }
    let word = bytes[start / 8..end].iter().fold(0u64, |word, &byte| (word << 8) | u64::from(byte));
    (word >> (end * 8 - start - len)) & mask(len)
}

/// Writes the low `len` bits of `value` to `bytes` at bit `start`; the other bits stay as they are.
#[cfg_attr(not(debug_assertions), inline(always))]
#[expect(
    clippy::indexing_slicing,
    reason = "headers are whole arrays and their layouts are checked at compile time"
)]
#[expect(clippy::cast_possible_truncation, reason = "a byte is what is taken out of the word")]
pub(crate) fn set_bits(bytes: &mut [u8], start: usize, len: usize, value: u64) {
    let end = (start + len).div_ceil(8);
    let shift = end * 8 - start - len;
    let (keep, word) = (!(mask(len) << shift), (value & mask(len)) << shift);
    for (k, byte) in bytes[start / 8..end].iter_mut().rev().enumerate() {
        *byte = (*byte & (keep >> (8 * k)) as u8) | (word >> (8 * k)) as u8;
    }
}

#[inline]
const fn mask(len: usize) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

/// Makes a field of a newtype over an unsigned integer whose every value the wire can carry.
macro_rules! whole_field {
    ($($name:ident($int:ty)),*) => {$(
        impl $crate::wire::layout::Field for $name {
            const WIDTH: usize = <$int>::BITS as usize;

            #[cfg_attr(not(debug_assertions), inline(always))]
            #[allow(
                clippy::cast_possible_truncation,
                trivial_numeric_casts,
                reason = "the type has the field's width"
            )]
            fn get(header: &[u8], start: usize) -> Self {
                Self($crate::wire::layout::get_bits(header, start, Self::WIDTH) as $int)
            }

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn set(&self, header: &mut [u8], start: usize) {
                $crate::wire::layout::set_bits(header, start, Self::WIDTH, u64::from(self.0));
            }
        }
    )*};
}
pub(crate) use whole_field;

/// Declares a header; see the [module](self). Fields that start with `~` are reserved: they have a
/// place in the layout and the view, and a repr always emits them as zero.
macro_rules! header {
    (
        $(#[$meta:meta])*
        pub struct $view:ident, $repr:ident, $layout:ident: $layer:expr, $len:literal bytes {
            $($fields:tt)*
        }
    ) => {
        header!(@fields
            { [$(#[$meta])*] $view $repr $layout $layer, $len }
            [0] {} {} $($fields)*
        );
    };

    (@fields $head:tt [$($at:tt)*] {$($seen:tt)*} {$($reserved:tt)*}
        $(#[$doc:meta])* ~ $name:ident = $width:literal, $($rest:tt)*) => {
        header!(@fields $head [$($at)* + $width] {$($seen)*}
            {$($reserved)* ([$(#[$doc])*] $name, $($at)*, $width)} $($rest)*);
    };

    (@fields $head:tt [$($at:tt)*] {$($seen:tt)*} $reserved:tt
        $(#[$doc:meta])* $name:ident: $type:ty = $width:literal, $($rest:tt)*) => {
        header!(@fields $head [$($at)* + $width]
            {$($seen)* ([$(#[$doc])*] $name, $type, $($at)*, $width)} $reserved $($rest)*);
    };

    (@fields
        { [$(#[$meta:meta])*] $view:ident $repr:ident $layout:ident $layer:expr, $len:literal }
        [$($total:tt)*]
        {$(([$(#[$doc:meta])*] $name:ident, $type:ty, $at:expr, $width:literal))*}
        {$(([$(#[$rdoc:meta])*] $rname:ident, $rat:expr, $rwidth:literal))*}
    ) => {
        $(#[$meta])*
        ///
        /// This is the view: the bytes as they are.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
        #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(transparent)]
        pub struct $view([u8; $len]);

        #[doc = concat!("The fields of a [`", stringify!($view), "`], with values that the wire can carry.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $repr {
            $($(#[$doc])* pub $name: $type,)*
        }

        #[doc = concat!("Where each field of a [`", stringify!($view), "`] lies.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $layout {
            $($(#[$doc])* pub $name: $crate::wire::layout::BitRange,)*
            $($(#[$rdoc])* #[doc = "Reserved: sent as zero, ignored on receipt."]
                pub $rname: $crate::wire::layout::BitRange,)*
        }

        const _: () = {
            assert!($($total)* == $len * 8, concat!(stringify!($view), ": the widths fill the header"));
            $(assert!(
                <$type as $crate::wire::layout::Field>::WIDTH == $width,
                concat!(stringify!($view), ".", stringify!($name), ": the type has the field's width")
            );)*
        };

        impl $view {
            /// The length of the header in bytes.
            pub const LEN: usize = $len;

            /// Position of each field.
            pub const LAYOUT: $layout = $layout {
                $($name: $crate::wire::layout::BitRange::new($at, $width),)*
                $($rname: $crate::wire::layout::BitRange::new($rat, $rwidth),)*
            };

            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&self) -> $type {
                    <$type as $crate::wire::layout::Field>::get(&self.0, $at)
                }
            )*

            /// All fields at once; reserved bits are left behind.
            #[inline]
            pub fn repr(&self) -> $repr {
                $repr { $($name: self.$name(),)* }
            }

            /// The bytes.
            #[inline]
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl $repr {
            /// The header as it goes on the wire.
            #[inline]
            pub fn emit(&self) -> $view {
                #[allow(unused_mut, reason = "a header may be all reserved")]
                let mut bytes = [0; $len];
                $(<$type as $crate::wire::layout::Field>::set(&self.$name, &mut bytes, $at);)*
                $view(bytes)
            }
        }

        impl $crate::wire::Header for $view {
            const LAYER: $crate::wire::Layer = $layer;
        }

        impl core::fmt::Debug for $view {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.repr().fmt(f)
            }
        }
    };
}
pub(crate) use header;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_most_significant_of_the_first_byte() {
        let bytes = [0b1010_0101, 0x12, 0x34, 0x56, 0x78];
        assert_eq!(get_bits(&bytes, 0, 1), 1);
        assert_eq!(get_bits(&bytes, 1, 3), 0b010);
        assert_eq!(get_bits(&bytes, 4, 8), 0x51);
        assert_eq!(get_bits(&bytes, 8, 24), 0x0012_3456);
        assert_eq!(get_bits(&bytes, 0, 40), 0xa5_1234_5678);
    }

    #[test]
    fn writing_bits_leaves_the_others_alone() {
        for (start, len) in [(0, 1), (3, 2), (5, 11), (7, 1), (8, 24), (12, 20), (0, 64)] {
            let mut bytes = [0xa5; 8];
            set_bits(&mut bytes, start, len, 0x1234_5678_9abc_def0);
            assert_eq!(get_bits(&bytes, start, len), 0x1234_5678_9abc_def0 & mask(len));
            for bit in (0..64).filter(|bit| !(start..start + len).contains(bit)) {
                assert_eq!(get_bits(&bytes, bit, 1), get_bits(&[0xa5; 8], bit, 1), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_range_outside_the_header_reads_as_nothing() {
        assert_eq!(BitRange::new(8, 8).read(&[1]), None);
        assert_eq!(BitRange::new(0, 72).read(&[0; 9]), None);
        assert_eq!(BitRange::new(4, 8).slice(&[0; 2]), None);
        assert_eq!(BitRange::new(8, 8).slice(&[1, 2]), Some(&[2][..]));
    }
}
