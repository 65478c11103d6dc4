//! Log of the middlebox: the events of each packet, and totals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::SystemTime;

use crate::packet::Packet;

/// Direction of a packet through the middlebox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// First interface to second.
    There,
    /// Second interface to first.
    Back,
}

impl Direction {
    /// Index of the interface that it comes from.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::There => 0,
            Self::Back => 1,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::There => "there",
            Self::Back => "back",
        }
    }
}

/// An event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Arrive,
    Drop,
    Depart,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Self::Arrive => "arrive",
            Self::Drop => "drop",
            Self::Depart => "depart",
        }
    }
}

/// A log in CSV.
#[derive(Debug)]
pub(crate) struct Log<W> {
    out: W,
    /// Number of packets that arrived, by direction.
    arrived: [u64; 2],
    totals: BTreeMap<(Direction, &'static str, &'static str), u64>,
}

impl<W: Write> Log<W> {
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "nanos,direction,event,index,opcode,qpn,psn,ip_len,fault")?;
        Ok(Self { out, arrived: [0; 2], totals: BTreeMap::new() })
    }

    /// Notes that a packet has arrived. Returns its number in its direction, from 1.
    pub(crate) fn arrive(&mut self, direction: Direction, packet: &Packet) -> io::Result<u64> {
        self.arrived[direction.index()] += 1;
        let index = self.arrived[direction.index()];
        self.write(direction, Event::Arrive, index, packet, "")?;
        Ok(index)
    }

    /// Notes an event of a packet.
    pub(crate) fn write(
        &mut self,
        direction: Direction,
        event: Event,
        index: u64,
        packet: &Packet,
        fault: &'static str,
    ) -> io::Result<()> {
        *self.totals.entry((direction, event.name(), fault)).or_default() += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Packet { opcode, qpn, psn, ip_len, .. } = packet;
        writeln!(
            self.out,
            "{},{},{},{index},{opcode},{qpn},{psn},{ip_len},{fault}",
            now.as_nanos(),
            direction.name(),
            event.name()
        )
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes everything out; returns a line for each kind of event.
    pub(crate) fn finish(&mut self) -> io::Result<String> {
        self.flush()?;
        let mut text = String::new();
        for ((direction, event, fault), count) in &self.totals {
            let fault = if fault.is_empty() { "" } else { &format!(" {fault}") };
            let _ = writeln!(text, "{}: {event}{fault} {count}", direction.name());
        }
        Ok(text)
    }
}
