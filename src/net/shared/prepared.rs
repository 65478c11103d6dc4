//! A queue pair before it is connected.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use super::{ConnectionInfo, INLINE, PARTS_MAX, Published, RECEIVE_BATCH, Shared, State};
use crate::connect;
use crate::device::{AnyQp, Cq, Mr, MrSlice, Pd};
use crate::net::config::Config;
use crate::net::core::{Core, OwnMemory, PeerRing, receive_id, receives, sends};
use crate::net::directory;
use crate::net::error::Error;
use crate::net::hello;
use crate::net::limits::PUBLISHED_MAX;
use crate::verbs::{Access, Connect, QpState, QpType, RecvWr};

/// A queue pair that has receives and is not connected.
#[derive(Debug)]
pub(in crate::net) struct Prepared {
    pub(in crate::net) qp: AnyQp,
    pub(in crate::net) cq: Cq,
    ring: Mr,
    size: u32,
    config: Config,
    published: Vec<(u64, MrSlice)>,
}

impl Prepared {
    /// Creates a queue pair with its receives, a ring, and a directory of what is published from
    /// the start.
    pub(in crate::net) fn new(
        pd: &Pd,
        config: &Config,
        published: Vec<(u64, MrSlice)>,
    ) -> Result<Self, Error> {
        let (size, window) = (config.ring_bytes(), config.window());
        let depths = [sends(window), receive_depth(window)];
        let cq = pd.context().create_cq_with_events(depths.iter().sum())?;
        let [send_depth, receive_depth] =
            depths.map(|depth| u32::try_from(depth).expect("depths are small"));
        let parts = u32::try_from(PARTS_MAX).expect("a small number");
        let inline = u32::try_from(INLINE).expect("a small number");
        let builder = pd.qp(&cq).depth(send_depth, receive_depth).max_sge(parts, 1);
        let qp = builder.max_inline_data(inline).build_any(QpType::Rc)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let ring = pd.allocate(size as usize + directory::BYTES, access)?;
        for (at, (id, slice)) in published.iter().enumerate() {
            let offset = size as usize + at * directory::ENTRY;
            let entry = directory::emit(*id, &slice.remote());
            ring.write(offset, &entry).map_err(|_| Error::DirectoryFull(PUBLISHED_MAX))?;
        }
        let device = pd.context().device();
        device.bring_up(qp.handle(), QpState::Init, &Connect::default().attributes(None))?;
        for _ in 0..receive_depth {
            let wr = RecvWr { id: receive_id(), sges: &[] };
            qp.post_recv(&wr).map_err(Error::Post)?;
        }
        Ok(Self { qp, cq, ring, size, config: *config, published })
    }

    /// Number of retransmissions without progress.
    pub(in crate::net) fn retries(&self) -> u8 {
        self.config.retries.min(7)
    }

    /// Returns the ring's address and key, for the peer.
    pub(in crate::net) fn ring(&self) -> PeerRing {
        let (addr, rkey) = (self.ring.addr(), self.ring.rkey());
        let send_max = self.config.send_ring_bytes();
        PeerRing { addr, rkey, size: self.size, writes: self.config.window(), send_max }
    }

    /// Returns its hello, with private data for the peer's program.
    pub(in crate::net) fn hello(&self, private_data: &[u8]) -> [u8; hello::TOTAL] {
        let mut hello = hello::emit(&self.ring(), private_data);
        if self.qp.pd().context().device().offers_selective_repeat() {
            hello::offer_selective_repeat(&mut hello);
        }
        hello
    }

    /// The connection, once the queue pair is connected.
    pub(in crate::net) fn connected(
        self,
        mut peer: PeerRing,
        info: ConnectionInfo,
        held: Option<connect::Connection>,
    ) -> Result<Arc<Shared>, Error> {
        let Self { qp, cq, ring, size, config, published } = self;
        // The send queue is for no more than this side's own window.
        peer.writes = peer.writes.min(config.window());
        // It is behind all of the ring, also where a part of that is used.
        let peer_directory = peer.addr.wrapping_add(u64::from(peer.size));
        let send_max = config.send_ring_bytes();
        let chunk = config.chunk_bytes();
        let bytes = OwnMemory::staging_bytes(peer.size.min(send_max), chunk);
        let staging = qp.pd().allocate(bytes, Access::LOCAL_WRITE)?;
        let own = OwnMemory {
            ring: ring.buffer().part(0, size as usize).expect("the ring is longer"),
            ring_size: size,
            staging: staging.buffer().region(),
            chunk,
            writes: config.window(),
            send_max,
        };
        let entry = |(id, memory)| Some(Published { id, _memory: Some(memory) });
        let mut core = Core::new(own, peer, config.message_max);
        // They are posted already.
        let _ = core.poll_receives();
        let state = State {
            core,
            operations: VecDeque::new(),
            first: 0,
            large: VecDeque::new(),
            lent: VecDeque::new(),
            first_lent: 0,
            has_leader: false,
            waiters: 0,
            is_armed: false,
            unpolled: 0,
        };
        Ok(Arc::new(Shared {
            qp,
            cq,
            ring,
            staging,
            config,
            info,
            held,
            eager_max: state.core.eager_max(),
            directory_at: size as usize,
            peer_directory: (peer_directory, peer.rkey),
            published: Mutex::new(published.into_iter().map(entry).collect()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            #[cfg(feature = "tokio")]
            asynchronous: crate::net::asynchronous::Readiness::default(),
        }))
    }
}

fn receive_depth(window: u16) -> usize {
    receives(window) as usize + RECEIVE_BATCH
}
