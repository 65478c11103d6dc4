//! `roce run`: an unmodified verbs program on a soft NIC.

mod files;
mod namespace;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use roce::link::{Spec, fault};

/// Run an unmodified verbs program on a soft NIC
///
/// The program finds a libibverbs.so.1 whose devices are soft NICs; it needs no RNIC, no kernel module and no privilege,
/// and what it sends are RoCEv2 packets that any other RNIC understands. Without --device, it has a device for every
/// interface with an address, loopback included, on ordinary UDP sockets.
///
/// On one host every program needs an address of its own: soft:INTERFACE, as without --device, takes the first that is free,
/// and loopback has 127.0.0.1 to 127.0.0.254. With raw:INTERFACE, which needs CAP_NET_RAW, they share one.
///
/// Its devices have the files that a kernel's have: /dev/infiniband/uverbs0 is there, and /sys/class/infiniband/roce0 says
/// what its port is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  roce run -- ibv_devinfo
  roce run -- ibv_rc_pingpong -g 0 &
  roce run -- ibv_rc_pingpong -g 0 localhost
  roce run --device udp:192.0.2.1 -- ib_write_bw -x 0
  roce run --pcap /tmp/it.pcapng --fault loss=1% -- ./my-rdma-program
  roce run -- python3 -m pytest tests/
  roce run --device soft:lo -- mpirun -np 2 --mca pml ucx -x UCX_TLS=ib,self ./my-mpi-program

The library is looked for in ROCE_LIBRARY, in ../lib/roce and ibverbs beside this command, and in lib/roce of ~/.local,
/usr/local and /usr; `tools/ibverbs/install` puts it there.

The files of devices are real ones, in a user and mount namespace of the program's own, where the system allows that and the
program loses nothing by it. For a privileged caller, a setuid program and a rank of MPI, a preloaded library redirects calls
of libc instead. ROCE_FILES=namespace or ROCE_FILES=preload overrides that choice: sudo and other setuid programs, for one,
have no effect in a namespace.
It says nothing on the program's output; with ROCE_LOG=FILE it writes there why a device cannot be opened.
Exit status: the program's, or 2 when it cannot be run.")]
pub(crate) struct Args {
    /// A device that the program shall have: udp:ADDRESS, raw:INTERFACE or soft:INTERFACE; may be repeated
    #[arg(short, long = "device", value_name = "SPEC")]
    devices: Vec<Spec>,

    /// Keep what the program sends and receives, as pcapng
    ///
    /// Each process, and each device that it opens, has a file of its own: the first FILE, those after it FILE.PID,
    /// FILE.PID.2 and so on. In the name, %d is the device and %p the process.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// What shall go wrong on the way out, such as loss=1%,dup=0.1%,reorder=2%
    #[arg(long, value_name = "SPEC")]
    fault: Option<fault::Spec>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// What the library is called, by those who need it.
const LIBRARY: &str = "libibverbs.so.1";

/// The library beside it that redirects calls of libc to the files of devices, where no mount namespace shows them.
const FILES: &str = "libroce-files.so";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(result) = files::probe() {
        return result.map(|()| ExitCode::SUCCESS);
    }
    let library = find_library()?;
    try_devices(&args.devices)?;
    let (name, rest) = args.program.split_first().context("there is no program to run")?;
    let mut command = Command::new(name);
    let search_path = files::first_of("LD_LIBRARY_PATH", &[directory(&library)]);
    command.args(rest).env("LD_LIBRARY_PATH", search_path);
    let devices: Vec<String> = args.devices.iter().map(ToString::to_string).collect();
    set(&mut command, "ROCE_DEVICES", (!devices.is_empty()).then(|| devices.join(" ").into()));
    let pcap = args.pcap.as_deref().map(std::path::absolute).transpose()?;
    // The library leaves files that are there: another process of the program may be writing them.
    if let Some(old) = pcap.as_deref().filter(|file| file.is_file()) {
        std::fs::remove_file(old).with_context(|| format!("--pcap {}", old.display()))?;
    }
    set(&mut command, "ROCE_PCAP", pcap.map(Into::into));
    set(&mut command, "ROCE_FAULT", args.fault.as_ref().map(|fault| fault.to_string().into()));
    let redirect = directory(&library).join(FILES);
    files::show(&mut command, files::choose(name)?, &args.devices, &library, &redirect)?;
    let error = command.exec();
    bail!("cannot run {}: {error}", name.display());
}

/// Opens devices and closes them again. The program would only say that it cannot open its device; here it can be said
/// why. Those that nobody asked for need not open; and those that do for sure are not tried, to be in nobody's way.
fn try_devices(wanted: &[Spec]) -> Result<()> {
    let is_doubtful = |spec: &&Spec| !spec.is_any_of_loopback();
    for spec in wanted.iter().filter(is_doubtful) {
        spec.open(None).with_context(|| format!("--device {spec}"))?;
    }
    if wanted.is_empty() {
        let all = Spec::of_every_interface().context("cannot list the interfaces")?;
        for spec in all.iter().filter(is_doubtful) {
            if let Err(error) = spec.open(None) {
                eprintln!("roce: {spec} will not open: {error}; choose another with --device");
            }
        }
    }
    Ok(())
}

/// Sets a variable of the program's, or sees to it that it has none.
fn set(command: &mut Command, name: &str, value: Option<OsString>) {
    match value {
        Some(value) => command.env(name, value),
        None => command.env_remove(name),
    };
}

fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or_else(|| Path::new("/"))
}

/// Where the library is.
fn find_library() -> Result<PathBuf> {
    if let Some(given) = env::var_os("ROCE_LIBRARY") {
        let given = PathBuf::from(given);
        let file = if given.is_dir() { given.join(LIBRARY) } else { given.clone() };
        anyhow::ensure!(
            file.is_file(),
            "ROCE_LIBRARY: there is no {LIBRARY} at {}",
            given.display()
        );
        return Ok(std::path::absolute(file)?);
    }
    let places = places();
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|file| file.is_file());
    found.with_context(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        format!(
            "there is no {LIBRARY} of roce's in {}; `tools/ibverbs/install` builds and installs it, and ROCE_LIBRARY \
             names another place",
            places.join(", ")
        )
    })
}

/// Where the library may be: beside this command, wherever that was installed or built, or where one installs things.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(bin) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.extend([bin.join("../lib/roce"), bin.join("ibverbs")]);
    }
    places.extend(env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib/roce")));
    places.extend(["/usr/local/lib/roce", "/usr/lib/roce"].map(PathBuf::from));
    places
}
