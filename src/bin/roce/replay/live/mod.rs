//! `roce replay --to` and `--write`: a capture onto a wire, or into a rewritten capture.

mod args;
mod connect;
mod hunt;
mod map;
mod offer;
mod play;
mod read;
mod report;
mod wire;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use roce::link;
use roce::replay::Options;
use roce::replay::live::{Script, Target, judge_answers};
use roce::wire::{Qpn, Service};

use self::offer::Server;
use self::play::{Part, PeerSide};
use self::wire::Wire;
use crate::output::say;
use crate::{interrupt, output};

pub(crate) use args::LiveArgs;

/// Plays or writes what the options ask for.
pub(crate) fn run(files: &[PathBuf], args: &LiveArgs, options: &Options) -> Result<ExitCode> {
    let [file] = files else {
        bail!("--to and --write take one capture; merge several first (roce decode -w OUT)");
    };
    args.check(file)?;
    let scripts = read::scripts(file, args)?;
    if let Some(out) = &args.write {
        let targets = targets(&scripts, args)?;
        write::write(out, &scripts, &targets, args.rounds)
            .with_context(|| format!("cannot write {}", out.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(spec) = &args.to else { bail!("--to DEVICE says where to send from") };
    interrupt::catch()?;
    send(spec, &scripts, args, options)
}

/// Returns the target of each script by the options alone.
fn targets(scripts: &[Script], args: &LiveArgs) -> Result<Vec<Target>> {
    scripts.iter().map(|script| map::target(script, scripts.len(), &args.maps)).collect()
}

/// Plays scripts to a live peer.
fn send(
    spec: &link::Spec,
    scripts: &[Script],
    args: &LiveArgs,
    options: &Options,
) -> Result<ExitCode> {
    let scripts = playable(scripts, args.host.is_some());
    ensure!(!scripts.is_empty(), "no connection of the capture can be played");
    let server = args.server()?;
    let listener = args.listener()?;
    let peer = args.peer.or_else(|| server.as_ref().map(Server::address));
    let peer = peer.or_else(|| listener.map(|it| it.ip()));
    let first = targets(&scripts, args)?.into_iter().next().unwrap_or_default();
    let mut wire = Wire::open(spec, peer, &first)?;
    if args.mutate.is_some() {
        let server = server.context("--mutate needs --host")?;
        return hunt::run(wire, server, &scripts, options, args);
    }
    wire.keep();
    if let Some(listener) = listener {
        wire.start_connector(listener.ip())?;
    }
    let mut parts: Vec<Part> = Vec::new();
    let address =
        peer.context("--to: name the peer: --host HOST, --connect HOST:PORT, or --peer ADDRESS")?;
    for script in &scripts {
        let side = match (listener, &server) {
            (Some(to), _) => PeerSide::Connected(connect::connect(&mut wire, to, script)?),
            (None, Some(server)) => PeerSide::Offer(server),
            (None, None) => PeerSide::Mapped,
        };
        parts.push(Part::new(script, scripts.len(), &wire, (address, side), args)?);
        play::keep_alive(&mut parts)?;
    }
    let mut options = options.clone();
    parts.iter().for_each(|part| part.tell(&mut options));
    let played = play::play(&mut wire, parts, args.rounds)?;
    if listener.is_some() {
        connect::disconnect(&mut wire)?;
    }
    let kept = wire.take_kept();
    if let Some(out) = &args.record {
        write::write_frames(out, &kept)
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    let own = peer.map(|peer| wire.source_for(peer)).transpose()?.unwrap_or_default();
    let verdicts = judge_answers(&kept, &options, own)?;
    let status = report::report(&mut output::stdout(), &played, &verdicts)?;
    Ok(if interrupt::requested() { ExitCode::from(interrupt::STATUS) } else { status })
}

/// The scripts that can be played, and a remark on each that cannot.
fn playable(scripts: &[Script], is_offered: bool) -> Vec<Script> {
    let reason = |script: &Script| match (script.service, script.responder.qpn) {
        (_, Some(Qpn::GSI)) => {
            Some("messages of the connection manager make no sense to another peer")
        }
        (Service::Rc | Service::Uc | Service::Ud, _) => None,
        (Service::Xrc, _) if !is_offered => None,
        (Service::Xrc, _) => Some("a server offers no XRC shared receive queue"),
        _ => Some("no device speaks this service"),
    };
    let mut kept = Vec::new();
    for script in scripts {
        match reason(script) {
            None => kept.push(script.clone()),
            Some(why) => say!("{}: left out: {why}", read::describe(script)),
        }
    }
    kept
}
