//! Raw packets: receives frames of any protocol for flow rules.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::SoftNic;
use super::event_queue::wait_readable;
use super::shared::Shared;
use crate::link::{Frames, Thread};
use crate::verbs::{
    CqHandle, CreateError, DestroyError, Errno, FlowHandle, FlowRule, PdHandle, QpHandle, Rss,
    WqHandle, WqState,
};
use crate::wire::Qpn;

/// Receives frames while there are flow rules, in a thread of its own: frames of any protocol may be many, and RoCE packets
/// must not wait behind them.
pub(super) struct Listener {
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
    pub(super) fn new(frames: Arc<dyn Frames>) -> Self {
        Self { frames, running: Mutex::default() }
    }

    /// Adds a flow rule; the first starts the thread.
    fn add(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &mut *running {
            running.rules += 1;
            return Ok(());
        }
        *running = Some(self.start(shared)?);
        Ok(())
    }

    fn start(&self, shared: &Arc<Shared>) -> io::Result<Running> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let thread_doorbell = doorbell.try_clone()?;
        let stopped = Arc::new(AtomicBool::new(false));
        self.frames.listen(true)?;
        let (frames, shared, stop) =
            (Arc::clone(&self.frames), Arc::clone(shared), Arc::clone(&stopped));
        let thread = crate::link::spawn(c"roce frames", move || {
            let run = || receive_frames(&*frames, &shared, &thread_doorbell, &stop);
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                shared.signals.fail();
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
    fn remove(&self) {
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
fn receive_frames(frames: &dyn Frames, shared: &Shared, doorbell: &OwnedFd, stop: &AtomicBool) {
    let mut frame = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let failed = loop {
            match frames.receive(&mut frame) {
                Ok(true) => shared.receive_frame(&frame),
                Ok(false) => break false,
                Err(_) => break true,
            }
        };
        let _ = if failed {
            // Its descriptor may be readable for ever.
            wait_readable(&[doorbell.as_fd()], Some(RETRY_INTERVAL))
        } else {
            wait_readable(&[doorbell.as_fd(), frames.fd()], None)
        };
    }
}

/// Time between two attempts to receive frames from an interface that gives an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl Running {
    fn end(self, frames: &dyn Frames) {
        self.stopped.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        // A panic was reported as a failure of the NIC.
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

impl SoftNic {
    /// Whether the NIC supports raw packet QPs.
    pub fn has_raw_packets(&self) -> bool {
        self.listener.is_some()
    }

    /// Creates a flow rule, which steers frames to a raw packet QP.
    pub fn create_flow(&self, qp: QpHandle, rule: FlowRule) -> Result<FlowHandle, CreateError> {
        let Some(listener) = &self.listener else {
            return Err(CreateError::Invalid("the link carries no frames"));
        };
        let flow = self.command(|engine| engine.create_flow(qp, rule))?;
        if let Err(error) = listener.add(&self.shared) {
            let _ = self.destroy_in_engine(flow);
            let code = error.raw_os_error().map_or(Errno::ENOMEM, Errno);
            return Err(CreateError::Refused(code));
        }
        Ok(flow)
    }

    /// Destroys a flow rule.
    pub fn destroy_flow(&self, flow: FlowHandle) -> Result<(), DestroyError> {
        self.destroy_in_engine(flow)?;
        if let Some(listener) = &self.listener {
            listener.remove();
        }
        Ok(())
    }

    /// Creates a WQ: a receive queue without a queue pair, in the state RESET.
    pub fn create_wq(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<WqHandle, CreateError> {
        self.command(|engine| engine.create_wq(pd, cq, max_wr, max_sge))
    }

    /// Returns the number of a WQ, which its completions carry.
    pub fn wq_number(&self, wq: WqHandle) -> Option<Qpn> {
        self.shared.core().engine.wq_number(wq)
    }

    /// Changes the state of a WQ.
    pub fn modify_wq(&self, wq: WqHandle, state: WqState) -> Result<(), CreateError> {
        self.command(|engine| engine.modify_wq(wq, state))
    }

    /// Destroys a WQ that no RSS indirection table refers to.
    pub fn destroy_wq(&self, wq: WqHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_wq(wq))
    }

    /// Creates a raw packet QP that receives into several WQs by RSS. It is ready at once, and never completes anything to
    /// `cq`.
    pub fn create_rss_qp(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        spread: Rss,
    ) -> Result<QpHandle, CreateError> {
        self.command(|engine| engine.create_rss_qp(pd, cq, spread))
    }

    fn destroy_in_engine(&self, flow: FlowHandle) -> Result<(), DestroyError> {
        self.command(|engine| engine.destroy_flow(flow))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::device::Device;
    use crate::link::{cable, without_threads};
    use crate::verbs::{FlowKind, QpCap, QpCreate, QpInitAttr, QpType};
    use crate::wire::Gid;

    /// Frames of an interface on which nothing arrives.
    struct Silent {
        listening: Arc<AtomicBool>,
        fd: OwnedFd,
    }

    impl Frames for Silent {
        fn len_max(&self) -> usize {
            1518
        }

        fn send(&self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn listen(&self, listen: bool) -> io::Result<()> {
            self.listening.store(listen, Ordering::Release);
            Ok(())
        }

        fn receive(&self, _: &mut Vec<u8>) -> io::Result<bool> {
            Ok(false)
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }

    #[test]
    fn rule_whose_thread_is_refused_leaves_no_rule_and_no_listener() {
        let [near, far] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
        let (mut link, _other) = cable(near, far).unwrap();
        let listening = Arc::new(AtomicBool::new(false));
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        link.frames = Some(Box::new(Silent { listening: Arc::clone(&listening), fd }));
        let nic = SoftNic::start(link).unwrap();
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(4).unwrap());
        let cap = QpCap { max_recv_wr: 1, max_recv_sge: 1, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::RawPacket, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = nic.create_qp(pd, create).unwrap();
        let all = FlowRule { kind: FlowKind::AllDefault, priority: 0, headers: Vec::new() };

        let refused = without_threads(|| nic.create_flow(qp, all.clone()));
        assert_eq!(refused, Err(CreateError::Refused(Errno(libc::EAGAIN))));
        assert!(!listening.load(Ordering::Acquire), "the interface queues frames for no thread");
        // A queue pair with a rule could not be destroyed.
        nic.destroy_qp(qp).unwrap();

        // The next attempt starts from the beginning.
        let qp = nic.create_qp(pd, create).unwrap();
        let flow = nic.create_flow(qp, all).unwrap();
        assert!(listening.load(Ordering::Acquire));
        nic.destroy_flow(flow).unwrap();
        assert!(!listening.load(Ordering::Acquire));
    }
}
