//! A stranger on the control connection of `roce serve`: any bytes, in pieces of any size.
//!
//! The server's part is played with the parsers, limits and layouts of the command itself, without
//! sockets and NICs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use roce::control::{Addresses, Admission, Stream, Token, Use};
use roce::ping::Packet;

use super::bench_protocol::Control;
use super::bench_protocol::admission::{self, LIMITS};
use super::bench_protocol::layout::{self, Layout};
use super::bench_protocol::mesh::{self, Task, TaskResult};
use super::bench_protocol::messages::{
    PeerMessage, Reach, Seen, hello, read_answer, read_counters, read_hello, send_counters,
};
use super::bench_protocol::offer::{Command, Wish};
use super::bench_protocol::opening::{Protocol, begin, introduce, welcome};
use super::bench_protocol::pingpong_message::{
    MESSAGE_BYTES, from_message, is_message, to_message,
};
use super::bench_protocol::plan::Plan;
use super::bench_protocol::probe::{Hello, Welcome};
use super::bench_protocol::rendezvous::Rendezvous;

/// Bytes of a stranger, cut into pieces; what it is sent goes nowhere, but is text.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    waits: bool,
}

impl Wire {
    fn control(bytes: &[u8], piece: u8) -> Control {
        let piece = usize::from(piece).max(1);
        let wire = Self { bytes: bytes.to_vec(), at: 0, piece, waits: true };
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let addresses = Addresses { client: address, server: address };
        Control::new(Box::new(wire), addresses, "the client")
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
        self.waits |= left.is_empty();
        if !self.waits {
            self.waits = true;
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
        control.send_error(&error);
    }
}

/// Reads all that a server reads of a client, in order.
fn serve(control: &mut Control, token: Option<&Token>) -> anyhow::Result<()> {
    let (protocol, opening) = begin(control, token)?;
    match protocol {
        Protocol::Bench | Protocol::BenchByCm => {
            let (plan, peer) = read_hello(control)?;
            welcome(control, opening)?;
            serve_bench(control, plan, peer)
        }
        Protocol::Offer => {
            let wish = Wish::read(control)?;
            welcome(control, opening)?;
            serve_offer(control, &wish)
        }
        Protocol::Ping => {
            let hello = Hello::read(control)?;
            welcome(control, opening)?;
            serve_ping(control, hello)
        }
        Protocol::Mesh => {
            let task = Task::read(control)?;
            welcome(control, opening)?;
            serve_mesh(control, &task)
        }
    }
}

/// Reads all that a server reads of a client of `roce bench` that it has welcomed.
fn serve_bench(control: &mut Control, plan: Plan, peer: Reach) -> anyhow::Result<()> {
    assert_eq!(peer.qps.len(), plan.qps as usize);
    let text = hello(&plan, &peer);
    let again = read_hello(&mut Wire::control(text.as_bytes(), 255)).expect("what is sent is read");
    assert_eq!(again, (plan.clone(), peer));
    admit(&plan)?;
    for _ in &plan.sizes {
        if control.expect_one_of(&["ready", "bye"])? == "bye" {
            return send_counters(control, &vec![("sent_pkts".to_owned(), 1)]);
        }
        control.set_waiting(false)?;
        loop {
            let Some(line) = control.try_line()? else { continue };
            if let PeerMessage::Done(done) = PeerMessage::parse(&line)? {
                assert_eq!(
                    PeerMessage::parse(done.to_line().trim_end()).expect("sent"),
                    PeerMessage::Done(done)
                );
                break;
            }
        }
        control.set_waiting(true)?;
        let seen = Seen::read(control)?;
        let again = Seen::read(&mut Wire::control(seen.to_line().as_bytes(), 7));
        assert_eq!(again.expect("what is sent is read"), seen);
    }
    control.expect("bye").map(drop)
}

/// Reads all that a server reads of a client that wants an offer.
fn serve_offer(control: &mut Control, wish: &Wish) -> anyhow::Result<()> {
    let text = wish.to_lines();
    let again = Wish::read(&mut Wire::control(text.as_bytes(), 255)).expect("what is sent is read");
    assert_eq!(again, *wish);
    let admission = Admission::new(LIMITS);
    let mut ticket = admission.enter(wish.address(), Box::new(|| ()))?;
    ticket.take(Use { clients: 0, qps: 1, memory: wish.memory() })?;
    loop {
        let command = Command::parse(&control.line()?)?;
        assert_eq!(
            Command::parse(command.to_line().trim_end_matches('\n')).expect("sent"),
            command
        );
        if command == Command::Bye {
            return Ok(());
        }
    }
}

/// Reads all that a server reads of a client that probes.
fn serve_ping(control: &mut Control, hello: Hello) -> anyhow::Result<()> {
    let text = hello.to_lines();
    let again = Hello::read(&mut Wire::control(text.as_bytes(), 9)).expect("what is sent is read");
    assert_eq!(again, hello);
    let welcome = Welcome { responder: hello.prober, instance: hello.rate.into() };
    let text = welcome.to_lines();
    let again = Welcome::read(&mut Wire::control(text.as_bytes(), 9)).expect("sent");
    assert_eq!(again, welcome);
    Welcome::read(control).map(drop)
}

/// Reads all that a server reads of a client that has it probe others.
fn serve_mesh(control: &mut Control, task: &Task) -> anyhow::Result<()> {
    assert!(task.targets.len() <= mesh::TARGETS_MAX);
    let text = task.to_lines();
    let again = Task::read(&mut Wire::control(text.as_bytes(), 9)).expect("what is sent is read");
    assert_eq!(again, *task);
    assert!(task.time_limit() >= task.timeout);
    control.expect("bye").map(drop)
}

/// Reads all that a client reads of a server that probed others.
fn mesh_result(control: &mut Control) -> anyhow::Result<()> {
    let text = "probe 2 100 1000 1000\ntarget 192.0.2.1 7\ntarget ::1 8\nend\n";
    let task = Task::read(&mut Wire::control(text.as_bytes(), 255)).expect("a good task");
    let result = TaskResult::read(control, &task)?;
    assert!(result.cells.len() <= 4 && result.failed.len() <= 2);
    let text = result.to_lines();
    let again = TaskResult::read(&mut Wire::control(text.as_bytes(), 255), &task).expect("sent");
    assert_eq!(again.to_lines(), text);
    Ok(())
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
fn client(control: &mut Control, by_cm: bool) -> anyhow::Result<()> {
    let protocol = if by_cm { Protocol::BenchByCm } else { Protocol::Bench };
    introduce(control, protocol, None, "end\n")?;
    let text = "test write bw UC\nsizes 64\nseconds 1\nmtu 4096\ntx-depth 1\nbidirectional false\nverify \
                false\nlink udp\nmemory 0x0 0x0\nqp ::1 0x1 0x1\nqp ::1 0x2 0x1\nend\n";
    let (plan, _) = read_hello(&mut Wire::control(text.as_bytes(), 255)).expect("a good hello");
    let (mtu, reach) = read_answer(control, &plan)?;
    assert!(mtu <= plan.mtu && reach.qps.len() == 2);
    if by_cm {
        let rendezvous = Rendezvous::read(control)?;
        let again = Rendezvous::read(&mut Wire::control(rendezvous.to_line().as_bytes(), 3));
        assert_eq!(again.expect("what is sent is read"), rendezvous);
        assert_eq!(rendezvous.queue_pair(&rendezvous.private_data(1)), Some(1));
    }
    control.expect("ready")?;
    while !matches!(PeerMessage::parse(&control.line()?)?, PeerMessage::Done(_)) {}
    Seen::read(control)?;
    read_counters(control).map(drop)
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
