//! Sockets that count, processes with deadlines, and addresses that no other test uses.
//!
//! A stranger is an ordinary socket at an address of its own. It knows what it sent and what came
//! back. A third party never asked for anything: it counts what reaches it. Nothing here waits
//! longer than [`LONG`], and what ran out of time is named.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::command::command;
pub use crate::common::command::{LONG, Running, Server};
use crate::common::loopback::loopback;

/// Time after which what has not come is taken as not coming.
pub const QUIET: Duration = Duration::from_millis(400);

/// UDP port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// Maximum number of bytes that may leave for each byte that a stranger sent.
pub const AMPLIFICATION_MAX: u64 = 3;

/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Returns a loopback address of this run. Tests of this suite differ by `number`.
pub fn address(number: u16) -> Ipv4Addr {
    let [net, host] = number.to_be_bytes();
    assert!(host > 0 && host < 255, "{number} is no address");
    loopback(net, host)
}

/// Packets and bytes that passed a socket, without headers of UDP and TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// Asserts that at most [`AMPLIFICATION_MAX`] times the bytes and packets that came in left.
#[track_caller]
pub fn assert_not_amplified(sent: Count, answered: Count) {
    assert!(
        answered.bytes <= AMPLIFICATION_MAX * sent.bytes,
        "{} bytes for {}",
        answered.bytes,
        sent.bytes
    );
    assert!(
        answered.packets <= AMPLIFICATION_MAX * sent.packets,
        "{} packets for {}",
        answered.packets,
        sent.packets
    );
}

/// Waits until something is so; fails after [`LONG`] and names it.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        thread::sleep(PAUSE);
    }
}

/// Accepts a connection; fails after [`LONG`].
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStranger {
    listener.set_nonblocking(true).unwrap();
    let mut accepted = None;
    wait_until("a client connects", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    TcpStranger::from(stream)
}

/// A host that asked for nothing: counts the datagrams that reach its RoCE port.
#[derive(Debug)]
pub struct ThirdParty {
    pub address: Ipv4Addr,
    counted: Arc<(AtomicU64, AtomicU64)>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ThirdParty {
    pub fn new(number: u16) -> Self {
        let address = address(number);
        let socket = UdpSocket::bind((address, ROCE_PORT)).unwrap();
        socket.set_read_timeout(Some(PAUSE)).unwrap();
        let counted = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let stopped = Arc::new(AtomicBool::new(false));
        let (count, stop) = (Arc::clone(&counted), Arc::clone(&stopped));
        let thread = thread::spawn(move || {
            let mut packet = vec![0; 1 << 16];
            while !stop.load(Ordering::SeqCst) {
                if let Ok(bytes) = socket.recv(&mut packet) {
                    count.0.fetch_add(1, Ordering::SeqCst);
                    count.1.fetch_add(bytes as u64, Ordering::SeqCst);
                }
            }
        });
        Self { address, counted, stopped, thread: Some(thread) }
    }

    /// Returns what has reached it so far.
    pub fn received(&self) -> Count {
        let (packets, bytes) = &*self.counted;
        Count { packets: packets.load(Ordering::SeqCst), bytes: bytes.load(Ordering::SeqCst) }
    }

    /// Asserts that nothing has reached it, and that nothing comes for a while.
    #[track_caller]
    pub fn assert_untouched(&self) {
        thread::sleep(QUIET);
        assert_eq!(self.received(), Count::default(), "{} never asked for packets", self.address);
    }
}

impl Drop for ThirdParty {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A stranger with a UDP socket.
#[derive(Debug)]
pub struct UdpStranger {
    pub socket: UdpSocket,
    pub sent: Count,
    pub received: Count,
}

impl UdpStranger {
    /// Binds the RoCE port of an address, where answers go to.
    pub fn new(number: u16) -> Self {
        let socket = UdpSocket::bind((address(number), ROCE_PORT)).unwrap();
        Self { socket, sent: Count::default(), received: Count::default() }
    }

    pub fn send(&mut self, to: Ipv4Addr, packet: &[u8]) {
        self.socket.send_to(packet, (to, ROCE_PORT)).unwrap();
        self.sent.add(packet.len());
    }

    /// Returns the next packet, if one comes within a time.
    pub fn receive(&mut self, within: Duration) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut packet = vec![0; 1 << 16];
        let len = self.socket.recv(&mut packet).ok()?;
        packet.truncate(len);
        self.received.add(len);
        Some(packet)
    }

    /// Takes what comes until nothing has come for [`QUIET`].
    pub fn drain(&mut self) -> Count {
        while self.receive(QUIET).is_some() {}
        self.received
    }
}

/// A stranger with a TCP connection.
#[derive(Debug)]
pub struct TcpStranger {
    stream: BufReader<TcpStream>,
    pub sent: Count,
    pub received: Count,
}

impl TcpStranger {
    /// Connects from the address of its own that `number` names.
    pub fn connect(number: u16, to: SocketAddr) -> Self {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address(number), 0)).into()).unwrap();
        socket.connect_timeout(&to.into(), LONG).unwrap();
        Self::from(TcpStream::from(socket))
    }

    /// Sends as much as the peer takes. A peer that has closed is no failure of a stranger.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_ref().set_write_timeout(Some(LONG))?;
        self.stream.get_mut().write_all(bytes)?;
        self.sent.add(bytes.len());
        Ok(())
    }

    /// Returns the next line, without its end, or none if the peer has closed.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        self.stream.get_ref().set_read_timeout(Some(LONG)).unwrap();
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Err(error) if is_timeout(&error) => panic!("no line within {LONG:?}"),
            Ok(0) | Err(_) => None,
            Ok(bytes) => {
                self.received.add(bytes);
                Some(line.trim_end().to_owned())
            }
        }
    }

    /// Ends its own direction, and returns all that the peer still sends.
    #[track_caller]
    pub fn finish(&mut self) -> String {
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
        self.rest()
    }

    /// Returns all that the peer sends until it closes.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        self.stream.get_ref().set_read_timeout(Some(LONG)).unwrap();
        let mut rest = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            assert!(!is_timeout(&error), "the peer does not close within {LONG:?}");
        }
        self.received.add(rest.len());
        String::from_utf8_lossy(&rest).into_owned()
    }
}

impl From<TcpStream> for TcpStranger {
    fn from(stream: TcpStream) -> Self {
        let stream = BufReader::new(stream);
        Self { stream, sent: Count::default(), received: Count::default() }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Starts a command that runs until it is dropped, without a token, unless `env` has one.
pub fn spawn(args: &[&str], env: &[(&str, &str)]) -> Running {
    let mut command = command(args);
    Running::start(command.envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Starts `roce serve` on a free port of an address of this suite.
pub fn serve(number: u16, args: &[&str], env: &[(&str, &str)]) -> Server {
    Server::start(address(number), args, env)
}

/// Runs the command of `roce` to its end, without a token, unless `env` has one.
#[track_caller]
pub fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    command(args).envs(env.iter().copied()).deadline(LONG).output().unwrap()
}

/// Returns both outputs of a command as one text.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}
