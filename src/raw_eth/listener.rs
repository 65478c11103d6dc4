//! The thread that receives frames while there are flow rules. Frames of any protocol may be many,
//! and RoCE packets must not wait behind them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::link::{Frames, Thread};

/// Time between two attempts to receive frames from an interface that gives an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Takes the frames that arrive.
pub(crate) trait FrameSink: Send + Sync {
    /// Delivers a frame.
    fn frame(&self, frame: &[u8]);

    /// The thread has panicked: no frames will come.
    fn failed(&self);
}

/// Receives frames of an interface in a thread, while there are flow rules.
pub(crate) struct Listener {
    frames: Arc<dyn Frames>,
    running: Mutex<Option<Running>>,
}

struct Running {
    /// Number of flow rules.
    rules: usize,
    stopped: Arc<AtomicBool>,
    doorbell: OwnedFd,
    thread: Thread,
}

impl Listener {
    pub(crate) fn new(frames: Arc<dyn Frames>) -> Self {
        Self { frames, running: Mutex::default() }
    }

    /// Adds a flow rule; the first starts the thread.
    pub(crate) fn add(&self, sink: Arc<impl FrameSink + 'static>) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &mut *running {
            running.rules += 1;
            return Ok(());
        }
        *running = Some(self.start(sink)?);
        Ok(())
    }

    fn start(&self, sink: Arc<impl FrameSink + 'static>) -> io::Result<Running> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let thread_doorbell = doorbell.try_clone()?;
        let stopped = Arc::new(AtomicBool::new(false));
        self.frames.listen(true)?;
        let (frames, stop) = (Arc::clone(&self.frames), Arc::clone(&stopped));
        let thread = crate::link::spawn(c"roce frames", move || {
            let run = || receive_frames(&*frames, &*sink, &thread_doorbell, &stop);
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                sink.failed();
            }
        });
        match thread {
            Ok(thread) => Ok(Running { rules: 1, stopped, doorbell, thread }),
            Err(error) => {
                // Otherwise the kernel would keep queueing frames that no thread receives.
                let _ = self.frames.listen(false);
                Err(error)
            }
        }
    }

    /// Removes a flow rule; the last ends the thread.
    pub(crate) fn remove(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = running.take_if(|running| {
            running.rules -= 1;
            running.rules == 0
        }) else {
            return;
        };
        last.end(&*self.frames);
    }
}

/// Receives frames until the doorbell rings and `stop` is set.
fn receive_frames(
    frames: &dyn Frames,
    sink: &impl FrameSink,
    doorbell: &OwnedFd,
    stop: &AtomicBool,
) {
    let retry = Timespec::try_from(RETRY_INTERVAL).ok();
    let mut frame = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let failed = loop {
            match frames.receive(&mut frame) {
                Ok(true) => sink.frame(&frame),
                Ok(false) => break false,
                Err(_) => break true,
            }
        };
        let [doorbell, frames] =
            [doorbell.as_fd(), frames.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = if failed {
            // Its descriptor may be readable for ever.
            poll(&mut [doorbell], retry.as_ref())
        } else {
            poll(&mut [doorbell, frames], None)
        };
    }
}

impl Running {
    fn end(self, frames: &dyn Frames) {
        self.stopped.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        // A panic was reported by `failed`.
        let _ = self.thread.join();
        // An interface that is gone has no frames any more.
        let _ = frames.listen(false);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.take() {
            running.end(&*self.frames);
        }
    }
}
