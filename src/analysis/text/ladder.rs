//! One connection in the terminal: a line per packet, the packets of its first end to the right,
//! those of the other to the left.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

use super::paint::{Paint, Style, columns, pad};
use super::report::{end_text, ends_text};
use super::units::{count, counted, duration};
use crate::analysis::limits::LADDER_LOSSES_MAX;
use crate::analysis::row::Row;
use crate::analysis::{
    Certainty, Connection, FlowNumber, LossNote, LossPlace, PacketFacts, PacketNote, PacketRole,
    Report, Sink, service_name,
};
use crate::observe::end::End;
use crate::time::{Instant, nanos};
use crate::wire::aeth::Answer;
use crate::wire::{IcrcVerdict, Opcode};

/// A silence shorter than this is never marked.
const SILENCE_MIN_NANOS: u64 = 1_000_000;

/// A silence that is marked is at least this many times the median latency of messages; where that
/// is not known, the mean time between packets.
const SILENCE_TIMES: u64 = 10;

/// Packets after the first of a run that are shown before they are folded.
const RUN_SHOWN: usize = 3;

/// The lost packets of a capture, which a ladder must know before it shows them: the first pass
/// over the capture collects them.
#[derive(Clone, Debug, Default)]
pub struct LossList {
    notes: Vec<LossNote>,
    left_out: u64,
}

impl LossList {
    /// Lost packets beyond the most that are remembered.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Sink for LossList {
    fn loss(&mut self, note: &LossNote) {
        if self.notes.len() < LADDER_LOSSES_MAX {
            self.notes.push(*note);
        } else {
            self.left_out += 1;
        }
    }
}

/// Writes the ladder of a connection while a second pass over the capture tells it the packets.
#[derive(Debug)]
pub struct Ladder<'a> {
    report: &'a Report,
    connection: &'a Connection,
    style: Style,
    /// Whether runs of equal packets are folded.
    folds: bool,
    layout: Layout,
    silence_nanos: u64,
    /// Lost packets that were captured, by frame and sequence number.
    lost: HashMap<(u64, u64), LossNote>,
    /// Lost packets that were not, by sender and whether they are requests.
    missing: [[BTreeSet<Missing>; 2]; 2],
    previous: Option<Instant>,
    run: Run,
    round: Round,
    repeats: Repeats,
    text: String,
}

/// A lost packet that was not captured, and the frame before which it is shown at the latest.
type Missing = (u64, u64, bool);

/// Widths of the columns.
#[derive(Clone, Copy, Debug)]
struct Layout {
    frame: usize,
    lane: usize,
    /// Whether remarks stand to the right of the lanes; else they have a line of their own.
    remarks_right: bool,
}

const TIME_WIDTH: usize = 10;
const DELTA_WIDTH: usize = 9;
const PSN_WIDTH: usize = 8;
const LEN_WIDTH: usize = 5;
const LANE_WIDTH: usize = 40;
const REMARK_WIDTH: usize = 46;

impl Layout {
    fn new(style: &Style, last_frame: u64) -> Self {
        let frame = last_frame.to_string().len().max(5);
        let before = TIME_WIDTH + DELTA_WIDTH + frame + PSN_WIDTH + LEN_WIDTH + 6;
        match style.width.map(|width| width.saturating_sub(before)) {
            None => Self { frame, lane: LANE_WIDTH, remarks_right: true },
            Some(rest) if rest >= LANE_WIDTH + REMARK_WIDTH => Self {
                frame,
                lane: (rest - 2 * REMARK_WIDTH.min(rest / 2)).clamp(LANE_WIDTH, 60),
                remarks_right: true,
            },
            Some(rest) => Self { frame, lane: rest.clamp(24, 60), remarks_right: false },
        }
    }

    /// Columns before the lane.
    fn before_lane(&self) -> usize {
        TIME_WIDTH + DELTA_WIDTH + self.frame + PSN_WIDTH + LEN_WIDTH + 6
    }
}

