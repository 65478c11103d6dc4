//! A queue pair and memory that a server offers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use roce::control::admission::LATER;
use roce::control::limits::{LINE_WAIT, SHOWN_MAX};
use roce::control::text::printable;
use roce::control::{Channel, Incoming, Protocol, Token};
use roce::replay::live::{MemoryMap, Needs, Region, Script, Target};
use roce::replay::{Established, Options, Registered};
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, PKey, Qpn, Service};
use sha2::{Digest, Sha256};

use crate::bench::control::messages::address_of;
use crate::bench::control::offer::{
    Area, Command, FILL_MAX, Grant, RECEIVES_MAX, RegionWish, Report, Wish,
};
use crate::bench::control::plan::Connection;
use crate::bench::path::check_responder;
use crate::bench::tcp;
use crate::interrupt;

/// Interval of keep-alive messages to the server.
const ALIVE: Duration = Duration::from_secs(5);

/// Interval at which it is checked that the server is still there.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Maximum time until a server has destroyed what it offered before.
const TURN_MAX: Duration = Duration::from_secs(20);

/// Bytes below which a difference of memory is not looked for any closer.
const CLOSE: u64 = 16;

/// Server that offers queue pairs and memory.
pub(super) struct Server {
    addresses: Vec<SocketAddr>,
    host: String,
    token: Option<Token>,
    /// Whether the queue pairs may be at another address than the server.
    any_gid: bool,
}

impl Server {
    pub(super) fn find(host: &str, port: u16, token: Option<Token>, any_gid: bool) -> Result<Self> {
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> =
            addresses.with_context(|| format!("--host: cannot find '{host}'"))?.collect();
        ensure!(!addresses.is_empty(), "--host: '{host}' has no address");
        Ok(Self { addresses, host: host.to_owned(), token, any_gid })
    }

    /// The address that packets go to, unless the server says another.
    pub(super) fn address(&self) -> IpAddr {
        let first = self.addresses.first();
        first.map_or_else(|| IpAddr::from([0; 4]), |it| it.ip().to_canonical())
    }

    /// Asks for a queue pair and memory.
    pub(super) fn ask(&self, wish: Wish) -> Result<Offered> {
        let from = address_of(wish.peer.gid);
        let mut failure = None;
        for server in &self.addresses {
            match self.ask_at(*server, from, wish.clone()) {
                Ok(offered) => return Ok(offered),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.context("no address")?).with_context(|| format!("--host {}", self.host))
    }

    /// Asks for an offer, and waits while the server is still destroying what it offered before.
    pub(super) fn ask_in_turn(&self, wish: &Wish) -> Result<Offered> {
        let since = now();
        loop {
            match self.ask(wish.clone()) {
                Err(error)
                    if error.root_cause().to_string().ends_with(LATER)
                        && now().saturating_duration_since(since) < TURN_MAX
                        && !interrupt::requested() =>
                {
                    std::thread::sleep(LOOK);
                }
                answer => return answer,
            }
        }
    }

    fn ask_at(&self, server: SocketAddr, from: IpAddr, wish: Wish) -> Result<Offered> {
        let stream = tcp::connect(Some(from), server, "roce serve --offer")?;
        let mut control = Channel::to_server(stream)?;
        control.open(Protocol::Offer, self.token.as_ref(), &wish)?;
        let grant = Grant::receive(&mut control, &wish)?;
        check_responder(address_of(grant.qp.gid), server.ip(), self.any_gid)?;
        ensure!(
            grant.mtu == wish.mtu,
            "the server's device can do an MTU of {}, and the capture has {}",
            grant.mtu,
            wish.mtu
        );
        Ok(Offered { control, grant, wish, told: now(), looked: now() })
    }
}

/// Returns the request of a script to a server, for a queue pair of this side.
pub(super) fn wish(script: &Script, needs: &Needs, own: (Gid, Qpn), rounds: u32) -> Result<Wish> {
    let connection = match script.service {
        Service::Rc => Connection::Rc,
        Service::Uc => Connection::Uc,
        Service::Ud => Connection::Ud,
        other => bail!("a server offers no queue pair of the kind {other:?}"),
    };
    let mtu = Mtu::from_bytes(usize::from(script.mtu));
    let mtu = mtu.with_context(|| format!("{} is no path MTU", script.mtu))?;
    let peer = Endpoint { gid: own.0, qpn: own.1, psn: script.first_psn };
    let regions = needs.regions.iter().map(|region| RegionWish {
        bytes: region.bytes.len() as u64,
        write: region.rights.write,
        read: region.rights.read,
        atomic: region.rights.atomic,
    });
    let receives = u32::try_from(needs.receives)?.saturating_mul(rounds);
    ensure!(
        rounds == 1 || receives <= RECEIVES_MAX,
        "--loop {rounds}: the messages of all rounds need {receives} receives, and a server offers {RECEIVES_MAX}: use \
         --loop {}",
        RECEIVES_MAX / u32::try_from(needs.receives)?.max(1)
    );
    let receive_bytes = u32::try_from(needs.receive_bytes)?;
    Ok(Wish { connection, mtu, peer, receives, receive_bytes, regions: regions.collect() })
}

/// A queue pair and memory of a server, until this is dropped.
pub(super) struct Offered {
    control: Channel,
    pub(super) grant: Grant,
    wish: Wish,
    told: Instant,
    looked: Instant,
}

#[expect(clippy::disallowed_methods, reason = "a live peer lives in real time")]
fn now() -> Instant {
    Instant::now()
}

impl Offered {
    /// Maps a script onto the offer.
    pub(super) fn map(&self, target: &mut Target, needs: &Needs) {
        target.source = Some(self.wish.peer.gid);
        target.destination = Some(self.grant.qp.gid);
        target.qpn = Some(self.grant.qp.qpn);
        target.source_qpn = Some(self.wish.peer.qpn);
        target.qkey = Some(self.grant.qkey);
        let regions = needs.regions.iter().zip(&self.grant.regions);
        target.memory = regions
            .map(|(region, (address, rkey))| MemoryMap {
                old_rkey: Some(region.rkey),
                old_start: region.start,
                len: Some(region.bytes.len() as u64),
                new_rkey: Some(*rkey),
                new_start: *address,
            })
            .collect();
    }

