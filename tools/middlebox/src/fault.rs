//! Faults, and the packets that they apply to.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::log::Direction;
use crate::packet::Packet;
use crate::random::Random;

/// Effect on a packet. One fault at most, and delay and mark beside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effect {
    /// Name of the fault that drops it.
    pub(crate) dropped: Option<&'static str>,
    /// Bit to flip, counted from the end of the BTH.
    pub(crate) corrupt: Option<usize>,
    pub(crate) duplicated: bool,
    pub(crate) reordering: Option<Reordering>,
    pub(crate) delay: Duration,
    pub(crate) marked: bool,
}

/// Condition that ends the holding back of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reordering {
    /// The number of other packets of its direction that must have passed.
    Packets(u32),
    /// A time.
    Time(Duration),
}

impl Effect {
    /// Name of what happens, for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self { corrupt: Some(_), marked: true, .. } => "corrupt+mark",
            Self { corrupt: Some(_), .. } => "corrupt",
            Self { duplicated: true, marked: true, .. } => "duplicate+mark",
            Self { duplicated: true, .. } => "duplicate",
            Self { reordering: Some(_), marked: true, .. } => "reorder+mark",
            Self { reordering: Some(_), .. } => "reorder",
            Self { marked: true, .. } => "mark",
            _ => "",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Loss,
    Duplicate,
    Corrupt,
    Mark,
    Reorder(Reordering),
    Delay(Duration),
    Mtu(usize),
    Cut(Duration, Option<Duration>),
    Rate(Bottleneck),
}

/// Egress port of a switch: a rate, and a queue that marks packets and drops those for which it has
/// no room.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bottleneck {
    /// Rate, in bit/s.
    rate: u64,
    /// Bytes that may wait.
    queue: u64,
    /// Bytes in the queue from which on packets are marked, and those at which `pmax` of them are;
    /// above, all are.
    kmin: u64,
    kmax: u64,
    pmax: f64,
}

/// Bytes of a frame beyond its IP packet: Ethernet header and FCS, preamble and gap.
const FRAME_OVERHEAD: u64 = 14 + 4 + 20;

impl Bottleneck {
    /// Lets a packet into the queue of which `left` is the time until it is empty.
    fn enter(self, left: Duration, packet: &Packet, random: &mut Random, effect: &mut Effect) {
        let waiting = left.as_nanos() * u128::from(self.rate) / 8_000_000_000;
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        let bytes = packet.ip_len as u64 + FRAME_OVERHEAD;
        if waiting + bytes > self.queue {
            effect.dropped = Some("queue");
            return;
        }
        let share = match waiting {
            _ if waiting <= self.kmin => 0.0,
            _ if waiting <= self.kmax => {
                self.pmax * (waiting - self.kmin) as f64 / (self.kmax - self.kmin) as f64
            }
            _ => 1.0,
        };
        effect.marked |= random.chance(share);
        effect.delay = left + Duration::from_nanos(bytes * 8_000_000_000 / self.rate);
    }
}

/// Packets to which a fault applies that is for some only.
#[derive(Clone, Debug)]
enum Trigger {
    Always,
    Chance(f64),
    /// Packets by number among the selected ones, from 1.
    Index(BTreeSet<u64>),
}

#[derive(Clone, Debug)]
struct Fault {
    kind: Kind,
    direction: Option<Direction>,
    /// Opcodes that it is for; all, if there is none.
    opcodes: Vec<RangeInclusive<u8>>,
    trigger: Trigger,
    /// Number of selected packets in a row, each time.
    burst: u64,
    /// Number of selected packets so far, and left of a burst, by direction.
    seen: [u64; 2],
    left: [u64; 2],
    /// Times at which the queues of a bottleneck are empty.
    empty: [Option<Instant>; 2],
}

