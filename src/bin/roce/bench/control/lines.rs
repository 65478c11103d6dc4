//! The control connection in words: lines of printable ASCII, errors that name the peer.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use roce::control::limits::{LINE_MAX, LINE_WAIT};
use roce::control::opening::Request;
use roce::control::{Addresses, LineError, Lines, Stream};
use roce::decode::Printable;

/// The control connection, seen from one side.
pub(crate) struct Control {
    lines: Lines,
    /// Addresses of both sides, which proofs of a token cover.
    addresses: Addresses,
    /// Name of the other side in messages.
    peer: &'static str,
    /// Whether each line has [`LINE_WAIT`] to arrive, instead of a bound for all.
    wait_per_line: bool,
    /// Digest of the lines of a request, while one is read.
    request: Option<Request>,
}

impl Control {
    pub(crate) fn new(stream: Box<dyn Stream>, addresses: Addresses, peer: &'static str) -> Self {
        let lines = Lines::new(stream, LINE_MAX);
        Self { lines, addresses, peer, wait_per_line: true, request: None }
    }

    /// Takes bytes that were read before.
    pub(crate) fn with_pending(mut self, pending: &[u8]) -> Self {
        self.lines = self.lines.with_pending(pending);
        self
    }

    /// Returns the addresses of both sides.
    pub(crate) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Bounds the time for all lines until [`wait_per_line`](Self::wait_per_line).
    pub(crate) fn wait_in_all(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.wait_per_line = false;
        Ok(self.lines.set_wait(Some(wait))?)
    }

    /// Gives each line its own time again.
    pub(crate) fn wait_per_line(&mut self) -> anyhow::Result<()> {
        self.wait_per_line = true;
        Ok(self.lines.set_wait(Some(LINE_WAIT))?)
    }

    /// Begins the request of a client: lines that its proof covers.
    pub(crate) fn begin_request(&mut self) {
        self.request = Some(Request::default());
    }

    /// Ends the request of a client.
    pub(crate) fn end_request(&mut self) -> Request {
        self.request.take().unwrap_or_default()
    }

    /// Sends lines, which end with a line feed.
    pub(crate) fn send(&mut self, lines: &str) -> anyhow::Result<()> {
        self.lines.send(lines).with_context(|| format!("{} does not take what is sent", self.peer))
    }

    /// Waits for the next line that is not `alive`.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        loop {
            if self.wait_per_line {
                self.lines.set_wait(Some(LINE_WAIT))?;
            }
            let line =
                self.lines.next_line().map_err(|error| self.failure("waiting for", error))?;
            let line = self.checked(line)?;
            if line != "alive" {
                if let Some(request) = &mut self.request {
                    request.add(&line);
                }
                return Ok(line);
            }
        }
    }

    /// Returns the next line if it is there. Requires [`set_waiting`](Self::set_waiting)`(false)`.
    pub(crate) fn try_line(&mut self) -> anyhow::Result<Option<String>> {
        match self.lines.try_line() {
            Ok(line) => line.map(|line| self.checked(line)).transpose(),
            Err(error) => Err(self.failure("listening to", error)),
        }
    }

    /// Sets whether reads wait for bytes to come.
    pub(crate) fn set_waiting(&mut self, waiting: bool) -> anyhow::Result<()> {
        Ok(self.lines.set_wait(waiting.then_some(LINE_WAIT))?)
    }

    fn failure(&self, doing: &str, error: LineError) -> anyhow::Error {
        match error {
            LineError::TooLong(_) | LineError::NotText => {
                anyhow::anyhow!("{} sent {error}", self.peer)
            }
            error => anyhow::Error::new(error).context(format!("{doing} {}", self.peer)),
        }
    }

    /// Checks a line, which is the last one if it is an error.
    fn checked(&self, line: String) -> anyhow::Result<String> {
        if let Some(why) = line.strip_prefix("error ") {
            bail!("{} says: {}", self.peer, Printable(why));
        }
        let is_text = line.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        ensure!(is_text, "{} sent what is not text", self.peer);
        Ok(line)
    }

    /// Tells the peer why this side ends the run. The peer may be gone already.
    pub(crate) fn send_error(&mut self, error: &anyhow::Error) {
        let _ = self.lines.send(&error_line(error));
    }

    /// Waits for a line that begins with a word; returns the rest.
    pub(crate) fn expect(&mut self, word: &str) -> anyhow::Result<String> {
        let line = self.line()?;
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        ensure!(first == word, "{} sent '{first}' instead of '{word}'", self.peer);
        Ok(rest.to_owned())
    }

    /// Waits for a line that is one of `words`; returns which.
    pub(crate) fn expect_one_of(&mut self, words: &[&'static str]) -> anyhow::Result<&'static str> {
        let line = self.line()?;
        let found = words.iter().copied().find(|&word| word == line);
        found.with_context(|| {
            format!("{} sent '{line}' instead of '{}'", self.peer, words.join("' or '"))
        })
    }
}

/// Returns the line that tells a peer of an error.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    let mut text = format!("error {}", Printable(&format!("{error:#}")));
    text.truncate(text.floor_char_boundary(LINE_MAX - 1));
    text.push('\n');
    text
}
