//! `roce serve`: the other side of `roce bench` and of the pingpongs.

mod accept;
mod client;
mod listen;
mod nics;
mod offer;
mod probes;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::ensure;
use clap::Args as ClapArgs;
use roce::control::{Admission, Limits, Token};
use roce::device::Device;
use roce::verbs::Mtu;

use self::nics::Nics;
use crate::bench::control::admission::LIMITS;
use crate::bench::control::plan::{Connection, SECONDS_MAX};
use crate::bench::{ReachArgs, TokenArgs, parse_bytes, parse_mtu};
use crate::output::{counted, remark};
use crate::{device, interrupt};

/// Serve roce bench, roce ping and rdma-core pingpong programs
///
/// Waits on a TCP port for clients, and serves many at once. A client of roce bench says itself
/// what to measure. A client of the pingpongs (ibv_rc_pingpong, ibv_uc_pingpong,
/// ibv_ud_pingpong, on a real RNIC or any other) does not: --pingpong says of which kind they
/// are, and -m has to be theirs; any size and any number of messages will do.
///
/// It listens on the addresses of its NIC, or without -d on those of all interfaces, each with a
/// NIC of its own. A client gets traffic only at the address its TCP connection comes from, and
/// memory, queue pairs and time within limits: all clients of one address together get a quarter
/// of each. In a network where not every host may use it, set ROCE_TOKEN on both sides.
///
/// It answers the probes of roce ping; in a network where hosts know a token, it also probes
/// other servers for roce mesh.
///
/// Ctrl-C ends it.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: ReachArgs,

    /// Listen on this address only, or on several; :: is every address of IPv6 and IPv4 [default:
    /// those of the NIC].
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    listen: Vec<IpAddr>,

    #[command(flatten)]
    token: TokenArgs,

    /// Send to any GID that a client names, not only to the address its TCP connection comes from:
    /// a stranger can then direct traffic at others. With a token, clients that know it always may.
    #[arg(long)]
    any_gid: bool,

    /// The most clients at once.
    #[arg(long, value_name = "COUNT", default_value_t = LIMITS.clients)]
    max_clients: u64,

    /// The most memory of all clients together.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "512M")]
    max_memory: u64,

    /// The longest time that a client is served, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = LIMITS.seconds)]
    max_duration: u64,

    /// Transport service of pingpongs.
    #[arg(long, value_enum, value_name = "KIND", ignore_case = true, default_value_t)]
    pingpong: Connection,

    /// The payload of a packet of pingpongs; a client of roce bench says its own.
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu, default_value = "1024")]
    mtu: Mtu,

    /// Offer queue pairs and memory to clients that send packets of their own making (roce replay
    /// --to --host), under the same limits.
    #[arg(long)]
    offer: bool,

    /// Start the connection manager (rdma_cm) on the NIC, for clients that have it connect their
    /// queue pairs (roce bench -R).
    #[arg(short = 'R', long = "rdma-cm", alias = "rdma_cm")]
    rdma_cm: bool,

    /// End after the first client.
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  roce serve
  roce serve -d soft:eth0
  ROCE_TOKEN=$(cat token) roce serve -d soft:eth0
  roce serve -d raw:eth0 --pingpong ud
  roce serve -R                      (also for roce bench -R)
  roce serve -d verbs:mlx5_0         (a real RNIC; roce devices lists them)
  ibv_rc_pingpong -g 1 HOST          (a client on another host; HOST runs roce serve)";

/// Smallest limit of memory: with less, hardly a client of roce bench would be served.
const MEMORY_MIN: u64 = 1 << 20;

/// Settings of a server.
struct Settings {
    /// Whether it serves roce bench and the pingpongs.
    serves_bench: bool,
    /// Whether it offers queue pairs and memory.
    offers: bool,
    any_gid: bool,
    gid_index: Option<u8>,
    pingpong: Connection,
    mtu: Mtu,
    once: bool,
}

/// State that the threads of clients share.
struct Server {
    settings: Settings,
    token: Option<Token>,
    nics: Nics,
    admission: Arc<Admission>,
    served: AtomicU64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let token = args.token.get()?;
    let limits = limits(&args)?;
    let stopped: &AtomicBool = interrupt::catch()?;
    // A NIC that was named is there before a client needs it, or else the user is told now.
    let nics = Nics::new(&args.reach, args.rdma_cm)?;
    if let (Some(nic), index @ Some(_)) = (nics.named(), args.reach.gid_index) {
        device::choose_gid(index, nic, Ipv4Addr::UNSPECIFIED.into())?;
    }
    let listeners = listen::listen(&args.listen, nics.named(), args.reach.port)?;
    remark(&format!("serving with {} on {}", nics.name(), listen::describe(&listeners)?));
    let admission = Admission::new(limits);
    let Args { offer: offers, any_gid, pingpong, mtu, once, .. } = args;
    let gid_index = args.reach.gid_index;
    let serves_bench = true;
    let settings = Settings { serves_bench, offers, any_gid, gid_index, pingpong, mtu, once };
    let server = Server { settings, token, nics, admission, served: AtomicU64::new(0) };
    server.accept_until(&listeners, stopped)?;
    let served = server.served.load(Ordering::SeqCst);
    remark(&format!("served {}", counted(served, "client")));
    Ok(ExitCode::SUCCESS)
}

/// Settings of a server that offers queue pairs and memory, and nothing else.
pub(crate) struct OfferSettings {
    pub(crate) listen: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) any_gid: bool,
    pub(crate) gid_index: Option<u8>,
    pub(crate) token: Option<Token>,
}

/// Offers queue pairs and memory of a device that another command uses until the process ends.
/// Returns the addresses that it listens at, as text.
pub(crate) fn offer_in_background(
    device: Arc<dyn Device>,
    settings: OfferSettings,
) -> anyhow::Result<String> {
    static NEVER: AtomicBool = AtomicBool::new(false);
    let OfferSettings { listen, port, any_gid, gid_index, token } = settings;
    let nics = Nics::of(device);
    let listeners = listen::listen(listen.as_slice(), nics.named(), port)?;
    let at = listen::describe(&listeners)?;
    let settings = Settings {
        serves_bench: false,
        offers: true,
        any_gid,
        gid_index,
        pingpong: Connection::default(),
        mtu: Mtu::M1024,
        once: false,
    };
    let admission = Admission::new(LIMITS);
    let server = Server { settings, token, nics, admission, served: AtomicU64::new(0) };
    std::thread::Builder::new().name("roce-offer".to_owned()).spawn(move || {
        if let Err(error) = server.accept_until(&listeners, &NEVER) {
            remark(&format!("no more offers: {error:#}"));
        }
    })?;
    Ok(at)
}

fn limits(args: &Args) -> anyhow::Result<Limits> {
    let Args { max_clients, max_memory, max_duration, .. } = *args;
    ensure!((1..=1024).contains(&max_clients), "--max-clients: 1 to 1024");
    ensure!(
        max_memory >= MEMORY_MIN,
        "--max-memory: at least {}M, of which one address gets a quarter",
        MEMORY_MIN >> 20
    );
    ensure!(
        (1..=SECONDS_MAX).contains(&max_duration),
        "--max-duration: 1 to {SECONDS_MAX} seconds"
    );
    Ok(Limits { clients: max_clients, memory: max_memory, seconds: max_duration, ..LIMITS })
}
