//! A tap: writes all packets of a link into a capture.
//!
//! Packets are written from the IP header to the ICRC, as they were on the wire: a link has sealed
//! what it sent, and knows the headers of what it received. The one thing that a tap cannot see is
//! the identification in the IPv4 header of a packet that was sent, which its link chose. The ICRC
//! covers it, so it is solved for. UDP checksums, which no ICRC covers, are written as 0. What the
//! link refused is not seen.
//!
//! The order of a capture is the order of time, and a packet stands before its answer: the packets
//! that arrive while the link sends are held until those that were sent are written, because what a
//! packet was sealed with is known only then.
//!
//! A tap around [`fault`](super::fault) would see what is lost later and not what is corrupted: it
//! belongs inside. What the injector drops, it can write by a [`TapHandle`], with a comment.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::time::Duration;

use super::{Link, Receiver, Sender, forward_to_receiver};
use crate::capture::{Direction, InterfaceId, LinkType, PcapngWriter, WriteError};
use crate::time::Instant;
use crate::wire::icrc::Identification;
use crate::wire::{
    Batch, Bth, ICRC_ROOM, Path, ROCE_PORT, Received, Udp, UdpRepr, flip_icrc, icrc, view,
};

/// A link that writes what passes it into `sink`, as a pcapng. `epoch` is the time of day at which
/// the link's own time is zero.
///
/// Each packet is one write, so that a reader finds whole ones at any time, even after a crash; a
/// [`BufWriter`](std::io::BufWriter) makes fewer of them. When both halves and all handles are
/// dropped, the capture is closed ([`PcapngWriter::closing`]) and flushed.
pub fn tap(
    link: Link,
    sink: impl Write + Send + 'static,
    epoch: Instant,
) -> Result<Link, WriteError> {
    Ok(tap_with_handle(link, sink, epoch)?.0)
}

/// A link with a [`tap`], and a handle of its capture.
pub fn tap_with_handle(
    link: Link,
    sink: impl Write + Send + 'static,
    epoch: Instant,
) -> Result<(Link, TapHandle), WriteError> {
    let mut writer = PcapngWriter::closing(Vec::new())?;
    let interface = writer.add_interface(LinkType::RAW, &link.port.name)?;
    let (last, sending, held) = (Instant::ZERO, false, Vec::new());
    let counts = Counts::default();
    let (on_failure, is_closed) = (None, false);
    let mut tap =
        Tap { sink, writer, interface, epoch, last, sending, held, counts, on_failure, is_closed };
    tap.pass_on()?;
    let shared = Arc::new(Mutex::new(tap));
    let mut inner = link.sender;
    inner.seal_all();
    let sender = TapSender { inner, tap: Arc::clone(&shared) };
    let receiver = TapReceiver { inner: link.receiver, tap: Arc::clone(&shared) };
    let link = Link { sender: Box::new(sender), receiver: Box::new(receiver), ..link };
    Ok((link, TapHandle(shared)))
}

/// The capture of a tap: takes packets that never reach its link, tells when it fails, and closes
/// it.
#[derive(Clone)]
pub struct TapHandle(Arc<Mutex<dyn Capture + Send>>);

/// Told why a capture cannot be written.
type OnFailure = Box<dyn FnOnce(&io::Error) + Send>;

impl TapHandle {
    /// Has the first error of the capture told to a function. Nothing is written behind that error:
    /// it may have cut a packet. The link goes on.
    pub fn on_failure(&self, tell: impl FnOnce(&io::Error) + Send + 'static) {
        lock(&self.0).on_failure(Box::new(tell));
    }

    /// Closes the capture, unless it failed. Packets that pass later are not written.
    pub fn close(&self) {
        lock(&self.0).close();
    }

