//! The other side, on another machine.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result};
use roce::conform::control;

use super::{ServeArgs, agent};

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let agent = agent(&args.device, args.gid_index, args.wire.as_ref())?;
    let port = args.port;
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    let listener = TcpListener::bind(&any[..])
        .with_context(|| format!("cannot listen on TCP port {port}; -p chooses another"))?;
    let port = listener.local_addr()?.port();
    eprintln!("roce: playing with {} on TCP port {port}", agent.device.name());
    loop {
        let (stream, client) = listener.accept().context("cannot accept clients")?;
        let client = client.ip().to_canonical();
        // One after the other: scenarios make appointments with the packets of the whole device.
        let played =
            control::over(stream).map_err(Into::into).and_then(|mut line| agent.serve(&mut *line));
        match played {
            Ok(played) => eprintln!("roce: {client}: played {played} scenarios"),
            Err(error) => eprintln!("roce: {client}: {error}"),
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
