//! Answers that arrive, compared by meaning with those of the capture.
//!
//! What counts is what became of each message: acknowledged, refused (and why), not ready, and the
//! data that it returned. Two runs agree where these agree; that leaves open:
//!
//! | not compared | because |
//! |---|---|
//! | which packets have an ACK of their own | a responder may acknowledge several at once (§9.7.5.1.2) |
//! | credits | they are the responder's program's: receives that it posts |
//! | RNR NAKs that the capture has and the peer sends not | the same |
//! | a SEND that the capture's responder refused and the peer takes | the same: its receive was too short |
//! | the MSN, but as a count from the first answer | another queue pair completed other messages before |
//! | data that no request of the script explains | the program at the capture's responder wrote it |

use std::collections::VecDeque;
use std::fmt;

use super::limits::DIFFERENCES_MAX;
use super::memory::{Effect, Model, Needs, refused};
use super::script::{Captured, Script, unwrap};
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{Msn, Operation, Packet, Position, Psn, Receive, Service};

/// Outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// Acknowledged, or its data came.
    Completed,
    /// Refused for good.
    Refused(NakCode),
    /// The capture does not tell, or no answer came.
    Unanswered,
}

impl fmt::Display for MessageOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::Refused(code) => write!(f, "refused: {code}"),
            Self::Unanswered => f.write_str("not answered"),
        }
    }
}

/// An answer, or a message, that is not what the capture has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerDifference {
    /// The frame of the request in the capture.
    pub frame: u64,
    /// The PSN at the peer.
    pub psn: Psn,
    /// The difference.
    pub found: String,
}

/// Result of the answers so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Answers that arrived.
    pub answers: u64,
    /// Messages whose outcome is that of the capture.
    pub agreed: u64,
    /// Messages whose outcome cannot be compared.
    pub undecided: u64,
    /// The number of them for each reason, in the order of [`WhyUndecided::ALL`].
    pub why_undecided: [u64; WhyUndecided::ALL.len()],
    /// Messages whose outcome is another one, and answers that no correct responder sends.
    pub differences: Vec<AnswerDifference>,
    /// Differences beyond those that are kept.
    pub more_differences: u64,
    /// RNR NAKs and sequence NAKs that the capture does not have.
    pub retries: u64,
}

/// The reason why the outcome of a message cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyUndecided {
    /// The capture does not show what became of it.
    NotInCapture,
    /// The responder of the capture had no receive for it, which is its program's affair.
    NoReceive,
    /// Follows a request that the peer refused, and nothing behind that is answered.
    BehindRefusal,
}

impl WhyUndecided {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::NotInCapture, Self::NoReceive, Self::BehindRefusal];
}

impl fmt::Display for WhyUndecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotInCapture => "the capture has no answer to compare with",
            Self::NoReceive => "the responder of the capture had no receive for it",
            Self::BehindRefusal => "behind a request that the peer refused nothing is answered",
        })
    }
}

impl Comparison {
    fn leave_undecided(&mut self, why: WhyUndecided) {
        self.undecided += 1;
        self.why_undecided[why as usize] += 1;
    }

    /// Returns the number of differences.
    pub fn different(&self) -> u64 {
        self.differences.len() as u64 + self.more_differences
    }

    fn differ(&mut self, frame: u64, psn: Psn, found: String) {
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(AnswerDifference { frame, psn, found });
        } else {
            self.more_differences += 1;
        }
    }
}

/// Reaction of the requester that an answer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// No reaction.
    None,
    /// Send everything from this sequence number on once more: a packet was lost.
    Rewind(i64),
    /// Go back after so many microseconds: the peer is not ready.
    RewindAfter(i64, u32),
    /// End: the peer's queue pair is in the error state.
    Stop,
}