    /// Closes the capture like [`close`](Self::close), unless another thread is writing to it.
    /// Returns whether it did.
    pub fn try_close(&self) -> bool {
        match self.0.try_lock() {
            Ok(mut capture) => capture.close(),
            Err(TryLockError::Poisoned(capture)) => capture.into_inner().close(),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// Returns a handle that does not keep the capture open.
    pub fn downgrade(&self) -> WeakTapHandle {
        WeakTapHandle(Arc::downgrade(&self.0))
    }

    /// Writes a packet that was dropped before it was sent, as it would have been sealed: from its
    /// BTH to its last pad byte.
    pub fn write_dropped(&self, now: Instant, path: &Path, packet: &[u8], comment: &str) {
        if packet.len() < Bth::LEN {
            return;
        }
        let mut sealed = [packet, &[0; ICRC_ROOM]].concat();
        let headers = path.seal(&mut sealed);
        let (ip, udp) = headers.as_bytes();
        lock(&self.0).write_dropped(now, &[ip, udp, &sealed].concat(), comment);
    }
}

impl std::fmt::Debug for TapHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapHandle").finish_non_exhaustive()
    }
}

/// A [`TapHandle`] of a capture that ends with its link.
#[derive(Clone)]
pub struct WeakTapHandle(Weak<Mutex<dyn Capture + Send>>);

impl WeakTapHandle {
    /// Returns the handle, if the capture is still open.
    pub fn upgrade(&self) -> Option<TapHandle> {
        self.0.upgrade().map(TapHandle)
    }
}

impl std::fmt::Debug for WeakTapHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakTapHandle").finish_non_exhaustive()
    }
}

/// A tap, whatever it writes into.
trait Capture {
    fn write_dropped(&mut self, now: Instant, frame: &[u8], comment: &str);
    fn on_failure(&mut self, tell: OnFailure);
    fn close(&mut self);
}

impl<W: Write> Capture for Tap<W> {
    fn write_dropped(&mut self, now: Instant, frame: &[u8], comment: &str) {
        let (time, interface) = (self.time_of(now), self.interface);
        let done = self.write_with(|writer| {
            writer.write_commented(interface, time, Direction::Outbound, frame, comment)
        });
        if done {
            self.counts.dropped += 1;
        }
    }

    fn on_failure(&mut self, tell: OnFailure) {
        self.on_failure = Some(tell);
    }

    fn close(&mut self) {
        if self.counts.failed == 0 && !self.is_closed {
            let Counts { overrun, .. } = self.counts;
            let mut closed = self.writer.close(overrun).and_then(|()| self.pass_on());
            if closed.is_ok() {
                closed = self.sink.flush().map_err(Into::into);
            }
            self.note(closed);
        }
        self.is_closed = true;
    }
}

/// State that both halves share.
struct Tap<W: Write> {
    sink: W,
    /// Writer of the next part of the capture.
    writer: PcapngWriter<Vec<u8>>,
    interface: InterfaceId,
    epoch: Instant,
    /// The time of the packet written last. The halves read the clock each for itself, before they
    /// come here.
    last: Instant,
    /// Whether the sender is sending: the answer to what it sends can already be here.
    sending: bool,
    /// Packets that arrived meanwhile, at most [`HELD_MAX`].
    held: Vec<(Instant, Vec<u8>)>,
    counts: Counts,
    on_failure: Option<OnFailure>,
    is_closed: bool,
}

/// Maximum number of arrived packets that wait for a send to end; further ones are counted and not
/// written.
const HELD_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Packets that were written, by the way they went.
    sent: u64,
    received: u64,
    /// Packets that were written although they were dropped before they were sent.
    dropped: u64,
    /// Packets that could not be written. The link goes on without.
    failed: u64,
    /// Packets that arrived while [`HELD_MAX`] waited for a send to end.
    overrun: u64,
}

impl<W: Write> Tap<W> {
    /// Writes a packet that arrived, or holds it while the sender is sending.
    fn arrived(&mut self, now: Instant, frame: &[u8]) {
        if !self.sending {
            self.write(now, Direction::Inbound, frame);
        } else if self.held.len() < HELD_MAX {
            self.held.push((now, frame.to_vec()));
        } else {
            self.counts.overrun += 1;
        }
    }

    /// Ends a send, whose packets are written: what arrived meanwhile follows them.
    fn sent(&mut self) {
        self.sending = false;
        for (now, frame) in std::mem::take(&mut self.held) {
            self.write(now, Direction::Inbound, &frame);
        }
    }

