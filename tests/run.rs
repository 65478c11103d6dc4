//! `roce run`: what a program finds in its environment, and what is said when it cannot be run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::command::{command, text};
use common::loopback::{device, loopback};
use common::netns::in_namespace;
use common::process::{Child, Command};
use rustix::process::Signal;

mod common;

/// Bytes by which `roce run` recognizes its library, and its version.
const OURS: &str = concat!(
    "\x7fELF, and somewhere in it: roce libibverbs over soft NICs, version ",
    env!("CARGO_PKG_VERSION"),
    "\0"
);

/// A directory with something in it that has the library's name.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roce-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("libibverbs.so.1"), OURS).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&[&["run"], args].concat());
        command.env("ROCE_LIBRARY", &self.0);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.env("ROCE_FAULT", "left over");
        command.env_remove("LD_LIBRARY_PATH").output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_program_finds_the_library_and_what_its_devices_shall_be() {
    let place = Place::new("environment");
    let spec =
        ["--device", &device(4, 4), "-d", &device(4, 5), "--pcap", "it", "--fault", "loss=1%"];
    let output = place.run(&[&spec[..], &["--", "/usr/bin/env"]].concat());
    let lines = text(&output.stdout);
    let here = std::env::current_dir().unwrap();
    for line in [
        format!("LD_LIBRARY_PATH={}", place.0.display()),
        format!("ROCE_DEVICES={} {}", device(4, 4), device(4, 5)),
        format!("ROCE_PCAP={}", here.join("it").display()),
        "ROCE_FAULT=loss=1%".to_owned(),
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in {lines}");
    }
}

#[test]
fn files_are_in_shared_memory_without_a_temporary_directory_and_unknown_forms_are_refused() {
    let place = Place::new("unwritable");
    std::fs::write(place.0.join("libroce-files.so"), b"").unwrap();
    let run = |form: &str| {
        let args = ["--device", &device(4, 12), "sh", "-c", "echo $ROCE_TREE"];
        let mut command = place.command(&args);
        command.env("TMPDIR", "/nonexistent").env("ROCE_FILES", form).output().unwrap()
    };
    let output = run("preload");
    assert!(text(&output.stdout).starts_with("/dev/shm/roce-files-"), "{output:?}");
    // Where user namespaces are forbidden, that form is refused.
    let output = run("namespace");
    let forbidden = text(&output.stderr).contains("namespace");
    assert!(text(&output.stdout) == "/\n" || forbidden, "{output:?}");
    let output = run("probe");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("it is 'namespace' or 'preload'"), "{output:?}");
}

#[test]
fn the_library_is_preloaded_before_others_and_behind_what_redirects_files() {
    let place = Place::new("files");
    let files = place.0.join("libroce-files.so");
    std::fs::write(&files, b"").unwrap();
    let mut command = place.command(&["--device", &device(4, 6), "/usr/bin/env"]);
    command.env("LD_PRELOAD", "/no/other.so").env("ASAN_OPTIONS", "detect_leaks=0");
    command.env("ROCE_FILES", "preload");
    let lines = text(&command.output().unwrap().stdout);
    for line in [
        format!(
            "LD_PRELOAD={}:{}/libibverbs.so.1:/no/other.so",
            files.display(),
            place.0.display()
        ),
        "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0".to_owned(),
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in {lines}");
    }
}

#[test]
fn empty_variables_are_as_none() {
    let place = Place::new("empty");
    let names = ["ROCE_CC", "ROCE_RECOVERY", "ROCE_RECEIVE", "ROCE_PATHS"];
    let output =
        place.command(&["/usr/bin/env"]).envs(names.map(|name| (name, ""))).output().unwrap();
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!lines.lines().any(|line| names.iter().any(|it| line.starts_with(it))), "{lines}");
}

