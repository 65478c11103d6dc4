//! Both passes over the captures, and the report.

use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use roce::analysis::PacketFacts;
use roce::replay::{
    Options, Registered, ReplayReport, Session, Sink, Step, Style, Survey, Surveyor, all_rules,
    step_line,
};
use roce::verbs::Access;
use roce::wire::{Gid, RKey};

use super::Args;
use super::threads::judge_all;
use crate::flows::pass::{Follower, OtherFrame, Pass};
use crate::input::Inputs;
use crate::outfile::WholeFile;
use crate::output::say;
use crate::{batches, interrupt, outfile, output};

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.junit {
        outfile::check_report("--junit", path, &args.files)?;
    }
    let options = options(args)?;
    let mut inputs = Inputs::open(&args.files, args.strict)?;
    if inputs.names().is_empty() {
        // There is nothing to report on; why was said on standard error.
        return Ok(inputs.problems.status());
    }
    if inputs.size().is_none() {
        bail!(
            "replay reads the captures twice, which a pipe cannot; write the capture to a file first"
        );
    }
    let stop = interrupt::catch()?;
    let threads = batches::threads(args.jobs);
    let mut found = Found { surveyor: Surveyor::new(inputs.names().to_vec()), cut: 0 };
    Pass { port: args.port, filter: None, threads, stop }.read(&mut inputs, &mut found)?;
    found.surveyor.drops(inputs.dropped());
    let (survey, cut) = (found.surveyor.finish(), found.cut);
    let mut again = Inputs::reopen(&args.files, args.strict)?;
    let mut seen = Seen::new(args);
    let session = Session::new(survey, &options);
    let survey = judge_all(session, &mut again, (args.port, threads), &mut seen)?;
    seen.report.finish(&survey);
    let is_empty = survey.packets == 0 && !interrupt::requested();
    if is_empty {
        say!("{}", nothing_to_judge(survey.frames, cut, args.port));
    }
    print(args, &seen.report, is_empty)?;
    Ok(if interrupt::requested() {
        ExitCode::from(interrupt::STATUS)
    } else if inputs.problems.status() == crate::could_not() {
        crate::could_not()
    } else if seen.report.counts.different == 0 {
        inputs.problems.status()
    } else {
        ExitCode::FAILURE
    })
}

/// The first pass.
struct Found {
    surveyor: Surveyor,
    /// Frames that are cut before the end of their BTH, so that it is not known whether they are
    /// RoCE.
    cut: u64,
}

impl Follower for Found {
    #[inline]
    fn packet(&mut self, packet: &PacketFacts) {
        self.surveyor.packet(packet);
    }

    fn other(&mut self, frame: &OtherFrame) {
        self.cut += u64::from(frame.is_cut);
        self.surveyor.other_frame(frame.time, frame.wire_len, frame.file);
    }

    fn step(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Why a report has no packets, and what to check.
fn nothing_to_judge(frames: u64, cut: u64, port: u16) -> String {
    if cut > 0 {
        return format!(
            "no RoCE packet found in {frames} frames: {cut} of them are cut by a snap length before \
             the end of their transport header; capture at least 128 bytes of each frame, or all \
             (tcpdump -s 0)"
        );
    }
    format!(
        "no RoCE packet found in {frames} frames; check that the capture was made on the RDMA \
         device's port with a filter that passes UDP port {port} (--port sets another port)"
    )
}

/// Takes the verdicts.
pub(super) struct Seen {
    report: ReplayReport,
    verbose: Option<Vec<Step>>,
}

impl Seen {
    fn new(args: &Args) -> Self {
        let verbose = (args.verbose && !args.json).then(Vec::new);
        Self { report: ReplayReport::default(), verbose }
    }

    /// Prints the steps since the last time.
    pub(super) fn print(&mut self, survey: &Survey) -> Result<()> {
        let Some(steps) = &mut self.verbose else { return Ok(()) };
        if steps.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        steps.drain(..).for_each(|step| step_line(&step, survey, &mut text));
        let mut out = output::stdout();
        Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
    }
}

impl Sink for Seen {
    fn step(&mut self, step: Step) {
        if let Some(steps) = &mut self.verbose {
            steps.push(step.clone());
        }
        self.report.step(step);
    }
}

/// Prints the report. One without any packet is printed as JSON only: a line of zeros says nothing.
fn print(args: &Args, report: &ReplayReport, is_empty: bool) -> Result<()> {
    if let Some(path) = &args.junit {
        let names: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let report = report.junit(&names.join(" "));
        WholeFile::write(format!("--junit {}", path.display()), path, report.as_bytes())?;
    }
    let mut text = String::new();
    if args.json {
        text = report.json() + "\n";
    } else if !is_empty {
        let style = Style { color: args.color.wanted(), verbose: args.verbose };
        report.text(style, &mut text);
    }
    let mut out = output::stdout();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// Lists the rules.
pub(super) fn print_rules() -> Result<ExitCode> {
    let mut text = String::new();
    for rule in all_rules() {
        text += &format!("{}\n    {} ({})\n", rule.id, rule.text, rule.citation);
    }
    let mut out = output::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn options(args: &Args) -> Result<Options> {
    let mut options = Options::default();
    options.program_writes = args.program_writes;
    options.point = args.at.map(|address| address.0);
    options.regions = args.regions.iter().map(|region| region.0).collect();
    for Profile { address, device } in &args.profiles {
        match address {
            None => options.profiles.set_all(device),
            Some(address) => options.profiles.set(address.0, device),
        }
        .context("--device-profile")?;
    }
    Ok(options)
}

/// An address of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(Gid);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(IpAddr::V4(address)) => Ok(Self(address.into())),
            Ok(IpAddr::V6(address)) => Ok(Self(address.into())),
            Err(_) => Err(format!("{text:?} is no address; give one as 10.9.0.1 or fd00::1")),
        }
    }
}

/// Kind of device at an address, or at all.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    address: Option<Address>,
    device: String,
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None => Ok(Self { address: None, device: text.to_owned() }),
            Some((address, device)) => {
                Ok(Self { address: Some(address.parse()?), device: device.to_owned() })
            }
        }
    }
}

/// Memory that a host registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionArg(Registered);

impl FromStr for RegionArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [host, rkey, address, length, access] = *text.split(',').collect::<Vec<_>>() else {
            return Err("give HOST,RKEY,ADDRESS,LENGTH,ACCESS".to_owned());
        };
        let Address(host) = host.parse()?;
        let rkey = number(rkey)?;
        let rkey = u32::try_from(rkey).map_err(|_| format!("{rkey:#x} is longer than a key"))?;
        let (address, length) = (number(address)?, number(length)?);
        let mut rights = Access::empty();
        for letter in access.chars() {
            rights |= match letter {
                'r' => Access::REMOTE_READ,
                'w' => Access::REMOTE_WRITE,
                'a' => Access::REMOTE_ATOMIC,
                _ => return Err(format!("{letter:?} is no access; give some of r, w, a")),
            };
        }
        let rkey = RKey::new(rkey);
        Ok(Self(Registered { host, rkey, address, length, access: rights }))
    }
}

/// A number, in hexadecimal after 0x.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}