    fn write(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        let (time, interface) = (self.time_of(now), self.interface);
        let done =
            self.write_with(|writer| writer.write_directed(interface, time, direction, frame));
        match direction {
            _ if !done => {}
            Direction::Inbound => self.counts.received += 1,
            Direction::Outbound => self.counts.sent += 1,
        }
    }

    /// Writes a packet. Returns whether it is written, and counts it if it is not.
    fn write_with(
        &mut self,
        write: impl FnOnce(&mut PcapngWriter<Vec<u8>>) -> Result<(), WriteError>,
    ) -> bool {
        if self.is_closed {
            return false;
        }
        // Once a part of a packet could not be written, nothing behind it could be read.
        if self.counts.failed > 0 {
            self.counts.failed += 1;
            return false;
        }
        let written = write(&mut self.writer).and_then(|()| self.pass_on());
        self.note(written)
    }

    /// Notes whether something was written. Tells of the first error.
    fn note(&mut self, written: Result<(), WriteError>) -> bool {
        let Err(error) = written else { return true };
        self.counts.failed += 1;
        if let Some(tell) = self.on_failure.take() {
            match error {
                WriteError::Io(error) => tell(&error),
                other => tell(&io::Error::other(other)),
            }
        }
        false
    }

    /// The time of day of a packet, which is never before that of the one written last.
    fn time_of(&mut self, now: Instant) -> Instant {
        self.last = self.last.max(now);
        self.epoch.saturating_add(Duration::from_nanos(self.last.as_nanos()))
    }

    /// Passes the written bytes on to the sink.
    fn pass_on(&mut self) -> Result<(), WriteError> {
        let written = self.writer.get_mut();
        let done = self.sink.write_all(written);
        written.clear();
        Ok(done?)
    }
}

impl<W: Write> Drop for Tap<W> {
    fn drop(&mut self) {
        self.close();
    }
}

/// A half that panicked has written whole packets before: the other goes on.
fn lock<T: ?Sized>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TapSender<W: Write> {
    inner: Box<dyn Sender>,
    tap: Arc<Mutex<Tap<W>>>,
}

impl<W: Write + Send> Sender for TapSender<W> {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        lock(&self.tap).sending = true;
        let done = self.inner.send(now, batch);
        let mut tap = lock(&self.tap);
        let mut frame = Vec::new();
        for (index, (path, packet)) in batch.iter().enumerate().take_while(|_| done.is_ok()) {
            let path = Path { source_port: self.inner.source_port(path), ..*path };
            sent_frame(&path, packet, batch.icrc_flips_of(index), &mut frame);
            tap.write(now, Direction::Outbound, &frame);
        }
        tap.sent();
        done
    }

    fn source_port(&self, path: &Path) -> u16 {
        self.inner.source_port(path)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn seal_all(&mut self) {
        self.inner.seal_all();
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        let Counts { sent, dropped, failed, .. } = lock(&self.tap).counts;
        counters.extend([("tap_sent", sent), ("tap_dropped", dropped), ("tap_failed", failed)]);
        counters
    }
}

struct TapReceiver<W: Write> {
    inner: Box<dyn Receiver>,
    tap: Arc<Mutex<Tap<W>>>,
}

impl<W: Write + Send> Receiver for TapReceiver<W> {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        let count = self.inner.receive(now)?;
        if count > 0 {
            let mut tap = lock(&self.tap);
            let mut frame = Vec::new();
            self.inner.for_each(&mut |received| {
                if received_frame(received, &mut frame).is_some() {
                    tap.arrived(now, &frame);
                }
            });
        }
        Ok(count)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.inner.for_each(each);
    }

    forward_to_receiver!(inner);

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        let Counts { received, overrun, .. } = lock(&self.tap).counts;
        counters.extend([("tap_received", received), ("tap_overrun", overrun)]);
        counters
    }
}

