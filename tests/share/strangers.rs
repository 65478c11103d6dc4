//! Others than the user of an address.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::iter::repeat_with;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use roce::link::{Holder, OpenError, Sharing, udp};
use roce::nic::SoftNic;
use roce::nic::status::{Published, published};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketType, bind, connect, listen, recv, socket,
    sockopt,
};

use crate::common::loopback::loopback;
use crate::common::needs;
use crate::common::process::{Child, Command};
use crate::common::tmp::Folder;

fn open(address: IpAddr) -> Result<SoftNic, OpenError> {
    let link = udp::open(&udp::Options::new(address))?;
    Ok(SoftNic::start(link).unwrap())
}

#[test]
fn address_of_one_that_does_not_share_it_names_its_holder() {
    let address = IpAddr::from(loopback(201, 1));
    let holder = UdpSocket::bind((address, 4791)).unwrap();
    let error = open(address).unwrap_err();
    let OpenError::InUse { holder: Holder::Program { process, .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*process, std::process::id());
    drop(holder);
    // A process that another test starts has a copy of the socket until it runs its program.
    let again = repeat_with(|| open(address)).take(100).find(|nic| {
        let is_open = nic.is_ok();
        if !is_open {
            thread::sleep(Duration::from_millis(20));
        }
        is_open
    });
    let _nic = again.expect("the address is free").unwrap();
    assert!(UdpSocket::bind((address, 4791)).is_err());
}

/// Task of the stranger: `try ADDRESS`, `squat NAME,…` or `silent COUNT`. Without it, the test
/// below does nothing.
const TASK: &str = "ROCE_TEST_STRANGER";

/// Says that the test is in a network of its own.
const INSIDE: &str = "ROCE_TEST_STRANGERS_INSIDE";

/// Number of the user that is the stranger.
const STRANGER: u32 = 65534;

/// The program of another user.
#[test]
fn stranger() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (task, rest) = task.split_once(' ').unwrap();
    match task {
        "try" => try_to_get_in(rest.parse().unwrap()),
        "silent" => {
            let own = std::process::id();
            let names = (0..rest.parse().unwrap()).map(|number| {
                // The names of a process may end in 0 to 255.
                format!("roce-status-{}-{}", own + number / 256, number % 256)
            });
            hold(names.map(|name: String| squat(&name)).collect());
        }
        _ => hold(rest.split(',').map(squat).collect()),
    }
}

/// Keeps sockets until the test is over.
fn hold(held: Vec<OwnedFd>) {
    println!("\nsquats");
    std::io::stdin().lines().for_each(drop);
    drop(held);
}

fn try_to_get_in(address: IpAddr) {
    let port = socket2::SockAddr::from(std::net::SocketAddr::new(address, 4791));
    let own = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    own.set_reuse_port(true).unwrap();
    own.set_reuse_address(true).unwrap();
    assert!(own.bind(&port).is_err(), "beside the sockets of another user");
    let names = [names_with("roce "), names_with("roce-status-")];
    assert!(names.iter().all(|names| !names.is_empty()));
    for name in names.iter().flatten() {
        let socket = seqpacket();
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "refused at once");
        let said = recv(&socket, &mut [0; 64][..], RecvFlags::DONTWAIT);
        assert!(matches!(said, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{said:?}");
    }
    assert_eq!(published().unwrap().nics, [], "nor are lies of another user believed");
    let error = open(address).unwrap_err();
    let OpenError::InUse { holder, .. } = error else { panic!("{error:?}") };
    assert_eq!(holder, Holder::User(0));
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
}

fn squat(name: &str) -> OwnedFd {
    let socket = seqpacket();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&socket, 1000).unwrap();
    assert!(sockopt::socket_acceptconn(&socket).unwrap());
    socket
}

/// The names where programs find each other, and where they tell their status, which every user can
/// see while they are used. A connection has the name of its listener, too.
fn names_with(prefix: &str) -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = table.lines().filter_map(|line| line.split_once('@')).map(|(_, name)| name);
    names.filter(|name| name.starts_with(prefix)).map(Into::into).collect()
}

/// Whether this is the part of a test that runs in a network of its own, where all names are those
/// of this test; if not, runs that part, or skips it without root.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        needs::skip(test, "another user, which root alone can become");
        return false;
    }
    let mut inside = Command::new("unshare");
    inside.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    inside.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    false
}

/// This program, where another user can execute it.
struct Stranger {
    folder: Folder,
}

impl Stranger {
    fn new() -> Self {
        let folder = Folder::new("strangers");
        let own = std::env::current_exe().unwrap();
        let mut install = Command::new("install");
        install.args(["-m", "755"]).arg(own).arg(folder.path().join("stranger"));
        assert!(install.status().unwrap().success());
        Self { folder }
    }

    fn command(&self, task: String) -> Command {
        let mut command = Command::new(self.folder.path().join("stranger"));
        command.args(["strangers::stranger", "--exact", "--nocapture"]).env(TASK, task);
        command.env_remove("XDG_RUNTIME_DIR").uid(STRANGER).gid(STRANGER);
        command
    }

    /// Starts a stranger that holds names until its standard input is closed.
    fn hold(&self, task: String) -> Holding {
        let mut command = self.command(task);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.by_ref().lines().any(|line| line.unwrap() == "squats"));
        Holding { child, output }
    }
}

/// A stranger that holds names.
struct Holding {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Holding {
    /// Has it end, and waits until it has.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

#[test]
fn silent_sockets_of_other_users_hide_no_nic_from_root() {
    if !is_inside("strangers::silent_sockets_of_other_users_hide_no_nic_from_root") {
        return;
    }
    let stranger = Stranger::new();
    // More than are asked of one user.
    let held = stranger.hold("silent 300".to_owned());
    let nic = open(IpAddr::from(loopback(201, 3))).unwrap();
    nic.publish_status("own").unwrap();
    let Published { nics, silent, unasked, .. } = published().unwrap();
    let known: Vec<&str> = nics.iter().map(|nic| nic.device.as_str()).collect();
    assert_eq!((known, silent, unasked), (vec!["own"], 64, 300 - 64));
    held.end();
    let Published { silent, unasked, .. } = published().unwrap();
    assert_eq!((silent, unasked), (0, 0));
}

#[test]
fn other_users_stay_out() {
    if !is_inside("strangers::other_users_stay_out") {
        return;
    }
    let stranger = Stranger::new();
    let address = IpAddr::from(loopback(201, 2));
    let (first, second) = (open(address).unwrap(), open(address).unwrap());
    first.publish_status("first").unwrap();
    let known: Vec<String> = published().unwrap().nics.into_iter().map(|nic| nic.device).collect();
    assert_eq!(known, ["first"]);
    let used: Vec<String> = names_with("roce ").into_iter().collect();
    let output = stranger.command(format!("try {address}")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop((first, second));

    // The stranger has seen the names, and takes them when they are free: others are used.
    let held = stranger.hold(format!("squat {}", used.join(",")));
    let nics = [open(address).unwrap(), open(address).unwrap()];
    assert!(nics.iter().all(|nic| matches!(nic.port().sharing, Sharing::User(_))));
    held.end();
}
