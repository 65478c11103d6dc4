//! Stage of the demo: two NICs on loopback, a tap that captures, and the steps of a scene.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use roce::capture::Reader;
use roce::decode::{Decoder, LineStyle, TimeStyle};
use roce::device::{AnyQp, Context, Cq, Device, Mr, Pd};
use roce::engine::Counter;
use roce::link::tap::{self, TapHandle};
use roce::link::{Link, OpenError, udp};
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::verbs::{Access, AckTimeout, Connect, Mtu, QpType, RecvWr, RetryCount, SendWr, Sge, Wc};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Frame, LinkType, Network, ROCE_PORT};

use super::print;

/// Time after which the demo gives up waiting for a completion.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Access rights that each side registers: every right that a peer can have.
pub(super) const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

/// Two NICs on loopback, and a capture of their packets.
pub(super) struct Stage {
    pub(super) a: Side,
    pub(super) b: Side,
    tap: TapHandle,
    wire: Sink,
}

/// A NIC with a protection domain, a completion queue and memory.
pub(super) struct Side {
    pub(super) name: char,
    pub(super) address: Ipv4Addr,
    pub(super) nic: Arc<SoftNic>,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) mr: Mr,
}

/// A capture in memory, to which a tap writes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stage {
    /// Opens two NICs on loopback, with a tap at the first.
    pub(super) fn open() -> Result<Self> {
        let [(a, left), (b, right)] = open_links()?;
        let wire = Sink::default();
        #[expect(clippy::disallowed_methods, reason = "a capture tells the time of day")]
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = Instant::ZERO.saturating_add(epoch);
        let (left, tap) = tap::tap_with_handle(left, wire.clone(), epoch)?;
        Ok(Self { tap, a: Side::new('A', a, left)?, b: Side::new('B', b, right)?, wire })
    }

    /// Ends the capture, and returns it as a pcapng.
    pub(super) fn capture(&self) -> Vec<u8> {
        self.tap.close();
        self.wire.bytes()
    }

    /// Begins a scene, which shows no packets of earlier scenes.
    pub(super) fn play<'s>(&'s self, out: &'s mut dyn Write) -> Result<Play<'s>> {
        Ok(Play { stage: self, seen: count(&self.wire.bytes())?, out })
    }
}

/// Opens two NICs on loopback without a tap.
pub(super) fn open_untapped() -> Result<(Side, Side)> {
    let [(a, left), (b, right)] = open_links()?;
    Ok((Side::new('A', a, left)?, Side::new('B', b, right)?))
}

/// Opens links on two loopback addresses that nothing else uses.
fn open_links() -> Result<[(Ipv4Addr, Link); 2]> {
    // All of 127.0.0.0/8 is this machine; another demo may have the first pair.
    let spare = u32::from(Ipv4Addr::new(127, 64, 0, 0)) | std::process::id() << 1;
    let pairs = [
        [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)],
        [spare, spare | 1].map(Ipv4Addr::from),
    ];
    let mut last = None;
    for [a, b] in pairs {
        match (open(a), open(b)) {
            (Ok(left), Ok(right)) => return Ok([(a, left), (b, right)]),
            (Err(error), _) | (_, Err(error)) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("there is no loopback interface"), Into::into))
}

fn open(address: Ipv4Addr) -> Result<Link, OpenError> {
    let mut options = udp::Options::new(IpAddr::V4(address));
    // Packets go through sockets, as on a network: `--queues` counts system calls.
    options.uses_shared_memory = false;
    udp::open(&options)
}

/// Returns the number of packets of a capture.
fn count(capture: &[u8]) -> Result<usize> {
    let mut reader = Reader::new(capture)?;
    let mut count = 0;
    while reader.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

impl Side {
    fn new(name: char, address: Ipv4Addr, link: Link) -> Result<Self> {
        let nic = Arc::new(SoftNic::start(link)?);
        let context = Context::from(Arc::clone(&nic));
        let (pd, cq) = (context.create_pd()?, context.create_cq(256)?);
        let mr = pd.allocate(16 * 1024, ALL)?;
        Ok(Self { name, address, nic, pd, cq, mr })
    }

    /// Creates a queue pair that signals every send.
    pub(super) fn qp(&self, qp_type: QpType) -> Result<AnyQp> {
        Ok(self.pd.qp(&self.cq).signal_all().build_any(qp_type)?)
    }

    /// Returns a gather or scatter entry for a piece of the side's memory.
    pub(super) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.mr.sge(offset, len)
    }
}

/// A scene that is being played.
pub(super) struct Play<'s> {
    pub(super) stage: &'s Stage,
    /// Number of packets of the capture that were shown, or belong to earlier scenes.
    seen: usize,
    out: &'s mut dyn Write,
}

/// Returns the attributes by which the demo's queue pairs are connected: small packets, so that
/// messages have several.
pub(super) fn connect_attr() -> Connect {
    Connect::default().mtu(Mtu::M1024).access(ALL).min_rnr_timer(RnrTimer(Bits::low(18)))
}

