//! A summary for machines: one JSON object. With the feature `analysis`, which has serde.

use core::fmt::Display;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::{Summary, VERDICTS, address_text};

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let verdicts = VERDICTS.map(|verdict| (verdict.name(), self.verdicts[verdict as usize]));
        let mut object = out.serialize_map(None)?;
        object.serialize_entry("frames", &self.frames)?;
        object.serialize_entry("bytes", &self.bytes)?;
        object.serialize_entry("roce_frames", &self.roce_frames)?;
        object.serialize_entry("trains", &self.trains)?;
        object.serialize_entry("incomplete", &self.malformed)?;
        let skipped = Skipped { places: self.skips, bytes: self.skipped_bytes };
        object.serialize_entry("skipped", &skipped)?;
        object.serialize_entry("first_time", &self.first_time.map(|time| time.to_string()))?;
        object.serialize_entry("last_time", &self.last_time.map(|time| time.to_string()))?;
        object.serialize_entry("icrc", &by_name(verdicts))?;
        object.serialize_entry("opcodes", &by_name(self.opcodes()))?;
        object.serialize_entry("naks", &by_name(self.naks()))?;
        let rnrs = self.rnrs().map(|(timer, count)| (timer.micros(), count));
        object.serialize_entry("rnrs_us", &by_name(rnrs))?;
        object.serialize_entry("cnps", &self.congested)?;
        object.serialize_entry("conversations", &self.conversations_for_machines())?;
        object.serialize_entry("other_packets", &self.elsewhere.packets)?;
        object.end()
    }
}

impl Summary {
    fn conversations_for_machines(&self) -> Vec<Conversation> {
        let all = self.sorted().into_iter();
        all.map(|(who, what)| Conversation {
            src: address_text(who.source).to_string(),
            dst: address_text(who.destination).to_string(),
            destqp: who.qp.get(),
            packets: what.packets,
            payload_bytes: what.payload,
        })
        .collect()
    }
}

#[derive(serde::Serialize)]
struct Skipped {
    places: u64,
    bytes: u64,
}

#[derive(serde::Serialize)]
struct Conversation {
    src: String,
    dst: String,
    destqp: u32,
    packets: u64,
    payload_bytes: u64,
}

/// An object of counts, in the order of the list.
struct ByName(Vec<(String, u64)>);

fn by_name<K: Display>(counts: impl IntoIterator<Item = (K, u64)>) -> ByName {
    ByName(counts.into_iter().map(|(name, count)| (name.to_string(), count)).collect())
}

impl Serialize for ByName {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(self.0.iter().map(|(name, count)| (name, count)))
    }
}
