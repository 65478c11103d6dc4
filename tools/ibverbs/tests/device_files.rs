//! The files of devices, as programs under `roce run` see them: in a mount namespace, and by
//! redirected calls of libc.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

mod common;

use common::process::Command;
use common::{compiled, said};

/// The user that tests which root runs are run as: nothing here needs root.
const UNPRIVILEGED: u32 = 65534;

/// The folder in which any user may make files: that of the system need not be one.
const ANYONES: &str = "anyones";

/// `roce` with its library, installed where every user can run it. Test programs go there too.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Self {
        let place = format!("roce-test-files-{name}-{}", std::process::id());
        let here = Self(std::env::temp_dir().join(place));
        for directory in ["", "bin", "lib", "lib/roce"] {
            fs::create_dir_all(here.0.join(directory)).unwrap();
            open_to_all(&here.0.join(directory));
        }
        fs::create_dir(here.0.join(ANYONES)).unwrap();
        fs::set_permissions(here.0.join(ANYONES), fs::Permissions::from_mode(0o777)).unwrap();
        here.add(command(), "bin/roce");
        for file in ["libibverbs.so.1", "libroce-files.so"] {
            here.add(&common::library().join(file), &format!("lib/roce/{file}"));
        }
        here
    }

    /// Copies a program. Another process writes it: one that another test starts meanwhile would
    /// inherit the file open for writing, and such a file does not execute.
    fn add(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.0.join(name);
        said(Command::new("install").args(["-m", "755"]).arg(from).arg(&to), "coreutils");
        to
    }

    /// `roce run` of a program in C, for an ordinary user, with the files in this form.
    fn run(&self, form: Option<&str>, device: &str, program: &Path) -> Command {
        let mut command = Command::new(self.0.join("bin/roce"));
        command.args(["run", "--device", device, "--"]).arg(program).current_dir("/");
        for name in ["ROCE_LIBRARY", "ROCE_FILES", "ROCE_TREE", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command.envs(form.map(|form| ("ROCE_FILES", form))).env("TMPDIR", self.0.join(ANYONES));
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        command
    }

    /// The forms that this system lets an ordinary user have.
    fn forms(&self) -> Vec<&'static str> {
        let namespace = self.run(Some("namespace"), "soft:lo", Path::new("true")).output().unwrap();
        let text = String::from_utf8_lossy(&namespace.stderr);
        if namespace.status.success() {
            return vec!["namespace", "preload"];
        }
        // A container that forbids user namespaces: what was asked for is refused, with the cure.
        assert!(text.contains("ROCE_FILES=preload needs none"), "{text}");
        vec!["preload"]
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The command, as `cargo build` makes it.
fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--quiet", "--bin", "roce", "--manifest-path"]);
        said(cargo.arg(here.join("../../Cargo.toml")), "cargo");
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/roce")
    })
}

/// The program that looks at files in every way.
fn looker() -> &'static Path {
    static LOOKER: OnceLock<PathBuf> = OnceLock::new();
    LOOKER.get_or_init(|| compiled("files.c"))
}

#[test]
fn every_way_of_looking_at_files_of_devices_answers_as_a_kernels() {
    let here = Installed::new("ways");
    let program = here.add(looker(), "files");
    for form in here.forms() {
        let said = said(&mut here.run(Some(form), "soft:lo", &program), "gcc");
        assert!(said.ends_with("fine\n"), "{form}: {said}");
    }
}

#[test]
fn counters_are_the_sums_of_programs_that_have_closed_the_device() {
    const PAIR: &str = "ibv_rc_pingpong -g 0 -n 50 >/dev/null & \
        while ! ibv_rc_pingpong -g 0 -n 50 127.0.0.1 >/dev/null 2>&1; do sleep 0.1; done; wait; \
        cd /sys/class/infiniband/roce0/ports/1 && cat counters/port_rcv_packets \
        hw_counters/np_cnp_sent";
    let here = Installed::new("counters");
    for form in here.forms() {
        let mut pair = here.run(Some(form), "udp:127.9.73.1", Path::new("sh"));
        let said =
            said(pair.args(["-c", &PAIR.replace("127.0.0.1", "127.9.73.1")]), "ibverbs-utils");
        let [received, notified] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        // Both of its ends, and ACKs.
        assert!(received.parse::<u64>().unwrap() >= 100, "{form}: {said}");
        assert_eq!(notified, "0", "{form}");
    }
}

#[test]
fn both_forms_have_the_same_files() {
    let here = Installed::new("same");
    let program = here.add(looker(), "files");
    let dump = |form| said(here.run(Some(form), "soft:lo", &program).arg("dump"), "gcc");
    let [first, others @ ..] = &here.forms()[..] else { panic!("there is no form") };
    let wanted = dump(first);
    assert!(wanted.lines().count() > 100 && wanted.contains("/ports/1/gids/15 100444"), "{wanted}");
    for other in others {
        assert_eq!(dump(other), wanted, "{other} and {first} differ");
    }
}

