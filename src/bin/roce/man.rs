//! Manual pages, from the same definitions as the help: one for the command and one for each
//! subcommand, with the sections that manual pages have and help has not.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::outfile::WholeFile;
use crate::{Cli, help, output};

/// Print the man page, or write one per subcommand
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write roce.1, roce-decode.1 … into this directory, which is created if need be.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut command = help::reflow(Cli::command()).disable_help_subcommand(true);
    command.build();
    match &args.out {
        Some(dir) if dir.is_file() => bail!("--out {}: is a file; name a directory", dir.display()),
        Some(dir) => std::fs::create_dir_all(dir)
            .map_err(Into::into)
            .and_then(|()| write_pages(command, dir))
            .with_context(|| format!("cannot write man pages to {}", dir.display()))?,
        None => {
            let mut out = output::stdout();
            write_page(command, &mut out)?;
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: clap::Command, dir: &Path) -> anyhow::Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(subcommand.clone(), dir)?;
    }
    let mut page = Vec::new();
    let name = Man::new(command.clone()).get_filename();
    write_page(command, &mut page)?;
    WholeFile::write(name.clone(), &dir.join(name), &page)
}

fn write_page(command: clap::Command, out: &mut dyn Write) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    // Examples under a heading of their own, and after an empty line anything else.
    let after_help = command.get_after_help().map(ToString::to_string);
    let has_options = command.get_arguments().any(|argument| !argument.is_hide_set());
    let has_subcommands = command.get_subcommands().next().is_some();
    let man = Man::new(command);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    if has_options {
        man.render_options_section(out)?;
    }
    if has_subcommands {
        man.render_subcommands_section(out)?;
    }
    let sections = sections(&name);
    write_list(out, "EXIT STATUS", sections.exit_status)?;
    write_list(out, "ENVIRONMENT", sections.environment)?;
    if let Some(after_help) = after_help {
        let (examples, notes) = after_help.split_once("\n\n").unwrap_or((&after_help, ""));
        write_literally(out, "EXAMPLES", examples.split_once('\n').map_or("", |(_, lines)| lines))?;
        write_notes(out, notes.split("\nExit status").next().unwrap_or_default())?;
    }
    writeln!(out, ".SH \"SEE ALSO\"\n{}", escaped(sections.see_also))
}

/// A section whose lines stay as they are, unless it is empty.
fn write_literally(out: &mut dyn Write, title: &str, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    writeln!(out, ".SH \"{title}\"\n.nf\n{}\n.fi", escaped(text))
}

/// A section of paragraphs, unless it is empty. Lines that are indented stay as they are.
fn write_notes(out: &mut dyn Write, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    writeln!(out, ".SH \"NOTES\"")?;
    for line in text.lines() {
        match line.starts_with(' ') {
            true => writeln!(out, ".nf\n{}\n.fi", escaped(line))?,
            false => writeln!(out, ".PP\n{}", escaped(line))?,
        }
    }
    Ok(())
}

/// A section of terms, each with what it means.
fn write_list(out: &mut dyn Write, title: &str, list: &[(&str, &str)]) -> io::Result<()> {
    writeln!(out, ".SH \"{title}\"")?;
    for (term, meaning) in list {
        writeln!(out, ".TP\n.B {}\n{}", escaped(term), escaped(meaning))?;
    }
    Ok(())
}

/// A text as roff shows it literally: no escapes, no control lines, hyphens that can be copied.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| {
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Sections of a page beside its help.
struct Sections {
    exit_status: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    see_also: &'static str,
}

const COLUMNS: (&str, &str) =
    ("COLUMNS", "The width of lines, where standard output is no terminal.");
const NO_COLOR: (&str, &str) = ("NO_COLOR", "No colors if it is set and not empty.");
const TOKEN: (&str, &str) =
    ("ROCE_TOKEN", "The secret that client and server share, as --token gives it.");
const DONE: (&str, &str) = ("0", "Success.");
const ERROR: (&str, &str) =
    ("2", "It could not be done: wrong options, a file or a device that cannot be used.");
const INTERRUPTED: (&str, &str) = ("130", "Ended by Ctrl-C; what was found until then is printed.");

