//! Programs in C that do what the stock ones do not: many threads, forks, violent ends.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

mod common;

use common::compiled;
use common::process::Command;

/// Runs one of the programs with these devices.
fn run(name: &str, devices: &str) {
    let program = compiled(name);
    let mut command = common::stock(program.to_str().unwrap(), devices);
    let said = common::said(&mut command, "gcc");
    assert!(said.ends_with("fine\n"), "{said}");
}

/// Tests that run one of the programs with these devices.
macro_rules! programs {
    ($($(#[$meta:meta])* $test:ident: $program:literal, $devices:literal;)*) => {$(
        $(#[$meta])*
        #[test]
        fn $test() {
            run($program, $devices);
        }
    )*};
}

programs! {
    many_threads_share_queues_and_nothing_is_left_of_closed_devices:
        "threads.c", "udp:127.9.2.1 udp:127.9.2.2";
    children_do_not_disturb_their_parents_and_the_killed_leave_nothing:
        "forks.c", "udp:127.9.3.1 udp:127.9.3.2 udp:127.9.3.3 udp:127.9.3.4";
    extended_verbs_do_what_their_manual_says: "extended.c", "udp:127.9.4.1";
    verbs_answer_as_the_kernel_and_providers_do: "semantics.c", "udp:127.9.17.1";
    structures_that_were_destroyed_copied_or_changed_are_refused:
        "handles.c", "udp:127.9.18.1 udp:127.9.18.2";
    domains_and_queue_pairs_are_shared_by_those_who_open_them_again:
        "shared.c", "udp:127.9.5.1 udp:127.9.5.2";
    memory_that_is_gone_fails_requests_and_the_program_lives:
        "memory.c", "udp:127.9.7.1 udp:127.9.7.2";
    own_address_is_at_the_gid_indexes_that_programs_expect:
        "gids.c", "mlx5_0=udp:127.9.41.1 udp:127.9.41.2";
    signals_reach_threads_of_the_program_only: "signals.c", "udp:127.9.11.1";
    closed_device_leaves_no_descriptors_and_refuses_what_was_left_open:
        "close.c", "udp:127.9.12.1 udp:127.9.12.2";
    small_stacks_suffice_and_threads_can_be_canceled: "stacks.c", "udp:127.9.8.1 udp:127.9.8.2";
}

/// Each allocation of a program's life fails, by itself and together with all that follow: a verb
/// fails with an error number, or carries on; the program neither aborts nor hangs, and leaves no
/// descriptors behind.
#[test]
fn allocations_that_fail_are_errors_of_verbs() {
    let (program, scarce) = (compiled("life.c"), common::compiled_library("scarce.c"));
    let life = |variable: &str, value: usize| {
        let mut command = common::stock(program.to_str().unwrap(), "udp:127.9.19.1 udp:127.9.19.2");
        command.env("LD_PRELOAD", &scarce).env(variable, value.to_string());
        command.output().unwrap()
    };
    let counted = life("SCARCE_COUNT", 1);
    assert!(counted.status.success(), "{counted:?}");
    let count: usize = String::from_utf8_lossy(&counted.stderr).trim().parse().unwrap();
    assert!(count > 100, "{count}");
    let mut failures = 0;
    for (variable, step) in [("SCARCE_AT", 1), ("SCARCE_FROM", 7)] {
        for number in (1..=count).step_by(step) {
            let output = life(variable, number);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 3)), "{variable}={number}: {output:?}");
            failures += usize::from(code == Some(3));
        }
    }
    assert!(failures > 10, "{failures}");
}

/// Root can make a program setuid; without that, only the opposite can be tested here.
#[test]
fn setuid_program_ignores_the_environment_of_its_caller() {
    // Where another user can read, and programs may be setuid.
    let directory = std::env::temp_dir().join(format!("roce-secure-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("out")).unwrap();
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(&directory, 0o755);
    chmod(&directory.join("out"), 0o777);
    let library = directory.join("libibverbs.so.1");
    std::fs::copy(common::library().join("libibverbs.so.1"), &library).unwrap();
    let program = directory.join("secure");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/secure.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .arg(library);
    cc.arg(format!("-Wl,-rpath,{}", directory.display()));
    common::said(&mut cc, "gcc and libibverbs-dev");
    let (log, pcap) = (directory.join("out/log"), directory.join("out/pcap"));
    let run = |command: &mut Command| {
        command.env("ROCE_DEVICES", "udp:127.9.42.1 udp:203.0.113.77").env("ROCE_LOG", &log);
        common::said(command.env("ROCE_PCAP", &pcap).env("ROCE_FAULT", "loss=100%"), "util-linux")
    };
    assert_eq!(run(&mut Command::new(&program)), "secure 0 devices 2 open 1\n");
    assert!(pcap.exists());
    std::fs::remove_file(&pcap).unwrap();
    if std::fs::metadata(&program).unwrap().uid() == 0 {
        chmod(&program, 0o4755);
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        let said = run(&mut other);
        assert!(said.starts_with("secure 1 devices "), "{said}: is {directory:?} mounted nosuid?");
        assert!(!said.contains("devices 2 open") || !pcap.exists(), "{said}");
        assert!(!pcap.exists() && !log.exists(), "files of another user's choice were written");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