/// A message that was sent.
#[derive(Clone, Debug)]
struct Sent {
    frame: u64,
    /// Sequence numbers, counted over all rounds.
    first: i64,
    end: i64,
    /// Outcome in the capture.
    captured: MessageOutcome,
    had_rnr: bool,
    /// The data that must come; for an atomic operation, the old value.
    data: Option<Vec<Option<u8>>>,
    /// Packets of data that came.
    came: i64,
    is_atomic: bool,
    /// Whether it takes a receive of the responder's program.
    takes_receive: bool,
}

/// Outcomes of messages in the capture, by the sequence numbers of their packets.
#[derive(Clone, Debug, Default)]
struct CapturedFates {
    refused: Vec<(i64, NakCode)>,
    not_ready: Vec<i64>,
    acknowledged_to: i64,
}

impl CapturedFates {
    fn new(script: &Script) -> Self {
        let mut fates = Self { acknowledged_to: -1, ..Self::default() };
        for answer in script.answers() {
            let Some(packet) = answer.view() else { continue };
            let at = answer.sequence;
            let syndrome = packet.aeth().map(|aeth| aeth.syndrome().answer());
            match syndrome {
                Some(Answer::Nak(NakCode::PsnSequenceError)) | Some(Answer::RnrNak(_)) => {
                    if matches!(syndrome, Some(Answer::RnrNak(_))) {
                        fates.not_ready.push(at);
                    }
                    fates.acknowledged_to = fates.acknowledged_to.max(at - 1);
                }
                Some(Answer::Nak(code)) => {
                    fates.refused.push((at, code));
                    fates.acknowledged_to = fates.acknowledged_to.max(at - 1);
                }
                _ => fates.acknowledged_to = fates.acknowledged_to.max(at),
            }
        }
        fates
    }

    fn of(&self, first: i64, end: i64) -> (MessageOutcome, bool) {
        let inside = |at: i64| (first..end).contains(&at);
        let had_rnr = self.not_ready.iter().any(|at| inside(*at));
        let refused = self.refused.iter().find(|(at, _)| inside(*at));
        let outcome = match refused {
            Some((_, code)) => MessageOutcome::Refused(*code),
            None if self.acknowledged_to >= end - 1 => MessageOutcome::Completed,
            None => MessageOutcome::Unanswered,
        };
        (outcome, had_rnr)
    }
}

/// Follows the answers of a peer to the requests of one script.
#[derive(Debug)]
pub struct Expected {
    first_psn: Psn,
    mtu: u16,
    service: Service,
    span: i64,
    captured: CapturedFates,
    /// From here on the capture's responder executed nothing, and a peer that agrees does not
    /// either.
    refused_at: Option<i64>,
    model: Model,
    pending: VecDeque<Sent>,
    /// The message whose packets are being sent.
    open: Option<Sent>,
    round: i64,
    /// All sequence numbers below were answered.
    answered_to: i64,
    /// Requests before this sequence number were sent.
    sent_to: i64,
    /// All of them before this one.
    in_order_to: i64,
    /// Messages that ended, for MSNs: before which sequence number, how many.
    ended: VecDeque<(i64, u32)>,
    completed: u32,
    /// Base of the MSN.
    msn_base: Option<Msn>,
    is_stopped: bool,
    /// Result so far.
    comparison: Comparison,
}

impl Expected {
    /// Returns expectations before anything was sent. `needs` says what the peer's memory holds;
    /// `first_psn` is the PSN of the first request at the peer; a queue pair that was made for this
    /// has completed no message (`is_fresh`).
    pub fn new(script: &Script, needs: Needs, first_psn: Psn, is_fresh: bool) -> Self {
        Self {
            first_psn,
            mtu: script.mtu,
            service: script.service,
            span: i64::from(script.span()),
            captured: CapturedFates::new(script),
            refused_at: refused(script).into_iter().min(),
            model: Model::new(script, needs.regions),
            pending: VecDeque::new(),
            open: None,
            round: 0,
            answered_to: 0,
            sent_to: 0,
            in_order_to: 0,
            ended: VecDeque::new(),
            completed: 0,
            msn_base: is_fresh.then(|| Msn::new(0)),
            is_stopped: false,
            comparison: Comparison::default(),
        }
    }

