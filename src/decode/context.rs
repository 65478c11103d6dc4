//! A captured frame with all that is known of it, and its fields.

use core::cell::OnceCell;
use core::ops::Range;

use super::field::{Field, Value};
use super::tables::{TABLES, TableId};
use crate::capture::Record;
use crate::time::Instant;
use crate::wire::mad::{AttributeId, Mad, MgmtClass, Rmpp, Sa, SmpDirected};
use crate::wire::{Erf, Frame, IcrcVerdict, Layer, LinkType, Udp, cm, view};

/// Takes the frames of a capture apart, one after the other, and remembers what later ones refer to.
#[derive(Clone, Debug)]
pub struct Decoder {
    port: u16,
    count: u64,
    first_time: Option<Instant>,
    previous_time: Option<Instant>,
}

impl Decoder {
    /// A decoder at the start of a capture, which takes UDP datagrams to `port` for RoCEv2.
    pub fn new(port: u16) -> Self {
        Self { port, count: 0, first_time: None, previous_time: None }
    }

    /// The next frame of the capture.
    pub fn decode<'a>(&mut self, record: &Record<'a>) -> Context<'a> {
        let frame = Frame::parse(record.link, record.data, self.port);
        let (mut time, mut wire_len) = (record.time, record.len);
        if record.link == LinkType::ERF
            && let Ok(erf) = view::<Erf>(record.data, 0)
        {
            // Its own header is finer than the file's.
            (time, wire_len) = (Some(Instant::from_nanos(erf.nanos())), erf.wire_len().into());
        }
        self.count += 1;
        self.first_time = self.first_time.or(time);
        let previous_time = self.previous_time.or(time);
        self.previous_time = time.or(self.previous_time);
        Context {
            number: self.count,
            time,
            first_time: self.first_time,
            previous_time,
            wire_len,
            interface: record.interface.map(|id| id.0),
            frame,
            icrc: OnceCell::new(),
        }
    }
}

/// A captured frame with all that is known of it.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// Which frame of the capture it is, from 1.
    pub number: u64,
    /// When it was captured, if the capture says.
    pub time: Option<Instant>,
    /// When the first frame was captured.
    pub first_time: Option<Instant>,
    /// When the frame before this one was captured; for the first frame, its own time.
    pub previous_time: Option<Instant>,
    /// How long the frame was on the wire.
    pub wire_len: u32,
    /// The interface it was captured on, if the capture numbers them.
    pub interface: Option<u32>,
    /// The frame itself.
    pub frame: Frame<'a>,
    /// The verdict on the ICRC costs more than everything else, so it is found once.
    icrc: OnceCell<Option<IcrcVerdict>>,
}

/// A layer of a frame, and the table that tells its fields.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) table: TableId,
    pub(super) range: Range<usize>,
}

impl<'a> Context<'a> {
    /// What is to be said of the ICRC, or `None` if there should be none.
    pub fn icrc(&self) -> Option<IcrcVerdict> {
        *self.icrc.get_or_init(|| self.frame.icrc())
    }

    /// How much of the frame was captured.
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

    /// The payload of the UDP datagram, as far as it is there.
    pub(super) fn udp_payload(&self) -> Option<&'a [u8]> {
        let (range, bytes) = (self.frame.layers().find(Layer::Udp)?, self.frame.bytes());
        let len = usize::from(self.frame.udp()?.length()).checked_sub(Udp::LEN)?;
        let rest = bytes.get(range.end..)?;
        Some(rest.get(..len).unwrap_or(rest))
    }

    /// The layers, each with its table, in order.
    pub(super) fn sections(&self) -> impl Iterator<Item = Section> {
        let whole = 0..self.frame.bytes().len();
        let frame = Section { table: TableId::Frame, range: whole.clone() };
        let trailer = Section { table: TableId::Trailer, range: whole };
        let layers = self.frame.layers().iter();
        let layers = layers.flat_map(|(layer, range)| self.layer_sections(layer, range));
        core::iter::once(frame).chain(layers.flatten()).chain(core::iter::once(trailer))
    }

    /// The bytes of a section.
    pub(super) fn bytes(&self, section: &Section) -> &'a [u8] {
        self.frame.bytes().get(section.range.clone()).unwrap_or_default()
    }

    /// The sections of a layer: one, unless it is the body of a management datagram.
    fn layer_sections(&self, layer: Layer, range: Range<usize>) -> [Option<Section>; 4] {
        let table = match layer {
            Layer::MadBody => return self.mad_sections(range),
            Layer::Erf => TableId::Erf,
            Layer::Sll => TableId::Sll,
            Layer::Sll2 => TableId::Sll2,
            Layer::Ethernet => TableId::Ethernet,
            Layer::Vlan => TableId::Vlan,
            Layer::Lrh => TableId::Lrh,
            Layer::Grh => TableId::Grh,
            Layer::Ipv4 => TableId::Ipv4,
            Layer::Ipv6 => TableId::Ipv6,
            Layer::Ipv6Extension => TableId::Ipv6Extension,
            Layer::Udp => TableId::Udp,
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
            Layer::Payload => TableId::Payload,
            Layer::Pad => TableId::Pad,
            Layer::Icrc => TableId::Icrc,
            Layer::Vcrc => TableId::Vcrc,
            Layer::Mad => TableId::Mad,
            // These name errors, and are never layers of their own.
            Layer::Null | Layer::Cm | Layer::IpCm => return [const { None }; 4],
        };
        [Some(Section { table, range }), None, None, None]
    }

    /// What the body of a management datagram holds, by its class and attribute.
    fn mad_sections(&self, range: Range<usize>) -> [Option<Section>; 4] {
        let section = |table, start: usize, end: usize| {
            (end <= range.end).then_some(Section { table, range: start..end })
        };
        let body = section(TableId::MadBody, range.start, range.end);
        let Some(Ok(mad)) = self.frame.packet().and_then(|packet| packet.mad()) else {
            return [body, None, None, None];
        };
        let start = range.start;
        match (mad.header.class(), mad.header.attribute()) {
            (MgmtClass::CM, _) => {
                let (message, header) = cm_sections(&mad, start);
                [body, message, header, None]
            }
            (MgmtClass::SUBNET_DIRECTED, attribute) => {
                let data = start + SmpDirected::LEN;
                let info = section(TableId::SmInfo, data, data + 64);
                let info = info.filter(|_| attribute == AttributeId::SM_INFO);
                [body, section(TableId::SmpDirected, start, start + SmpDirected::LEN), info, None]
            }
            (MgmtClass::SUBNET_ADMIN, attribute) => {
                let sa = start + Rmpp::LEN;
                let record = section(TableId::PathRecord, sa + Sa::LEN, sa + Sa::LEN + 64);
                let record = record.filter(|_| attribute == AttributeId::SA_PATH_RECORD);
                let rmpp = section(TableId::Rmpp, start, sa);
                [body, rmpp, section(TableId::Sa, sa, sa + Sa::LEN), record]
            }
            _ => [body, None, None, None],
        }
    }
}

