//! Several fields of a frame, found together.

use super::Context;
use super::context::FieldRef;
use super::field::{Field, Show, Value};
use super::tables::TABLES;

/// Several fields, found in one pass over the layers of a frame.
#[derive(Clone, Debug)]
pub struct FieldSet {
    /// The fields of each table that are asked for, with their positions in the set.
    tables: Vec<Vec<(usize, &'static Field)>>,
}

impl FieldSet {
    /// The set of these fields, in this order.
    pub fn new(fields: &[FieldRef]) -> Self {
        let mut tables = vec![Vec::new(); TABLES.len()];
        for (position, field) in fields.iter().enumerate() {
            for &(table, field) in field.places() {
                tables[table as usize].push((position, field));
            }
        }
        Self { tables }
    }

    /// Calls `each` with every value that the frame has: the position of its field in the set, the
    /// field, the value.
    #[inline]
    pub fn visit<'a>(
        &self,
        context: &Context<'a>,
        mut each: impl FnMut(usize, &'static Field, Value<'a>),
    ) {
        for section in context.sections() {
            let layer = context.bytes(section);
            for &(position, field) in &self.tables[section.table as usize] {
                if let Some(value) = field.value(context, layer) {
                    each(position, field, value);
                }
            }
        }
    }
}

/// Type of the values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Numbers; those of header fields have at most 32 bits.
    Number,
    /// Numbers of up to 64 bits.
    WideNumber,
    /// Nanoseconds.
    Nanos,
    /// Bytes of the packet.
    Bytes,
    /// Words and addresses.
    Text,
}

impl FieldRef {
    /// Returns the type of its values.
    pub fn value_kind(&self) -> ValueKind {
        let kind = self.kind();
        match kind.show {
            Show::Dec | Show::Hex(_) if kind.is_json_number() => ValueKind::Number,
            Show::Dec | Show::Hex(_) => ValueKind::WideNumber,
            Show::Seconds | Show::Date => ValueKind::Nanos,
            Show::Bytes => ValueKind::Bytes,
            Show::Mac | Show::Ipv4 | Show::Ipv6 | Show::Text => ValueKind::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture;
    use crate::decode::Decoder;
    use crate::wire::ROCE_PORT;

    #[test]
    fn set_has_the_values_of_its_fields() {
        let names = ["infiniband.bth.psn", "ip.addr", "roce.icrc", "frame.time_epoch", "vlan.id"];
        let fields = names.map(|name| FieldRef::find(name).expect("a known field"));
        let set = FieldSet::new(&fields);
        let mut capture = capture::open("testdata/captures/odd.pcapng".as_ref()).expect("opens");
        let mut decoder = Decoder::new(ROCE_PORT);
        let mut seen = 0;
        while let Some(record) = capture.next().expect("is whole") {
            let packet = decoder.decode(&record);
            let mut values = vec![Vec::new(); fields.len()];
            set.visit(&packet, |position, _, value| values[position].push(value));
            for (field, values) in fields.iter().zip(values) {
                let alone: Vec<_> = field.values(&packet).map(|(_, value)| value).collect();
                assert_eq!(alone, values);
                seen += values.len();
            }
        }
        assert!(seen > 500, "{seen} values");
    }
}
