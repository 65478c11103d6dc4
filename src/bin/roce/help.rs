//! Help: texts that a terminal of any width can show, and pages for `roce help PAGE`.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Command;

use crate::output;

/// Pages beside the help of commands: what they are called, and their text.
const PAGES: [(&str, &str); 3] = [
    ("faults", include_str!("../../../docs/faults.md")),
    ("filter", include_str!("../../../docs/filter.md")),
    ("parquet", include_str!("../../../docs/parquet.md")),
];

/// Prints the page that the arguments ask for, if they are `help PAGE`.
pub(crate) fn page(arguments: &[OsString]) -> Option<Result<ExitCode>> {
    let [help, name] = arguments else { return None };
    let (_, text) = PAGES.iter().find(|(known, _)| help == "help" && name == *known)?;
    let print = || {
        let mut out = output::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    };
    Some(print())
}

/// Joins the lines of each paragraph in the help of a command and its subcommands: the terminal
/// breaks lines where it ends. Without that, lines break twice where it is narrower than the
/// source.
pub(crate) fn reflow(command: Command) -> Command {
    let [about, after] = [command.get_long_about(), command.get_after_help()]
        .map(|text| text.map(|text| joined(&text.to_string())));
    let mut command = command.mut_subcommands(reflow);
    if let Some(about) = about {
        command = command.long_about(about);
    }
    if let Some(after) = after {
        command = command.after_help(after);
    }
    command
}

/// Whether a line is part of a paragraph: it is not indented, as examples and tables are, nor
/// empty.
fn is_prose(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(' ')
}

