//! The tests that come with rdma-core: `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`, from either side.
//!
//! Over TCP each side sends one message of 52 bytes, the client first: LID, queue pair, sequence number and GID as
//! hexadecimal digits, with colons between them and a zero behind. The client then says `done`. Nothing tells the kind
//! of the queue pairs, the size or how often: both users have to give the same options.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use roce::engine::{CqHandle, MrHandle, PdHandle, QpCreate, QpHandle};
use roce::memory::Buffer;
use roce::verbs::limits::GRH_BYTES;
use roce::verbs::{
    Access, AhAttr, AhHandle, Connect, Data, Device, Endpoint, Mtu, QpCap, QpInitAttr, RecvWr,
    SendOp, SendWr, Sge, Target, UdTarget, Wc, WrId,
};
use roce::wire::{Gid, Psn, Qpn};

use super::exchange::LINE_WAIT;
use super::plan::{Connection, SIZE_MAX};
use super::side::failure;
use super::watch::now;

/// A message on TCP.
pub(crate) const MESSAGE_BYTES: usize = 52;

/// How long nothing may come before a client takes a message for lost.
const LOST: Duration = Duration::from_secs(5);

/// What a message says.
pub(crate) fn to_message(endpoint: &Endpoint) -> [u8; MESSAGE_BYTES] {
    let gid: String = endpoint.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    // The LID is InfiniBand's; on Ethernet it is zero.
    let text = format!("0000:{:06x}:{:06x}:{gid}\0", endpoint.qpn.get(), endpoint.psn.get());
    text.as_bytes().try_into().expect("the fields have fixed widths")
}

