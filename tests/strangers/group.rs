//! Strangers against members of `roce::group`.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use roce::group::{Change, Config, Group, Handler, Hosts, Member, Secret};

use super::harness::{
    Count, LONG, ThirdParty, UdpStranger, address, assert_not_amplified, wait_until,
};
use super::packets::{REP, REQ, RTU, Request, management, message_of, rtu};

const PORT: u16 = 7020;

fn hosts(numbers: &[u16]) -> Hosts {
    Hosts::new(numbers.iter().map(|number| (address(*number), PORT).into())).unwrap()
}

fn config() -> Config {
    Config::default().secret(Secret::new("the group's secret"))
}

/// Messages that a member has received, and its events.
#[derive(Default)]
struct Inbox {
    messages: usize,
    changes: Vec<Change>,
}

impl Handler for Inbox {
    fn message(&mut self, _: usize, _: &[u8]) {
        self.messages += 1;
    }

    fn change(&mut self, _: usize, change: Change) {
        self.changes.push(change);
    }
}

/// Servers 0 and 1 of a list send to each other and see no change of their connection.
struct Pair {
    groups: [Group; 2],
    members: [Member; 2],
    inboxes: [Inbox; 2],
}

impl Pair {
    fn start(hosts: &Hosts) -> Self {
        let groups = [0, 1].map(|own| Group::open(hosts, own, &config()).unwrap());
        let members = groups.each_ref().map(|group| group.member(0).unwrap());
        let mut pair = Self { groups, members, inboxes: Default::default() };
        wait_until("the honest pair is connected", || {
            pair.members[0].is_connected(1) && pair.members[1].is_connected(0)
        });
        pair.exchange();
        pair.inboxes = Default::default();
        pair
    }

    /// Each sends a message that the other one receives.
    #[track_caller]
    fn exchange(&mut self) {
        let before = self.inboxes.each_ref().map(|inbox| inbox.messages);
        let end = Instant::now() + LONG;
        for own in [0, 1] {
            self.members[own].send(1 - own, b"honest").unwrap();
        }
        while self.inboxes.iter().zip(before).any(|(inbox, before)| inbox.messages == before) {
            assert!(Instant::now() < end, "the honest pair does not receive");
            for own in [0, 1] {
                self.members[own].poll(&mut self.inboxes[own]).unwrap();
                self.members[own].wait(Duration::from_millis(1)).unwrap();
            }
        }
    }

    #[track_caller]
    fn assert_undisturbed(&mut self) {
        self.exchange();
        for inbox in &self.inboxes {
            assert_eq!(inbox.changes, [], "the connection of the honest pair has changed");
        }
    }
}

/// Returns the messages of a stranger that claims to be a server of a group: the connection's
/// hello, and the group's.
fn hello(server: u16, incarnation: u64, attempt: u32) -> Vec<u8> {
    let mut bytes = vec![b'r', b'N', 1, 16, 0, 2, 36, 0];
    bytes.extend(0x1_0000_u64.to_le_bytes());
    bytes.extend(0x77_u32.to_le_bytes());
    bytes.extend(b"rG\x02\0");
    bytes.extend(server.to_le_bytes());
    bytes.extend(0_u16.to_le_bytes());
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(attempt.to_le_bytes());
    bytes.extend([9; 16]);
    assert_eq!(bytes.len(), 56);
    bytes
}

fn request<'a>(from: Ipv4Addr, to: Ipv4Addr, number: u32, private_data: &'a [u8]) -> Request<'a> {
    let (comm_id, qpn) = (0x6000_0000 | number, 0x5000 + number);
    let (gid, claimed) = (from, from);
    Request { gid, claimed, to, port: PORT, comm_id, ca_guid: 0x99, qpn, private_data }
}

fn ask(stranger: &mut UdpStranger, from: Ipv4Addr, request: &Request<'_>) -> Option<Vec<u8>> {
    stranger.send(request.to, &management(from, request.to, REQ, &request.message()));
    loop {
        let packet = stranger.receive(LONG).expect("an answer comes");
        let (attribute, message) = message_of(&packet)?;
        if message[4..8] == request.comm_id.to_be_bytes() {
            return (attribute == REP).then(|| message.to_vec());
        }
    }
}

#[test]
fn claims_from_an_address_in_no_list_change_nothing() {
    let numbers = [0x0310, 0x0311];
    let mut pair = Pair::start(&hosts(&numbers));
    let (mut stranger, from) = (UdpStranger::new(0x0312), address(0x0312));
    let third = ThirdParty::new(0x0313);
    for number in 0..20 {
        // Of server 1, as itself or as a new run, and of servers that there are not.
        let hello = hello([1, 1, 0, 7][number as usize % 4], u64::from(number), 100 + number);
        let mut request = request(from, address(numbers[0]), number, &hello);
        if number % 5 == 4 {
            request.gid = third.address;
            stranger.send(request.to, &management(from, request.to, REQ, &request.message()));
        } else {
            assert_eq!(ask(&mut stranger, from, &request), None, "it is refused");
        }
        pair.assert_undisturbed();
    }
    third.assert_untouched();
    let answered = stranger.drain();
    assert_not_amplified(stranger.sent, answered);
}

#[test]
fn a_stranger_at_the_address_of_an_absent_server_proves_nothing() {
    let numbers = [0x0314, 0x0315, 0x0316];
    let list = hosts(&numbers);
    let mut pair = Pair::start(&list);
    let from = address(numbers[2]);
    {
        // Half-open, connected and silent, replayed: server 2 itself is not there yet.
        let mut stranger = UdpStranger::new(numbers[2]);
        let mut first = None;
        for number in 0..6 {
            let hello = hello(2, 5, 1 + number);
            let request = request(from, address(numbers[0]), number, &hello);
            if let Some(rep) = ask(&mut stranger, from, &request)
                && number % 2 == 1
            {
                let peer = u32::from_be_bytes(*rep.first_chunk().unwrap());
                let rtu = management(from, request.to, RTU, &rtu(request.comm_id, peer));
                stranger.send(request.to, &rtu);
                first.get_or_insert(rtu);
            }
            if let Some(rtu) = &first {
                stranger.send(address(numbers[0]), rtu);
            }
            pair.assert_undisturbed();
            assert!(!pair.members[0].is_connected(2), "it has not proved itself");
        }
        let answered = stranger.drain();
        assert!(answered != Count::default() && !pair.members[0].is_connected(2));
        assert_not_amplified(stranger.sent, answered);
    }
    // The address is free: the server itself is connected, whatever was claimed in its name.
    let late = Group::open(&list, 2, &config()).unwrap();
    late.wait_connected(LONG).unwrap();
    assert!(pair.members[0].is_connected(2));
    pair.exchange();
    drop(pair.groups);
}
