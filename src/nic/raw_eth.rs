//! Raw packet queue pairs of a soft NIC.

use std::sync::Arc;

use super::core::Core;
use super::failure::Refusal;
use super::shared::Shared;
use super::{Poster, SoftNic};
use crate::engine::Engine;
use crate::link::Frames;
use crate::raw_eth::{FlowHandle, FlowRule, FrameSink, Rss, Steering, WqHandle, WqState};
use crate::time::Instant;
use crate::verbs::{
    CqHandle, CreateError, DestroyError, Errno, PdHandle, PostError, QpHandle, RecvWr,
};
use crate::wire::Qpn;

/// Returns the steering of a port without rules.
pub(super) fn steering(frames: Option<&dyn Frames>) -> Steering {
    Steering::new(frames.is_some_and(Frames::is_echoing))
}

impl Shared {
    /// Sends the raw frames that wait. A frame that the network refuses is lost.
    pub(super) fn send_frames(&self, now: Instant, frames: &dyn Frames) {
        let next = || {
            let mut core = self.core();
            let Core { steering, engine, .. } = &mut *core;
            let frame = steering.poll_frame(engine, now);
            core.deliver();
            frame
        };
        while let Some(frame) = next() {
            let _ = frames.send(&frame);
        }
    }
}

impl FrameSink for Shared {
    fn frame(&self, frame: &[u8]) {
        if self.signals.has_failed() {
            return;
        }
        let now = self.now();
        let mut core = self.core();
        let Core { steering, engine, .. } = &mut *core;
        steering.handle_frame(engine, now, frame);
        core.deliver();
    }

    fn failed(&self) {
        self.signals.fail();
    }
}

impl Poster<'_> {
    /// Posts a receive work request to a WQ.
    #[inline]
    pub fn wq_recv(&mut self, wq: WqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        Steering::post_wq_recv(self.engine()?, wq, wr)
    }
}

// For `tools/ibverbs`: no promise is made about it.
#[doc(hidden)]
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
        let flow = self.steer(|steering, engine| steering.create_flow(engine, qp, rule))?;
        if let Err(error) = listener.add(Arc::clone(&self.shared)) {
            let _ = self.remove_rule(flow);
            let code = error.raw_os_error().map_or(Errno::ENOMEM, Errno);
            return Err(CreateError::Refused(code));
        }
        Ok(flow)
    }

    /// Destroys a flow rule.
    pub fn destroy_flow(&self, flow: FlowHandle) -> Result<(), DestroyError> {
        self.remove_rule(flow)?;
        if let Some(listener) = &self.listener {
            listener.remove();
        }
        Ok(())
    }

    fn remove_rule(&self, flow: FlowHandle) -> Result<(), DestroyError> {
        self.steer(|steering, _| steering.destroy_flow(flow))
    }

    /// Creates a WQ: a receive queue without a queue pair, in the state RESET.
    pub fn create_wq(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<WqHandle, CreateError> {
        self.steer(|steering, engine| steering.create_wq(engine, pd, cq, max_wr, max_sge))
    }

    /// Returns the number of a WQ, which its completions carry.
    pub fn wq_number(&self, wq: WqHandle) -> Option<Qpn> {
        let core = self.shared.core();
        core.steering.wq_number(&core.engine, wq)
    }

    /// Changes the state of a WQ.
    pub fn modify_wq(&self, wq: WqHandle, state: WqState) -> Result<(), CreateError> {
        self.steer(|steering, engine| steering.modify_wq(engine, wq, state))
    }

    /// Destroys a WQ that no RSS indirection table refers to.
    pub fn destroy_wq(&self, wq: WqHandle) -> Result<(), DestroyError> {
        self.steer(|steering, engine| steering.destroy_wq(engine, wq))
    }

    /// Creates a raw packet QP that receives into several WQs by RSS. It is ready at once, and
    /// never completes anything to `cq`.
    pub fn create_rss_qp(
        &self,
        pd: PdHandle,
        cq: CqHandle,
        rss: Rss,
    ) -> Result<QpHandle, CreateError> {
        self.steer(|steering, engine| steering.create_rss_qp(engine, pd, cq, rss))
    }

    /// Runs a command of flow steering. What was deferred to the next poll is transmitted first.
    pub(super) fn steer<T: Refusal>(
        &self,
        command: impl FnOnce(&mut Steering, &mut Engine) -> T,
    ) -> T {
        self.shared.flush();
        self.post_to(|core| command(&mut core.steering, &mut core.engine))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::Ipv4Addr;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::device::Device;
    use crate::link::{cable, without_threads};
    use crate::raw_eth::FlowKind;
    use crate::verbs::{QpCap, QpCreate, QpInitAttr, QpType};
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
