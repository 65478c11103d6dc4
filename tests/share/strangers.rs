//! Others than the user of an address.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use roce::link::{Holder, OpenError, Sharing, udp};
use roce::nic::SoftNic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketType, bind, connect, listen, recv, socket,
    sockopt,
};

use crate::loopback::loopback;
use crate::needs;
use crate::process::Command;

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
    let _nic = open(address).unwrap();
    assert!(UdpSocket::bind((address, 4791)).is_err());
}

/// Task of the stranger: `try ADDRESS` or `squat NAME,…`. Without it, the test below does nothing.
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
        _ => {
            let _held: Vec<OwnedFd> = rest.split(',').map(squat).collect();
            println!("\nsquats");
            // Until the test is over.
            std::io::stdin().lines().for_each(drop);
        }
    }
}

fn try_to_get_in(address: IpAddr) {
    let port = socket2::SockAddr::from(std::net::SocketAddr::new(address, 4791));
    let own = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    own.set_reuse_port(true).unwrap();
    own.set_reuse_address(true).unwrap();
    assert!(own.bind(&port).is_err(), "beside the sockets of another user");
    let names = rendezvous_names();
    assert!(!names.is_empty());
    for name in names {
        let socket = seqpacket();
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "refused at once");
        let said = recv(&socket, &mut [0; 64][..], RecvFlags::DONTWAIT);
        assert!(matches!(said, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{said:?}");
    }
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

/// The names where programs find each other, which every user can see while they are used. A
/// connection has the name of its listener, too.
fn rendezvous_names() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = table.lines().filter_map(|line| line.split_once('@')).map(|(_, name)| name);
    names.filter(|name| name.starts_with("roce ") && name.len() == 37).map(Into::into).collect()
}

#[test]
fn other_users_stay_out() {
    if !rustix::process::geteuid().is_root() {
        needs::skip("strangers::other_users_stay_out", "another user, which root alone can become");
        return;
    }
    // In a network of its own, where all names are those of this test.
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new("unshare");
        inside.args(["--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        inside.arg(std::env::current_exe().unwrap());
        inside.args(["strangers::other_users_stay_out", "--exact", "--nocapture"]);
        let output = inside.env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
        return;
    }
    // Where another user can execute it.
    let folder = std::env::temp_dir().join(format!("roce-strangers-{}", std::process::id()));
    let program = folder.join("stranger");
    std::fs::create_dir_all(&folder).unwrap();
    let own = std::env::current_exe().unwrap();
    let status =
        Command::new("install").args(["-m", "755"]).arg(own).arg(&program).status().unwrap();
    assert!(status.success());
    let stranger = |task: String| {
        let mut command = Command::new(&program);
        command.args(["strangers::stranger", "--exact", "--nocapture"]).env(TASK, task);
        command.env_remove("XDG_RUNTIME_DIR").uid(STRANGER).gid(STRANGER);
        command
    };

    let address = IpAddr::from(loopback(201, 2));
    let (first, second) = (open(address).unwrap(), open(address).unwrap());
    let used: Vec<String> = rendezvous_names().into_iter().collect();
    let output = stranger(format!("try {address}")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop((first, second));

    // The stranger has seen the names, and takes them when they are free: others are used.
    let mut squats = stranger(format!("squat {}", used.join(",")));
    let mut child = squats.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "squats"));
    let nics = [open(address).unwrap(), open(address).unwrap()];
    assert!(nics.iter().all(|nic| matches!(nic.port().sharing, Sharing::User(_))));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    std::fs::remove_dir_all(folder).unwrap();
}
