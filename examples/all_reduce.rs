//! The sum of vectors over all members of a group, by a ring: each member sends only to the next
//! one.
//!
//! The vector has as many parts as there are members. In N-1 steps each member adds the part that
//! comes to its own and passes it on: then each has one part of the sum. In N-1 further steps the
//! parts of the sum go around. Each member sends 2(N-1)/N of a vector, however many members there
//! are.
//!
//! ```console
//! $ cargo run --release --example all_reduce                        # four members, threads of this process
//! $ cargo run --release --example all_reduce -- --hosts 192.0.2.1:7020,192.0.2.2:7020 --own 0       # one process each
//! ```
use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Duration;

use roce::group::{Config, Error as GroupError, Group, Hosts, Member};
use roce::net::Endpoint;

mod common;
use common::{parse, wrong};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "all_reduce [--members N | --hosts LIST --own NUMBER [-d DEVICE]] [--floats N]";
const PIECE: usize = 8192; // floats of one message

/// Returns the vector of a member: whole numbers, so that the sum is the same in any order.
#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn vector(member: usize, floats: usize) -> Vec<f32> {
    (0..floats).map(|at| ((at * 7 + member * 13) % 101) as f32).collect()
}

struct Ring<'a> {
    member: &'a Member,
    next: usize,
    previous: usize,
    /// Messages that have come from the previous member.
    arrived: VecDeque<Vec<u8>>,
}

impl Ring<'_> {
    /// Sends floats to the next member, and hands those that come from the previous one to `take`,
    /// piece by piece.
    fn exchange(&mut self, send: &[f32], into: &mut [f32], take: impl Fn(&mut f32, f32)) -> Result {
        let mut pieces = send
            .chunks(PIECE)
            .map(|piece| piece.iter().flat_map(|float| float.to_le_bytes()).collect::<Vec<u8>>());
        let (mut piece, mut into) = (pieces.next(), into.chunks_mut(PIECE));
        let mut room = into.next();
        while piece.is_some() || room.is_some() {
            if let Some(bytes) = &piece {
                match self.member.send(self.next, bytes) {
                    Ok(()) => piece = pieces.next(),
                    // The next member is behind: what has come is dealt with meanwhile.
                    Err(GroupError::Full(_) | GroupError::Disconnected(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let (arrived, previous) = (&mut self.arrived, self.previous);
            self.member.poll(&mut |from: usize, message: &[u8]| {
                arrived.extend((from == previous).then(|| message.to_vec()));
            })?;
            // What comes early is of the next step: it waits.
            let next = if room.is_some() { self.arrived.pop_front() } else { None };
            match (next, &mut room) {
                (Some(bytes), Some(floats)) if bytes.len() == 4 * floats.len() => {
                    for (to, from) in floats.iter_mut().zip(bytes.as_chunks().0) {
                        take(to, f32::from_le_bytes(*from));
                    }
                    room = into.next();
                }
                (Some(_), _) => return Err("a piece has the wrong length".into()),
                (None, _) if piece.is_none() => {
                    // A member that has gone sends no more: that is an error, and no reason to
                    // wait.
                    self.member.check(self.previous)?;
                    self.member.wait(Duration::from_millis(100))?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }
}

/// Makes a vector the sum of the vectors of all members.
fn all_reduce(member: &Member, count: usize, vector: &mut [f32]) -> Result {
    let own = member.own();
    let (next, previous) = ((own + 1) % count, (own + count - 1) % count);
    let mut ring = Ring { member, next, previous, arrived: VecDeque::new() };
    let part_len = vector.len().div_ceil(count).max(1);
    let mut parts: Vec<Vec<f32>> = vector.chunks(part_len).map(<[f32]>::to_vec).collect();
    parts.resize(count, Vec::new());
    for step in 0..2 * (count - 1) {
        let (at, into) = ((own + 2 * count - step) % count, (own + 2 * count - step - 1) % count);
        let sent = parts[at].clone();
        let take = if step < count - 1 {
            |to: &mut f32, from| *to += from
        } else {
            |to: &mut f32, from| *to = from
        };
        ring.exchange(&sent, &mut parts[into], take)?;
    }
    vector.iter_mut().zip(parts.concat()).for_each(|(to, from)| *to = from);
    Ok(())
}

/// One member: its vector, the sum, and the check against the sum computed here.
fn take_part(group: &Group, floats: usize) -> Result {
    group.wait_connected(Duration::from_secs(60))?;
    let (member, count) = (group.member(0)?, group.hosts().len());
    let mut sum = vector(member.own(), floats);
    all_reduce(&member, count, &mut sum)?;
    let vectors: Vec<Vec<f32>> = (0..count).map(|member| vector(member, floats)).collect();
    let expected = (0..floats).map(|at| vectors.iter().map(|vector| vector[at]).sum::<f32>());
    let wrong = sum.iter().zip(expected).filter(|(sum, expected)| **sum != *expected).count();
    println!("member {} of {count}: {floats} floats, {wrong} wrong", member.own());
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {floats} sums are wrong").into()) }
}

fn run() -> Result {
    let (mut members, mut floats, mut hosts, mut own, mut device) = (4, 100_000, None, 0, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let Some(value) = arguments.next() else { return Err(wrong(&[name], USAGE).into()) };
        match name.as_str() {
            "--members" => {
                members =
                    parse::<std::num::NonZero<u8>>(&name, &value, "a number from 1 to 255")?.get()
            }
            "--floats" => floats = parse::<u32>(&name, &value, "a number below 2^32")? as usize,
            "--hosts" => hosts = Some(value.parse::<Hosts>()?),
            "--own" => own = parse(&name, &value, "the number of a host in the list, from 0")?,
            "-d" => device = Some(value),
            _ => return Err(wrong(&[name], USAGE).into()),
        }
    }
    let open = |hosts: &Hosts, own| match &device {
        Some(device) => Ok(Group::on(&Endpoint::open(device)?, hosts, own, &Config::default())?),
        None => Ok(Group::open(hosts, own, &Config::default())?),
    };
    if let Some(hosts) = hosts {
        let group = open(&hosts, own)?;
        take_part(&group, floats)?;
        // The others may not have the last messages yet.
        return Ok(group.close()?);
    }
    let hosts = Hosts::new((1..=members).map(|host| ([127, 0, 2, host], 7020).into()))?;
    let groups = (0..hosts.len()).map(|own| open(&hosts, own)).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| -> Result {
        let threads: Vec<_> =
            groups.iter().map(|group| scope.spawn(|| take_part(group, floats))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a member panicked")?)
    })?;
    groups.into_iter().try_for_each(|group| Ok(group.close()?))
}

fn main() -> ExitCode {
    common::end("all_reduce", run())
}
