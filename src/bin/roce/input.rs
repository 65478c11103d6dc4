//! The captures that a subcommand reads: opened, merged by time, and what was wrong with them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use roce::capture::{Merge, MergeError, Reader, Record};

/// Bytes of a capture: a file, a pipe, standard input.
type Source = Box<dyn Read + Send>;

/// The captures that a subcommand reads, merged by time.
pub(crate) struct Inputs {
    merge: Merge<Source>,
    /// The files in the merge, as the user named them; a record's `file` is an index.
    names: Vec<String>,
    /// How many bytes there are in all, if every input is a regular file.
    size: Option<u64>,
    /// Whether some input could not be read, or not to its end.
    failed: bool,
}

impl Inputs {
    /// Opens captures; `-` is standard input. Reports on standard error what cannot be opened, and goes on without it.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self> {
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            bail!("standard input (-) is named twice; it can be read once");
        }
        let (mut names, mut readers) = (Vec::new(), Vec::new());
        let (mut size, mut failed) = (Some(0_u64), false);
        for path in paths {
            let name = path.display().to_string();
            match open(path) {
                Ok((reader, bytes)) => {
                    size = size.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
                    names.push(name);
                    readers.push(reader);
                }
                Err(error) => {
                    report(&name, &error);
                    failed = true;
                }
            }
        }
        Ok(Self { merge: Merge::new(readers), names, size, failed })
    }

    /// The next record of all files; nothing at their end. An error that is given to [`Inputs::report`] does not end
    /// the reading.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>, MergeError> {
        self.merge.next()
    }

    /// Says on standard error what is wrong with a file, and remembers it for the exit status.
    pub(crate) fn report(&mut self, trouble: MergeError) {
        let name = self.names.get(trouble.file as usize).map_or("", String::as_str);
        report(name, &trouble.error.into());
        self.failed = true;
    }

    /// The files that could be opened, as the user named them.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// How many bytes there are in all, if that is known, for a progress bar.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size
    }

    /// How many of them were read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.merge.bytes_read()
    }

    /// The exit status that follows from what was wrong with the files.
    pub(crate) fn status(&self) -> ExitCode {
        if self.failed { crate::could_not() } else { ExitCode::SUCCESS }
    }

    /// Says that a file holds something that cannot be used.
    pub(crate) fn fail(&mut self, file: u32, error: &anyhow::Error) {
        report(self.names.get(file as usize).map_or("", String::as_str), error);
        self.failed = true;
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
