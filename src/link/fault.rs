//! Faults on a live link: what the simulated network does to packets, done to those that are sent.
//!
//! The same [`Faults`] and [`Rule`]s as in [`mem`](super::mem), decided by the same code and as repeatable: the same
//! seed gives the same decisions for the same packets. Packets that are held back are sent when their time has come, which
//! [`poll_timeout`](super::Sender::poll_timeout) tells. A [`Spec`] is how a person writes it down:
//!
//! ```
//! use roce::link::fault::Spec;
//!
//! let spec: Spec = "loss=1%,delay=10us,jitter=5us,drop=0x11:7:2,seed=3".parse()?;
//! assert_eq!(spec.faults.loss, 10_000);
//! assert_eq!(spec.to_string(), "loss=1%,delay=10us,jitter=5us,drop=0x11:7:2,seed=3");
//! # Ok::<(), roce::link::fault::SpecError>(())
//! ```
//!
//! A [`tap`](super::tap) belongs inside: it then sees what goes out, damage, doubles and all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

pub use super::impairment::{Action, Faults, Rule};
use super::impairment::{Arrival, Decision, Impairments};
use super::{Link, Sender};
use crate::time::Instant;
use crate::wire::{Batch, ICRC_ROOM, Path, Psn, Qpn};

/// The most packets that are held back; further ones are lost and counted.
pub const HELD_MAX: usize = 1 << 16;

/// How many packets are passed on at once.
const PASSED_ON_MAX: usize = 64;

/// What headers there are before a BTH, for the time that a packet takes: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Which faults, and which seed their chances follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Faults by chance.
    pub faults: Faults,
    /// Faults by rule.
    pub rules: Vec<Rule>,
    /// What the chances follow from.
    pub seed: u64,
}

/// Why a text is no [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A part has no value.
    #[error("`{0}` has no value: faults are written as `loss=1%,delay=10us`")]
    NoValue(String),
    /// There is no such fault.
    #[error(
        "there is no fault `{0}`: there are loss, dup, reorder, corrupt, mark (`1%` or `100ppm`), delay, jitter \
         (`10us`), rate (`10G`), queue (`64`), drop (`QPN:PSN:NTH`) and seed"
    )]
    Unknown(String),
    /// A chance is no chance.
    #[error("`{key}={value}`: a chance is `0.1%` or `100ppm`, at most 100%")]
    Chance {
        /// Which fault.
        key: &'static str,
        /// What it was given.
        value: String,
    },
    /// A time is no time.
    #[error("`{key}={value}`: a time is a whole number of ns, us, ms or s: `10us`")]
    Time {
        /// Which fault.
        key: &'static str,
        /// What it was given.
        value: String,
    },
    /// A number is no number.
    #[error("`{key}={value}` is no whole number")]
    Number {
        /// Which fault.
        key: &'static str,
        /// What it was given.
        value: String,
    },
    /// A rate is no rate.
    #[error("`rate={0}`: a rate is in bits a second, with K, M or G: `10G`")]
    Rate(String),
    /// A rule names no packet.
    #[error(
        "`{key}={value}`: a packet is named `QPN:PSN:NTH`, the queue pair that it is for, its PSN, and which time it \
         passes, counted from 1, which may be left out: `0x11:7:2`; for delay, the time follows: `0x11:7:2:10us`"
    )]
    Packet {
        /// Which fault.
        key: &'static str,
        /// What it was given.
        value: String,
    },
}

/// A link that does to its packets what `spec` says.
#[must_use]
pub fn inject(link: Link, spec: &Spec) -> Link {
    let mut impairments = Impairments::new(spec.faults, spec.seed);
    spec.rules.iter().for_each(|rule| impairments.add_rule(*rule));
    let sender = FaultSender {
        inner: link.sender,
        impairments,
        held: BinaryHeap::new(),
        sent: 0,
        passing: Batch::new(PASSED_ON_MAX),
        counts: Counts::default(),
    };
    Link { sender: Box::new(sender), ..link }
}

/// The half that sends. The half that receives is the inner link's own.
struct FaultSender {
    inner: Box<dyn Sender>,
    impairments: Impairments,
    /// What is held back, the earliest first; of several, the one sent first.
    held: BinaryHeap<Reverse<Held>>,
    sent: u64,
    /// What is passed on.
    passing: Batch,
    counts: Counts,
}

/// What was done to packets.
#[derive(Debug, Default)]
struct Counts {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    marked: u64,
    queue_full: u64,
    overflow: u64,
}

