//! A captured frame with all that is known of it, and its fields.

use core::cell::OnceCell;
use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::field::{Field, Source, Value};
use super::tables::{TABLES, TableId};
use crate::capture::{Batch, Record};
use crate::time::Instant;
use crate::wire::layout::BitRange;
use crate::wire::mad::{
    AttributeId, Mad, MgmtClass, PathRecord, Rmpp, Sa, SmInfo, SmpDirected, SmpLid,
};
use crate::wire::{
    CapturedTrain, Erf, Frame, IcrcVerdict, Layer, Layers, LinkType, Operation, TRAIN_PACKETS_MAX,
    Udp, cm, view,
};

/// Takes the frames of a capture apart, one after the other, and remembers what later ones refer
/// to.
#[derive(Clone, Debug)]
pub struct Decoder {
    port: u16,
    count: u64,
    first_time: Option<Instant>,
    previous_time: Option<Instant>,
    room: TrainRoom,
}

/// Memory for the frames that the packets of a train become, kept to be used again. A decoder that
/// is cloned has its own.
#[derive(Debug, Default)]
struct TrainRoom(Vec<u8>);

impl Clone for TrainRoom {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Decoder {
    /// A decoder at the start of a capture, which takes UDP datagrams to `port` for RoCEv2.
    pub fn new(port: u16) -> Self {
        Self { port, count: 0, first_time: None, previous_time: None, room: TrainRoom::default() }
    }

    /// The next frame of the capture as one packet, also if it is a train.
    #[inline]
    pub fn decode<'a>(&mut self, record: &Record<'a>) -> Context<'a> {
        let mut context = self.unparsed(record);
        context.frame.parse_in_place();
        context
    }

    /// The packets of the next frame of the capture, each handed to `take` where it is made: a
    /// context is 700 bytes, and to move each takes as long as to parse its addresses.
    ///
    /// A frame holds one packet, or none, or is a train, whose packets become frames of their own.
    #[inline]
    pub fn decode_with<'a>(
        &'a mut self,
        record: &Record<'a>,
        mut take: impl FnMut(&mut Context<'a>),
    ) {
        let mut context = self.unparsed(record);
        context.frame.parse_in_place();
        match context.find_train() {
            None => take(&mut context),
            Some(train) => self.decode_train(record, &context, &train, take),
        }
    }

    /// Hands the packets of a train to `take`, each in a frame of its own.
    #[cold]
    #[inline(never)]
    fn decode_train<'a>(
        &'a mut self,
        record: &Record<'a>,
        whole: &Context<'a>,
        train: &CapturedTrain<'a>,
        mut take: impl FnMut(&mut Context<'a>),
    ) {
        let captured = train.captured().min(TRAIN_PACKETS_MAX);
        let room = &mut self.room.0;
        room.clear();
        let frames: Vec<_> = (0..captured)
            .map(|index| {
                let start = room.len();
                let wire_len = train.append_frame(index, room);
                (start..room.len(), wire_len)
            })
            .collect();
        let position = |index: usize| u16::try_from(index).unwrap_or(u16::MAX);
        let (of, captured) = (position(train.len()), position(captured));
        let room: &'a [u8] = room;
        for (index, (range, wire_len)) in (1..).zip(frames) {
            let bytes = room.get(range).unwrap_or_default();
            let mut frame = Frame::unparsed(record.link, bytes, wire_len, self.port);
            frame.parse_in_place();
            take(&mut Context {
                previous_time: if index == 1 { whole.previous_time } else { whole.time },
                wire_len: u32::try_from(wire_len).unwrap_or(u32::MAX),
                frame,
                train: Some(TrainPosition { index, captured, of }),
                icrc: OnceCell::new(),
                sections: OnceCell::new(),
                ..*whole
            });
        }
    }

    #[inline(always)]
    fn unparsed<'a>(&mut self, record: &Record<'a>) -> Context<'a> {
        let (time, wire_len) = time_and_length(record);
        self.count += 1;
        self.first_time = self.first_time.or(time);
        let previous_time = self.previous_time.or(time);
        self.previous_time = time.or(self.previous_time);
        let (link, bytes, len) = (record.link, record.data, record.len as usize);
        Context {
            number: self.count,
            time,
            first_time: self.first_time,
            previous_time,
            wire_len,
            file: record.file,
            interface: record.interface.map(|id| (record.section, id.0)),
            frame: Frame::unparsed(link, bytes, len, self.port),
            train: None,
            annotations: Annotations::default(),
            icrc: OnceCell::new(),
            sections: OnceCell::new(),
        }
    }

    /// The decoder for the frames of `batch`, which come next; this one goes on behind them. So one
    /// thread can decode a batch while another reads the next.
    pub fn split(&mut self, batch: &Batch) -> Self {
        let here = self.clone();
        let mut times = batch.records().map(|record| time_and_length(&record).0);
        self.count += batch.len() as u64;
        self.previous_time = times.by_ref().rev().find_map(|time| time).or(self.previous_time);
        if self.first_time.is_none() {
            let mut times = batch.records().map(|record| time_and_length(&record).0);
            self.first_time = times.find_map(|time| time);
        }
        here
    }
}

