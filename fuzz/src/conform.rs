//! Scenarios from files and from the network, and everything that a client can say to a server of
//! `roce conform`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use roce::conform::agent::Agent;
use roce::conform::control::Message;
use roce::conform::scenario;
use roce::conform::wire::watch;
use roce::control::{Addresses, Channel, Stream};
use roce::link::{Link, cable};
use roce::nic::SoftNic;
use roce::wire::Gid;

/// A scenario: what is read from a file is sound, and what a client sends is refused or as sound as
/// that.
pub fn scenarios(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    match scenario::read("input", text) {
        Ok(instances) => {
            assert!(!instances.is_empty());
            for instance in instances {
                assert_eq!(instance.check(), Ok(()), "it was checked when it was read");
                let sent = serde_json::to_string(&instance).expect("it can be sent");
                let received = serde_json::from_str(&sent).expect("and received");
                assert_eq!(instance, received);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(Message::Begin { instance, .. }) = serde_json::from_str(text) {
        match instance.check() {
            Ok(()) => assert!(instance.name.chars().all(|c| !c.is_control())),
            Err(why) => assert!(why.chars().all(|c| !c.is_control()), "{why:?}"),
        }
    }
}

/// The bytes that a client sends; it reads nothing, and is disconnected when asked.
struct Script {
    bytes: Vec<u8>,
    at: usize,
}

impl Stream for Script {
    fn set_wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let count = left.len().min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }

    fn send_all(&mut self, bytes: &[u8], _: Duration) -> io::Result<()> {
        let line = bytes.strip_suffix(b"\n").expect("a message is a line");
        assert!(serde_json::from_slice::<Message>(line).is_ok(), "what a server says can be read");
        assert!(!line.contains(&b'\n'), "a line is a line");
        Ok(())
    }

    fn is_closed(&mut self) -> bool {
        true
    }
}

/// An agent on a NIC whose cable has no peer at its other end.
fn agent() -> &'static Mutex<(Agent, Link)> {
    static AGENT: OnceLock<Mutex<(Agent, Link)>> = OnceLock::new();
    AGENT.get_or_init(|| {
        let [near, far] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
        let (link, other) = cable(near, far).expect("there is a cable");
        let (link, wire) = watch(link);
        let device = Arc::new(SoftNic::start(link).expect("there is a NIC"));
        Mutex::new((Agent { device, wire: Some(wire), gid_index: None, manager: None }, other))
    })
}

/// The control protocol: whatever a client says, the server ends well, says only what can be read,
/// and shows no escapes.
pub fn conform_control(input: &[u8]) {
    // One client after the other, as a server gives turns.
    let agent = agent().lock().unwrap_or_else(PoisonError::into_inner);
    let address = SocketAddr::from(([192, 0, 2, 2], 1));
    let addresses = Addresses { client: address, server: address };
    // The last line has an end, too.
    let script = Script { bytes: [input, b"\n"].concat(), at: 0 };
    let mut client = Channel::new(Box::new(script), addresses, "the client");
    if let Err(error) = agent.0.serve(&mut client) {
        assert!(error.to_string().chars().all(|c| !c.is_control()), "{error}");
    }
}
