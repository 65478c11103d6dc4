//! Groups in words, for text and page.

use super::rule::share;
use super::{Burst, Group, KindShare, KindSummary, Subject};
use crate::analysis::text::units::{count, counted, duration};
use crate::decode::address_text;
use crate::time::{Instant, nanos};

impl Subject {
    /// The subject: `host 192.0.2.7`, `path 192.0.2.9 ↔ 192.0.2.21`.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Path { hosts } => {
                let [a, b] = hosts.map(address_text);
                format!("path {a} ↔ {b}")
            }
            Self::Direction { hosts } => {
                let [a, b] = hosts.map(address_text);
                format!("requests {a} → {b}")
            }
            Self::Host { host } => format!("host {}", address_text(*host)),
            Self::Dscp { dscp } => format!("DSCP {dscp}"),
        }
    }

    /// Advice, in a sentence.
    pub(crate) const fn advice(&self) -> &'static str {
        match self {
            Self::Path { .. } => {
                "Look at the links and switches between these two hosts: both are well with others."
            }
            Self::Direction { .. } => {
                "Look at the route of this direction: queues, drop counters and PFC of the switches on it."
            }
            Self::Host { .. } => {
                "Look at this host first: its NIC, cable and switch port, its CPU and memory."
            }
            Self::Dscp { .. } => {
                "Look at what switches do with this DSCP: its priority, queue, PFC and ECN thresholds."
            }
        }
    }
}

impl Group {
    /// The kinds by which it stands out, in words.
    pub(crate) fn text(&self) -> String {
        self.shares.iter().map(KindShare::text).collect::<Vec<_>>().join("; ")
    }
}

impl KindShare {
    fn text(&self) -> String {
        let Self { affected, connections, rest_affected, rest_connections, .. } = *self;
        let rest = if rest_affected == 0 {
            format!("none of the {} elsewhere", count(rest_connections))
        } else {
            let percent = percent(rest_affected, rest_connections);
            format!("elsewhere {} of {} ({percent})", count(rest_affected), count(rest_connections))
        };
        format!(
            "{} on {} of {} ({}), {rest}",
            self.kind.title(),
            count(affected),
            counted(connections, "connection"),
            percent(affected, connections),
        )
    }
}

impl KindSummary {
    /// Returns the number of connections with findings of this kind, and whether a group explains
    /// them.
    pub(crate) fn text(&self) -> String {
        let Self { affected, connections, hosts, unexplained, .. } = *self;
        let mut text = format!(
            "{} on {} of {} ({}), {}",
            self.kind.title(),
            count(affected),
            counted(connections, "connection"),
            percent(affected, connections),
            counted(hosts, "host"),
        );
        if unexplained == affected {
            text += ": no host, path or DSCP stands out";
        } else if unexplained > 0 {
            text += &format!(": {} not explained by what stands out", count(unexplained));
        }
        text
    }
}

impl Burst {
    /// The time, counted from the begin of the capture, and what begins in it.
    pub(crate) fn text(&self, start: Option<Instant>) -> String {
        let start = start.unwrap_or_default();
        let [from, to] = [self.from, self.to].map(|time| nanos(time.saturating_since(start)));
        format!(
            "time {} to {}: {} of {} with {} have it from then on, at {} of the packets",
            duration(from),
            duration(to),
            count(self.affected),
            counted(self.all_affected, "connection"),
            self.kind.title(),
            percent(self.packets, self.all_packets),
        )
    }
}

/// A part of a whole: `96 %`, `0.2 %`, `under 0.1 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let percent = share(part, whole) * 100.0;
    match percent {
        _ if part == 0 => "0 %".into(),
        _ if percent < 0.1 => "under 0.1 %".into(),
        _ if percent < 10.0 => format!("{percent:.1} %"),
        // Not all is not 100 %.
        _ if part < whole => format!("{:.0} %", percent.min(99.0)),
        _ => "100 %".into(),
    }
}
