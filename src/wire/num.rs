//! A type for every number that has a meaning.
//!
//! The wire is full of 24- and 32-bit integers that must never be mixed up. Each has a type here,
//! with the width the wire gives it, so that a value which does not fit cannot be written down.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use super::layout::{Field, get_bits, set_bits};

/// Declares a number of the wire: a newtype over an integer, of a given width in bits.
macro_rules! number {
    ($(#[$meta:meta])* $name:ident($int:ty), $width:literal bits, $format:literal) => {
        number! { $(#[$meta])* $name($int), $width bits, $format, of which $width count }
    };
    (
        $(#[$meta:meta])*
        $name:ident($int:ty), $width:literal bits, $format:literal, of which $counted:tt count
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            #[doc = concat!("The number `value`; bits above the low ", stringify!($width), " are dropped.")]
            #[inline]
            pub const fn new(value: $int) -> Self {
                Self(value & (<$int>::MAX >> (<$int>::BITS - $counted)))
            }

            /// The number as an integer.
            #[inline]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl Field for $name {
            const WIDTH: usize = $width;

            #[inline(always)]
            #[expect(clippy::cast_possible_truncation, reason = "the type has the field's width")]
            fn get(header: &[u8], start: usize) -> Self {
                Self::new(get_bits(header, start, $width) as $int)
            }

            #[inline(always)]
            fn set(&self, header: &mut [u8], start: usize) {
                set_bits(header, start, $width, u64::from(self.0));
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

/// Number of bits of a sequence number. With `--cfg roce_narrow_psn` they are few, so that tests
/// see sequence numbers wrap all the time; packets from elsewhere are not understood then.
const SEQUENCE_BITS: u32 = if cfg!(roce_narrow_psn) { 12 } else { 24 };

/// Arithmetic of numbers that wrap: they have no order, only distances.
macro_rules! sequence {
    ($($name:ident)*) => {$(
        impl $name {
            /// Returns the number `count` after this one.
            #[inline]
            #[must_use]
            pub const fn plus(self, count: u32) -> Self {
                // Rule: P-01.2.
                Self::new(self.0.wrapping_add(count))
            }

            /// Returns the distance of this number from `base`: negative when it is behind it. A
            /// distance of exactly half the numbers counts as behind.
            #[inline]
            pub const fn since(self, base: Self) -> i32 {
                // Rule: P-03.3.
                const UNUSED: u32 = u32::BITS - SEQUENCE_BITS;
                ((self.0.wrapping_sub(base.0) << UNUSED) as i32) >> UNUSED
            }
        }
    )*};
}

sequence! { Psn Msn }

number! {
    /// A packet sequence number. Numbers wrap at 2^24, so they have no order, only distances.
    Psn(u32), 24 bits, "{}", of which SEQUENCE_BITS count
}

impl Psn {
    /// Half of all numbers: what lies less than this ahead is new, the rest is old.
    pub const HALF: u32 = 1 << (SEQUENCE_BITS - 1);
}

number! {
    /// A queue pair number.
    Qpn(u32), 24 bits, "{:#08x}"
}

impl Qpn {
    /// The subnet manager's queue pair; never on Ethernet.
    pub const SMI: Self = Self(0);
    /// The general services queue pair, to which MADs go.
    pub const GSI: Self = Self(1);
    /// Stands for every queue pair attached to a multicast group.
    pub const MULTICAST: Self = Self(0xff_ffff);
}

number! {
    /// A message sequence number: how many requests the responder has completed. It wraps at 2^24.
    Msn(u32), 24 bits, "{}", of which SEQUENCE_BITS count
}

number! {
    /// An end-to-end context number, of the reliable datagram service.
    EeContext(u32), 24 bits, "{:#08x}"
}

number! {
    /// The number of an XRC shared receive queue.
    XrcSrqn(u32), 24 bits, "{:#08x}"
}

number! {
    /// A partition key: fifteen bits of partition, and whether this is a full member.
    PKey(u16), 16 bits, "{:#06x}"
}

impl PKey {
    /// The default partition, as a full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether the membership bit is set.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether packets may pass between members with these keys: one partition, and not both
    /// limited members.
    pub const fn matches(self, other: Self) -> bool {
        // Rules: P-15.2, T-14.
        let base = self.0 & 0x7fff;
        base != 0 && base == other.0 & 0x7fff && (self.is_full_member() || other.is_full_member())
    }
}

number! {
    /// A queue key, by which a datagram proves that it may enter a queue.
    QKey(u32), 32 bits, "{:#010x}"
}

impl QKey {
    /// Queue key of every packet to or from queue pair 1.
    pub const GSI: Self = Self(0x8001_0000);
}

number! {
    /// A remote key: what a peer must show to reach registered memory.
    RKey(u32), 32 bits, "{:#010x}"
}

/// An unsigned number of `W` bits, at most 32, for fields that need no type of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits<const W: u32>(u32);

impl<const W: u32> Bits<W> {
    /// Nought.
    pub const ZERO: Self = Self(0);

    /// The largest number.
    pub const MAX: Self = Self(u32::MAX >> (32 - W));

    /// The number `value`, or `None` if it needs more than `W` bits.
    #[inline]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The low `W` bits of `value`.
    #[inline]
    pub const fn low(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number as an integer.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const W: u32> Field for Bits<W> {
    const WIDTH: usize = W as usize;

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the type has the field's width")]
    fn get(header: &[u8], start: usize) -> Self {
        Self(get_bits(header, start, W as usize) as u32)
    }

    #[inline(always)]
    fn set(&self, header: &mut [u8], start: usize) {
        set_bits(header, start, W as usize, u64::from(self.0));
    }
}

impl<const W: u32> fmt::Display for Bits<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const WIDTH: usize = <$int>::BITS as usize;

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                trivial_numeric_casts,
                reason = "the type has the field's width"
            )]
            fn get(header: &[u8], start: usize) -> Self {
                get_bits(header, start, Self::WIDTH) as $int
            }

            #[inline(always)]
            fn set(&self, header: &mut [u8], start: usize) {
                set_bits(header, start, Self::WIDTH, u64::from(*self));
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl Field for bool {
    const WIDTH: usize = 1;

    #[inline(always)]
    fn get(header: &[u8], start: usize) -> Self {
        get_bits(header, start, 1) != 0
    }

    #[inline(always)]
    fn set(&self, header: &mut [u8], start: usize) {
        set_bits(header, start, 1, u64::from(*self));
    }
}

impl<const N: usize> Field for [u8; N] {
    const WIDTH: usize = N * 8;

    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "headers are whole arrays and their layouts are checked at compile time"
    )]
    fn get(header: &[u8], start: usize) -> Self {
        debug_assert!(start.is_multiple_of(8), "byte strings are aligned to bytes");
        let mut bytes = [0; N];
        bytes.copy_from_slice(&header[start / 8..start / 8 + N]);
        bytes
    }

    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "headers are whole arrays and their layouts are checked at compile time"
    )]
    fn set(&self, header: &mut [u8], start: usize) {
        debug_assert!(start.is_multiple_of(8), "byte strings are aligned to bytes");
        header[start / 8..start / 8 + N].copy_from_slice(self);
    }
}

/// A type that is a string of bytes on the wire.
macro_rules! octets {
    ($name:ty, $len:literal, $to:expr, $from:expr) => {
        impl Field for $name {
            const WIDTH: usize = $len * 8;

            #[inline(always)]
            fn get(header: &[u8], start: usize) -> Self {
                $from(<[u8; $len] as Field>::get(header, start))
            }

            #[inline(always)]
            fn set(&self, header: &mut [u8], start: usize) {
                Field::set(&$to(self), header, start);
            }
        }
    };
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A global identifier: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address this identifier maps, if it is of that form.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it stands for a multicast group: of IPv6, or the mapped address of one of IPv4.
    pub fn is_multicast(self) -> bool {
        Ipv6Addr::from(self.0).to_canonical().is_multicast()
    }
}

impl From<Ipv4Addr> for Gid {
    #[inline]
    fn from(addr: Ipv4Addr) -> Self {
        Self(addr.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    #[inline]
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

octets!(MacAddr, 6, |mac: &Self| mac.0, Self);
octets!(Gid, 16, |gid: &Self| gid.0, Self);
octets!(Ipv4Addr, 4, Self::octets, Self::from);
octets!(Ipv6Addr, 16, Self::octets, Self::from);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_is_circular() {
        let (near_end, start) = (Psn::new(0xff_fffe), Psn::new(1));
        assert_eq!(start.since(near_end), 3);
        assert_eq!(near_end.since(start), -3);
        assert_eq!(near_end.plus(3), start);
        assert_eq!(start.since(start), 0);
    }

    #[test]
    fn psn_half_a_circle_away_counts_as_behind() {
        let base = Psn::new(5);
        assert!(base.plus(Psn::HALF).since(base) < 0);
        assert!(base.plus(Psn::HALF - 1).since(base) > 0);
    }

    #[test]
    fn two_limited_members_do_not_match() {
        let (full, limited) = (PKey::new(0x9234), PKey::new(0x1234));
        assert!(full.matches(limited) && limited.matches(full) && full.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PKey::DEFAULT));
        assert!(!PKey::new(0x8000).matches(PKey::new(0x8000)), "partition 0 has no members");
    }

    #[test]
    fn numbers_keep_to_their_width() {
        assert_eq!(Psn::new(u32::MAX).get(), 0xff_ffff);
        assert_eq!(Bits::<3>::new(8), None);
        assert_eq!(Bits::<3>::low(9).get(), 1);
        assert_eq!(Bits::<32>::MAX.get(), u32::MAX);
    }

    #[test]
    fn gid_of_an_ipv4_address_maps_it() {
        let gid = Gid::from(Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
    }
}
