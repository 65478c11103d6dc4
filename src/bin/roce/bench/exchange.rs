//! What the two sides tell each other over TCP, apart from the traffic that is measured.
//!
//! Lines of text. The client begins with [`MAGIC`] and says what it wants and how its queue pairs are called, the
//! server answers with its own; both end with `end`. Then for every size both say `ready`, exchange messages, and say
//! `done` and `result`; in between, `alive` once a second. `error` and why may come at any time, and is the last line.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, Psn, Qpn, RKey};

use super::plan::{Connection, Extent, Metric, Op, Plan, QPS_MAX, SIZES_MAX};

/// The first line: the protocol and its version.
pub(crate) const MAGIC: &str = "roce-bench 1";

/// The longest line.
pub(crate) const LINE_MAX: usize = 512;

/// How long to wait for a line when the peer has nothing else to do.
pub(crate) const LINE_WAIT: Duration = Duration::from_secs(20);

/// How long to try to connect.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// How many counters a peer may tell of.
const COUNTERS_MAX: usize = 256;

/// The TCP connection between the two sides.
pub(crate) struct Control {
    stream: TcpStream,
    /// What came and was not a whole line yet, or not asked for yet.
    pending: Vec<u8>,
    /// What the other side is called in messages.
    peer: &'static str,
}

impl Control {
    pub(crate) fn new(stream: TcpStream, peer: &'static str) -> anyhow::Result<Self> {
        // Lines are short, and somebody waits for each.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LINE_WAIT))?;
        stream.set_write_timeout(Some(LINE_WAIT))?;
        Ok(Self { stream, pending: Vec::new(), peer })
    }

    /// The same, when some bytes were read already.
    pub(crate) fn with_pending(mut self, pending: &[u8]) -> Self {
        self.pending.extend_from_slice(pending);
        self
    }

    /// Sends lines, which end with a line feed.
    pub(crate) fn send(&mut self, lines: &str) -> anyhow::Result<()> {
        self.stream.write_all(lines.as_bytes()).with_context(|| format!("{} is gone", self.peer))
    }

    /// Waits for the next line that says something.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(line) = self.take_line()? {
                if line != "alive" {
                    return Ok(line);
                }
                continue;
            }
            self.read().with_context(|| format!("waiting for {}", self.peer))?;
        }
    }

    /// The next line if it is there; does not wait. Wants [`set_waiting`](Self::set_waiting)`(false)`.
    pub(crate) fn try_line(&mut self) -> anyhow::Result<Option<String>> {
        if let Some(line) = self.take_line()? {
            return Ok(Some(line));
        }
        match self.read() {
            Ok(()) => self.take_line(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).with_context(|| format!("listening to {}", self.peer)),
        }
    }

    /// Whether reading waits for something to come.
    pub(crate) fn set_waiting(&mut self, waiting: bool) -> anyhow::Result<()> {
        Ok(self.stream.set_nonblocking(!waiting)?)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => {
                self.pending.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take_line(&mut self) -> anyhow::Result<Option<String>> {
        let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') else {
            let len = self.pending.len();
            ensure!(len <= LINE_MAX, "{} sent a line of more than {LINE_MAX} bytes", self.peer);
            return Ok(None);
        };
        ensure!(end <= LINE_MAX, "{} sent a line of more than {LINE_MAX} bytes", self.peer);
        let line = self.pending.drain(..=end).take(end).collect();
        let line = String::from_utf8(line).ok().filter(|line| !line.contains(char::is_control));
        let line = line.with_context(|| format!("{} sent what is not text", self.peer))?;
        if let Some(why) = line.strip_prefix("error ") {
            bail!("{} says: {why}", self.peer);
        }
        Ok(Some(line))
    }

    /// Tells the peer why it must stop waiting. Whether it hears is not important.
    pub(crate) fn send_error(&mut self, error: &anyhow::Error) {
        let mut text = format!("error {error:#}").replace(char::is_control, " ");
        text.truncate(text.floor_char_boundary(LINE_MAX - 1));
        text.push('\n');
        let _ = self.stream.write_all(text.as_bytes());
    }

    /// Expects a line that begins with a word; returns the rest.
    pub(crate) fn expect(&mut self, word: &str) -> anyhow::Result<String> {
        let line = self.line()?;
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        ensure!(first == word, "{} said '{first}' instead of '{word}'", self.peer);
        Ok(rest.to_owned())
    }
}

/// Connects to a server.
pub(crate) fn connect(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let addresses = (host, port).to_socket_addrs();
    let addresses: Vec<SocketAddr> =
        addresses.with_context(|| format!("cannot find '{host}'"))?.collect();
    let mut failure = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = Some(error),
        }
    }
    let error = failure.with_context(|| format!("'{host}' has no address"))?;
    Err(error).with_context(|| {
        format!("cannot connect to {host} port {port}; is a server (roce serve) running there?")
    })
}