impl Fault {
    /// Whether it happens to a packet.
    fn strikes(&mut self, direction: Direction, packet: &Packet, random: &mut Random) -> bool {
        let is_selected = self.direction.is_none_or(|it| it == direction)
            && (self.opcodes.is_empty()
                || self.opcodes.iter().any(|it| it.contains(&packet.opcode)));
        if !is_selected {
            return false;
        }
        let at = direction.index();
        self.seen[at] += 1;
        if self.left[at] > 0 {
            self.left[at] -= 1;
            return true;
        }
        let begins = match &self.trigger {
            Trigger::Always => true,
            Trigger::Chance(probability) => random.chance(*probability),
            Trigger::Index(numbers) => numbers.contains(&self.seen[at]),
        };
        if begins {
            self.left[at] = self.burst - 1;
        }
        begins
    }
}

/// All faults of a middlebox.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
    random: Random,
    /// Time of the first packet.
    began: Option<Instant>,
}

impl Faults {
    /// Reads what the command line says.
    pub(crate) fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, String> {
        let mut this = Self { faults: Vec::new(), random: Random(1), began: None };
        for word in words.iter().map(AsRef::as_ref) {
            match word.strip_prefix("seed=") {
                Some(seed) => this.random = Random(number(seed)?),
                None => this.faults.push(fault(word).map_err(|why| format!("{word}: {why}"))?),
            }
        }
        Ok(this)
    }

    /// Decides what happens with a packet.
    pub(crate) fn decide(&mut self, now: Instant, direction: Direction, packet: &Packet) -> Effect {
        let elapsed = now - *self.began.get_or_insert(now);
        let mut effect = Effect::default();
        for fault in &mut self.faults {
            if !fault.strikes(direction, packet, &mut self.random) {
                continue;
            }
            let is_unharmed = effect.corrupt.is_none()
                && !effect.duplicated
                && effect.reordering.is_none()
                && effect.dropped.is_none();
            match fault.kind {
                Kind::Mark => effect.marked = true,
                Kind::Delay(time) => effect.delay = time,
                Kind::Mtu(most) if packet.ip_len > most => effect.dropped = Some("mtu"),
                Kind::Cut(from, time)
                    if elapsed >= from && time.is_none_or(|time| elapsed < from + time) =>
                {
                    effect.dropped = Some("cut");
                }
                Kind::Mtu(_) | Kind::Cut(..) => {}
                Kind::Rate(port) => {
                    let empty = &mut fault.empty[direction.index()];
                    let left = empty.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
                    port.enter(left, packet, &mut self.random, &mut effect);
                    if effect.dropped.is_none() {
                        *empty = Some(now + effect.delay);
                    }
                }
                _ if !is_unharmed => {}
                Kind::Loss => effect.dropped = Some("loss"),
                Kind::Corrupt => effect.corrupt = Some(self.random.below(packet.bits())),
                Kind::Duplicate => effect.duplicated = true,
                Kind::Reorder(how) => effect.reordering = Some(how),
            }
        }
        effect
    }
}

