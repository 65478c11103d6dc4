//! Cache of descriptors, which saves asking the kernel.
//!
//! A program closes a descriptor, or makes it a copy of another, by functions that this library
//! stands in front of ([`interpose`](super::interpose)), or behind its back: by a system call, or
//! from within the C library. So what is remembered here is good for a command that succeeds. One
//! that fails or has to wait asks the kernel what the descriptor is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use roce::cm::ChannelId;

use crate::fd_set::FdSet;
use crate::fork::Generation;

/// Descriptors beyond this number are always looked at.
const DESCRIPTORS_MAX: usize = 1 << 20;

/// Maximum number of a descriptor whose channel is remembered.
const REMEMBERED_MAX: usize = 1 << 12;

/// The entry of a descriptor whose channel is not known.
const UNKNOWN: u64 = u64::MAX;

/// Descriptors that may be channels, and their channels.
pub(super) struct Descriptors {
    /// A bit for each that was a channel, until a look at it finds that it is none any more. Other
    /// descriptors cost `write` one look here.
    candidates: FdSet<{ DESCRIPTORS_MAX / 64 }>,
    /// The generation of the process and the channel, or [`UNKNOWN`].
    channels: [AtomicU64; REMEMBERED_MAX],
    /// Number of times descriptors were closed.
    closes: AtomicU64,
}

pub(super) static DESCRIPTORS: Descriptors = Descriptors {
    candidates: FdSet::new(),
    channels: [const { AtomicU64::new(UNKNOWN) }; REMEMBERED_MAX],
    closes: AtomicU64::new(0),
};

/// The channel of a descriptor in this process: a child has channels of the same numbers that are
/// others.
fn entry(channel: ChannelId) -> u64 {
    u64::from(Generation::current().number()) << 32 | u64::from(channel.number())
}

impl Descriptors {
    fn channel(&self, fd: c_int) -> Option<&AtomicU64> {
        self.channels.get(usize::try_from(fd).ok()?)
    }

    #[inline]
    pub(super) fn contains(&self, fd: c_int) -> bool {
        self.candidates.contains(fd).unwrap_or(fd >= 0)
    }

    pub(super) fn insert(&self, fd: c_int) {
        self.candidates.insert(fd);
    }

    pub(super) fn remove(&self, fd: c_int) {
        self.candidates.remove(fd);
    }

    /// Returns the number of times descriptors were closed: to be read before the kernel is asked
    /// what [`remember`](Self::remember) is told.
    pub(super) fn closes(&self) -> u64 {
        self.closes.load(Ordering::SeqCst)
    }

    /// Remembers the channel of a descriptor, unless one was closed meanwhile.
    pub(super) fn remember(&self, fd: c_int, channel: ChannelId, before: u64) {
        if let Some(known) = self.channel(fd) {
            known.store(entry(channel), Ordering::SeqCst);
            if self.closes() != before {
                known.store(UNKNOWN, Ordering::SeqCst);
            }
        }
    }

    /// The channel that a descriptor stood for when the kernel was last asked.
    pub(super) fn remembered(&self, fd: c_int) -> Option<ChannelId> {
        let known = self.channel(fd)?.load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the channel")]
        let channel = ChannelId::from_number(known as u32);
        (known != UNKNOWN && known == entry(channel)).then_some(channel)
    }

    /// Descriptors are going to be closed or to stand for something else.
    pub(super) fn forget(&self, first: c_int, last: c_int) {
        self.closes.fetch_add(1, Ordering::SeqCst);
        let first = usize::try_from(first).unwrap_or(0);
        let count = usize::try_from(last).map_or(0, |last| (last + 1).saturating_sub(first));
        for known in self.channels.iter().skip(first).take(count) {
            if known.load(Ordering::Relaxed) != UNKNOWN {
                known.store(UNKNOWN, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_is_forgotten_when_its_descriptor_is_closed() {
        let known = Box::new(Descriptors {
            candidates: FdSet::new(),
            channels: [const { AtomicU64::new(UNKNOWN) }; REMEMBERED_MAX],
            closes: AtomicU64::new(0),
        });
        let channel = ChannelId::from_number(7);
        for (fd, first, last, kept) in [
            (5, 5, 5, None),
            (5, 6, c_int::MAX, Some(channel)),
            (5, 3, c_int::MAX, None),
            (5, 0, 4, Some(channel)),
            (5, -1, -1, Some(channel)),
        ] {
            known.remember(fd, channel, known.closes());
            assert_eq!(known.remembered(fd), Some(channel));
            known.forget(first, last);
            assert_eq!(known.remembered(fd), kept, "{fd} after {first} to {last}");
        }
        // A close between the look and the note: the number may stand for another file by now.
        let before = known.closes();
        known.forget(9, 9);
        known.remember(9, channel, before);
        assert_eq!(known.remembered(9), None);
        // Numbers that are not remembered.
        let beyond = c_int::try_from(REMEMBERED_MAX).unwrap();
        for fd in [-1, beyond, c_int::MAX] {
            known.remember(fd, channel, known.closes());
            assert_eq!(known.remembered(fd), None, "{fd}");
        }
    }
}