/// Returns the time at which a frame was captured, and its length on the wire.
#[inline]
fn time_and_length(record: &Record<'_>) -> (Option<Instant>, u32) {
    if record.link == LinkType::ERF
        && let Ok(erf) = view::<Erf>(record.data, 0)
    {
        // The record's own time is finer than that of a classic capture.
        let own = || Some(Instant::from_nanos(erf.nanos()));
        let time = if record.interface.is_none() { own() } else { record.time };
        return (time, erf.wire_len().into());
    }
    (record.time, record.len)
}

/// A captured frame with all that is known of it.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// Number in the capture, from 1.
    pub number: u64,
    /// Time of capture, if the capture has it.
    pub time: Option<Instant>,
    /// Time at which the first frame was captured.
    pub first_time: Option<Instant>,
    /// Time at which the frame before this one was captured; for the first frame, its own time.
    pub previous_time: Option<Instant>,
    /// Length on the wire.
    pub wire_len: u32,
    /// Index of its file among several merged ones, from 0.
    pub file: u32,
    /// The section and the interface it was captured on, if the capture numbers them.
    pub interface: Option<(u32, u32)>,
    /// The frame itself; that of this packet alone, if the captured frame is a train.
    pub frame: Frame<'a>,
    /// The packet's position in its frame, if the captured frame is a train.
    pub train: Option<TrainPosition>,
    /// Annotations by the caller, which the frame itself does not hold.
    pub annotations: Annotations<'a>,
    /// The verdict on the ICRC costs more than everything else, so it is found once.
    icrc: OnceCell<Option<IcrcVerdict>>,
    /// Layers, found when a field is first requested.
    sections: OnceCell<Sections>,
}

/// Position of a packet in a train: a captured frame with several packets, because the host left
/// segmentation to its NIC, or had coalesced what it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPosition {
    /// Number of the packet in its frame, from 1.
    pub index: u16,
    /// Number of packets of which something was captured.
    pub captured: u16,
    /// Number of packets on the wire.
    pub of: u16,
}

/// Facts about a frame that a program knows and the frame itself does not hold: the fields
/// `frame.file`, `roce.flow` and `roce.retransmission`. A decoder leaves them empty; the caller
/// sets what it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a> {
    /// The name of the file it is from, as the user gave it.
    pub file: Option<&'a str>,
    /// The number of its connection, counted from 1 in the order of their first packets.
    pub flow: Option<u64>,
    /// Cause of its retransmission, if it is one.
    pub retransmission: Option<&'a str>,
}

/// A layer of a frame, and the table that tells its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub(super) table: TableId,
    start: u32,
    end: u32,
}

impl Section {
    const EMPTY: Self = Self { table: TableId::Frame, start: 0, end: 0 };

    /// Returns the range of its bytes in the frame.
    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The most sections a frame has: its layers, four for a management datagram, the frame, the
/// verdict and remarks.
const SECTIONS_MAX: usize = Layers::MAX + 7;

/// The layers of a frame in order, each with its table.
#[derive(Clone, Debug)]
struct Sections {
    len: usize,
    list: [Section; SECTIONS_MAX],
}

impl Sections {
    fn push(&mut self, table: TableId, range: Range<usize>) {
        // A frame is at most as long as a capture's longest record, which is far below four
        // gigabytes.
        let (Ok(start), Ok(end)) = (u32::try_from(range.start), u32::try_from(range.end)) else {
            return;
        };
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = Section { table, start, end };
            self.len += 1;
        }
    }
}

