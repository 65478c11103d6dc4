//! Captures of two soft NICs that play the scenarios of `roce conform`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use roce::capture::{PcapWriter, Reader};
use roce::conform::agent::Agent;
use roce::conform::judge::Pair;
use roce::conform::{Side, scenario, wire};
use roce::link::{Link, cable, tap};
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::wire::icrc::{Prefix, Route};
use roce::wire::{Gid, Ipv4, LinkType, Packet, Service, Udp, view};

use super::frames::transport;

/// A file in memory.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A day in 2023.
const EPOCH: Instant = Instant::from_nanos(1_700_000_000_000_000_000);

/// The addresses of the two NICs.
pub fn gids() -> [Gid; 2] {
    [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)))
}

/// Plays all scenarios that are built in, with their faults; returns what each NIC captured, as it
/// sent and received it.
pub fn captures() -> [Vec<u8>; 2] {
    let files = [File::default(), File::default()];
    let [a, b] = gids();
    let (a, b) = cable(a, b).unwrap();
    let agent = |link: Link, file: &File| {
        let (link, wire) = wire::watch(link);
        let link = tap::tap(link, file.clone(), EPOCH).unwrap();
        Agent {
            device: Arc::new(SoftNic::start(link).unwrap()),
            wire: Some(wire),
            gid_index: None,
            manager: None,
        }
    };
    let mut pair = Pair::local(agent(a, &files[0]), agent(b, &files[1])).unwrap();
    for instance in &scenario::built_in().unwrap() {
        pair.play(instance, Side::Requester).unwrap();
    }
    drop(pair);
    let captures = files.map(|file| std::mem::take(&mut *file.0.lock().unwrap()));
    let [a, b] = gids();
    [sealed(&captures[0], a), sealed(&captures[1], b)]
}

/// A capture whose packets from `own` have an ICRC, which they get behind the tap.
fn sealed(capture: &[u8], own: Gid) -> Vec<u8> {
    let mut reader = Reader::new(capture).unwrap();
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    while let Some(record) = reader.next().unwrap() {
        let mut bytes = record.data.to_vec();
        let ip = *view::<Ipv4>(&bytes, 0).unwrap();
        let udp = *view::<Udp>(&bytes, Ipv4::LEN).unwrap();
        if Gid::from(ip.source()) == own {
            let route = Route::Ipv4 { header: &ip, options: &[], udp: &udp };
            Prefix::new(&route).seal(&mut bytes[Ipv4::LEN + Udp::LEN..]);
        }
        writer.write(record.time.unwrap(), bytes.len() as u32, &bytes).unwrap();
    }
    writer.into_inner()
}

/// Returns the packets of unreliable connections in a capture: source, destination queue pair, PSN,
/// for each frame.
fn unreliable(capture: &[u8]) -> Vec<Option<(Ipv4Addr, u32, u32)>> {
    let mut reader = Reader::new(capture).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let source = view::<Ipv4>(record.data, 0).unwrap().source();
        let packet = Packet::parse(transport(record.data)).ok();
        let packet = packet.filter(|it| it.info().is_some_and(|it| it.service == Service::Uc));
        all.push(packet.map(|it| (source, it.bth().dest_qp().get(), it.bth().psn().get())));
    }
    all
}

/// Packets of unreliable connections that a host sent, by the capture made at it.
pub fn sent(capture: &[u8]) -> HashSet<(Ipv4Addr, u32, u32)> {
    unreliable(capture).into_iter().flatten().collect()
}

/// The frames of unreliable connections of which the capture misses something that the peer sent.
pub fn lossy(capture: &[u8], sent: &HashSet<(Ipv4Addr, u32, u32)>) -> HashSet<u64> {
    let all = unreliable(capture);
    let seen: HashSet<_> = all.iter().copied().flatten().collect();
    let lossy: HashSet<_> = sent.difference(&seen).map(|&(source, qpn, _)| (source, qpn)).collect();
    let frames = (1..).zip(all).filter_map(|(frame, packet)| Some((frame, packet?)));
    frames.filter(|(_, (source, qpn, _))| lossy.contains(&(*source, *qpn))).map(|it| it.0).collect()
}
