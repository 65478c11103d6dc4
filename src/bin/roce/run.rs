//! `roce run`: an unmodified verbs program on a soft NIC.

mod bundle;
mod devices;
mod files;
pub(crate) mod library;
mod namespace;
mod supervise;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use roce::engine::congestion::Settings;
use roce::link::{NamedSpec, fault};

use crate::device::{CongestionArgs, RecoveryArgs, SharedMemoryArgs, forms};
use crate::outfile;
use crate::output::say;

/// Run an unmodified verbs program on a soft NIC
///
/// The program finds a libibverbs.so.1 whose devices are soft NICs. It needs no RNIC, no kernel
/// module and no privilege, and sends RoCEv2 packets that any other RNIC understands. Without
/// --device, it has one device for each interface that is up and has an address, loopback included,
/// on ordinary UDP sockets.
///
/// Programs of one user share an address. If another user's program has it, soft:INTERFACE takes
/// the next one of the interface; loopback has 127.0.0.1 to 127.0.0.254.
///
/// The devices have the files that programs look for: /dev/infiniband/uverbs0, and
/// /sys/class/infiniband/roce0. Programs that connect through librdmacm, rsockets among them, find
/// /dev/infiniband/rdma_cm: any version of that library works.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce run -- ibv_devinfo
  roce run -- ibv_rc_pingpong -g 0 &
  roce run -- ibv_rc_pingpong -g 0 localhost
  roce run --device udp:192.0.2.1 -- ib_write_bw -x 0
  roce run --device soft:lo -- rping -s -a 127.0.0.1 &
  roce run --device soft:lo -- rping -c -a 127.0.0.1 -v -C 3
  roce run --device mlx5_0=soft:lo -- ./program-that-insists-on-mlx5_0
  roce run --pcap /tmp/it.pcapng --fault loss=1% -- ./my-rdma-program
  roce run --cc dcqcn --line-rate 10G -- ib_write_bw -x 0 192.0.2.1
  roce run -- python3 -m pytest tests/
  roce run --device soft:lo -- mpirun -np 2 --mca pml ucx -x UCX_TLS=ib,self ./my-mpi-program

GID indexes: 0, 1 and 3 are the device's address as RoCE v2, where programs written for soft NICs, Linux' software RoCE and
mlx5 expect it. 2 is its RoCE v1 row, which cannot be used. On raw:INTERFACE, 0 is the GID of the Ethernet address.

The library is looked for in ROCE_LIBRARY, in ../lib/roce and ibverbs beside this command, and in lib/roce of ~/.local,
/usr/local and /usr, where `tools/ibverbs/install` puts it. It must be of this command's version. Released commands carry
their library and unpack it into XDG_CACHE_HOME, if none is installed. `roce doctor` tells which one is used.

The files of devices are real ones, in a user and mount namespace of the program's own, where the system allows that and the
program loses nothing by it. For a privileged caller and for a setuid program, a preloaded library redirects calls of libc
instead. ROCE_FILES=namespace or ROCE_FILES=preload overrides that choice: sudo and other setuid programs, for one,
have no effect in a namespace.

Options can be given in the environment: ROCE_CC, ROCE_CC_PROFILE, ROCE_LINE_RATE, ROCE_ECN, ROCE_CNP, ROCE_RECOVERY,
ROCE_RECEIVE and ROCE_PATHS are --cc, --cc-profile and so on; ROCE_SHM=off is --no-shm. An option on the command line comes
before its variable.

The library writes nothing to the program's output. With ROCE_LOG=FILE it writes to FILE why a device cannot be opened.
Setuid programs ignore all ROCE_ variables.

With --pcap this command waits for the program, and says if a capture could not be written to its end (a full disk).
Exit status: the program's; 127 if the program is not found, 126 if it cannot be run, 2 for other errors, and if the program
was successful but its capture was cut; with --pcap 128 and the number of the signal that ended the program.")]
pub(crate) struct Args {
    // The devices of the program.
    #[arg(short, long = "device", alias = "ib-dev", value_name = "[NAME=]DEVICE",
          value_parser = devices::parse, help = DEVICE, long_help = DEVICE_AND_NAME)]
    devices: Vec<NamedSpec>,

    /// Write the packets that the program sends and receives to FILE, as pcapng
    ///
    /// Each process and each device that it opens gets its own file: the first FILE, later ones
    /// FILE.PID, FILE.PID.2 and so on. In the name, %d stands for the device and %p for the
    /// process. An older capture is replaced, another file is not.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Impair packets, such as loss=1%,dup=0.1%,reorder=2%; `roce help faults` tells all keys
    ///
    /// By chance: loss, dup, reorder, corrupt, mark (1%, 100ppm), delay, jitter (10us), rate (10G),
    /// queue, seed, keep=dropped. By rule, for certain packets: drop, dup, reorder, corrupt, mark,
    /// delay, as in drop=0x11:7 (QPN, PSN).
    #[arg(long, value_name = "SPEC")]
    fault: Option<fault::Spec>,

    #[command(flatten)]
    shared_memory: SharedMemoryArgs,

    #[command(flatten)]
    congestion: CongestionArgs,

    #[command(flatten)]
    recovery: RecoveryArgs,

    /// Do not say which devices the program has
    #[arg(short, long)]
    quiet: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Help of `--device`, in a line and in full.