/// Reads a fault: `[DIRECTION:]KIND[=VALUE][,KEY=VALUE]...`.
fn fault(word: &str) -> Result<Fault, String> {
    let (direction, word) = match word.split_once(':') {
        Some(("there", rest)) => (Some(Direction::There), rest),
        Some(("back", rest)) => (Some(Direction::Back), rest),
        Some((other, _)) => return Err(format!("{other} is no direction: there, back")),
        None => (None, word),
    };
    let mut parts = word.split(',');
    let first = parts.next().unwrap_or_default();
    let (name, value) = first.split_once('=').map_or((first, None), |(k, v)| (k, Some(v)));
    let (mut opcodes, mut index, mut burst) = (Vec::new(), None, 1);
    let (mut reordering, mut lasts) = (None, None);
    let mut port =
        Bottleneck { rate: 0, queue: u64::MAX, kmin: u64::MAX, kmax: u64::MAX, pmax: 1.0 };
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part} has no value"))?;
        match key {
            "opcode" => opcodes = value.split('+').map(range).collect::<Result<_, _>>()?,
            "index" => index = Some(value.split('+').map(number).collect::<Result<_, _>>()?),
            "burst" => burst = number::<u64>(value)?.max(1),
            "packets" => reordering = Some(Reordering::Packets(number(value)?)),
            "time" => reordering = Some(Reordering::Time(time(value)?)),
            "for" => lasts = Some(time(value)?),
            "queue" => port.queue = number(value)?,
            "kmin" => port.kmin = number(value)?,
            "kmax" => port.kmax = number(value)?,
            "pmax" => port.pmax = chance(value)?,
            _ => {
                return Err(format!(
                    "{key} is no key: opcode, index, burst, packets, time, for, queue, kmin, kmax, \
                     pmax"
                ));
            }
        }
    }
    let needed = value.ok_or("has no value");
    let kind = match name {
        "loss" => Kind::Loss,
        "duplicate" => Kind::Duplicate,
        "corrupt" => Kind::Corrupt,
        "mark" => Kind::Mark,
        "reorder" => Kind::Reorder(reordering.ok_or("needs packets=N or time=T")?),
        "delay" => Kind::Delay(time(needed?)?),
        "mtu" => Kind::Mtu(number(needed?)?),
        "cut" => Kind::Cut(time(needed?)?, lasts),
        "rate" => {
            port.rate = rate(needed?)?;
            if port.kmin >= port.kmax && port.kmin < u64::MAX {
                return Err("kmin must be below kmax".into());
            }
            Kind::Rate(port)
        }
        _ => return Err(format!("{name} is no fault")),
    };
    let is_for_all = matches!(kind, Kind::Delay(_) | Kind::Mtu(_) | Kind::Cut(..) | Kind::Rate(_));
    let trigger = match (index, value) {
        (Some(_), Some(_)) if !is_for_all => return Err("has both a chance and an index".into()),
        (Some(numbers), _) => Trigger::Index(numbers),
        (None, _) if is_for_all => Trigger::Always,
        (None, Some(value)) => Trigger::Chance(chance(value)?),
        (None, None) => return Err("needs a chance (0.5%) or index=".into()),
    };
    let (seen, left, empty) = ([0; 2], [0; 2], [None; 2]);
    Ok(Fault { kind, direction, opcodes, trigger, burst, seen, left, empty })
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// Reads `12` or `13-16`.
fn range(text: &str) -> Result<RangeInclusive<u8>, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Ok(number(from)?..=number(to)?)
}

/// Reads `0.5%` or `0.005`.
fn chance(text: &str) -> Result<f64, String> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |it| (it, 100.0));
    let chance = number::<f64>(digits)? / scale;
    (0.0..=1.0).contains(&chance).then_some(chance).ok_or_else(|| format!("{text} is no chance"))
}

