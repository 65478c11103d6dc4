//! Links on devices in memory, in virtual time.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};

use super::*;
use crate::link::interface::gid;
use crate::link::testing::{PATH, PATH_V6, batch_of};
use crate::time::Instant;
use crate::wire::{Gid, Path};

/// Frames on the way to one end of a cable.
type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// An end of a cable with room for so many frames in either direction.
struct End {
    arriving: Frames,
    leaving: Frames,
    room: usize,
}

struct Rx(Vec<u8>);

impl phy::RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

struct Tx(Frames);

impl phy::TxToken for Tx {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.lock().unwrap().push_back(frame);
        result
    }
}

impl Device for End {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Rx, Tx)> {
        let frame = self.arriving.lock().unwrap().pop_front()?;
        Some((Rx(frame), Tx(Arc::clone(&self.leaving))))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Tx> {
        let is_full = self.leaving.lock().unwrap().len() >= self.room;
        (!is_full).then(|| Tx(Arc::clone(&self.leaving)))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// A link with the addresses of host 1 or 2 of [`PATH`] and [`PATH_V6`].
fn link(host: u8, device: impl Device + Send + 'static) -> Link {
    let wake = Wake::Every(Duration::from_millis(1));
    let mut config = Config::new("test", mac(host), wake);
    let v6 = format!("2001:db8::{host}").parse().unwrap();
    config.addresses = vec![(Ipv4Addr::new(192, 0, 2, host).into(), 24), (v6, 64)];
    open(device, config).unwrap()
}

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host])
}

/// Two links on a cable, and the frames on the way to either.
fn cable(room: usize) -> ([Link; 2], [Frames; 2]) {
    let ways = [Frames::default(), Frames::default()];
    let end = |arriving: &Frames, leaving: &Frames| End {
        arriving: Arc::clone(arriving),
        leaving: Arc::clone(leaving),
        room,
    };
    let [to_a, to_b] = &ways;
    ([link(1, end(to_a, to_b)), link(2, end(to_b, to_a))], ways)
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// PSNs of the packets that arrive at `link`.
fn receive(link: &mut Link, now: Instant) -> Vec<u32> {
    let mut psns = Vec::new();
    link.receiver.receive(now).unwrap();
    link.receiver.for_each(&mut |received| {
        let psn = received.packet.get(8..12).unwrap();
        psns.push(u32::from_be_bytes(psn.try_into().unwrap()) & 0xff_ffff);
    });
    psns
}

fn counter(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
}

#[test]
fn packets_wait_for_their_neighbor_and_pass_in_order() {
    for path in [PATH, PATH_V6] {
        let ([mut a, mut b], _) = cable(100);
        a.sender.send(at(1), &mut batch_of(&path, &[1, 2, 3])).unwrap();
        a.sender.send(at(1), &mut batch_of(&path, &[4])).unwrap();
        assert_eq!(receive(&mut b, at(1)), [0; 0], "a request for the hardware address");
        assert_eq!(receive(&mut a, at(1)), [0; 0], "its answer");
        assert_eq!(counter(&a.sender.counters(), "tx_held"), 4);
        assert_eq!(receive(&mut b, at(1)), [1, 2, 3, 4]);
        a.sender.send(at(2), &mut batch_of(&path, &[5])).unwrap();
        assert_eq!(receive(&mut b, at(2)), [5]);
        // The peer has learned the way back from the request.
        let back = Path { source: path.destination, destination: path.source, ..path };
        b.sender.send(at(2), &mut batch_of(&back, &[6])).unwrap();
        assert_eq!(receive(&mut a, at(2)), [6]);
        assert_eq!(counter(&b.sender.counters(), "tx_held"), 0);
    }
}

#[test]
fn many_neighbors_are_found_without_waiting_for_each_other() {
    let ([mut a, _], [_, to_b]) = cable(100);
    for host in 10..40_u8 {
        let destination = Gid::from(Ipv4Addr::new(192, 0, 2, host));
        a.sender.send(at(1), &mut batch_of(&Path { destination, ..PATH }, &[1])).unwrap();
    }
    // smoltcp by itself sends one a second.
    let asked = |host: u8| {
        let frames = to_b.lock().unwrap();
        frames.iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == [192, 0, 2, host])
    };
    assert!((10..40).all(asked));
}

