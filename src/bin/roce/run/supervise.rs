//! `roce run --pcap`: a process that outlives the program, to tell how its captures ended.
//!
//! Without a capture, `roce run` becomes the program. With one, a copy of it does, and this process
//! waits: the library in the program reports a capture that cannot be written through a socket, and
//! writes nothing to the program's own output. The exit status is the program's, or 2 if that is 0
//! and a capture was cut. Signals that are sent to this process alone reach the program; those of
//! the terminal reach both by themselves. If this process is killed, the program is, too.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roce::ibverbs::files::{CAPTURE_REPORT, private_directory};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::output::say;

/// The exit status of a run whose program was successful and whose capture was cut.
const CUT: u8 = 2;

/// Runs the same command in a child and waits for it. Returns nothing in that child, and where
/// there is no way to make one: this process then becomes the program.
pub(super) fn run() -> Result<Option<ExitCode>> {
    let own = PathBuf::from("/proc/self/exe");
    if is_supervised() || !own.exists() {
        return Ok(None);
    }
    // Where no temporary file can be written, the library reports on the program's standard error.
    let Ok(reports) = Reports::bind() else { return Ok(None) };
    // Every signal is read from the descriptor from here on. The child begins with all blocked,
    // too, and unblocks them when it becomes the program.
    let signals = SigSet::all();
    signals.thread_block().context("cannot wait for signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    let signals = signals.context("cannot wait for signals")?;
    let child = Command::new(own)
        .args(env::args_os().skip(1))
        .env(CAPTURE_REPORT, reports.variable())
        .spawn()
        .context("cannot start a copy of this command")?;
    let status = wait(&child, &signals, &reports).context("cannot wait for the program")?;
    let are_cut = reports.tell();
    Ok(Some(match (status.code(), status.signal()) {
        (Some(0), _) if are_cut => ExitCode::from(CUT),
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => {
            ExitCode::from(u8::try_from(128 + signal.unwrap_or(0)).unwrap_or(u8::MAX))
        }
    }))
}

/// Whether another process waits for this one: its parent, which its environment names.
fn is_supervised() -> bool {
    let variable = env::var(CAPTURE_REPORT).unwrap_or_default();
    let supervisor = variable.split_once(':').and_then(|(process, _)| process.parse().ok());
    supervisor.and_then(Pid::from_raw) == rustix::process::getppid()
        && rustix::process::getppid().is_some()
}

/// Binds the program to the process that waits for it, if one does: it ends with that process. This
/// is the last thing before the program is run, since entering a namespace undoes it.
pub(super) fn follow(command: &mut Command) {
    if is_supervised() {
        // Without it, a program whose supervisor is killed runs on.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        let _ = SigSet::empty().thread_set_mask();
    } else {
        command.env_remove(CAPTURE_REPORT);
    }
}

/// Waits until the program ends, and passes on signals and reports until then.
fn wait(child: &Child, signals: &SignalFd, reports: &Reports) -> io::Result<ExitStatus> {
    let program = Pid::from_child(child);
    loop {
        let mut ready = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::new(&reports.socket, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        reports.tell();
        while let Some(signal) = signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
            // Those that the kernel sends, as for Ctrl-C, go to all processes of the terminal.
            let was_sent = signal.ssi_code <= 0;
            if let Some(signal) = Signal::from_named_raw(number)
                && was_sent
                && signal != Signal::CHILD
            {
                // It may have ended.
                let _ = kill_process(program, signal);
            }
        }
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        if let Some((_, status)) = waitpid(Some(program), options)? {
            if !status.stopped() {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            // The shell sees a stopped job only if this process stops.
            kill_process(rustix::process::getpid(), Signal::STOP)?;
        }
    }
}

/// Reports of the program's library about its captures.
struct Reports {
    socket: UnixDatagram,
    path: PathBuf,
    are_any: std::cell::Cell<bool>,
}

impl Reports {
    fn bind() -> io::Result<Self> {
        let path = private_directory()?.join(format!("captures-{}", std::process::id()));
        // A socket of an earlier process with this number.
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path, are_any: false.into() })
    }

    /// Returns what tells the library where to report.
    fn variable(&self) -> OsString {
        let mut variable = OsString::from(format!("{}:", std::process::id()));
        variable.push(&self.path);
        variable
    }

    /// Prints the reports that have come. Returns whether there were any so far.
    fn tell(&self) -> bool {
        let mut report = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut report) {
            let report = report.get(..length).unwrap_or_default();
            say!("--pcap: {}", String::from_utf8_lossy(report));
            self.are_any.set(true);
        }
        self.are_any.get()
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