/// A packet that is held back.
struct Held {
    time: Instant,
    number: u64,
    path: Path,
    /// From its BTH to its last pad byte.
    packet: Vec<u8>,
    damage: Option<u32>,
}

impl FaultSender {
    fn decide(&mut self, now: Instant, path: &Path, bytes: &[u8]) {
        let packet = bytes.get(..bytes.len().saturating_sub(ICRC_ROOM)).unwrap_or_default();
        let to = path.destination;
        let arrival = match self.impairments.decide(now, to, packet, HEADERS + bytes.len()) {
            Decision::Lost => return self.counts.lost += 1,
            Decision::QueueFull => return self.counts.queue_full += 1,
            Decision::Arrives(arrival) => arrival,
        };
        let Arrival { time, again, corrupt, mark, held } = arrival;
        let damage = corrupt.and_then(|chance| damaged_bit(chance, bytes.len()));
        let path =
            if mark { Path { traffic_class: path.traffic_class | 3, ..*path } } else { *path };
        self.counts.reordered += u64::from(held);
        self.counts.corrupted += u64::from(damage.is_some());
        self.counts.marked += u64::from(mark);
        self.counts.duplicated += u64::from(again.is_some());
        for time in again.into_iter().chain([time]) {
            self.hold(Held { time, number: 0, path, packet: packet.to_vec(), damage });
        }
    }

    fn hold(&mut self, held: Held) {
        if self.held.len() >= HELD_MAX {
            self.counts.overflow += 1;
            return self.impairments.arrived(held.path.destination);
        }
        self.sent += 1;
        self.held.push(Reverse(Held { number: self.sent, ..held }));
    }

    /// Takes as many packets as there is room for, of those whose time has come.
    fn take_due(&mut self, now: Instant) {
        while !self.passing.is_full() {
            let due = self.held.peek().is_some_and(|Reverse(next)| next.time <= now);
            if !due {
                return;
            }
            let Some(Reverse(next)) = self.held.pop() else { return };
            self.impairments.arrived(next.path.destination);
            self.passing.push(&next.path, &next.packet);
            if let Some(bit) = next.damage {
                self.passing.damage_last(bit);
            }
        }
    }
}

impl Sender for FaultSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        for (path, bytes) in batch.iter() {
            self.decide(now, path, bytes);
        }
        loop {
            self.passing.clear();
            self.take_due(now);
            let more = self.passing.is_full();
            // An empty batch too, for a link that holds packets back itself.
            self.inner.send(now, &mut self.passing)?;
            if !more {
                return Ok(());
            }
        }
    }

    fn source_port(&self, path: &Path) -> u16 {
        self.inner.source_port(path)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let next = self.held.peek().map(|Reverse(held)| held.time);
        next.into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        let Counts { lost, duplicated, reordered, corrupted, marked, queue_full, overflow } =
            self.counts;
        counters.extend([
            ("fault_lost", lost),
            ("fault_duplicated", duplicated),
            ("fault_reordered", reordered),
            ("fault_corrupted", corrupted),
            ("fault_marked", marked),
            ("fault_queue_full", queue_full),
            ("fault_overflow", overflow),
        ]);
        counters
    }
}

/// The bit that changes of a packet of `len` bytes from its BTH through its ICRC: any that the ICRC covers, so that
/// the damage shows, or one of the ICRC itself.
fn damaged_bit(chance: u64, len: usize) -> Option<u32> {
    /// The byte of a BTH that no ICRC covers.
    const UNCOVERED: u64 = 4;
    let bits = (len as u64).checked_sub(1)? * 8;
    let bit = chance.checked_rem(bits)?;
    let bit = if bit >= UNCOVERED * 8 { bit + 8 } else { bit };
    u32::try_from(bit).ok()
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let no_value = || SpecError::NoValue(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(no_value)?;
            spec.put(key.trim(), value.trim())?;
        }
        Ok(spec)
    }
}

