//! CNPs that are not from the peer, and floods of them that could be.

use roce::engine::congestion::{Congestion, Profile};
use roce::engine::{Counter, Disposition};
use roce::verbs::{AttrMask, QpAttr, QpState, QpType};
use roce::wire::{BthRepr, Extensions, Opcode, PacketRepr, Path, Psn};

use crate::host::{Host, Sent, gid, us};
use crate::seeds_asked;

/// A CNP from `from` to `to`.
pub fn cnp(to: &Host, from: &Host) -> Sent {
    let bth = BthRepr::new(Opcode::CNP, to.end.qpn, Psn::new(0));
    let bth = BthRepr { becn: true, ..bth };
    let mut bytes = Vec::new();
    PacketRepr::new(bth, Extensions::default(), &[0; 16]).unwrap().emit(&mut bytes);
    let path = Path {
        source: from.end.gid,
        destination: to.end.gid,
        source_port: 0xc000,
        traffic_class: 48 << 2,
        hop_limit: 64,
        sl: 6,
        flow_label: roce::wire::Bits::default(),
    };
    Sent { path, bytes }
}

const LINE: u64 = 100_000_000_000;

fn dcqcn() -> [Host; 2] {
    Host::pair(QpType::Rc, |config| config.congestion = Congestion::dcqcn())
}

#[test]
fn forged_cnps_change_no_rate() {
    let [mut a, b] = dcqcn();
    let good = cnp(&a, &b);
    let mut wrong_source = good.clone();
    wrong_source.path.source = gid(9);
    let mut wrong_destination = good.clone();
    wrong_destination.path.destination = gid(9);
    let mut wrong_qp = good.clone();
    wrong_qp.bytes = cnp(&b, &a).bytes;
    let mut native = good.clone();
    // CNPs of another transport class are not RoCE's.
    native.bytes[0] = 0x80;
    let mut cut = good.clone();
    cut.bytes.truncate(8);
    for forged in [&wrong_source, &wrong_destination, &wrong_qp, &native, &cut] {
        assert!(matches!(a.take(us(1), forged, 0), Disposition::Dropped(_)));
        assert_eq!(a.rate(), LINE);
    }
    assert_eq!(a.count(Counter::CnpReceived), 0);
    assert_eq!(a.count(Counter::CnpIgnored), 2, "those from or to other addresses");
    // A queue pair that is not connected any more has no rate.
    let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    a.engine.modify_qp(a.qp, &attr, AttrMask::STATE).unwrap();
    assert!(matches!(a.take(us(2), &good, 0), Disposition::Dropped(_)));
    assert_eq!((a.rate(), a.count(Counter::RateCut)), (LINE, 0));
    assert_eq!(a.engine.poll_timeout(), None);
}

#[test]
fn a_flood_of_plausible_cnps_leaves_the_rate_at_its_floor() {
    let count = if seeds_asked().is_some() { 1_000_000 } else { 50_000 };
    for (profile, text, floor) in [
        (Profile::Paper, "dcqcn", LINE / 400),
        (Profile::Nvidia, "dcqcn", 1_000_000),
        (Profile::Paper, "dcqcn:rp_min_rate=250", 250_000_000),
    ] {
        let congestion = Congestion::parse(text, profile).unwrap();
        let [mut a, b] = Host::pair(QpType::Rc, |config| config.congestion = congestion.clone());
        a.write(b.memory(), 1 << 20);
        let good = cnp(&a, &b);
        let mut least = u64::MAX;
        for turn in 0..count {
            // Ten come each microsecond.
            assert_eq!(a.take(us(turn / 10), &good, 0), Disposition::Accepted);
            if turn % 16 == 0 {
                a.all(us(turn / 10));
            }
            least = least.min(a.rate());
        }
        let next = a.engine.poll_timeout().expect("it waits for its pacer");
        assert!(next <= us(count / 10 + 10_000), "and not for long: {next}");
        assert_eq!((least, a.rate()), (floor, floor), "{text}");
    }
}
