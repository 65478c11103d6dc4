//! `roce::group` as a program uses it: servers on soft NICs at loopback addresses, threads,
//! restarts, a bad network.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, after a while"
)]

#[path = "../common/mod.rs"]
mod common;
mod end;
mod examples;
mod restart;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::loopback::loopback;
use roce::device::Context;
use roce::group::{Change, Config, Error, Group, Handler, Hosts, Member};
use roce::link::{fault, udp};
use roce::net::Endpoint;
use roce::nic::SoftNic;

/// Longer than anything takes on a loaded machine.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// Servers at addresses of a net.
pub(crate) fn hosts(net: u8, count: u8) -> Hosts {
    Hosts::new((1..=count).map(|host| (loopback(net, host), 7000).into())).unwrap()
}

/// List of these servers, as an argument of a program.
pub(crate) fn hosts_text(net: u8, count: u8, port: u16) -> String {
    let hosts = (1..=count).map(|host| format!("{}:{port}", loopback(net, host)));
    hosts.collect::<Vec<_>>().join(",")
}

pub(crate) fn config() -> Config {
    let net = roce::net::Config::default().ring(32 << 10).keepalive(Duration::from_millis(100));
    let net = net.connect_timeout(Duration::from_secs(1)).retries(2);
    Config::default().net(net)
}

/// A server on a network with faults.
fn open(hosts: &Hosts, own: usize, config: &Config, faults: Option<&str>) -> Group {
    let link = udp::open(&udp::Options::new(hosts.get(own).unwrap().ip())).unwrap();
    let link = match faults {
        Some(spec) => fault::inject(link, &spec.parse().unwrap()),
        None => link,
    };
    let endpoint = Endpoint::new(Arc::new(SoftNic::start(link).unwrap())).unwrap();
    Group::on(&endpoint, hosts, own, config).unwrap()
}

/// A server whose connections are made by TCP exchanges. The list has addresses of the operating
/// system's network; the device has another one, of another net, which the peers learn by the
/// exchange.
pub(crate) fn open_over_tcp(hosts: &Hosts, own: usize, config: &Config) -> Group {
    let IpAddr::V4(at) = hosts.get(own).unwrap().ip() else { panic!("{hosts}") };
    let [_, _, net, host] = at.octets();
    let link = udp::open(&udp::Options::new(loopback(net | 0x80, host).into())).unwrap();
    let endpoint = Endpoint::over_tcp(Context::new(SoftNic::start(link).unwrap())).unwrap();
    Group::on(&endpoint, hosts, own, config).unwrap()
}

/// Messages that a member has received, by sender, and its events.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) messages: BTreeMap<usize, Vec<Vec<u8>>>,
    pub(crate) changes: Vec<(usize, Change)>,
}

impl Inbox {
    pub(crate) fn len(&self) -> usize {
        self.messages.values().map(Vec::len).sum()
    }
}

impl Handler for Inbox {
    fn message(&mut self, from: usize, message: &[u8]) {
        self.messages.entry(from).or_default().push(message.to_vec());
    }

    fn change(&mut self, peer: usize, change: Change) {
        self.changes.push((peer, change));
    }
}

/// Polls until something is so.
pub(crate) fn poll_until(
    member: &Member,
    inbox: &mut Inbox,
    mut is_so: impl FnMut(&Inbox) -> bool,
) {
    let end = Instant::now() + WAIT;
    while !is_so(inbox) {
        assert!(Instant::now() < end, "{} messages, {:?}", inbox.len(), inbox.changes);
        if member.poll(inbox).unwrap() == 0 {
            member.wait(Duration::from_millis(100)).unwrap();
        }
    }
}

