//! A queue pair and memory for one client, which sends packets of its own making to them.

use std::time::Duration;

use anyhow::{Context, ensure};
use roce::memory::Buffer;
use roce::verbs::{
    Access, Connect, CqHandle, Device, Endpoint, MrHandle, Mtu, PdHandle, QpCap, QpCreate,
    QpHandle, QpInitAttr, RecvWr, Sge, Wc, WrId,
};
use sha2::{Digest, Sha256};

use crate::bench::control::Control;
use crate::bench::control::offer::{Area, Command, Grant, Wish};
use crate::bench::control::plan::Connection;

/// How long `received` waits for receives that are about to complete.
const SETTLE: Duration = Duration::from_millis(20);

/// Bytes that are summed at once.
const PIECE: usize = 64 << 10;

/// What was made for a client; it is destroyed with this.
pub(super) struct Offer<'a> {
    nic: &'a dyn Device,
    mtu: Mtu,
    own: Endpoint,
    qp: Option<QpHandle>,
    cq: Option<CqHandle>,
    pd: PdHandle,
    regions: Vec<(Buffer, MrHandle)>,
    receives: Option<(Buffer, MrHandle)>,
    received: u64,
}

impl<'a> Offer<'a> {
    /// Makes what a client asks for, after it was admitted, and connects the queue pair to the client's.
    pub(super) fn new(nic: &'a dyn Device, gid_index: u8, wish: &Wish) -> anyhow::Result<Self> {
        let gids = nic.gids();
        let gid = gids.get(usize::from(gid_index)).copied().unwrap_or_default();
        let mtu = wish.mtu.min(nic.query_port()?.active_mtu);
        let own = Endpoint { gid, ..wish.peer };
        let pd = nic.create_pd()?;
        let (regions, receives) = (Vec::new(), None);
        let mut offer =
            Self { nic, mtu, own, qp: None, cq: None, pd, regions, receives, received: 0 };
        offer.make_memory(wish)?;
        let cq = nic.create_cq(wish.receives as usize + 16)?;
        offer.cq = Some(cq);
        let cap = QpCap { max_recv_wr: wish.receives.max(1), ..QpCap::ORDINARY };
        let init = QpInitAttr { qp_type: wish.connection.qp_type(), cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = nic.create_qp(pd, create).context("cannot make a queue pair")?;
        offer.qp = Some(qp);
        offer.own = Endpoint { gid, ..nic.endpoint(qp)? };
        let how = Connect { gid_index, mtu, psn: Some(offer.own.psn), ..Connect::default() };
        if wish.connection == Connection::Ud {
            nic.open_datagram(qp, &how)?;
        } else {
            nic.connect(qp, &wish.peer, &how)?;
        }
        offer.post_receives(wish)?;
        Ok(offer)
    }

    fn make_memory(&mut self, wish: &Wish) -> anyhow::Result<()> {
        for region in &wish.regions {
            let buffer = Buffer::try_new(usize::try_from(region.bytes)?)?;
            let mr = self.nic.register(self.pd, &buffer, region.access())?;
            self.regions.push((buffer, mr));
        }
        let bytes = receive_stride(wish) * wish.receives as usize;
        if bytes > 0 {
            let buffer = Buffer::try_new(bytes)?;
            let mr = self.nic.register(self.pd, &buffer, Access::LOCAL_WRITE)?;
            self.receives = Some((buffer, mr));
        }
        Ok(())
    }

    fn post_receives(&self, wish: &Wish) -> anyhow::Result<()> {
        let (Some(qp), stride) = (self.qp, receive_stride(wish)) else { return Ok(()) };
        for index in 0..wish.receives as usize {
            let sge = self.receives.as_ref().map(|(buffer, mr)| Sge {
                addr: buffer.addr() + (index * stride) as u64,
                length: u32::try_from(stride).unwrap_or(u32::MAX),
                lkey: mr.lkey(),
            });
            let id = WrId(index as u64);
            self.nic.post_recv(qp, &RecvWr { id, sges: sge.as_slice() })?;
        }
        Ok(())
    }

    /// Tells the client what it has, and does what it asks for until it says goodbye. Returns what it had, in words.
    pub(super) fn serve(mut self, control: &mut Control, wish: &Wish) -> anyhow::Result<String> {
        let regions = self.regions.iter().map(|(buffer, mr)| (buffer.addr(), mr.rkey()));
        let qkey = Connect::default().qkey;
        let grant = Grant { mtu: self.mtu, qp: self.own, qkey, regions: regions.collect() };
        control.send(&grant.to_lines())?;
        loop {
            match Command::parse(&control.line()?)? {
                Command::Fill { area, offset, bytes } => {
                    let buffer = self.area(area)?;
                    buffer.write(usize::try_from(offset)?, &bytes).context("'fill'")?;
                }
                Command::Digest { area, offset, length } => {
                    let digest = digest(self.area(area)?, offset, length)?;
                    control.send(&format!("digest {digest}\n"))?;
                }
                Command::Received => {
                    let received = self.count_received(wish.receives.into());
                    control.send(&format!("received {received}\n"))?;
                }
                Command::State => {
                    let state = self.qp.and_then(|qp| self.nic.qp_state(qp));
                    let state = state.map_or_else(|| "none".to_owned(), |state| state.to_string());
                    control.send(&format!("state {state}\n"))?;
                }
                Command::Bye => break,
            }
        }
        let (kind, count) = (wish.connection.name(), wish.regions.len());
        Ok(format!("offered a queue pair ({kind}, MTU {}) and {count} regions", self.mtu))
    }

    fn area(&self, area: Area) -> anyhow::Result<&Buffer> {
        let found = match area {
            Area::Region(index) => self.regions.get(index),
            Area::Receives => self.receives.as_ref(),
        };
        found.map(|(buffer, _)| buffer).context("there is no such region")
    }

    /// How many receives completed with success. A client may ask while one is about to.
    fn count_received(&mut self, all: u64) -> u64 {
        let Some(cq) = self.cq else { return 0 };
        for pause in [Duration::ZERO, SETTLE] {
            std::thread::sleep(pause);
            let mut wcs = [Wc::default(); 64];
            loop {
                let count = self.nic.poll_cq(cq, &mut wcs);
                let good = wcs.iter().take(count).filter(|wc| wc.is_success()).count();
                self.received += good as u64;
                if count == 0 {
                    break;
                }
            }
            if self.received >= all {
                break;
            }
        }
        self.received
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        // What cannot be destroyed goes with the NIC.
        if let Some(qp) = self.qp {
            let _ = self.nic.destroy_qp(qp);
        }
        for (_, mr) in self.regions.iter().chain(&self.receives) {
            let _ = self.nic.deregister(*mr);
        }
        if let Some(cq) = self.cq {
            let _ = self.nic.destroy_cq(cq);
        }
        let _ = self.nic.destroy_pd(self.pd);
    }
}

/// The memory of one receive: datagrams come with 40 bytes before them.
fn receive_stride(wish: &Wish) -> usize {
    let grh = if wish.connection == Connection::Ud { 40 } else { 0 };
    wish.receive_bytes as usize + grh
}

/// The SHA-256 of some bytes of a buffer, as hexadecimal digits.
fn digest(buffer: &Buffer, offset: u64, length: u64) -> anyhow::Result<String> {
    let inside = offset.checked_add(length).is_some_and(|end| end <= buffer.len() as u64);
    ensure!(inside, "'digest' of bytes that are not there");
    let (mut sum, mut piece) = (Sha256::new(), vec![0; PIECE]);
    let (mut at, end) = (usize::try_from(offset)?, usize::try_from(offset + length)?);
    while at < end {
        let len = PIECE.min(end - at);
        let bytes = piece.get_mut(..len).unwrap_or_default();
        buffer.read(at, bytes)?;
        sum.update(bytes);
        at += len;
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
