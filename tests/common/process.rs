//! Other processes, none of which a test waits for without end.
//!
//! [`Command`] and [`Child`] are those of the standard library, except that a process that runs
//! after its deadline is killed, with all that it started, and the test fails with what it waited
//! for. A read from a pipe of such a process ends, too. Dropping a child kills it.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test is a crate of its own and uses a part of it"
)]

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any process of a test takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Time that the pipes of a process that has ended, or was killed, may stay open.
const PIPES: Duration = Duration::from_secs(10);

/// A process to be run. See the [module](self).
#[derive(Debug)]
pub struct Command {
    inner: std::process::Command,
    /// Whether standard input, output and error were set.
    is_set: [bool; 3],
    deadline: Duration,
}

impl Command {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let inner = std::process::Command::new(program);
        Self { inner, is_set: [false; 3], deadline: DEADLINE }
    }

    /// Sets how long the process may run.
    pub fn deadline(&mut self, deadline: Duration) -> &mut Self {
        self.deadline = deadline;
        self
    }

    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(argument);
        self
    }

    pub fn args<S: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = S>) -> &mut Self {
        self.inner.args(arguments);
        self
    }

    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        self.inner.envs(variables);
        self
    }

    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env_remove(name);
        self
    }

    pub fn env_clear(&mut self) -> &mut Self {
        self.inner.env_clear();
        self
    }

    pub fn current_dir(&mut self, folder: impl AsRef<Path>) -> &mut Self {
        self.inner.current_dir(folder);
        self
    }

    pub fn uid(&mut self, id: u32) -> &mut Self {
        self.inner.uid(id);
        self
    }

    pub fn gid(&mut self, id: u32) -> &mut Self {
        self.inner.gid(id);
        self
    }

    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Self {
        self.is_set[0] = true;
        self.inner.stdin(from);
        self
    }

    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.is_set[1] = true;
        self.inner.stdout(to);
        self
    }

    pub fn stderr(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.is_set[2] = true;
        self.inner.stderr(to);
        self
    }

    pub fn spawn(&mut self) -> io::Result<Child> {
        let mut child = self.inner.spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let watched = Arc::new(Watched {
            what: format!("{:?}", self.inner),
            pid: child.id(),
            deadline: Instant::now() + self.deadline,
            state: Mutex::new(State { child, is_late: false, status: None }),
            ended: Condvar::new(),
        });
        let watcher = Arc::clone(&watched);
        std::thread::spawn(move || watcher.watch());
        Ok(Child { watched, stdin, stdout, stderr })
    }

    pub fn output(&mut self) -> io::Result<Output> {
        let [stdin, stdout, stderr] = self.is_set;
        if !stdin {
            self.inner.stdin(Stdio::null());
        }
        if !stdout {
            self.inner.stdout(Stdio::piped());
        }
        if !stderr {
            self.inner.stderr(Stdio::piped());
        }
        self.spawn()?.wait_with_output()
    }

    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }
}

/// A process that runs. See the [module](self).
#[derive(Debug)]
pub struct Child {
    watched: Arc<Watched>,
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
    pub stderr: Option<ChildStderr>,
}

#[derive(Debug)]
struct Watched {
    what: String,
    pid: u32,
    deadline: Instant,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    child: std::process::Child,
    /// Whether it was killed because of its deadline.
    is_late: bool,
    status: Option<ExitStatus>,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps the process when it ends, and kills it when it is late.
    fn watch(&self) {
        let mut pause = Duration::from_millis(1);
        loop {
            let mut state = self.lock();
            if let Ok(Some(status)) = state.child.try_wait() {
                state.status = Some(status);
                self.ended.notify_all();
                return;
            }
            if !state.is_late && Instant::now() >= self.deadline {
                state.is_late = true;
                eprintln!("killed after its deadline: {}", self.what);
                kill_descendants(self.pid);
                let _ = state.child.kill();
            }
            drop(state);
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn wait(&self) -> ExitStatus {
        let mut state = self.lock();
        while state.status.is_none() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        assert!(!state.is_late, "waited too long for the end of {}", self.what);
        state.status.unwrap()
    }
}

impl Child {
    pub fn id(&self) -> u32 {
        self.watched.pid
    }

    /// Sends it a signal, without the program `kill`, which a minimal system lacks; one that has
    /// ended is left alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let state = self.watched.lock();
        if state.status.is_none() {
            rustix::process::kill_process(rustix::process::Pid::from_child(&state.child), signal)
                .unwrap();
        }
    }

    /// Kills it; one that has ended is left alone.
    pub fn kill(&mut self) -> io::Result<()> {
        let mut state = self.watched.lock();
        if state.status.is_some() { Ok(()) } else { state.child.kill() }
    }

    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        Ok(self.watched.lock().status)
    }

    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        Ok(self.watched.wait())
    }

    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let stdout = self.stdout.take().map(Reader::new);
        let stderr = self.stderr.take().map(Reader::new);
        let status = self.watched.wait();
        let finish = |reader: Option<Reader>| match reader {
            Some(reader) => reader.finish(&self.watched.what),
            None => Vec::new(),
        };
        Ok(Output { status, stdout: finish(stdout), stderr: finish(stderr) })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.kill();
        let mut state = self.watched.lock();
        while state.status.is_none() {
            state = self.watched.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A thread that reads a pipe to its end.
struct Reader {
    thread: JoinHandle<Vec<u8>>,
}

impl Reader {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let read = move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        };
        Self { thread: std::thread::spawn(read) }
    }

    /// Returns the bytes that were read. A process that this one started may hold the pipe, and
    /// outlive it.
    fn finish(self, what: &str) -> Vec<u8> {
        let deadline = Instant::now() + PIPES;
        while !self.thread.is_finished() {
            assert!(Instant::now() < deadline, "waited too long for the output's end of {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap()
    }
}

/// Kills all that a process has started, and that they have.
fn kill_descendants(root: u32) {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        at += 1;
        let children = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    let pids: Vec<String> = found.iter().skip(1).map(u32::to_string).collect();
    if !pids.is_empty() {
        // The shell's own `kill`: not every system has the program.
        let kill = format!("kill -9 {}", pids.join(" "));
        let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    }
}
