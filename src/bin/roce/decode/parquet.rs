//! `roce decode --parquet`: the packets of each capture as a table.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::args::{Args, find_field};
use super::run::End;
use super::show::Show;
use crate::batches::{self, Part};
use crate::input::Inputs;
use crate::links::UnknownLinks;
use crate::progress::Progress;
use crate::tables::{Packets, Partition, Rows, TIME_EPOCH, Table, capture_name};

/// Writes the packets of each capture to a table of its own below `out`.
pub(super) fn run(args: &Args, out: &Path) -> Result<ExitCode> {
    let fields = args.fields.iter().map(|name| find_field(name)).collect::<Result<Vec<_>>>()?;
    let packets = Packets::new(&fields);
    let mut names: Vec<_> = args.files.iter().map(|file| capture_name(file)).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[a, b]| a == b) {
        bail!(
            "--parquet: two captures have the name {name}; run roce once for each, with --host or --capture-name"
        );
    }
    if args.names.capture_name.is_some() && names.len() > 1 {
        bail!("--capture-name names one capture, and there are {}", names.len());
    }
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut status = ExitCode::SUCCESS;
    for file in args.files.iter() {
        if left == 0 {
            break;
        }
        let mut inputs = Inputs::open(core::slice::from_ref(file), args.strict)?;
        if !inputs.names().is_empty() {
            let threads = batches::threads(args.jobs);
            let partition = Partition::new(out, file, &args.names);
            let columns = packets.columns();
            let mut table = Table::create(&partition, "packets", columns, TIME_EPOCH, threads)?;
            write(args, &packets, &mut inputs, &mut table, &mut left)?;
            table.finish()?;
        }
        // The exit status is the worst of all files.
        if status != crate::could_not() && inputs.problems.status() != ExitCode::SUCCESS {
            status = inputs.problems.status();
        }
    }
    Ok(status)
}

/// Rows of a batch of packets.
struct Made {
    rows: Rows,
    packets: u64,
    unknown: UnknownLinks,
    /// Buffer for the text of a value.
    text: String,
}

/// Writes the packets of a capture, at most `left` of them.
fn write(
    args: &Args,
    packets: &Packets,
    inputs: &mut Inputs,
    table: &mut Table,
    left: &mut u64,
) -> Result<()> {
    let show = Show::new(args, inputs.names())?;
    if show.needs_flows {
        bail!(
            "--parquet: the table of packets has no connections; that of `roce flows --parquet` has"
        );
    }
    let bar = Progress::new(inputs.size(), false);
    let mut unknown = UnknownLinks::default();
    let make = || Made {
        rows: packets.columns(),
        packets: 0,
        unknown: UnknownLinks::default(),
        text: String::new(),
    };
    let work = |part: &mut Part<Made>, limit| {
        let Part { batch, decoder, made, .. } = part;
        made.rows.clear();
        made.unknown.clear();
        made.packets = 0;
        let mut decoder = decoder.clone();
        let Made { rows, packets: count, unknown, text } = made;
        for record in batch.records() {
            if *count >= limit {
                break;
            }
            show.decode(&mut decoder, &record, unknown, |packet| {
                // A train may have more packets than are wanted.
                if *count < limit {
                    *count += 1;
                    packets.add(packet, rows, text);
                }
            });
        }
    };
    let take = |part: &mut Part<Made>| {
        if part.made.packets > *left {
            work(part, *left);
        }
        *left -= part.made.packets;
        table.append(&mut part.made.rows)?;
        unknown.append(&mut part.made.unknown);
        bar.set_position(part.bytes_read);
        if *left == 0 { Err(End::Full) } else { Ok(()) }
    };
    let whole = |part: &mut Part<Made>| work(part, u64::MAX);
    let threads = batches::threads(args.jobs);
    End::of(batches::decode(threads, inputs, args.port, make, whole, take))?;
    bar.finish_and_clear();
    inputs.finish();
    unknown.report(&mut inputs.problems);
    Ok(())
}
