//! Soft NICs under faults for as long as one likes, with everything verified: does memory stay what
//! it is?
//!
//! ```text
//! cargo run --release --example soak -- [--minutes 60] [--seed N] [--share 20]
//! ```
//!
//! Three threads do rounds of work between pairs of NICs in this process, over UDP on loopback with
//! loss, doubles, reordering, delay and damage: reliable and unreliable connections and datagrams,
//! every operation, shared receive queues, memory windows, sleepers, queue pairs that are killed,
//! and NICs that are. Each round makes its objects and destroys them. All together take `--share`
//! percent of one processor.
//!
//! Every minute all pause and what the process holds is printed. It ends with status 1 if anything
//! was wrong, if something hung, or if at the end it holds more than after the warm-up, a tenth of
//! the time: more than [`GROWTH_KIB`] of memory, or one descriptor. It runs in a network namespace
//! of its own, made with `unshare`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool that cannot go on ends, and it reads the clock"
)]

mod mixed;
// The library's own generator, which it does not show to others.
#[path = "../../src/random.rs"]
mod random;
mod rounds;
mod stage;
mod usage;

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use roce::memory::Buffer;
use rounds::{ROUNDS, abandon};
use stage::{Dice, MEMORY, Outcome, Side, Stage};
use usage::{Usage, processor_time};

/// Maximum growth of memory from the end of the warm-up to the end. Allocators and the kernel's
/// page cache are not exact; something that leaked a hundred bytes a round would be twice as much
/// within the hour.
const GROWTH_KIB: u64 = 8 << 10;

/// Faults of IPv4: no damage, because what the kernel hides of an IPv4 header lets one damaged
/// packet in 65 536 pass for sound.
const FAULTS_V4: &str = "loss=2%,dup=2%,reorder=3%,delay=20us,jitter=30us";
const FAULTS_V6: &str = "loss=1%,dup=1%,reorder=2%,corrupt=1%,mark=1%,delay=10us,jitter=20us";

/// Says that the process is in its namespace already.
const INSIDE: &str = "ROCE_SOAK_INSIDE";

/// Shell commands that prepare the namespace.
const PREPARE: &str = "ip link set lo up && for n in 1 2 3 4; do ip -6 address add fd47::$n/128 dev lo nodad; done \
                       && exec \"$0\" \"$@\"";

struct Options {
    minutes: u64,
    seed: u64,
    share: u32,
}

impl Options {
    fn read() -> Result<Self, String> {
        let mut options = Self { minutes: 60, seed: u64::from(std::process::id()), share: 20 };
        let mut arguments = env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
            let value = value.ok_or_else(|| format!("{name} wants a number"))?;
            match name.as_str() {
                "--minutes" if value > 0 => options.minutes = value,
                "--seed" => options.seed = value,
                "--share" if (1..=200).contains(&value) => options.share = value as u32,
                _ => {
                    return Err(format!("{name} {value} is nothing known: see tools/soak/main.rs"));
                }
            }
        }
        Ok(options)
    }
}

/// State that all threads share.
struct Soak {
    options: Options,
    start: Instant,
    /// Held by everyone at work; who takes it whole has everyone pause.
    pause: RwLock<()>,
    over: AtomicBool,
    /// Number of rounds of each kind.
    rounds: Mutex<BTreeMap<&'static str, u64>>,
    failure: Mutex<Option<String>>,
}

