//! A stranger on the control connection of `roce serve`: any bytes, in pieces of any size.
//!
//! The server's part is played with the parsers, limits and layouts of the command itself, without
//! sockets and NICs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use roce::control::limits::LINE_WAIT;
use roce::control::{Addresses, Admission, Channel, Incoming, Protocol, Stream, Token, Use};
use roce::ping::Packet;
use roce::verbs::Mtu;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bench_protocol::admission::{self, LIMITS};
use super::bench_protocol::layout::{self, Layout};
use super::bench_protocol::mesh::{self, Task, TaskResult};
use super::bench_protocol::messages::{
    Answer, Hello, Message, Seen, expect_ready, receive, receive_counters,
};
use super::bench_protocol::offer::{Command, Wish};
use super::bench_protocol::pingpong_message::{
    MESSAGE_BYTES, from_message, is_message, to_message,
};
use super::bench_protocol::plan::{Connection, Extent, Metric, Op, Plan};
use super::bench_protocol::probe::{self, Welcome};
use super::bench_protocol::rendezvous::Rendezvous;
use super::bench_protocol::request::Request;

/// Bytes of a stranger, cut into pieces; what it is sent goes nowhere, but is text.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    waits: bool,
    /// Whether the last read without waiting found nothing.
    found_nothing: bool,
}

impl Wire {
    fn control(bytes: &[u8], piece: u8) -> Channel {
        let piece = usize::from(piece).max(1);
        let wire = Self { bytes: bytes.to_vec(), at: 0, piece, waits: true, found_nothing: false };
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let addresses = Addresses { client: address, server: address };
        Channel::new(Box::new(wire), addresses, "the client")
    }
}

impl Stream for Wire {
    fn set_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.waits = wait.is_some();
        Ok(())
    }

    fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        // A server that does not wait finds nothing every other time.
        self.found_nothing = !(self.waits || left.is_empty() || self.found_nothing);
        if self.found_nothing {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = left.len().min(self.piece).min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }

    fn send_all(&mut self, bytes: &[u8], _: Duration) -> io::Result<()> {
        assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | 0x80..)));
        Ok(())
    }
}

/// The first byte says which part of the protocol the rest is for, the second how it is cut.
pub fn bench_control(input: &[u8]) {
    let [part, piece, bytes @ ..] = input else { return };
    let mut control = Wire::control(bytes, *piece);
    let ended = match part % 4 {
        0 => serve(&mut control, None),
        1 => {
            let token = Token::new("correct horse").expect("it is long enough");
            // No bytes are a proof for a nonce that they cannot know.
            let served = serve(&mut control, Some(&token));
            assert!(served.is_err());
            served
        }
        2 => client(&mut control, *part >= 0x80),
        _ => {
            probe_packet(bytes);
            pingpong(bytes);
            mesh_result(&mut control)
        }
    };
    if let Err(error) = ended {
        let text = format!("{error:#}");
        assert!(!text.contains(char::is_control), "{text:?}");
        control.send_error(&text);
    }
}

/// Asserts that a message is read as it is written.
fn read_again<M: Serialize + DeserializeOwned + PartialEq + core::fmt::Debug>(message: &M) {
    let text = serde_json::to_string(message).expect("it can be sent");
    assert_eq!(serde_json::from_str::<M>(&text).expect("and received"), *message);
}

/// Reads all that a server reads of a client, in order.
fn serve(control: &mut Channel, token: Option<&Token>) -> anyhow::Result<()> {
    let applicant = Request::read(control, token)?;
    match control.welcome(applicant)? {
        Request::Bench(hello) | Request::BenchByCm(hello) => serve_bench(control, &hello),
        Request::Offer(wish) => serve_offer(control, &wish),
        Request::Ping(hello) => serve_ping(control, hello),
        Request::Mesh(task) => serve_mesh(control, &task),
    }
}

/// Reads all that a server reads of a client of `roce bench` that it has welcomed.
fn serve_bench(control: &mut Channel, hello: &Hello) -> anyhow::Result<()> {
    let plan = &hello.plan;
    assert_eq!(hello.client.qps.len(), plan.qps as usize);
    read_again(hello);
    admit(plan)?;
    for _ in &plan.sizes {
        match receive(control, "ready or bye")? {
            Message::Ready => {}
            Message::Bye => {
                let counters = vec![("sent_pkts".to_owned(), 1)];
                return Ok(control.send(&Message::Counters(counters))?);
            }
            other => return Err(control.unexpected(&other, "ready or bye").into()),
        }
        loop {
            match control.try_receive("done")? {
                Incoming::Nothing | Incoming::Alive | Incoming::Message(Message::Stop) => {}
                Incoming::Message(message @ Message::Done(_)) => {
                    read_again(&message);
                    break;
                }
                Incoming::Message(other) => return Err(control.unexpected(&other, "done").into()),
            }
        }
        read_again(&Seen::receive(control)?);
    }
    Ok(receive(control, "bye").map(drop)?)
}