const DEVICE: &str = concat!("A device for the program, can be repeated: ", forms!(programs));
const DEVICE_AND_NAME: &str = concat!(
    "A device for the program, can be repeated: ",
    forms!(programs),
    "\n\nNAME is the device's name in the program, such as mlx5_0; without it, devices are called \
     roce0, roce1 and so on. Two devices on one interface need names."
);

/// The library beside ours that redirects calls of libc to the files of devices, where no mount
/// namespace shows them.
const FILES: &str = "libroce-files.so";

/// The exit statuses of a program that is not found or cannot be run, as shells and `env` have
/// them.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(result) = files::probe() {
        return result.map(|()| ExitCode::SUCCESS);
    }
    if args.pcap.is_some()
        && let Some(status) = supervise::run()?
    {
        return Ok(status);
    }
    let directory = library::find()?;
    if args.devices.is_empty() {
        let remarks = devices::check_default()?;
        for remark in remarks.iter().filter(|_| !args.quiet) {
            say!("{remark}");
        }
    } else {
        devices::check_named(&args.devices)?;
    }
    let (name, rest) = args.program.split_first().context("there is no program to run")?;
    let mut command = Command::new(name);
    let search_path = files::first_of("LD_LIBRARY_PATH", &[&directory]);
    command.args(rest).env("LD_LIBRARY_PATH", search_path);
    let devices: Vec<String> = args.devices.iter().map(ToString::to_string).collect();
    set(&mut command, "ROCE_DEVICES", (!devices.is_empty()).then(|| devices.join(" ").into()));
    let first = args.devices.first().map_or_else(|| "roce0".to_owned(), |device| device.name_at(0));
    let pcap = args.pcap.as_deref().map(|file| prepare_capture(file, &first)).transpose()?;
    set(&mut command, "ROCE_PCAP", pcap.map(Into::into));
    set(&mut command, "ROCE_FAULT", args.fault.as_ref().map(|fault| fault.to_string().into()));
    args.congestion.settings()?;
    for name in Settings::NAMES {
        set(&mut command, &Settings::variable(name), args.congestion.text(name).map(Into::into));
    }
    if args.shared_memory.no_shm {
        command.env("ROCE_SHM", "off");
    }
    for (name, value) in args.recovery.variables() {
        set(&mut command, name, value.map(Into::into));
    }
    let (library, redirect) = (directory.join(library::NAME), directory.join(FILES));
    files::show(&mut command, files::choose(name)?, &args.devices, &library, &redirect)?;
    supervise::follow(&mut command);
    let error = command.exec();
    Ok(cannot_run(name, &error))
}

/// Returns the reason for which programs cannot have a mount namespace, if they cannot.
pub(crate) fn namespace_refusal() -> Option<String> {
    files::namespace_refusal()
}

/// Says why a program was not started.
fn cannot_run(name: &OsStr, error: &io::Error) -> ExitCode {
    let is_path = name.as_encoded_bytes().contains(&b'/');
    let is_there = files::find_program(name).is_some_and(|file| file.is_file());
    match error.kind() {
        io::ErrorKind::NotFound if is_there => {
            say!("cannot run {}: its interpreter is not found", name.display());
            ExitCode::from(NOT_FOUND)
        }
        // A directory of PATH that cannot be searched is an error of the system call, whatever the
        // others have.
        io::ErrorKind::PermissionDenied if !is_path && !is_there => not_found(name),
        io::ErrorKind::NotFound => not_found(name),
        _ => {
            say!("cannot run {}: {error}", name.display());
            ExitCode::from(CANNOT_RUN)
        }
    }
}

fn not_found(name: &OsStr) -> ExitCode {
    say!("cannot run {}: program not found", name.display());
    ExitCode::from(NOT_FOUND)
}

/// Checks where captures go, and removes the one of an earlier run: the library leaves existing
/// files, which another process of the program may be writing.
fn prepare_capture(file: &Path, device: &str) -> Result<PathBuf> {
    let path = std::path::absolute(file)?;
    let pattern = path.to_string_lossy();
    let process = std::process::id().to_string();
    let first = PathBuf::from(pattern.replace("%d", device).replace("%p", &process));
    outfile::check_capture("--pcap", &first)?;
    if first.is_file() {
        std::fs::remove_file(&first).with_context(|| format!("--pcap {}", first.display()))?;
    }
    Ok(path)
}

/// Sets a variable of the program's, or removes it.
fn set(command: &mut Command, name: &str, value: Option<OsString>) {
    match value {
        Some(value) => command.env(name, value),
        None => command.env_remove(name),
    };
}
