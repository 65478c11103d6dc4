//! Scripts: what one side of a connection requested in a capture, and what it was answered.

use super::limits::{BYTES_MAX, PACKETS_MAX};
use crate::analysis::{
    Analysis, Config, Connection, Endpoint, FlowNumber, PacketFacts, PacketNote, PacketRole,
    Report, Sink,
};
use crate::decode::Context;
use crate::observe::end::End;
use crate::time::Instant;
use crate::wire::{
    Bits, Frame, Gid, Layer, MacAddr, Network, Operation, Packet, Path, Position, Psn, Qpn,
    Service, Vlan, view,
};

/// The headers below the BTH of a captured packet, as far as they can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Addresses, source port, traffic class, hop limit, flow label.
    pub path: Path,
    /// The identification of an IPv4 header.
    pub id: u16,
    /// Destination and source of the Ethernet header, where there is one.
    pub macs: Option<[MacAddr; 2]>,
    /// The innermost VLAN tag: priority, drop eligibility, VLAN.
    pub vlan: Option<u16>,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Frame in the capture.
    pub frame: u64,
    /// Time of the capture.
    pub time: Instant,
    /// The headers below the BTH.
    pub envelope: Envelope,
    /// Bytes from the BTH to the last pad byte. Payload that the capture cut off is zero.
    pub packet: Vec<u8>,
    /// Whether the capture cut some of it off.
    pub is_cut: bool,
    /// PSN, counted from the first request of the script and without wrap.
    pub sequence: i64,
}

impl Captured {
    /// The packet, parsed.
    pub fn view(&self) -> Option<Packet<'_>> {
        Packet::parse_cut(&self.packet, self.packet.len()).0
    }

    /// Returns the operation of the opcode.
    pub fn operation(&self) -> Option<Operation> {
        Some(self.view()?.info()?.operation)
    }

    /// Returns the position of the packet in its message.
    pub fn position(&self) -> Option<Position> {
        Some(self.view()?.info()?.position)
    }

    /// The PSNs that a request takes at a path MTU: a READ takes one for each packet of its
    /// response (C9-68).
    pub fn span(&self, mtu: u16) -> u32 {
        let read = self.view().filter(|packet| {
            packet.info().is_some_and(|info| info.operation == Operation::ReadRequest)
        });
        let length = read.and_then(|packet| packet.reth()).map_or(0, |reth| reth.dma_len());
        length.div_ceil(u32::from(mtu.max(1))).max(1)
    }

    /// Whether a correct responder answers this request in any case: it asks for an
    /// acknowledgement, or for data.
    pub fn demands_answer(&self) -> bool {
        let asks = self.view().is_some_and(|packet| packet.bth().ack_req());
        asks || self.operation().is_some_and(|operation| operation.response().is_own())
    }
}

/// An event on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The side that is played requested something.
    Request(Captured),
    /// The other side answered.
    Answer(Captured),
}

impl Event {
    /// The packet.
    pub fn packet(&self) -> &Captured {
        match self {
            Self::Request(packet) | Self::Answer(packet) => packet,
        }
    }
}

/// One end of a connection, as the capture names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptEnd {
    /// Address.
    pub address: Gid,
    /// Queue pair, if the capture tells.
    pub qpn: Option<Qpn>,
}

/// Packets that were left out of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Requests before the first one that begins a message.
    pub before_first_message: u64,
    /// Packets that the network delivered twice.
    pub copies: u64,
    /// Packets whose headers the capture cut off.
    pub headers_cut: u64,
}

/// The requests of one side of a connection and the answers to them, in the order of the capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The connection, as `roce flows` numbers it.
    pub flow: FlowNumber,
    /// The end that is played, 0 or 1 of [`Connection::ends`].
    pub side: End,
    /// The transport service.
    pub service: Service,
    /// The end that is played.
    pub requester: ScriptEnd,
    /// The end that answered.
    pub responder: ScriptEnd,
    /// The PSN of the first request.
    pub first_psn: Psn,
    /// The path MTU in bytes.
    pub mtu: u16,
    /// Requests and answers.
    pub events: Vec<Event>,
    /// Packets that were left out.
    pub left_out: LeftOut,
}

impl Script {
    /// The requests, in the order of the capture.
    pub fn requests(&self) -> impl Iterator<Item = &Captured> {
        self.events.iter().filter_map(|event| match event {
            Event::Request(packet) => Some(packet),
            Event::Answer(_) => None,
        })
    }

    /// The answers, in the order of the capture.
    pub fn answers(&self) -> impl Iterator<Item = &Captured> {
        self.events.iter().filter_map(|event| match event {
            Event::Answer(packet) => Some(packet),
            Event::Request(_) => None,
        })
    }

    /// Returns what the receives of the responder hold after the script: the data of the messages
    /// that took one, each at a multiple of `stride`.
    pub fn received_image(&self, stride: usize) -> Vec<u8> {
        let (mut image, mut start, mut order) = (Vec::new(), 0, Order::new(self));
        for request in self.requests() {
            let is_new = order.accepts(request);
            let Some(packet) = request.view().filter(|_| is_new) else { continue };
            let Some(info) = packet.info() else { continue };
            if info.operation == Operation::Send {
                image.extend_from_slice(packet.payload());
            }
            if info.receive.completes() {
                start += stride;
                image.resize(start, 0);
            }
        }
        image.truncate(start);
        image
    }