impl Spec {
    /// Takes in one part of a text.
    fn put(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let faults = &mut self.faults;
        let by_rule = value.contains(':');
        let action = match key {
            "loss" => return chance("loss", value).map(|it| faults.loss = it),
            "dup" if by_rule => ("dup", Action::Duplicate),
            "dup" => return chance("dup", value).map(|it| faults.duplicate = it),
            "reorder" => return chance("reorder", value).map(|it| faults.reorder = it),
            "corrupt" if by_rule => ("corrupt", Action::Corrupt),
            "corrupt" => return chance("corrupt", value).map(|it| faults.corrupt = it),
            "mark" if by_rule => ("mark", Action::Mark),
            "mark" => return chance("mark", value).map(|it| faults.mark = it),
            "delay" if by_rule => ("delay", Action::Delay(Duration::ZERO)),
            "delay" => return time("delay", value).map(|it| faults.delay = it),
            "jitter" => return time("jitter", value).map(|it| faults.jitter = it),
            "rate" => return rate(value).map(|it| faults.bits_per_second = it),
            "queue" => return number("queue", value).map(|it| faults.queue = it),
            "drop" => ("drop", Action::Drop),
            "seed" => return number("seed", value).map(|it| self.seed = it),
            other => return Err(SpecError::Unknown(other.to_owned())),
        };
        self.rules.push(rule(action.0, action.1, value)?);
        Ok(())
    }
}

/// A chance, in parts per million.
fn chance(key: &'static str, value: &str) -> Result<u32, SpecError> {
    let parsed = match (value.strip_suffix('%'), value.strip_suffix("ppm")) {
        (Some(percent), _) => {
            let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            let part = if digits { format!("{part:0<4}") } else { String::new() };
            // Four digits behind the point are parts per million; more would be lost.
            let part = if part.len() == 4 { part.parse::<u32>().ok() } else { None };
            let whole = whole.parse::<u32>().ok().filter(|whole| *whole <= 100);
            whole.zip(part).map(|(whole, part)| whole * 10_000 + part)
        }
        (None, Some(ppm)) => ppm.parse().ok(),
        (None, None) => None,
    };
    let wrong = || SpecError::Chance { key, value: value.to_owned() };
    parsed.filter(|millionths| *millionths <= 1_000_000).ok_or_else(wrong)
}

/// The units of time, the largest first, in nanoseconds.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

fn time(key: &'static str, value: &str) -> Result<Duration, SpecError> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let nanos =
        number.parse().ok().zip(factor).and_then(|(n, factor): (u64, _)| n.checked_mul(factor));
    let wrong = || SpecError::Time { key, value: value.to_owned() };
    nanos.map(Duration::from_nanos).ok_or_else(wrong)
}

fn number<T: FromStr>(key: &'static str, value: &str) -> Result<T, SpecError> {
    value.parse().map_err(|_| SpecError::Number { key, value: value.to_owned() })
}

/// The factors of rates, the largest first.
const FACTORS: [(&str, u64); 4] = [("G", 1_000_000_000), ("M", 1_000_000), ("K", 1000), ("", 1)];

fn rate(value: &str) -> Result<u64, SpecError> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let factor = FACTORS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bits = number
        .parse()
        .ok()
        .zip(factor)
        .and_then(|(n, (_, factor)): (u64, _)| n.checked_mul(*factor));
    bits.ok_or_else(|| SpecError::Rate(value.to_owned()))
}

fn rule(key: &'static str, action: Action, value: &str) -> Result<Rule, SpecError> {
    let wrong = || SpecError::Packet { key, value: value.to_owned() };
    let mut parts = value.split(':');
    let qp = parts.next().and_then(number_24).ok_or_else(wrong)?;
    let psn = parts.next().and_then(number_24).ok_or_else(wrong)?;
    let nth = parts.next().unwrap_or("1").parse().ok().filter(|nth| *nth > 0).ok_or_else(wrong)?;
    let action = match (action, parts.next()) {
        (Action::Delay(_), Some(value)) => Action::Delay(time(key, value)?),
        (Action::Delay(_), None) | (_, Some(_)) => return Err(wrong()),
        (action, None) => action,
    };
    match parts.next() {
        None => Ok(Rule { qp: Qpn::new(qp), psn: Psn::new(psn), nth, action }),
        Some(_) => Err(wrong()),
    }
}

/// A number of 24 bits, decimal or hexadecimal.
fn number_24(text: &str) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().filter(|number| *number < 1 << 24)
}

