//! A bounded queue of frames, whose memory is used again.

use std::collections::VecDeque;

/// Frames in order, up to a bound.
#[derive(Debug)]
pub(super) struct FrameQueue {
    frames: VecDeque<Vec<u8>>,
    /// Memory of frames that have left.
    spare: Vec<Vec<u8>>,
    max: usize,
}

/// Maximum number of buffers that are kept.
const SPARE_MAX: usize = 64;

impl FrameQueue {
    /// Creates a queue of at most `max` frames.
    pub(super) fn new(max: usize) -> Self {
        Self { frames: VecDeque::new(), spare: Vec::new(), max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a frame of `len` bytes that `fill` writes; returns `None` if there is no room.
    pub(super) fn push<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if self.frames.len() >= self.max {
            return None;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.resize(len, 0);
        let result = fill(&mut frame);
        self.frames.push_back(frame);
        Some(result)
    }

    /// Takes the first frame; give it back with [`recycle`](Self::recycle).
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// Puts a frame back that was taken, as the first.
    pub(super) fn put_back(&mut self, frame: Vec<u8>) {
        self.frames.push_front(frame);
    }

    /// Keeps the memory of a frame for later ones.
    pub(super) fn recycle(&mut self, frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_takes_no_frame_and_keeps_the_order() {
        let mut queue = FrameQueue::new(2);
        for (byte, expected) in [(1, Some(())), (2, Some(())), (3, None)] {
            assert_eq!(queue.push(1, |frame| frame.fill(byte)), expected);
        }
        let first = queue.pop().unwrap();
        assert_eq!(first, [1]);
        queue.recycle(first);
        assert!(queue.push(2, |frame| frame.fill(4)).is_some());
        let second = queue.pop().unwrap();
        queue.put_back(second);
        assert_eq!(
            [queue.pop(), queue.pop(), queue.pop()],
            [Some(vec![2]), Some(vec![4, 4]), None]
        );
    }
}