    /// The PSNs that all requests take: a second round begins this much later.
    pub fn span(&self) -> u32 {
        let ends = self.requests().map(|it| it.sequence + i64::from(it.span(self.mtu)));
        u32::try_from(ends.max().unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

/// Requests that a responder executes: of a reliable service those in the order of their PSNs,
/// each once; of another service all whose PSNs are new.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    next: i64,
    mtu: u16,
    is_reliable: bool,
}

impl Order {
    pub(super) fn new(script: &Script) -> Self {
        let is_reliable = matches!(script.service, Service::Rc | Service::Xrc);
        Self { next: 0, mtu: script.mtu, is_reliable }
    }

    /// Whether the next request that arrives is executed.
    pub(super) fn accepts(&mut self, request: &Captured) -> bool {
        let at = request.sequence;
        let accepted = at == self.next || !self.is_reliable && at > self.next;
        if accepted {
            self.next = at + i64::from(request.span(self.mtu));
        }
        accepted
    }
}

/// Error: a capture is not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the capture holds more than {PACKETS_MAX} packets or {} MiB of connections; write the part to be played into a \
     file of its own (roce decode -Y FILTER -w OUT)",
    BYTES_MAX >> 20
)]
pub struct TooLarge;

/// Collects the scripts of a capture.
#[derive(Debug)]
pub struct Collector {
    analysis: Analysis,
    held: Held,
    bytes: usize,
}

/// The packets so far, and the one whose note is awaited.
#[derive(Debug, Default)]
struct Held {
    pending: Option<Captured>,
    packets: Vec<Noted>,
    headers_cut: u64,
}

#[derive(Debug)]
struct Noted {
    flow: FlowNumber,
    sender: End,
    role: PacketRole,
    is_copy: bool,
    packet: Captured,
}

impl Sink for Held {
    fn packet(&mut self, _: &PacketFacts, note: &PacketNote) {
        if matches!(note.role, PacketRole::Cnp | PacketRole::Management) {
            return;
        }
        if let Some(packet) = self.pending.take() {
            let PacketNote { flow, sender, role, duplicate: is_copy, .. } = *note;
            self.packets.push(Noted { flow, sender, role, is_copy, packet });
        }
    }
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// A collector at the start of a capture.
    pub fn new() -> Self {
        let config = Config { files: vec![String::new()], ..Config::default() };
        Self { analysis: Analysis::new(config), held: Held::default(), bytes: 0 }
    }

    /// Takes the next frame of the capture.
    pub fn frame(&mut self, context: &Context<'_>) -> Result<(), TooLarge> {
        let Some(facts) = PacketFacts::new(context, 0) else {
            self.analysis.handle_other_frame(context.time, context.wire_len, 0);
            return Ok(());
        };
        self.held.pending = captured(context, &facts);
        self.held.headers_cut += u64::from(self.held.pending.is_none());
        self.bytes += self.held.pending.as_ref().map_or(0, |packet| packet.packet.len());
        self.analysis.handle_packet(&facts, &mut self.held);
        self.held.pending = None;
        if self.held.packets.len() > PACKETS_MAX || self.bytes > BYTES_MAX {
            return Err(TooLarge);
        }
        Ok(())
    }

    /// The scripts of the capture: for each connection one for each side that requested something,
    /// in the order of connections and ends.
    pub fn finish(mut self) -> Vec<Script> {
        let report = self.analysis.finish(&mut self.held);
        let Held { packets, headers_cut, .. } = self.held;
        let mut scripts: Vec<Script> = report
            .connections
            .iter()
            .flat_map(|it| End::BOTH.map(|side| blank(it, side)))
            .collect();
        for noted in packets {
            place(&report, &mut scripts, noted);
        }
        for script in &mut scripts {
            finish(script);
            script.left_out.headers_cut = headers_cut;
        }
        scripts.retain(|script| script.requests().next().is_some());
        scripts
    }
}

/// The packet of a frame, if all its headers are there.
fn captured(context: &Context<'_>, facts: &PacketFacts) -> Option<Captured> {
    let frame = &context.frame;
    let packet = frame.packet()?;
    let length = packet.header_len() + packet.payload_len() + usize::from(packet.pad_len());
    if packet.bytes().len() < packet.header_len() {
        return None;
    }
    let mut bytes = packet.bytes().to_vec();
    let is_cut = bytes.len() < length;
    // A length that the frame states is at most that of a UDP datagram.
    bytes.resize(bytes.len().max(length.min(usize::from(u16::MAX))), 0);
    let (frame_number, time) = (facts.frame, facts.time);
    let envelope = envelope(frame, facts);
    Some(Captured { frame: frame_number, time, envelope, packet: bytes, is_cut, sequence: 0 })
}

