//! The analysis of captures: of any bytes, and of packets that look like those of a few
//! connections, so that it goes deep.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use roce::analysis::{
    Analysis, Config, FindingKind, FlowNumber, LossNote, Message, Outcome, PacketFacts, PacketNote,
    Report, RethFacts, Sink, Unsplit,
};
use roce::capture::Reader;
use roce::decode::Decoder;
use roce::time::Instant;
use roce::wire::aeth::Syndrome;
use roce::wire::{Gid, IcrcVerdict, Msn, Opcode, Psn, Qpn, RKey, ROCE_PORT};

/// A capture, or packets: by the first byte. The second one says how many files there are, whether
/// the capture ends at the first damaged record (`--strict`), and whether the report is written as
/// JSON.
pub fn flows(input: &[u8]) {
    let [mode, files, rest @ ..] = input else { return };
    let is_strict = files & 4 != 0;
    // The report as JSON takes longer than most inputs: few will do.
    let is_written = files >> 3 == 0x1f;
    let files = usize::from(files % 3) + 1;
    let mut run = Run::new(files);
    if mode % 4 == 0 {
        read(rest, is_strict, &mut run)
    } else {
        generate(rest, &mut run)
    }
    run.finish(is_written);
}

/// Output of the analysis.
#[derive(Default)]
struct Output {
    notes: u64,
    duplicates: u64,
    retransmissions: u64,
    losses: u64,
    completed: u64,
    messages: u64,
    flows: BTreeSet<FlowNumber>,
}

impl Sink for Output {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.notes += 1;
        self.duplicates += u64::from(note.duplicate);
        self.retransmissions += u64::from(note.retransmission.is_some() && !note.duplicate);
        self.flows.insert(note.flow);
        assert!(note.flow > FlowNumber(0) && facts.frame > 0);
    }

    fn loss(&mut self, note: &LossNote) {
        self.losses += 1;
        assert!(note.proof > 0 && note.frame != Some(0));
    }

    fn message(&mut self, message: &Message) {
        self.messages += 1;
        self.completed += u64::from(message.outcome == Outcome::Completed);
        assert!(message.first_frame > 0);
    }
}

struct Run {
    analysis: Analysis,
    output: Output,
    packets: u64,
    frames: u64,
}

impl Run {
    fn new(files: usize) -> Self {
        let mut config = Config::default();
        config.files = (0..files).map(|file| file.to_string()).collect();
        Self { analysis: Analysis::new(config), output: Output::default(), packets: 0, frames: 0 }
    }

    fn packet(&mut self, facts: &PacketFacts) {
        self.frames += 1;
        // A frame of several packets that cannot be told apart is no packet.
        self.packets += u64::from(facts.unsplit != Unsplit::Certain);
        self.analysis.handle_packet(facts, &mut self.output);
    }

    /// The sums of the report are those of what was told.
    fn finish(mut self, is_written: bool) {
        let report = self.analysis.finish(&mut self.output);
        let output = self.output;
        assert!(output.notes <= self.packets, "a packet has one note");
        assert_eq!((report.capture.packets, report.capture.frames), (self.packets, self.frames));
        let all = &report.totals.all;
        if report.capture.kind.explains(FindingKind::Loss) {
            // What is concluded from missing packets is told, and then forgotten.
            return;
        }
        // What is understood later than its packet came (responses whose connection is found later)
        // is only counted.
        assert!(all.duplicate_packets >= output.duplicates, "duplicates");
        // A later packet can show that one was late, and no retransmission.
        let counted = all.retransmissions.total().packets;
        let late = output.retransmissions.saturating_sub(counted);
        assert!(counted <= output.retransmissions && late <= all.reordered, "retransmissions");
        let lost = all.lost_requests + all.lost_responses + all.lost_or_late;
        assert_eq!(lost, output.losses, "losses");
        let completed = all.operations.iter().map(|operation| operation.completed).sum::<u64>();
        assert_eq!(completed, output.completed, "messages that completed");
        for operation in &all.operations {
            assert!(operation.completed + operation.failed <= operation.messages, "{operation:?}");
        }
        for flow in output.flows {
            let (number, _) = report.flow_of(flow).expect("few connections: none is forgotten");
            assert!(report.connections.iter().any(|known| known.flow == number));
        }
        check_findings(&report, self.frames);
        assert!(
            !is_written || serde_json::to_string(&report).is_ok_and(|text| text.starts_with('{'))
        );
    }
}

fn check_findings(report: &Report, frames: u64) {
    for finding in &report.findings {
        assert!(finding.frames.iter().all(|frame| (1..=frames).contains(frame)), "{finding:?}");
        assert!(!finding.text.is_empty() && !finding.text.contains('\n'));
    }
    assert!(report.findings.is_sorted_by_key(|finding| finding.kind), "the worst come first");
}

/// Any bytes, read as a capture in the way of the command: past damage, unless `is_strict`.
fn read(bytes: &[u8], is_strict: bool, run: &mut Run) {
    let Ok(reader) = Reader::new(bytes) else { return };
    let mut reader = if is_strict { reader } else { reader.lenient() };
    let mut decoder = Decoder::new(ROCE_PORT);
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => return,
            Err(_) => continue,
        };
        let context = decoder.decode(&record);
        let file = u16::from(record.data.len() % 7 == 0);
        match PacketFacts::new(&context, file) {
            Some(facts) => run.packet(&facts),
            None => {
                run.frames += 1;
                run.analysis.handle_other_frame(context.time, context.wire_len, file);
            }
        }
    }
}