/// A message of the connection manager that begins at `start`, and the RDMA connection manager's header in it.
fn cm_sections(mad: &Mad<'_>, start: usize) -> (Option<Section>, Option<Section>) {
    use cm::Message;
    let Ok(Some(message)) = mad.cm() else {
        return (None, None);
    };
    let section =
        |table, from: usize| Section { table, range: start + from..start + cm::MESSAGE_LEN };
    let private = |layout: crate::wire::layout::BitRange| layout.bytes().start;
    let (table, header) = match message {
        Message::Req(req) => {
            let at = private(cm::Req::LAYOUT.private_data);
            (TableId::CmReq, req.ip_cm().map(|_| section(TableId::IpCm, at)))
        }
        Message::SidrReq(req) => {
            let at = private(cm::SidrReq::LAYOUT.private_data);
            (TableId::CmSidrReq, req.ip_cm().map(|_| section(TableId::SidrIpCm, at)))
        }
        Message::Mra(_) => (TableId::CmMra, None),
        Message::Rej(_) => (TableId::CmRej, None),
        Message::Rep(_) => (TableId::CmRep, None),
        Message::Rtu(_) => (TableId::CmRtu, None),
        Message::Dreq(_) => (TableId::CmDreq, None),
        Message::Drep(_) => (TableId::CmDrep, None),
        Message::SidrRep(_) => (TableId::CmSidrRep, None),
        Message::Lap(_) => (TableId::CmLap, None),
        Message::Apr(_) => (TableId::CmApr, None),
    };
    (Some(section(table, 0)), header)
}

/// A field by its name, and everywhere it can stand.
#[derive(Clone, Debug)]
pub struct FieldRef {
    name: &'static str,
    places: Vec<(TableId, &'static Field)>,
}

impl FieldRef {
    /// The field of this name, if there is one.
    pub fn find(name: &str) -> Option<Self> {
        let all =
            TableId::ALL.iter().flat_map(|&id| id.table().fields.iter().map(move |f| (id, f)));
        let places: Vec<_> = all.filter(|(_, field)| field.name == name).collect();
        let name = places.first()?.1.name;
        Some(Self { name, places })
    }

    /// Every name there is, each once, in the order of the layers.
    pub fn names() -> Vec<&'static str> {
        let mut names = Vec::new();
        for field in TABLES.iter().flat_map(|table| table.fields) {
            if !names.contains(&field.name) {
                names.push(field.name);
            }
        }
        names
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How its values are printed and compared.
    pub(super) fn kind(&self) -> &'static Field {
        self.places.first().expect("a field stands somewhere").1
    }

    /// Its values in a frame, in order.
    pub fn values<'c, 'a>(
        &'c self,
        context: &'c Context<'a>,
    ) -> impl Iterator<Item = (&'static Field, Value<'a>)> + use<'c, 'a> {
        context.sections().flat_map(move |section| {
            let here = self.places.iter().filter(move |(table, _)| *table == section.table);
            let layer = context.bytes(&section);
            here.filter_map(move |(_, field)| Some((*field, field.value(context, layer)?)))
        })
    }
}
