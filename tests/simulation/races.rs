//! Numbers that several queue pairs change at once: whatever the order was, there was one.

use std::collections::BTreeMap;

use super::model::{Local, Request};
use super::plan::{Key, Race};
use super::world::World;

/// Follows every number from its first value to its last. What it finds is put into `expected`.
pub fn check(world: &World<'_>, expected: &mut [Vec<u8>], label: &str) {
    for race in &world.plan.races {
        check_race(world, race, expected, label);
    }
}

/// A request that was answered: who asked, in which place, what was there, and what it put there
/// instead.
struct Answered {
    asker: (usize, usize),
    was: u64,
    becomes: Option<u64>,
}

fn check_race(world: &World<'_>, race: &Race, expected: &mut [Vec<u8>], label: &str) {
    let label = format!("{label}: number at {} of region {}", race.at, race.key);
    let Key::Region { bytes, .. } = &world.plan.keys[race.key] else { unreachable!("a region") };
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes[race.at..race.at + 8].try_into().unwrap());
    let (first, last) = (number(bytes), number(&world.buffers[race.key].to_vec()));
    let answered: Vec<_> = race.ops.iter().map(|op| answer(world, *op, expected)).collect();
    expected[race.key][race.at..race.at + 8].copy_from_slice(&last.to_ne_bytes());
    // Values are so random that none comes twice: what was there says who was before.
    let mut changes = BTreeMap::new();
    for op in &answered {
        if let Some(becomes) = op.becomes {
            let other = changes.insert(op.was, becomes);
            assert_eq!(other, None, "{label}: two changed the same value");
        }
    }
    let (mut value, mut order) = (first, BTreeMap::from([(first, 0)]));
    while let Some(next) = changes.remove(&value) {
        value = next;
        order.insert(value, order.len());
    }
    assert!(changes.is_empty(), "{label}: {} changes were lost", changes.len());
    assert_eq!(value, last, "{label}: the last value");
    // One asker's requests are executed in its order.
    let mut seen: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for op in &answered {
        let at = order.get(&op.was).copied();
        let at = at.unwrap_or_else(|| panic!("{label}: {:#x} was never there", op.was));
        let before = seen.insert(op.asker, at);
        assert!(before <= Some(at), "{label}: {:?} saw it go backwards", op.asker);
    }
}

fn answer(
    world: &World<'_>,
    (link, flow, op): (usize, usize, usize),
    expected: &mut [Vec<u8>],
) -> Answered {
    let work = &world.plan.links[link].flows[flow].posts[op].work;
    let Local::Pieces(pieces) = &work.local else { unreachable!("an answer has a place") };
    let mut bytes = [0; 8];
    world.buffers[pieces[0].key].read(pieces[0].at, &mut bytes).unwrap();
    expected[pieces[0].key][pieces[0].at..pieces[0].at + 8].copy_from_slice(&bytes);
    let was = u64::from_ne_bytes(bytes);
    let becomes = match work.request {
        Request::Add { add, .. } => Some(was.wrapping_add(add)),
        Request::Swap { compare, swap, .. } => (was == compare).then_some(swap),
        _ => unreachable!("it changes a number"),
    };
    Answered { asker: (link, flow), was, becomes }
}