/// How one side is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Its queue pairs.
    pub(crate) qps: Vec<Endpoint>,
    /// Where its memory begins.
    pub(crate) addr: u64,
    /// The key to it.
    pub(crate) rkey: RKey,
}

/// What a client opens with: what it wants, and how it is reached.
pub(crate) fn hello(plan: &Plan, own: &Reach) -> String {
    let mut text = format!("{MAGIC}\n");
    let (op, metric) = (plan.op.name(), plan.metric.name());
    let _ = writeln!(text, "test {op} {metric} {}", plan.connection.name());
    let sizes: Vec<String> = plan.sizes.iter().map(u32::to_string).collect();
    let _ = writeln!(text, "sizes {}", sizes.join(" "));
    let _ = match plan.extent {
        Extent::Iterations(count) => writeln!(text, "iterations {count}"),
        Extent::Seconds(seconds) => writeln!(text, "seconds {seconds}"),
    };
    let _ = writeln!(text, "mtu {}", plan.mtu);
    let _ = writeln!(text, "tx-depth {}", plan.tx_depth);
    let _ = writeln!(text, "bidirectional {}", plan.bidirectional);
    let _ = writeln!(text, "verify {}", plan.verify);
    write_reach(&mut text, own);
    text
}

/// What a server answers: the MTU, which may be less than what was asked for, and how it is reached.
pub(crate) fn answer(mtu: Mtu, own: &Reach) -> String {
    let mut text = format!("{MAGIC}\nmtu {mtu}\n");
    write_reach(&mut text, own);
    text
}

fn write_reach(text: &mut String, reach: &Reach) {
    let _ = writeln!(text, "memory {:#x} {:#x}", reach.addr, reach.rkey.get());
    for qp in &reach.qps {
        let (qpn, psn) = (qp.qpn.get(), qp.psn.get());
        let _ = writeln!(text, "qp {} {qpn:#x} {psn:#x}", qp.gid);
    }
    text.push_str("end\n");
}

/// Reads what a client opens with.
pub(crate) fn read_hello(control: &mut Control) -> anyhow::Result<(Plan, Reach)> {
    read_magic(control)?;
    let words = control.expect("test")?;
    let [op, metric, connection] = words.split(' ').collect::<Vec<_>>()[..] else {
        bail!("'test {words}' names no test");
    };
    let op = find(&Op::ALL, op, Op::name)?;
    let metric = find(&Metric::ALL, metric, Metric::name)?;
    let connection = find(&Connection::ALL, connection, Connection::name)?;
    let sizes = control.expect("sizes")?;
    ensure!(sizes.split(' ').count() <= SIZES_MAX, "more than {SIZES_MAX} sizes");
    let sizes = sizes.split(' ').map(number).collect::<anyhow::Result<_>>()?;
    let line = control.line()?;
    let extent = match line.split_once(' ') {
        Some(("iterations", count)) => Extent::Iterations(number(count)?),
        Some(("seconds", seconds)) => Extent::Seconds(number(seconds)?),
        _ => bail!("'{line}' instead of how long it takes"),
    };
    let mtu = read_mtu(control)?;
    let tx_depth = number(&control.expect("tx-depth")?)?;
    let bidirectional = truth(&control.expect("bidirectional")?)?;
    let verify = truth(&control.expect("verify")?)?;
    let reach = read_reach(control)?;
    let qps = u32::try_from(reach.qps.len())?;
    let plan =
        Plan { op, metric, connection, sizes, extent, qps, mtu, tx_depth, bidirectional, verify };
    plan.check()?;
    Ok((plan, reach))
}

/// Reads what a server answers.
pub(crate) fn read_answer(control: &mut Control, plan: &Plan) -> anyhow::Result<(Mtu, Reach)> {
    read_magic(control)?;
    let mtu = read_mtu(control)?;
    ensure!(mtu <= plan.mtu, "the server wants a larger MTU than this side can do");
    let reach = read_reach(control)?;
    let (count, wanted) = (reach.qps.len(), plan.qps);
    ensure!(count == wanted as usize, "the server has {count} queue pairs instead of {wanted}");
    Ok((mtu, reach))
}

fn read_magic(control: &mut Control) -> anyhow::Result<()> {
    let line = control.line()?;
    ensure!(
        line == MAGIC,
        "the other side speaks '{line}' instead of '{MAGIC}'; use the same version of roce there"
    );
    Ok(())
}