impl<'a> Context<'a> {
    /// Returns the verdict on the ICRC, or `None` if there should be none.
    #[inline]
    pub fn icrc(&self) -> Option<IcrcVerdict> {
        *self.icrc.get_or_init(|| self.frame.icrc())
    }

    /// Returns the train that the frame is. Where the length is that of one packet, or the ICRC is
    /// right, there is nothing to search for.
    #[inline]
    fn find_train(&self) -> Option<CapturedTrain<'a>> {
        let packet = self.frame.packet()?;
        if packet.has_length_of_one() {
            return None;
        }
        if !packet.is_too_long() && self.icrc() == Some(IcrcVerdict::Ok) {
            return None;
        }
        self.frame.train()
    }

    /// Returns the number of bytes of the frame that were captured.
    pub fn captured_len(&self) -> usize {
        let bytes = self.frame.bytes().len();
        match self.frame.layers().find(Layer::Erf) {
            // The record's own headers are not the frame's.
            Some(erf) => {
                let next = self.frame.layers().iter().nth(1);
                bytes - next.map_or(erf.end, |(_, range)| range.start)
            }
            None => bytes,
        }
    }

    /// Returns the payload of the UDP datagram whose header is `udp`, as far as it is there.
    pub(super) fn udp_payload(&self, udp: &[u8]) -> Option<&'a [u8]> {
        let (layers, bytes) = (self.frame.layers(), self.frame.bytes());
        let is_this = |range: &Range<usize>| {
            bytes.get(range.clone()).is_some_and(|found| core::ptr::eq(found, udp))
        };
        let mut datagrams = layers.iter().filter(|(layer, _)| *layer == Layer::Udp);
        let (_, range) = datagrams.find(|(_, range)| is_this(range))?;
        let header = view::<Udp>(bytes, range.start).ok()?;
        let len = usize::from(header.length()).checked_sub(Udp::LEN)?;
        let rest = bytes.get(range.end..)?;
        Some(rest.get(..len).unwrap_or(rest))
    }

    /// The layers, each with its table, in order.
    #[inline]
    pub(super) fn sections(&self) -> &[Section] {
        let sections = self.sections.get_or_init(|| self.find_sections());
        sections.list.get(..sections.len).unwrap_or_default()
    }

    fn find_sections(&self) -> Sections {
        let mut sections = Sections { len: 0, list: [Section::EMPTY; SECTIONS_MAX] };
        sections.push(TableId::Frame, 0..self.frame.bytes().len());
        for (layer, range) in self.frame.layers().iter() {
            match table_of(layer) {
                Some(TableId::MadBody) => self.push_mad(range, &mut sections),
                Some(TableId::Payload) if self.is_cnp() => {
                    sections.push(TableId::Payload, range.clone());
                    sections.push(TableId::Cnp, range);
                }
                Some(table) => sections.push(table, range),
                None => {}
            }
        }
        if self.frame.encapsulation().is_some() {
            sections.push(TableId::Roce, 0..self.frame.bytes().len());
        }
        sections.push(TableId::Trailer, 0..self.frame.bytes().len());
        sections
    }

    /// The bytes of a section.
    pub(super) fn bytes(&self, section: &Section) -> &'a [u8] {
        self.frame.bytes().get(section.range()).unwrap_or_default()
    }

    fn is_cnp(&self) -> bool {
        let info = self.frame.packet().and_then(|packet| packet.info());
        info.is_some_and(|info| info.operation == Operation::Cnp)
    }

    /// Adds the sections of the body of a management datagram, by its class and attribute.
    fn push_mad(&self, body: Range<usize>, sections: &mut Sections) {
        sections.push(TableId::MadBody, body.clone());
        let Some(Ok(mad)) = self.frame.packet().and_then(|packet| packet.mad()) else { return };
        // What was cut off is not shown, but all that there is.
        let mut push = |table, start: usize, end: usize| {
            if start < body.end {
                sections.push(table, start..end.min(body.end));
            }
        };
        let start = body.start;
        match mad.header.class() {
            MgmtClass::CM => push_cm(&mad, start, push),
            MgmtClass::SUBNET_LID => {
                push(TableId::SmpLid, start, start + SmpLid::LEN);
                if mad.header.attribute() == AttributeId::SM_INFO {
                    let data = start + SmpLid::LEN;
                    push(TableId::SmInfo, data, data + SmInfo::LEN);
                }
            }
            MgmtClass::SUBNET_DIRECTED => {
                push(TableId::SmpDirected, start, body.end);
                if mad.header.attribute() == AttributeId::SM_INFO {
                    let data = start + SmpDirected::LEN;
                    push(TableId::SmInfo, data, data + SmInfo::LEN);
                }
            }
            MgmtClass::SUBNET_ADMIN => {
                let sa = start + Rmpp::LEN;
                push(TableId::Rmpp, start, sa);
                push(TableId::Sa, sa, sa + Sa::LEN);
                if mad.header.attribute() == AttributeId::SA_PATH_RECORD {
                    push(TableId::PathRecord, sa + Sa::LEN, sa + Sa::LEN + PathRecord::LEN);
                }
            }
            _ => {}
        }
    }
}