/// Reads all that a server reads of a client that wants an offer.
fn serve_offer(control: &mut Channel, wish: &Wish) -> anyhow::Result<()> {
    read_again(wish);
    let admission = Admission::new(LIMITS);
    let mut ticket = admission.enter(wish.address(), Box::new(|| ()))?;
    ticket.take(Use { clients: 0, qps: 1, memory: wish.memory() })?;
    loop {
        let command: Command = control.receive(LINE_WAIT, "a command")?;
        read_again(&command);
        if command == Command::Bye {
            return Ok(());
        }
    }
}

/// Reads all that a server reads of a client that probes.
fn serve_ping(control: &mut Channel, hello: probe::Hello) -> anyhow::Result<()> {
    read_again(&hello);
    read_again(&Welcome { responder: hello.prober, instance: hello.rate.into() });
    Welcome::receive(control).map(drop)
}

/// Reads all that a server reads of a client that has it probe others.
fn serve_mesh(control: &mut Channel, task: &Task) -> anyhow::Result<()> {
    assert!(task.targets.len() <= mesh::TARGETS_MAX);
    read_again(task);
    assert!(task.time_limit() >= task.timeout);
    Ok(control.receive::<mesh::Message>(LINE_WAIT, "bye").map(drop)?)
}

/// Reads all that a client reads of a server that probed others.
fn mesh_result(control: &mut Channel) -> anyhow::Result<()> {
    let task = Task {
        paths: 2,
        count: 100,
        interval: Duration::from_millis(1),
        timeout: Duration::from_millis(1),
        targets: [1, 2].map(|host| SocketAddr::from(([192, 0, 2, host], 7))).to_vec(),
    };
    let result = TaskResult::receive(control, &task)?;
    assert!(result.cells.len() <= 4 && result.failed.len() <= 2);
    assert!(result.failed.iter().all(|(_, why)| !why.contains(char::is_control)));
    result.send(control)
}

/// A datagram of a prober or a responder: what is parsed is emitted as it was, but for reserved
/// bytes.
fn probe_packet(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let emitted = packet.to_bytes();
    assert_eq!(Packet::parse(&emitted), Ok(packet));
    assert!(emitted.len() <= bytes.len());
}

/// Whatever is admitted stays within the limits, also many times over, and everything comes back.
fn admit(plan: &Plan) -> anyhow::Result<()> {
    let limits = LIMITS;
    let account = Admission::new(limits);
    let mut first = Ok(());
    {
        let mut tickets = Vec::new();
        for client in 0..6 {
            let address = IpAddr::from(Ipv4Addr::new(192, 0, 2, client / 3));
            let mut ticket = account.enter(address, Box::new(|| ()))?;
            let admitted = admission::admit(&mut ticket, plan);
            if admitted.is_ok() {
                check_layout(plan);
                tickets.push(ticket);
            }
            if client == 0 {
                first = admitted;
            }
        }
        let taken = account.in_all();
        assert!(taken.memory <= limits.memory && taken.qps <= limits.qps);
        assert!(
            taken.memory <= 2 * (limits.memory / limits.share),
            "two addresses have two shares"
        );
    }
    assert_eq!(account.in_all(), Use::default());
    first
}

/// The parts of a side's memory follow one another, and the whole is what was admitted.
fn check_layout(plan: &Plan) {
    let layout = Layout::new(plan).expect("it was admitted");
    let Layout { source, target, landing, counters, results, slots, end, .. } = layout;
    let all = [source, target, landing, counters, results, slots, end];
    assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{layout:?}");
    assert_eq!(slots + layout.slot_count * layout.stride, end);
    assert!(end as u64 <= layout::memory(plan).expect("it was admitted"));
    assert!(layout.receives_per_qp > 0 || !plan.takes_receives());
}

/// Reads all that a client reads of a server that is a stranger.
fn client(control: &mut Channel, by_cm: bool) -> anyhow::Result<()> {
    let protocol = if by_cm { Protocol::BenchByCm } else { Protocol::Bench };
    control.open(protocol, None, &"what it asks for")?;
    let plan = Plan {
        op: Op::Write,
        metric: Metric::Bw,
        connection: Connection::Uc,
        sizes: vec![64],
        extent: Extent::Seconds(1),
        qps: 2,
        mtu: Mtu::M4096,
        tx_depth: 1,
        bidirectional: false,
        verify: false,
    };
    let answer = Answer::receive(control, &plan)?;
    assert!(answer.mtu <= plan.mtu && answer.server.qps.len() == 2);
    read_again(&answer);
    if by_cm {
        let rendezvous = Rendezvous::receive(control)?;
        read_again(&rendezvous);
        assert_eq!(rendezvous.queue_pair(&rendezvous.private_data(1)), Some(1));
    }
    expect_ready(control)?;
    while !matches!(receive(control, "done")?, Message::Done(_)) {}
    Seen::receive(control)?;
    receive_counters(control).map(drop)
}

/// A message of the pingpongs: what is parsed is emitted as it was, but for the LID and the case of
/// digits.
fn pingpong(bytes: &[u8]) {
    let Some(message) = bytes.first_chunk::<MESSAGE_BYTES>() else { return };
    let Ok(endpoint) = from_message(message) else { return };
    assert!(message.first_chunk().is_some_and(is_message));
    let emitted = to_message(&endpoint);
    assert!(emitted[4..].eq_ignore_ascii_case(&message[4..]));
    assert_eq!(from_message(&emitted).expect("what is emitted can be parsed"), endpoint);
}