/// Reads `1G`, `800M` or `1000K`, in bit/s.
fn rate(text: &str) -> Result<u64, String> {
    let units = [("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let found = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let (digits, bits) = found.ok_or_else(|| format!("{text} has no unit: K, M, G"))?;
    let rate = number::<u64>(digits)?.saturating_mul(*bits);
    if rate == 0 { Err(format!("{text} is no rate")) } else { Ok(rate) }
}

/// Reads `46ms`, `200us` or `1s`.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let found = units.iter().find_map(|(unit, micros)| Some((text.strip_suffix(unit)?, micros)));
    let (digits, micros) = found.ok_or_else(|| format!("{text} has no unit: us, ms, s"))?;
    Ok(Duration::from_micros(number::<u64>(digits)?.saturating_mul(*micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(opcode: u8, ip_len: usize) -> Packet {
        let mut packet = Packet::of(&crate::packet::tests::frame()).unwrap();
        (packet.opcode, packet.ip_len) = (opcode, ip_len);
        packet
    }

    /// Numbers of the packets of a direction that are dropped.
    fn dropped(words: &[&str], direction: Direction, packets: &[Packet]) -> Vec<usize> {
        let (mut faults, now) = (Faults::parse(words).unwrap(), Instant::now());
        let mut decide = |packet| faults.decide(now, direction, packet).dropped.is_some();
        (1..).zip(packets).filter(|(_, packet)| decide(packet)).map(|(at, _)| at).collect()
    }

    #[test]
    fn packets_are_selected_by_number_opcode_and_direction() {
        let packets: Vec<Packet> = (0..10).map(|at| packet(4 + at % 2, 100)).collect();
        let all = |words: &[&str]| dropped(words, Direction::There, &packets);
        assert_eq!(all(&["loss,index=2+5"]), [2, 5]);
        assert_eq!(all(&["loss,index=2,burst=3"]), [2, 3, 4]);
        assert_eq!(all(&["loss,index=2,opcode=5"]), [4]);
        assert_eq!(all(&["loss,index=2,opcode=5,burst=2"]), [4, 6]);
        assert_eq!(all(&["there:loss,index=1"]), [1]);
        assert_eq!(all(&["back:loss=1"]), []);
        assert_eq!(all(&["loss=100%,opcode=0-4"]), [1, 3, 5, 7, 9]);
    }

    #[test]
    fn long_packets_vanish_in_a_black_hole() {
        let packets = [packet(4, 1000), packet(4, 1001)];
        assert_eq!(dropped(&["mtu=1000"], Direction::Back, &packets), [2]);
    }

    #[test]
    fn cut_link_drops_everything_for_a_time() {
        let mut faults = Faults::parse(&["cut=10ms,for=5ms"]).unwrap();
        let (now, packet) = (Instant::now(), packet(4, 100));
        let mut at = |millis| {
            let now = now + Duration::from_millis(millis);
            faults.decide(now, Direction::There, &packet).dropped
        };
        assert_eq!(
            [at(0), at(9), at(10), at(14), at(15)],
            [None, None, Some("cut"), Some("cut"), None]
        );
    }

    #[test]
    fn packet_has_one_fault_at_most() {
        let words = ["duplicate=1", "reorder=1,packets=2", "corrupt=1", "delay=1ms", "mark=1"];
        let mut faults = Faults::parse(&words).unwrap();
        let effect = faults.decide(Instant::now(), Direction::There, &packet(4, 100));
        assert_eq!(effect.name(), "duplicate+mark");
        assert_eq!((effect.reordering, effect.corrupt), (None, None));
        assert_eq!(effect.delay, Duration::from_millis(1));
    }

    #[test]
    fn chances_are_met_and_repeat_with_the_seed() {
        let packets = vec![packet(4, 100); 10_000];
        let lost = |seed: &str| dropped(&[seed, "loss=5%"], Direction::There, &packets);
        assert!((400..600).contains(&lost("seed=1").len()));
        assert_eq!(lost("seed=1"), lost("seed=1"));
        assert_ne!(lost("seed=1"), lost("seed=2"));
    }

    #[test]
    fn a_bottleneck_delays_marks_and_drops_by_its_queue() {
        // A thousand bytes on the wire last 8 µs.
        let words = ["there:rate=1G,queue=10000,kmin=3000,kmax=6000,pmax=0"];
        let mut faults = Faults::parse(&words).unwrap();
        let (now, packet) = (Instant::now(), packet(4, 1000 - 38));
        let effects: Vec<Effect> =
            (0..12).map(|_| faults.decide(now, Direction::There, &packet)).collect();
        for (at, effect) in (0..).zip(&effects[..10]) {
            assert_eq!(effect.delay, Duration::from_micros(8 * (at + 1)));
            assert_eq!((effect.marked, effect.dropped), (at > 6, None), "packet {at}");
        }
        assert!(effects[10..].iter().all(|effect| effect.dropped == Some("queue")));
        let later = now + Duration::from_micros(8);
        assert_eq!(faults.decide(later, Direction::There, &packet).dropped, None, "room again");
        assert_eq!(faults.decide(now, Direction::Back, &packet).delay, Duration::ZERO);
    }

    #[test]
    fn mistakes_are_named() {
        for (word, why) in [
            ("los=1%", "los is no fault"),
            ("loss", "needs a chance"),
            ("loss=2", "is no chance"),
            ("loss=1%,index=3", "both a chance and an index"),
            ("reorder=1%", "needs packets=N or time=T"),
            ("delay=5", "has no unit"),
            ("rate=1", "has no unit: K, M, G"),
            ("rate=1G,kmin=2,kmax=1", "kmin must be below kmax"),
            ("up:loss=1%", "up is no direction"),
            ("loss=1%,often=1", "often is no key"),
        ] {
            let error = Faults::parse(&[word]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