impl Soak {
    /// Whether the process took more than its share.
    fn is_ahead(&self) -> bool {
        let allowed = self.start.elapsed() * self.options.share / 100;
        processor_time() > allowed + Duration::from_millis(500)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Does rounds, the first of which may fail: then all is over.
    fn work(
        &self,
        worker: u64,
        mut round: impl FnMut(&mut Dice) -> (String, Outcome<&'static str>),
    ) {
        let mut dice = Dice::new(self.options.seed ^ worker << 32);
        while !self.is_over() {
            // Asking for the processor time opens a file, which is not to be counted either.
            let working = self.pause.read().unwrap();
            let (at, outcome) = round(&mut dice);
            let sleeps = self.is_ahead();
            drop(working);
            match outcome {
                Ok(kind) => *self.rounds.lock().unwrap().entry(kind).or_default() += 1,
                Err(error) => {
                    self.failure.lock().unwrap().get_or_insert(format!("{at}: {error}"));
                    self.over.store(true, Ordering::Relaxed);
                }
            }
            if sleeps {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Prints what the process holds, once a minute.
    fn watch(&self) -> Outcome {
        let warm_up = (self.options.minutes / 10).max(1);
        let mut before = None;
        for minute in 1..=self.options.minutes {
            let end = self.start + Duration::from_secs(60 * minute);
            while Instant::now() < end && !self.is_over() {
                std::thread::sleep(Duration::from_millis(200));
            }
            let paused = self.pause.write().unwrap();
            let held = Usage::now();
            drop(paused);
            let rounds = self.rounds.lock().unwrap();
            let describe: Vec<String> =
                rounds.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
            println!(
                "minute {minute}: {} KiB, {} descriptors, {:.0} s of processor; rounds: {}",
                held.rss_kib,
                held.descriptors,
                processor_time().as_secs_f64(),
                describe.join(", ")
            );
            drop(rounds);
            if self.is_over() {
                break;
            }
            if minute == warm_up {
                before = Some(held);
            }
            let Some(before) = before.filter(|_| minute == self.options.minutes) else { continue };
            let grown = held.rss_kib.saturating_sub(before.rss_kib);
            println!("memory grew by {grown} KiB since minute {warm_up}; {GROWTH_KIB} are allowed");
            stage::ensure!(grown <= GROWTH_KIB, "memory grew");
            stage::ensure!(held.descriptors <= before.descriptors, "descriptors were left open");
        }
        Ok(())
    }
}

/// A round between two NICs.
fn one_round(stage: &Stage, buffers: &[Buffer; 2], dice: &mut Dice) -> Outcome<&'static str> {
    let (kind, round) = dice.pick(&ROUNDS);
    let (x, y) = if dice.below(2) == 0 { (&stage.a, &stage.b) } else { (&stage.b, &stage.a) };
    let [mut a, mut b] = [Side::new(x, &buffers[0])?, Side::new(y, &buffers[1])?];
    let outcome = round(&mut a, &mut b, dice);
    let counters = || [a.counters(), b.counters()].join("; ");
    outcome.map_err(|error| format!("{kind}: {error}; {}", counters()))?;
    a.clear()?;
    b.clear()?;
    Ok(kind)
}

fn buffers() -> [Buffer; 2] {
    [Buffer::new(MEMORY), Buffer::new(MEMORY)]
}

fn soak(options: Options) -> Outcome {
    let seed = options.seed;
    println!("seed {seed}: {} minutes, {}% of a processor", options.minutes, options.share);
    let v4 = |n: u8| IpAddr::from([127, 47, 0, n]);
    let v6 = |n: u16| IpAddr::from([0xfd47, 0, 0, 0, 0, 0, 0, n]);
    let shared = [
        Stage::open([v4(1), v4(2)], FAULTS_V4, seed)?,
        Stage::open([v6(1), v6(2)], FAULTS_V6, seed)?,
    ];
    let soak = Soak {
        options,
        start: Instant::now(),
        pause: RwLock::new(()),
        over: AtomicBool::new(false),
        rounds: Mutex::default(),
        failure: Mutex::default(),
    };
    let (soak, shared) = (&soak, &shared);
    let watched = std::thread::scope(|scope| {
        for worker in 0..2 {
            let buffers = buffers();
            scope.spawn(move || {
                soak.work(worker, |dice| {
                    let stage = &shared[dice.below(2)];
                    (stage.name.clone(), one_round(stage, &buffers, dice))
                });
            });
        }
        scope.spawn(move || {
            let buffers = buffers();
            // NICs of its own, which it takes away and makes anew.
            let open = |seed| Stage::open([v6(3), v6(4)], FAULTS_V6, seed);
            let mut stage = Some(open(seed).unwrap());
            soak.work(2, |dice| {
                let current = stage.take().unwrap();
                let name = format!("{}, taken away at times", current.name);
                let outcome = if dice.below(8) > 0 {
                    one_round(&current, &buffers, dice)
                } else {
                    abandon(&current, &buffers, dice).map(|()| "abandoned")
                };
                if outcome == Ok("abandoned") {
                    let Stage { a, b, .. } = current;
                    if dice.below(2) == 0 {
                        drop((a, b))
                    } else {
                        drop((b, a))
                    }
                    stage = Some(open(dice.next()).unwrap());
                } else {
                    stage = Some(current);
                }
                (name, outcome)
            });
        });
        let watched = soak.watch();
        soak.over.store(true, Ordering::Relaxed);
        watched
    });
    match soak.failure.lock().unwrap().take() {
        Some(failure) => Err(failure),
        None => watched,
    }
}

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::from(2);
        }
    };
    if env::var_os(INSIDE).is_none() {
        let seed = options.seed.to_string();
        let error = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", PREPARE])
            .arg(env::current_exe().unwrap())
            .args(env::args().skip(1))
            .args(["--seed", &seed])
            .env(INSIDE, "1")
            .exec();
        eprintln!("soak: unshare, of util-linux, cannot be run: {error}");
        return ExitCode::from(2);
    }
    match soak(options) {
        Ok(()) => {
            println!("all was right");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("WRONG: {error}");
            ExitCode::FAILURE
        }
    }
}
