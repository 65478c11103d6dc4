//! Faults by rule: the packets that a rule selects, and its action.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::capture::Direction;
use crate::wire::{Bth, Opcode, OpcodeInfo, Packet, Psn, Qpn, Role, Service, view};

/// Action of a rule on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drops the packet.
    Drop,
    /// Duplicates the packet.
    Duplicate,
    /// Delays the packet.
    Delay(Duration),
    /// Delivers the packet behind the next one of its direction, or after
    /// [`SWAP_TIMEOUT`](super::SWAP_TIMEOUT) if none comes.
    Swap,
    /// A bit of it changes, so that its ICRC is wrong.
    Corrupt,
    /// Marks the packet: congestion experienced.
    Mark,
}

/// A fault rule. All that it says of a packet must be so; without more, it means the first packet
/// that is sent.
///
/// ```
/// use roce::link::fault::{Action, Rule};
/// use roce::wire::{Psn, Qpn};
///
/// // The second time that the packet with PSN 7 passes to queue pair 0x11.
/// let one = Rule::new(Action::Drop).qp(Qpn::new(0x11)).psn(Psn::new(7)).nth(2);
/// // Every ACK that arrives.
/// let all = Rule::new(Action::Drop).opcode("ACKNOWLEDGE").expect("opcodes have it").inbound().every_time();
/// assert_eq!(one.to_string(), "drop=0x11:7:2");
/// assert_eq!(all.to_string(), "drop=*:*:*:op=ACKNOWLEDGE:dir=in");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) action: Action,
    pub(super) direction: Direction,
    /// Destination queue pairs; `None` is any.
    pub(super) qps: Option<Vec<Qpn>>,
    pub(super) psn: Option<Psn>,
    pub(super) which: Option<Selector>,
    /// Number of the message, from 1.
    pub(super) message: Option<u32>,
    /// Number of the matching packet, from 1; `None` is every one.
    pub(super) nth: Option<u32>,
}

impl Rule {
    /// A rule for the first packet that is sent.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self {
            action,
            direction: Direction::Outbound,
            qps: None,
            psn: None,
            which: None,
            message: None,
            nth: Some(1),
        }
    }

    /// Means packets for this queue pair; called again, also for that one.
    #[must_use]
    pub fn qp(mut self, qp: Qpn) -> Self {
        self.qps.get_or_insert_default().push(qp);
        self
    }

    /// Means packets for these queue pairs.
    #[must_use]
    pub fn qps(self, qps: impl IntoIterator<Item = Qpn>) -> Self {
        Self { qps: Some(qps.into_iter().collect()), ..self }
    }

    /// Means packets with this PSN.
    #[must_use]
    pub fn psn(self, psn: Psn) -> Self {
        Self { psn: Some(psn), ..self }
    }

    /// Means packets whose opcode has `part` in its name, in any case, as in `SEND_ONLY` or
    /// `read_response`. `None` if there is no such opcode.
    #[must_use]
    pub fn opcode(self, part: &str) -> Option<Self> {
        Some(Self { which: Some(Selector::named(part)?), ..self })
    }

    /// Means packets whose opcode is one for which `test` holds; `name` is for messages.
    #[must_use]
    pub fn opcodes(self, name: &'static str, test: impl Fn(&OpcodeInfo) -> bool) -> Self {
        let (name, test) = (Cow::Borrowed(name), Test::Opcodes(set_of(test)));
        Self { which: Some(Selector { name, test }), ..self }
    }

    /// Means packets for which `test` holds; `name` is for messages.
    #[must_use]
    pub fn packets(self, name: &'static str, test: fn(&Packet<'_>) -> bool) -> Self {
        let (name, test) = (Cow::Borrowed(name), Test::Packet(test));
        Self { which: Some(Selector { name, test }), ..self }
    }

    /// Means packets of the `n`-th request message for their queue pair, from 1. Of the reliable
    /// services, retransmissions belong to the message that they repeat; but a READ that is resumed
    /// in the middle counts as a message.
    #[must_use]
    pub fn message(self, n: u32) -> Self {
        Self { message: Some(n), ..self }
    }

    /// Means the `n`-th of these packets that passes, from 1. It is the first without this.
    #[must_use]
    pub fn nth(self, n: u32) -> Self {
        Self { nth: Some(n), ..self }
    }

    /// Means each of these packets, whenever it passes.
    #[must_use]
    pub fn every_time(self) -> Self {
        Self { nth: None, ..self }
    }

    /// Means packets that arrive instead of those that are sent.
    #[must_use]
    pub fn inbound(self) -> Self {
        self.direction(Direction::Inbound)
    }

    /// Means packets of this direction.
    #[must_use]
    pub fn direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    /// Whether it means packets that arrive.
    pub(super) fn is_inbound(&self) -> bool {
        self.direction == Direction::Inbound
    }

    /// Whether the packet is one of those that are counted, apart from the message it belongs to.
    fn selects(&self, bth: &Bth, packet: &[u8]) -> bool {
        self.psn.is_none_or(|psn| psn == bth.psn())
            && self.which.as_ref().is_none_or(|which| which.selects(bth.opcode(), packet))
    }
}