/// A text whose paragraphs are lines.
fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut last = "";
    for line in text.lines() {
        let goes_on = is_prose(last) && is_prose(line) && !line.starts_with("Exit status");
        if !out.is_empty() {
            out.push(if goes_on { ' ' } else { '\n' });
        }
        out.push_str(line);
        last = line;
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    /// All commands with their names, as they are typed.
    fn all(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
        found.push((name.to_owned(), command.clone()));
        for subcommand in command.get_subcommands().filter(|it| it.get_name() != "help") {
            all(subcommand, &format!("{name} {}", subcommand.get_name()), found);
        }
    }

    fn commands() -> Vec<(String, Command)> {
        let mut command = reflow(Cli::command());
        command.build();
        let mut found = Vec::new();
        all(&command, "roce", &mut found);
        found
    }

    #[test]
    fn paragraphs_are_lines_and_the_rest_stays() {
        let text = "One\ntwo.\n\nEXAMPLES\n  a\n  b\nThree\nfour.\nExit status: 0.";
        assert_eq!(joined(text), "One two.\n\nEXAMPLES\n  a\n  b\nThree four.\nExit status: 0.");
    }

    #[test]
    fn no_line_of_help_breaks_twice() {
        for (name, command) in commands() {
            for width in [80, 100, 200] {
                let help = command.clone().term_width(width).render_long_help().to_string();
                let lines: Vec<&str> = help.lines().collect();
                for pair in lines.windows(2) {
                    let [line, next] = pair else { continue };
                    // A word that would have fit shows that the line was broken in the source.
                    let first = next.split(' ').next().unwrap_or_default();
                    let is_short = line.chars().count() + 1 + first.chars().count() < width;
                    let breaks =
                        is_prose(line) && is_prose(next) && !next.starts_with("Exit status");
                    let is_list = line.ends_with(':') || line.starts_with("Usage");
                    assert!(
                        !(breaks && is_short) || is_list,
                        "{name}, {width} columns: {line}\n{next}"
                    );
                }
            }
        }
    }

    /// Texts of help name no files of the repository, which a user of the command does not have.
    #[test]
    fn help_names_no_files_of_the_repository() {
        for (name, mut command) in commands() {
            let help = command.render_long_help().to_string();
            assert!(!help.contains("docs/"), "{name}: {help}");
        }
        for (page, text) in PAGES {
            assert!(text.len() > 500, "{page}");
            let arguments = ["help", page].map(OsString::from);
            assert!(PAGES.iter().any(|(known, _)| arguments[1] == *known));
        }
    }

    /// Each option that takes a device lists the forms that messages list, as far as its command
    /// takes them, and the help of `roce devices` explains all.
    #[test]
    fn help_lists_the_forms_of_devices() {
        let message = "none".parse::<crate::device::Spec>().unwrap_err();
        let all = [
            "udp:ADDRESS",
            "raw:INTERFACE",
            "soft:INTERFACE",
            "xdp:INTERFACE",
            "tap:NAME@ADDRESS/PREFIX",
            "verbs:NAME",
        ];
        let mut found = Vec::new();
        for (name, mut command) in commands() {
            let options = command.get_arguments().filter(|it| {
                let long = it.get_long().unwrap_or_default();
                long == "device" || long == "to"
            });
            let texts: Vec<_> = options.map(|it| it.get_help().unwrap().to_string()).collect();
            for (text, form) in texts.iter().flat_map(|text| all.map(|form| (text, form))) {
                let is_taken = match name.as_str() {
                    "roce run" => !form.starts_with("tap:") && !form.starts_with("verbs:"),
                    "roce replay" => !form.starts_with("verbs:"),
                    _ => true,
                };
                assert_eq!(text.contains(form), is_taken, "{name}: {form}: {text}");
                assert!(message.contains(form), "{form}: {message}");
            }
            found.extend(texts.iter().map(|_| name.clone()));
            if name == "roce devices" {
                let help = command.render_help().to_string();
                assert!(all.iter().all(|form| help.contains(form)), "{help}");
            }
        }
        for name in ["roce run", "roce serve", "roce bench send", "roce ping", "roce replay"] {
            assert!(found.iter().any(|it| it == name), "{name} is not in {found:?}");
        }
    }

    /// Messages and pages name options that exist.
    #[test]
    fn options_that_messages_name_exist() {
        let commands = commands();
        let mut sources = Vec::new();
        sources_below("src".as_ref(), &mut sources);
        sources_below("docs".as_ref(), &mut sources);
        let mut found = 0;
        for (file, text) in &sources {
            for (command, option) in mentions(text) {
                // An option can be one of a subcommand: roce bench send bw --json.
                let below = format!("{command} ");
                let known: Vec<_> = commands
                    .iter()
                    .filter(|(name, _)| *name == command || name.starts_with(&below))
                    .flat_map(|(_, known)| known.get_arguments())
                    .collect();
                if known.is_empty() {
                    continue;
                }
                found += 1;
                let long = option.trim_start_matches("--");
                let options = known.iter().flat_map(|argument| {
                    let aliases = argument.get_all_aliases().unwrap_or_default();
                    argument.get_long().into_iter().chain(aliases)
                });
                let mut options = options.collect::<Vec<_>>().into_iter();
                let is_known =
                    options.any(|name| name == long) || matches!(long, "help" | "version");
                assert!(is_known, "{file} names {command} {option}");
            }
        }
        assert!(found > 50, "{found}");
    }

    /// Each `roce COMMAND … --option` of a text, up to the end of its line or what ends a command
    /// there.
    fn mentions(text: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for line in text.lines() {
            for part in line.split("roce ").skip(1) {
                let end =
                    part.find(['`', '|', ')', ';', '#', '\'', '"', '&']).unwrap_or(part.len());
                let part = part[..end].split(" -- ").next().unwrap_or_default();
                let mut words = part.split_whitespace();
                let Some(command) = words.next() else { continue };
                let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
                all.extend(options.map(|option| {
                    let name = option.split('=').next().unwrap_or_default();
                    let name = name.trim_end_matches(['.', ',', ':', '…', ']']);
                    (format!("roce {command}"), name.to_owned())
                }));
            }
        }
        all
    }

    fn sources_below(directory: &std::path::Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources_below(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path.display().to_string(), text));
            }
        }
    }
}
