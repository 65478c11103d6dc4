//! `--connect`: a capture onto a connection that the connection manager made.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use roce::connect::{ConnectionManager, Options};
use roce::device::{Context, Rc};
use roce::link::udp;
use roce::nic::SoftNic;

use super::{capture, device, loopback, replay, text};

/// Longer than anything takes on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

/// Number of receives of the peer, and their length.
const RECEIVES: u32 = 64;
const BYTES: usize = 4096;

/// A program that accepts one connection, and counts the messages that it receives until its peer
/// disconnects.
fn count_messages(
    nic: &Context,
    manager: &ConnectionManager,
    listener: &roce::connect::Listener,
) -> u64 {
    let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(128).unwrap());
    let qp = pd.qp(&cq).depth(16, RECEIVES).build::<Rc>().unwrap();
    let request = listener.accept_timeout(WAIT).unwrap();
    manager.prepare(qp.as_any().handle()).unwrap();
    for id in 0..u64::from(RECEIVES) {
        qp.recv(id, pd.create_buf(BYTES).unwrap()).unwrap();
    }
    let connection = request.accept(qp.as_any().handle(), &Options::default()).unwrap();
    assert!(connection.wait_disconnected(WAIT).unwrap());
    let mut completions = Vec::with_capacity(RECEIVES as usize);
    cq.poll(&mut completions);
    assert!(completions.iter().all(|completion| completion.wc.is_success()));
    completions.len() as u64
}

#[test]
fn requests_are_played_on_a_connection_by_the_connection_manager() {
    let host: IpAddr = loopback(40).parse().unwrap();
    let nic = Arc::new(SoftNic::start(udp::open(&udp::Options::new(host)).unwrap()).unwrap());
    let manager = ConnectionManager::start(Arc::clone(&nic)).unwrap();
    let nic = Context::from(nic);
    let listener = manager.listen(SocketAddr::new(host, 0)).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let device = device(41);
    let played = ["--flow", "3", "--speed", "max", &capture("rxe_cm.pcap")];
    let args = [&["--to", &device, "--connect", &at][..], &played].concat();
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| count_messages(&nic, &manager, &listener));
        let output = replay(&args);
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{said}{errors}");
        let (_, count) = said.split_once("messages: ").unwrap_or_else(|| panic!("{said}"));
        let agreed: u64 = count.split(' ').next().unwrap().parse().unwrap();
        assert!(agreed > 0 && count.contains("agreed, 0 undecided, 0 different"), "{said}");
        assert_eq!(peer.join().unwrap(), agreed);
    });
    // Nothing listens there.
    drop(listener);
    let output = replay(&args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("nothing listens there (reason 8)"), "{errors}");
}
