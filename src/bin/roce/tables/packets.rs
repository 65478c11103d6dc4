//! The table of packets: fields of the decoder as columns.

use roce::decode::{Context, FieldRef, FieldSet, Value, ValueKind};

use super::column::{Column, Kind};
use super::table::Rows;

/// The fields that are columns where the user names none.
const FIELDS: &[&str] = &[
    "frame.number",
    "frame.time_epoch",
    "frame.len",
    "frame.cap_len",
    "frame.interface_id",
    "eth.src",
    "eth.dst",
    "vlan.id",
    "vlan.priority",
    "ip.src",
    "ip.dst",
    "ip.dsfield.dscp",
    "ip.dsfield.ecn",
    "ip.ttl",
    "ip.id",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.tclass.dscp",
    "ipv6.tclass.ecn",
    "ipv6.flow",
    "ipv6.hlim",
    "udp.srcport",
    "udp.dstport",
    "infiniband.grh.sgid",
    "infiniband.grh.dgid",
    "infiniband.bth.opcode",
    "roce.opcode_name",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "roce.bth.fecn",
    "roce.bth.becn",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "roce.aeth.kind",
    "roce.aeth.credits",
    "roce.aeth.rnr_us",
    "roce.aeth.nak",
    "infiniband.immdt",
    "infiniband.ieth",
    "data.len",
    "roce.icrc",
    "roce.error",
];

/// The columns of the table of packets.
pub(crate) struct Packets {
    fields: Vec<FieldRef>,
    set: FieldSet,
}

/// The position of the column `frame_time_epoch`, by which row groups are sorted.
pub(crate) const TIME_EPOCH: usize = 2;

/// The position of the first column that is a field as it is; those before it are the number and
/// two forms of the time.
const FIRST_FIELD: usize = 3;

impl Packets {
    /// The columns for the fields that the user names, or for those that most questions need.
    pub(crate) fn new(chosen: &[FieldRef]) -> Self {
        let default = || FIELDS.iter().filter_map(|name| FieldRef::find(name)).collect();
        let mut fields = if chosen.is_empty() { default() } else { chosen.to_vec() };
        fields.retain(|field| !["frame.number", "frame.time_epoch"].contains(&field.name()));
        let mut seen = Vec::new();
        fields.retain(|field| {
            let new = !seen.contains(&field.name());
            seen.push(field.name());
            new
        });
        Self { set: FieldSet::new(&fields), fields }
    }

    /// Columns without rows.
    pub(crate) fn columns(&self) -> Rows {
        let mut columns = vec![
            Column::new("frame_number", Kind::Int),
            Column::new("frame_time", Kind::Time),
            Column::new("frame_time_epoch", Kind::Int),
        ];
        columns.extend(self.fields.iter().map(|field| {
            let kind = match field.value_kind() {
                ValueKind::Number => Kind::Int,
                ValueKind::WideNumber => Kind::Wide,
                ValueKind::Nanos => Kind::Float,
                ValueKind::Bytes => Kind::Bytes,
                ValueKind::Text => Kind::Text,
            };
            Column::new(field.name().replace('.', "_"), kind)
        }));
        Rows::new(columns)
    }

    /// Adds the row of a packet. `text` is memory to use.
    pub(crate) fn add(&self, packet: &Context<'_>, rows: &mut Rows, text: &mut String) {
        let row = rows.add();
        let columns = rows.columns.as_mut_slice();
        if let [number, time, time_epoch, ..] = columns {
            number.set_uint(row, packet.number);
            if let Some(instant) = packet.time {
                time.set_uint(row, instant.as_nanos());
                time_epoch.set_uint(row, instant.as_nanos());
            }
        }
        let Some(columns) = columns.get_mut(FIRST_FIELD..) else { return };
        self.set.visit(packet, |position, field, value| {
            let Some(column) = columns.get_mut(position) else { return };
            match value {
                Value::Uint(number) => column.set_uint(row, number),
                Value::Nanos(nanos) => column.set_float(row, seconds(nanos)),
                Value::Bytes(bytes) if column.holds_bytes() => column.set_text(row, bytes),
                Value::Text(word) => column.set_text(row, word.as_bytes()),
                Value::Bytes(_) | Value::Opcode(_) | Value::Error(_) => {
                    text.clear();
                    field.write(&value, text);
                    column.set_text(row, text.as_bytes());
                }
            }
        });
    }
}

/// Nanoseconds as seconds.
fn seconds(nanos: i128) -> f64 {
    nanos as f64 / 1e9
}
