//! `roce serve`: the other side of `roce bench`, and of the pingpongs.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use roce::verbs::{Device, Mtu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bench::pingpong::{self, MESSAGE_BYTES};
use crate::bench::{self, Connection, Control, Plan, ReachArgs, parse_mtu};
use crate::device::{self, Spec};

/// Be the other side of roce bench and of rdma-core's pingpongs
///
/// Waits on a TCP port for clients, and serves as many at once as come. What a client of
/// roce bench wants to measure, it says itself. A client of the pingpongs (ibv_rc_pingpong,
/// ibv_uc_pingpong, ibv_ud_pingpong, on a real RNIC or any other) does not: --pingpong says of
/// which kind they are, and -m has to be theirs; any size and any number of messages will do.
///
/// Ctrl-C ends it.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: ReachArgs,

    /// Of which kind pingpongs are.
    #[arg(long, value_enum, value_name = "KIND", ignore_case = true, default_value_t)]
    pingpong: Connection,

    /// The payload of a packet of pingpongs; a client of roce bench says its own.
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu, default_value = "1024")]
    mtu: Mtu,

    /// End after the first client.
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  roce serve
  roce serve -d soft:eth0
  roce serve -d raw:eth0 --pingpong ud
  roce serve -d verbs:mlx5_0         (a real RNIC; roce devices lists them)
  ibv_rc_pingpong -g 1 HOST          (a client on another host; HOST runs roce serve)";

/// The largest message of a pingpong.
const PINGPONG_BYTES: u32 = 1 << 20;

/// How many receives a pingpong has posted.
const PINGPONG_RECEIVES: u32 = 500;

/// How long nothing may come of a pingpong before it is over. Nobody says when it is.
const PINGPONG_PATIENCE: Duration = Duration::from_secs(5);

/// How many clients are served at once.
const CLIENTS_MAX: usize = 64;

/// How often to see whether it is time to end.
const ROUND: Duration = Duration::from_millis(100);

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    ctrlc::set_handler(move || stop.store(true, Ordering::SeqCst))
        .context("cannot wait for Ctrl-C")?;
    let listener = listen(args.reach.port)?;
    let nics = Nics::new(args.reach.device.clone());
    // A device that was named is there before anybody needs it, or else it is now that one is told.
    let name = match &args.reach.device {
        Some(spec) => nics.get(spec)?.name().to_owned(),
        None => "the address that clients connect to".to_owned(),
    };
    eprintln!("roce: serving with {name} on TCP port {}", listener.local_addr()?.port());
    let server = Server { args, nics, clients: AtomicUsize::new(0), served: AtomicU64::new(0) };
    server.accept_until(&listener, &stopped)?;
    let served = server.served.load(Ordering::SeqCst);
    eprintln!("roce: served {served} client{}", if served == 1 { "" } else { "s" });
    Ok(ExitCode::SUCCESS)
}

/// Listens on every address, of IPv6 and IPv4.
fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let any: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    let listener = TcpListener::bind(&any[..]);
    let listener = listener
        .with_context(|| format!("cannot listen on TCP port {port}; -p chooses another"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The NICs that clients were served with, by device.
struct Nics {
    named: Option<Spec>,
    started: Mutex<BTreeMap<String, Arc<dyn Device>>>,
}

impl Nics {
    fn new(named: Option<Spec>) -> Self {
        Self { named, started: Mutex::default() }
    }

    fn get(&self, spec: &Spec) -> anyhow::Result<Arc<dyn Device>> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nic) = started.get(&spec.to_string()) {
            return Ok(Arc::clone(nic));
        }
        let nic = device::start(spec)?;
        started.insert(spec.to_string(), Arc::clone(&nic));
        Ok(nic)
    }

    /// The NIC for a client.
    fn for_client(&self, stream: &TcpStream) -> anyhow::Result<Arc<dyn Device>> {
        self.get(&bench::device_for(self.named.as_ref(), stream)?)
    }
}

struct Server {
    args: Args,
    nics: Nics,
    clients: AtomicUsize,
    served: AtomicU64,
}

