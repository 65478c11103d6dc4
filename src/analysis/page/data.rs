//! The data that the page's script reads as JSON: all but the packets.

use serde::Serialize;

use super::overview::{GroupsData, MatrixData, PairsData};
use super::recorder::Members;
use crate::analysis::limits::{PAGE_CONNECTION_ITEMS_MAX, PAGE_ITEMS_MAX};
use crate::analysis::row::Row;
use crate::analysis::text::end_text;
use crate::analysis::{
    Connection, Direction, Endpoint, Finding, FlowNumber, Pairing, Report, RetransmissionCause,
    Setup, Stall, operation_name, service_name,
};
use crate::decode::address_text;
use crate::wire::aeth::Syndrome;
use crate::wire::{Opcode, Operation};

/// The whole of it.
#[derive(Serialize)]
pub(super) struct Data<'a> {
    version: &'static str,
    capture: CaptureData<'a>,
    groups: GroupsData,
    matrix: MatrixData<'a>,
    pairs: PairsData,
    findings: Vec<FindingData<'a>>,
    totals: Row,
    connections: Vec<ConnectionData<'a>>,
    beyond_limits: &'a crate::analysis::BeyondLimits,
    /// Names by opcode and by the code of an operation.
    opcodes: Vec<Option<&'static str>>,
    operations: Vec<(u8, &'static str)>,
    /// Meaning of AETH syndromes, by their lower seven bits.
    syndromes: Vec<String>,
    /// The most packets, losses and messages of a connection and in all.
    items_max: [usize; 2],
}

#[derive(Serialize)]
struct CaptureData<'a> {
    files: &'a [crate::analysis::FileFacts],
    /// Limits of the capture, a sentence each.
    kind: Vec<String>,
    frames: u64,
    packets: u64,
    bytes: u64,
    /// Nanoseconds since 1970 as text: more digits than JavaScript's numbers have.
    start: String,
    nanos: u64,
}

#[derive(Serialize)]
struct FindingData<'a> {
    kind: &'static str,
    severity: u8,
    flow: Option<FlowNumber>,
    cost_nanos: u64,
    frames: &'a [u64],
    text: &'a str,
    advice: &'static str,
}

#[derive(Serialize)]
struct ConnectionData<'a> {
    flow: FlowNumber,
    service: &'static str,
    ends: [EndData; 2],
    pairing: Pairing,
    setup: Option<&'a Setup>,
    mtu: Option<u16>,
    first: f64,
    nanos: u64,
    first_frame: u64,
    last_frame: u64,
    row: Row,
    directions: [DirectionData; 2],
    /// Packets and messages that the page does not show one by one.
    left_out: [u64; 2],
}

#[derive(Serialize)]
struct EndData {
    address: String,
    qpn: Option<u32>,
    port: Option<u16>,
    dscp: Option<u8>,
    text: String,
}

#[derive(Serialize)]
struct DirectionData {
    requests: u64,
    responses: u64,
    goodput_bytes: u64,
    operations: Vec<(&'static str, u64, u64, u64, u64)>,
    latency: crate::analysis::Percentiles,
    rtt: crate::analysis::Percentiles,
    lost: [u64; 2],
    /// Packets by timeout, sequence NAK, implied NAK, RNR.
    retransmissions: [u64; RetransmissionCause::COUNT],
    duplicates: u64,
    reordered: u64,
    naks: [u64; 5],
    rnr: [u64; 2],
    ce_marked: u64,
    cnps: u64,
    depth: u32,
    icrc_errors: u64,
    not_captured: u64,
    /// Start (relative to the capture's), length, frames around it.
    stalls: Vec<(f64, u64, u64, Option<u64>)>,
}

impl<'a> Data<'a> {
    pub(super) fn new(report: &'a Report, recorded: &[Members<'_>]) -> Self {
        let capture = &report.capture;
        let origin = origin(report);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            capture: CaptureData {
                files: &capture.files,
                kind: capture.kind.sentences(),
                frames: capture.frames,
                packets: capture.packets,
                bytes: capture.bytes,
                start: origin.to_string(),
                nanos: capture.duration_nanos(),
            },
            groups: GroupsData::new(report),
            matrix: MatrixData::new(&report.matrix),
            pairs: PairsData::new(report, recorded),
            findings: report.findings.iter().map(finding).collect(),
            totals: Row::new(core::slice::from_ref(&report.totals.all)),
            connections: report
                .connections
                .iter()
                .enumerate()
                .map(|(index, one)| {
                    let left_out = recorded.get(index).map_or([0; 2], Members::left_out);
                    connection(one, left_out, origin)
                })
                .collect(),
            beyond_limits: &report.beyond_limits,
            opcodes: (0..=u8::MAX).map(|code| Opcode(code).info().map(|info| info.name)).collect(),
            operations: OPERATIONS
                .map(|operation| (operation as u8, operation_name(operation)))
                .into(),
            syndromes: (0..0x80).map(|code| Syndrome(code).answer().to_string()).collect(),
            items_max: [PAGE_CONNECTION_ITEMS_MAX, PAGE_ITEMS_MAX],
        }
    }
}

