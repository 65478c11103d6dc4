//! The command as a user runs it: to its end, or as a server that ends with the test.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::process::{Child, Command};

/// Longer than any step takes on a machine under load.
pub const LONG: Duration = Duration::from_secs(60);

/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// The command with these arguments, without a token.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce"));
    command.args(args).env_remove("ROCE_TOKEN");
    command
}

/// A run.
pub fn roce(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Returns the standard output of a run, which must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = roce(args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns an output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A command that runs until it is dropped, and what it says on standard error.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::new(Mutex::new(String::new()));
        let keep = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                keep.lock().unwrap().push_str(&text(&line));
                line.clear();
            }
        });
        Self { child, said, reader: Some(reader) }
    }

    /// Returns what it has said so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits for its end, and returns all that it said.
    pub fn end(&mut self) -> String {
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        self.said()
    }

    /// Waits until it has said something, and returns all that it said.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |process| process.said().contains(text));
        self.said()
    }

    /// Waits until something is so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        for _ in 0..LONG.as_millis() / PAUSE.as_millis() {
            if is_so(self) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("not within {LONG:?}: {what}; it said: {}", self.said());
    }

    /// Returns the number of entries of a folder of the process in `/proc`.
    pub fn count(&self, folder: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{folder}", self.child.id())).unwrap().count()
    }
}

/// A command that listens on a TCP port at the address of its soft NIC, until it is dropped.
#[derive(Debug)]
pub struct Server {
    pub process: Running,
    pub address: Ipv4Addr,
    pub port: u16,
}

impl Server {
    /// Starts `roce serve` on a free port.
    pub fn start(address: Ipv4Addr, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::run(&["serve"], address, args, env)
    }

    /// Starts another command that names its port as `roce serve` does.
    pub fn run(
        subcommand: &[&str],
        address: Ipv4Addr,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let device = format!("udp:{address}");
        let all = [subcommand, &["-d", &device, "-p", "0"], args].concat();
        let process = Running::start(command(&all).envs(env.iter().copied()));
        let port = port_of(&process).parse().unwrap();
        Self { process, address, port }
    }

    pub fn socket_address(&self) -> SocketAddr {
        (self.address, self.port).into()
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.socket_address()).unwrap()
    }
}

/// Waits until a command has said on which TCP port it listens, and returns the port.
pub fn port_of(process: &Running) -> String {
    port_after(process, "roce: ")
}

/// Waits until a command has named a TCP port behind some words, and returns the port.
pub fn port_after(process: &Running, words: &str) -> String {
    let find = |said: &str| {
        let (_, line) = said.split_once(words)?;
        let (_, port) = line.split_once("TCP port ")?;
        port.split([' ', '\n']).next().map(str::to_owned)
    };
    process.wait_until("it names its TCP port", |process| find(&process.said()).is_some());
    find(&process.said()).unwrap()
}