#[test]
fn packets_to_a_neighbor_that_does_not_answer_are_dropped_and_counted() {
    let ([mut a, _], _) = cable(100);
    let destination = Gid::from(Ipv4Addr::new(192, 0, 2, 77));
    let path = Path { destination, ..PATH };
    a.sender.send(at(1), &mut batch_of(&path, &[1, 2])).unwrap();
    let deadline = a.receiver.poll_timeout().unwrap();
    assert!(deadline <= at(3001), "{deadline:?}");
    receive(&mut a, at(3000));
    assert_eq!(counter(&a.sender.counters(), "tx_unresolved"), 0);
    receive(&mut a, at(3001));
    assert_eq!(counter(&a.sender.counters(), "tx_unresolved"), 2);
    // No route.
    let destination = Gid::from(Ipv4Addr::new(198, 51, 100, 1));
    a.sender.send(at(4000), &mut batch_of(&Path { destination, ..PATH }, &[3])).unwrap();
    receive(&mut a, at(8000));
    assert_eq!(counter(&a.sender.counters(), "tx_unresolved"), 3);
}

#[test]
fn no_more_packets_wait_than_there_is_room() {
    let ([mut a, _], _) = cable(100);
    for _ in 0..20 {
        a.sender.send(at(1), &mut batch_of(&PATH, &[0; 64])).unwrap();
    }
    let counters = a.sender.counters();
    let held = counter(&counters, "tx_held");
    assert!(held < 1280, "{held}");
    assert_eq!(held + counter(&counters, "tx_held_full"), 1280);
}

#[test]
fn device_without_room_is_tried_again() {
    let ([mut a, mut b], [to_a, to_b]) = cable(4);
    a.sender.send(at(1), &mut batch_of(&PATH, &[1])).unwrap();
    receive(&mut b, at(1));
    receive(&mut a, at(1));
    receive(&mut b, at(1));
    let psns: Vec<u32> = (2..12).collect();
    a.sender.send(at(2), &mut batch_of(&PATH, &psns)).unwrap();
    assert_eq!(a.sender.room(), 0);
    let retry = a.sender.poll_timeout().unwrap();
    let mut arrived = receive(&mut b, retry);
    for _ in 0..3 {
        a.sender.send(retry, &mut batch_of(&PATH, &[])).unwrap();
        arrived.extend(receive(&mut b, retry));
    }
    assert_eq!(arrived, psns);
    assert!(a.sender.room() > 0 && a.sender.poll_timeout().is_none());
    // A device that never has room again.
    for _ in 0..20 {
        a.sender.send(at(3), &mut batch_of(&PATH, &[0; 64])).unwrap();
    }
    assert!(counter(&a.sender.counters(), "tx_queue_full") > 0);
    assert!(to_b.lock().unwrap().len() <= 4 && to_a.lock().unwrap().is_empty());
}

#[test]
fn packets_to_the_link_itself_come_back() {
    let ([mut a, _], [_, to_b]) = cable(100);
    let own = Path { destination: PATH.source, ..PATH };
    a.sender.send(at(1), &mut batch_of(&own, &[1, 2])).unwrap();
    assert_eq!(receive(&mut a, at(1)), [1, 2]);
    // smoltcp tells switches of its groups.
    assert!(to_b.lock().unwrap().iter().all(|frame| frame[..2] == [0x33, 0x33]));
}

