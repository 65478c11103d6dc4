//! Captures of two soft NICs that play the scenarios of `roce conform`.

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
use roce::wire::{Gid, Ipv4, LinkType, Udp, view};

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

/// Plays all scenarios that are built in, with their faults; returns what each NIC captured, as it sent and received it.
pub fn captures() -> [Vec<u8>; 2] {
    let files = [File::default(), File::default()];
    let [a, b] = gids();
    let (a, b) = cable(a, b).unwrap();
    let agent = |link: Link, file: &File| {
        let (link, wire) = wire::watch(link);
        let link = tap::tap(link, file.clone(), EPOCH).unwrap();
        Agent { device: Arc::new(SoftNic::start(link).unwrap()), wire: Some(wire), gid_index: None }
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
