//! Mutations, one by one.

use super::scripts;
use crate::capture::Record;
use crate::decode::{Decoder, FieldRef, Value};
use crate::replay::live::*;
use crate::wire::{Frame, IcrcVerdict, LinkType, ROCE_PORT};

fn frames() -> Vec<(usize, Outgoing)> {
    let all = scripts();
    let script = &all[0];
    let kept: Vec<usize> = (0..20).collect();
    sequence(script, &Target::default(), &kept)
}

fn value(out: &Outgoing, name: &str) -> u64 {
    let bytes = out.emit();
    let context = Decoder::new(ROCE_PORT).decode(&Record::frame(LinkType::ETHERNET, &bytes));
    let field = FieldRef::find(name).unwrap();
    match field.values(&context).next().unwrap().1 {
        Value::Uint(value) => value,
        other => panic!("{other:?}"),
    }
}

fn verdict(out: &Outgoing) -> Option<IcrcVerdict> {
    let bytes = out.emit();
    Frame::parse(LinkType::ETHERNET, &bytes, ROCE_PORT).icrc()
}

fn field(name: &'static str, change: Change) -> Mutation {
    Mutation { at: 3, kind: MutationKind::Field(name, change) }
}

#[test]
fn field_is_changed_as_asked_and_the_icrc_is_made_anew() {
    let before = frames();
    for (name, change, expected) in [
        ("infiniband.bth.psn", Change::Set(77), 77),
        ("infiniband.bth.psn", Change::Add(-1), value(&before[3].1, "infiniband.bth.psn") - 1),
        ("infiniband.bth.padcnt", Change::Set(3), 3),
        ("infiniband.bth.a", Change::Flip(0), value(&before[3].1, "infiniband.bth.a") ^ 1),
        ("infiniband.bth.opcode", Change::Set(0x1ff), 0xff),
    ] {
        let after = mutate(before.clone(), &[field(name, change)]);
        assert_eq!(value(&after[3].1, name), expected, "{name}");
        assert_eq!(verdict(&after[3].1), Some(IcrcVerdict::Ok), "{name}");
        let others = |frames: &[(usize, Outgoing)]| {
            frames.iter().filter(|(at, _)| *at != 3).cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&before), others(&after), "{name}");
    }
}

#[test]
fn headers_below_the_bth_are_changed_with_their_checksums() {
    for (name, new) in [("ip.ttl", 7), ("udp.srcport", 0xc001), ("ip.id", 0x1234)] {
        let after = mutate(frames(), &[field(name, Change::Set(new))]);
        let out = &after[3].1;
        assert!(!out.edits.is_empty());
        assert_eq!((value(out, name), verdict(out)), (new, Some(IcrcVerdict::Ok)), "{name}");
        let bytes = out.emit();
        assert_eq!(crate::wire::checksum([&bytes[14..34]]), 0, "{name}");
    }
    let wrong = mutate(frames(), &[field("ip.checksum", Change::Set(1))]);
    assert_ne!(crate::wire::checksum([&wrong[3].1.emit()[14..34]]), 0);
}

#[test]
fn icrc_length_and_order_are_changed_as_asked() {
    let before = frames();
    let one = |kind| mutate(before.clone(), &[Mutation { at: 3, kind }]);
    let damaged = one(MutationKind::Icrc(0x80));
    assert_eq!(verdict(&damaged[3].1), Some(IcrcVerdict::Bad));
    let by_name = mutate(before.clone(), &[field("infiniband.invariant.crc", Change::Flip(0))]);
    assert_eq!(verdict(&by_name[3].1), Some(IcrcVerdict::Bad));
    let len = before[3].1.packet.len();
    assert_eq!(one(MutationKind::Length(5))[3].1.packet.len(), len + 5);
    assert_eq!(one(MutationKind::Length(-10_000))[3].1.packet.len(), 12);
    let order = |frames: Vec<(usize, Outgoing)>| {
        frames.iter().map(|(at, _)| *at).take(6).collect::<Vec<_>>()
    };
    assert_eq!(order(one(MutationKind::Drop)), [0, 1, 2, 4, 5, 6]);
    assert_eq!(order(one(MutationKind::Double)), [0, 1, 2, 3, 3, 4]);
    assert_eq!(order(one(MutationKind::Swap)), [0, 1, 2, 4, 3, 5]);
    // The last has nothing to be swapped with, and is sent all the same.
    let last = Mutation { at: 19, kind: MutationKind::Swap };
    assert_eq!(mutate(before.clone(), &[last]).len(), before.len());
}

#[test]
fn specs_are_read_or_refused_with_the_cure() {
    for text in [
        "any",
        "psn",
        "infiniband.bth.psn=+1",
        "opcode=flip,drop",
        "key=0x10",
        "va=neighbor",
        "ip.ttl=random",
    ] {
        text.parse::<MutateSpec>().unwrap();
    }
    for (text, cure) in
        [("color", "neither a field"), ("psn=blue", "neighbor and random"), ("", "neither a field")]
    {
        let error = text.parse::<MutateSpec>().unwrap_err();
        assert!(error.contains(cure), "{text}: {error}");
    }
    assert!("ip.ttl".parse::<MutateSpec>().unwrap().needs_frames());
    assert!(!"psn,drop".parse::<MutateSpec>().unwrap().needs_frames());
}

#[test]
fn chance_reaches_every_kind_and_many_fields_by_seed_alone() {
    let (frames, spec) = (frames(), "any".parse::<MutateSpec>().unwrap());
    let chosen = |seed| spec.choose(&mut MutateSeed::new(seed), &frames, Reach::Transport).unwrap();
    let mut names = std::collections::BTreeSet::new();
    for seed in 0..600 {
        let mutation = chosen(seed);
        assert_eq!(mutation, chosen(seed));
        names.insert(match mutation.kind {
            MutationKind::Field(name, _) => name.to_owned(),
            other => format!("{other:?}").split('(').next().unwrap().to_owned(),
        });
    }
    for name in [
        "Icrc",
        "Length",
        "Drop",
        "Double",
        "Swap",
        "infiniband.bth.psn",
        "infiniband.bth.opcode",
        "infiniband.bth.padcnt",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(names.iter().all(|name| !name.starts_with("ip.")), "{names:?}");
}

#[test]
fn psns_close_up_where_requests_are_left_out() {
    let all = scripts();
    let script = &all[0];
    let sequences = |kept: &[usize]| {
        let frames = sequence(script, &Target::default(), kept);
        let psn = |out: &Outgoing| value(out, "infiniband.bth.psn");
        frames.iter().map(|(_, out)| psn(out)).collect::<Vec<_>>()
    };
    let first = u64::from(script.first_psn.get());
    let follow = |count: u64| (0..count).map(|it| (first + it) % (1 << 24)).collect::<Vec<_>>();
    assert_eq!(sequences(&[0, 1, 2]), follow(3));
    assert_eq!(sequences(&[5, 9, 11]), follow(3));
}

#[test]
fn minimization_finds_all_that_is_needed_and_no_more() {
    let items: Vec<u32> = (0..100).collect();
    let mut asked = 0;
    let found = minimize(&items, |part| {
        asked += 1;
        Ok::<_, ()>(part.contains(&17) && part.contains(&18) && part.contains(&93))
    });
    assert_eq!(found.unwrap(), [17, 18, 93]);
    assert!(asked < ATTEMPTS_MAX, "{asked}");
    let all = minimize(&items[..5], |part| Ok::<_, ()>(part.len() == 5)).unwrap();
    assert_eq!(all, [0, 1, 2, 3, 4]);
}
