//! The captures that a subcommand reads: opened, merged by time, with their errors.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use roce::capture::{Error, Merge, MergeError, Reader};

use crate::interrupt::{self, Waiting};
use crate::output::say;

/// Bytes of a capture: a file, a pipe, standard input.
pub(crate) type Source = Box<dyn Read + Send>;

/// The captures that a subcommand reads, merged by time.
pub(crate) struct Inputs {
    /// All records. An error that is given to [`Problems::report`] does not end the reading.
    pub(crate) merge: Merge<Source>,
    /// Errors of the files so far.
    pub(crate) problems: Problems,
    /// Number of bytes of all inputs, if every input is a regular file.
    size: Option<u64>,
}

impl Inputs {
    /// Opens captures; `-` is standard input. Reports on standard error what cannot be opened, and
    /// goes on without it.
    ///
    /// Damage in the middle of a capture is passed over, unless `strict`.
    pub(crate) fn open(paths: &[PathBuf], strict: bool) -> Result<Self> {
        Self::open_as(paths, strict, Problems { is_strict: strict, ..Problems::default() })
    }

    /// Opens captures once more, for a second pass: what is wrong with them was reported in the
    /// first.
    pub(crate) fn reopen(paths: &[PathBuf], strict: bool) -> Result<Self> {
        Self::open_as(paths, strict, Problems { silent: true, ..Problems::default() })
    }

    fn open_as(paths: &[PathBuf], strict: bool, mut problems: Problems) -> Result<Self> {
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            bail!("standard input (-) is named twice; it can be read once");
        }
        let (mut readers, mut size) = (Vec::new(), Some(0_u64));
        // All are opened before Ctrl-C is caught: to open a named pipe may wait.
        let opened: Vec<_> = paths.iter().map(|path| open(path)).collect();
        interrupt::catch()?;
        for (path, opened) in paths.iter().zip(opened) {
            let name = path.display().to_string();
            match opened.and_then(|(source, bytes)| Ok((Reader::new(source)?, bytes))) {
                Ok((reader, bytes)) => {
                    size = size.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
                    problems.names.push(name);
                    readers.push(if strict { reader } else { reader.lenient() });
                }
                // Reading that Ctrl-C interrupted is no error of the file.
                Err(_) if interrupt::requested() => {}
                Err(error) => {
                    problems.say(&name, &error);
                    problems.failed = true;
                }
            }
        }
        Ok(Self { merge: Merge::new(readers), problems, size })
    }

    /// Says what is left to say of the captures. Call it after the last record.
    pub(crate) fn finish(&mut self) {
        self.problems.finish();
        for (file, reader) in (0..).zip(self.merge.readers()) {
            if reader.is_unclosed() && !interrupt::requested() {
                self.problems.report_unclosed(file);
            }
        }
    }

    /// Returns the number of packets that the captures say they dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.merge.readers().fold(0, |sum, reader| sum.saturating_add(reader.dropped()))
    }

    /// The files that could be opened, as the user named them; a record's `file` is an index.
    pub(crate) fn names(&self) -> &[String] {
        &self.problems.names
    }

    /// Returns the number of bytes of all inputs, if every input is a regular file.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size
    }
}

/// Errors of captures.
#[derive(Default)]
pub(crate) struct Problems {
    /// The files in the merge, as the user named them; a record's `file` is an index.
    names: Vec<String>,
    /// Whether errors are not reported.
    silent: bool,
    /// Whether a capture that was cut is an error.
    is_strict: bool,
    /// Whether some input could not be read, or not to its end.
    failed: bool,
    /// Number of damaged stretches that were skipped.
    skips: u64,
    skipped_bytes: u64,
}

/// Number of damaged stretches that are reported one by one; a file that is all damage has
/// millions.
const SKIPS_SHOWN: u64 = 20;

impl Problems {
    /// Says on standard error what is wrong with a file, and remembers it for the exit status.
    pub(crate) fn report(&mut self, trouble: MergeError) {
        // After Ctrl-C, a pipe ends wherever it is.
        if interrupt::requested() {
            return;
        }
        let Error::Skipped { bytes, .. } = trouble.error else {
            return self.fail(trouble.file, &trouble.error.into());
        };
        self.skips += 1;
        self.skipped_bytes += bytes;
        if self.skips <= SKIPS_SHOWN {
            self.say(self.name(trouble.file), &trouble.error.into());
        }
    }

    /// Says how much damage was passed over without a line of its own.
    fn finish(&self) {
        if let Some(more @ 1..) = self.skips.checked_sub(SKIPS_SHOWN)
            && !self.silent
        {
            let bytes = self.skipped_bytes;
            say!("damage was skipped at {more} more places; {bytes} bytes in all");
        }
    }

    /// Returns the number of damaged stretches that were skipped, and of their bytes.
    pub(crate) fn skipped(&self) -> (u64, u64) {
        (self.skips, self.skipped_bytes)
    }

    fn name(&self, file: u32) -> &str {
        self.names.get(file as usize).map_or("", String::as_str)
    }

    /// Says that a file holds something that cannot be used.
    pub(crate) fn fail(&mut self, file: u32, error: &anyhow::Error) {
        self.say(self.name(file), error);
        self.failed = true;
    }

    /// Says that a capture was cut, unless that is said already.
    fn report_unclosed(&mut self, file: u32) {
        if self.failed {
            return;
        }
        let reason = "the capture was cut: its closing block is missing. The disk was full, the program that captured was \
                      killed, or it is still running; packets after the last one here were not written";
        match self.is_strict {
            true => self.fail(file, &anyhow!(reason)),
            false => self.say(self.name(file), &anyhow!(reason)),
        }
    }

    fn say(&self, name: &str, error: &anyhow::Error) {
        if !self.silent {
            say!("{name}: {error:#}");
        }
    }

    /// The exit status that follows from what was wrong with the files: 2 if one could not be read
    /// to its end, 1 if damage was passed over, 130 after Ctrl-C.
    pub(crate) fn status(&self) -> ExitCode {
        if interrupt::requested() {
            return ExitCode::from(interrupt::STATUS);
        }
        match (self.failed, self.skips) {
            (true, _) => crate::could_not(),
            (false, 1..) => ExitCode::FAILURE,
            (false, 0) => ExitCode::SUCCESS,
        }
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a source, and tells its size if it is a regular file.
fn open(path: &Path) -> Result<(Source, Option<u64>)> {
    if is_stdin(path) {
        // Not through the standard library's buffer: a wait for the descriptor must see all that is
        // left.
        let stdin = io::stdin().as_fd().try_clone_to_owned().context("cannot read it")?;
        return Ok((Box::new(Waiting(File::from(stdin))), None));
    }
    let file = File::open(path).context("cannot open the file")?;
    let metadata = file.metadata().context("cannot read the file")?;
    if metadata.is_dir() {
        bail!("is a directory; name a capture in it");
    }
    Ok(match metadata.is_file() {
        true => (Box::new(file), Some(metadata.len())),
        false => (Box::new(Waiting(file)), None),
    })
}
