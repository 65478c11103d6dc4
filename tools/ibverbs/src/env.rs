//! Environment variables: the devices, and the faults and captures of their packets.
//!
//! - `ROCE_DEVICES`: soft NICs, separated by spaces or commas, as `roce run --device` takes them:
//!   `udp:10.0.0.1`, `raw:eth0`, `soft:eth0`, `mlx5_0=soft:lo`. Without it, there is one on the
//!   first free address of every interface, loopback last.
//! - `ROCE_PCAP`: a file to write what passes into; `%d` in it is the device, `%p` the process. The
//!   first one to open a device creates it; the next ones, in this process or in others, leave it
//!   and create `FILE.PID`, `FILE.PID.2` and so on. `ROCE_CAPTURE_REPORT`, which `roce run` sets,
//!   says where to report one that cannot be written.
//! - `ROCE_FAULT`: what happens to packets: `loss=1%,delay=10us`.
//! - `ROCE_PIN_SOURCE_PORT=off`: take packets of a connection from any UDP source port of its peer,
//!   for peers that send from several.
//! - `ROCE_CC`, `ROCE_CC_PROFILE`, `ROCE_LINE_RATE`, `ROCE_ECN`, `ROCE_CNP`: congestion control, as
//!   `roce run --cc` and its like take it: `ROCE_CC=dcqcn:rp_ai_rate=5`.
//! - `ROCE_COUNTERS`: a file to append the counters of a device to when it is closed.
//! - `ROCE_RECOVERY=sr`, `ROCE_RECEIVE=buffer`, `ROCE_PATHS=8`: selective repeat with peers that
//!   agree, packets that come before others are held, and sprayed over that number of source
//!   ports.
//! - `ROCE_LOG`: a file to write into why a device cannot be listed or opened, which C gets a
//!   number for only.
//!
//! A setuid program, or one with file capabilities, ignores all of them: its environment is another
//! user's, who must not choose which files it writes and which addresses it takes.
//!
//! Links themselves read `ROCE_SHM=off`: packets to programs on this machine go through the kernel,
//! too, and not through shared memory.

use std::env;
use std::error::Error;
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::time::SystemTime;

use roce::engine::RecoveryOptions;
use roce::engine::congestion::Settings;
use roce::link::{Link, NamedSpec, Spec, fault, tap};
use roce::nic::SoftNic;
use roce::time::Instant;

use crate::call::{Failed, Result};
use crate::captures;

/// Maximum number of captures that a process makes, each time it opens a device.
const FILES_MAX: u32 = 10_000;

/// The devices that there are.
pub(crate) fn devices() -> Result<Vec<NamedSpec>> {
    match trusted("ROCE_DEVICES", is_secure_execution()) {
        Some(list) => NamedSpec::parse_list(&list).map_err(|error| {
            log(&format!("ROCE_DEVICES: {error}"));
            Failed::from_any(&error, libc::EINVAL)
        }),
        None => Ok(Spec::of_every_interface()?.into_iter().map(NamedSpec::from).collect()),
    }
}

/// Whether the environment says nothing of devices, so that they were chosen for the program.
pub(crate) fn devices_are_default() -> bool {
    trusted("ROCE_DEVICES", is_secure_execution()).is_none()
}

/// Whether packets of a connection are taken from one UDP source port only.
pub(crate) fn pins_source_port() -> bool {
    variable("ROCE_PIN_SOURCE_PORT").is_none_or(|value| !matches!(&*value, "off" | "0" | "no"))
}

/// Returns the options of congestion control.
pub(crate) fn congestion() -> Result<Settings> {
    let settings = Settings::read(|name| variable(&Settings::variable(name)));
    settings.map_err(|error| failed(&error, libc::EINVAL))
}

/// Appends the counters of a device that is closed to the file that was asked for: a line each,
/// those that are zero left out.
pub(crate) fn report_counters(nic: &SoftNic, device: &str) {
    let Some(path) = variable("ROCE_COUNTERS") else { return };
    let mut text = String::new();
    for (counter, count) in nic.counters().iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!("{device} {} {count}\n", counter.name()));
    }
    // One write, because several processes may append.
    let file = File::options().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