/// Returns [`connect_attr`] with short timeouts: three retransmissions, four milliseconds apart.
pub(super) fn short_timeouts() -> Connect {
    let (timeout, retry_cnt) = (AckTimeout(Bits::low(10)), RetryCount(Bits::low(3)));
    connect_attr().timeout(timeout).retry_cnt(retry_cnt)
}

impl<'s> Play<'s> {
    pub(super) fn a(&self) -> &'s Side {
        &self.stage.a
    }

    pub(super) fn b(&self) -> &'s Side {
        &self.stage.b
    }

    /// Creates a queue pair at each side, and connects the two.
    pub(super) fn connect(&self, kind: QpType) -> Result<(AnyQp, AnyQp)> {
        let (a_qp, b_qp) = (self.a().qp(kind)?, self.b().qp(kind)?);
        a_qp.connect(&b_qp.endpoint()?, &connect_attr())?;
        b_qp.connect(&a_qp.endpoint()?, &connect_attr())?;
        Ok((a_qp, b_qp))
    }

    /// Prints a line of text.
    pub(super) fn say(&mut self, text: &str) -> Result<()> {
        self.show_packets()?;
        Ok(writeln!(self.out, "  {text}")?)
    }

    /// Posts a send, and shows it.
    pub(super) fn send(&mut self, side: &Side, qp: &AnyQp, wr: &SendWr<'_>) -> Result<()> {
        print::send(side.name, wr, self.out)?;
        Ok(qp.post_send(wr)?)
    }

    /// Posts a receive, and shows it.
    pub(super) fn recv(&mut self, side: &Side, qp: &AnyQp, wr: &RecvWr<'_>) -> Result<()> {
        print::recv(side.name, wr, self.out)?;
        Ok(qp.post_recv(wr)?)
    }

    /// Waits for `count` completions at a side, all of which must be successful.
    pub(super) fn complete(&mut self, side: &Side, count: usize) -> Result<()> {
        for wc in self.outcome(side, count)? {
            anyhow::ensure!(
                wc.is_success(),
                "{}: work request {}: {}",
                side.name,
                wc.id.0,
                wc.status
            );
        }
        Ok(())
    }

    /// Waits for `count` completions at a side, and shows them after the packets that led to them.
    pub(super) fn outcome(&mut self, side: &Side, count: usize) -> Result<Vec<Wc>> {
        let mut completions = Vec::new();
        #[expect(clippy::disallowed_methods, reason = "a person waits")]
        let start = std::time::Instant::now();
        while completions.len() < count {
            let mut wcs = [Wc::default(); 16];
            let got = side.cq.poll_wcs(&mut wcs);
            completions.extend_from_slice(&wcs[..got]);
            if let Some(error) = side.nic.broken() {
                return Err(error.into());
            }
            if start.elapsed() > STEP_TIMEOUT {
                bail!(
                    "{}: {} of {count} completions did not arrive",
                    side.name,
                    count - completions.len()
                );
            }
            if got == 0 {
                std::thread::yield_now();
            }
        }
        self.show_packets()?;
        for wc in &completions {
            print::completion(side.name, wc, self.out)?;
        }
        Ok(completions)
    }

    /// Waits until a counter of a side differs from `before`.
    pub(super) fn until(&mut self, side: &Side, counter: Counter, before: u64) -> Result<()> {
        #[expect(clippy::disallowed_methods, reason = "a person waits")]
        let start = std::time::Instant::now();
        while side.nic.counters().get(counter) == before {
            anyhow::ensure!(
                start.elapsed() < STEP_TIMEOUT,
                "{}: the counter {counter:?} did not change",
                side.name
            );
            std::thread::sleep(Duration::from_micros(100));
        }
        self.show_packets()
    }

    /// Waits for an asynchronous event of a side, and shows it.
    pub(super) fn events(&mut self, side: &Side) -> Result<()> {
        let event = side
            .nic
            .async_events()
            .wait(Some(STEP_TIMEOUT))?
            .context("no asynchronous event arrived")?;
        Ok(writeln!(self.out, "{} event  {}", side.name, event.event())?)
    }

    /// Shows the packets that were captured since the last call.
    fn show_packets(&mut self) -> Result<()> {
        let capture = self.stage.wire.bytes();
        let mut reader = Reader::new(&capture[..])?;
        let mut decoder = Decoder::new(ROCE_PORT);
        let style = LineStyle { time: TimeStyle::None, ..LineStyle::default() };
        let mut at = 0;
        while let Some(record) = reader.next()? {
            let context = decoder.decode(&record);
            at += 1;
            if at <= self.seen {
                continue;
            }
            let frame = Frame::parse(LinkType::RAW, record.data, ROCE_PORT);
            let from_a = matches!(frame.network(), Some(Network::Ipv4 { header, .. })
                if header.source() == self.stage.a.address);
            let mut line = String::new();
            style.write(&context, &mut line);
            print::packet(from_a, &line, self.out)?;
        }
        self.seen = at;
        Ok(())
    }

    /// Ends a scene, and shows its last packets.
    pub(super) fn end(mut self) -> Result<()> {
        std::thread::sleep(Duration::from_millis(1));
        self.show_packets()
    }
}
