//! `--connect`: the connections that requests are mapped onto, made by the connection manager over
//! the same link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use roce::cm::{
    ChannelId, CmId, Config, ConnParam, Device, DeviceId, Event, EventKind, Manager, Received,
    Resolution, Retransmission, Transmit,
};
use roce::connect::Error;
use roce::replay::live::{Envelope, Outgoing, Script, Target};
use roce::time::Instant;
use roce::verbs::{Mtu, QpState, QpType};
use roce::wire::cm::PortSpace;
use roce::wire::{
    BthRepr, DethRepr, Extensions, Gid, Opcode, Packet, PacketRepr, Path, Psn, QKey, Qpn, Service,
};

use super::play::fresh_qpn;
use super::wire::Wire;
use crate::interrupt;

/// Maximum time for a peer to answer, and to disconnect.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const DISCONNECT_WAIT: Duration = Duration::from_secs(2);

/// Time until the first retransmission of a message.
const RETRANSMIT: Duration = Duration::from_millis(50);

/// READs and atomics in flight that the connections are made for.
const RD_ATOMIC: u8 = 16;

/// UDP source port of messages, as rxe has it.
const SOURCE_PORT: u16 = 55410;

/// The connection manager of this side. It has no NIC: its messages are packets like those of the
/// capture.
pub(super) struct Connector {
    manager: Manager,
    device: DeviceId,
    channel: ChannelId,
    source: Gid,
    /// PSN of the next packet of queue pair 1.
    psn: u32,
    ids: Vec<CmId>,
}

/// Parameters that the connection manager agreed upon with the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connected {
    own_qpn: Qpn,
    peer_qpn: Qpn,
    first_psn: Psn,
}

impl Connected {
    /// Maps requests onto the connection. What the options map stays as they say.
    pub(super) fn map(&self, target: &mut Target) {
        target.source_qpn.get_or_insert(self.own_qpn);
        target.qpn.get_or_insert(self.peer_qpn);
        target.first_psn.get_or_insert(self.first_psn);
    }
}

fn ip_of(gid: Gid) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(gid.0)).to_canonical()
}

impl Connector {
    /// The connection manager of an address of this side.
    pub(super) fn new(source: Gid) -> Result<Self> {
        let random =
            |what: &mut [u8]| getrandom::fill(what).context("the system has no random numbers");
        let (mut seed, mut guid) = ([0; 8], [0; 8]);
        random(&mut seed)?;
        random(&mut guid)?;
        let mut config = Config::default();
        config.retransmission = Retransmission::Backoff(RETRANSMIT);
        let mut manager = Manager::new(config, u64::from_le_bytes(seed));
        let device = manager.add_device(Device::new(u64::from_le_bytes(guid), ip_of(source)))?;
        let channel = manager.create_channel()?;
        Ok(Self { manager, device, channel, source, psn: 0, ids: Vec::new() })
    }

    /// Takes a packet, if it is one for the connection manager.
    pub(super) fn handle(&mut self, now: Instant, received: &roce::wire::Received<'_>) {
        let Ok(packet) = Packet::parse(received.packet) else { return };
        let for_gsi = packet.bth().dest_qp() == Qpn::GSI
            && packet.deth().is_some_and(|deth| deth.qkey() == QKey::GSI);
        if for_gsi {
            let (source, destination) = (received.source, received.destination);
            let (device, traffic_class, mad) = (self.device, received.ecn, packet.payload());
            let received = Received { device, source, destination, traffic_class, mad };
            self.manager.handle_mad(now, &received);
        }
    }

