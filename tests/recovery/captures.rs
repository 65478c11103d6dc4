//! Analysis and replay of captures of selective repeat.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use roce::analysis::Outcome;
use roce::capture::{PcapWriter, Reader, Record};
use roce::decode::Decoder;
use roce::engine::Counter;
use roce::replay::{Options, Step, Subject, Verdict, replay_capture};
use roce::wire::{Gid, LinkType, ROCE_PORT};

use super::line::{Line, MTU, Work, selective};
use super::recorder::analyze;

/// Returns a capture at the sender of requests on a line that loses data, and the number of packets
/// that were retransmitted.
fn capture(work: Work) -> (Vec<u8>, u64) {
    let mut line = Line::new([&selective, &selective], true);
    line.capture = Some(PcapWriter::new(Vec::new(), LinkType::RAW).unwrap());
    line.loss = 4_000_000;
    line.stream(work, 60);
    let retransmitted = line.counter(0, Counter::Retransmitted);
    (line.capture.unwrap().into_inner(), retransmitted)
}

#[test]
fn analysis_sees_that_packets_were_retransmitted_after_sacks_and_all_completed() {
    for work in [Work::Write, Work::Read] {
        let (bytes, retransmitted) = capture(work);
        assert!(retransmitted > 5);
        let (_, recorder) = analyze(Reader::new(bytes.as_slice()).unwrap());
        let done = recorder.messages.iter().filter(|it| it.outcome == Outcome::Completed).count();
        assert_eq!(done, 60, "{work:?}");
        if work == Work::Write {
            let noted = recorder.packets.iter().filter(|(_, it)| it.retransmission.is_some());
            assert_eq!(noted.count() as u64, retransmitted, "{work:?}");
        }
    }
}

/// Returns the verdicts on the requests of a capture that was taken at their sender.
fn judge(bytes: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut options = Options::default();
    options.point = Some(Gid::from(Ipv4Addr::new(192, 0, 2, 1)));
    replay_capture(bytes, &options, &mut steps).unwrap();
    steps.retain(|step| step.subject == Subject::Request);
    steps
}

#[test]
fn replay_judges_requests_of_connections_with_sacks() {
    for (work, retransmitted_most) in [(Work::Write, 5), (Work::Read, 60)] {
        let (bytes, _) = capture(work);
        let steps = judge(&bytes);
        let count =
            |is_it: fn(&Verdict) -> bool| steps.iter().filter(|step| is_it(&step.verdict)).count();
        let different = steps.iter().find(|step| matches!(step.verdict, Verdict::Different(_)));
        assert!(different.is_none(), "{work:?}: {different:?}");
        let undecided = count(|it| matches!(it, Verdict::Undecided(_)));
        assert!(undecided <= retransmitted_most, "{work:?}: {undecided} of {}", steps.len());
        assert!(count(|it| matches!(it, Verdict::Agreed)) >= 60, "{work:?}");
    }
}

#[test]
fn sacks_count_where_hardware_behind_the_capture_point_writes_icrcs() {
    let (bytes, _) = capture(Work::Write);
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    while let Some(record) = reader.next().unwrap() {
        let mut bytes = record.data.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        writer.write(record.time.unwrap(), bytes.len() as u32, &bytes).unwrap();
    }
    assert_eq!(judge(&writer.into_inner()), judge(&bytes));
}

#[test]
fn replay_tells_that_a_retransmission_is_not_what_was_sent() {
    let (bytes, _) = capture(Work::Write);
    let mut reader = Reader::new(&*bytes).unwrap();
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    let (mut decoder, mut seen) = (Decoder::new(ROCE_PORT), BTreeSet::new());
    let (mut frame, mut changed) = (0, None);
    while let Some(record) = reader.next().unwrap() {
        frame += 1;
        let mut bytes = record.data.to_vec();
        let bth = *decoder.decode(&record).frame.packet().unwrap().bth();
        let is_data = bytes.len() > MTU;
        if is_data && !seen.insert(bth.psn().get()) && changed.is_none() {
            changed = Some(frame);
            let at = bytes.len() - 10;
            bytes[at] ^= 1;
            let record = Record { data: &bytes, ..record };
            let icrc = decoder.decode(&record).frame.expected_icrc().unwrap();
            let end = bytes.len() - icrc.len();
            bytes[end..].copy_from_slice(&icrc);
        }
        writer.write(record.time.unwrap(), bytes.len() as u32, &bytes).unwrap();
    }
    let steps = judge(&writer.into_inner());
    let different: Vec<u64> = steps
        .iter()
        .filter(|step| matches!(step.verdict, Verdict::Different(_)))
        .map(|step| step.frame)
        .collect();
    assert_eq!(different, [changed.unwrap()]);
}
