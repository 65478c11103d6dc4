//! The device that smoltcp's interface sees: frames that are not RoCE, in queues.

use smoltcp::phy::{self, Device, DeviceCapabilities};
use smoltcp::time::Instant;

use super::queue::FrameQueue;
use crate::link::interface::gid;
use crate::wire::{EtherType, Ethernet, Gid, Ipv4, Ipv6, MacAddr, PROTOCOL_UDP, Udp, view};

/// Maximum number of frames in either queue.
const FRAMES_MAX: usize = 64;

/// Source port of the datagrams by which smoltcp is made to look for a neighbor. They never leave.
pub(super) const PROBE_PORT: u16 = 9;

/// Frames to and from smoltcp's interface.
#[derive(Debug)]
pub(super) struct OwnFrames {
    capabilities: DeviceCapabilities,
    /// Arrived, for the interface.
    pub(super) arrived: FrameQueue,
    /// From the interface, to be sent.
    pub(super) leaving: FrameQueue,
    /// Neighbors that the interface has found since they were last taken.
    pub(super) found: Vec<(Gid, MacAddr)>,
    /// Frames of the interface that did not fit.
    pub(super) lost: u64,
}

impl OwnFrames {
    pub(super) fn new(capabilities: DeviceCapabilities) -> Self {
        let (arrived, leaving) = (FrameQueue::new(FRAMES_MAX), FrameQueue::new(FRAMES_MAX));
        Self { capabilities, arrived, leaving, found: Vec::new(), lost: 0 }
    }
}

impl Device for OwnFrames {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let frame = self.arrived.pop()?;
        let Self { arrived, leaving, found, lost, .. } = self;
        Some((RxToken { frame, arrived }, TxToken { leaving, found, lost }))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        let Self { leaving, found, lost, .. } = self;
        Some(TxToken { leaving, found, lost })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

/// A frame for the interface.
pub(super) struct RxToken<'a> {
    frame: Vec<u8>,
    arrived: &'a mut FrameQueue,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        let result = read(&self.frame);
        self.arrived.recycle(self.frame);
        result
    }
}

/// Room for a frame of the interface.
pub(super) struct TxToken<'a> {
    leaving: &'a mut FrameQueue,
    found: &'a mut Vec<(Gid, MacAddr)>,
    lost: &'a mut u64,
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        if let Some(neighbor) = probed(&frame) {
            // There are fewer probes than this at once.
            self.found.push(neighbor);
        } else if self.leaving.push(len, |place| place.copy_from_slice(&frame)).is_none() {
            *self.lost += 1;
        }
        result
    }
}

/// The neighbor that a probe was for, if the frame is one.
fn probed(frame: &[u8]) -> Option<(Gid, MacAddr)> {
    let ethernet = view::<Ethernet>(frame, 0).ok()?;
    let (destination, protocol, udp_at) = match ethernet.ethertype() {
        EtherType::IPV4 => {
            let ip = view::<Ipv4>(frame, Ethernet::LEN).ok()?;
            (gid(ip.destination().into()), ip.protocol(), Ethernet::LEN + Ipv4::LEN)
        }
        EtherType::IPV6 => {
            let ip = view::<Ipv6>(frame, Ethernet::LEN).ok()?;
            (gid(ip.destination().into()), ip.next_header(), Ethernet::LEN + Ipv6::LEN)
        }
        _ => return None,
    };
    let udp = view::<Udp>(frame, udp_at).ok()?;
    let is_probe = protocol == PROTOCOL_UDP && udp.source_port() == PROBE_PORT;
    is_probe.then(|| (destination, ethernet.destination()))
}
