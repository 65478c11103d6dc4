//! `roce demo --queues`: measures the effects of queue depth, batches and completion moderation.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use roce::device::AnyQp;
use roce::engine::Counter;
use roce::verbs::{Data, QpType, SendFlags, SendOp, SendWr, Wc, WrId};

use super::stage::{self, Side, connect_attr};

/// Size of every message.
const MESSAGE_BYTES: usize = 64;
/// Work requests in flight in tables that do not vary the depth.
const DEPTH: usize = 256;
/// Work requests per doorbell in tables that do not vary the batch.
const BATCH: usize = 16;
/// Timeout of one row.
const ROW_TIMEOUT: Duration = Duration::from_secs(30);

/// Parameters of a program's use of its queues.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Maximum number of work requests in flight: the depth of the send queue.
    depth: usize,
    /// Work requests per doorbell.
    batch: usize,
    /// Number of work requests of which the last is signaled.
    signal_every: usize,
}

/// Counters of a run of messages.
#[derive(Clone, Copy, Debug)]
struct Counted {
    elapsed: Duration,
    /// Calls that posted work requests.
    doorbells: usize,
    completions: usize,
    /// System calls that sent packets of the requester.
    send_calls: u64,
    /// Packets that the requester received: ACKs.
    acks: u64,
}

/// A table of measurements: one field of [`Usage`] varies from row to row.
struct Table {
    title: &'static str,
    about: &'static str,
    /// Heading of the column of the field that varies.
    varies: &'static str,
    rows: &'static [usize],
    usage: fn(usize) -> Usage,
}

const TABLES: &[Table] = &[
    Table {
        title: "Queue depth",
        about: "One work request per doorbell, each signaled. A program that keeps one in flight waits a round trip for each\n\
                message; with more in flight the NIC sends several packets per system call, and one ACK acknowledges several.",
        varies: "in flight",
        rows: &[1, 4, 16, 64, 256],
        usage: |depth| Usage { depth, batch: 1, signal_every: 1 },
    },
    Table {
        title: "Batches",
        about: "256 in flight, each signaled. Work requests that are posted as one list ring one doorbell.",
        varies: "per doorbell",
        rows: &[1, 4, 16, 64],
        usage: |batch| Usage { depth: DEPTH, batch, signal_every: 1 },
    },
    Table {
        title: "Completion moderation",
        about: "256 in flight, 16 per doorbell. Only every n-th work request is signaled; its completion also frees the\n\
                slots of the unsignaled ones before it.",
        varies: "signaled",
        rows: &[1, 4, 16, 64],
        usage: |signal_every| Usage { depth: DEPTH, batch: BATCH, signal_every },
    },
];

/// Prints every table, `messages` WRITEs a row.
pub(super) fn show(messages: usize, out: &mut dyn Write) -> Result<()> {
    let (a, b) = stage::open_untapped()?;
    writeln!(
        out,
        "RDMA WRITEs of {MESSAGE_BYTES} bytes between two soft NICs on loopback, {messages} for each row. Counted: calls\n\
         of the program (doorbells, completions), the counters of the requester's link (system calls) and of its\n\
         engine (ACKs received)."
    )?;
    for table in TABLES {
        writeln!(out, "\n{}", table.title)?;
        for line in table.about.lines() {
            writeln!(out, "  {}", line.trim_start())?;
        }
        writeln!(
            out,
            "  {:>12}  {:>10}  {:>11}  {:>9}  {:>11}  {:>10}  {:>8}",
            table.varies,
            "messages/s",
            "ns/message",
            "doorbells",
            "completions",
            "send calls",
            "ACKs"
        )?;
        for &row in table.rows {
            let counted = measure(&a, &b, (table.usage)(row), messages)?;
            print_row(row, messages, &counted, out)?;
        }
    }
    Ok(())
}

fn print_row(row: usize, messages: usize, counted: &Counted, out: &mut dyn Write) -> Result<()> {
    let Counted { elapsed, doorbells, completions, send_calls, acks } = *counted;
    let nanos = elapsed.as_nanos().max(1) / messages.max(1) as u128;
    let rate = 1_000_000_000 / nanos.max(1);
    Ok(writeln!(
        out,
        "  {row:>12}  {rate:>10}  {nanos:>11}  {doorbells:>9}  {completions:>11}  {send_calls:>10}  {acks:>8}"
    )?)
}

/// Sends `messages` WRITEs from `a` to `b`. Returns the time and the counters.
fn measure(a: &Side, b: &Side, usage: Usage, messages: usize) -> Result<Counted> {
    let depth = u32::try_from(usage.depth)?;
    let requester = a.pd.qp(&a.cq).depth(depth, 1).build_any(QpType::Rc)?;
    let responder = b.qp(QpType::Rc)?;
    requester.connect(&responder.endpoint()?, &connect_attr())?;
    responder.connect(&requester.endpoint()?, &connect_attr())?;
    let (send_calls, acks) = nic_counters(a);
    #[expect(clippy::disallowed_methods, reason = "a measurement takes the time")]
    let start = Instant::now();
    let (doorbells, completions) = write_all(a, b, &requester, usage, messages, start)?;
    let elapsed = start.elapsed();
    let (send_calls_now, acks_now) = nic_counters(a);
    Ok(Counted {
        elapsed,
        doorbells,
        completions,
        send_calls: send_calls_now - send_calls,
        acks: acks_now - acks,
    })
}

/// Returns the number of system calls by which a side's link has sent, and the number of packets
/// that its engine has received.
fn nic_counters(side: &Side) -> (u64, u64) {
    let link = side.nic.link_counters();
    let send_calls =
        link.iter().find(|(name, _)| *name == "send_calls").map_or(0, |(_, value)| *value);
    (send_calls, side.nic.counters().get(Counter::Received))
}

/// Posts and polls until all messages are written. Returns the numbers of doorbells and of
/// completions.
fn write_all(
    a: &Side,
    b: &Side,
    qp: &AnyQp,
    usage: Usage,
    messages: usize,
    start: Instant,
) -> Result<(usize, usize)> {
    let sges = [a.sge(0, MESSAGE_BYTES)];
    let op = SendOp::Write { remote_addr: b.mr.addr(), rkey: b.mr.rkey(), imm: None };
    let (mut posted, mut completed, mut doorbells, mut completions) = (0, 0, 0, 0);
    let mut batch = Vec::with_capacity(usage.batch);
    let mut wcs = [Wc::default(); 64];
    while completed < messages {
        while posted < messages {
            let count = usage.batch.min(messages - posted);
            if posted - completed + count > usage.depth {
                break;
            }
            batch.clear();
            batch.extend((posted + 1..=posted + count).map(|number| {
                let is_signaled = number % usage.signal_every == 0 || number == messages;
                let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
                let wr = SendWr::new(WrId(number as u64), op, Data::Gather(&sges));
                SendWr { flags, ..wr }
            }));
            qp.post_sends(&batch).map_err(|(_, error)| error)?;
            posted += count;
            doorbells += 1;
        }
        let got = a.cq.poll_wcs(&mut wcs);
        for wc in &wcs[..got] {
            ensure!(wc.is_success(), "work request {}: {}", wc.id.0, wc.status);
            completed = usize::try_from(wc.id.0)?;
            completions += 1;
        }
        if got == 0 && start.elapsed() > ROW_TIMEOUT {
            bail!("{completed} of {messages} messages completed in {ROW_TIMEOUT:?}");
        }
    }
    Ok((doorbells, completions))
}