static DECODE: Sections = Sections {
    exit_status: &[
        DONE,
        ("1", "Damaged records were skipped."),
        ("2", "Something could not be read, or with --strict was damaged."),
        ("130", "Ended by Ctrl-C."),
    ],
    environment: &[NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-flows(1), tcpdump(1), tshark(1), pcap-filter(7)",
};

static FLOWS: Sections = Sections {
    exit_status: &[
        ("0", "There are no findings."),
        ("1", "There are findings."),
        ("2", "A capture could not be read."),
        INTERRUPTED,
    ],
    environment: &[NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-decode(1), roce-replay(1), tcpdump(1)",
};

static REPLAY: Sections = Sections {
    exit_status: &[
        ("0", "There are no differences but known deviations."),
        ("1", "There are differences."),
        ("2", "A capture could not be read, or a peer not reached."),
        INTERRUPTED,
    ],
    environment: &[NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-flows(1), roce-conform(1), roce-serve(1)",
};

static CONFORM: Sections = Sections {
    exit_status: &[
        ("0", "There are no differences but known deviations."),
        ("1", "There are other differences."),
        ERROR,
        INTERRUPTED,
    ],
    environment: &[NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-replay(1), roce-devices(1), ibv_devices(1)",
};

static BENCH: Sections = Sections {
    exit_status: &[
        DONE,
        ("1", "--verify found wrong bytes, or no message arrived."),
        ERROR,
        INTERRUPTED,
    ],
    environment: &[TOKEN, NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-devices(1), ib_send_bw(1), ib_send_lat(1), ibv_rc_pingpong(1)",
};

static PING: Sections = Sections {
    exit_status: &[
        ("0", "Probes were answered."),
        ("1", "No probe was answered."),
        ("2", "The server could not be reached, or a device cannot be used."),
    ],
    environment: &[TOKEN],
    see_also: "roce(1), roce-mesh(1), roce-serve(1), roce-devices(1), ping(8), rping(1)",
};

static MESH: Sections = Sections {
    exit_status: &[
        ("0", "Hosts answered, and there are no findings."),
        ("1", "There are findings, or a host could not be reached."),
        ERROR,
        INTERRUPTED,
    ],
    environment: &[TOKEN, NO_COLOR, COLUMNS],
    see_also: "roce(1), roce-ping(1), roce-serve(1)",
};

static RUN: Sections = Sections {
    exit_status: &[
        ("126", "The program cannot be run."),
        ("127", "The program is not found."),
        ("2", "A device cannot be opened, the library is not found, or a capture was cut."),
        ("other", "The program's own."),
    ],
    environment: &[
        ("ROCE_LIBRARY", "The libibverbs.so.1 to use, or its directory."),
        ("XDG_CACHE_HOME", "Where a released command unpacks its library, if none is installed."),
        ("ROCE_FILES", "How the program sees the files of its devices: namespace or preload."),
        ("ROCE_LOG", "A file to write into why a device cannot be opened."),
        (
            "ROCE_PIN_SOURCE_PORT",
            "off accepts packets of a connection from any UDP source port of its peer.",
        ),
        (
            "ROCE_DEVICES, ROCE_PCAP, ROCE_FAULT, ROCE_SHM",
            "What --device, --pcap, --fault and --no-shm (off) pass to the library.",
        ),
        (
            "ROCE_CC, ROCE_CC_PROFILE, ROCE_LINE_RATE, ROCE_ECN, ROCE_CNP",
            "What --cc, --cc-profile, --line-rate, --ecn and --cnp pass to the library.",
        ),
        (
            "ROCE_RECOVERY, ROCE_RECEIVE, ROCE_PATHS",
            "What --recovery, --receive and --paths pass to the library.",
        ),
        ("ROCE_COUNTERS", "A file to append the counters of a device to when it is closed."),
    ],
    see_also: "roce(1), roce-devices(1), roce-decode(1), ibv_devinfo(1), ib_write_bw(1), verbs(7)",
};

static DOCTOR: Sections = Sections {
    exit_status: &[("0", "roce run works on this machine."), ("1", "roce run cannot work."), ERROR],
    environment: &[("ROCE_LIBRARY", "The libibverbs.so.1 to use, or its directory."), COLUMNS],
    see_also: "roce(1), roce-run(1), roce-devices(1), capabilities(7), user_namespaces(7)",
};

static OTHERS: Sections = Sections {
    exit_status: &[DONE, ("1", "The command found something wrong."), ERROR, INTERRUPTED],
    environment: &[TOKEN, NO_COLOR, COLUMNS],
    see_also: "roce-demo(1), roce-run(1), roce-decode(1), roce-flows(1), roce-replay(1), roce-serve(1), roce-bench(1), \
               roce-ping(1), roce-mesh(1), roce-conform(1), roce-devices(1), roce-doctor(1)",
};

/// Returns the sections of the page with this name. Pages that are not listed have those of every
/// command.
fn sections(name: &str) -> &'static Sections {
    match name {
        "roce-decode" => &DECODE,
        "roce-flows" => &FLOWS,
        "roce-replay" => &REPLAY,
        "roce-conform" | "roce-conform-run" | "roce-conform-serve" => &CONFORM,
        "roce-bench" | "roce-serve" => &BENCH,
        "roce-ping" => &PING,
        "roce-mesh" => &MESH,
        "roce-run" => &RUN,
        "roce-doctor" => &DOCTOR,
        _ => &OTHERS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_it_is_written() {
        assert_eq!(escaped("a-b\\c\n.d\n'e"), "a\\-b\\ec\n\\&.d\n\\&'e");
    }

    #[test]
    fn every_page_has_the_sections_of_a_manual() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let subcommands = command.get_subcommands().cloned().collect::<Vec<_>>();
        for command in subcommands.into_iter().chain([command]) {
            let mut page = Vec::new();
            let name = command.get_name().to_owned();
            write_page(command, &mut page).unwrap();
            let page = String::from_utf8(page).unwrap();
            let sections =
                ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"];
            let has = |section: &str| {
                let titles = [format!(".SH {section}\n"), format!(".SH \"{section}\"\n")];
                titles.iter().any(|title| page.contains(title))
            };
            for section in sections {
                assert!(has(section), "{name}: {section}");
            }
            let has_examples = !matches!(name.as_str(), "roce" | "completions" | "man");
            assert_eq!(has("EXAMPLES"), has_examples, "{name}");
        }
    }
}