    /// The sequence number up to which everything was answered, counted over all rounds.
    pub fn answered_to(&self) -> i64 {
        self.answered_to
    }

    /// Whether the peer refused a request for good.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The memory of the peer as it must be now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A request is being sent, in a round that counts from 0.
    pub fn sent(&mut self, script: &Script, request: &Captured, round: u32) {
        let round = i64::from(round);
        if round != self.round {
            self.round = round;
            self.model.next_round(script);
        }
        let shift = round * self.span;
        let first = request.sequence + shift;
        let end = first + i64::from(request.span(self.mtu));
        self.sent_to = self.sent_to.max(end);
        if self.service != Service::Rc {
            self.model.execute(request);
            return;
        }
        // The peer executes requests in order: what comes behind a gap is sent once more.
        if first != self.in_order_to {
            return;
        }
        self.in_order_to = end;
        let effect = if self.refused_at.is_none_or(|at| request.sequence < at) {
            self.model.execute(request)
        } else {
            Effect::default()
        };
        let Some(info) = request.view().and_then(|packet| packet.info()) else { return };
        let is_atomic = matches!(info.operation, Operation::CompareSwap | Operation::FetchAdd);
        let has_data = is_atomic || info.operation == Operation::ReadRequest;
        let new = || Sent {
            frame: request.frame,
            first,
            end,
            captured: MessageOutcome::Unanswered,
            had_rnr: false,
            data: has_data.then_some(effect.data),
            came: 0,
            is_atomic,
            takes_receive: info.receive != Receive::Untouched,
        };
        let mut message = match self.open.take() {
            Some(open) if !info.position.begins() => {
                let takes_receive = open.takes_receive || info.receive != Receive::Untouched;
                Sent { end, takes_receive, ..open }
            }
            _ => new(),
        };
        (message.captured, message.had_rnr) = self.captured.of(message.first - shift, end - shift);
        if info.position.ends() {
            self.completed += 1;
            self.ended.push_back((end, self.completed));
            self.pending.push_back(message);
        } else {
            self.open = Some(message);
        }
    }

    /// The peer answered: a packet from its BTH to its last pad byte.
    pub fn answer(&mut self, bytes: &[u8]) -> Reaction {
        let Ok(packet) = Packet::parse(bytes) else {
            let psn = self.first_psn;
            self.comparison.differ(0, psn, "a packet that is too short for its headers".into());
            return Reaction::None;
        };
        let Some(info) = packet.info() else { return Reaction::None };
        if info.service != self.service || info.role != crate::wire::Role::Response {
            return Reaction::None;
        }
        self.comparison.answers += 1;
        let psn = packet.bth().psn();
        let at = unwrap(self.first_psn, psn, self.answered_to);
        if at >= self.sent_to || at < 0 {
            let found = format!("an answer to PSN {psn}, which was not sent");
            self.comparison.differ(0, psn, found);
            return Reaction::None;
        }
        if let Some(aeth) = packet.aeth() {
            self.check_msn(at, psn, aeth.msn());
        }
        match (info.operation, packet.aeth().map(|aeth| aeth.syndrome().answer())) {
            (Operation::Acknowledge, Some(Answer::Ack(_))) => {
                self.complete_to(at + 1);
                Reaction::None
            }
            (Operation::Acknowledge, Some(Answer::Nak(NakCode::PsnSequenceError))) => {
                self.complete_to(at);
                self.comparison.retries += 1;
                Reaction::Rewind(at)
            }
            (Operation::Acknowledge, Some(Answer::RnrNak(timer))) => {
                self.complete_to(at);
                let known = self.message_at(at).is_some_and(|message| message.had_rnr);
                self.comparison.retries += u64::from(!known);
                Reaction::RewindAfter(at, timer.micros())
            }
            (Operation::Acknowledge, Some(Answer::Nak(code))) => {
                self.complete_to(at);
                self.refuse(at, code);
                Reaction::Stop
            }
            (Operation::ReadResponse, _) => {
                self.complete_to(at);
                self.read_response(at, &packet, info.position);
                Reaction::None
            }
            (Operation::AtomicAcknowledge, _) => {
                self.complete_to(at);
                self.atomic_response(at, &packet);
                Reaction::None
            }
            (_, syndrome) => {
                let found = format!("{} with the syndrome {syndrome:?}", info.name);
                self.comparison.differ(0, psn, found);
                Reaction::None
            }
        }
    }

