//! Lines over a byte stream, in bounded memory.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Maximum number of bytes in a line.
pub(crate) const LINE_MAX: usize = 512;

/// How long to wait for a line when the peer has nothing else to do.
pub(crate) const LINE_WAIT: Duration = Duration::from_secs(20);

/// How long the whole opening of a client may take, however many lines it has.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(10);

/// A byte stream whose reads can be bounded in time.
pub(crate) trait Stream: Read + Write + Send {
    /// Bounds the time that all reads together may wait from now on. `None`: reads do not wait.
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()>;
}

/// The control connection, seen from one side.
pub(crate) struct Control {
    stream: Box<dyn Stream>,
    /// Bytes that were received, and not yet taken as lines.
    pending: Vec<u8>,
    /// The name of the other side in messages.
    peer: &'static str,
    /// Whether each line has [`LINE_WAIT`] to arrive, instead of a bound for all.
    wait_per_line: bool,
}

impl Control {
    pub(crate) fn new(stream: Box<dyn Stream>, peer: &'static str) -> Self {
        Self { stream, pending: Vec::new(), peer, wait_per_line: true }
    }

    /// Takes bytes that were read before.
    pub(crate) fn with_pending(mut self, pending: &[u8]) -> Self {
        self.pending.extend_from_slice(pending);
        self
    }

    /// Bounds the time for all lines until [`wait_per_line`](Self::wait_per_line).
    pub(crate) fn wait_in_all(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.wait_per_line = false;
        Ok(self.stream.set_wait(Some(wait))?)
    }

    /// Gives each line its own time again.
    pub(crate) fn wait_per_line(&mut self) -> anyhow::Result<()> {
        self.wait_per_line = true;
        Ok(self.stream.set_wait(Some(LINE_WAIT))?)
    }

    /// Sends lines, which end with a line feed.
    pub(crate) fn send(&mut self, lines: &str) -> anyhow::Result<()> {
        self.stream
            .write_all(lines.as_bytes())
            .with_context(|| format!("{} does not take what is sent", self.peer))
    }

    /// Waits for the next line that is not `alive`.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        if self.wait_per_line {
            self.stream.set_wait(Some(LINE_WAIT))?;
        }
        loop {
            match self.take_line()? {
                Some(line) if line != "alive" => return Ok(line),
                Some(_) if self.wait_per_line => self.stream.set_wait(Some(LINE_WAIT))?,
                Some(_) => {}
                None => self.read().with_context(|| format!("waiting for {}", self.peer))?,
            }
        }
    }

    /// Returns the next line if it is there. Requires [`set_waiting`](Self::set_waiting)`(false)`.
    pub(crate) fn try_line(&mut self) -> anyhow::Result<Option<String>> {
        if let Some(line) = self.take_line()? {
            return Ok(Some(line));
        }
        match self.read() {
            Ok(()) => self.take_line(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).with_context(|| format!("listening to {}", self.peer)),
        }
    }

    /// Sets whether reads wait for bytes to come.
    pub(crate) fn set_waiting(&mut self, waiting: bool) -> anyhow::Result<()> {
        Ok(self.stream.set_wait(waiting.then_some(LINE_WAIT))?)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => {
                self.pending.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take_line(&mut self) -> anyhow::Result<Option<String>> {
        let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') else {
            let len = self.pending.len();
            ensure!(len <= LINE_MAX, "{} sent a line of more than {LINE_MAX} bytes", self.peer);
            return Ok(None);
        };
        ensure!(end <= LINE_MAX, "{} sent a line of more than {LINE_MAX} bytes", self.peer);
        let line: Vec<u8> = self.pending.drain(..=end).take(end).collect();
        if let Some(why) = line.strip_prefix(b"error ") {
            bail!("{} says: {}", self.peer, shown(&String::from_utf8_lossy(why)));
        }
        let is_text = line.iter().all(|byte| matches!(byte, b' '..=b'~'));
        let line = if is_text { String::from_utf8(line).ok() } else { None };
        line.with_context(|| format!("{} sent what is not text", self.peer)).map(Some)
    }

    /// Tells the peer why this side ends the run. The peer may be gone already.
    pub(crate) fn send_error(&mut self, error: &anyhow::Error) {
        let mut text = format!("error {}", shown(&format!("{error:#}")));
        text.truncate(text.floor_char_boundary(LINE_MAX - 1));
        text.push('\n');
        let _ = self.stream.write_all(text.as_bytes());
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

/// Text of a peer as it may be shown on a terminal: without control characters, and without those that change the
/// direction of text or are invisible.
fn shown(text: &str) -> String {
    let is_invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.replace(is_invisible, " ")
}