/// The table of a layer; errors name some that are never layers of their own.
fn table_of(layer: Layer) -> Option<TableId> {
    Some(match layer {
        Layer::Erf => TableId::Erf,
        Layer::Sll => TableId::Sll,
        Layer::Sll2 => TableId::Sll2,
        Layer::Ethernet => TableId::Ethernet,
        Layer::ServiceVlan => TableId::ServiceVlan,
        Layer::Vlan => TableId::Vlan,
        Layer::Lrh => TableId::Lrh,
        Layer::Grh => TableId::Grh,
        Layer::Ipv4 => TableId::Ipv4,
        Layer::Ipv6 => TableId::Ipv6,
        Layer::Ipv6Extension => TableId::Ipv6Extension,
        Layer::Udp => TableId::Udp,
        Layer::Vxlan => TableId::Vxlan,
        Layer::Geneve => TableId::Geneve,
        Layer::Gre => TableId::Gre,
        Layer::Erspan1 => TableId::Erspan1,
        Layer::Erspan2 => TableId::Erspan2,
        Layer::Erspan3 => TableId::Erspan3,
        Layer::Mpls => TableId::Mpls,
        Layer::Bth => TableId::Bth,
        Layer::Rdeth => TableId::Rdeth,
        Layer::Deth => TableId::Deth,
        Layer::Xrceth => TableId::Xrceth,
        Layer::Feth => TableId::Feth,
        Layer::Reth => TableId::Reth,
        Layer::AtomicEth => TableId::AtomicEth,
        Layer::Aeth => TableId::Aeth,
        Layer::AtomicAckEth => TableId::AtomicAckEth,
        Layer::ImmDt => TableId::ImmDt,
        Layer::Ieth => TableId::Ieth,
        Layer::SackEth => TableId::SackEth,
        Layer::Payload => TableId::Payload,
        Layer::Pad => TableId::Pad,
        Layer::Icrc => TableId::Icrc,
        Layer::Vcrc => TableId::Vcrc,
        Layer::Mad => TableId::Mad,
        Layer::MadBody => TableId::MadBody,
        Layer::Null | Layer::Cm | Layer::IpCm => return None,
    })
}

/// A message of the connection manager that begins at `start`, and the RDMA connection manager's
/// header in it. How much of it there is does not matter: each field is shown that is there.
fn push_cm(mad: &Mad<'_>, start: usize, mut push: impl FnMut(TableId, usize, usize)) {
    let table = match mad.header.attribute() {
        AttributeId::CM_REQ => TableId::CmReq,
        AttributeId::CM_MRA => TableId::CmMra,
        AttributeId::CM_REJ => TableId::CmRej,
        AttributeId::CM_REP => TableId::CmRep,
        AttributeId::CM_RTU => TableId::CmRtu,
        AttributeId::CM_DREQ => TableId::CmDreq,
        AttributeId::CM_DREP => TableId::CmDrep,
        AttributeId::CM_SIDR_REQ => TableId::CmSidrReq,
        AttributeId::CM_SIDR_REP => TableId::CmSidrRep,
        AttributeId::CM_LAP => TableId::CmLap,
        AttributeId::CM_APR => TableId::CmApr,
        _ => return,
    };
    let end = start + cm::MESSAGE_LEN;
    push(table, start, end);
    let (header, service, private) = match table {
        TableId::CmReq => (TableId::IpCm, cm::Req::LAYOUT.service_id, cm::Req::LAYOUT.private_data),
        TableId::CmSidrReq => {
            (TableId::SidrIpCm, cm::SidrReq::LAYOUT.service_id, cm::SidrReq::LAYOUT.private_data)
        }
        _ => return,
    };
    let service = service.read(mad.body).map(cm::ServiceId);
    if service.is_some_and(|service| service.to_rdma_cm().is_some()) {
        push(header, start + private.bytes().start, end);
    }
}

