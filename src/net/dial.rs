//! Connections of devices without a connection manager: both sides exchange their queue pairs and
//! hellos over a TCP connection.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::core::PeerRing;
use super::error::Error;
use super::hello;
use super::shared::{ConnectionInfo, Prepared};
use crate::device::AnyQp;
use crate::verbs::{Connect, ConnectError, Endpoint, Mtu, RetryCount};
use crate::wire::{Bits, Gid, Psn, Qpn};

/// Length of an offer: GID, QPN, PSN, MTU, and the hello.
pub(super) const OFFER: usize = 16 + 4 + 4 + 2 + hello::TOTAL;

/// Answers to an offer.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;

/// A connection to a peer.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) ring: PeerRing,
    pub(super) info: ConnectionInfo,
}

/// Message of each side: its queue pair, its MTU and its hello.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    end: Endpoint,
    /// MTU of the port, in bytes.
    mtu: u16,
    pub(super) hello: [u8; hello::TOTAL],
}

impl Offer {
    fn of(qp: &AnyQp, hello: [u8; hello::TOTAL]) -> Result<Self, Error> {
        let port = qp.pd().context().query_port()?;
        let mut end = qp.endpoint()?;
        // The first GID that is set.
        let gids = qp.pd().context().gids();
        let used = gids.iter().find(|gid| **gid != Gid::default());
        end.gid = *used.ok_or(Error::QueuePair(ConnectError::NotFound))?;
        let mtu = u16::try_from(port.active_mtu.bytes()).unwrap_or(u16::MAX);
        Ok(Self { end, mtu, hello })
    }

    fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let (qpn, psn) = (self.end.qpn.get().to_be_bytes(), self.end.psn.get().to_be_bytes());
        let mtu = self.mtu.to_be_bytes();
        let bytes = [&self.end.gid.0[..], &qpn, &psn, &mtu, &self.hello].concat();
        stream.write_all(&bytes)
    }

    fn receive(stream: &mut TcpStream) -> io::Result<Self> {
        let mut bytes = [0; OFFER];
        stream.read_exact(&mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    pub(super) fn parse(bytes: &[u8; OFFER]) -> Self {
        let (gid, rest) = bytes.split_first_chunk().expect("16 bytes");
        let (qpn, rest) = rest.split_first_chunk().expect("4 bytes");
        let (psn, rest) = rest.split_first_chunk().expect("4 bytes");
        let (mtu, rest) = rest.split_first_chunk().expect("2 bytes");
        let (hello, _) = rest.split_first_chunk().expect("the rest");
        let number = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes) & 0xff_ffff;
        let (qpn, psn) = (Qpn::new(number(qpn)), Psn::new(number(psn)));
        let end = Endpoint { gid: Gid(*gid), qpn, psn };
        Self { end, mtu: u16::from_be_bytes(*mtu), hello: *hello }
    }
}

/// Takes a queue pair to RTS, connected to that of an offer.
fn connect_qp(prepared: &Prepared, own: &Offer, peer: &Offer) -> Result<(), Error> {
    let qp = &prepared.qp;
    let mtu = Mtu::from_bytes(own.mtu.min(peer.mtu).into());
    let gids = qp.pd().context().gids();
    let index = gids.iter().position(|gid| *gid == own.end.gid).unwrap_or_default();
    let gid_index = u8::try_from(index).unwrap_or_default();
    let how = Connect::default().mtu(mtu.ok_or(Error::Foreign)?).gid_index(gid_index);
    let how = how.retry_cnt(RetryCount(Bits::low(prepared.retries().into())));
    let agreed = [own, peer].iter().all(|side| hello::offers_selective_repeat(&side.hello));
    let how = how.selective_repeat(agreed);
    Ok(qp.connect(&peer.end, &how)?)
}

fn info(stream: &TcpStream, private_data: &[u8]) -> ConnectionInfo {
    let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
    ConnectionInfo { local, peer, private_data: private_data.to_vec() }
}

/// Opens a TCP connection, from the address `from` of this machine if it is given.
fn connect_tcp(from: Option<IpAddr>, to: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect_timeout(&to.into(), timeout)?;
    Ok(socket.into())
}

/// Connects a queue pair to that of a listener at `to`.
pub(super) fn connect(
    prepared: &Prepared,
    from: Option<IpAddr>,
    to: SocketAddr,
    hello: &[u8; hello::TOTAL],
    timeout: Duration,
) -> Result<Dialed, Error> {
    let mut stream = connect_tcp(from, to, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    let own = Offer::of(&prepared.qp, *hello)?;
    own.send(&mut stream)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    let peer = Offer::receive(&mut stream)?;
    if answer != [ACCEPTED] {
        return Err(Error::Refused { private_data: hello::refusal(&peer.hello) });
    }
    let (ring, private_data) = hello::parse(&peer.hello).ok_or(Error::Foreign)?;
    connect_qp(prepared, &own, &peer)?;
    // The peer may send from now on.
    stream.write_all(&[ACCEPTED])?;
    Ok(Dialed { ring, info: info(&stream, private_data) })
}

/// Accepts the offer of a peer: connects a queue pair to the peer's, and answers. The peer sends
/// [`ACCEPTED`] once its queue pair is connected.
pub(super) fn accept(
    prepared: &Prepared,
    stream: &mut TcpStream,
    peer: &Offer,
    hello: &[u8; hello::TOTAL],
) -> Result<Dialed, Error> {
    let (ring, private_data) = hello::parse(&peer.hello).ok_or(Error::Foreign)?;
    let own = Offer::of(&prepared.qp, *hello)?;
    connect_qp(prepared, &own, peer)?;
    stream.write_all(&[ACCEPTED])?;
    own.send(stream)?;
    Ok(Dialed { ring, info: info(stream, private_data) })
}

/// Refuses a peer.
pub(super) fn refuse(mut stream: TcpStream, private_data: &[u8]) -> io::Result<()> {
    let mut bytes = vec![REFUSED];
    bytes.resize(1 + OFFER - hello::TOTAL, 0);
    bytes.extend(hello::emit_refusal(private_data));
    bytes.resize(1 + OFFER, 0);
    stream.write_all(&bytes)
}
