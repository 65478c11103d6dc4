//! An echo server and its client, which find each other by the connection manager: no other
//! connection is needed to exchange queue pair numbers and addresses. Any program that uses
//! librdmacm can connect to the server, too.
//!
//! ```console
//! $ cargo run --example cm_echo -- 127.0.0.1 &
//! $ cargo run --example cm_echo -- 127.0.0.2 127.0.0.1
//! ```

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use roce::connect::{Connection, ConnectionManager, Options};
use roce::device::Device;
use roce::link::udp;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, CqHandle, Data, QpHandle, QpType, RecvWr, SendOp, SendWr, Sge, WcStatus, WrId,
};

mod common;

const PORT: u16 = 7;

/// Maximum length of a message.
const SIZE: u32 = 4096;

/// A queue pair with a buffer for each direction.
struct Side {
    nic: Arc<dyn Device>,
    cq: CqHandle,
    qp: QpHandle,
    buffer: Buffer,
    sge: Sge,
}

impl Side {
    fn create(manager: &ConnectionManager) -> Result<Self, Box<dyn Error>> {
        let nic = Arc::clone(manager.nic());
        let (pd, cq) = (nic.create_pd()?, nic.create_cq(16)?);
        let qp = nic.create_simple_qp(pd, cq, QpType::Rc)?;
        let buffer = Buffer::new(SIZE as usize);
        let mr = nic.register(pd, &buffer, Access::LOCAL_WRITE)?;
        let sge = Sge { addr: buffer.addr(), length: SIZE, lkey: mr.lkey() };
        let side = Self { nic, cq, qp, buffer, sge };
        // Receives are posted before the peer can send.
        manager.prepare(qp)?;
        side.post_recv()?;
        Ok(side)
    }

    fn post_recv(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.nic.post_recv(self.qp, &RecvWr { id: WrId(0), sges: &[self.sge] })?)
    }

    fn send(&self, length: u32) -> Result<(), Box<dyn Error>> {
        let sges = [Sge { length, ..self.sge }];
        let op = SendOp::Send { imm: None };
        Ok(self.nic.post_send(self.qp, &SendWr::new(WrId(1), op, Data::Gather(&sges)))?)
    }

    /// Waits for a message; its length, or `None` when the connection has ended.
    fn receive(&self, connection: &Connection) -> Result<Option<u32>, Box<dyn Error>> {
        let mut wc = [roce::verbs::Wc::default()];
        loop {
            if self.nic.poll_cq(self.cq, &mut wc) == 0 {
                if connection.wait_disconnected(Duration::from_millis(1))? {
                    return Ok(None);
                }
            } else if wc[0].status != WcStatus::Success {
                return Err(format!("{:?}", wc[0]).into());
            } else if wc[0].id == WrId(0) {
                return Ok(Some(wc[0].byte_len));
            }
        }
    }
}

fn serve(manager: &ConnectionManager, at: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = manager.listen(at)?;
    println!("listening at {}", listener.local_addr()?);
    loop {
        let request = listener.accept()?;
        let peer = request.peer_addr();
        let side = Side::create(manager)?;
        let connection = request.accept(side.qp, &Options::with_private_data(b"echo"))?;
        let mut count = 0_u32;
        while let Some(length) = side.receive(&connection)? {
            side.post_recv()?;
            side.send(length)?;
            count += 1;
        }
        println!("{peer}: {count} messages");
    }
}

fn talk(manager: &ConnectionManager, to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let side = Side::create(manager)?;
    let connection = manager.connect(side.qp, to, &Options::default())?;
    let told = String::from_utf8_lossy(&connection.private_data()[..4]).into_owned();
    println!("connected to {to}, which says: {told}");
    for message in ["hello", "over RDMA", "without a line of TCP"] {
        side.buffer.write(0, message.as_bytes())?;
        side.send(u32::try_from(message.len())?)?;
        let length = side.receive(&connection)?.ok_or("the server has gone")?;
        let mut echo = vec![0; length as usize];
        side.buffer.read(0, &mut echo)?;
        println!("{}", String::from_utf8(echo)?);
        side.post_recv()?;
    }
    connection.disconnect(Duration::from_secs(10))?;
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let address = |name, value: &str| common::parse::<IpAddr>(name, value, "an IP address");
    let (own, server) = match given.as_slice() {
        [own] => (address("OWN-ADDRESS", own)?, None),
        [own, server] => (address("OWN-ADDRESS", own)?, Some(address("SERVER-ADDRESS", server)?)),
        _ => return Err(common::wrong(&given, "cm_echo OWN-ADDRESS [SERVER-ADDRESS]").into()),
    };
    let nic = SoftNic::start(udp::open(&udp::Options::new(own))?)?;
    let manager = ConnectionManager::start(Arc::new(nic))?;
    match server {
        Some(server) => talk(&manager, SocketAddr::new(server, PORT)),
        None => serve(&manager, SocketAddr::new(own, PORT)),
    }
}

fn main() -> ExitCode {
    common::end("cm_echo", run())
}
