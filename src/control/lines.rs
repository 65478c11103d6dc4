//! Lines over a byte stream, in bounded memory and time.

use std::io;
use std::time::Duration;

use thiserror::Error;

use super::limits::{SEND_WAIT, SEND_WAIT_PER_MIB};

/// A byte stream whose reads and writes are bounded in time.
pub trait Stream: Send {
    /// Bounds the time that all reads together may wait from now on. `None`: reads do not wait.
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()>;

    /// Receives some bytes. Returns 0 after the peer has closed.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends all bytes within a time.
    fn send_all(&mut self, bytes: &[u8], within: Duration) -> io::Result<()>;

    /// Whether the peer is known to have closed, without waiting.
    fn is_closed(&mut self) -> bool {
        false
    }
}

/// Reason that no line can be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// The peer closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// Time ran out.
    #[error("{0}")]
    TimedOut(String),
    /// A line is too long.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// A line is not text.
    #[error("what is not text")]
    NotText,
    /// The connection broke.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for LineError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof,
        };
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => {
                Self::Closed
            }
            TimedOut => Self::TimedOut(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

/// Lines that are exchanged with a peer.
pub struct Lines {
    stream: Box<dyn Stream>,
    /// Bytes that were received, and not yet taken as lines.
    pending: Vec<u8>,
    /// Number of pending bytes that hold no end of a line.
    searched: usize,
    line_max: usize,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

impl Lines {
    /// Exchanges lines of at most `line_max` bytes over a stream.
    pub fn new(stream: Box<dyn Stream>, line_max: usize) -> Self {
        Self { stream, pending: Vec::new(), searched: 0, line_max }
    }

    /// Takes bytes that were read before.
    #[must_use]
    pub fn with_pending(mut self, pending: &[u8]) -> Self {
        self.pending.extend_from_slice(pending);
        self
    }

    /// Sets the maximum length of a line: more is taken of peers that have proven themselves.
    pub fn set_line_max(&mut self, line_max: usize) {
        self.line_max = line_max;
    }

    /// Bounds the time that reads may wait, all together. `None`: reads do not wait.
    pub fn set_wait(&mut self, wait: Option<Duration>) -> Result<(), LineError> {
        Ok(self.stream.set_wait(wait)?)
    }

    /// Sends text that ends with a line feed.
    pub fn send(&mut self, text: &str) -> Result<(), LineError> {
        let mebibytes = u32::try_from(text.len() >> 20).unwrap_or(u32::MAX);
        let within = SEND_WAIT.saturating_add(SEND_WAIT_PER_MIB.saturating_mul(mebibytes));
        Ok(self.stream.send_all(text.as_bytes(), within)?)
    }

    /// Returns the next line without its end, when it has come.
    pub fn next_line(&mut self) -> Result<String, LineError> {
        loop {
            if let Some(line) = self.take()? {
                return Ok(line);
            }
            self.receive()?;
        }
    }

    /// Returns the next line if it is there. Requires that reads do not wait.
    pub fn try_line(&mut self) -> Result<Option<String>, LineError> {
        if let Some(line) = self.take()? {
            return Ok(Some(line));
        }
        match self.receive() {
            Ok(()) => self.take(),
            Err(LineError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the peer is known to have closed, without waiting.
    pub fn is_closed(&mut self) -> bool {
        self.stream.is_closed()
    }

    fn receive(&mut self) -> Result<(), LineError> {
        let mut bytes = [0; 4096];
        match self.stream.receive(&mut bytes) {
            Ok(0) => Err(LineError::Closed),
            Ok(count) => {
                self.pending.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self) -> Result<Option<String>, LineError> {
        let unsearched = self.pending.get(self.searched..).unwrap_or_default();
        let end = unsearched.iter().position(|&byte| byte == b'\n');
        let end = end.map(|at| self.searched + at);
        if end.unwrap_or(self.pending.len()) > self.line_max {
            return Err(LineError::TooLong(self.line_max));
        }
        let Some(end) = end else {
            self.searched = self.pending.len();
            return Ok(None);
        };
        self.searched = 0;
        let rest = self.pending.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.pending, rest);
        line.truncate(end);
        String::from_utf8(line).map(Some).map_err(|_| LineError::NotText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in pieces; nothing is sent anywhere.
    struct Script(Vec<Vec<u8>>);

    impl Stream for Script {
        fn set_wait(&mut self, _: Option<Duration>) -> io::Result<()> {
            Ok(())
        }

        fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            bytes[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }

        fn send_all(&mut self, _: &[u8], _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(pieces: &[&str], line_max: usize) -> Lines {
        let pieces = pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect();
        Lines::new(Box::new(Script(pieces)), line_max)
    }

    #[test]
    fn lines_are_taken_however_they_are_cut() {
        let mut all = lines(&["a", "b\ncd", "\n\ne\nf"], 2).with_pending(b"z\n");
        for line in ["z", "ab", "cd", "", "e"] {
            assert_eq!(all.next_line().unwrap(), line);
        }
        assert!(matches!(all.next_line(), Err(LineError::Closed)));
    }

    #[test]
    fn line_that_is_too_long_is_refused_before_it_ends() {
        for pieces in [&["abc"][..], &["abc\n"], &["a", "b", "c"], &["\nabc"]] {
            let mut lines = lines(pieces, 2);
            let last = std::iter::repeat_with(|| lines.next_line()).find(Result::is_err).unwrap();
            assert!(matches!(last, Err(LineError::TooLong(2))), "{pieces:?}: {last:?}");
        }
        assert_eq!(lines(&["ab\n"], 2).next_line().unwrap(), "ab");
    }
}