/// Recovery from loss, and the order of packets.
pub(crate) fn recovery() -> Result<RecoveryOptions> {
    RecoveryOptions::parse(variable).map_err(|error| {
        log(&error);
        Failed::from_any(&io::Error::other(error), libc::EINVAL)
    })
}

/// Puts around a link what the environment asks for. A tap belongs inside: it sees what goes out,
/// faults and all.
pub(crate) fn wrap(mut link: Link, device: &str) -> Result<Link> {
    let mut handle = None;
    if let Some(path) = variable("ROCE_PCAP") {
        let path = path.replace("%d", device).replace("%p", &std::process::id().to_string());
        let refused = |path: &str, error: &(dyn Error + 'static)| {
            captures::report(path, &format!("{}; there is no capture", with_sources(error)));
            Failed::from_any(error, libc::EIO)
        };
        let (file, path) = new_file(&path).map_err(|error| refused(&path, &error))?;
        // Not buffered: a program that is killed leaves everything that passed.
        let tapped = tap::tap_with_handle(link, RawFile(file), time_of_day());
        let (tapped, dropped) = tapped.map_err(|error| refused(&path, &error))?;
        captures::watch(&dropped, path);
        (link, handle) = (tapped, Some(dropped));
    }
    if let Some(spec) = variable("ROCE_FAULT") {
        let spec: fault::Spec = spec.parse().map_err(|error| failed(&error, libc::EINVAL))?;
        link = match handle.filter(|_| spec.keep_dropped) {
            Some(handle) => fault::inject_keeping(link, &spec, handle),
            None => fault::inject(link, &spec),
        };
    }
    Ok(link)
}

/// A file that is written to by the system call itself. The C library's `write` is a cancellation
/// point, and threads that poll or post write to captures.
struct RawFile(File);

impl io::Write for RawFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the bytes are those of the slice.
        let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates a new file, and returns its name: if there is one already, a similar one. What is no
/// ordinary file, such as a pipe, is used as it is.
fn new_file(path: &str) -> io::Result<(File, String)> {
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Ok((File::options().write(true).open(path)?, path.to_owned()));
    }
    let process = std::process::id();
    let others = (2..FILES_MAX).map(|count| format!("{path}.{process}.{count}"));
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for name in [path.to_owned(), format!("{path}.{process}")].into_iter().chain(others) {
        match File::create_new(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            opened => return Ok((opened?, name)),
        }
    }
    Err(last)
}

/// The number that C gets for an error, whose words go to the file that `ROCE_LOG` names.
pub(crate) fn failed(error: &(dyn Error + 'static), otherwise: c_int) -> Failed {
    log(&with_sources(error));
    Failed::from_any(error, otherwise)
}

/// Returns the message of an error, with those of its sources.
fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        // Errors of links have the error of the system in their messages.
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        source = error.source();
    }
    line
}

/// Appends a line to the file that `ROCE_LOG` names, if it is set.
pub(crate) fn log(line: &str) {
    let Some(path) = variable("ROCE_LOG") else { return };
    // If it cannot be written, nothing else can report that.
    let log = File::options().append(true).create(true).open(path);
    let _ = log.and_then(|mut log| writeln!(log, "{line}"));
}

/// Panics of this library are reported only to the file that was asked for: its output is the
/// program's.
pub(crate) fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| log(&panic.to_string()))));
}

/// A variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    trusted(name, is_secure_execution()).filter(|value| !value.is_empty())
}

/// A variable, unless the environment is that of a less privileged user.
fn trusted(name: &str, secure: bool) -> Option<String> {
    if secure { None } else { env::var(name).ok() }
}

/// Whether the kernel started this program with more privilege than its caller has, as
/// `secure_getenv` asks.
fn is_secure_execution() -> bool {
    // SAFETY: a function without a contract.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn time_of_day() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "captures have the time of day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_of_another_user_is_ignored() {
        assert!(trusted("PATH", false).is_some());
        assert_eq!(trusted("PATH", true), None);
        assert!(!is_secure_execution());
    }
}