fn envelope(frame: &Frame<'_>, facts: &PacketFacts) -> Envelope {
    let low = |bits: u32| u8::try_from(bits & 0xff).unwrap_or(0);
    let (traffic_class, hop_limit, flow_label, id) = match frame.network() {
        Some(Network::Ipv4 { header, .. }) => {
            let class = header.dscp().get() << 2 | header.ecn().get();
            (low(class), header.ttl(), Bits::ZERO, header.id())
        }
        Some(Network::Ipv6 { header, .. }) => {
            let class = header.dscp().get() << 2 | header.ecn().get();
            (low(class), header.hop_limit(), header.flow_label(), 0)
        }
        Some(Network::Grh(grh)) => (grh.traffic_class(), grh.hop_limit(), grh.flow_label(), 0),
        None => (0, 64, Bits::ZERO, 0),
    };
    let vlan = frame.layers().find(Layer::Vlan);
    let vlan = vlan.and_then(|at| view::<Vlan>(frame.bytes(), at.start).ok()).map(|tag| {
        let [high, below, ..] = *tag.as_bytes();
        u16::from_be_bytes([high, below])
    });
    let path = Path {
        source: facts.source,
        destination: facts.destination,
        source_port: if facts.source_port == 0 { 0xc000 } else { facts.source_port },
        traffic_class,
        // A GRH may leave it to the router.
        hop_limit: if hop_limit == 0 { 64 } else { hop_limit },
        sl: 0,
        flow_label,
    };
    let macs = frame.ethernet().map(|ethernet| [ethernet.destination(), ethernet.source()]);
    Envelope { path, id, macs, vlan }
}

/// A script without events.
fn blank(connection: &Connection, side: End) -> Script {
    let end = |end: End| {
        let Endpoint { address, qpn, .. } = connection.ends[end];
        ScriptEnd { address, qpn }
    };
    Script {
        flow: connection.flow,
        side,
        service: connection.service,
        requester: end(side),
        responder: end(side.other()),
        first_psn: Psn::new(0),
        mtu: connection.path_mtu.unwrap_or(0),
        events: Vec::new(),
        left_out: LeftOut::default(),
    }
}

/// Puts a packet into the script that it belongs to.
fn place(report: &Report, scripts: &mut [Script], noted: Noted) {
    let Some((flow, is_swapped)) = report.flow_of(noted.flow) else { return };
    let sender = noted.sender.exchanged_if(is_swapped);
    let is_request = noted.role == PacketRole::Request;
    let side = sender.exchanged_if(!is_request);
    let Some(at) = report.connections.iter().position(|it| it.flow == flow) else { return };
    let Some(script) = scripts.get_mut(2 * at + side.index()) else { return };
    if noted.is_copy {
        script.left_out.copies += 1;
        return;
    }
    script.events.push(match is_request {
        true => Event::Request(noted.packet),
        false => Event::Answer(noted.packet),
    });
}

/// Numbers the packets of a script, and leaves out what comes before its first message.
fn finish(script: &mut Script) {
    let begins = |event: &Event| matches!(event, Event::Request(packet) if packet.position().is_some_and(Position::begins));
    let Some(first) = script.events.iter().position(begins) else {
        script.events.clear();
        return;
    };
    let skipped = script.events.drain(..first);
    let requests = skipped.filter(|event| matches!(event, Event::Request(_))).count();
    script.left_out.before_first_message = requests as u64;
    let psn_of = |event: &Event| event.packet().view().map(|packet| packet.bth().psn());
    script.first_psn = script.events.first().and_then(psn_of).unwrap_or_default();
    let (mut near, mut largest) = (0, 0);
    for event in &mut script.events {
        let Some(psn) = psn_of(event) else { continue };
        let sequence = unwrap(script.first_psn, psn, near);
        if matches!(event, Event::Request(_)) {
            near = sequence;
        }
        let packet = match event {
            Event::Request(packet) | Event::Answer(packet) => packet,
        };
        packet.sequence = sequence;
        largest = largest.max(packet.view().map_or(0, |view| view.payload_len()));
    }
    let derived = [256, 512, 1024, 2048, 4096].into_iter().find(|mtu| largest <= *mtu);
    let derived = derived.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(4096);
    if script.mtu == 0 {
        script.mtu = derived.max(1024);
    }
    // Answers to what came before.
    script.events.retain(|event| event.packet().sequence >= 0);
}

/// The sequence number nearest to `near` that a PSN can stand for.
pub(super) fn unwrap(first: Psn, psn: Psn, near: i64) -> i64 {
    const SPACE: i64 = 1 << 24;
    let relative = (i64::from(psn.get()) - i64::from(first.get())).rem_euclid(SPACE);
    let distance = (relative - near).rem_euclid(SPACE);
    near + if distance >= SPACE / 2 { distance - SPACE } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psns_are_unwrapped_to_the_nearest_sequence_number() {
        let first = Psn::new(0xff_fffe);
        assert_eq!(unwrap(first, first, 0), 0);
        assert_eq!(unwrap(first, Psn::new(1), 0), 3);
        assert_eq!(unwrap(first, Psn::new(0xff_fffd), 0), -1);
        assert_eq!(unwrap(first, Psn::new(1), (1 << 24) + 1), (1 << 24) + 3);
    }
}
