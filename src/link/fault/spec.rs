//! Specification of faults as text: `loss=1%,delay=10us,drop=0x11:7:2`. `docs/faults.md` is the
//! reference.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::chance::Faults;
use super::rule::{Action, Rule, Selector};
use crate::capture::Direction;
use crate::wire::{Psn, Qpn};

/// Faults, and the seed of their chances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Faults by chance.
    pub faults: Faults,
    /// Faults by rule.
    pub rules: Vec<Rule>,
    /// Seed of the chances.
    pub seed: u64,
    /// Whether packets that are dropped are written to the capture of the link, if it has one, with
    /// a comment.
    pub keep_dropped: bool,
}

/// Error in the text of a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A part has no value.
    #[error("`{0}` has no value: faults are written as `loss=1%,delay=10us`")]
    NoValue(String),
    /// Unknown fault.
    #[error(
        "there is no fault `{0}`: there are loss, dup, reorder, corrupt, mark (`1%` or `100ppm`), delay, jitter \
         (`10us`), rate (`10G`), queue (`64`), drop (`QPN:PSN:NTH`), seed and keep (`dropped`)"
    )]
    Unknown(String),
    /// A chance is no chance.
    #[error("`{key}={value}`: a chance is `0.1%` or `100ppm`, at most 100%")]
    Chance {
        /// Name of the fault.
        key: &'static str,
        /// Value in the text.
        value: String,
    },
    /// A time is no time.
    #[error("`{key}={value}`: a time is a whole number of ns, us, ms or s: `10us`")]
    Time {
        /// Name of the fault.
        key: &'static str,
        /// Value in the text.
        value: String,
    },
    /// A number is no number.
    #[error("`{key}={value}` is no whole number")]
    Number {
        /// Name of the fault.
        key: &'static str,
        /// Value in the text.
        value: String,
    },
    /// A rate is no rate.
    #[error("`rate={0}`: a rate is in bits a second, with K, M or G: `10G`")]
    Rate(String),
    /// A rule names no packet.
    #[error(
        "`{key}={value}`: a packet is named `QPN:PSN:NTH`, the queue pair that it is for, its PSN, and which time it \
         passes, counted from 1, which may be left out: `0x11:7:2`; `*` is any; op=OPCODE, dir=in, msg=N may follow; for \
         delay, the time is last: `0x11:7:2:10us`"
    )]
    Packet {
        /// Name of the fault.
        key: &'static str,
        /// Value in the text.
        value: String,
    },
    /// No opcode has such a name.
    #[error(
        "`op={0}`: no opcode has this in its name; names are as `roce decode` prints them, such as SEND_ONLY, READ_RESPONSE, \
         ACKNOWLEDGE"
    )]
    Opcode(String),
    /// `keep` has a value other than `dropped`.
    #[error(
        "`keep={0}`: `keep=dropped` writes dropped packets to the capture, marked by a comment"
    )]
    Keep(String),
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
        let by_rule = value.contains([':', '*', '=']);
        let (key, action) = match key {
            "loss" => return chance("loss", value).map(|it| faults.loss = it),
            "dup" if by_rule => ("dup", Action::Duplicate),
            "dup" => return chance("dup", value).map(|it| faults.duplicate = it),
            "reorder" if by_rule => ("reorder", Action::Swap),
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
            "keep" if value == "dropped" => {
                self.keep_dropped = true;
                return Ok(());
            }
            "keep" => return Err(SpecError::Keep(value.to_owned())),
            other => return Err(SpecError::Unknown(other.to_owned())),
        };
        self.rules.push(rule(key, action, value)?);
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

/// Reads a rule: `QPN:PSN:NTH`, then what else is said of the packet, and the time of a delay last.
fn rule(key: &'static str, action: Action, value: &str) -> Result<Rule, SpecError> {
    let wrong = || SpecError::Packet { key, value: value.to_owned() };
    let mut parts: Vec<&str> = value.split(':').collect();
    let action = match action {
        Action::Delay(_) => Action::Delay(time(key, parts.pop().unwrap_or_default())?),
        action => action,
    };
    let mut rule = Rule::new(action);
    let (named, by_position): (Vec<&str>, _) = parts.into_iter().partition(|it| it.contains('='));
    let mut by_position = by_position.into_iter();
    let (qps, psn) = (by_position.next(), by_position.next());
    if named.is_empty() && psn.is_none() {
        return Err(wrong());
    }
    let any = |text: &&str| *text != "*";
    if let Some(qps) = qps.filter(any) {
        let numbers = qps.split('+').map(|qp| number_24(qp).map(Qpn::new));
        rule.qps = Some(numbers.collect::<Option<_>>().ok_or_else(wrong)?);
    }
    if let Some(psn) = psn.filter(any) {
        rule.psn = Some(Psn::new(number_24(psn).ok_or_else(wrong)?));
    }
    let positive = |text: &str| text.parse().ok().filter(|n| *n > 0).ok_or_else(wrong);
    let nth = |text: &str| if text == "*" { Ok(None) } else { positive(text).map(Some) };
    if let Some(text) = by_position.next() {
        rule.nth = nth(text)?;
    }
    for (name, value) in named.iter().filter_map(|it| it.split_once('=')) {
        match (name, value) {
            ("op", name) => {
                let named = Selector::named(name);
                rule.which = Some(named.ok_or_else(|| SpecError::Opcode(name.to_owned()))?);
            }
            ("dir", "in") => rule.direction = Direction::Inbound,
            ("dir", "out") => rule.direction = Direction::Outbound,
            ("msg", value) => rule.message = Some(positive(value)?),
            ("nth", value) => rule.nth = nth(value)?,
            _ => return Err(wrong()),
        }
    }
    if by_position.next().is_some() { Err(wrong()) } else { Ok(rule) }
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
        parts.extend(self.rules.iter().map(ToString::to_string));
        if self.seed > 0 {
            parts.push(format!("seed={}", self.seed));
        }
        if self.keep_dropped {
            parts.push("keep=dropped".to_owned());
        }
        f.write_str(&parts.join(","))
    }
}

impl fmt::Display for Rule {
    /// The rule as a part of a [`Spec`]. One that tests packets by a function has that one's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.action {
            Action::Drop => "drop",
            Action::Duplicate => "dup",
            Action::Delay(_) => "delay",
            Action::Swap => "reorder",
            Action::Corrupt => "corrupt",
            Action::Mark => "mark",
        };
        let or_any = |text: Option<String>| text.unwrap_or_else(|| "*".to_owned());
        let list = |qps: &Vec<Qpn>| {
            let numbers: Vec<String> = qps.iter().map(|qp| format!("{:#x}", qp.get())).collect();
            numbers.join("+")
        };
        let qps = or_any(self.qps.as_ref().map(list));
        let psn = or_any(self.psn.map(|psn| psn.to_string()));
        let nth = or_any(self.nth.map(|nth| nth.to_string()));
        write!(f, "{key}={qps}:{psn}:{nth}")?;
        if let Some(Selector { name, .. }) = &self.which {
            write!(f, ":op={name}")?;
        }
        if self.is_inbound() {
            f.write_str(":dir=in")?;
        }
        if let Some(message) = self.message {
            write!(f, ":msg={message}")?;
        }
        match self.action {
            Action::Delay(extra) => write!(f, ":{}", Time(extra)),
            _ => Ok(()),
        }
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
