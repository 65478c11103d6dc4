//! A replicated key–value store: three servers, of which any one may die, and nothing that was
//! acknowledged is lost.
//!
//! PUT is a message to every server, and is done when two have acknowledged it. GET reads the
//! memory of two servers, whose programs do nothing for it, and takes the newer value: of any two
//! servers one has it. `store.rs` has both; this is how to run it.
//!
//! ```console
//! $ cargo run --release --example kv                  # all of it: servers are killed and start again under load
//! $ cargo run --release --example kv -- serve 0 &     # or by hand: servers 0, 1 and 2, then a client
//! $ cargo run --release --example kv -- put name value
//! $ cargo run --release --example kv -- get name
//! ```
//!
//! `KV=ADDRESS:PORT,…` lists the servers and, as the last one, the client. `-d DEVICE` names the
//! device, in which `{}` is the address of the server: `-d udp:{}?loss=1%`, `-d verbs:mlx5_0`.
use std::collections::BTreeMap;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use roce::group::{Config, Group, Hosts};
use roce::net::Endpoint;

#[path = "../common/mod.rs"]
mod common;
mod store;
use store::{Client, Result, SERVERS, serve};

const HOSTS: &str = "127.0.1.1:7010,127.0.1.2:7010,127.0.1.3:7010,127.0.1.4:7010";

const USAGE: &str = "kv [-d DEVICE] [serve NUMBER | put KEY VALUE | get KEY]";

/// Opens server `own` of the list; the client is the one behind the servers.
fn open(own: usize, device: &str) -> Result<Group> {
    let hosts: Hosts = std::env::var("KV").unwrap_or_else(|_| HOSTS.to_owned()).parse()?;
    let no_server = || format!("there is no server {own}: KV lists {}, from 0 on", hosts.len());
    let at = hosts.get(own).ok_or_else(no_server)?;
    let device = Endpoint::open(&device.replace("{}", &at.ip().to_string()))?;
    // Two servers have what was put. At its end the group waits a moment for the third one, which
    // may be gone.
    let config = Config::default().linger(Duration::from_secs(1));
    Ok(Group::on(&device, &hosts, own, &config)?)
}

/// Server processes, which do not outlive this one.
struct Servers(Vec<Child>);

impl Servers {
    fn start(own: usize, device: &str) -> Result<Child> {
        let program = std::env::current_exe()?;
        Ok(Command::new(program).args(["-d", device, "serve", &own.to_string()]).spawn()?)
    }

    fn kill(&mut self, server: usize) -> Result {
        self.0[server].kill()?;
        self.0[server].wait()?;
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..SERVERS).for_each(|server| drop(self.kill(server)));
    }
}

/// Puts and gets while servers are killed; then looks whether all that was acknowledged is there.
fn run_all(device: &str) -> Result {
    let start = |own| Servers::start(own, device);
    let mut servers = Servers((0..SERVERS).map(start).collect::<Result<_>>()?);
    let group = open(SERVERS, device)?;
    let mut client = Client::new(&group)?;
    let (mut acknowledged, mut puts, mut lost) = (BTreeMap::new(), 0, 0);
    for round in 0..8 {
        // At most one is to be dead at a time: the others have caught up before.
        let is_needed = |server: &usize| matches!((round, *server), (0, _) | (6, 0));
        for server in (0..SERVERS).filter(is_needed) {
            client.wait_ready(server, Duration::from_secs(60))?;
        }
        match round {
            2 => servers.kill(0)?,
            4 => servers.0[0] = start(0)?,
            6 => servers.kill(1)?,
            _ => {}
        }
        for number in 0..20 {
            let (key, value) = (format!("key-{number}"), format!("value {round} of {number}"));
            client.put(&key, &value)?;
            puts += 1;
            acknowledged.insert(key, value);
            let key = format!("key-{}", number / 2);
            lost += usize::from(acknowledged.get(&key) != Some(&client.get(&key)?));
        }
        let event = [
            "",
            "",
            ", server 0 killed",
            "",
            ", server 0 started again",
            "",
            ", server 1 killed",
            "",
        ];
        println!("{puts} PUTs acknowledged{}", event[round]);
    }
    for (key, value) in &acknowledged {
        let found = client.get(key)?;
        if found != *value {
            println!("{key}: {value:?} was acknowledged, and {found:?} is there");
            lost += 1;
        }
    }
    println!("{} keys, {lost} acknowledged values lost", acknowledged.len());
    if lost == 0 { Ok(()) } else { Err("acknowledged values were lost".into()) }
}

fn run() -> Result {
    let mut given: Vec<String> = std::env::args().skip(1).collect();
    let device = match given.iter().position(|argument| argument == "-d") {
        Some(at) if at + 1 < given.len() => given.drain(at..at + 2).nth(1),
        _ => None,
    };
    // A soft NIC, unless -d names another device.
    let device = device.as_deref().unwrap_or("udp:{}");
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let client = || open(SERVERS, device);
    match given.as_slice() {
        [] => run_all(device),
        ["serve", own] => {
            let own = common::parse("serve NUMBER", own, "the number of a server, from 0")?;
            serve(&open(own, device)?)
        }
        ["put", key, value] => Client::new(&client()?)?.put(key, value),
        ["get", key] => {
            println!("{}", Client::new(&client()?)?.get(key)?);
            Ok(())
        }
        _ => Err(common::wrong(&given, USAGE).into()),
    }
}

fn main() -> ExitCode {
    common::end("kv", run())
}
