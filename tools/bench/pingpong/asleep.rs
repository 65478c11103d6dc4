//! SENDs between two soft NICs whose programs sleep until an event comes, or poll.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use roce::device::{AnyQp, Context, Cq, Mr, Pd};
use roce::link::udp::{Options, open};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{Access, Connect, Data, Endpoint, QpType, RecvWr, SendOp, SendWr, Sge, Wc, WrId};
use roce::wire::{Gid, Psn, Qpn};

use super::{PORT, SIZE, Wire};

/// Length of queues.
const QUEUE: u32 = 64;

const RECEIVE: WrId = WrId(1);
const SEND: WrId = WrId(2);

/// A queue pair with what it needs.
pub(super) struct Nic {
    cq: Cq,
    qp: AnyQp,
    sge: Sge,
    /// Whether the program polls instead of sleeping.
    polls: bool,
    _kept: (Context, Pd, Mr),
}

impl Nic {
    /// Opens the server's NIC, at the address at which it awaits the client.
    pub(super) fn serve(at: &str, polls: bool) -> Self {
        let (stream, _) = TcpListener::bind((at, PORT)).unwrap().accept().unwrap();
        Self::connect(stream, polls)
    }

    /// Opens the client's NIC, at the address from which the server is reached.
    pub(super) fn reach(server: &str, polls: bool) -> Self {
        Self::connect(TcpStream::connect((server, PORT)).unwrap(), polls)
    }

    fn connect(mut stream: TcpStream, polls: bool) -> Self {
        let own: SocketAddr = stream.local_addr().unwrap();
        let context = Context::new(SoftNic::start(open(&Options::new(own.ip())).unwrap()).unwrap());
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq_with_events(4 * QUEUE as usize).unwrap();
        let qp = pd.qp(&cq).depth(QUEUE, QUEUE).build_any(QpType::Rc).unwrap();
        let mr = pd.register(&Buffer::new(SIZE), Access::LOCAL_WRITE).unwrap();
        let sge = Sge { addr: mr.addr(), length: SIZE as u32, lkey: mr.lkey() };
        let Endpoint { gid, qpn, psn } = qp.endpoint().unwrap();
        writeln!(stream, "{} {} {}", u128::from_be_bytes(gid.0), qpn.get(), psn.get()).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let numbers: Vec<u128> = line.split_whitespace().map(|it| it.parse().unwrap()).collect();
        let [gid, qpn, psn] = numbers[..] else { panic!("{line}") };
        let (qpn, psn) = (Qpn::new(qpn as u32), Psn::new(psn as u32));
        let peer = Endpoint { gid: Gid(gid.to_be_bytes()), qpn, psn };
        qp.connect(&peer, &Connect::default()).unwrap();
        let nic = Self { cq, qp, sge, polls, _kept: (context, pd, mr) };
        (1..QUEUE).for_each(|_| nic.post_receive());
        // Until the peer has connected.
        stream.write_all(b"\n").unwrap();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        nic
    }

    fn post_receive(&self) {
        self.qp.post_recv(&RecvWr { id: RECEIVE, sges: &[self.sge] }).unwrap();
    }
}

impl Wire for Nic {
    fn send(&mut self, _message: &[u8; SIZE]) {
        let (op, sges) = (SendOp::Send { imm: None }, [self.sge]);
        self.qp.post_send(&SendWr::new(SEND, op, Data::Gather(&sges))).unwrap();
    }

    fn receive(&mut self) -> bool {
        let completion = if self.polls {
            let Some(completion) = self.cq.next() else { return false };
            completion
        } else {
            self.cq.wait(Some(Duration::from_secs(5))).unwrap()
        };
        let wc: Wc = completion.wc;
        assert!(wc.is_success(), "{wc:?}");
        if wc.id != RECEIVE {
            return false;
        }
        self.post_receive();
        true
    }
}