/// The frame that a sealed packet went out in. `icrc_flips` are the bits in which its ICRC is
/// wrong.
fn sent_frame(path: &Path, packet: &[u8], icrc_flips: u32, frame: &mut Vec<u8>) {
    let mut sealed = packet.to_vec();
    flip_icrc(&mut sealed, icrc_flips);
    let difference = path.prefix(sealed.len()).difference(&mut sealed).filter(|_| path.is_ipv4());
    let solve = |difference| Identification::of_length(packet.len()).find(difference);
    let id = difference.and_then(solve).unwrap_or(0);
    let headers = path.headers_with_id(packet.len(), id);
    let (ip, udp) = headers.as_bytes();
    frame.clear();
    frame.extend([ip, udp, packet].into_iter().flatten());
}

/// The frame that a packet came in. Its ICRC was right, so it is what it should be.
fn received_frame(received: &Received<'_>, frame: &mut Vec<u8>) -> Option<()> {
    let length = u16::try_from(Udp::LEN + received.packet.len() + ICRC_ROOM).ok()?;
    let (source_port, destination_port) = (received.source_port, ROCE_PORT);
    let udp = UdpRepr { source_port, destination_port, length, checksum: 0 }.emit();
    let network = received.network;
    let route = match network.first()? >> 4 {
        4 => {
            let options = network.get(crate::wire::Ipv4::LEN..)?;
            icrc::Route::Ipv4 { header: view(network, 0).ok()?, options, udp: &udp }
        }
        _ => {
            let extensions = network.get(crate::wire::Ipv6::LEN..)?;
            icrc::Route::Ipv6 { header: view(network, 0).ok()?, extensions, udp: &udp }
        }
    };
    let packet = received.packet;
    let seal = icrc::icrc(&route, packet);
    frame.clear();
    frame.extend([network, udp.as_bytes(), packet, &seal].into_iter().flatten());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Reader;
    use crate::link::testing::{PATH, Recorder, batch_of, link_to};
    use crate::link::{fault, testing};
    use crate::wire::{Frame, IcrcVerdict};

    /// A sink whose bytes can be looked at, at any time: after each write there are whole packets.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            read(self);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the frames of a capture with their times.
    fn read(sink: &Sink) -> Vec<(u64, Vec<u8>)> {
        let bytes = sink.0.lock().unwrap().clone();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        let mut found = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            assert_eq!((record.link, record.len as usize), (LinkType::RAW, record.data.len()));
            found.push((record.time.unwrap().as_nanos(), record.data.to_vec()));
        }
        found
    }

    #[test]
    fn what_is_sent_is_written_as_it_was_sealed() {
        for (path, first) in [(PATH, 0), (PATH, 0xfffe), (testing::PATH_V6, 5)] {
            let (sink, recorder) = (Sink::default(), Recorder::counting_from(first));
            let epoch = Instant::from_nanos(1_000_000_000_000);
            let mut link = tap(link_to(&recorder), sink.clone(), epoch).unwrap();
            let mut batch = batch_of(&path, &[1, 2, 3]);
            link.sender.send(Instant::from_nanos(77), &mut batch).unwrap();
            let written = read(&sink);
            let wire: Vec<_> = recorder.take().into_iter().map(|(.., frame)| frame).collect();
            assert_eq!(written.iter().map(|(_, frame)| frame.clone()).collect::<Vec<_>>(), wire);
            for (time, frame) in &written {
                assert_eq!(*time, 1_000_000_000_077);
                let frame = Frame::parse(LinkType::RAW, frame, ROCE_PORT);
                assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
            }
            assert_eq!(
                link.sender.counters(),
                [("tap_sent", 3), ("tap_dropped", 0), ("tap_failed", 0)]
            );
        }
    }

    #[test]
    fn damage_is_written_as_it_went_out() {
        let (sink, recorder) = (Sink::default(), Recorder::counting_from(9));
        let inner = tap(link_to(&recorder), sink.clone(), Instant::ZERO).unwrap();
        let mut link = fault::inject(inner, &"corrupt=7:2:1,dup=7:3,drop=7:1".parse().unwrap());
        let mut batch = batch_of(&PATH, &[1, 2, 3]);
        link.sender.send(Instant::ZERO, &mut batch).unwrap();
        let written: Vec<_> = read(&sink).into_iter().map(|(_, frame)| frame).collect();
        let wire: Vec<_> = recorder.take().into_iter().map(|(.., frame)| frame).collect();
        assert_eq!(written, wire);
        let verdict = |frame: &Vec<u8>| Frame::parse(LinkType::RAW, frame, ROCE_PORT).icrc();
        let verdicts: Vec<_> = written.iter().map(verdict).collect();
        assert_eq!(
            verdicts,
            [Some(IcrcVerdict::Bad), Some(IcrcVerdict::Ok), Some(IcrcVerdict::Ok)]
        );
    }

    fn is_unclosed(sink: &Sink) -> bool {
        let bytes = sink.0.lock().unwrap().clone();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        while reader.next().unwrap().is_some() {}
        reader.is_unclosed()
    }

    #[test]
    fn capture_is_cut_until_its_tap_ends() {
        let (sink, recorder) = (Sink::default(), Recorder::default());
        let (mut link, handle) =
            tap_with_handle(link_to(&recorder), sink.clone(), Instant::ZERO).unwrap();
        link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1])).unwrap();
        assert!(is_unclosed(&sink));
        let weak = handle.downgrade();
        drop(handle);
        drop(link);
        assert!(weak.upgrade().is_none());
        assert!(!is_unclosed(&sink));
        assert_eq!(read(&sink).len(), 1);
    }

    #[test]
    fn closed_capture_takes_no_packets() {
        let (sink, recorder) = (Sink::default(), Recorder::default());
        let (mut link, handle) =
            tap_with_handle(link_to(&recorder), sink.clone(), Instant::ZERO).unwrap();
        link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1])).unwrap();
        assert!(handle.try_close());
        link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[2])).unwrap();
        drop(link);
        assert!(!is_unclosed(&sink));
        assert_eq!(read(&sink).len(), 1);
    }

    /// A disk with room for so many bytes.
    struct Disk {
        room: usize,
        kept: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.room);
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= fits;
            self.kept.lock().unwrap().extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn first_error_is_told_and_nothing_is_written_behind_it() {
        // With room for some packets, for one, and for the headers alone.
        for (room, packets) in [(700, 3), (500, 1), (240, 0)] {
            let kept = Arc::<Mutex<Vec<u8>>>::default();
            let disk = Disk { room, kept: Arc::clone(&kept) };
            let recorder = Recorder::default();
            let (mut link, handle) =
                tap_with_handle(link_to(&recorder), disk, Instant::ZERO).unwrap();
            let told = Arc::<Mutex<Vec<io::ErrorKind>>>::default();
            let tell = Arc::clone(&told);
            handle.on_failure(move |error| tell.lock().unwrap().push(error.kind()));
            for number in 1..=20 {
                link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[number])).unwrap();
            }
            assert_eq!(recorder.take().len(), 20, "the link goes on");
            handle.close();
            assert_eq!(*told.lock().unwrap(), [io::ErrorKind::StorageFull], "{room} bytes");
            let bytes = kept.lock().unwrap().clone();
            let mut reader = Reader::new(&bytes[..]).unwrap();
            let mut read = 0;
            let is_cut = loop {
                match reader.next() {
                    Ok(Some(_)) => read += 1,
                    Ok(None) => break reader.is_unclosed(),
                    Err(error) => break error.is_cut(),
                }
            };
            assert!(is_cut, "{room} bytes");
            assert!(read >= packets, "{room} bytes: {read}");
        }
    }

    #[test]
    fn dropped_packets_are_kept_with_a_comment() {
        let (sink, recorder) = (Sink::default(), Recorder::counting_from(9));
        let (inner, handle) =
            tap_with_handle(link_to(&recorder), sink.clone(), Instant::ZERO).unwrap();
        let spec = "drop=7:2:1,corrupt=7:3:1,keep=dropped".parse().unwrap();
        let mut link = fault::inject_keeping(inner, &spec, handle);
        link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1, 2, 3])).unwrap();
        assert_eq!(recorder.take().iter().map(|(_, psn, _)| *psn).collect::<Vec<_>>(), [1, 3]);
        let bytes = sink.0.lock().unwrap().clone();
        let mut reader = Reader::new(bytes.as_slice()).unwrap();
        let mut found = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            let frame = Frame::parse(LinkType::RAW, record.data, ROCE_PORT);
            let comments: Vec<_> = record.around.options().comments().map(str::to_owned).collect();
            found.push((
                frame.packet().unwrap().bth().psn().get(),
                frame.icrc().unwrap(),
                comments,
            ));
        }
        let dropped = vec!["dropped by fault drop=0x7:2:1".to_owned()];
        assert_eq!(
            found,
            [
                (2, IcrcVerdict::Ok, dropped),
                (1, IcrcVerdict::Ok, vec![]),
                (3, IcrcVerdict::Bad, vec![])
            ]
        );
        assert!(link.sender.counters().contains(&("tap_dropped", 1)));
    }

    #[test]
    fn what_is_received_is_written_as_it_came_in() {
        for path in [PATH, testing::PATH_V6] {
            let (sink, recorder) = (Sink::default(), Recorder::counting_from(3));
            let mut link = tap(link_to(&recorder), sink.clone(), Instant::ZERO).unwrap();
            link.sender.send(Instant::ZERO, &mut batch_of(&path, &[1, 2])).unwrap();
            // The recorder receives what was sent.
            assert_eq!(link.receiver.receive(Instant::from_nanos(5)).unwrap(), 2);
            let (sent, received): (Vec<_>, Vec<_>) =
                read(&sink).into_iter().partition(|(time, _)| *time == 0);
            assert_eq!(sent.len(), 2);
            assert!(
                sent.iter().map(|(_, frame)| frame).eq(received.iter().map(|(_, frame)| frame))
            );
            assert_eq!(link.receiver.counters(), [("tap_received", 2), ("tap_overrun", 0)]);
        }
    }

    /// Called in the middle of a send, when its packets are on the wire.
    type Meanwhile = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

    /// A sender that lets the other half work before its send returns, as a second thread would.
    struct Interrupted {
        inner: Box<dyn Sender>,
        meanwhile: Meanwhile,
    }

    impl Sender for Interrupted {
        fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
            self.inner.send(now, batch)?;
            if let Some(work) = &mut *self.meanwhile.lock().unwrap() {
                work();
            }
            Ok(())
        }
    }

    #[test]
    fn answer_that_arrives_during_its_request_is_written_behind_it() {
        let (sink, recorder) = (Sink::default(), Recorder::counting_from(3));
        let meanwhile = Meanwhile::default();
        let link = link_to(&recorder);
        let sender = Interrupted { inner: link.sender, meanwhile: Arc::clone(&meanwhile) };
        let link = Link { sender: Box::new(sender), ..link };
        let Link { mut sender, mut receiver, .. } = tap(link, sink.clone(), Instant::ZERO).unwrap();
        // The recorder receives what was sent. Its thread looked at the clock before the sender's
        // did.
        *meanwhile.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(receiver.receive(Instant::from_nanos(5)).unwrap(), 2);
        }));
        sender.send(Instant::from_nanos(7), &mut batch_of(&PATH, &[1, 2])).unwrap();
        *meanwhile.lock().unwrap() = None;
        sender.send(Instant::from_nanos(6), &mut batch_of(&PATH, &[3])).unwrap();
        let written = read(&sink);
        let psns = written.iter().map(|(time, frame)| {
            let frame = Frame::parse(LinkType::RAW, frame, ROCE_PORT);
            (*time, frame.packet().unwrap().bth().psn().get())
        });
        assert_eq!(psns.collect::<Vec<_>>(), [(7, 1), (7, 2), (7, 1), (7, 2), (7, 3)]);
    }

    #[test]
    fn a_capture_that_cannot_be_written_does_not_stop_the_link() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let recorder = Recorder::default();
        let mut link = tap(link_to(&recorder), Full(300), Instant::ZERO).unwrap();
        link.sender.send(Instant::ZERO, &mut batch_of(&PATH, &[1, 2, 3])).unwrap();
        assert_eq!(recorder.take().len(), 3);
        assert_eq!(
            link.sender.counters(),
            [("tap_sent", 1), ("tap_dropped", 0), ("tap_failed", 2)]
        );
    }
}