/// Packets by what they are. Two are equal if they have one name.
#[derive(Clone)]
pub(super) struct Selector {
    pub(super) name: Cow<'static, str>,
    test: Test,
}

#[derive(Clone, Copy)]
enum Test {
    /// The opcodes with a bit in this set.
    Opcodes([u64; 4]),
    Packet(fn(&Packet<'_>) -> bool),
}

impl Selector {
    /// Opcodes by a part of their names.
    pub(super) fn named(part: &str) -> Option<Self> {
        let part = part.to_ascii_uppercase().replace('-', "_");
        let set = set_of(|info| !part.is_empty() && info.name.contains(&part));
        let name = Cow::Owned(part);
        (set != [0; 4]).then_some(Self { name, test: Test::Opcodes(set) })
    }

    fn selects(&self, Opcode(code): Opcode, packet: &[u8]) -> bool {
        match self.test {
            Test::Opcodes(set) => {
                set.get(usize::from(code / 64)).is_some_and(|word| word >> (code % 64) & 1 == 1)
            }
            Test::Packet(test) => Packet::parse(packet).is_ok_and(|packet| test(&packet)),
        }
    }
}

/// A bit for each opcode for which `test` holds.
fn set_of(test: impl Fn(&OpcodeInfo) -> bool) -> [u64; 4] {
    let mut set = [0; 4];
    for info in Opcode::assigned().filter(|info| test(info)) {
        let Opcode(code) = info.opcode;
        if let Some(word) = set.get_mut(usize::from(code / 64)) {
            *word |= 1 << (code % 64);
        }
    }
    set
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Selector {}

/// Fault rules at work: each counts the packets that it means.
#[derive(Debug, Default)]
pub struct Rules(Vec<Armed>);

#[derive(Debug)]
struct Armed {
    rule: Rule,
    /// Packets that it meant so far.
    passed: u32,
    /// Number of times the rule was applied.
    fired: u32,
    /// State of a rule for one message, by destination queue pair; at most [`QPS_MAX`].
    messages: BTreeMap<u32, Messages>,
}

/// Maximum number of queue pairs whose messages a rule counts. It matches no packets of further
/// ones.
const QPS_MAX: usize = 4096;

impl Rules {
    /// Creates rules that have met no packet.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut all = Self::default();
        rules.into_iter().for_each(|rule| all.add(rule));
        all
    }

    /// Adds a rule.
    pub fn add(&mut self, rule: Rule) {
        self.0.push(Armed { rule, passed: 0, fired: 0, messages: BTreeMap::new() });
    }

    /// Counts a packet that passes, from its BTH on, and calls `each` for every rule that does
    /// something to it now. The first argument is the rule's number, from 0.
    pub fn pass(
        &mut self,
        direction: Direction,
        packet: &[u8],
        mut each: impl FnMut(usize, Action),
    ) {
        let Ok(bth) = view::<Bth>(packet, 0) else { return };
        for (number, armed) in self.0.iter_mut().enumerate() {
            if armed.meets(direction, bth, packet) {
                each(number, armed.rule.action);
            }
        }
    }

    /// A rule by its number, from 0.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Rule> {
        self.0.get(number).map(|armed| &armed.rule)
    }

    /// Returns the number of times each rule was applied, in the order in which they were given.
    #[must_use]
    pub fn fired(&self) -> Vec<u32> {
        self.0.iter().map(|armed| armed.fired).collect()
    }
}

impl Armed {
    /// Counts a packet; whether something is done to it.
    fn meets(&mut self, direction: Direction, bth: &Bth, packet: &[u8]) -> bool {
        let (rule, qp) = (&self.rule, bth.dest_qp());
        let to_it = rule.qps.as_ref().is_none_or(|qps| qps.contains(&qp));
        if rule.direction != direction || !to_it {
            return false;
        }
        if let Some(number) = rule.message {
            let is_full = self.messages.len() >= QPS_MAX && !self.messages.contains_key(&qp.get());
            let of_it = !is_full && self.messages.entry(qp.get()).or_default().is_of(number, bth);
            if !of_it {
                return false;
            }
        }
        if !self.rule.selects(bth, packet) {
            return false;
        }
        self.passed = self.passed.saturating_add(1);
        let fires = self.rule.nth.is_none_or(|nth| nth == self.passed);
        self.fired = self.fired.saturating_add(fires.into());
        fires
    }
}

/// The request messages for one queue pair, and where the one that a rule means begins and ends.
#[derive(Debug, Default)]
struct Messages {
    count: u32,
    /// First PSN of the newest message.
    newest: Option<Psn>,
    /// First PSN of the message that is meant, and of the one behind it.
    first: Option<Psn>,
    next: Option<Psn>,
}

impl Messages {
    /// Counts a packet; whether it belongs to the `number`-th message.
    fn is_of(&mut self, number: u32, bth: &Bth) -> bool {
        let Some(info) = bth.opcode().info().filter(|info| info.role == Role::Request) else {
            return false;
        };
        let (psn, is_reliable) = (bth.psn(), matches!(info.service, Service::Rc | Service::Xrc));
        let is_new = self.newest.is_none_or(|newest| !is_reliable || psn.since(newest) > 0);
        if info.position.begins() && is_new {
            self.count = self.count.saturating_add(1);
            self.newest = Some(psn);
            match self.count {
                count if count == number => self.first = Some(psn),
                count if count == number.saturating_add(1) => self.next = Some(psn),
                _ => {}
            }
        }
        if !is_reliable {
            return self.count == number;
        }
        let behind_its_first = self.first.is_some_and(|first| psn.since(first) >= 0);
        behind_its_first && self.next.is_none_or(|next| psn.since(next) < 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::BthRepr;

    /// Returns the indices of the packets, given by opcode and PSN, to which a rule is applied.
    fn hit(rule: Rule, packets: &[(Opcode, u32)]) -> Vec<usize> {
        let mut rules = Rules::new([rule]);
        let mut hit = Vec::new();
        for (at, (opcode, psn)) in packets.iter().enumerate() {
            let bth = BthRepr::new(*opcode, Qpn::new(7), Psn::new(*psn)).emit();
            rules.pass(Direction::Outbound, bth.as_bytes(), |_, _| hit.push(at));
        }
        assert_eq!(rules.fired(), [u32::try_from(hit.len()).unwrap()]);
        hit
    }

    const FIRST: Opcode = Opcode::RC_SEND_FIRST;
    const LAST: Opcode = Opcode::RC_SEND_LAST;
    const ONLY: Opcode = Opcode::RC_SEND_ONLY;
    const ACK: Opcode = Opcode::RC_ACKNOWLEDGE;

    #[test]
    fn rule_counts_the_packets_that_it_selects() {
        let packets = [(ONLY, 1), (ACK, 1), (FIRST, 2), (ACK, 2), (LAST, 3), (ACK, 3)];
        let drop = || Rule::new(Action::Drop);
        assert_eq!(hit(drop(), &packets), [0]);
        assert_eq!(hit(drop().nth(3), &packets), [2]);
        assert_eq!(hit(drop().psn(Psn::new(2)), &packets), [2]);
        assert_eq!(hit(drop().psn(Psn::new(2)).nth(2), &packets), [3]);
        assert_eq!(hit(drop().opcode("acknowledge").unwrap().nth(2), &packets), [3]);
        assert_eq!(hit(drop().opcode("send-").unwrap().every_time(), &packets), [0, 2, 4]);
        assert_eq!(
            hit(drop().packets("sends", |packet| packet.bth().psn().get() == 3), &packets),
            [4]
        );
        assert_eq!(hit(drop().qp(Qpn::new(8)), &packets), [0_usize; 0]);
        assert_eq!(hit(drop().qp(Qpn::new(8)).qp(Qpn::new(7)), &packets), [0]);
        assert_eq!(hit(drop().inbound().every_time(), &packets), [0_usize; 0]);
        assert_eq!(drop().opcode("nothing"), None);
        assert_eq!(drop().opcode(""), None);
    }

    #[test]
    fn rule_for_a_message_means_its_packets_and_their_retransmissions() {
        let message = |n| Rule::new(Action::Drop).message(n).every_time();
        let packets =
            [(ONLY, 9), (FIRST, 10), (LAST, 11), (ACK, 9), (ONLY, 12), (FIRST, 10), (LAST, 11)];
        assert_eq!(hit(message(1), &packets), [0]);
        assert_eq!(hit(message(2), &packets), [1, 2, 5, 6]);
        assert_eq!(hit(message(3), &packets), [4]);
        assert_eq!(hit(message(4), &packets), [0_usize; 0]);
        assert_eq!(hit(message(2).opcode("last").unwrap().nth(2), &packets), [6]);
        // Across the end of the PSNs.
        let end = Psn::new(0).plus(u32::MAX).get();
        assert_eq!(hit(message(2), &[(ONLY, end - 1), (FIRST, end), (LAST, 0), (ONLY, 1)]), [1, 2]);
    }

    #[test]
    fn datagrams_of_several_senders_are_a_message_each() {
        let datagram = Opcode::UD_SEND_ONLY;
        let packets = [(datagram, 500), (datagram, 3), (datagram, 501)];
        assert_eq!(hit(Rule::new(Action::Drop).message(2), &packets), [1]);
    }
}
