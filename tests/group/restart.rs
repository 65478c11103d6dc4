//! A server that is killed and starts again.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use roce::group::{Change, Error, Group};

use crate::common::loopback::{RUN, run};
use crate::common::process::{Child, Command};
use crate::{Inbox, WAIT, config, hosts, message, open_over_tcp, poll_until, send};

/// Signaling of the servers of a test.
#[derive(Clone, Copy)]
pub(crate) enum Signaling {
    Cm,
    Tcp,
}

/// Number of a test's network, and its number of servers.
type Servers = (u8, u8);

fn open(signaling: Signaling, (net, count): Servers, own: usize) -> Group {
    match signaling {
        Signaling::Cm => Group::open(&hosts(net, count), own, &config()).unwrap(),
        Signaling::Tcp => open_over_tcp(&hosts(net, count), own, &config()),
    }
}

/// The peer of the tests below: run by them, and by nothing else. Says to each message what it is
/// the n-th of.
#[test]
fn peer_process() {
    let Ok(peer) = std::env::var("ROCE_GROUP_PEER") else { return };
    let (signaling, numbers) = match peer.split_once(' ').unwrap() {
        ("tcp", numbers) => (Signaling::Tcp, numbers),
        (_, numbers) => (Signaling::Cm, numbers),
    };
    let numbers: Vec<u8> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let [net, count, own] = numbers[..] else { panic!("{peer}") };
    let group = open(signaling, (net, count), own.into());
    let memory = group.allocate(8).unwrap();
    memory.write(0, &group.incarnation().to_le_bytes()).unwrap();
    group.publish(9, &memory.slice(..).unwrap()).unwrap();
    println!("\nstarted");
    let (member, mut count) = (group.member(0).unwrap(), 0_u64);
    loop {
        let mut answers = Vec::new();
        member.poll(&mut |from: usize, _: &[u8]| answers.push(from)).unwrap();
        for from in answers {
            count += 1;
            // A peer that is gone gets no answer.
            let _ = member.send(from, &count.to_le_bytes());
        }
        member.wait(WAIT).unwrap();
    }
}

/// A server in a process of its own.
pub(crate) fn command(signaling: Signaling, (net, count): Servers, own: usize) -> Command {
    let signaling = match signaling {
        Signaling::Cm => "cm",
        Signaling::Tcp => "tcp",
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "restart::peer_process", "--nocapture"])
        .env("ROCE_GROUP_PEER", format!("{signaling} {net} {count} {own}"))
        .env(RUN, run().to_string())
        .stdout(Stdio::piped());
    command
}

/// Starts a server in a process of its own, and waits until it listens.
pub(crate) fn start(signaling: Signaling, servers: Servers, own: usize) -> Child {
    started(&mut command(signaling, servers, own))
}

pub(crate) fn started(command: &mut Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "started"));
    child
}

#[test]
fn a_killed_server_is_noticed_and_its_successor_is_connected() {
    kill_and_restart(Signaling::Cm);
}

#[test]
fn a_killed_server_is_noticed_and_its_successor_is_connected_by_tcp() {
    kill_and_restart(Signaling::Tcp);
}

/// Servers 0 and 2 are killed and restarted: one that this one dials, and one that dials it.
fn kill_and_restart(signaling: Signaling) {
    let servers = match signaling {
        Signaling::Cm => (10, 3),
        Signaling::Tcp => (11, 3),
    };
    let mut children = [0, 2].map(|own| start(signaling, servers, own));
    let group = open(signaling, servers, 1);
    group.wait_connected(WAIT).unwrap();
    let (member, mut inbox) = (group.member(0).unwrap(), Inbox::default());
    let answers = |inbox: &Inbox, peer: usize| inbox.messages.get(&peer).map_or(0, Vec::len);
    for peer in [0, 2] {
        for number in 0..10 {
            send(&member, &mut inbox, peer, &message(1, 0, number));
        }
        poll_until(&member, &mut inbox, |inbox| answers(inbox, peer) == 10);
    }
    let before = [0, 2].map(|peer| member.incarnation(peer).unwrap().unwrap());
    let memories = [0, 2].map(|peer| member.lookup(peer, 9).unwrap().unwrap());
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for (at, peer) in [0, 2].into_iter().enumerate() {
        let (before, memory) = (before[at], &memories[at]);
        // It is noticed although this side only waits.
        let lost = (peer, Change::Disconnected);
        poll_until(&member, &mut inbox, |inbox| inbox.changes.contains(&lost));
        assert!(matches!(member.post(peer, b"?"), Err(Error::Disconnected(_))));
        children[at] = start(signaling, servers, peer);
        let is_new = |inbox: &Inbox| {
            let same = |it: &(usize, Change)| match it {
                (of, Change::Connected { incarnation, is_same: false, .. }) => {
                    *of == peer && *incarnation != before
                }
                _ => false,
            };
            inbox.changes.iter().any(same)
        };
        poll_until(&member, &mut inbox, is_new);
        // The successor knows nothing of the messages before.
        send(&member, &mut inbox, peer, b"again");
        poll_until(&member, &mut inbox, |inbox| answers(inbox, peer) == 11);
        assert_eq!(inbox.messages[&peer][10], 1_u64.to_le_bytes());
        assert!(memory.read(0, 8).is_err(), "it was of the incarnation before");
        let memory = member.lookup(peer, 9).unwrap().unwrap();
        let now = member.incarnation(peer).unwrap().unwrap();
        assert_eq!(memory.read(0, 8).unwrap(), now.to_le_bytes());
        assert_ne!(now, before);
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
