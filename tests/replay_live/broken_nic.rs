//! A peer that offers queue pairs, as `roce serve --offer` does, on a soft NIC that is broken on
//! purpose.
//!
//! The flaw is between the NIC and its link. What arrives can kill the peer: it accepts no client
//! any more, and no packet, until its restart command was run. Or answers leave the NIC changed.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use roce::control::Protocol;
use roce::device::Device;
use roce::link::{Receiver, Sender, Spec};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::verbs::{
    Access, Connect, Endpoint, Mtu, QpCap, QpCreate, QpInitAttr, QpType, RecvWr, Sge, WrId,
};
use roce::wire::{Batch, Gid, ICRC_ROOM, Psn, Qpn, Received};
use serde_json::{Value, json};

/// Flaw of the NIC.
#[derive(Clone, Copy)]
pub(crate) enum Flaw {
    /// Death by a packet, given the one before it.
    Dies(fn(&[u8], &[u8]) -> bool),
    /// Answers that differ from the packets of its NIC.
    Answers(fn(&mut [u8])),
}

/// The peer, until the end of the test.
pub(crate) struct BrokenNic {
    pub(crate) port: String,
    /// A file that brings the peer back to life when it appears.
    pub(crate) restart: PathBuf,
}

struct State {
    flaw: Flaw,
    is_dead: AtomicBool,
    /// The packet that arrived last.
    last: Mutex<Vec<u8>>,
    restart: PathBuf,
}

impl State {
    /// Whether the peer is dead, and was not restarted.
    fn is_dead(&self) -> bool {
        if self.is_dead.load(Ordering::SeqCst) && std::fs::remove_file(&self.restart).is_ok() {
            self.last.lock().unwrap().clear();
            self.is_dead.store(false, Ordering::SeqCst);
        }
        self.is_dead.load(Ordering::SeqCst)
    }

    /// A packet arrives; whether the NIC gets it.
    fn arrives(&self, packet: &[u8]) -> bool {
        let Flaw::Dies(dies) = self.flaw else { return true };
        let mut last = self.last.lock().unwrap();
        if dies(&last, packet) {
            self.is_dead.store(true, Ordering::SeqCst);
        }
        packet.clone_into(&mut last);
        !self.is_dead.load(Ordering::SeqCst)
    }
}

struct Arriving(Box<dyn Receiver>, Arc<State>);

impl Receiver for Arriving {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.0.receive(now)
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        self.0.for_each(&mut |received| {
            if self.1.arrives(received.packet) {
                each(received);
            }
        });
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

struct Leaving(Box<dyn Sender>, Arc<State>);

impl Sender for Leaving {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let Flaw::Answers(change) = self.1.flaw else { return self.0.send(now, batch) };
        let mut changed = Batch::new(batch.len());
        for (path, bytes) in batch.iter() {
            let mut packet = bytes[..bytes.len() - ICRC_ROOM].to_vec();
            change(&mut packet);
            assert!(changed.push(path, &packet));
        }
        self.0.send(now, &mut changed)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}

impl BrokenNic {
    /// Starts it on an address of this host.
    pub(crate) fn start(address: &str, flaw: Flaw, restart: PathBuf) -> Self {
        let state = Arc::new(State {
            flaw,
            is_dead: AtomicBool::new(false),
            last: Mutex::new(Vec::new()),
            restart: restart.clone(),
        });
        let spec: Spec = format!("udp:{address}").parse().unwrap();
        let mut link = spec.open(None).unwrap();
        link.receiver = Box::new(Arriving(link.receiver, Arc::clone(&state)));
        link.sender = Box::new(Leaving(link.sender, Arc::clone(&state)));
        let nic = Arc::new(SoftNic::start(link).unwrap());
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // The command has a second connection while it minimizes, and closes the first one
                // without a word.
                let (nic, stream) = (Arc::clone(&nic), stream.unwrap());
                if !state.is_dead() {
                    std::thread::spawn(move || offer(&*nic, stream));
                }
            }
        });
        Self { port, restart }
    }
}