    /// Tells a judge how the connection was set up, and what memory it has. Both are known, so that
    /// no packet of the capture must tell.
    pub(super) fn tell(&self, options: &mut Options) {
        options.connections.push(Established {
            requester: (self.wish.peer.gid, self.wish.peer.qpn),
            responder: (self.grant.qp.gid, self.grant.qp.qpn),
            first_psn: self.wish.peer.psn,
            mtu: self.grant.mtu,
            pkey: PKey::DEFAULT,
        });
        let regions = self.wish.regions.iter().zip(&self.grant.regions);
        options.regions.extend(regions.map(|(region, (address, rkey))| Registered {
            host: self.grant.qp.gid,
            rkey: *rkey,
            address: *address,
            length: region.bytes,
            access: region.access(),
        }));
    }

    /// Puts into the server's memory what it must hold. It is zero before.
    pub(super) fn fill(&mut self, regions: &[Region]) -> Result<()> {
        for (index, region) in regions.iter().enumerate() {
            let mut offset = 0;
            for piece in region.bytes.chunks(FILL_MAX) {
                if piece.iter().any(|byte| *byte != 0) {
                    let (area, bytes) = (Area::Region(index), piece.to_vec());
                    let command = Command::Fill { area, offset, bytes };
                    self.control.send(&command)?;
                }
                offset += piece.len() as u64;
            }
        }
        // The answer comes when all of it is there.
        self.state().map(drop)
    }

    /// Tells the server from time to time that this side is still there, and fails if the server is
    /// not.
    pub(super) fn keep_alive(&mut self) -> Result<()> {
        if now().saturating_duration_since(self.looked) > LOOK {
            self.looked = now();
            let heard: Result<Incoming<Report>, _> = self.control.try_receive("nothing");
            let heard = heard.context("the server is gone (roce serve --offer)")?;
            if let Incoming::Message(report) = heard {
                return Err(self.control.unexpected(&report, "nothing").into());
            }
        }
        if now().saturating_duration_since(self.told) > ALIVE {
            self.told = now();
            self.control.send_alive()?;
        }
        Ok(())
    }

    fn ask(&mut self, command: &Command) -> Result<Report> {
        self.control.send(command)?;
        Ok(self.control.receive(LINE_WAIT, "a report")?)
    }

    /// The state of the queue pair.
    pub(super) fn state(&mut self) -> Result<String> {
        match self.ask(&Command::State)? {
            Report::State(state) => Ok(printable(&state, SHOWN_MAX)),
            other => Err(self.control.unexpected(&other, "a state").into()),
        }
    }

    /// Returns the number of receives that completed.
    pub(super) fn received(&mut self) -> Result<u64> {
        match self.ask(&Command::Received)? {
            Report::Received(count) => Ok(count),
            other => Err(self.control.unexpected(&other, "a number of receives").into()),
        }
    }

    /// Whether an area holds these bytes; if not, where the first difference is, as closely as it
    /// was looked for.
    pub(super) fn holds(&mut self, area: Area, bytes: &[u8]) -> Result<Option<u64>> {
        let (mut start, mut end) = (0, bytes.len() as u64);
        if self.is_same(area, bytes, start, end)? {
            return Ok(None);
        }
        while end - start > CLOSE {
            let middle = start + (end - start) / 2;
            if self.is_same(area, bytes, start, middle)? {
                start = middle;
            } else {
                end = middle;
            }
        }
        Ok(Some(start))
    }

    fn is_same(&mut self, area: Area, bytes: &[u8], start: u64, end: u64) -> Result<bool> {
        let part = bytes.get(usize::try_from(start)?..usize::try_from(end)?).unwrap_or_default();
        let digest: String = Sha256::digest(part).iter().map(|it| format!("{it:02x}")).collect();
        let command = Command::Digest { area, offset: start, length: end - start };
        match self.ask(&command)? {
            Report::Digest(theirs) => Ok(theirs == digest),
            other => Err(self.control.unexpected(&other, "a digest").into()),
        }
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        // A server that is gone needs no goodbye.
        let _ = self.control.send(&Command::Bye);
    }
}