/// A field by its name, and everywhere it can stand.
#[derive(Clone, Copy, Debug)]
pub struct FieldRef {
    name: &'static str,
    places: &'static [(TableId, &'static Field)],
}

/// Every field by its name.
static INDEX: LazyLock<HashMap<&'static str, Vec<(TableId, &'static Field)>>> =
    LazyLock::new(|| {
        let mut index: HashMap<_, Vec<_>> = HashMap::new();
        for &id in TableId::ALL {
            for field in id.table().fields {
                index.entry(field.name).or_default().push((id, field));
            }
        }
        index
    });

impl FieldRef {
    /// The field of this name, if there is one.
    pub fn find(name: &str) -> Option<Self> {
        let places = INDEX.get(name)?.as_slice();
        let name = places.first()?.1.name;
        Some(Self { name, places })
    }

    /// Every name there is, each once, in the order of the layers.
    pub fn names() -> &'static [&'static str] {
        static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
            let mut seen = HashSet::new();
            let all = TABLES.iter().flat_map(|table| table.fields).map(|field| field.name);
            all.filter(|&name| seen.insert(name)).collect()
        });
        &NAMES
    }

    /// Returns the label for people.
    pub fn label(&self) -> &'static str {
        self.kind().label
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the tables that have the field.
    pub(super) fn places(&self) -> &[(TableId, &'static Field)] {
        self.places
    }

    /// Returns the field that defines how values are printed and compared.
    pub(super) fn kind(&self) -> &'static Field {
        self.places.first().expect("a field stands somewhere").1
    }

    /// Whether it is the name of a layer.
    pub(super) fn is_layer(&self) -> bool {
        matches!(self.kind().source, Source::Presence | Source::PresenceIf(_))
    }

    /// The layers of a frame that it is the name of, each from its first byte to the end of the
    /// frame.
    pub(super) fn layers<'c, 'a>(
        &'c self,
        context: &'c Context<'a>,
    ) -> impl Iterator<Item = &'a [u8]> + use<'c, 'a> {
        let named = move |section: &&Section| {
            let mut here = self.places.iter().filter(|(id, _)| *id == section.table);
            here.any(|(_, field)| field.value(context, &[]).is_some())
        };
        context.sections().iter().filter(named).filter_map(|section| {
            let start = match section.table {
                // It is told of the frame as a whole, and begins with the first header of its own.
                TableId::Roce => {
                    let own = |layer| matches!(layer, Layer::Lrh | Layer::Grh | Layer::Bth);
                    context.frame.layers().iter().find(|&(layer, _)| own(layer))?.1.start
                }
                _ => section.range().start,
            };
            context.frame.bytes().get(start..)
        })
    }

    /// The bits of a frame that it takes, counted from the most significant bit of the first byte:
    /// for each layer that has it, where it is simply some bits of a header.
    pub fn bit_ranges(&self, context: &Context<'_>) -> Vec<BitRange> {
        let sections = context.sections().iter();
        let found = sections.flat_map(|section| {
            let here = self.places.iter().filter(|(table, _)| *table == section.table);
            here.filter_map(|(_, field)| {
                let bits = field.bit_range()?;
                let inside = bits.bytes().end <= section.range().len();
                inside.then(|| BitRange::new(8 * section.range().start + bits.start, bits.len))
            })
        });
        found.collect()
    }

    /// Returns the values in a frame, in order.
    pub fn values<'c, 'a>(
        &'c self,
        context: &'c Context<'a>,
    ) -> impl Iterator<Item = (&'static Field, Value<'a>)> + use<'c, 'a> {
        context.sections().iter().flat_map(move |section| {
            let here = self.places.iter().filter(move |(table, _)| *table == section.table);
            let layer = context.bytes(section);
            here.filter_map(move |(_, field)| Some((*field, field.value(context, layer)?)))
        })
    }
}