impl fmt::Display for Spec {
    /// The text that gives the same faults again. Without any, it is empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            delay,
            jitter,
            loss,
            duplicate,
            reorder,
            corrupt,
            mark,
            bits_per_second,
            queue,
        } = self.faults;
        let mut parts: Vec<String> = Vec::new();
        let chances = [
            ("loss", loss),
            ("dup", duplicate),
            ("reorder", reorder),
            ("corrupt", corrupt),
            ("mark", mark),
        ];
        for (key, millionths) in chances.into_iter().filter(|(_, chance)| *chance > 0) {
            let percent = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
            let percent = percent.trim_end_matches('0').trim_end_matches('.');
            parts.push(format!("{key}={percent}%"));
        }
        for (key, time) in [("delay", delay), ("jitter", jitter)] {
            if !time.is_zero() {
                parts.push(format!("{key}={}", Time(time)));
            }
        }
        if let Some((unit, factor)) =
            FACTORS.iter().find(|(_, factor)| bits_per_second > 0 && bits_per_second % factor == 0)
        {
            parts.push(format!("rate={}{unit}", bits_per_second / factor));
        }
        if queue > 0 {
            parts.push(format!("queue={queue}"));
        }
        parts.extend(self.rules.iter().map(describe));
        if self.seed > 0 {
            parts.push(format!("seed={}", self.seed));
        }
        f.write_str(&parts.join(","))
    }
}

/// A rule in words.
fn describe(rule: &Rule) -> String {
    let packet = format!("{:#x}:{}:{}", rule.qp.get(), rule.psn, rule.nth);
    match rule.action {
        Action::Drop => format!("drop={packet}"),
        Action::Duplicate => format!("dup={packet}"),
        Action::Delay(extra) => format!("delay={packet}:{}", Time(extra)),
        Action::Corrupt => format!("corrupt={packet}"),
        Action::Mark => format!("mark={packet}"),
    }
}

