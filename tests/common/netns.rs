//! Networks of a test's own, in namespaces, without privileges.
//!
//! ```ignore
//! #[test]
//! fn two_hosts() {
//!     in_namespace(|| {
//!         let (a, b) = wire(1500);
//!         let here = a.run(|| UdpSocket::bind((a.v4, 4791)).unwrap());
//!         let there = b.run(|| UdpSocket::bind((b.v4, 4791)).unwrap());
//!         here.send_to(b"hello", (b.v4, 4791)).unwrap();
//!     });
//! }
//! ```
//!
//! Where namespaces cannot be had, tests are skipped: there is no other way to see what is on a
//! wire.
#![allow(unsafe_code, reason = "two system calls that threads change their network by")]

use std::any::type_name_of_val;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::time::Duration;
use std::{env, process, thread};

use super::needs;
use super::process::Command;
use roce::link::interface::interfaces;

/// Says that a process is in a namespace of its own already.
const INSIDE: &str = "ROCE_TEST_INSIDE_NAMESPACE";

/// Runs the rest of a test in user and network namespaces of its own, where it is root and alone.
/// It must be all that the test does: the test is run once more, in a process of its own, for only
/// a process with one thread can enter a user namespace.
#[track_caller]
pub fn in_namespace<F: FnOnce()>(body: F) {
    if env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        return body();
    }
    // `crate::module::test::{{closure}}`
    let name = type_name_of_val(&body);
    let name = name.split_once("::").unwrap().1.trim_end_matches("::{{closure}}");
    if !needs::can_have_namespaces(name) {
        return;
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .output()
        .expect("`unshare`, of util-linux, can be run");
    let (said, remarked) = (text(&output.stdout), text(&output.stderr));
    print!("{said}");
    eprint!("{remarked}");
    assert!(output.status.success(), "{name}, in a namespace of its own: {}", output.status);
    assert!(said.contains("test result: ok. 1 passed"), "{name} is the name of the test");
}

/// A machine of the test's own: a network namespace.
#[derive(Debug)]
pub struct Host {
    namespace: File,
    /// Interface on the wire.
    pub interface: &'static str,
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
    /// Link-local IPv6 address.
    pub link_local: Ipv6Addr,
}

/// Two machines with a wire between them, whose interfaces have this MTU. To be used within
/// [`in_namespace`].
#[track_caller]
pub fn wire(mtu: usize) -> (Host, Host) {
    wire_of(mtu, 1)
}

/// Two machines with a wire between them, whose interfaces have this number of queues each way.
#[track_caller]
pub fn wire_of(mtu: usize, queues: u32) -> (Host, Host) {
    let (a, b) = (Host::new("left", 1), Host::new("right", 2));
    let queues = format!("numtxqueues {queues} numrxqueues {queues}");
    a.ip(&format!("link add left mtu {mtu} {queues} type veth peer name right mtu {mtu} {queues}"));
    let other = format!("/proc/{}/fd/{}", process::id(), b.namespace.as_raw_fd());
    a.ip(&format!("link set right netns {other}"));
    for host in [&a, &b] {
        let Host { interface, v4, v6, link_local, .. } = host;
        host.ip("link set lo up");
        host.ip(&format!("link set {interface} addrgenmode none"));
        host.ip(&format!("address add {v4}/24 dev {interface}"));
        // No other host can have them, so there is no need for duplicate address detection.
        host.ip(&format!("address add {v6}/64 dev {interface} nodad"));
        host.ip(&format!("address add {link_local}/64 dev {interface} nodad"));
        host.ip(&format!("link set {interface} up"));
    }
    for address in [Host::v4, Host::v6, Host::link_local] {
        meet(&a, address(&a), &b, address(&b));
    }
    (a, b)
}

/// Two machines with a bump between them: interfaces `inner` and `outer` of the test's own
/// namespace, between which the kernel does not forward. Datagrams pass when a test forwards them;
/// [`meet_v4`] waits for that.
#[track_caller]
#[allow(dead_code, reason = "not every test has a bump in its wire")]
pub fn wire_with_bump(mtu: usize) -> (Host, Host) {
    let (a, b) = (Host::new("left", 1), Host::new("right", 2));
    for (host, near) in [(&a, "inner"), (&b, "outer")] {
        let Host { interface, v4, .. } = host;
        ip(&format!("link add {near} mtu {mtu} type veth peer name {interface} mtu {mtu}"));
        let there = format!("/proc/{}/fd/{}", process::id(), host.namespace.as_raw_fd());
        ip(&format!("link set {interface} netns {there}"));
        ip(&format!("link set {near} up"));
        host.ip("link set lo up");
        host.ip(&format!("address add {v4}/24 dev {interface}"));
        host.ip(&format!("link set {interface} up"));
    }
    (a, b)
}

/// Waits until datagrams of IPv4 pass.
#[track_caller]
#[allow(dead_code, reason = "not every test has a bump in its wire")]
pub fn meet_v4(a: &Host, b: &Host) {
    meet(a, a.v4(), b, b.v4());
}

/// Waits until datagrams pass: an interface that has just been switched on loses what is sent,
/// without a word, and one that does not know its neighbor yet holds back only a few.
#[track_caller]
fn meet(a: &Host, from: SocketAddr, b: &Host, to: SocketAddr) {
    let bind = |address| UdpSocket::bind(address).unwrap();
    let (here, there) = (a.run(|| bind(from)), b.run(|| bind(to)));
    there.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut to = there.local_addr().unwrap();
    if let (SocketAddr::V6(from), SocketAddr::V6(to)) = (from, &mut to) {
        // The number is that of the interface it goes out by.
        to.set_scope_id(from.scope_id());
    }
    let passes = |_| here.send_to(b"?", to).is_ok() && there.recv(&mut [0]).is_ok();
    assert!((0..1000).any(passes), "no datagram passes from {from} to {to}");
}

impl Host {
    fn new(interface: &'static str, number: u8) -> Self {
        let make = || {
            // SAFETY: it changes the network of this thread, and no memory.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "a network namespace: {}", std::io::Error::last_os_error());
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        Self {
            namespace: thread::spawn(make).join().unwrap(),
            interface,
            v4: Ipv4Addr::new(10, 9, 0, number),
            v6: Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, number.into()),
            link_local: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number.into()),
        }
    }

    fn v4(&self) -> SocketAddr {
        (self.v4, 0).into()
    }

    fn v6(&self) -> SocketAddr {
        (self.v6, 0).into()
    }

    /// Returns the link-local address, with the number of its interface.
    fn link_local(&self) -> SocketAddr {
        let interfaces = self.run(|| interfaces().unwrap());
        let own = interfaces.iter().find(|interface| interface.name == self.interface).unwrap();
        SocketAddrV6::new(self.link_local, 0, 0, own.index).into()
    }

    /// Runs something on this machine. Sockets that it opens stay there, wherever they are used.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: it changes the network of this thread, and no memory.
                let result = unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
                body()
            });
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Runs `ip` on this machine.
    #[track_caller]
    pub fn ip(&self, arguments: &str) {
        self.run(|| ip(arguments));
    }
}

/// Runs `ip` where the thread is.
#[track_caller]
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("`ip`, of iproute2, can be run");
    assert!(output.status.success(), "ip {arguments}: {}", text(&output.stderr));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
