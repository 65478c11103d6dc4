//! Groups that end, and peers that are gone.

use std::time::{Duration, Instant};

use roce::group::{Change, Error, Group, Hosts, Secret};

use crate::restart::{Signaling, command, start, started};
use crate::{Inbox, WAIT, config, hosts, message, open, open_over_tcp, poll_until, send};

/// End of a group of a test.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Drop,
}

/// Server 0 posts messages and ends at once; server 1 has all of them, and learns that it has left.
fn end_after_posting(hosts: &Hosts, open: impl Fn(usize) -> Group, end: End, count: usize) {
    let groups = [0, 1].map(&open);
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    let [ending, staying] = groups;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (member, mut inbox) = (ending.member(0).unwrap(), Inbox::default());
            for number in 0..count {
                send(&member, &mut inbox, 1, &message(0, 0, number));
            }
            match end {
                End::Close => ending.close().unwrap(),
                End::Drop => drop(ending),
            }
            assert!(member.post(1, b"too late").is_err());
        });
        let (member, mut inbox) = (staying.member(0).unwrap(), Inbox::default());
        poll_until(&member, &mut inbox, |_| member.check(0).is_err());
        let gone = member.check(0).unwrap_err();
        assert!(matches!(gone, Error::Left(0)), "{gone}");
        let expected: Vec<_> = (0..count).map(|number| message(0, 0, number)).collect();
        let got = inbox.messages.get(&0).map_or(0, Vec::len);
        assert!(got == count && inbox.messages[&0] == expected, "{got} of {count}: {hosts}");
        assert_eq!(inbox.changes.last(), Some(&(0, Change::Left { dropped: 0 })));
        assert!(matches!(member.post(0, b"?"), Err(Error::Left(0))));
    });
}

#[test]
fn a_group_that_ends_delivers_what_was_posted() {
    let hosts = hosts(20, 2);
    for end in [End::Close, End::Drop] {
        end_after_posting(&hosts, |own| open(&hosts, own, &config(), None), end, 100);
    }
}

#[test]
fn a_group_that_ends_on_a_bad_network_delivers_what_was_posted() {
    let (hosts, faults) = (hosts(21, 2), Some("loss=15%,reorder=5%"));
    // A connection is given up soon, so that the end has to make new ones.
    let config = config().linger(WAIT).net(config().net.retries(1));
    for end in [End::Close, End::Drop, End::Close, End::Drop] {
        end_after_posting(&hosts, |own| open(&hosts, own, &config, faults), end, 30);
    }
}

#[test]
fn a_group_over_tcp_that_ends_delivers_what_was_posted() {
    let hosts = hosts(22, 2);
    for end in [End::Close, End::Drop] {
        end_after_posting(&hosts, |own| open_over_tcp(&hosts, own, &config()), end, 100);
    }
}

#[test]
fn what_cannot_be_delivered_is_returned() {
    let (mut child, hosts) = (start(Signaling::Cm, (23, 2), 1), hosts(23, 2));
    let config = config().linger(Duration::from_millis(300));
    let group = Group::open(&hosts, 0, &config).unwrap();
    group.wait_connected(WAIT).unwrap();
    let member = group.member(0).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut posted = 0;
    while posted < 5 && member.post(1, &message(0, 0, posted)).is_ok() {
        posted += 1;
    }
    match group.close() {
        Err(Error::Undelivered(undelivered)) => {
            let expected: Vec<_> = (0..posted).map(|number| message(0, 0, number)).collect();
            assert_eq!(undelivered.len(), 1);
            assert_eq!((undelivered[0].server, undelivered[0].thread), (1, 0));
            assert_eq!(undelivered[0].messages, expected);
            let error = Error::Undelivered(undelivered).to_string();
            assert_eq!(error, format!("{posted} messages were not delivered, to server 1"));
        }
        other => assert!(posted == 0 && other.is_ok(), "{other:?} after {posted} messages"),
    }
}

#[test]
fn a_wait_for_a_peer_that_was_killed_ends() {
    for peer in [0, 2] {
        // One that this server dials, and one that dials it.
        let (mut child, hosts) = (start(Signaling::Cm, (24, 3), peer), hosts(24, 3));
        let config = config().lost_after(Duration::from_millis(500));
        let group = Group::open(&hosts, 1, &config).unwrap();
        let (member, mut inbox) = (group.member(0).unwrap(), Inbox::default());
        poll_until(&member, &mut inbox, |_| member.is_connected(peer));
        child.kill().unwrap();
        child.wait().unwrap();
        poll_until(&member, &mut inbox, |_| member.check(peer).is_err());
        assert!(matches!(member.check(peer), Err(Error::Lost(it)) if it == peer));
        assert!(matches!(member.post(peer, b"?"), Err(Error::Lost(it)) if it == peer));
        assert!(inbox.changes.ends_with(&[(peer, Change::Disconnected), (peer, Change::Lost)]));
        // Its successor is connected all the same.
        let _child = start(Signaling::Cm, (24, 3), peer);
        poll_until(&member, &mut inbox, |_| member.is_connected(peer));
        member.check(peer).unwrap();
    }
}

#[test]
fn members_prove_the_secret_of_the_group() {
    let hosts = hosts(25, 2);
    let with = |secret: &str| config().secret(Secret::new(secret));
    let groups = [0, 1].map(|own| open(&hosts, own, &with("the same"), None));
    groups.iter().for_each(|group| group.wait_connected(WAIT).unwrap());
    drop(groups);
    assert!(!format!("{:?}", with("hush")).contains("hush"), "a secret is not printed");
    for configs in [[with("one"), with("other")], [with("one"), config()], [config(), with("one")]]
    {
        let [a, b] = configs;
        let groups = [open(&hosts, 0, &a, None), open(&hosts, 1, &b, None)];
        let end = Instant::now() + WAIT;
        // Server 1 dials, and is told first.
        let why = loop {
            let error = groups[1].wait_connected(Duration::from_millis(100)).unwrap_err();
            let error = error.to_string();
            if error.contains("secret") {
                break error;
            }
            assert!(Instant::now() < end, "{error}");
        };
        assert!(why.starts_with("server 0 is not connected: "), "{why}");
        assert!(!groups[0].member(0).unwrap().is_connected(1));
    }
}

#[test]
fn members_with_another_list_are_not_connected() {
    let lists = [2, 3].map(|count| hosts(26, count));
    let groups = [open(&lists[0], 0, &config(), None), open(&lists[1], 1, &config(), None)];
    let end = Instant::now() + WAIT;
    loop {
        let error = groups[1].wait_connected(Duration::from_millis(100)).unwrap_err().to_string();
        if error.contains("another list of servers") {
            return;
        }
        assert!(Instant::now() < end, "{error}");
    }
}

/// The secret of the environment, in a process of its own.
#[test]
fn secret_may_come_from_the_environment() {
    let hosts = hosts(27, 2);
    let secret = Secret::new("of the environment");
    let group = Group::open(&hosts, 0, &config().secret(secret)).unwrap();
    let mut command = command(Signaling::Cm, (27, 2), 1);
    command.env("ROCE_GROUP_SECRET", "of the environment");
    let _child = started(&mut command);
    group.wait_connected(WAIT).unwrap();
}