    fn message_at(&self, at: i64) -> Option<&Sent> {
        let all = self.pending.iter().chain(&self.open);
        all.into_iter().find(|message| (message.first..message.end).contains(&at))
    }

    fn psn(&self, sequence: i64) -> Psn {
        let low = sequence.rem_euclid(1 << 24);
        self.first_psn.plus(u32::try_from(low).unwrap_or(0))
    }

    /// Takes note that everything before a sequence number was acknowledged.
    fn complete_to(&mut self, end: i64) {
        self.answered_to = self.answered_to.max(end);
        while let Some(message) = self.pending.front().filter(|message| message.end <= end) {
            let (frame, first) = (message.frame, message.first);
            // The capture's responder had no receive for it that was long enough, which is its
            // program's affair.
            let has_no_receive =
                message.takes_receive && matches!(message.captured, MessageOutcome::Refused(_));
            let captured = message.captured;
            let missing = message.data.is_some() && message.came < message.end - message.first;
            self.pending.pop_front();
            if missing {
                let found = "acknowledged, but its data did not come".to_owned();
                self.comparison.differ(frame, self.psn(first), found);
                continue;
            }
            if has_no_receive {
                self.comparison.leave_undecided(WhyUndecided::NoReceive);
                continue;
            }
            self.judge(frame, first, captured, MessageOutcome::Completed);
        }
    }

    fn judge(&mut self, frame: u64, first: i64, captured: MessageOutcome, found: MessageOutcome) {
        match (captured, found) {
            (MessageOutcome::Unanswered, _) => {
                self.comparison.leave_undecided(WhyUndecided::NotInCapture);
            }
            (captured, found) if captured == found => self.comparison.agreed += 1,
            (captured, found) => {
                let text = format!("{found}; in the capture {captured}");
                self.comparison.differ(frame, self.psn(first), text);
            }
        }
    }

    fn refuse(&mut self, at: i64, code: NakCode) {
        self.is_stopped = true;
        let whole = self.pending.iter().position(|it| (it.first..it.end).contains(&at));
        let message = match whole {
            Some(index) => self.pending.remove(index),
            None => self.open.take(),
        };
        if let Some(message) = message {
            let Sent { frame, first, captured, .. } = message;
            self.judge(frame, first, captured, MessageOutcome::Refused(code));
        }
    }

    fn read_response(&mut self, at: i64, packet: &Packet<'_>, position: Position) {
        let (mtu, psn) = (usize::from(self.mtu), packet.bth().psn());
        let Some(message) = self
            .pending
            .iter_mut()
            .find(|it| (it.first..it.end).contains(&at) && it.data.is_some() && !it.is_atomic)
        else {
            // A response to a READ that was answered before: a copy.
            if at >= self.answered_to {
                self.comparison.differ(0, psn, "a READ response to no READ".into());
            }
            return;
        };
        let (index, packets) = (at - message.first, message.end - message.first);
        let right = match (index, packets) {
            (0, 1) => Position::Only,
            (0, _) => Position::First,
            (index, packets) if index == packets - 1 => Position::Last,
            _ => Position::Middle,
        };
        message.came = message.came.max(index + 1);
        let from = usize::try_from(index).unwrap_or(0) * mtu;
        let data = message.data.as_deref().unwrap_or_default();
        let expected = data.get(from..data.len().min(from + mtu)).unwrap_or_default();
        let frame = message.frame;
        let found = if position != right {
            Some(format!("{position:?} packet of a READ response, expected {right:?}"))
        } else {
            compare_bytes(expected, packet.payload(), from)
        };
        let is_complete = message.came == packets;
        if let Some(found) = found {
            self.comparison.differ(frame, psn, found);
        }
        if is_complete {
            self.complete_to(at + 1);
        } else {
            self.answered_to = self.answered_to.max(at + 1);
        }
    }

