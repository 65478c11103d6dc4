//! GETs of the replicated store of `examples/kv`: how many a second one client does, one after the
//! other, and how long each takes.
//!
//! ```text
//! cargo run --release --example bench-kv [-- SECONDS]       # or tools/bench/kv, which runs Redis beside it
//! ```
//!
//! Three server processes and the client, each with a soft NIC at a loopback address. One row is
//! the store's GET, which reads two of the three servers, the other one reads one server, as a
//! client of a store without replicas does.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a benchmark has a clock, and fails when it cannot go on"
)]

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use roce::group::{Config, Group};

#[path = "../../examples/kv/store.rs"]
mod store;
use store::{Client, SERVERS, TABLE, place, read, serve, slot};

const HOSTS: &str = "127.22.3.1:7010,127.22.3.2:7010,127.22.3.3:7010,127.22.3.4:7010";
const KEYS: usize = 100;

struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

fn open(own: usize) -> Group {
    Group::open(&HOSTS.parse().unwrap(), own, &Config::default()).unwrap()
}

/// Prints GETs a second, and the median and the 99th percentile of their times in µs.
fn measure(name: &str, time: Duration, mut get: impl FnMut(&str)) {
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key-{number}")).collect();
    let (begun, mut times) = (Instant::now(), Vec::new());
    for key in keys.iter().cycle() {
        let at = Instant::now();
        get(key);
        times.push(at.elapsed());
        if begun.elapsed() >= time {
            break;
        }
    }
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    times.sort();
    let micros = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    println!("{name} {rate:.0} {:.1} {:.1}", micros(50), micros(99));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [serving, own] = &arguments[..] {
        assert_eq!(serving, "serve");
        return serve(&open(own.parse().unwrap())).unwrap();
    }
    let time = arguments.first().map_or(5.0, |text| text.parse().unwrap());
    let time = Duration::from_secs_f64(time);
    let program = std::env::current_exe().unwrap();
    let start = |own: usize| {
        let mut command = Command::new(&program);
        command.args(["serve", &own.to_string()]).stdout(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    let _servers = Servers((0..SERVERS).map(start).collect());
    let group = open(SERVERS);
    let mut client = Client::new(&group).unwrap();
    (0..SERVERS).for_each(|server| client.wait_ready(server, Duration::from_secs(60)).unwrap());
    let value = "v".repeat(64);
    for number in 0..KEYS {
        client.put(&format!("key-{number}"), &value).unwrap();
    }
    let check = |found: &str| assert_eq!(found, value);
    measure("two", time, |key| check(&client.get(key).unwrap()));
    let table = client.member.lookup(0, TABLE).unwrap().unwrap();
    measure("one", time, |key| {
        let found = read(&table, place(&slot(0, key, "").unwrap()[8..40])).unwrap();
        check(String::from_utf8_lossy(&found[40..]).split('\0').next().unwrap());
    });
}