#[test]
fn files_of_an_open_device_say_what_its_verbs_say() {
    let here = Installed::new("open");
    let program = here.add(&compiled("files_open.c"), "files_open");
    // Loopback's first address is taken: the device gets another than its files said before.
    // Programs of other tests have it for a moment.
    let taken = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        std::net::UdpSocket::bind("127.0.0.1:4791").ok()
    });
    let taken = taken.take(6000).find_map(|taken| taken).expect("the address becomes free");
    for form in here.forms() {
        let said = said(&mut here.run(Some(form), "soft:lo", &program), "gcc");
        assert!(said.ends_with("fine\n"), "{form}: {said}");
        assert!(!said.contains("7f00:0001"), "{form}: {said}");
    }
    drop(taken);
}

#[test]
fn a_renamed_libibverbs_that_a_program_brings_is_not_used() {
    let here = Installed::new("renamed");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/renamed.c");
    let (library, program) = (here.0.join("libibverbs-1de1263b.so.1"), here.0.join("renamed"));
    let versions = here.0.join("versions");
    fs::write(
        &versions,
        "IBVERBS_1.0 {}; IBVERBS_1.1 { ibv_get_device_list; ibv_get_device_name; } IBVERBS_1.0;\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,-soname,libibverbs-1de1263b.so.1", "-o"]).arg(&library);
    cc.arg(&source).arg(format!("-Wl,--version-script,{}", versions.display()));
    said(&mut cc, "gcc");
    let mut cc = Command::new("cc");
    cc.args(["-DPROGRAM", "-Wl,--disable-new-dtags", "-o"])
        .arg(&program)
        .arg(&source)
        .arg(&library);
    said(cc.arg(format!("-Wl,-rpath,{}", here.0.display())), "gcc");
    open_to_all(&library);
    assert_eq!(said(&mut Command::new(&program), "gcc"), "0 devices, none\n");
    for form in here.forms() {
        assert_eq!(
            said(&mut here.run(Some(form), "soft:lo", &program), "gcc"),
            "1 devices, roce0\n"
        );
    }
}

/// A wrapper that sets its own `LD_PRELOAD`: librdmacm is answered as long as the library is found,
/// and else it fails.
#[test]
fn program_without_the_preload_is_answered_or_fails_at_once() {
    let here = Installed::new("unloaded");
    let program = here.add(&common::compiled_with("dlopened.c", &["-ldl"]), "dlopened");
    let own = "127.9.67.1";
    for form in here.forms() {
        let run = |words: &[&str]| {
            let device = format!("udp:{own}");
            let mut command = here.run(Some(form), &device, Path::new("timeout"));
            command.args(["30", "env", "-u", "LD_PRELOAD"]).args(words);
            command
        };
        let answered = said(run(&[]).arg(&program).arg(own), "librdmacm1");
        assert_eq!(answered, "fine\n", "{form}");
        let mut stock = run(&["-u", "LD_LIBRARY_PATH"]);
        assert_eq!(stock.arg(&program).arg(own).output().unwrap().status.code(), Some(1), "{form}");
        let mut shell = run(&["sh", "-c", "echo x > /dev/infiniband/rdma_cm"]);
        let wrote = shell.output().unwrap();
        assert!(!wrote.status.success() && wrote.status.code() != Some(124), "{form}: {wrote:?}");
    }
}

#[test]
fn the_form_is_chosen_so_that_a_program_loses_nothing() {
    let here = Installed::new("choice");
    let tree = |edit: &dyn Fn(&mut Command)| {
        let mut command = here.run(None, "soft:lo", Path::new("sh"));
        edit(command.args([
            "-c",
            "echo $ROCE_TREE; id -u; id -g; cat /sys/class/infiniband/roce0/node_type",
        ]));
        let said = said(&mut command, "coreutils");
        let [tree, user, group, node_type] = said.lines().collect::<Vec<_>>()[..] else {
            panic!("{said}")
        };
        assert_eq!(node_type, "1: CA", "{said}");
        (tree.to_owned(), user.to_owned(), group.to_owned())
    };
    let own = fs::metadata("/proc/self").unwrap();
    let expected =
        if own.uid() == 0 { (UNPRIVILEGED, UNPRIVILEGED) } else { (own.uid(), own.gid()) };
    let (root, user, group) = tree(&|_| ());
    assert_eq!(root == "/", here.forms().contains(&"namespace"), "{root}");
    assert_eq!((user, group), (expected.0.to_string(), expected.1.to_string()));
    // A privileged caller keeps its raw sockets.
    if own.uid() == 0 {
        let (root, user, _) = tree(&|command| _ = command.uid(0).gid(0));
        assert_ne!(root, "/");
        assert_eq!(user, "0");
    }
    let wrong = here.run(Some("kernel"), "soft:lo", Path::new("true")).output().unwrap();
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("'namespace' or 'preload'"),
        "{wrong:?}"
    );
}

#[test]
fn programs_under_one_user_may_read_each_others_memory() {
    let here = Installed::new("memory");
    let program = here.add(&compiled("peek.c"), "peek");
    for form in here.forms() {
        let mut command = here.run(Some(form), "soft:lo", &program);
        let mut owner = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut reader = here.run(Some(form), "soft:lo", &program);
        let found = said(reader.args(line.split_whitespace()), "gcc");
        assert_eq!(found, "as the owner wrote it\n", "{form}");
        drop(owner.stdin.take());
        assert!(owner.wait().unwrap().success());
    }
}