/// The operations that messages have.
const OPERATIONS: [Operation; 7] = [
    Operation::Send,
    Operation::Write,
    Operation::ReadRequest,
    Operation::CompareSwap,
    Operation::FetchAdd,
    Operation::Flush,
    Operation::AtomicWrite,
];

/// The time from which the page counts.
pub(super) fn origin(report: &Report) -> u64 {
    report.capture.first_time.map_or(0, crate::time::Instant::as_nanos)
}

fn finding(finding: &Finding) -> FindingData<'_> {
    FindingData {
        kind: finding.kind.title(),
        severity: finding.kind.severity(),
        flow: finding.flow,
        cost_nanos: finding.cost_nanos,
        frames: &finding.frames,
        text: &finding.text,
        advice: finding.kind.advice(),
    }
}

fn connection(one: &Connection, left_out: [u64; 2], origin: u64) -> ConnectionData<'_> {
    ConnectionData {
        flow: one.flow,
        service: service_name(one.service),
        ends: [end(&one.ends[0]), end(&one.ends[1])],
        pairing: one.pairing,
        setup: one.setup.as_ref(),
        mtu: one.path_mtu,
        first: relative(one.first_time.as_nanos(), origin),
        nanos: one.duration_nanos(),
        first_frame: one.first_frame,
        last_frame: one.last_frame,
        row: Row::of(one),
        directions: [direction(&one.directions[0], origin), direction(&one.directions[1], origin)],
        left_out,
    }
}

fn end(end: &Endpoint) -> EndData {
    EndData {
        address: address_text(end.address),
        qpn: end.qpn.map(crate::wire::Qpn::get),
        port: end.source_port,
        dscp: end.dscp,
        text: end_text(end),
    }
}

fn direction(one: &Direction, origin: u64) -> DirectionData {
    let causes = &one.retransmissions;
    let operations = one.operations.iter();
    DirectionData {
        requests: one.request_packets,
        responses: one.response_packets,
        goodput_bytes: one.goodput_bytes,
        operations: operations
            .map(|o| (operation_name(o.operation), o.messages, o.completed, o.failed, o.bytes))
            .collect(),
        latency: one.latency.percentiles(),
        rtt: one.rtt.percentiles(),
        lost: [one.lost_requests, one.lost_responses],
        retransmissions: RetransmissionCause::ALL.map(|cause| causes.of(cause).packets),
        duplicates: one.duplicate_packets,
        reordered: one.reordered,
        naks: one.naks,
        rnr: [one.rnr_naks, one.rnr_wait_nanos],
        ce_marked: one.ce_marked,
        cnps: one.cnps,
        depth: one.read_atomic_depth,
        icrc_errors: one.icrc_errors,
        not_captured: one.not_captured,
        stalls: one.stalls.iter().map(|stall| stall_data(stall, origin)).collect(),
    }
}

fn stall_data(stall: &Stall, origin: u64) -> (f64, u64, u64, Option<u64>) {
    (relative(stall.start.as_nanos(), origin), stall.nanos, stall.before, stall.after)
}

/// Nanoseconds since the origin, which may be later if the clock went backwards.
fn relative(time: u64, origin: u64) -> f64 {
    time as f64 - origin as f64
}
