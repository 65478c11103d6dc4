//! `roce` without arguments: four things to try, instead of a page of usage.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;

use crate::output;

const TEXT: &str = "\
roce: RDMA over Converged Ethernet without a network card

  roce demo                       see every RDMA operation, packet by packet
  roce run -- ib_write_bw         run a verbs program as it is, on a soft NIC
  roce flows capture.pcapng       find out what went wrong in a capture
  roce doctor                     check what this machine can do

`roce --help` lists all commands, `roce help COMMAND` explains one.
";

pub(crate) fn print() -> Result<ExitCode> {
    let mut out = output::stdout();
    out.write_all(TEXT.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
