//! The link that a capture is sent over: frames out, packets in, and both kept for the comparison.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use roce::link::interface::{gid, interfaces};
use roce::link::{self, Frames, Link, Receiver, Sender, raw};
use roce::replay::live::{Envelope, Outgoing, Target, VlanMap};
use roce::time::Instant;
use roce::verbs::Mtu;
use roce::wire::{Batch, Bits, Gid, MacAddr, Path, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connect::Connector;

/// Frames that are kept for the comparison; later ones are not compared with the rules.
const KEPT_MAX: usize = 1 << 20;

/// Maximum time of one sleep, without and with a connection manager.
const ROUND: Duration = Duration::from_millis(100);
const CM_ROUND: Duration = Duration::from_millis(10);

/// A link, opened.
pub(super) struct Wire {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    frames: Option<Box<dyn Frames>>,
    name: String,
    gids: Vec<Gid>,
    mtu: Mtu,
    batch: Batch,
    started: std::time::Instant,
    /// The time of day when it was opened, in nanoseconds.
    epoch: u64,
    /// The hardware addresses of the peer and of this side, for whole frames.
    macs: Option<[MacAddr; 2]>,
    /// Frames that were sent and received, if they are kept.
    kept: Option<Vec<(Instant, Vec<u8>)>>,
    /// Takes packets for queue pair 1, if connections are made by the connection manager.
    connector: Option<Connector>,
}

#[expect(clippy::disallowed_methods, reason = "a live peer lives in real time")]
fn clock() -> (std::time::Instant, u64) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (std::time::Instant::now(), u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Wire {
    /// Opens a link. A VLAN or hardware addresses that are mapped need a raw one.
    pub(super) fn open(spec: &link::Spec, peer: Option<IpAddr>, target: &Target) -> Result<Self> {
        let needs_raw = target.vlan != VlanMap::Keep || target.destination_mac.is_some();
        let link = match spec {
            link::Spec::Raw(interface) if needs_raw => {
                let mut config = raw::Config::new(interface);
                if let VlanMap::Set(tag) = target.vlan {
                    config.vlan = Some(tag & 0xfff);
                }
                if let (Some(mac), Some(peer)) = (target.destination_mac, peer) {
                    config.neighbors.push((peer, mac));
                }
                raw::open(&config).context("--to")?
            }
            _ if needs_raw => bail!("--map vlan and --map mac need --to raw:INTERFACE"),
            _ => spec.open(None).with_context(|| format!("--to {spec}"))?,
        };
        Ok(Self::new(link, target))
    }

    pub(super) fn new(link: Link, target: &Target) -> Self {
        let (started, epoch) = clock();
        let Link { sender, receiver, port, frames, .. } = link;
        let own_mac = || {
            let name = port.interface.as_deref()?;
            interfaces().ok()?.into_iter().find(|it| it.name == name)?.mac
        };
        let source = target.source_mac.or_else(own_mac);
        let macs = target.destination_mac.zip(source).map(|(to, from)| [to, from]);
        Self {
            sender,
            receiver,
            frames,
            name: port.name,
            gids: port.gids,
            mtu: port.mtu,
            batch: Batch::new(1),
            started,
            epoch,
            macs,
            kept: None,
            connector: None,
        }
    }

    /// Starts a connection manager that reaches a peer.
    pub(super) fn start_connector(&mut self, peer: IpAddr) -> Result<()> {
        self.connector = Some(Connector::new(self.source_for(peer)?)?);
        Ok(())
    }

    /// The connection manager.
    pub(super) fn connector(&mut self) -> Result<&mut Connector> {
        self.connector.as_mut().context("there is no connection manager")
    }

    /// Sends what the connection manager has to send.
    pub(super) fn drive(&mut self) -> Result<()> {
        loop {
            let now = self.now();
            let next = self.connector.as_mut().and_then(|connector| connector.poll(now));
            let Some(out) = next else { return Ok(()) };
            self.send(&out)?;
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// The time on this link's clock, which is the time of day at its start.
    #[expect(clippy::disallowed_methods, reason = "a live peer lives in real time")]
    pub(super) fn now(&self) -> Instant {
        let since = std::time::Instant::now().saturating_duration_since(self.started);
        Instant::from_nanos(self.epoch).saturating_add(since)
    }

    /// The address to send from to a peer: one of the same family.
    pub(super) fn source_for(&self, peer: IpAddr) -> Result<Gid> {
        let family = |gid: &&Gid| gid.to_ipv4().is_some() == peer.to_canonical().is_ipv4();
        let link_local = |gid: &Gid| gid.0.starts_with(&[0xfe, 0x80]);
        let wanted = link_local(&gid(peer));
        let mut all = self.gids.iter().filter(|it| **it != Gid::default()).filter(family);
        let found = all.clone().find(|it| link_local(it) == wanted).or_else(|| all.next());
        let found = found.copied();
        found.with_context(|| format!("{} has no address of the family of {peer}", self.name))
    }

    /// Keeps what is sent and received from now on.
    pub(super) fn keep(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Returns the frames that were kept, in the order of time.
    pub(super) fn take_kept(&mut self) -> Vec<(Instant, Vec<u8>)> {
        self.kept.take().unwrap_or_default()
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, out: &Outgoing) -> Result<()> {
        let now = self.now();
        if out.edits.is_empty() {
            self.batch.clear();
            let fits = self.batch.push_as_is(out.path(), &out.packet, out.icrc_flips);
            ensure!(fits, "a packet of {} bytes cannot be sent", out.packet.len());
            self.sender.send(now, &mut self.batch).with_context(|| self.name.clone())?;
        } else {
            let (Some(frames), Some(macs)) = (&self.frames, self.macs) else {
                bail!(
                    "{} cannot send changed headers below the BTH: --to raw:INTERFACE with --map mac=PEER can",
                    self.name
                );
            };
            let envelope = Envelope { macs: Some(macs), ..out.envelope };
            let frame = Outgoing { envelope, ..out.clone() }.emit();
            // A frame that the kernel refuses is as good as lost.
            let _ = frames.send(&frame);
        }
        self.remember(now, || out.emit());
        Ok(())
    }

    fn remember(&mut self, now: Instant, frame: impl FnOnce() -> Vec<u8>) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.len() < KEPT_MAX) {
            kept.push((now, frame()));
        }
    }

    /// Takes in what arrives until a moment, at least once, and returns as soon as something did.
    pub(super) fn receive(
        &mut self,
        until: Instant,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<()> {
        loop {
            self.drive()?;
            let now = self.now();
            let count = self.receiver.receive(now).with_context(|| self.name.clone())?;
            if count > 0 {
                let (kept, connector) = (&mut self.kept, &mut self.connector);
                self.receiver.for_each(&mut |received| {
                    if let Some(kept) = kept.as_mut().filter(|kept| kept.len() < KEPT_MAX) {
                        kept.push((now, frame_of(received)));
                    }
                    if let Some(connector) = connector {
                        connector.handle(now, received);
                    }
                    each(received);
                });
                return self.drive();
            }
            // The connection manager has deadlines of its own.
            let rest = if self.connector.is_some() { CM_ROUND } else { ROUND };
            let left = until.saturating_since(now).min(rest);
            if left.is_zero() {
                return Ok(());
            }
            let mut fds = [PollFd::from_borrowed_fd(self.receiver.fd(), PollFlags::IN)];
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for packets"),
            }
            if crate::interrupt::requested() {
                return Ok(());
            }
        }
    }
}

/// A packet that was received as a frame of a capture. The link has checked its ICRC; it is made
/// anew.
fn frame_of(received: &Received<'_>) -> Vec<u8> {
    let path = Path {
        source: received.source,
        destination: received.destination,
        source_port: received.source_port,
        traffic_class: received.ecn,
        hop_limit: 64,
        sl: 0,
        flow_label: Bits::ZERO,
    };
    let envelope = Envelope { path, id: 0, macs: None, vlan: None };
    Outgoing::new(envelope, received.packet.to_vec()).emit()
}
