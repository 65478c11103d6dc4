//! A server that is killed and starts again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use roce::group::{Change, Error, Group};

use crate::{Inbox, WAIT, config, hosts, message, open_over_tcp, poll_until, send};

/// How the servers of a test connect.
#[derive(Clone, Copy)]
enum Signaling {
    Cm,
    Tcp,
}

fn open(signaling: Signaling, own: usize) -> Group {
    match signaling {
        Signaling::Cm => Group::open(&hosts(10, 3), own, &config()).unwrap(),
        Signaling::Tcp => open_over_tcp(&hosts(11, 3), own, &config()),
    }
}

/// The peer of the tests below: run by them, and by nothing else. Says to each message what it is the n-th of.
#[test]
fn peer_process() {
    let Ok(peer) = std::env::var("ROCE_GROUP_PEER") else { return };
    let (signaling, own) = match peer.split_once(' ').unwrap() {
        ("tcp", own) => (Signaling::Tcp, own),
        (_, own) => (Signaling::Cm, own),
    };
    let group = open(signaling, own.parse().unwrap());
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

fn start(signaling: Signaling, own: usize) -> Child {
    let signaling = match signaling {
        Signaling::Cm => "cm",
        Signaling::Tcp => "tcp",
    };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restart::peer_process", "--nocapture"])
        .env("ROCE_GROUP_PEER", format!("{signaling} {own}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
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
    let mut children = [0, 2].map(|own| start(signaling, own));
    let group = open(signaling, 1);
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
        children[at] = start(signaling, peer);
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