/// One client of the protocol of offers, from its first line to its goodbye. See
/// src/bin/roce/bench/control/offer.rs.
fn offer(nic: &dyn Device, stream: TcpStream) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.next()?.starts_with(Protocol::Offer.magic()));
    out.write_all(b"open\n").ok()?;
    let wish = Wish::parse(&lines.next()?);
    out.write_all(b"welcome\n").ok()?;
    let pd = nic.create_pd().unwrap();
    let memory: Vec<Buffer> = wish.regions.iter().map(|(bytes, _)| Buffer::new(*bytes)).collect();
    let regions = memory.iter().zip(&wish.regions);
    let regions: Vec<_> = regions
        .map(|(buffer, (_, access))| (buffer, nic.register(pd, buffer, *access).unwrap()))
        .collect();
    let cq = nic.create_cq(wish.receives.0 as usize + 16).unwrap();
    let cap = QpCap { max_recv_wr: wish.receives.0.max(1), ..QpCap::ORDINARY };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let qp = nic.create_qp(pd, create).unwrap();
    nic.connect(qp, &wish.peer, &Connect::default().mtu(wish.mtu)).unwrap();
    let receives = Buffer::new((wish.receives.0 * wish.receives.1).max(1) as usize);
    let receives_mr = nic.register(pd, &receives, Access::LOCAL_WRITE).unwrap();
    for index in 0..wish.receives.0 {
        let length = wish.receives.1;
        let addr = receives.addr() + u64::from(index * length);
        let sges = [Sge { addr, length, lkey: receives_mr.lkey() }];
        nic.post_recv(qp, &RecvWr { id: WrId(0), sges: &sges }).unwrap();
    }
    let Endpoint { gid, qpn, psn } = nic.endpoint(qp).unwrap();
    let offered = regions.iter().map(|(buffer, mr)| json!([buffer.addr(), mr.rkey().get()]));
    let grant = json!({
        "mtu": wish.mtu.bytes(),
        "qp": {"gid": Ipv6Addr::from(gid.0), "qpn": qpn.get(), "psn": psn.get()},
        "qkey": 0,
        "regions": offered.collect::<Vec<_>>(),
    });
    let mut served = out.write_all(format!("{grant}\n").as_bytes());
    while let Some(line) = lines.next().filter(|line| line != "\"bye\"" && served.is_ok()) {
        if line == "\"state\"" {
            served = out.write_all(b"{\"state\":\"RTS\"}\n");
        }
    }
    nic.destroy_qp(qp).unwrap();
    for (_, mr) in regions.iter().chain([&(&receives, receives_mr)]) {
        nic.deregister(*mr).unwrap();
    }
    nic.destroy_cq(cq).unwrap();
    nic.destroy_pd(pd).unwrap();
    Some(())
}

/// Request of a client.
struct Wish {
    mtu: Mtu,
    peer: Endpoint,
    /// Number and length of receives.
    receives: (u32, u32),
    regions: Vec<(usize, Access)>,
}

impl Wish {
    fn parse(line: &str) -> Self {
        let wish: Value = serde_json::from_str(line).unwrap();
        assert_eq!(wish["connection"], "rc");
        let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let peer = &wish["peer"];
        let gid = Gid::from(peer["gid"].as_str().unwrap().parse::<Ipv6Addr>().unwrap());
        let (qpn, psn) = (Qpn::new(number(&peer["qpn"])), Psn::new(number(&peer["psn"])));
        let regions = wish["regions"].as_array().unwrap().iter();
        Self {
            mtu: Mtu::from_bytes(number(&wish["mtu"]) as usize).unwrap(),
            peer: Endpoint { gid, qpn, psn },
            receives: (number(&wish["receives"]), number(&wish["receive_bytes"])),
            regions: regions
                .map(|region| (number(&region["bytes"]) as usize, access(region)))
                .collect(),
        }
    }
}

fn access(region: &Value) -> Access {
    let may = |right: &str| region[right].as_bool().unwrap();
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_WRITE, may("write"));
    access.set(Access::REMOTE_READ, may("read"));
    access.set(Access::REMOTE_ATOMIC, may("atomic"));
    access
}
