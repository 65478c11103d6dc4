//! Scripts of real captures, rewritten: every field of every packet.

mod hunting;
mod mutations;
mod playing;

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use super::*;
use crate::capture::Reader;
use crate::decode::Decoder;
use crate::wire::{
    Frame, Gid, IcrcVerdict, LinkType, MacAddr, Network, Operation, Packet, Psn, Qpn, RKey,
    ROCE_PORT, Service,
};

/// The scripts of a capture of all operations, read once.
fn scripts() -> &'static [Script] {
    static ALL: LazyLock<Vec<Script>> = LazyLock::new(|| read("rxe_all_ops.pcap"));
    &ALL
}

fn read(name: &str) -> Vec<Script> {
    let path = format!("{}/testdata/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    let (mut decoder, mut collector) = (Decoder::new(ROCE_PORT), Collector::new());
    while let Some(record) = reader.next().unwrap() {
        collector.frame(&decoder.decode(&record)).unwrap();
    }
    collector.finish()
}

fn address(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, last))
}

/// A target that changes everything.
fn everything(script: &Script) -> Target {
    let needs = Needs::of(script).unwrap();
    let memory = needs.regions.iter().zip(1..).map(|(region, index)| MemoryMap {
        old_rkey: Some(region.rkey),
        old_start: region.start,
        len: Some(region.bytes.len() as u64),
        new_rkey: Some(RKey::new(0xabc0_0000 | index)),
        new_start: u64::from(index) << 40,
    });
    Target {
        source: Some(address(1)),
        destination: Some(address(2)),
        source_mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        destination_mac: Some(MacAddr([2, 0, 0, 0, 0, 2])),
        vlan: VlanMap::Set(0x6123),
        source_port: Some(0xd123),
        qpn: Some(Qpn::new(0x00ab_cdef)),
        source_qpn: Some(Qpn::new(0x0012_3456)),
        first_psn: Some(Psn::new(0xff_fff0)),
        qkey: None,
        srq: None,
        memory: memory.collect(),
    }
}

#[test]
fn every_field_of_every_rewritten_request_is_mapped_or_kept() {
    let mut operations = std::collections::BTreeSet::new();
    let all = scripts();
    assert!(all.len() > 10, "{}", all.len());
    for script in all.iter().filter(|script| script.service == Service::Rc) {
        let target = everything(script);
        for request in script.requests() {
            let bytes = target.request(script, request, 5).emit();
            let frame = Frame::parse(LinkType::ETHERNET, &bytes, ROCE_PORT);
            assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
            let ethernet = frame.ethernet().unwrap();
            assert_eq!(ethernet.source(), MacAddr([2, 0, 0, 0, 0, 1]));
            assert_eq!(ethernet.destination(), MacAddr([2, 0, 0, 0, 0, 2]));
            assert_eq!(&bytes[12..18], [0x81, 0, 0x61, 0x23, 8, 0]);
            let Some(Network::Ipv4 { header, .. }) = frame.network() else { panic!() };
            assert_eq!(Gid::from(header.source()), address(1));
            assert_eq!(Gid::from(header.destination()), address(2));
            assert_eq!(header.ttl(), request.envelope.path.hop_limit);
            assert_eq!(crate::wire::checksum([header.as_bytes()]), 0);
            assert_eq!(frame.udp().unwrap().source_port(), 0xd123);
            check_packet(&target, request, frame.packet().unwrap());
            operations.insert(format!("{:?}", request.operation().unwrap()));
        }
    }
    let all: Vec<&str> = operations.iter().map(String::as_str).collect();
    assert_eq!(all, ["CompareSwap", "FetchAdd", "ReadRequest", "Send", "Write"]);
}

/// Holds the transport headers of a rewritten request against those of the capture.
fn check_packet(target: &Target, request: &Captured, found: &Packet<'_>) {
    let was = request.view().unwrap();
    let (old, new) = (was.bth().repr(), found.bth().repr());
    let sequence = u32::try_from(request.sequence).unwrap();
    let psn = Psn::new(0xff_fff0).plus(sequence + 5);
    assert_eq!(new, crate::wire::BthRepr { dest_qp: Qpn::new(0x00ab_cdef), psn, ..old });
    assert_eq!(found.payload(), was.payload());
    assert_eq!(found.imm_dt().map(|it| it.repr()), was.imm_dt().map(|it| it.repr()));
    let mapped = |rkey: RKey, va: u64| {
        let fits = |map: &&MemoryMap| {
            map.old_rkey == Some(rkey)
                && (map.old_start..map.old_start + map.len.unwrap()).contains(&va)
        };
        let map = target.memory.iter().find(fits);
        map.map_or((rkey, va), |map| (map.new_rkey.unwrap(), va - map.old_start + map.new_start))
    };
    if let Some(reth) = was.reth() {
        let (rkey, va) = mapped(reth.rkey(), reth.va());
        let repr = crate::wire::RethRepr { rkey, va, ..reth.repr() };
        assert_eq!(found.reth().unwrap().repr(), repr);
    }
    if let Some(eth) = was.atomic_eth() {
        let (rkey, va) = mapped(eth.rkey(), eth.va());
        let repr = crate::wire::AtomicEthRepr { rkey, va, ..eth.repr() };
        assert_eq!(found.atomic_eth().unwrap().repr(), repr);
    }
}

#[test]
fn request_that_nothing_is_mapped_of_is_the_captured_frame() {
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/captures/rxe_all_ops.pcap"));
    let bytes = bytes.unwrap();
    let mut reader = Reader::new(bytes.as_slice()).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        frames.push(record.data.to_vec());
    }
    let mut count = 0;
    for script in scripts() {
        for event in &script.events {
            let captured = event.packet();
            let out = match event {
                Event::Request(it) => Target::default().request(script, it, 0),
                Event::Answer(it) => Target::default().answer(script, it, 0),
            };
            let index = usize::try_from(captured.frame - 1).unwrap();
            let mut emitted = out.emit();
            let was = Frame::parse(LinkType::ETHERNET, &frames[index], ROCE_PORT);
            // A sender that does not set UDP checksums and padding of short frames are all that may
            // differ.
            let len = emitted.len();
            let at = out.bth_at();
            emitted[at - 2..at].copy_from_slice(&frames[index][at - 2..at]);
            assert!(was.icrc() == Some(IcrcVerdict::Ok));
            assert_eq!(emitted, frames[index][..len], "frame {}", captured.frame);
            count += 1;
        }
    }
    assert!(count > 2000, "{count}");
}

#[test]
fn operation_names_are_those_of_the_table() {
    let all = scripts();
    let reads = all.iter().flat_map(Script::requests);
    let read = reads.filter(|it| it.operation() == Some(Operation::ReadRequest));
    let long = read.map(|it| it.span(256)).max().unwrap();
    assert!(long > 1, "a READ takes one PSN for each packet of its response");
}