    fn atomic_response(&mut self, at: i64, packet: &Packet<'_>) {
        let psn = packet.bth().psn();
        let original = packet.atomic_ack_eth().map(|eth| eth.original().to_le_bytes());
        let Some(message) = self.pending.iter_mut().find(|it| it.first == at && it.is_atomic)
        else {
            if at >= self.answered_to {
                let found = "an ATOMIC acknowledgement to no atomic operation".to_owned();
                self.comparison.differ(0, psn, found);
            }
            return;
        };
        message.came = 1;
        let (frame, data) = (message.frame, message.data.clone().unwrap_or_default());
        let found = compare_bytes(&data, &original.unwrap_or_default(), 0);
        if let Some(found) = found {
            self.comparison.differ(frame, psn, found);
        }
        self.complete_to(at + 1);
    }

    /// The MSN counts messages that were completed (C9-148): those that are acknowledged with this
    /// answer at least, those that were sent at the most.
    fn check_msn(&mut self, at: i64, psn: Psn, msn: Msn) {
        while self.ended.len() > 1
            && self.ended.get(1).is_some_and(|(end, _)| *end <= self.answered_to)
        {
            self.ended.pop_front();
        }
        if at < self.answered_to {
            return;
        }
        let least = self.ended.iter().take_while(|(end, _)| *end <= at).last();
        let least = least.map_or(0, |(_, count)| *count);
        let base = *self
            .msn_base
            .get_or_insert_with(|| Msn::new(msn.get().wrapping_sub(least) & 0xff_ffff));
        let counted = msn.since(base);
        let most = i64::from(self.completed);
        if !(i64::from(least)..=most).contains(&i64::from(counted)) {
            let found =
                format!("MSN {msn}: {counted} messages completed, expected {least} to {most}");
            self.comparison.differ(0, psn, found);
        }
    }

    /// Judges what was not answered: no more answers come.
    pub fn finish(mut self) -> (Comparison, Model) {
        let fates = std::mem::take(&mut self.pending);
        for Sent { frame, first, captured, takes_receive, .. } in
            fates.into_iter().chain(self.open.take())
        {
            // Behind a request that was refused nothing is answered. Whether there is a receive for
            // a message is the program's affair.
            let is_excused =
                self.is_stopped || takes_receive && captured != MessageOutcome::Completed;
            match captured {
                MessageOutcome::Completed | MessageOutcome::Refused(_) if !is_excused => {
                    let found = format!("not answered; in the capture {captured}");
                    let psn = self.psn(first);
                    self.comparison.differ(frame, psn, found);
                }
                MessageOutcome::Unanswered => {
                    self.comparison.leave_undecided(WhyUndecided::NotInCapture);
                }
                _ if self.is_stopped => {
                    self.comparison.leave_undecided(WhyUndecided::BehindRefusal);
                }
                _ => self.comparison.leave_undecided(WhyUndecided::NoReceive),
            }
        }
        (self.comparison, self.model)
    }
}

/// The first byte that differs from a known one, in words.
fn compare_bytes(expected: &[Option<u8>], found: &[u8], from: usize) -> Option<String> {
    if !expected.is_empty() && expected.len() != found.len() {
        return Some(format!("{} bytes of data, expected {}", found.len(), expected.len()));
    }
    let mut pairs = expected.iter().zip(found).enumerate();
    let (at, (expected, found)) = pairs
        .find(|(_, (expected, found))| expected.is_some_and(|expected| expected != **found))?;
    let expected = expected.unwrap_or_default();
    Some(format!("data: byte {} is {found:#04x}, expected {expected:#04x}", from + at))
}