impl Server {
    /// Takes clients until it is stopped, and waits for those that are being served if it need not stop.
    fn accept_until(&self, listener: &TcpListener, stopped: &AtomicBool) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let done = || {
                let once = self.args.once && self.served.load(Ordering::SeqCst) > 0;
                once || stopped.load(Ordering::SeqCst)
            };
            while !done() {
                let free = self.clients.load(Ordering::SeqCst) < CLIENTS_MAX;
                if !free || !wait_readable(listener)? {
                    if !free {
                        thread::sleep(ROUND);
                    }
                    continue;
                }
                let (stream, address) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if is_passing(&error) => continue,
                    Err(error) => return Err(error).context("cannot accept clients"),
                };
                self.clients.fetch_add(1, Ordering::SeqCst);
                scope.spawn(move || self.serve(stream, address.ip().to_canonical()));
            }
            let busy = self.clients.load(Ordering::SeqCst);
            if busy > 0 && stopped.load(Ordering::SeqCst) {
                // They see the connection close.
                eprintln!("roce: stopped while serving {busy}");
                std::process::exit(0);
            }
            Ok(())
        })
    }

    /// Serves one client, and says what became of it.
    fn serve(&self, stream: TcpStream, address: IpAddr) {
        match self.try_serve(stream) {
            Ok(what) => eprintln!("roce: {address}: {what}"),
            Err(error) => eprintln!("roce: {address}: {error:#}"),
        }
        self.clients.fetch_sub(1, Ordering::SeqCst);
        self.served.fetch_add(1, Ordering::SeqCst);
    }

    fn try_serve(&self, mut stream: TcpStream) -> anyhow::Result<String> {
        // What an accepted socket inherits differs between systems.
        stream.set_nonblocking(false)?;
        pingpong::set_timeouts(&stream)?;
        let mut start = [0; 5];
        stream.read_exact(&mut start).context("the client said nothing")?;
        if pingpong::is_message(&start) {
            return self.play(stream, start);
        }
        if start != *b"roce-" {
            bail!(
                "neither roce bench nor a pingpong of rdma-core ('{}…'); perftest's own programs speak otherwise",
                start.escape_ascii()
            );
        }
        let chosen = self.nic_and_gid(&stream);
        let mut control = Control::new(stream, "the client")?.with_pending(&start);
        let (nic, gid_index) = chosen.inspect_err(|error| control.send_error(error))?;
        let plan = bench::server(&*nic, &mut control, gid_index)?;
        Ok(describe(&plan))
    }

    /// What a client is served with.
    fn nic_and_gid(&self, stream: &TcpStream) -> anyhow::Result<(Arc<dyn Device>, u8)> {
        let nic = self.nics.for_client(stream)?;
        let from = stream.local_addr()?.ip();
        let gid_index = device::choose_gid(self.args.reach.gid_index, &*nic, from)?;
        Ok((nic, gid_index))
    }

    fn play(&self, mut stream: TcpStream, start: [u8; 5]) -> anyhow::Result<String> {
        let mut message = [0; MESSAGE_BYTES];
        let (head, rest) = message.split_at_mut(start.len());
        head.copy_from_slice(&start);
        stream.read_exact(rest).context("the client's address is cut short")?;
        let (nic, gid_index) = self.nic_and_gid(&stream)?;
        let connection = self.args.pingpong;
        let options = pingpong::Options {
            connection,
            mtu: self.args.mtu,
            gid_index,
            size: PINGPONG_BYTES,
            rx_depth: PINGPONG_RECEIVES,
        };
        let played = pingpong::server(&*nic, &mut stream, &message, options, PINGPONG_PATIENCE)?;
        Ok(format!("{} pingpong, {} messages", connection.name(), played.rounds))
    }
}

/// What a client wanted, in a line.
fn describe(plan: &Plan) -> String {
    let (connection, op, metric) = (plan.connection.name(), plan.op.name(), plan.metric.name());
    format!("{connection} {op} {metric}, {} QP, MTU {}", plan.qps, plan.mtu)
}

/// Waits for a client, but not long.
fn wait_readable(listener: &TcpListener) -> io::Result<bool> {
    let fd = listener.as_fd();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let timeout = Timespec::try_from(ROUND).ok();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the next client may do better.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}
