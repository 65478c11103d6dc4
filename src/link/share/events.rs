//! The descriptor that is readable when a NIC has to serve others, and what it waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Events that are looked at, at a time.
const READY_MAX: usize = 64;

/// Event source: a descriptor that became readable, or whose other end was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A joiner.
    Listener,
    /// A MAD.
    Gsi,
    /// A forwarded packet, or the offer of a ring.
    Queue,
    /// A request for a ring, of the sending half.
    Request,
    /// The bell of the ring with this number.
    Bell(u32),
    /// The consumer of the ring with this number has gone.
    Producer(u32),
    /// The answer of another address to the visit with this number.
    Visit(u32),
}

impl Source {
    fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Gsi => (1, 0),
            Self::Queue => (2, 0),
            Self::Request => (3, 0),
            Self::Bell(number) => (4, number),
            Self::Producer(number) => (5, number),
            Self::Visit(number) => (6, number),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn of(data: EventData) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let number = data.u64() as u32;
        Some(match data.u64() >> 32 {
            0 => Self::Listener,
            1 => Self::Gsi,
            2 => Self::Queue,
            3 => Self::Request,
            4 => Self::Bell(number),
            5 => Self::Producer(number),
            6 => Self::Visit(number),
            _ => return None,
        })
    }
}

/// Descriptors that a NIC waits for.
#[derive(Clone, Debug)]
pub(crate) struct Events(Arc<OwnedFd>);

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(epoll::create(CreateFlags::CLOEXEC)?)))
    }

    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        // That the other end is closed is always told.
        let wanted = match source {
            Source::Producer(_) => EventFlags::empty(),
            _ => EventFlags::IN,
        };
        Ok(epoll::add(&*self.0, fd, source.data(), wanted)?)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&*self.0, fd)?)
    }

    /// Returns what is ready.
    pub(crate) fn ready(&self) -> Vec<Source> {
        let mut events = Vec::with_capacity(READY_MAX);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&*self.0, spare, Some(&none)).is_err() {
            return Vec::new();
        }
        events.iter().filter_map(|event| Source::of(event.data)).collect()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let all = [
            Source::Listener,
            Source::Gsi,
            Source::Queue,
            Source::Request,
            Source::Bell(0),
            Source::Bell(u32::MAX),
            Source::Producer(7),
            Source::Visit(7),
        ];
        let events = Events::new().unwrap();
        let fds: Vec<_> =
            all.iter().map(|_| super::super::forward::ForwardQueue::new().unwrap()).collect();
        for (fd, source) in fds.iter().zip(all) {
            assert_eq!(Source::of(source.data()), Some(source));
            events.add(fd.fd(), source).unwrap();
        }
        assert!(events.ready().is_empty());
        assert!(fds[4].put(b"bell") && fds[1].put(b"mad") && fds[6].put(b"for none"));
        assert_eq!(events.ready().len(), 2);
        events.remove(fds[1].fd()).unwrap();
        assert_eq!(events.ready(), [Source::Bell(0)]);
    }
}