    /// Returns the next message to send, after the timers were looked at.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        if self.manager.poll_timeout().is_some_and(|at| at <= now) {
            self.manager.handle_timeout(now);
        }
        let message = self.manager.poll_transmit()?;
        self.psn = self.psn.wrapping_add(1) & 0xff_ffff;
        packet(&message, self.source, Psn::new(self.psn))
    }

    /// Begins to connect a queue pair of this side.
    fn begin(
        &mut self,
        now: Instant,
        to: SocketAddr,
        (qp_type, qpn, mtu): (QpType, Qpn, Mtu),
    ) -> Result<CmId> {
        let Self { manager, device, channel, .. } = self;
        if let Some(device) = manager.device_mut(*device) {
            device.mtu = mtu;
        }
        let id = manager.create_id(*channel, 0, PortSpace::TCP, qp_type)?;
        let source = ip_of(self.source);
        manager.resolve_addr(now, id, Some((source, 0).into()), to, CONNECT_WAIT)?;
        while let Some(query) = manager.poll_query() {
            let resolution = Resolution { device: *device, source, hop_limit: 64, mtu: None };
            manager.handle_resolution(query.token, Ok(resolution));
        }
        manager.resolve_route(id, CONNECT_WAIT)?;
        // Both are resolved by now.
        while manager.poll_event(*channel).is_some() {}
        let param = ConnParam {
            qpn,
            responder_resources: RD_ATOMIC,
            initiator_depth: RD_ATOMIC,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        manager.connect(now, id, &param)?;
        self.ids.push(id);
        Ok(id)
    }

    /// The next event.
    fn event(&mut self) -> Option<Event> {
        self.manager.poll_event(self.channel)
    }

    /// Completes a connection whose peer has answered.
    fn complete(&mut self, id: CmId, own_qpn: Qpn) -> Result<Connected> {
        let (rtr, _) = self.manager.qp_attr(id, QpState::Rtr)?;
        let (rts, _) = self.manager.qp_attr(id, QpState::Rts)?;
        self.manager.establish(id)?;
        Ok(Connected { own_qpn, peer_qpn: rtr.dest_qp_num, first_psn: rts.sq_psn })
    }
}

/// A message as a packet from queue pair 1 to queue pair 1.
fn packet(message: &Transmit, source: Gid, psn: Psn) -> Option<Outgoing> {
    let bth = BthRepr::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn);
    let deth = Some(DethRepr { qkey: QKey::GSI, src_qp: Qpn::GSI });
    let extensions = Extensions { deth, ..Extensions::default() };
    let mut bytes = Vec::new();
    PacketRepr::new(bth, extensions, &message.mad[..]).ok()?.emit(&mut bytes);
    let path = Path {
        source,
        destination: message.ah.dgid,
        source_port: SOURCE_PORT,
        traffic_class: message.ah.traffic_class,
        hop_limit: message.ah.hop_limit,
        sl: 0,
        flow_label: message.ah.flow_label,
    };
    Some(Outgoing::new(Envelope { path, id: 0, macs: None, vlan: None }, bytes))
}

/// Connects a queue pair of this side, for a script, to the peer that listens at an address.
pub(super) fn connect(wire: &mut Wire, to: SocketAddr, script: &Script) -> Result<Connected> {
    let qp_type = match script.service {
        Service::Rc => QpType::Rc,
        Service::Uc => QpType::Uc,
        _ => bail!(
            "--connect: connection {} is neither RC nor UC: play others with --flow",
            script.flow
        ),
    };
    let mtu = Mtu::from_bytes(usize::from(script.mtu));
    let mtu = mtu.with_context(|| format!("{} is no path MTU", script.mtu))?;
    let (now, own_qpn) = (wire.now(), fresh_qpn()?);
    let until = now.saturating_add(CONNECT_WAIT);
    let id = wire.connector()?.begin(now, to, (qp_type, own_qpn, mtu))?;
    while wire.now() < until && !interrupt::requested() {
        wire.receive(until, &mut |_| {})?;
        let connector = wire.connector()?;
        let Some(event) = connector.event().filter(|event| event.id == id) else { continue };
        if event.kind != EventKind::ConnectResponse {
            return Err(failure(&event)).with_context(|| format!("--connect {to}"));
        }
        let connected = connector.complete(id, own_qpn)?;
        // The RTU goes before the first request.
        wire.drive()?;
        return Ok(connected);
    }
    Err(Error::Unreachable).with_context(|| format!("--connect {to}"))
}

/// Converts an event to an error.
fn failure(event: &Event) -> Error {
    match (event.kind, &event.param) {
        (EventKind::Rejected, roce::cm::EventParam::Conn(conn)) => Error::Refused {
            reason: u16::try_from(event.status).unwrap_or_default(),
            private_data: Box::new(conn.private_data),
        },
        _ => Error::Unreachable,
    }
}

/// Ends all connections, and waits for the peer to confirm it.
pub(super) fn disconnect(wire: &mut Wire) -> Result<()> {
    let now = wire.now();
    let connector = wire.connector()?;
    let ids = std::mem::take(&mut connector.ids);
    // One that the peer ended is answered, or has nothing to end.
    let mut open = 0;
    for id in ids {
        open += usize::from(connector.manager.disconnect(now, id).is_ok());
    }
    let until = now.saturating_add(DISCONNECT_WAIT);
    wire.drive()?;
    while open > 0 && wire.now() < until && !interrupt::requested() {
        wire.receive(until, &mut |_| {})?;
        while let Some(event) = wire.connector()?.event() {
            open -= usize::from(event.kind == EventKind::Disconnected).min(open);
        }
    }
    Ok(())
}
