//! Selection of the scripts of a capture that are played.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use roce::analysis::FlowNumber;
use roce::capture;
use roce::decode::{Decoder, address_text};
use roce::link::interface::gid;
use roce::replay::live::{Collector, Script};
use roce::wire::{ROCE_PORT, Service};

use super::args::{LiveArgs, SideArg};
use crate::output::{counted, say};

/// Reads the scripts that the options ask for.
pub(super) fn scripts(file: &Path, args: &LiveArgs) -> Result<Vec<Script>> {
    let named = || file.display().to_string();
    let mut reader = capture::open(file).with_context(named)?;
    let mut decoder = Decoder::new(ROCE_PORT);
    let mut collector = Collector::new();
    while let Some(record) = reader.next().with_context(named)? {
        let mut collected = Ok(());
        decoder.decode_with(&record, |packet| {
            if collected.is_ok() {
                collected = collector.frame(packet);
            }
        });
        collected.with_context(named)?;
    }
    let all = collector.finish();
    ensure!(!all.is_empty(), "{}: no request of RoCE that could be played", named());
    let mut chosen: Vec<Script> = Vec::new();
    let mut flows: Vec<FlowNumber> = all.iter().map(|script| script.flow).collect();
    flows.dedup();
    for flow in flows {
        let of_flow = all.iter().filter(|script| script.flow == flow);
        let wanted = args.flows.is_empty() || args.flows.contains(&flow);
        let side = |script: &&Script| match args.side {
            // Ends are in the order of their first requests.
            None => true,
            Some(SideArg::Index(index)) => script.side.index() == usize::from(index),
            Some(SideArg::Address(address)) => script.requester.address == gid(address),
        };
        chosen.extend(of_flow.filter(side).take(1).filter(|_| wanted).cloned());
    }
    if let Some(missing) = args.flows.iter().find(|flow| !all.iter().any(|it| it.flow == **flow)) {
        anyhow::bail!("--flow {missing}: no such connection sent requests; roce flows lists them");
    }
    ensure!(!chosen.is_empty(), "--side: that end of no chosen connection sent a request");
    for script in &chosen {
        remark(script);
    }
    Ok(chosen)
}

/// Reports the requests that are left out.
fn remark(script: &Script) {
    let flow = script.flow;
    let left_out = script.left_out;
    if left_out.before_first_message > 0 {
        let count = left_out.before_first_message;
        let requests = counted(count, "request");
        say!("connection {flow}: {requests} before its first whole message left out");
    }
    let cut = script.requests().filter(|request| request.is_cut).count();
    if cut > 0 {
        say!(
            "connection {flow}: the capture cut {cut} requests short; what is missing is sent as zeros"
        );
    }
}

/// A script in a few words.
pub(super) fn describe(script: &Script) -> String {
    let end = |end: roce::replay::live::ScriptEnd| {
        let qpn = end.qpn.map_or_else(|| "?".to_owned(), |qpn| qpn.to_string());
        format!("{} QP {qpn}", address_text(end.address))
    };
    let service = match script.service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
        _ => "other",
    };
    format!(
        "connection {} ({service}, {} → {})",
        script.flow,
        end(script.requester),
        end(script.responder)
    )
}
