//! The messages of the control connection, written and parsed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, bail, ensure};
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Gid, Psn, Qpn, RKey};

use super::lines::Control;
use super::plan::{Connection, Extent, Metric, Op, Plan, QPS_MAX, SIZES_MAX};

/// Maximum number of counters in a message.
const COUNTERS_MAX: usize = 256;

/// Maximum length of the name of a counter or of a kind of link.
const NAME_MAX: usize = 64;

/// Numbers, address and key by which one side is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Queue pairs.
    pub(crate) qps: Vec<Endpoint>,
    /// Start address of the memory.
    pub(crate) addr: u64,
    /// Remote key.
    pub(crate) rkey: RKey,
    /// The kind of its link: `udp`, `raw`, `verbs`.
    pub(crate) link: String,
}

impl Reach {
    /// The address of its queue pairs.
    pub(crate) fn address(&self) -> IpAddr {
        address_of(self.qps.first().map(|qp| qp.gid).unwrap_or_default())
    }
}

/// Returns the IP address that a GID stands for.
pub(crate) fn address_of(gid: Gid) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(gid.0)).to_canonical()
}

/// Returns what a client sends once it is welcome: the plan, and how it is reached.
pub(crate) fn hello(plan: &Plan, own: &Reach) -> String {
    let mut text = String::new();
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

/// Returns what a server answers: the MTU, which may be less than what was asked for, and how it is
/// reached.
pub(crate) fn answer(mtu: Mtu, own: &Reach) -> String {
    let mut text = format!("mtu {mtu}\n");
    write_reach(&mut text, own);
    text
}

fn write_reach(text: &mut String, reach: &Reach) {
    let _ = writeln!(text, "link {}", reach.link);
    let _ = writeln!(text, "memory {:#x} {:#x}", reach.addr, reach.rkey.get());
    for qp in &reach.qps {
        let (qpn, psn) = (qp.qpn.get(), qp.psn.get());
        let _ = writeln!(text, "qp {} {qpn:#x} {psn:#x}", qp.gid);
    }
    text.push_str("end\n");
}

/// Receives the plan of a client, and how the client is reached.
pub(crate) fn read_hello(control: &mut Control) -> anyhow::Result<(Plan, Reach)> {
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

/// Receives the answer of a server.
pub(crate) fn read_answer(control: &mut Control, plan: &Plan) -> anyhow::Result<(Mtu, Reach)> {
    let mtu = read_mtu(control)?;
    ensure!(mtu <= plan.mtu, "the server wants a larger MTU than this side can do");
    let reach = read_reach(control)?;
    let (count, wanted) = (reach.qps.len(), plan.qps);
    ensure!(count == wanted as usize, "the server has {count} queue pairs instead of {wanted}");
    Ok((mtu, reach))
}

pub(crate) fn read_mtu(control: &mut Control) -> anyhow::Result<Mtu> {
    let bytes = control.expect("mtu")?;
    Mtu::from_bytes(number(&bytes)?).with_context(|| format!("{bytes} is no MTU"))
}

fn read_reach(control: &mut Control) -> anyhow::Result<Reach> {
    let link = control.expect("link")?;
    ensure!(is_name(&link), "'{link}' is no kind of link");
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
    let one_address = qps.windows(2).all(|pair| matches!(pair, [a, b] if a.gid == b.gid));
    ensure!(one_address, "the queue pairs have several GIDs");
    Ok(Reach { qps, addr, rkey, link })
}

fn is_name(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    (1..=NAME_MAX).contains(&word.len()) && word.bytes().all(is_part)
}

pub(crate) fn endpoint(gid: &str, qpn: &str, psn: &str) -> anyhow::Result<Endpoint> {
    let gid: Ipv6Addr = gid.parse().with_context(|| format!("'{gid}' is no GID"))?;
    let (qpn, psn) = (hex24(qpn)?, hex24(psn)?);
    Ok(Endpoint { gid: Gid::from(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

pub(crate) fn find<T: Copy>(
    all: &[T],
    word: &str,
    name: fn(T) -> &'static str,
) -> anyhow::Result<T> {
    let found = all.iter().copied().find(|&one| name(one) == word);
    found.with_context(|| format!("there is no '{word}'"))
}

pub(crate) fn number<T: std::str::FromStr>(word: &str) -> anyhow::Result<T> {
    // What the standard library would take besides, such as a sign, is not part of the protocol.
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.parse().ok() } else { None };
    number.with_context(|| format!("'{word}' is no number, or too large"))
}

pub(crate) fn hex(word: &str) -> anyhow::Result<u64> {
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

/// A receiver's count of the sender's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Messages that arrived, if this side can tell: by completions, or by the NIC's counter of
    /// writes.
    pub(crate) received: Option<u64>,
    /// Messages, or memories, whose content is not what was sent.
    pub(crate) wrong: u64,
    /// Time from the start until the last message arrived; 0 if unknown.
    pub(crate) nanos: u64,
    /// Packets that the NIC received, if it counts them.
    pub(crate) packets: Option<u64>,
}

impl Seen {
    pub(crate) fn to_line(self) -> String {
        let known = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let (received, packets) = (known(self.received), known(self.packets));
        format!("result {received} {} {} {packets}\n", self.wrong, self.nanos)
    }

    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let words = control.expect("result")?;
        let [received, wrong, nanos, packets] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'result {words}' has not four numbers");
        };
        let known = |word: &str| if word == "-" { Ok(None) } else { number(word).map(Some) };
        Ok(Self {
            received: known(received)?,
            wrong: number(wrong)?,
            nanos: number(nanos)?,
            packets: known(packets)?,
        })
    }
}

/// Final message of a side that has sent everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Number of messages that it sent.
    pub(crate) messages: u64,
    /// Time that it took.
    pub(crate) nanos: u64,
    /// Peak rate in messages a second.
    pub(crate) peak: u64,
}

impl Done {
    pub(crate) fn to_line(self) -> String {
        format!("done {} {} {}\n", self.messages, self.nanos, self.peak)
    }

    fn parse(words: &str) -> anyhow::Result<Self> {
        let [messages, nanos, peak] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'done {words}' has not three numbers");
        };
        Ok(Self { messages: number(messages)?, nanos: number(nanos)?, peak: number(peak)? })
    }
}

/// A message of the peer while messages are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// Keep-alive.
    Alive,
    /// The peer wants this size to end now.
    Stop,
    /// The peer has sent everything.
    Done(Done),
}

impl PeerMessage {
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        match line.split_once(' ') {
            None if line == "alive" => Ok(Self::Alive),
            None if line == "stop" => Ok(Self::Stop),
            Some(("done", words)) => Ok(Self::Done(Done::parse(words)?)),
            _ => bail!("the other side sent '{line}' in the middle of a test"),
        }
    }
}

/// Counters by name.
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
            ["counter", name, count] if is_name(name) => {
                counters.push((name.to_owned(), number(count)?));
            }
            _ => bail!("'{line}' instead of a counter"),
        }
        ensure!(counters.len() <= COUNTERS_MAX, "more than {COUNTERS_MAX} counters");
    }
}