/// A line of the ladder.
#[derive(Clone, Debug)]
struct Line {
    time: Option<u64>,
    delta: Option<u64>,
    /// Frame, and position in a train or 0.
    frame: Option<(u64, u16)>,
    psn: Option<u64>,
    len: Option<u32>,
    sender: End,
    label: String,
    remarks: Vec<String>,
    paint: Option<Paint>,
    is_lost: bool,
}

/// Properties that the packets of a run have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunKey {
    sender: End,
    opcode: Opcode,
    len: u32,
    remarks: Vec<String>,
}

/// Packets after the first that is like them.
#[derive(Clone, Debug, Default)]
struct Run {
    key: Option<RunKey>,
    held: Vec<Line>,
    last: Option<Line>,
    /// The PSN of the one before the last.
    folded_to: Option<u64>,
    count: u64,
}

/// Packets of a round that are compared with those of the round before.
const ROUND_MAX: usize = 64;

/// The packets between two silences: where a requester retransmits the same ones over and over,
/// rounds are alike.
#[derive(Clone, Debug, Default)]
struct Round {
    /// PSN and kind of its packets; nothing if they are too many.
    packets: Option<Vec<(u32, RunKey)>>,
    text: String,
    /// The silence before it.
    silence: Option<u64>,
}

/// Rounds that are like the one before them.
#[derive(Clone, Debug, Default)]
struct Repeats {
    /// The packets of the round that they are like.
    packets: Option<Vec<(u32, RunKey)>>,
    count: u64,
    last: Round,
    /// The shortest and the longest silence before those that are folded.
    silences: Option<(u64, u64)>,
}

impl<'a> Ladder<'a> {
    /// A ladder of connection `flow`; nothing if there is no such connection. `full` unfolds runs
    /// of equal packets.
    pub fn new(
        report: &'a Report,
        flow: FlowNumber,
        losses: &LossList,
        style: Style,
        full: bool,
    ) -> Option<Self> {
        let connection = report.connections.iter().find(|connection| connection.flow == flow)?;
        let row = Row::of(connection);
        let usual = match row.latency.count {
            0 => connection.duration_nanos() / row.packets.max(1),
            _ => row.latency.p50,
        };
        let mut ladder = Self {
            report,
            connection,
            style,
            folds: !full,
            layout: Layout::new(&style, connection.last_frame),
            silence_nanos: SILENCE_MIN_NANOS.max(usual.saturating_mul(SILENCE_TIMES)),
            lost: HashMap::new(),
            missing: Default::default(),
            previous: None,
            run: Run::default(),
            round: Round::default(),
            repeats: Repeats::default(),
            text: String::new(),
        };
        for note in &losses.notes {
            ladder.note_loss(note);
        }
        ladder.write_heading();
        Some(ladder)
    }

    fn note_loss(&mut self, note: &LossNote) {
        let Some(sender) = self.sender_of(note.flow, note.sender) else { return };
        match note.frame {
            Some(frame) => {
                self.lost.insert((frame, note.sequence), *note);
            }
            None if note.place == LossPlace::AfterCapturePoint => {}
            None => {
                let is_request = usize::from(note.role == PacketRole::Request);
                let is_likely = note.certainty == Certainty::Likely;
                self.missing[sender][is_request].insert((note.sequence, note.proof, is_likely));
            }
        }
    }

    /// The end that sent a packet with a provisional flow number, if it belongs to this connection.
    fn sender_of(&self, flow: FlowNumber, sender: End) -> Option<End> {
        let (flow, exchanged) = self.report.flow_of(flow)?;
        (flow == self.connection.flow).then(|| sender.exchanged_if(exchanged))
    }

    fn write_heading(&mut self) {
        let one = self.connection;
        let mtu = one.path_mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        let service = service_name(one.service);
        let ends = ends_text(one);
        let tunnel = one.tunnel.map_or_else(String::new, |tunnel| format!(", in {tunnel}"));
        self.text.push_str(&format!("Connection #{}: {ends}, {service}{mtu}{tunnel}\n", one.flow));
        let Layout { frame, lane, .. } = self.layout;
        let left = end_text(&one.ends[0]);
        let right = end_text(&one.ends[1]);
        let gap = lane.saturating_sub(columns(&left) + columns(&right)).max(1);
        let heading = format!(
            "{:>TIME_WIDTH$} {:>DELTA_WIDTH$} {:>frame$} {:>PSN_WIDTH$} {:>LEN_WIDTH$}  {left}{}{right}",
            "time (s)",
            "since",
            "frame",
            "PSN",
            "len",
            " ".repeat(gap),
        );
        self.style.put(Some(Paint::Dim), &heading, &mut self.text);
        self.text.push('\n');
    }