#[test]
fn without_options_nothing_is_left_from_before() {
    let place = Place::new("nothing");
    let lines = text(&place.run(&["/usr/bin/env"]).stdout);
    for name in ["ROCE_DEVICES=", "ROCE_PCAP=", "ROCE_FAULT="] {
        assert!(!lines.lines().any(|line| line.starts_with(name)), "{name} is in {lines}");
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    let place = Place::new("status");
    assert_eq!(place.run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
}

#[test]
fn what_cannot_be_run_is_told_with_the_cure() {
    let place = Place::new("errors");
    for (args, word) in [
        (&["--device", "udp:203.0.113.77", "--", "true"][..], "--device udp:203.0.113.77: "),
        (&["--device", "eth0", "--", "true"], "a device for a program is udp:ADDRESS"),
        (&["--device", "soft:", "--", "true"], "nothing follows 'soft:'"),
        (&["--device", "tap:t0@10.9.0.2/24", "--", "true"], "programs have no TAP devices"),
        (&["--device", "verbs:mlx5_0", "--", "true"], "needs no `roce run`"),
        (&["--device", "mlx5_0:1", "--", "true"], "no device of the kind 'mlx5_0'"),
        (&["--cc", "fast", "--", "true"], "--cc: no congestion control is called"),
        (&["--device", "a/b=soft:lo", "--", "true"], "'a/b' is no name for a device"),
        (&["--fault", "loss=lots", "--", "true"], "loss"),
        (&["--pcap", "/no/such/directory/it", "--", "true"], "--pcap /no/such/directory/it"),
        (&["--bogus", "--", "true"], "unexpected argument '--bogus'"),
        (&["--bogus", "true"], "unexpected argument '--bogus'"),
        (&[], "PROGRAM"),
    ] {
        let output = place.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(word), "{args:?}: {error}");
    }
    std::fs::write(place.0.join("libibverbs.so.1"), OURS.replace("version ", "version 9."))
        .unwrap();
    let error = text(&place.run(&["true"]).stderr);
    let versions = format!("is of roce 9.{0} and this command of {0}", env!("CARGO_PKG_VERSION"));
    assert!(error.contains(&versions) && error.contains("install the library"), "{error}");
    std::fs::write(place.0.join("libibverbs.so.1"), "\x7fELF of another project").unwrap();
    let error = text(&place.run(&["true"]).stderr);
    assert!(error.contains("is not the library of roce"), "{error}");
    let gone = Place(std::env::temp_dir().join("roce-run-no-such-place"));
    let error = text(&gone.run(&["true"]).stderr);
    assert!(error.contains("ROCE_LIBRARY: there is no libibverbs.so.1 at"), "{error}");
}

#[test]
fn exit_status_tells_missing_programs_from_those_that_cannot_be_run() {
    let place = Place::new("programs");
    let script = place.0.join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let not_executable = place.0.join("libibverbs.so.1");
    let chmod = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(0o755);
    for (program, status, word) in [
        (Path::new("/no/such/program"), 127, "program not found"),
        (Path::new("roce-no-such-program"), 127, "program not found"),
        (&script, 127, "its interpreter is not found"),
        (&not_executable, 126, "ermission denied"),
        (&place.0, 126, "ermission denied"),
    ] {
        let output = place.run(&["-d", &device(4, 7), "--", program.to_str().unwrap()]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{program:?}: {error}");
        let name = format!("cannot run {}: ", program.display());
        assert!(error.contains(&name) && error.contains(word), "{error}");
    }
}

/// A directory in a folder of PATH that is called like the program: the system call says that
/// permission is denied, as for a folder that cannot be searched.
#[test]
fn program_that_is_nowhere_is_not_found_whatever_path_has() {
    let place = Place::new("path");
    let name = "roce-no-such-program";
    std::fs::create_dir_all(place.0.join(name)).unwrap();
    let mut command = place.command(&["-d", &device(4, 8), "--", name]);
    let output = command.env("PATH", format!("{}:/usr/bin:/bin", place.0.display())).output();
    let output = output.unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{error}");
    assert!(error.contains("cannot run roce-no-such-program: program not found"), "{error}");
}

#[test]
fn quiet_command_says_nothing_of_its_devices() {
    in_namespace(|| {
        let place = Place::new("quiet");
        let remarks = |args: &[&str]| {
            let error = text(&place.run(args).stderr);
            error.lines().filter(|line| line.starts_with("roce: ")).count()
        };
        assert_eq!((remarks(&["true"]), remarks(&["--quiet", "true"])), (1, 0));
        assert_eq!(remarks(&["-q", "--", "roce-no-such-program"]), 1, "an error is told");
    });
}

#[test]
fn options_behind_the_program_are_the_programs() {
    let place = Place::new("options");
    let output = place.run(&["-d", &device(4, 8), "echo", "--bogus", "-d", "x", "--", "y"]);
    assert_eq!(text(&output.stdout), "--bogus -d x -- y\n");
}

#[test]
fn device_that_is_named_twice_is_refused() {
    let place = Place::new("twice");
    let (first, second) = (device(4, 9), device(4, 10));
    for ([first, second], word) in [
        ([&first, &first], &*format!("{first} is there twice")),
        ([&"soft:lo".into(), &"soft:lo".into()], "name both: one=soft:lo other=soft:lo"),
        ([&format!("a={first}"), &format!("a={second}")], "two devices are called a"),
    ] {
        let output = place.run(&["-d", first, "-d", second, "true"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(word), "{error}");
    }
    let output = place.run(&["-d", "mlx5_0=soft:lo", "-d", "mlx5_1=soft:lo", "/usr/bin/env"]);
    assert!(text(&output.stdout).contains("ROCE_DEVICES=mlx5_0=soft:lo mlx5_1=soft:lo\n"));
}

#[test]
fn library_that_is_not_ours_is_refused() {
    let place = Place::new("foreign");
    let library = place.0.join("libibverbs.so.1");
    for foreign in [&b""[..], b"\x7fELF of rdma-core", &OURS.as_bytes()[1..]] {
        std::fs::write(&library, foreign).unwrap();
        let output = place.run(&["true"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("is not the library of roce"), "{error}");
    }
    let other = place.0.join("another-name.so");
    std::fs::write(&other, OURS).unwrap();
    let error = text(&Place(other).run(&["true"]).stderr);
    assert!(error.contains("programs look for the name libibverbs.so.1"), "{error}");
    let error = text(&Place(PathBuf::new()).run(&["true"]).stderr);
    assert!(error.contains("ROCE_LIBRARY is empty"), "{error}");
}

#[test]
fn library_below_the_current_directory_is_never_loaded_by_accident() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-accident");
    let _ = std::fs::remove_dir_all(&root);
    let bin = root.join("pre:fix/bin");
    for directory in ["pre:fix/bin", ".local/lib/roce", "pre:fix/lib/roce"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::hard_link(env!("CARGO_BIN_EXE_roce"), bin.join("roce")).unwrap();
    let run = |home: &str| {
        let mut command = Command::new(bin.join("roce"));
        command.args(["run", "--device", &device(4, 11), "--", "true"]);
        command.env_remove("ROCE_LIBRARY").env("HOME", home).current_dir(&root);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "HOME={home}: {output:?}");
        text(&output.stderr)
    };
    // An empty or relative HOME would be the current directory.
    std::fs::write(root.join(".local/lib/roce/libibverbs.so.1"), OURS).unwrap();
    for home in ["", "."] {
        let error = run(home);
        assert!(error.contains("there is no libibverbs.so.1 of roce in"), "{error}");
    }
    // The linker would take a prefix with a colon for two directories, the second below the current
    // one.
    std::fs::write(root.join("pre:fix/lib/roce/libibverbs.so.1"), OURS).unwrap();
    let error = run("/nonexistent");
    assert!(error.contains("cannot search a directory with ':'"), "{error}");
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn default_devices_that_will_not_do_are_told() {
    in_namespace(|| {
        let place = Place::new("default");
        let said = |word: &str| {
            let output = place.run(&["true"]);
            let error = text(&output.stderr);
            assert!(output.status.success() && error.contains(word), "{word}: {error}");
            error
        };
        let ip = |arguments: &str| {
            let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
            assert!(status.success(), "ip {arguments}");
        };
        said("roce0 is soft:lo (127.0.0.1); it reaches this host only");
        ip("link add far type veth peer name other");
        ip("address add 192.0.2.1/24 dev far");
        ip("link set far up");
        let error = said("roce0 is soft:far (192.0.2.1), roce1 is soft:lo (127.0.0.1");
        let own = error.lines().filter(|line| line.starts_with("roce: "));
        assert_eq!(own.count(), 1, "{error}");
        let taken = std::net::UdpSocket::bind("192.0.2.1:4791").unwrap();
        said("roce0 (soft:far) takes an address of loopback: UDP port 4791 of 192.0.2.1");
        drop(taken);
        // Who has the port of all addresses has that of loopback as well.
        let taken = std::net::UdpSocket::bind("0.0.0.0:4791").unwrap();
        let error = said("roce1 (soft:lo) will not open: UDP port 4791 of 127.");
        assert!(error.contains("(soft:far) will not open: UDP port 4791 of 192.0.2.1"), "{error}");
        let named = place.run(&["--device", "soft:lo", "true"]);
        assert_eq!(named.status.code(), Some(2), "{named:?}");
        drop(taken);
        ip("link set far down");
        ip("link set lo down");
        let error = said("the program finds no device: ");
        for word in ["lo is down", "far is down", "ip link set lo up"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    });
}

/// Returns the output of a command that is installed at `bin` about the search path of its
/// programs.
fn search_path(bin: &Path, home: &Path) -> Output {
    let mut command = Command::new(bin.join("roce"));
    command.args(["run", "--device", &device(4, 1), "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    command.env_remove("ROCE_LIBRARY").env_remove("LD_LIBRARY_PATH").env("HOME", home);
    command.output().unwrap()
}

#[test]
fn the_library_is_found_where_install_puts_it() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-installed");
    let _ = std::fs::remove_dir_all(&root);
    let (bin, home) = (root.join("bin"), root.join("home"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_roce"), bin.join("roce")).unwrap();
    let error = text(&search_path(&bin, &home).stderr);
    assert!(error.contains("run `tools/ibverbs/install` in the source of roce"), "{error}");
    // The nearest is taken: beside the command, where it was built, in the home directory.
    for place in ["home/.local/lib/roce", "bin/ibverbs", "lib/roce"] {
        let place = root.join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("libibverbs.so.1"), OURS).unwrap();
        let output = search_path(&bin, &home);
        let found = text(&output.stdout);
        let found = std::fs::canonicalize(found.trim()).unwrap();
        assert_eq!(found, std::fs::canonicalize(place).unwrap(), "{}", text(&output.stderr));
    }
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn library_is_found_without_proc_by_the_name_of_the_command() {
    in_namespace(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-without-proc");
        let _ = std::fs::remove_dir_all(&root);
        let (bin, home) = (root.join("bin"), root.join("home"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::hard_link(env!("CARGO_BIN_EXE_roce"), bin.join("roce")).unwrap();
        let run = |called: &str| {
            let script = format!(
                "mount -t tmpfs none /proc && exec {called} run --device udp:127.0.0.1 -- \
                 sh -c 'echo $LD_LIBRARY_PATH'"
            );
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &script]).current_dir(&root);
            command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
            command.env_remove("ROCE_LIBRARY").env_remove("LD_LIBRARY_PATH").env("HOME", &home);
            command.output().unwrap()
        };
        let output = run("roce");
        assert!(text(&output.stderr).contains("/proc is not mounted"), "{output:?}");
        let place = root.join("lib/roce");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("libibverbs.so.1"), OURS).unwrap();
        for called in ["roce", "bin/roce"] {
            let output = run(called);
            let found = std::fs::canonicalize(text(&output.stdout).trim());
            assert_eq!(found.ok(), std::fs::canonicalize(&place).ok(), "{called}: {output:?}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    });
}

#[test]
fn an_address_that_is_taken_is_told_with_the_cure() {
    let place = Place::new("taken");
    let taken = std::net::UdpSocket::bind((loopback(4, 2), 4791)).unwrap();
    let output = place.run(&["--device", &device(4, 2), "--", "true"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("is taken") && error.contains("use another address"), "{error}");
    drop(taken);
    assert!(place.run(&["--device", &device(4, 2), "--", "true"]).status.success());
}

#[test]
fn capture_of_an_earlier_run_is_replaced_and_another_file_is_not() {
    let place = Place::new("pcap");
    let (old, pipe) = (place.0.join("old.pcapng"), Path::new("/dev/null"));
    let run = |file: &Path| {
        let args = ["--device", &device(4, 3), "--pcap", file.to_str().unwrap(), "--", "true"];
        place.run(&args)
    };
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures/vectors.pcap");
    std::fs::copy(capture, &old).unwrap();
    for file in [&*old, pipe] {
        assert!(run(file).status.success());
    }
    assert!(!old.exists() && pipe.exists());
    std::fs::write(&old, b"notes").unwrap();
    for file in [&*old, &place.0.join("%d.pcapng")] {
        std::fs::write(place.0.join("roce0.pcapng"), b"notes").unwrap();
        let output = run(file);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("is no capture"), "{error}");
    }
    assert_eq!(std::fs::read(&old).unwrap(), b"notes");
}

/// The program of [`cut_capture_is_reported_and_changes_the_exit_status`]: its library reports a
/// capture, as on a full disk.
#[test]
#[ignore = "run by another test"]
fn reports_a_cut_capture() {
    let variable = std::env::var("ROCE_CAPTURE_REPORT").unwrap();
    let (_, socket) = variable.split_once(':').unwrap();
    let report = b"it.pcapng: No space left on device\x1b[2J";
    UnixDatagram::unbound().unwrap().send_to(report, socket).unwrap();
}

#[test]
fn cut_capture_is_reported_and_changes_the_exit_status() {
    let place = Place::new("cut");
    let own = std::env::current_exe().unwrap();
    let pcap = place.0.join("it.pcapng");
    let with_pcap = ["--device", &device(4, 40), "--pcap", pcap.to_str().unwrap(), "--"];
    let program = [own.to_str().unwrap(), "--ignored", "--exact", "reports_a_cut_capture"];
    let output = place.run(&[&with_pcap[..], &program].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}{}", text(&output.stdout));
    assert!(
        errors.contains("roce: --pcap: it.pcapng: No space left on device\\u{1b}[2J\n"),
        "{errors}"
    );
    // The program's own status, where it fails, and where nothing is reported.
    for (status, expected) in [("0", 0), ("3", 3)] {
        let program = ["sh", "-c", &format!("exit {status}")];
        let output = place.run(&[&with_pcap[..], &program].concat());
        assert_eq!(output.status.code(), Some(expected), "{}", text(&output.stderr));
    }
    let program = ["sh", "-c", "kill -KILL $$"];
    let output = place.run(&[&with_pcap[..], &program].concat());
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
}

/// A program with a capture, which has printed a line.
fn captured_program(place: &Place, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = place.command(&["--device", &device(4, 41), "--pcap"]);
    command.arg(place.0.join("it.pcapng")).args(["--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, lines)
}

#[test]
fn program_with_a_capture_gets_signals_and_ends_with_its_supervisor() {
    let place = Place::new("signals");
    // A shell waits for a sleep before it handles a signal, unless it waits in the background.
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 1 & wait $!; done";
    let (mut child, _lines) = captured_program(&place, script);
    child.signal(Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let (mut child, mut lines) = captured_program(&place, "echo ready; exec sleep 100000");
    child.signal(Signal::KILL);
    child.wait().unwrap();
    // The pipe ends when the program does.
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(lines.read_to_string(&mut String::new())));
    let end = end.recv_timeout(std::time::Duration::from_secs(60));
    end.expect("the program ends with its supervisor within a minute").unwrap();
}