/// What a message says, if it is one.
pub(crate) fn from_message(message: &[u8; MESSAGE_BYTES]) -> anyhow::Result<Endpoint> {
    let text = message.strip_suffix(b"\0").and_then(|text| str::from_utf8(text).ok());
    let text = text.context("the message is not text that ends with a zero")?;
    let fields: Vec<&str> = text.split(':').collect();
    let [lid, qpn, psn, gid] = fields[..] else {
        bail!("the message has {} fields instead of 4", fields.len());
    };
    for (field, width) in [(lid, 4), (qpn, 6), (psn, 6), (gid, 32)] {
        let sound = field.len() == width && field.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(sound, "'{}' is not {width} hexadecimal digits", field.escape_default());
    }
    let gid = u128::from_str_radix(gid, 16)?.to_be_bytes();
    let (qpn, psn) = (u32::from_str_radix(qpn, 16)?, u32::from_str_radix(psn, 16)?);
    ensure!(
        gid != [0; 16],
        "the other side gave no GID: run it with -g INDEX (ibv_devinfo -v lists them)"
    );
    Ok(Endpoint { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

/// Whether a connection that begins like this is a pingpong's.
pub(crate) fn is_message(start: &[u8; 5]) -> bool {
    let (lid, colon) = start.split_at(4);
    lid.iter().all(u8::is_ascii_hexdigit) && colon == b":"
}

/// What both users have to agree upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) connection: Connection,
    pub(crate) mtu: Mtu,
    pub(crate) gid_index: u8,
    pub(crate) size: u32,
    pub(crate) rx_depth: u32,
}

/// One queue pair, and one buffer that all its messages go through.
struct Player<'a> {
    nic: &'a dyn Device,
    options: Options,
    pd: PdHandle,
    cq: CqHandle,
    qp: QpHandle,
    buffer: Buffer,
    mr: MrHandle,
    own: Endpoint,
    target: Target,
    way: Option<AhHandle>,
}

/// Names of work requests.
const SENT: WrId = WrId(1);
const RECEIVED: WrId = WrId(2);

impl<'a> Player<'a> {
    fn new(nic: &'a dyn Device, options: Options) -> anyhow::Result<Self> {
        let gids = nic.gids();
        let gid = *gids.get(usize::from(options.gid_index)).with_context(|| {
            format!("-x: {} has {} GIDs, counted from 0", nic.name(), gids.len())
        })?;
        ensure!((1..=SIZE_MAX).contains(&options.size), "-s: 1 to {SIZE_MAX} bytes");
        ensure!((1..=4096).contains(&options.rx_depth), "-r: 1 to 4096 receives");
        let pd = nic.create_pd()?;
        let cq = nic.create_cq(options.rx_depth as usize + 16)?;
        let buffer = Buffer::new((options.size + GRH_BYTES) as usize);
        let mr = nic.register(pd, &buffer, Access::LOCAL_WRITE)?;
        let cap = QpCap {
            max_send_wr: 8,
            max_recv_wr: options.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = options.connection.qp_type();
        let init = QpInitAttr { qp_type, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = nic.create_qp(pd, create)?;
        let own = Endpoint { gid, ..nic.endpoint(qp)? };
        let (target, way) = (Target::Peer, None);
        Ok(Self { nic, options, pd, cq, qp, buffer, mr, own, target, way })
    }

    /// Meets the other side. The receives are posted before it can send.
    fn connect(&mut self, peer: &Endpoint) -> anyhow::Result<()> {
        let Options { connection, mtu, gid_index, rx_depth, .. } = self.options;
        // What the originals connect with.
        let how = Connect {
            gid_index,
            mtu,
            psn: Some(self.own.psn),
            access: Access::empty(),
            rd_atomic: 1,
            ..Connect::default()
        };
        if connection == Connection::Ud {
            self.nic.open_datagram(self.qp, &how)?;
            let ah = self.nic.create_ah(self.pd, AhAttr::new(peer.gid, gid_index))?;
            self.way = Some(ah);
            self.target = Target::Ud(UdTarget { ah, qpn: peer.qpn, qkey: how.qkey });
        } else {
            self.nic.connect(self.qp, peer, &how)?;
        }
        (0..rx_depth).try_for_each(|_| self.post_receive())
    }

    fn sge(&self, offset: u32, length: u32) -> Sge {
        Sge { addr: self.buffer.addr() + u64::from(offset), length, lkey: self.mr.lkey() }
    }

    fn post_receive(&self) -> anyhow::Result<()> {
        let grh = self.grh();
        let sges = [self.sge(GRH_BYTES - grh, self.options.size + grh)];
        let posted = self.nic.post_recv(self.qp, &RecvWr { id: RECEIVED, sges: &sges });
        posted.context("cannot post a receive")
    }

    /// What lies before a message that was received.
    fn grh(&self) -> u32 {
        if self.options.connection == Connection::Ud { GRH_BYTES } else { 0 }
    }

    fn send(&self, bytes: u32) -> anyhow::Result<()> {
        let sges = [self.sge(GRH_BYTES, bytes)];
        let op = SendOp::Send { imm: None };
        let wr = SendWr { target: self.target, ..SendWr::new(SENT, op, Data::Gather(&sges)) };
        self.nic.post_send(self.qp, &wr).context("cannot post a message")
    }

    /// Waits until a message came, or until `patience` is over; how many bytes it has.
    fn receive(&self, patience: Duration, sent: &mut u64) -> anyhow::Result<Option<u32>> {
        let mut waiting_since: Option<Instant> = None;
        let mut in_vain = 0_u32;
        loop {
            let mut wcs = [Wc::default(); 1];
            if self.nic.poll_cq(self.cq, &mut wcs) > 0 {
                let [wc] = wcs;
                if !wc.is_success() {
                    return Err(failure("pingpong", &wc));
                }
                if wc.id == RECEIVED {
                    return Ok(Some(wc.byte_len.saturating_sub(self.grh())));
                }
                *sent += 1;
                continue;
            }
            in_vain += 1;
            if in_vain.is_multiple_of(64) {
                std::thread::yield_now();
                if let Some(error) = self.nic.broken() {
                    return Err(error.into());
                }
                let now = now();
                let since = *waiting_since.get_or_insert(now);
                if now.duration_since(since) > patience {
                    return Ok(None);
                }
            }
        }
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        // What cannot be unmade goes with the NIC.
        let _ = self.nic.destroy_qp(self.qp);
        if let Some(way) = self.way {
            let _ = self.nic.destroy_ah(way);
        }
        let _ = self.nic.deregister(self.mr);
        let _ = self.nic.destroy_cq(self.cq);
        let _ = self.nic.destroy_pd(self.pd);
    }
}

/// What a pingpong came to.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) own: Endpoint,
    pub(crate) peer: Endpoint,
    pub(crate) rounds: u64,
    pub(crate) time: Duration,
}

/// Plays the client's part: sends, and waits for the answer, `rounds` times.
pub(crate) fn client(
    nic: &dyn Device,
    mut stream: TcpStream,
    options: Options,
    rounds: u64,
) -> anyhow::Result<Played> {
    set_timeouts(&stream)?;
    let mut player = Player::new(nic, options)?;
    let own = player.own;
    stream.write_all(&to_message(&own)).context("the server is gone")?;
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message).context("the server sent no address")?;
    let peer = from_message(&message).context("the server's address")?;
    player.connect(&peer)?;
    stream.write_all(b"done\0").context("the server is gone")?;
    let (started, mut sent) = (now(), 0);
    for round in 0..rounds {
        player.send(options.size)?;
        let came = player.receive(LOST, &mut sent)?;
        let came = came.with_context(|| {
            format!(
                "no answer after {round} messages; -c, -s and -m have to be the server's, and {} loses messages",
                options.connection.name()
            )
        })?;
        ensure!(
            came == options.size,
            "{came} bytes came back of {}; -s has to be the server's",
            options.size
        );
        player.post_receive()?;
    }
    let time = now().duration_since(started);
    // The last message may not have been acknowledged yet.
    while sent < rounds && options.connection == Connection::Rc {
        ensure!(player.receive(LOST, &mut sent)?.is_none(), "more came back than was sent");
        ensure!(sent >= rounds, "the last message was not acknowledged");
    }
    Ok(Played { own, peer, rounds, time })
}

/// Plays the server's part: answers every message with itself, until none has come for `patience`.
pub(crate) fn server(
    nic: &dyn Device,
    stream: &mut TcpStream,
    message: &[u8; MESSAGE_BYTES],
    options: Options,
    patience: Duration,
) -> anyhow::Result<Played> {
    let peer = from_message(message)?;
    let mut player = Player::new(nic, options)?;
    player.connect(&peer)?;
    let own = player.own;
    stream.write_all(&to_message(&own)).context("the client is gone")?;
    let mut done = [0; 5];
    stream.read_exact(&mut done).context("the client did not say that it is ready")?;
    ensure!(done == *b"done\0", "the client said something else than 'done'");
    let (started, mut sent, mut rounds) = (now(), 0, 0);
    let mut last = started;
    while let Some(bytes) = player.receive(patience, &mut sent)? {
        player.post_receive()?;
        player.send(bytes)?;
        rounds += 1;
        last = now();
    }
    ensure!(
        rounds > 0,
        "the client sent nothing; -c has to be the server's --pingpong, and -m its -m"
    );
    Ok(Played { own, peer, rounds, time: last.duration_since(started) })
}

/// Nobody is waited for for ever.
pub(crate) fn set_timeouts(stream: &TcpStream) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(LINE_WAIT))?;
    stream.set_write_timeout(Some(LINE_WAIT))?;
    Ok(stream.set_nodelay(true)?)
}

