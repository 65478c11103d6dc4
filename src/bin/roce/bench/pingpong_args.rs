//! Arguments of `roce bench pingpong`.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use roce::verbs::Mtu;

use super::args::{AnyGidArgs, ReachArgs, parse_mtu, parse_size};
use super::control::plan::Connection;
use super::pingpong::{self, Options};
use super::reach;
use crate::output;

/// Play pingpong with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong
///
/// The other side may be one of these programs, started without a host and with -g, or
/// roce serve. They do not tell each other what they are going to do: -c, -s, -m and -n have to
/// be the same on both sides (roce serve takes any -s and -n).
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct PingpongArgs {
    /// Host of the other side.
    #[arg(value_name = "HOST")]
    host: String,

    #[command(flatten)]
    reach: ReachArgs,

    #[command(flatten)]
    any_gid: AnyGidArgs,

    /// The kind of the queue pairs.
    #[arg(short = 'c', long, value_enum, value_name = "KIND", ignore_case = true, default_value_t)]
    connection: Connection,

    /// The bytes of a message, 0 to 8M; k and M are 2^10 and 2^20 [default: 4096, of UD 2048 or the
    /// MTU if that is less].
    #[arg(short = 's', long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u32>,

    /// The payload of a packet.
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu, default_value = "1024")]
    mtu: Mtu,

    /// Number of receives to post, 1 to 4096.
    #[arg(short = 'r', long, value_name = "COUNT", default_value_t = 500)]
    rx_depth: u32,

    /// Number of messages.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000)]
    iters: u64,
}

pub(crate) fn run(args: &PingpongArgs) -> anyhow::Result<ExitCode> {
    // Stock pingpongs listen on IPv4 alone, also if their GIDs are of IPv6.
    let reach::Reached { nic, stream, gid_index } =
        reach::reach(&args.host, &args.reach, reach::Family::Any)?;
    let default = match args.connection {
        Connection::Rc | Connection::Uc => 4096,
        Connection::Ud => u32::try_from(nic.query_port()?.active_mtu.bytes())?.min(2048),
    };
    let options = Options {
        connection: args.connection,
        mtu: args.mtu,
        gid_index,
        size: args.size.unwrap_or(default),
        rx_depth: args.rx_depth,
    };
    let played = pingpong::client(&nic.into(), stream, options, args.iters, args.any_gid.any_gid)?;
    let mut out = output::stdout();
    writeln!(out, "  local address:  {}", pingpong::describe(&played.own))?;
    writeln!(out, "  remote address: {}", pingpong::describe(&played.peer))?;
    out.write_all(pingpong::result(&played, options.size).as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
