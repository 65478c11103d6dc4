//! Numbers that several queue pairs change by ATOMICs at once: the results must be those of some
//! order of the requests.

use std::collections::BTreeMap;

use super::model::{Local, Request};
use super::plan::{Key, Race};
use super::world::World;

/// Checks every race from the first value of its number to the last. Writes the results of the
/// requests, and the last values, to `expected`.
pub fn check(world: &World<'_>, expected: &mut [Vec<u8>], label: &str) {
    for race in &world.plan.races {
        check_race(world, race, expected, label);
    }
}

/// An ATOMIC that was answered.
struct Answered {
    /// Link and flow of the requester.
    requester: (usize, usize),
    /// Original value of the number.
    was: u64,
    /// New value of the number, if the request changed it.
    becomes: Option<u64>,
}

fn check_race(world: &World<'_>, race: &Race, expected: &mut [Vec<u8>], label: &str) {
    let label = format!("{label}: number at {} of region {}", race.at, race.key);
    let Key::Region { bytes, .. } = &world.plan.keys[race.key] else { unreachable!("a region") };
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes[race.at..race.at + 8].try_into().unwrap());
    let (first, last) = (number(bytes), number(&world.buffers[race.key].to_vec()));
    let answered: Vec<_> = race.ops.iter().map(|op| answer(world, *op, expected)).collect();
    expected[race.key][race.at..race.at + 8].copy_from_slice(&last.to_ne_bytes());
    // Values are random and none occurs twice: the original value tells which request came before.
    let mut changes = BTreeMap::new();
    for op in &answered {
        if let Some(becomes) = op.becomes {
            let other = changes.insert(op.was, becomes);
            assert_eq!(other, None, "{label}: two requests changed the same value");
        }
    }
    let (mut value, mut order) = (first, BTreeMap::from([(first, 0)]));
    while let Some(next) = changes.remove(&value) {
        value = next;
        order.insert(value, order.len());
    }
    assert!(changes.is_empty(), "{label}: {} changes were lost", changes.len());
    assert_eq!(value, last, "{label}: the last value");
    // Requests of one requester are executed in order.
    let mut seen: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for op in &answered {
        let at = order.get(&op.was).copied();
        let at = at.unwrap_or_else(|| panic!("{label}: the number never was {:#x}", op.was));
        let before = seen.insert(op.requester, at);
        assert!(
            before <= Some(at),
            "{label}: requests of {:?} were executed out of order",
            op.requester
        );
    }
}

/// Returns the answer to a request from the memory of its requester, and copies it to `expected`.
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
    Answered { requester: (link, flow), was, becomes }
}
