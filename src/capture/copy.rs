//! Captures made of parts of others: packets as they stood there, with their interfaces, times and
//! comments.

use std::collections::HashMap;
use std::io::Write;

use super::merge::Merge;
use super::options::{Interface, Options};
use super::reader::{Format, InterfaceId, Record};
use super::write::{PcapWriter, PcapngWriter, WriteError};
use super::{LinkType, pcapng};
use crate::time::Instant;

/// Writes packets of other captures into one, as they stood there.
///
/// A pcapng keeps the interfaces of all files with their options, exact time stamps, and the
/// options of packets (comments, flags); all in one section. A pcap keeps times in nanoseconds; it
/// has no place for the rest, which is counted ([`Lost`]). Blocks that are neither packets nor
/// interfaces are not copied.
///
/// Each record that is read is shown to [`observe`](Self::observe), each that is wanted to
/// [`write`](Self::write), and the end to [`finish`](Self::finish):
///
/// ```
/// use roce::capture::{self, Copier, Format, Merge, Reader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut merge = Merge::new([capture::open("testdata/captures/rxe_cm.pcap".as_ref())?]);
/// let mut copier = Copier::new(Vec::new(), Format::Pcapng, vec![String::new()]);
/// while let Some(record) = merge.next()? {
///     copier.observe(&record)?;
///     if record.len > 300 {
///         copier.write(&record)?;
///     }
/// }
/// copier.finish(&merge)?;
/// assert!(copier.lost().is_nothing());
/// let file = copier.into_inner().unwrap();
/// assert_eq!(Reader::new(&file[..])?.next()?.unwrap().len, 322);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Copier<W> {
    output: Output<W>,
    /// Names of interfaces in files that do not describe them, by file; none if a name is empty.
    names: Vec<String>,
    /// Numbers of each file's interfaces in the output.
    files: HashMap<u32, Interfaces>,
    lost: Lost,
    /// Options on their way, kept to be used again.
    options: Vec<u8>,
}

/// The file that is written. The header of a pcap tells the link type, and so waits for the first
/// packet.
#[derive(Debug)]
enum Output<W> {
    Pcapng(PcapngWriter<W>),
    Pcap(PcapWriter<W>, LinkType),
    Waiting(Option<W>, Format),
}

/// The interfaces of a section of a file.
#[derive(Debug, Default)]
struct Interfaces {
    section: u32,
    /// Numbers in the output, in their order; `None` for one that was damaged.
    ids: Vec<Option<InterfaceId>>,
    /// Number in the output for packets that name no interface, as those of a pcap, by link type.
    unnamed: HashMap<LinkType, InterfaceId>,
}

/// Number of items that could not be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Packets without a time, which were written with time 0.
    pub times: u64,
    /// Comments that a pcap has no place for.
    pub comments: u64,
    /// Interfaces whose options were too long to be remembered.
    pub interface_options: u64,
}

impl Lost {
    /// Whether all was kept.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

impl<W: Write> Copier<W> {
    /// Writes to `sink`, which should be buffered. `names` are what to call the interfaces of files
    /// that do not describe them, as pcaps do not; an empty name is left out.
    pub fn new(sink: W, format: Format, names: Vec<String>) -> Self {
        Self {
            output: Output::Waiting(Some(sink), format),
            names,
            files: HashMap::new(),
            lost: Lost::default(),
            options: Vec::new(),
        }
    }

    /// Takes notice of a record that was read, whether it is written or not: interfaces that were
    /// described before it are added to a pcapng.
    #[inline]
    pub fn observe(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        let described = record.around.interfaces;
        let known = self.files.get(&record.file);
        if known.is_some_and(|known| {
            known.section == record.section && known.ids.len() == described.len()
        }) {
            return Ok(());
        }
        self.add_interfaces(record.file, record.section, described)
    }

    /// Writes a record that was observed.
    pub fn write(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        self.start(record.link)?;
        self.lost.times += u64::from(record.time.is_none());
        let time = record.time.unwrap_or(Instant::ZERO);
        match &mut self.output {
            Output::Pcap(_, link) if *link != record.link => {
                Err(WriteError::LinkTypes { first: *link, other: record.link })
            }
            Output::Pcap(writer, _) => {
                self.lost.comments += record.around.options().comments().count() as u64;
                writer.write(time, record.len, record.data)
            }
            Output::Pcapng(_) => {
                let id = self.interface(record)?;
                let ticks = record.around.ticks().unwrap_or(time.as_nanos());
                self.options.clear();
                push_options(&mut self.options, Kind::Packet, record.around.options())?;
                let Output::Pcapng(writer) = &mut self.output else { return Ok(()) };
                writer.write_with(id, ticks, record.len, record.data, &self.options)
            }
            Output::Waiting(..) => Ok(()),
        }
    }

