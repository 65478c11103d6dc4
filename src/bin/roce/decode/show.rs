//! Conversion of a record to its output: the part of the work that depends only on the record, so
//! that any thread can do it.

use roce::capture::Record;
use roce::decode::{self, Decoder, Filter, Summary};

use super::args::{Args, parse_filter};
use super::flows::{self, Flows};
use super::form::Form;
use crate::links::UnknownLinks;

/// Filter and form of output.
pub(super) struct Show {
    pub(super) form: Form,
    filter: Option<Filter>,
    /// Names of the files if there are several, or if `frame.file` is used; else empty.
    names: Vec<String>,
    /// Whether a field is used that needs the whole capture: one of [`flows::FIELDS`].
    pub(super) needs_flows: bool,
}

/// Output for some packets.
#[derive(Default)]
pub(super) struct Shown {
    /// Number of packets that passed the filter.
    pub(super) packets: u64,
    /// Formatted packets.
    pub(super) text: String,
    /// Summary, if it is asked for.
    pub(super) summary: Box<Summary>,
    /// Frames of unknown link types, which are not decoded.
    pub(super) unknown: UnknownLinks,
}

impl Show {
    pub(super) fn new(args: &Args, names: &[String]) -> anyhow::Result<Self> {
        let filter = args.filter.as_deref().map(parse_filter).transpose()?;
        let form = Form::new(args)?;
        let uses =
            |name| form.shows(name) || filter.as_ref().is_some_and(|f: &Filter| f.uses(name));
        let named = args.files.len() > 1 || uses("frame.file");
        let names = if named { names.to_vec() } else { Vec::new() };
        let needs_flows = flows::FIELDS.into_iter().any(uses);
        Ok(Self { form, filter, names, needs_flows })
    }

    /// Decodes a record, and adds its output to `shown`, up to `limit` packets in all.
    #[inline]
    pub(super) fn take(
        &self,
        decoder: &mut Decoder,
        record: &Record<'_>,
        shown: &mut Shown,
        limit: u64,
    ) {
        self.take_known(decoder, record, shown, &mut None, limit);
    }

    /// Decodes a record with facts about its connection, and adds its output to `shown`, up to
    /// `limit` packets in all.
    #[inline]
    pub(super) fn take_known(
        &self,
        decoder: &mut Decoder,
        record: &Record<'_>,
        shown: &mut Shown,
        flows: &mut Option<Flows>,
        limit: u64,
    ) {
        let Shown { packets, text, summary, unknown } = shown;
        self.decode_known(decoder, record, unknown, flows, |packet| {
            // A train may have more packets than are wanted.
            if *packets < limit {
                *packets += 1;
                self.form.take(packet, text, summary);
            }
        });
    }

    /// Decodes a record, and hands each packet that passes the filter to `take`.
    #[cfg(feature = "parquet")]
    #[inline]
    pub(super) fn decode<'a>(
        &'a self,
        decoder: &'a mut Decoder,
        record: &Record<'a>,
        unknown: &mut UnknownLinks,
        take: impl FnMut(&decode::Context<'a>),
    ) {
        self.decode_known(decoder, record, unknown, &mut None, take);
    }

    /// Decodes a record with facts about its connection, and hands each packet that passes the
    /// filter to `take`: by reference, because a decoded packet is large.
    #[inline]
    pub(super) fn decode_known<'a>(
        &'a self,
        decoder: &'a mut Decoder,
        record: &Record<'a>,
        unknown: &mut UnknownLinks,
        flows: &mut Option<Flows>,
        mut take: impl FnMut(&decode::Context<'a>),
    ) {
        unknown.note(record);
        decoder.decode_with(record, |packet| {
            if let Some(flows) = flows {
                flows.annotate(packet);
            }
            packet.annotations.file = self.names.get(record.file as usize).map(String::as_str);
            if self.filter.as_ref().is_none_or(|filter| filter.matches(packet)) {
                take(packet);
            }
        });
    }
}

impl Shown {
    /// Adds the summary and the unknown link types of later packets.
    pub(super) fn append(&mut self, later: &mut Self) {
        self.summary.append(&later.summary);
        self.unknown.append(&mut later.unknown);
    }

    /// Clears the output, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.packets = 0;
        self.text.clear();
        self.summary.clear();
        self.unknown.clear();
    }
}