/// A time in the largest unit that needs no fraction.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        let unit = UNITS.iter().find(|(_, factor)| nanos % factor == 0);
        let (name, factor) = unit.unwrap_or(&("ns", 1));
        write!(f, "{}{name}", nanos / factor)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{PATH, Recorder, Sent, batch_of, link_to, sound};

    fn spec(text: &str) -> Spec {
        text.parse().unwrap()
    }

    /// What goes out of a link with these faults when `psns` are sent at microseconds 0, 1, 2 …, and until all is out.
    fn run(text: &str, psns: u32) -> (Vec<Sent>, Vec<(&'static str, u64)>) {
        let recorder = Recorder::default();
        let mut link = inject(link_to(&recorder), &spec(text));
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        for psn in 0..psns {
            let mut batch = batch_of(&PATH, &[psn]);
            link.sender.send(at(psn.into()), &mut batch).unwrap();
        }
        while let Some(time) = link.sender.poll_timeout() {
            link.sender.send(time, &mut Batch::new(1)).unwrap();
        }
        (recorder.take(), link.sender.counters())
    }

    fn psns(text: &str, count: u32) -> Vec<u32> {
        run(text, count).0.into_iter().map(|(_, psn, _)| psn).collect()
    }

    #[test]
    fn without_faults_everything_passes_at_once_and_sound() {
        let (sent, _) = run("", 5);
        let times: Vec<_> = sent.iter().map(|(time, psn, _)| (*time, *psn)).collect();
        assert_eq!(times, [(0, 0), (1000, 1), (2000, 2), (3000, 3), (4000, 4)]);
        assert!(sent.iter().all(|(.., packet)| sound(packet)));
    }

    #[test]
    fn rules_hit_their_packets() {
        assert_eq!(psns("drop=7:2:1", 4), [0, 1, 3]);
        assert_eq!(psns("dup=0x7:2", 4), [0, 1, 2, 2, 3]);
        assert_eq!(psns("delay=7:1:1:2us", 4), [0, 2, 1, 3]);
        assert_eq!(
            psns("drop=8:2:1,drop=7:3:2", 4),
            [0, 1, 2, 3],
            "another queue pair, a second time"
        );
    }

    #[test]
    fn damage_is_done_after_sealing() {
        let (sent, counters) = run("corrupt=7:1:1", 3);
        let good: Vec<bool> = sent.iter().map(|(.., packet)| sound(packet)).collect();
        assert_eq!(good, [true, false, true]);
        assert!(counters.contains(&("fault_corrupted", 1)));
        // Whatever the dice say: no bit changes that the ICRC does not cover.
        let (sent, _) = run("corrupt=100%,seed=5", 400);
        assert!(sent.iter().all(|(.., packet)| !sound(packet)));
    }

    #[test]
    fn any_bit_may_be_damaged_but_those_without_an_icrc() {
        let bits: std::collections::BTreeSet<_> =
            (0..15 * 8).map(|n| damaged_bit(n, 16).unwrap()).collect();
        assert_eq!(bits.len(), 15 * 8);
        assert!(bits.iter().all(|bit| *bit < 128 && !(32..40).contains(bit)));
        assert_eq!((damaged_bit(3, 0), damaged_bit(3, 1)), (None, None));
    }

    #[test]
    fn marks_are_in_the_path() {
        let (sent, _) = run("mark=7:1:1,dup=7:1", 2);
        let classes: Vec<u8> = sent.iter().map(|(.., packet)| packet[1]).collect();
        assert_eq!(classes, [0, 3, 3]);
        assert!(sent.iter().all(|(.., packet)| sound(packet)));
    }

    #[test]
    fn the_same_seed_gives_the_same_fate() {
        let text = "loss=10%,dup=10%,reorder=10%,corrupt=5%,mark=5%,delay=3us,jitter=2us,seed=9";
        let (first, second) = (run(text, 300), run(text, 300));
        assert_eq!(first, second);
        assert_ne!(first.0, run(&text.replace("=9", "=10"), 300).0);
        assert!(
            first
                .1
                .iter()
                .filter(|(name, _)| *name != "fault_queue_full" && *name != "fault_overflow")
                .all(|(_, count)| *count > 0),
            "{:?}",
            first.1
        );
    }

    #[test]
    fn reordering_needs_no_delay() {
        let order = psns("reorder=20%,seed=1", 200);
        assert_eq!(order.len(), 200);
        assert!(!order.is_sorted());
    }

    #[test]
    fn a_rate_spaces_packets_and_a_queue_loses_them() {
        // 14 + 20 + 8 + 16 bytes are 464 bits: 464 ns at a gigabit.
        let recorder = Recorder::default();
        let mut link = inject(link_to(&recorder), &spec("rate=1G,queue=2"));
        let mut batch = batch_of(&PATH, &[0, 1, 2]);
        link.sender.send(Instant::ZERO, &mut batch).unwrap();
        while let Some(time) = link.sender.poll_timeout() {
            link.sender.send(time, &mut Batch::new(1)).unwrap();
        }
        let times: Vec<_> = recorder.take().iter().map(|(time, psn, _)| (*time, *psn)).collect();
        assert_eq!(times, [(464, 0), (928, 1)]);
        assert!(link.sender.counters().contains(&("fault_queue_full", 1)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "",
            "loss=1%",
            "loss=0.0001%,dup=0.1%,reorder=2%,corrupt=100%,mark=12.5%",
            "delay=10us,jitter=1500ns",
            "rate=10G,queue=64",
            "rate=1500",
            "drop=0x11:7:1,dup=0xffffff:16777215:2,delay=0x1:0:1:3ms,corrupt=0x2:2:2,mark=0x3:1:1,seed=17",
        ] {
            assert_eq!(spec(text).to_string(), text);
        }
        assert_eq!(spec("loss=250ppm").to_string(), "loss=0.025%");
        assert_eq!(spec(" loss = 1% , ,delay=1000us").to_string(), "loss=1%,delay=1ms");
    }

    #[test]
    fn errors_teach() {
        let error = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
        assert_eq!(
            error("loss"),
            "`loss` has no value: faults are written as `loss=1%,delay=10us`"
        );
        assert!(error("lose=1%").starts_with("there is no fault `lose`: there are loss, dup,"));
        for wrong in
            ["loss=1", "loss=101%", "loss=0.00001%", "loss=%", "loss=1.-1%", "loss=2000000ppm"]
        {
            assert_eq!(
                error(wrong),
                format!("`{wrong}`: a chance is `0.1%` or `100ppm`, at most 100%")
            );
        }
        assert_eq!(
            error("delay=10"),
            "`delay=10`: a time is a whole number of ns, us, ms or s: `10us`"
        );
        assert!(error("rate=fast").starts_with("`rate=fast`: a rate is in bits a second"));
        assert_eq!(error("queue=-1"), "`queue=-1` is no whole number");
        for wrong in [
            "drop=7",
            "drop=7:1:0",
            "drop=7:1:1:1us",
            "dup=7:1:1:1",
            "delay=7:1:1",
            "drop=0x1000000:1",
        ] {
            assert!(
                error(wrong).starts_with(&format!("`{wrong}`: a packet is named `QPN:PSN:NTH`")),
                "{wrong}"
            );
        }
    }
}
