//! A queue pair and memory for one client, which sends packets of its own making to them.

use std::time::Duration;

use anyhow::{Context, ensure};
use roce::control::Channel;
use roce::control::limits::LINE_WAIT;
use roce::device::{AnyQp, Context as Nic, Cq, Mr, Pd};
use roce::memory::Buffer;
use roce::verbs::{Access, Connect, Endpoint, Mtu, QpCap, RecvWr, Wc, WrId};
use sha2::{Digest, Sha256};

use crate::bench::control::offer::{Area, Command, Grant, Report, Wish};
use crate::bench::control::plan::Connection;
use crate::output::counted;

/// Time for which `received` waits for receives that are about to complete.
const SETTLE: Duration = Duration::from_millis(20);

/// Bytes that are summed at once.
const PIECE: usize = 64 << 10;

/// Objects that were created for a client, and are destroyed with this.
pub(super) struct Offer {
    mtu: Mtu,
    own: Endpoint,
    qp: AnyQp,
    cq: Cq,
    regions: Vec<Mr>,
    receives: Option<Mr>,
    received: u64,
}

impl Offer {
    /// Makes what a client asks for, after it was admitted, and connects the queue pair to the
    /// client's.
    pub(super) fn new(nic: Nic, gid_index: u8, wish: &Wish) -> anyhow::Result<Self> {
        let gid = nic.gids().get(usize::from(gid_index)).copied().unwrap_or_default();
        let mtu = wish.mtu.min(nic.query_port()?.active_mtu);
        let (pd, cq) = (nic.create_pd()?, nic.create_cq(wish.receives as usize + 16)?);
        let (regions, receives) = make_memory(&pd, wish)?;
        let qp = pd.qp(&cq).depth(QpCap::ORDINARY.max_send_wr, wish.receives.max(1));
        let qp = qp.build_any(wish.connection.qp_type()).context("cannot create a queue pair")?;
        let own = Endpoint { gid, ..qp.endpoint()? };
        let how = Connect::default().gid_index(gid_index).mtu(mtu).psn(own.psn);
        if wish.connection == Connection::Ud {
            qp.open_datagram(&how)?;
        } else {
            qp.connect(&wish.peer, &how)?;
        }
        let offer = Self { mtu, own, qp, cq, regions, receives, received: 0 };
        offer.post_receives(wish)?;
        Ok(offer)
    }

    fn post_receives(&self, wish: &Wish) -> anyhow::Result<()> {
        let stride = receive_stride(wish);
        for index in 0..wish.receives as usize {
            let sge = self.receives.as_ref().map(|mr| mr.sge(index * stride, stride));
            self.qp.post_recv(&RecvWr { id: WrId(index as u64), sges: sge.as_slice() })?;
        }
        Ok(())
    }

    /// Sends the client its grant, and serves its requests until it says goodbye. Returns a text of
    /// what the client had.
    pub(super) fn serve(mut self, control: &mut Channel, wish: &Wish) -> anyhow::Result<String> {
        let regions = self.regions.iter().map(|mr| (mr.addr(), mr.rkey()));
        let qkey = Connect::default().qkey;
        let grant = Grant { mtu: self.mtu, qp: self.own, qkey, regions: regions.collect() };
        control.send(&grant)?;
        loop {
            match control.receive(LINE_WAIT, "a command")? {
                Command::Fill { area, offset, bytes } => {
                    let buffer = self.area(area)?;
                    buffer.write(usize::try_from(offset)?, &bytes).context("'fill'")?;
                }
                Command::Digest { area, offset, length } => {
                    let digest = digest(self.area(area)?, offset, length)?;
                    control.send(&Report::Digest(digest))?;
                }
                Command::Received => {
                    let received = self.count_received(wish.receives.into());
                    control.send(&Report::Received(received))?;
                }
                Command::State => {
                    let state = self.qp.state();
                    let state = state.map_or_else(|| "none".to_owned(), |state| state.to_string());
                    control.send(&Report::State(state))?;
                }
                Command::Bye => break,
            }
        }
        let (kind, count) = (wish.connection.name(), wish.regions.len());
        let regions = counted(count as u64, "region");
        Ok(format!("offered a queue pair ({kind}, MTU {}) and {regions}", self.mtu))
    }

    fn area(&self, area: Area) -> anyhow::Result<&Buffer> {
        let found = match area {
            Area::Region(index) => self.regions.get(index),
            Area::Receives => self.receives.as_ref(),
        };
        found.map(Mr::buffer).context("there is no such region")
    }

    /// Returns the number of receives that completed with success. A client may ask while one is
    /// about to.
    fn count_received(&mut self, all: u64) -> u64 {
        for pause in [Duration::ZERO, SETTLE] {
            std::thread::sleep(pause);
            let mut wcs = [Wc::default(); 64];
            loop {
                let count = self.cq.poll_wcs(&mut wcs);
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

/// The regions that a client asks for, and the one of its receives.
fn make_memory(pd: &Pd, wish: &Wish) -> anyhow::Result<(Vec<Mr>, Option<Mr>)> {
    let mut regions = Vec::new();
    for region in &wish.regions {
        regions.push(pd.allocate(usize::try_from(region.bytes)?, region.access())?);
    }
    let bytes = receive_stride(wish) * wish.receives as usize;
    let receives = (bytes > 0).then(|| pd.allocate(bytes, Access::LOCAL_WRITE)).transpose()?;
    Ok((regions, receives))
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
