//! A middlebox between two interfaces that impairs RoCEv2 packets and logs what it did with each.
//!
//! It forwards every frame from either interface to the other one. RoCEv2 packets may be lost,
//! duplicated, held back, corrupted, delayed or marked on the way. The log has a line for each
//! packet that arrives, is dropped or departs: the truth that an analysis of captures at both
//! ends is compared with. `tools/middlebox/check` does that.
//!
//! It ends when its standard input does, after everything that it holds has departed.
#![allow(clippy::disallowed_methods, reason = "a network has a clock")]

mod fault;
mod held;
mod log;
mod packet;
mod random;
mod socket;

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fault::{Effect, Faults};
use held::Held;
use log::{Direction, Event, Log};
use packet::Packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket::Interface;

const USAGE: &str = "\
usage: middlebox INTERFACE INTERFACE LOG [seed=N] [FAULT...]

Forwards frames between two interfaces, impairs RoCEv2 packets, and writes what it did with each
into LOG (CSV). Ends when its standard input does, and prints totals.

A FAULT is KIND[=VALUE][,KEY=VALUE...], for packets of both directions, or with there: (from the
first interface) or back: before it.

  loss=P  duplicate=P  corrupt=P  mark=P     by chance: 0.5% or 0.005
  reorder=P,packets=N | reorder=P,time=T     held back until N others have passed, or for a time
  delay=T                                    all packets: 46ms, 200us
  mtu=BYTES                                  longer IP packets are dropped
  rate=1G[,queue=BYTES][,kmin=BYTES,kmax=BYTES[,pmax=P]]
                                             a bottleneck: its queue marks by chance from kmin to
                                             kmax, with pmax at kmax, above always, and drops
  cut=T[,for=T]                              from a time after the first packet, for a time

  opcode=A-B[+C...]   only packets with these BTH opcodes
  index=A[+B...]      instead of chance: by number among the selected packets, from 1
  burst=N             N selected packets in a row each time
";

/// Maximum number of frames that are taken from an interface before the other one has its turn.
const BATCH: usize = 64;

/// Time between two looks at nothing in particular.
const IDLE: Duration = Duration::from_millis(50);

/// Time to go on after standard input has ended, so that what is on the way arrives.
const LINGER: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, log, faults @ ..] = &args[..] else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match Faults::parse(faults)
        .map_err(io::Error::other)
        .and_then(|faults| run([first, second], log, faults))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("middlebox: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(interfaces: [&String; 2], log: &str, faults: Faults) -> io::Result<()> {
    let [first, second] = interfaces;
    let interfaces = [Interface::open(first)?, Interface::open(second)?];
    let log = Log::new(BufWriter::new(File::create(log)?))?;
    let mut middlebox = Middlebox { interfaces, faults, held: Held::default(), log };
    println!("ready");
    io::stdout().flush()?;
    middlebox.forward()?;
    print!("{}", middlebox.log.finish()?);
    Ok(())
}

struct Middlebox {
    interfaces: [Interface; 2],
    faults: Faults,
    held: Held,
    log: Log<BufWriter<File>>,
}

impl Middlebox {
    /// Forwards until standard input has ended.
    fn forward(&mut self) -> io::Result<()> {
        let mut ends: Option<Instant> = None;
        let mut frame = vec![0; socket::FRAME_MAX];
        loop {
            if ends.is_some_and(|at| Instant::now() >= at) && self.held.is_empty() {
                return Ok(());
            }
            if self.wait(ends.is_none())? && ends.is_none() {
                ends = Some(Instant::now() + LINGER);
            }
            for direction in [Direction::There, Direction::Back] {
                for _ in 0..BATCH {
                    let from = &self.interfaces[direction.index()];
                    let Some(len) = from.receive(&mut frame)? else { break };
                    self.arrive(direction, &mut frame[..len])?;
                }
            }
            self.depart()?;
        }
    }

    /// Waits for a frame or for the next that is due. Returns whether standard input has ended.
    fn wait(&self, with_input: bool) -> io::Result<bool> {
        let due = self.held.next_due().map(|at| at.saturating_duration_since(Instant::now()));
        let wait = Timespec::try_from(due.unwrap_or(IDLE).min(IDLE)).map_err(io::Error::other)?;
        let input = io::stdin();
        let mut polled: Vec<PollFd<'_>> =
            self.interfaces.iter().map(|it| PollFd::new(it, PollFlags::IN)).collect();
        if with_input {
            polled.push(PollFd::new(&input, PollFlags::IN));
        }
        poll(&mut polled, Some(&wait))?;
        Ok(polled.get(2).is_some_and(|input| !input.revents().is_empty()))
    }

    /// Decides what becomes of a frame.
    fn arrive(&mut self, direction: Direction, frame: &mut [u8]) -> io::Result<()> {
        let now = Instant::now();
        let Some(packet) = Packet::of(frame) else {
            return self.hold(now, direction, frame, None, &Effect::default());
        };
        let index = self.log.arrive(direction, &packet)?;
        let mut effect = self.faults.decide(now, direction, &packet);
        effect.marked &= packet.is_markable(frame);
        if let Some(fault) = effect.dropped {
            return self.log.write(direction, Event::Drop, index, &packet, fault);
        }
        if let Some(bit) = effect.corrupt {
            packet.flip(frame, bit);
        }
        if effect.marked {
            packet.mark(frame);
        }
        self.hold(now, direction, frame, Some((index, packet)), &effect)
    }

    /// Keeps a frame until it departs.
    fn hold(
        &mut self,
        now: Instant,
        direction: Direction,
        frame: &[u8],
        packet: Option<(u64, Packet)>,
        effect: &Effect,
    ) -> io::Result<()> {
        let is_held = self.held.hold(now, direction, frame, packet, effect);
        match (is_held, packet) {
            (false, Some((index, packet))) => {
                self.log.write(direction, Event::Drop, index, &packet, "overflow")
            }
            _ => Ok(()),
        }
    }

    /// Sends what is due.
    fn depart(&mut self) -> io::Result<()> {
        while let Some(due) = self.held.take(Instant::now()) {
            let to = &self.interfaces[1 - due.direction.index()];
            for copy in 0..due.copies {
                let is_sent = to.send(&due.frame)?;
                let Some((index, packet)) = &due.packet else { continue };
                let (event, fault) = match (is_sent, copy) {
                    (false, _) => (Event::Drop, "refused"),
                    (true, 0) => (Event::Depart, due.fault),
                    (true, _) => (Event::Depart, "copy"),
                };
                self.log.write(due.direction, event, *index, packet, fault)?;
            }
        }
        self.log.flush()
    }
}
