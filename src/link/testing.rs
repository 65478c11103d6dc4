//! A link for the tests of what is put around links: it keeps what it sends, and receives it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use super::{Link, Port, Receiver, Sender, Sharing};
use crate::time::Instant;
use crate::verbs::Mtu;
use crate::wire::{
    Batch, Bits, BthRepr, Frame, Gid, IcrcVerdict, LinkType, Network, Opcode, Path, Psn, Qpn,
    ROCE_PORT, Received,
};

pub(super) const PATH: Path = Path {
    source: v4(1),
    destination: v4(2),
    source_port: 0xc001,
    traffic_class: 0,
    hop_limit: 64,
    sl: 0,
    flow_label: Bits::ZERO,
};

pub(super) const PATH_V6: Path = Path { source: v6(1), destination: v6(2), ..PATH };

const fn v4(last: u8) -> Gid {
    Gid(Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets())
}

const fn v6(last: u16) -> Gid {
    Gid(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets())
}

/// Packets with these PSNs to queue pair 7.
pub(super) fn batch_of(path: &Path, psns: &[u32]) -> Batch {
    let mut batch = Batch::new(psns.len());
    for psn in psns {
        let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(*psn)).emit();
        assert!(batch.push(path, bth.as_bytes()));
    }
    batch
}

/// Whether a frame's ICRC is right.
pub(super) fn sound(frame: &[u8]) -> bool {
    Frame::parse(LinkType::RAW, frame, ROCE_PORT).icrc() == Some(IcrcVerdict::Ok)
}

/// A packet that was sent: time, PSN, and the frame from the IP header on.
pub(super) type Sent = (u64, u32, Vec<u8>);

/// Keeps what is sent. IPv4 identifications count from `first_id`.
#[derive(Clone, Default)]
pub(super) struct Recorder {
    first_id: u16,
    sent: Arc<Mutex<Vec<Sent>>>,
    taken_in: usize,
}

impl Recorder {
    pub(super) fn counting_from(first_id: u16) -> Self {
        Self { first_id, ..Self::default() }
    }

    pub(super) fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

pub(super) fn link_to(recorder: &Recorder) -> Link {
    let port = Port {
        name: "test".to_owned(),
        gids: vec![PATH.source],
        mtu: Mtu::M1024,
        interface: None,
        sharing: Sharing::Exclusive,
    };
    Link {
        sender: Box::new(recorder.clone()),
        receiver: Box::new(recorder.clone()),
        port,
        frames: None,
        monitor: None,
    }
}

impl Sender for Recorder {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let mut id = self.first_id;
        let mut ids = Vec::new();
        batch.for_each_mut(|path, packet| {
            path.prefix_with_id(packet.len(), id).seal(packet);
            ids.push(id);
            id = id.wrapping_add(1);
        });
        for ((path, packet), id) in batch.iter().zip(ids) {
            let headers = path.headers_with_id(packet.len(), id);
            let (ip, udp) = headers.as_bytes();
            let psn = u32::from_be_bytes([0, packet[9], packet[10], packet[11]]);
            let frame = [ip, udp, packet].concat();
            self.sent.lock().unwrap().push((now.as_nanos(), psn, frame));
        }
        Ok(())
    }
}

impl Receiver for Recorder {
    fn receive(&mut self, _now: Instant) -> io::Result<usize> {
        self.taken_in = self.sent.lock().unwrap().len();
        Ok(self.taken_in)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for (.., bytes) in self.sent.lock().unwrap().iter().take(self.taken_in) {
            let frame = Frame::parse(LinkType::RAW, bytes, ROCE_PORT);
            let (source, destination, network) = match frame.network().unwrap() {
                Network::Ipv4 { header, .. } => {
                    (header.source().into(), header.destination().into(), &header.as_bytes()[..])
                }
                Network::Ipv6 { header, .. } => {
                    (header.source().into(), header.destination().into(), &header.as_bytes()[..])
                }
                Network::Grh(_) => unreachable!("there is none"),
            };
            let source_port = frame.udp().unwrap().source_port();
            let packet = frame.packet().unwrap().bytes();
            each(&Received {
                source,
                destination,
                source_port,
                ecn: 0,
                network,
                packet,
                payload: None,
            });
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        static STDIN: std::sync::OnceLock<io::Stdin> = std::sync::OnceLock::new();
        STDIN.get_or_init(io::stdin).as_fd()
    }
}