/// An address as the pingpongs print it.
pub(crate) fn describe(endpoint: &Endpoint) -> String {
    let (qpn, psn, gid) = (endpoint.qpn.get(), endpoint.psn.get(), endpoint.gid);
    format!("LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}")
}

/// The result as the pingpongs print it.
#[expect(clippy::cast_precision_loss, reason = "rates")]
pub(crate) fn result(played: &Played, size: u32) -> String {
    let (seconds, rounds) = (played.time.as_secs_f64().max(1e-9), played.rounds);
    let bytes = u64::from(size) * rounds * 2;
    format!(
        "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec\n\
         {rounds} iters in {seconds:.2} seconds = {:.2} usec/iter\n",
        bytes as f64 * 8.0 / seconds / 1e6,
        seconds * 1e6 / (rounds.max(1) as f64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let gid = Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 2));
        Endpoint { gid, qpn: Qpn::new(0x11), psn: Psn::new(0xabcdef) }
    }

    #[test]
    fn a_message_is_what_the_originals_send() {
        let message = b"0000:000011:abcdef:00000000000000000000ffff0a090002\0";
        assert_eq!(&to_message(&endpoint()), message);
        assert_eq!(from_message(message).unwrap(), endpoint());
        assert!(is_message(b"0000:") && is_message(b"1aF0:"));
        assert!(!is_message(b"roce-") && !is_message(b"00000") && !is_message(b"5.60\0"));
    }

    #[test]
    fn what_is_no_message_is_refused_and_named() {
        let refused = |text: &[u8; MESSAGE_BYTES]| from_message(text).unwrap_err().to_string();
        let no_gid = b"0000:000011:abcdef:00000000000000000000000000000000\0";
        assert!(refused(no_gid).contains("-g INDEX"));
        let sign = b"0000:+00011:abcdef:00000000000000000000ffff0a090002\0";
        assert!(refused(sign).contains("'+00011' is not 6 hexadecimal digits"));
        let shifted = b"000:0000011:abcdef:00000000000000000000ffff0a090002\0";
        assert!(refused(shifted).contains("'000' is not 4"));
        let long = b"0000:000011:abcdef:00000000000000000000ffff0a0900022";
        assert!(refused(long).contains("ends with a zero"));
        let many = b"0000:000011:abcdef:00000000000000:00000ffff0a090002\0";
        assert!(refused(many).contains("5 fields"));
        assert!(refused(&[0xff; MESSAGE_BYTES]).contains("not text"));
    }
}
