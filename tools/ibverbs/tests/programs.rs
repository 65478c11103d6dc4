//! Programs in C that do what the stock ones do not: many threads, forks, violent ends.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

mod common;

use common::compiled;

/// Runs one of the programs with these devices.
fn run(name: &str, devices: &str) {
    let program = compiled(name);
    let mut command = common::stock(program.to_str().unwrap(), devices);
    let said = common::said(&mut command, "gcc");
    assert!(said.ends_with("fine\n"), "{said}");
}

#[test]
fn many_threads_share_queues_and_nothing_is_left_of_closed_devices() {
    run("threads.c", "udp:127.9.2.1 udp:127.9.2.2");
}

#[test]
fn children_do_not_disturb_their_parents_and_the_killed_leave_nothing() {
    run("forks.c", "udp:127.9.3.1 udp:127.9.3.2 udp:127.9.3.3 udp:127.9.3.4");
}

#[test]
fn extended_verbs_do_what_their_manual_says() {
    run("extended.c", "udp:127.9.4.1");
}

#[test]
fn verbs_answer_as_the_kernel_and_providers_do() {
    run("semantics.c", "udp:127.9.7.1");
}

#[test]
fn structures_that_were_destroyed_copied_or_changed_are_refused() {
    run("handles.c", "udp:127.9.8.1 udp:127.9.8.2");
}

#[test]
fn domains_and_queue_pairs_are_shared_by_those_who_open_them_again() {
    run("shared.c", "udp:127.9.5.1 udp:127.9.5.2");
}

#[test]
fn memory_that_is_gone_fails_requests_and_the_program_lives() {
    run("memory.c", "udp:127.9.7.1 udp:127.9.7.2");
}