/// Opcodes of generated packets.
const OPCODES: [Opcode; 32] = [
    Opcode::RC_SEND_FIRST,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_SEND_LAST,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_ONLY_WITH_IMMEDIATE,
    Opcode::RC_RDMA_WRITE_FIRST,
    Opcode::RC_RDMA_WRITE_MIDDLE,
    Opcode::RC_RDMA_WRITE_LAST,
    Opcode::RC_RDMA_WRITE_ONLY,
    Opcode::RC_RDMA_READ_REQUEST,
    Opcode::RC_RDMA_READ_REQUEST,
    Opcode::RC_RDMA_READ_RESPONSE_FIRST,
    Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
    Opcode::RC_RDMA_READ_RESPONSE_LAST,
    Opcode::RC_RDMA_READ_RESPONSE_ONLY,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ATOMIC_ACKNOWLEDGE,
    Opcode::RC_COMPARE_SWAP,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_SEND_LAST_WITH_IMMEDIATE,
    Opcode::RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    Opcode::RC_FLUSH,
    Opcode::RC_ATOMIC_WRITE,
    Opcode::UC_SEND_FIRST,
    Opcode::UC_SEND_MIDDLE,
    Opcode::UC_SEND_LAST,
    Opcode::UC_SEND_ONLY,
    Opcode::UD_SEND_ONLY,
    Opcode::CNP,
    Opcode(0xff),
];

/// Nanoseconds between two packets.
const STEPS: [u64; 8] = [0, 100, 1_000, 5_000, 60_000, 1_100_000, 20_000_000, 300_000_000];

/// Payload bytes.
const LENGTHS: [u32; 4] = [0, 8, 256, 1024];

/// Syndromes: ACK, credits, RNR NAK, the NAKs, ones that mean nothing.
const SYNDROMES: [u8; 16] = [
    0x1f, 0x1f, 0x1f, 0x1f, 0x1f, 0x05, 0x2c, 0x20, 0x60, 0x60, 0x60, 0x61, 0x62, 0x63, 0x64, 0x5f,
];

/// Eight bytes are a packet: few queue pairs, PSNs near each other, anything else.
fn generate(bytes: &[u8], run: &mut Run) {
    let mut time = 1_000_000_000;
    // The next PSN of each host to each queue pair, across 2^24.
    let mut next = [[0xff_fff0_u32; 4]; 2];
    for (number, step) in bytes.chunks_exact(8).enumerate() {
        let [when, who, opcode, near, what, aeth, length, file] = *step else { continue };
        time += STEPS[usize::from(when % 8)];
        let (sender, queue) = (usize::from(who & 1), usize::from(who >> 1 & 3));
        let opcode = OPCODES[usize::from(opcode) % OPCODES.len()];
        let info = opcode.info();
        let is_response = info.is_some_and(|info| info.role == roce::wire::Role::Response);
        let space = if is_response { 1 - sender } else { sender };
        let psn = match near {
            // Most go on where the last one was.
            0..128 => next[space][queue],
            128..224 => next[space][queue].wrapping_sub(u32::from(near - 127) / 4),
            224..250 => next[space][queue].wrapping_add(u32::from(near - 223)),
            _ => u32::from(near) << 16 | u32::from(aeth) << 8,
        };
        if !is_response && (psn.wrapping_sub(next[space][queue]) as i32) >= 0 {
            next[space][queue] = psn.wrapping_add(1);
        }
        let host = |host: usize| Gid::from(Ipv4Addr::new(10, 0, 0, 1 + host as u8));
        let has_aeth = info.is_some_and(|info| info.role == roce::wire::Role::Response);
        let reads = u32::from(length) << (what & 7);
        let facts = PacketFacts {
            tunnel: None,
            frame: number as u64 + 1,
            train: None,
            file: u16::from(file % 3),
            time: Instant::from_nanos(time),
            source: host(sender),
            destination: host(1 - sender),
            source_port: 50_000 + u16::from(what >> 7),
            opcode,
            ack_request: what & 1 == 1,
            dest_qp: Qpn::new(0x10 + queue as u32 * 2 + sender as u32),
            source_qp: (opcode == Opcode::UD_SEND_ONLY)
                .then(|| Qpn::new(0x11 + queue as u32 * 2 - sender as u32)),
            psn: Psn::new(psn & 0xff_ffff),
            payload_len: LENGTHS[usize::from(length % 4)],
            wire_len: LENGTHS[usize::from(length % 4)] + 58,
            dscp: None,
            is_ce_marked: what & 0x18 == 0x18,
            icrc: if what & 0x62 == 0x62 { IcrcVerdict::Bad } else { IcrcVerdict::Ok },
            is_cut: what == 0xfe,
            is_header_cut: what == 0xfe && length & 1 == 1,
            unsplit: match what {
                0xfd => Unsplit::Certain,
                0xfc => Unsplit::Possible,
                _ => Unsplit::No,
            },
            aeth: has_aeth.then(|| {
                (Syndrome(SYNDROMES[usize::from(aeth % 16)]), Msn::new(u32::from(aeth >> 4)))
            }),
            reth: matches!(opcode.0, 0x06 | 0x0a | 0x0c | 0x13 | 0x14).then_some(RethFacts {
                virtual_address: 0,
                rkey: RKey::new(1),
                length: if what == 0xff { u32::MAX } else { reads },
            }),
            // Often the same for the same PSN, as retransmissions are.
            digest: if what & 4 == 4 { u32::from(what) } else { psn },
            cm: None,
            sightings: None,
        };
        run.packet(&facts);
    }
}