/// Sends, however long it takes; polls meanwhile, as each member has to.
pub(crate) fn send(member: &Member, inbox: &mut Inbox, peer: usize, message: &[u8]) {
    let end = Instant::now() + WAIT;
    loop {
        match member.post(peer, message) {
            Ok(()) => return,
            Err(Error::Full(_) | Error::Disconnected(_)) => {
                assert!(Instant::now() < end, "server {peer} does not take a message");
                if member.poll(inbox).unwrap() == 0 {
                    member.wait(Duration::from_millis(20)).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A message that follows from its sender, its thread and its number.
pub(crate) fn message(from: usize, thread: usize, number: usize) -> Vec<u8> {
    let len = [0, 1, 8, 63, 500, 3000, 8000][number % 7];
    let head = format!("{from} {thread} {number} ");
    (0..len).fold(head.into_bytes(), |mut bytes, at| {
        bytes.push(u8::try_from(at % 251).unwrap());
        bytes
    })
}

/// Every member sends to every peer and receives from it; some connections are broken meanwhile if
/// `breaks`.
fn all_to_all(
    hosts: &Hosts,
    open: impl Fn(&Hosts, usize, &Config) -> Group,
    threads: usize,
    count: usize,
    breaks: bool,
) {
    let config = config().threads(threads).doorbell_batch(5);
    let net = config.net.retries(if breaks { 2 } else { 7 });
    let config = config.net(net);
    let groups: Vec<Group> = (0..hosts.len()).map(|own| open(hosts, own, &config)).collect();
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for group in &groups {
            for thread in 0..threads {
                let (member, done) = (group.member(thread).unwrap(), &done);
                scope.spawn(move || {
                    let (own, mut inbox) = (member.own(), Inbox::default());
                    let peers: Vec<usize> = member.peers().collect();
                    for number in 0..count {
                        for &peer in &peers {
                            send(&member, &mut inbox, peer, &message(own, thread, number));
                        }
                        if breaks && number % 50 == 7 {
                            member.reconnect(peers[number % peers.len()]).unwrap();
                        }
                    }
                    let expected = count * (hosts.len() - 1);
                    poll_until(&member, &mut inbox, |inbox| inbox.len() == expected);
                    for &peer in &peers {
                        let numbers = 0..count;
                        let sent: Vec<_> =
                            numbers.map(|number| message(peer, thread, number)).collect();
                        assert!(inbox.messages[&peer] == sent, "from {peer}");
                    }
                    if breaks {
                        assert!(inbox.changes.iter().any(|(_, it)| *it == Change::Disconnected));
                    }
                    // The others may not have all yet: this side goes on until they do.
                    done.fetch_add(1, Ordering::Relaxed);
                    let all = hosts.len() * threads;
                    poll_until(&member, &mut inbox, |_| done.load(Ordering::Relaxed) == all);
                    assert_eq!(inbox.len(), expected, "none is doubled");
                });
            }
        }
    });
}

#[test]
fn thread_i_of_each_server_is_connected_to_thread_i_of_the_others() {
    all_to_all(&hosts(1, 3), |hosts, own, config| open(hosts, own, config, None), 2, 200, false);
}

#[test]
fn ten_percent_loss_with_reordering_and_duplicates() {
    let faults = Some("loss=10%,dup=5%,reorder=5%");
    all_to_all(&hosts(2, 2), |hosts, own, config| open(hosts, own, config, faults), 1, 60, false);
}

#[test]
fn connections_that_break_lose_and_double_nothing() {
    all_to_all(&hosts(3, 3), |hosts, own, config| open(hosts, own, config, None), 1, 100, true);
}

#[test]
fn devices_without_a_connection_manager_form_a_group_by_tcp() {
    all_to_all(&hosts(7, 3), open_over_tcp, 2, 200, false);
}

#[test]
fn connections_made_by_tcp_that_break_lose_and_double_nothing() {
    all_to_all(&hosts(8, 3), open_over_tcp, 1, 100, true);
}

#[test]
fn messages_are_written_in_place_and_go_with_one_doorbell() {
    let hosts = hosts(4, 2);
    let config = config().doorbell_batch(100);
    let groups = [0, 1].map(|own| open(&hosts, own, &config, None));
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    let [a, b] = [0, 1].map(|own| groups[own].member(0).unwrap());
    assert!(matches!(groups[0].member(0), Err(Error::NoMember(0))), "each is taken once");
    assert!(matches!(groups[0].member(1), Err(Error::NoMember(1))));
    assert!(matches!(a.post(0, b"me"), Err(Error::NoPeer(0))));
    assert!(matches!(a.post(2, b"?"), Err(Error::NoPeer(2))));
    let max = a.message_max(1).unwrap();
    assert!(matches!(a.post(1, &vec![0; max + 1]), Err(Error::TooLong { .. })));
    // One that is dropped is not sent, and what is reserved comes first.
    drop(a.reserve(1, 100).unwrap());
    let mut record = a.reserve(1, 6).unwrap();
    assert!(matches!(a.post(1, b"x"), Err(Error::Reserved(1))));
    assert!(matches!(a.reserve(1, 1), Err(Error::Reserved(1))));
    record.write_all(b"in ").unwrap();
    record.write_at(3, b"pla").unwrap();
    assert!(matches!(record.write_at(5, b"ce"), Err(Error::TooLong { len: 7, max: 6 })));
    record.commit().unwrap();
    a.post(1, b"posted").unwrap();
    let mut inbox = Inbox::default();
    b.poll_receive(0, &mut inbox).unwrap();
    assert_eq!(inbox.len(), 0, "the doorbell has not rung");
    a.flush(1).unwrap();
    poll_until(&b, &mut inbox, |inbox| inbox.len() == 2);
    assert_eq!(inbox.messages[&0], [b"in pla".to_vec(), b"posted".to_vec()]);
    // A full batch rings it, too.
    for number in 0..100 {
        a.post(1, &message(0, 0, number % 5)).unwrap();
    }
    poll_until(&b, &mut inbox, |inbox| inbox.len() == 102);
    // In place all the way around the ring.
    for number in 0..200 {
        let bytes = message(0, 0, number);
        let mut record = loop {
            match a.reserve(1, bytes.len()) {
                Err(Error::Full(1)) => {
                    poll_until(&b, &mut inbox, |_| a.poll_send(1).unwrap() < 16 << 10)
                }
                other => break other.unwrap(),
            }
        };
        record.write_all(&bytes).unwrap();
        record.commit().unwrap();
    }
    a.flush_all().unwrap();
    poll_until(&b, &mut inbox, |inbox| inbox.len() == 302);
    let expected: Vec<_> = (0..200).map(|number| message(0, 0, number)).collect();
    assert!(inbox.messages[&0][102..] == expected);
}

#[test]
fn a_peer_that_does_not_poll_holds_up_the_sender_and_takes_no_memory() {
    let hosts = hosts(5, 2);
    let groups = [0, 1].map(|own| open(&hosts, own, &config(), None));
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    let [a, b] = [0, 1].map(|own| groups[own].member(0).unwrap());
    let mut sent = 0;
    let full = loop {
        match a.post(1, &message(0, 0, sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full(1)), "{full}");
    assert!(a.poll_send(1).unwrap() <= 32 << 10);
    let mut inbox = Inbox::default();
    poll_until(&b, &mut inbox, |inbox| inbox.len() == sent);
    poll_until(&b, &mut inbox, |_| a.post(1, b"on").is_ok());
}

#[test]
fn memory_is_looked_up_by_its_number() {
    let hosts = hosts(6, 3);
    let groups = [0, 1, 2].map(|own| open(&hosts, own, &config(), None));
    // One region before there are connections, one after.
    let memory = groups[0].allocate(64).unwrap();
    groups[0].publish(1, &memory.slice(..).unwrap()).unwrap();
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    let later = groups[0].allocate(128).unwrap();
    groups[0].publish(2, &later.slice(32..96).unwrap()).unwrap();
    for own in [1, 2] {
        let member = groups[own].member(0).unwrap();
        let [one, two] = [1, 2].map(|id| member.lookup(0, id).unwrap().unwrap());
        assert_eq!(one.slice(), memory.remote());
        assert_eq!(two.slice(), later.slice(32..96).unwrap().remote());
        assert!(member.lookup(0, 3).unwrap().is_none());
        assert!(matches!(member.lookup(own, 1), Err(Error::NoPeer(_))));
        assert_eq!(one.fetch_add(0, 1).unwrap(), own as u64 - 1);
        two.write(8 * own as u64, b"eight by").unwrap();
        assert!(one.read(60, 5).is_err(), "behind its end");
        // After a new connection it is found again, and the old one is of no use.
        member.reconnect(0).unwrap();
        assert!(one.read(0, 8).is_err());
        let mut inbox = Inbox::default();
        poll_until(&member, &mut inbox, |_| member.is_connected(0));
        assert_eq!(
            member.lookup(0, 1).unwrap().unwrap().read(0, 8).unwrap(),
            (own as u64).to_le_bytes()
        );
    }
    assert_eq!(later.to_vec()[40..56], *b"eight byeight by");
}