    /// Ends the capture, once all of `merge` was read: adds the interfaces that have no packets
    /// behind them, closes it ([`PcapngWriter::closing`]), and flushes.
    pub fn finish<R>(&mut self, merge: &Merge<R>) -> Result<(), WriteError> {
        let link = merge.readers().find_map(super::Reader::link);
        self.start(link.unwrap_or(LinkType::ETHERNET))?;
        for (reader, file) in merge.readers().zip(0..) {
            if let Some((section, described)) = reader.interfaces() {
                self.add_interfaces(file, section, described)?;
            }
        }
        match &mut self.output {
            Output::Pcapng(writer) => writer.close(0),
            _ => self.flush(),
        }
    }

    /// Passes on everything that a buffering sink still holds.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match &mut self.output {
            Output::Pcapng(writer) => writer.flush(),
            Output::Pcap(writer, _) => writer.flush(),
            Output::Waiting(..) => Ok(()),
        }
    }

    /// Returns the number of items that could not be kept so far.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// The sink, unflushed; nothing if it failed when the file was begun.
    pub fn into_inner(self) -> Option<W> {
        match self.output {
            Output::Pcapng(writer) => Some(writer.into_inner()),
            Output::Pcap(writer, _) => Some(writer.into_inner()),
            Output::Waiting(sink, _) => sink,
        }
    }

    /// Begins the file, if it has none yet, for packets of this link type.
    fn start(&mut self, link: LinkType) -> Result<(), WriteError> {
        let Output::Waiting(sink, format) = &mut self.output else { return Ok(()) };
        let Some(sink) = sink.take() else { return Ok(()) };
        self.output = match format {
            Format::Pcap => Output::Pcap(PcapWriter::new(sink, link)?, link),
            Format::Pcapng => Output::Pcapng(PcapngWriter::closing(sink)?),
        };
        Ok(())
    }

    /// Adds the interfaces of a section that are not in the output yet.
    #[cold]
    fn add_interfaces(
        &mut self,
        file: u32,
        section: u32,
        described: &[Option<Interface>],
    ) -> Result<(), WriteError> {
        if matches!(self.output, Output::Waiting(_, Format::Pcapng)) {
            self.start(LinkType::ETHERNET)?;
        }
        let known = self.files.entry(file).or_default();
        if known.section != section {
            *known = Interfaces { section, ..Interfaces::default() };
        }
        let Output::Pcapng(writer) = &mut self.output else {
            // A pcap knows no interfaces: that they were seen is all there is to know.
            known.ids.resize(described.len(), None);
            return Ok(());
        };
        for interface in described.get(known.ids.len()..).unwrap_or_default() {
            let id = match interface {
                None => None,
                Some(interface) => {
                    self.lost.interface_options += u64::from(interface.is_cut);
                    self.options.clear();
                    push_options(&mut self.options, Kind::Interface, interface.options())?;
                    if interface.is_cut {
                        interface.clock.push_options(&mut self.options)?;
                    }
                    Some(writer.add_described(interface.link, interface.snaplen, &self.options)?)
                }
            };
            known.ids.push(id);
        }
        Ok(())
    }

    /// The interface of a record in the output; that of a pcap is added with its first packet.
    fn interface(&mut self, record: &Record<'_>) -> Result<InterfaceId, WriteError> {
        let Output::Pcapng(writer) = &mut self.output else { return Ok(InterfaceId(0)) };
        let known = self.files.entry(record.file).or_default();
        if let Some(id) = record.interface {
            let found = known.ids.get(id.0 as usize).copied().flatten();
            return found.ok_or(WriteError::UnknownInterface(id));
        }
        if let Some(&id) = known.unnamed.get(&record.link) {
            return Ok(id);
        }
        let name = self.names.get(record.file as usize).map_or("", String::as_str);
        let id = writer.add_interface(record.link, name)?;
        known.unnamed.insert(record.link, id);
        Ok(id)
    }
}

/// Kind of block that options belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Packet,
    Interface,
}

/// Appends options, whatever their byte order, in that of this crate's writers.
fn push_options(out: &mut Vec<u8>, kind: Kind, options: Options<'_>) -> Result<(), WriteError> {
    for (code, value) in options.iter() {
        let start = out.len();
        super::write::push_option(out, code, value)?;
        if options.is_big_endian() {
            let value = out.get_mut(start + 4..start + 4 + value.len()).unwrap_or_default();
            swap(kind, code, value);
        }
    }
    if !out.is_empty() {
        super::write::push_option(out, pcapng::OPTION_END, &[])?;
    }
    Ok(())
}

/// Turns the numbers in an option's value into the other byte order. Texts, addresses and hashes
/// have none.
fn swap(kind: Kind, code: u16, value: &mut [u8]) {
    /// Custom options begin with the number of their enterprise.
    const CUSTOM: [u16; 4] = [2988, 2989, 19372, 19373];
    let number = match (kind, code) {
        // Flags and queue; dropped packets and the packet's id.
        (Kind::Packet, 2 | 6) => 4,
        (Kind::Packet, 4 | 5) => 8,
        // The time zone; speeds and the offset of times.
        (Kind::Interface, 10) => 4,
        (Kind::Interface, 8 | 14 | 15 | 16) => 8,
        _ if CUSTOM.contains(&code) => 4,
        _ => return,
    };
    if let Some(bytes) = value.get_mut(..number) {
        bytes.reverse();
    }
}