#[test]
fn members_of_a_group_get_one_copy_each() {
    let ([mut a, mut b], [_, to_b]) = cable(100);
    for group in ["239.1.2.3", "ff0e::77"] {
        let destination = gid(group.parse().unwrap());
        let path = if destination.to_ipv4().is_some() { PATH } else { PATH_V6 };
        let path = Path { destination, ..path };
        a.sender.send(at(1), &mut batch_of(&path, &[1])).unwrap();
        assert_eq!((receive(&mut a, at(1)).len(), receive(&mut b, at(1)).len()), (0, 0));
        for link in [&mut a, &mut b] {
            link.receiver.join(destination).unwrap();
            link.receiver.join(destination).unwrap();
        }
        let told = |frame: &Vec<u8>| frame[0] & 1 == 1;
        assert!(to_b.lock().unwrap().iter().any(told), "switches learn of the member");
        a.sender.send(at(1), &mut batch_of(&path, &[2])).unwrap();
        assert_eq!((receive(&mut a, at(1)), receive(&mut b, at(1))), (vec![2], vec![2]));
        b.receiver.leave(destination);
        a.sender.send(at(1), &mut batch_of(&path, &[3])).unwrap();
        assert_eq!((receive(&mut a, at(1)), receive(&mut b, at(1))), (vec![3], vec![]));
    }
    assert!(counter(&b.receiver.counters(), "rx_other_group") >= 4);
}

/// A frame as the peer would send it, once the neighbors know each other.
fn sound_frame() -> Vec<u8> {
    let ([mut a, mut b], [_, to_b]) = cable(100);
    a.sender.send(at(1), &mut batch_of(&PATH, &[1])).unwrap();
    receive(&mut b, at(1));
    receive(&mut a, at(1));
    to_b.lock().unwrap().pop_front().unwrap()
}

#[test]
fn damaged_frames_are_refused_by_name_and_do_no_harm() {
    let good = sound_frame();
    let ([_, mut b], [_, to_b]) = cable(100);
    let mut arrive = |frame: Vec<u8>| {
        to_b.lock().unwrap().push_back(frame);
        receive(&mut b, at(1)).len()
    };
    assert_eq!(arrive(good.clone()), 1);
    for len in 0..good.len() {
        assert_eq!(arrive(good[..len].to_vec()), 0, "{len} bytes");
    }
    for byte in 0..good.len() {
        let mut frame = good.clone();
        frame[byte] ^= 0x41;
        arrive(frame);
    }
    let mut long = good.clone();
    long.resize(3000, 0);
    assert_eq!(arrive(long), 0);
    let counters = b.receiver.counters();
    for name in ["rx_cut", "rx_icrc", "rx_other_mac", "rx_control"] {
        assert!(counter(&counters, name) > 0, "{name}: {counters:?}");
    }
}

#[test]
fn strangers_frames_are_bounded() {
    let ([_, mut b], [to_a, to_b]) = cable(10_000);
    // Requests for the hardware address, from many hosts.
    for host in 0..1000_u16 {
        let [high, low] = host.to_be_bytes();
        let sender = [2, 0, 0, 9, high, low];
        let mut frame =
            [&[0xff; 6][..], &sender, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &sender].concat();
        frame.extend([192, 0, 2, 9, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
        to_b.lock().unwrap().push_back(frame);
    }
    receive(&mut b, at(1));
    assert_eq!(to_b.lock().unwrap().len(), 1000 - 64, "one call takes so many");
    for _ in 0..20 {
        receive(&mut b, at(1));
    }
    assert_eq!(to_a.lock().unwrap().len(), 1000, "an answer each");
    assert_eq!(counter(&b.receiver.counters(), "rx_control"), 1000);
}

#[test]
fn addresses_that_are_no_hosts_are_refused() {
    let refused = |addresses: Vec<(&str, u8)>| {
        let mut config = Config::new("test", mac(1), Wake::Every(Duration::from_millis(1)));
        let parse = |(address, len): (&str, u8)| (address.parse().unwrap(), len);
        config.addresses = addresses.into_iter().map(parse).collect();
        let device = phy::Loopback::new(Medium::Ethernet);
        open(device, config).map(|link| link.port.gids).unwrap_err().to_string()
    };
    for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
        assert!(refused(vec![(address, 24)]).contains("not the address of one host"), "{address}");
    }
    assert!(refused(vec![("10.0.0.1", 24); 8]).contains("more than the 7"));
}
