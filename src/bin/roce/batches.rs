//! Captures in batches, decoded on all cores.

use std::num::NonZeroUsize;
use std::thread;

use roce::capture::{Batch, MergeError};
use roce::decode::Decoder;

use crate::input::Inputs;
use crate::interrupt;
use crate::parallel::in_order;

/// Maximum number of threads that decode.
const THREADS_MAX: usize = 1024;

/// Reads the number of threads of `--jobs`.
pub(crate) fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    let threads = text.parse::<NonZeroUsize>().ok().filter(|it| it.get() <= THREADS_MAX);
    threads.ok_or_else(|| format!("a number of threads, 1 to {THREADS_MAX}"))
}

/// Returns the number of threads that decode: as many as the user says, or as there are cores.
pub(crate) fn threads(jobs: Option<NonZeroUsize>) -> usize {
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    jobs.map_or_else(cores, NonZeroUsize::get)
}

/// A batch of records on its way through the threads, and what was made of it.
pub(crate) struct Part<T> {
    pub(crate) batch: Batch,
    /// The decoder at the start of the batch.
    pub(crate) decoder: Decoder,
    /// Result of decoding the records.
    pub(crate) made: T,
    /// Error of an input, in the place of records.
    trouble: Option<MergeError>,
    /// Number of bytes of the files that were read when the batch was.
    pub(crate) bytes_read: u64,
}

impl<T> Part<T> {
    /// Whether this stands for what is wrong with an input, which is reported when it was taken.
    pub(crate) fn is_trouble(&self) -> bool {
        self.trouble.is_some()
    }
}

/// Reads batches and makes something of each on `threads` threads: `work` of any batch on any
/// thread, into what `make` made (or what is left of an earlier batch), then `take` in the order of
/// the capture, one at a time. What is wrong with an input is reported after a batch without
/// records was taken in its place ([`Part::is_trouble`]).
pub(crate) fn decode<T: Send, E: Send>(
    threads: usize,
    inputs: &mut Inputs,
    port: u16,
    make: impl Fn() -> T + Sync,
    work: impl Fn(&mut Part<T>) + Sync,
    mut take: impl FnMut(&mut Part<T>) -> Result<(), E> + Send,
) -> Result<(), E> {
    let mut decoder = Decoder::new(port);
    let start = decoder.clone();
    let make_part = || Part {
        batch: Batch::default(),
        decoder: start.clone(),
        made: make(),
        trouble: None,
        bytes_read: 0,
    };
    let Inputs { merge, problems, .. } = inputs;
    let next = |part: &mut Part<T>| {
        if interrupt::requested() {
            return false;
        }
        let filled = merge.next_batch(&mut part.batch);
        part.decoder = decoder.split(&part.batch);
        part.bytes_read = merge.bytes_read();
        let more = !matches!(filled, Ok(false));
        part.trouble = filled.err();
        more
    };
    in_order(threads, make_part, next, work, |part| {
        take(part)?;
        if let Some(trouble) = part.trouble.take() {
            problems.report(trouble);
        }
        Ok(())
    })
}