    /// Writes what is ready.
    pub fn drain(&mut self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }

    /// Ends the ladder: what was held back becomes ready.
    pub fn finish(&mut self) {
        self.end_round(None);
        self.end_repeats();
        for sender in End::BOTH {
            for is_request in 0..2 {
                for missing in core::mem::take(&mut self.missing[sender][is_request]) {
                    self.write_missing(sender, is_request == 1, missing);
                }
            }
        }
        self.text.push_str(&core::mem::take(&mut self.round.text));
    }

    /// Ends a round with the silence after it. Holds it back if it is like the one before.
    fn end_round(&mut self, silence: Option<u64>) {
        self.end_run();
        let next = Round { packets: Some(Vec::new()), text: String::new(), silence };
        let round = core::mem::replace(&mut self.round, next);
        let is_like = round.packets.as_ref().is_some_and(|packets| !packets.is_empty())
            && round.packets == self.repeats.packets;
        if !is_like {
            self.end_repeats();
            self.text.push_str(&self.silence_text(round.silence));
            self.text.push_str(&round.text);
            self.repeats.packets = round.packets;
            return;
        }
        if let Some(silence) = self.repeats.last.silence {
            let (least, most) = self.repeats.silences.unwrap_or((silence, silence));
            self.repeats.silences = Some((least.min(silence), most.max(silence)));
        }
        self.repeats.count += 1;
        self.repeats.last = round;
    }

    /// Writes one line for all rounds that were held back but the last, and the last.
    fn end_repeats(&mut self) {
        let repeats = core::mem::take(&mut self.repeats);
        if repeats.count == 0 {
            return;
        }
        if let (Some((least, most)), 2..) = (repeats.silences, repeats.count) {
            let rounds = counted(repeats.count - 1, "more round");
            let (least, most) = (duration(least), duration(most));
            let after = if least == most { least } else { format!("{least} to {most}") };
            let fold = format!("… {rounds} of the same packets, {after} apart");
            self.text.push_str(&" ".repeat(TIME_WIDTH - 2));
            self.style.put(Some(Paint::Warn), &fold, &mut self.text);
            self.text.push('\n');
        }
        self.text.push_str(&self.silence_text(repeats.last.silence));
        self.text.push_str(&repeats.last.text);
    }

    /// Shows the lost packets that the capture point did not see and that belong before this one.
    fn missing_before(&mut self, sender: End, note: &PacketNote, frame: u64) {
        for (side, is_request) in [(End::A, 0), (End::A, 1), (End::B, 0), (End::B, 1)] {
            let same = side == sender && (is_request == 1) == (note.role == PacketRole::Request);
            while let Some(&first) = self.missing[side][is_request].first() {
                let (sequence, proof, _) = first;
                if frame < proof && !(same && note.sequence > sequence) {
                    break;
                }
                self.missing[side][is_request].pop_first();
                self.end_run();
                self.write_missing(side, is_request == 1, first);
            }
        }
    }

    fn write_missing(&mut self, sender: End, is_request: bool, missing: Missing) {
        let (sequence, proof, is_likely) = missing;
        let likely = if is_likely { "likely " } else { "" };
        let line = Line {
            time: None,
            delta: None,
            frame: None,
            psn: Some(sequence & 0xff_ffff),
            len: None,
            sender,
            label: (if is_request { "request" } else { "response" }).into(),
            remarks: vec![format!("{likely}lost before the capture point: frame {proof}")],
            paint: Some(Paint::Bad),
            is_lost: true,
        };
        self.write_line(&line);
    }

