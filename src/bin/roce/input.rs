//! The captures that a subcommand reads: opened, merged by time, and what was wrong with them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use roce::capture::{Merge, MergeError, Reader};

/// Bytes of a capture: a file, a pipe, standard input.
pub(crate) type Source = Box<dyn Read + Send>;

/// The captures that a subcommand reads, merged by time.
pub(crate) struct Inputs {
    /// All records. An error that is given to [`Problems::report`] does not end the reading.
    pub(crate) merge: Merge<Source>,
    /// What was wrong with the files so far.
    pub(crate) problems: Problems,
    /// How many bytes there are in all, if every input is a regular file.
    size: Option<u64>,
}

impl Inputs {
    /// Opens captures; `-` is standard input. Reports on standard error what cannot be opened, and goes on without it.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self> {
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            bail!("standard input (-) is named twice; it can be read once");
        }
        let (mut readers, mut size) = (Vec::new(), Some(0_u64));
        let mut problems = Problems { names: Vec::new(), failed: false };
        for path in paths {
            let name = path.display().to_string();
            match open(path) {
                Ok((reader, bytes)) => {
                    size = size.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
                    problems.names.push(name);
                    readers.push(reader);
                }
                Err(error) => {
                    report(&name, &error);
                    problems.failed = true;
                }
            }
        }
        Ok(Self { merge: Merge::new(readers), problems, size })
    }

    /// The files that could be opened, as the user named them; a record's `file` is an index.
    pub(crate) fn names(&self) -> &[String] {
        &self.problems.names
    }

    /// How many bytes there are in all; nothing unless every input is a regular file.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size
    }
}

/// What was wrong with the captures.
pub(crate) struct Problems {
    /// The files in the merge, as the user named them; a record's `file` is an index.
    names: Vec<String>,
    /// Whether some input could not be read, or not to its end.
    failed: bool,
}

impl Problems {
    /// Says on standard error what is wrong with a file, and remembers it for the exit status.
    pub(crate) fn report(&mut self, trouble: MergeError) {
        self.fail(trouble.file, &trouble.error.into());
    }

    /// Says that a file holds something that cannot be used.
    pub(crate) fn fail(&mut self, file: u32, error: &anyhow::Error) {
        report(self.names.get(file as usize).map_or("", String::as_str), error);
        self.failed = true;
    }

    /// The exit status that follows from what was wrong with the files.
    pub(crate) fn status(&self) -> ExitCode {
        if self.failed { crate::could_not() } else { ExitCode::SUCCESS }
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn report(name: &str, error: &anyhow::Error) {
    eprintln!("roce: {name}: {error:#}");
}

/// Opens a capture, and tells its size if it is a regular file.
fn open(path: &Path) -> Result<(Reader<Source>, Option<u64>)> {
    if is_stdin(path) {
        return Ok((Reader::new(Box::new(io::stdin()) as Source)?, None));
    }
    let file = File::open(path).context("cannot open the file")?;
    let metadata = file.metadata().context("cannot read the file")?;
    if metadata.is_dir() {
        bail!("is a directory; name a capture in it");
    }
    let size = metadata.is_file().then_some(metadata.len());
    Ok((Reader::new(Box::new(file) as Source)?, size))
}
