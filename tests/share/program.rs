//! A program that others talk to: it returns what it gets, and sends what it is told to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{ChildStdin, ChildStdout, Stdio};

use roce::net::{Connection, Endpoint};

use crate::common::process::{Child, Command};

/// Address of the program; without it, the test below does nothing.
const ADDRESS: &str = "ROCE_TEST_SHARED_ADDRESS";

/// Messages of a transfer, and bytes of each.
const MESSAGES: u64 = 40;
const MESSAGE: usize = 20_000;

/// The program: listens, and obeys the lines of its standard input.
#[test]
fn program() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let address: IpAddr = address.parse().unwrap();
    let endpoint = Endpoint::at(address).unwrap();
    let listener = endpoint.listen((address, 0)).unwrap();
    println!("\nlistens at {}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok(connection) = listener.accept() {
            std::thread::spawn(move || send_back(&connection));
        }
    });
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (seed, to) = line.split_once(' ').unwrap();
        let done = transfer(&endpoint, to.parse().unwrap(), seed.parse().unwrap());
        println!("{}", done.map_or_else(|error| format!("failed: {error}"), |()| "done".into()));
    }
    // It ends without a word to anyone, as programs do.
    std::process::exit(0);
}

fn send_back(connection: &Connection) {
    while let Ok(Some(message)) = connection.recv() {
        if connection.send(&message).is_err() {
            break;
        }
    }
}

/// Sends messages that are returned, and compares every byte.
fn transfer(endpoint: &Endpoint, to: SocketAddr, seed: u64) -> Result<(), roce::net::Error> {
    let connection = endpoint.connect(to)?;
    for number in 0..MESSAGES {
        let message: Vec<u8> =
            (0..MESSAGE).map(|at| (seed ^ (number * 31) ^ at as u64).to_le_bytes()[0]).collect();
        connection.send(&message)?;
        let returned = connection.recv()?;
        assert!(returned == Some(message), "message {number} of {seed}");
    }
    connection.close()
}

/// A running program.
pub(crate) struct Program {
    pub(crate) child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<ChildStdout>>,
    pub(crate) at: SocketAddr,
}

impl Program {
    pub(crate) fn start(address: IpAddr) -> Self {
        // One program stays for all runs.
        let runs = std::env::var("ROCE_SHARE_RUNS").map_or(0, |runs| runs.parse().unwrap());
        let deadline = std::time::Duration::from_secs(300 + 5 * runs);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["program::program", "--exact", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .deadline(deadline)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let at = output.find_map(|line| Some(line.unwrap().strip_prefix("listens at ")?.parse()));
        let at = at.expect("the program ended at once").unwrap();
        Self { child, input, output, at }
    }

    /// Lets it talk to another.
    pub(crate) fn begin(&mut self, to: &Self, seed: u64) {
        writeln!(self.input, "{seed} {}", to.at).unwrap();
    }

    /// Waits until it has; returns what it says, but not what the test harness says when a program
    /// runs for a minute.
    pub(crate) fn end(&mut self) -> String {
        let mut lines = self.output.by_ref().map(Result::unwrap);
        lines.find(|line| !line.starts_with("test ")).unwrap_or_else(|| "ended".to_owned())
    }

    /// Returns the numbers of its open descriptors, and of its mappings of shared memory.
    pub(crate) fn resources(&self) -> [usize; 2] {
        let process = format!("/proc/{}", self.child.id());
        let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
        let shared = maps.lines().filter(|line| line.contains("/memfd:roce"));
        [std::fs::read_dir(format!("{process}/fd")).unwrap().count(), shared.count()]
    }
}
