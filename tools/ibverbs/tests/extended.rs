//! Extended verbs that rdma-core's own tests leave out, called from C as a program would.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use std::path::Path;
use std::process::Command;

mod common;

#[test]
fn extended_verbs_do_what_their_manual_says() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extended");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-O1", "-o"]).arg(&program);
    cc.arg(here.join("tests/extended.c"));
    // The header is rdma-core's, the library is not.
    cc.arg(common::library().join("libibverbs.so.1"));
    common::said(&mut cc, "gcc and libibverbs-dev");
    common::said(&mut common::stock(program.to_str().unwrap(), "udp:127.0.0.77"), "");
}