    fn end_run(&mut self) {
        let run = core::mem::take(&mut self.run);
        if run.count <= RUN_SHOWN as u64 {
            run.held.iter().for_each(|line| self.write_line(line));
            return;
        }
        let (Some(first), Some(last)) = (run.held.first(), &run.last) else { return };
        let folded = count(run.count - 1);
        let psns = match (first.psn, run.folded_to) {
            (Some(first), Some(last)) if first == last => format!(", PSN {first}"),
            (Some(first), Some(last)) => format!(", PSN {first}–{last}"),
            _ => String::new(),
        };
        let mut text = " ".repeat(self.layout.before_lane());
        let fold = format!("… {folded} more {}{psns}", first.label);
        self.style.put(Some(Paint::Dim), &fold, &mut text);
        self.round.text.extend([text.as_str(), "\n"]);
        self.write_line(last);
    }

    fn silence_text(&self, nanos: Option<u64>) -> String {
        let Some(nanos) = nanos else { return String::new() };
        let mut text = " ".repeat(TIME_WIDTH + 1);
        let silence = format!("· · · {} of silence · · ·", duration(nanos));
        self.style.put(Some(Paint::Warn), &silence, &mut text);
        text.push('\n');
        text
    }

    fn write_line(&mut self, line: &Line) {
        let Layout { frame, lane, remarks_right } = self.layout;
        let number = |value: Option<String>| value.unwrap_or_default();
        let time = number(line.time.map(|nanos| format!("{:.6}", nanos as f64 / 1e9)));
        let delta = number(line.delta.map(|nanos| format!("+{}", duration(nanos))));
        let at = match line.frame {
            None => "–".into(),
            Some((frame, 0)) => frame.to_string(),
            Some((frame, index)) => format!("{frame}.{index}"),
        };
        let psn = number(line.psn.map(|psn| psn.to_string()));
        let len = number(line.len.map(|len| len.to_string()));
        self.round.text.push_str(&format!(
            "{time:>TIME_WIDTH$} {delta:>DELTA_WIDTH$} {at:>frame$} {psn:>PSN_WIDTH$} {len:>LEN_WIDTH$}  "
        ));
        let shaft = lane.saturating_sub(columns(&line.label) + 2).max(1);
        let dash = if line.is_lost { "╌" } else { "─" };
        let head = match (line.is_lost, line.sender) {
            (true, _) => "✕",
            (false, End::A) => "▶",
            (false, End::B) => "◀",
        };
        let arrow = match line.sender {
            End::A => format!("{} {}{head}", line.label, dash.repeat(shaft)),
            End::B => format!("{head}{} {}", dash.repeat(shaft), line.label),
        };
        self.style.put(line.paint, &arrow, &mut self.round.text);
        if !line.remarks.is_empty() {
            let remarks = line.remarks.join(", ");
            let end = self.layout.before_lane() + lane + 2 + columns(&remarks);
            if remarks_right && self.style.width.is_none_or(|width| end <= width) {
                pad(&arrow, lane, &mut self.round.text);
                self.round.text.push_str("  ");
            } else {
                self.round.text.push('\n');
                let room = self.style.width.unwrap_or(usize::MAX).saturating_sub(columns(&remarks));
                let indent = (self.layout.before_lane() + 2).min(room);
                self.round.text.push_str(&" ".repeat(indent));
            }
            self.style.put(line.paint, &remarks, &mut self.round.text);
        }
        self.round.text.push('\n');
    }

    fn line(&self, facts: &PacketFacts, note: &PacketNote, sender: End) -> Line {
        let lost = self.lost.get(&(facts.frame, note.sequence));
        let origin = self.connection.first_time;
        let since = |earlier: Instant| nanos(facts.time.saturating_since(earlier));
        let has_psn = !matches!(note.role, PacketRole::Cnp);
        Line {
            time: Some(since(origin)),
            delta: self.previous.map(since),
            frame: Some(facts.identity()),
            psn: has_psn.then(|| facts.psn.get().into()),
            len: Some(facts.payload_len),
            sender,
            label: label(facts, note),
            remarks: remarks(facts, note, lost),
            paint: paint(note, lost.is_some(), facts.icrc),
            is_lost: lost.is_some(),
        }
    }
}