fn read_mtu(control: &mut Control) -> anyhow::Result<Mtu> {
    let bytes = control.expect("mtu")?;
    Mtu::from_bytes(number(&bytes)?).with_context(|| format!("{bytes} is no MTU"))
}

fn read_reach(control: &mut Control) -> anyhow::Result<Reach> {
    let words = control.expect("memory")?;
    let (addr, rkey) = words.split_once(' ').context("'memory' without a key")?;
    let addr = hex(addr)?;
    let rkey = RKey::new(u32::try_from(hex(rkey)?)?);
    let mut qps = Vec::new();
    loop {
        let line = control.line()?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["end"] => break,
            ["qp", gid, qpn, psn] => qps.push(endpoint(gid, qpn, psn)?),
            _ => bail!("'{line}' instead of a queue pair"),
        }
        ensure!(qps.len() <= QPS_MAX as usize, "more than {QPS_MAX} queue pairs");
    }
    Ok(Reach { qps, addr, rkey })
}

fn endpoint(gid: &str, qpn: &str, psn: &str) -> anyhow::Result<Endpoint> {
    let gid: std::net::Ipv6Addr = gid.parse().with_context(|| format!("'{gid}' is no GID"))?;
    let (qpn, psn) = (hex24(qpn)?, hex24(psn)?);
    Ok(Endpoint { gid: Gid::from(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

fn find<T: Copy>(all: &[T], word: &str, name: fn(T) -> &'static str) -> anyhow::Result<T> {
    let found = all.iter().copied().find(|&one| name(one) == word);
    found.with_context(|| format!("there is no '{word}'"))
}

fn number<T: std::str::FromStr>(word: &str) -> anyhow::Result<T> {
    // What the standard library would take besides, such as a sign, is not part of the protocol.
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.parse().ok() } else { None };
    number.with_context(|| format!("'{word}' is no number, or too large"))
}

fn hex(word: &str) -> anyhow::Result<u64> {
    let digits = word.strip_prefix("0x").unwrap_or_default();
    let sound = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = if sound { u64::from_str_radix(digits, 16).ok() } else { None };
    number.with_context(|| format!("'{word}' is no hexadecimal number"))
}

/// A hexadecimal number of 24 bits.
pub(crate) fn hex24(word: &str) -> anyhow::Result<u32> {
    let number = u32::try_from(hex(word)?).ok().filter(|&number| number < 1 << 24);
    number.with_context(|| format!("'{word}' has more than 24 bits"))
}

fn truth(word: &str) -> anyhow::Result<bool> {
    word.parse().ok().with_context(|| format!("'{word}' is neither true nor false"))
}

/// What a side saw of the messages of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Messages that were received, if the operation tells.
    pub(crate) received: u64,
    /// Messages, or memories, that did not hold what they should.
    pub(crate) wrong: u64,
}

impl Seen {
    pub(crate) fn to_line(self) -> String {
        format!("result {} {}\n", self.received, self.wrong)
    }

    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let words = control.expect("result")?;
        let (received, wrong) = words.split_once(' ').context("'result' lacks a number")?;
        Ok(Self { received: number(received)?, wrong: number(wrong)? })
    }
}

/// What a side says when it has sent everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// How many messages it sent.
    pub(crate) messages: u64,
    /// How long that took.
    pub(crate) nanos: u64,
    /// How many it sent a second when it was fastest.
    pub(crate) peak: u64,
}

impl Done {
    pub(crate) fn to_line(self) -> String {
        format!("done {} {} {}\n", self.messages, self.nanos, self.peak)
    }

    /// What a line says, if it is that.
    pub(crate) fn parse(line: &str) -> anyhow::Result<Option<Self>> {
        let Some(words) = line.strip_prefix("done ") else { return Ok(None) };
        let [messages, nanos, peak] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'{line}' has not three numbers");
        };
        let done = Self { messages: number(messages)?, nanos: number(nanos)?, peak: number(peak)? };
        Ok(Some(done))
    }
}

/// What is counted, by name.
pub(crate) type Counted = Vec<(String, u64)>;

pub(crate) fn send_counters(control: &mut Control, counters: &Counted) -> anyhow::Result<()> {
    let mut text = String::new();
    for (name, count) in counters {
        let _ = writeln!(text, "counter {name} {count}");
    }
    text.push_str("end\n");
    control.send(&text)
}

pub(crate) fn read_counters(control: &mut Control) -> anyhow::Result<Counted> {
    let mut counters = Vec::new();
    loop {
        let line = control.line()?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["end"] => return Ok(counters),
            ["counter", name, count] => counters.push((name.to_owned(), number(count)?)),
            _ => bail!("'{line}' instead of a counter"),
        }
        ensure!(counters.len() <= COUNTERS_MAX, "more than {COUNTERS_MAX} counters");
    }
}
