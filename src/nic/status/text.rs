//! A status as text. Each line is a keyword and its values.

use core::fmt::Write as _;
use std::net::Ipv6Addr;

use super::{NicStatus, QpRate, RATES_MAX};
use crate::engine::congestion::State;
use crate::wire::{Gid, Qpn};

/// First line, with the version. A reader ignores lines with keywords that it does not know.
const VERSION: &str = "roce status 1";

/// Maximum number of GIDs and of counters that are read.
pub(super) const LINES_MAX: usize = 1024;

/// Text of a value that is absent.
const NONE: &str = "-";

pub(super) fn write(status: &NicStatus) -> String {
    let mut text = format!("{VERSION}\ndevice {}\nqps {}\n", one_line(&status.device), status.qps);
    // Writing to a string does not fail.
    for gid in &status.gids {
        let _ = writeln!(text, "gid {}", Ipv6Addr::from(gid.0));
    }
    for (name, count) in &status.counters {
        let _ = writeln!(text, "counter {name} {count}");
    }
    for QpRate { qpn, state } in &status.controlled {
        let target = optional(state.target);
        let alpha = optional(state.alpha);
        let _ = writeln!(text, "qp {} {} {target} {alpha} {}", qpn.get(), state.rate, state.cuts);
    }
    text
}

fn one_line(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

fn optional(number: Option<impl ToString>) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
}

/// Returns a status, or `None` if the text is of another version or malformed.
pub(super) fn parse(text: &str) -> Option<NicStatus> {
    let mut lines = text.lines();
    if lines.next()? != VERSION {
        return None;
    }
    let mut status = NicStatus::default();
    for line in lines {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "device" => status.device = one_line(rest),
            "qps" => status.qps = rest.parse().ok()?,
            "gid" => push(&mut status.gids, LINES_MAX, parse_gid(rest)?),
            "counter" => push(&mut status.counters, LINES_MAX, parse_counter(rest)?),
            "qp" => push(&mut status.controlled, RATES_MAX, parse_rate(rest)?),
            _ => {}
        }
    }
    Some(status)
}

fn push<T>(list: &mut Vec<T>, max: usize, value: T) {
    if list.len() < max {
        list.push(value);
    }
}

fn parse_gid(text: &str) -> Option<Gid> {
    text.parse().ok().map(|address: Ipv6Addr| Gid(address.octets()))
}

fn parse_counter(text: &str) -> Option<(String, u64)> {
    let (name, count) = text.split_once(' ')?;
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    name.chars().all(is_name).then_some((name.to_owned(), count.parse().ok()?))
}

fn parse_rate(text: &str) -> Option<QpRate> {
    let mut words = text.split(' ');
    let qpn = words.next()?.parse().ok().filter(|number| *number < 1 << 24).map(Qpn::new)?;
    let rate = words.next()?.parse().ok()?;
    let target = parse_optional(words.next()?)?;
    let alpha = parse_optional(words.next()?)?;
    let cuts = words.next()?.parse().ok()?;
    Some(QpRate { qpn, state: State { rate, target, alpha, cuts } })
}

fn parse_optional<T: core::str::FromStr>(word: &str) -> Option<Option<T>> {
    if word == NONE { Some(None) } else { word.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> NicStatus {
        let rate = |qpn, alpha: Option<u32>| {
            let state = State { rate: 1 << 40, target: alpha.map(u64::from), alpha, cuts: 3 };
            QpRate { qpn: Qpn::new(qpn), state }
        };
        NicStatus {
            device: "roce0 (udp:10.0.0.1)".to_owned(),
            pid: 0,
            gids: vec![Gid([7; 16]), Gid::from(std::net::Ipv4Addr::LOCALHOST)],
            counters: vec![("rcvd_pkts".to_owned(), u64::MAX)],
            qps: 70_000,
            controlled: vec![rate(0xff_fffe, None), rate(17, Some(500_000))],
        }
    }

    #[test]
    fn status_is_read_as_it_was_written() {
        assert_eq!(parse(&write(&status())), Some(status()));
    }

    #[test]
    fn status_with_more_of_a_later_version_is_read() {
        let text = write(&status()).replace("qps", "color blue\nis_new\nqps");
        assert_eq!(parse(&text), Some(status()));
    }

    #[test]
    fn malformed_status_is_refused() {
        for line in [
            "qp 16777216 1 - - 0",
            "qp 1 1 - -",
            "qp 1 1 - x 0",
            "counter a\u{1b}b 1",
            "counter a -1",
            "gid 10.0.0.1.2",
            "qps",
        ] {
            assert_eq!(parse(&format!("{VERSION}\n{line}\n")), None, "{line}");
        }
        assert_eq!(parse(""), None);
        assert_eq!(parse("roce status 2\n"), None);
    }

    #[test]
    fn lists_are_read_to_their_bounds() {
        let lines = "gid ::1\ncounter a 1\nqp 1 1 - - 0\n".repeat(5000);
        let status = parse(&format!("{VERSION}\n{lines}")).unwrap();
        let lengths = [status.gids.len(), status.counters.len(), status.controlled.len()];
        assert_eq!(lengths, [LINES_MAX, LINES_MAX, RATES_MAX]);
    }
}