impl Sink for Ladder<'_> {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        let Some(sender) = self.sender_of(note.flow, note.sender) else { return };
        self.missing_before(sender, note, facts.frame);
        let line = self.line(facts, note, sender);
        if let Some(delta) = line.delta.filter(|&delta| delta >= self.silence_nanos) {
            self.end_round(Some(delta));
        }
        self.previous = Some(facts.time);
        let can_fold = self.folds && !line.is_lost;
        let is_plain =
            matches!(note.role, PacketRole::Request | PacketRole::Ack | PacketRole::Response);
        let key = can_fold.then(|| RunKey {
            sender,
            opcode: facts.opcode,
            len: facts.payload_len,
            remarks: line.remarks.clone(),
        });
        self.add_to_round(key.clone().map(|key| (facts.psn.get(), key)));
        let key = key.filter(|_| is_plain);
        if key.is_some() && key == self.run.key {
            self.run.count += 1;
            if self.run.held.len() < RUN_SHOWN {
                self.run.held.push(line.clone());
            }
            self.run.folded_to = self.run.last.as_ref().and_then(|last| last.psn);
            self.run.last = Some(line);
        } else {
            self.end_run();
            self.write_line(&line);
            self.run.key = key;
        }
        if self.round.packets.is_none() {
            // It is too long to be held back.
            self.end_repeats();
            let silence = self.round.silence.take();
            self.text.push_str(&self.silence_text(silence));
            self.text.push_str(&core::mem::take(&mut self.round.text));
        }
    }
}

impl Ladder<'_> {
    /// Adds a packet to the round, which can be compared with others as long as it is short and has
    /// nothing special.
    fn add_to_round(&mut self, packet: Option<(u32, RunKey)>) {
        match (&mut self.round.packets, packet) {
            (Some(packets), Some(packet)) if packets.len() < ROUND_MAX => packets.push(packet),
            _ => self.round.packets = None,
        }
    }
}

/// Returns the name of a packet without the service, which the heading tells.
fn label(facts: &PacketFacts, note: &PacketNote) -> String {
    match (note.role, facts.aeth.map(|(syndrome, _)| syndrome.answer())) {
        (PacketRole::Ack, _) => return "ACK".into(),
        (PacketRole::Nak, Some(answer @ Answer::Nak(_)))
        | (PacketRole::Rnr, Some(answer @ Answer::RnrNak(_))) => return answer.to_string(),
        _ => {}
    }
    let name = facts.opcode.to_string();
    let service = ["RC_", "UC_", "UD_", "RD_", "XRC_"].iter();
    let short =
        service.fold(name.as_str(), |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    short.strip_prefix("RDMA_").unwrap_or(short).to_owned()
}

fn remarks(facts: &PacketFacts, note: &PacketNote, lost: Option<&LossNote>) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(lost) = lost {
        let likely = if lost.certainty == Certainty::Likely { "likely " } else { "" };
        let place = match lost.place {
            LossPlace::BeforeCapturePoint => "before the capture point".into(),
            LossPlace::AfterCapturePoint => "after the capture point".into(),
            LossPlace::Between { from, to } => format!("between files {from} and {to}"),
        };
        remarks.push(format!("{likely}lost {place}: frame {}", lost.proof));
    }
    if let Some(cause) = note.retransmission {
        remarks.push(format!("retransmission ({})", cause.title()));
    }
    for (is_set, remark) in [
        (note.duplicate, "duplicated by the network"),
        (note.reordered, "reordered"),
        (facts.icrc == IcrcVerdict::Bad, "ICRC bad"),
        (facts.is_ce_marked, "CE"),
    ] {
        if is_set {
            remarks.push(remark.into());
        }
    }
    remarks
}

fn paint(note: &PacketNote, is_lost: bool, icrc: IcrcVerdict) -> Option<Paint> {
    match note.role {
        _ if is_lost || icrc == IcrcVerdict::Bad => Some(Paint::Bad),
        PacketRole::Nak => Some(Paint::Bad),
        PacketRole::Rnr | PacketRole::Cnp => Some(Paint::Warn),
        _ if note.retransmission.is_some() || note.duplicate || note.reordered => Some(Paint::Warn),
        PacketRole::Ack | PacketRole::Response => Some(Paint::Dim),
        PacketRole::Request | PacketRole::Management => None,
    }
}
