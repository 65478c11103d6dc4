//! The tests that come with rdma-core: `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`,
//! from either side.
//!
//! The protocol carries neither the kind of the queue pairs, nor the size or the number of
//! messages: both users have to give the same options.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use roce::control::limits::LINE_WAIT;
use roce::control::{Stream, Tcp};
use roce::device::{Ah, AnyQp, Context as Nic, Cq, Mr, Pd};
use roce::verbs::limits::GRH_BYTES;
use roce::verbs::{
    Access, AhAttr, Connect, Data, Endpoint, Mtu, RecvWr, SendOp, SendWr, Sge, Target, UdTarget,
    Wc, WrId,
};

use super::control::messages::address_of;
use super::control::pingpong_message::{MESSAGE_BYTES, from_message, to_message};
use super::control::plan::{Connection, SIZE_MAX};
use super::path::{check_addresses, check_responder, is_this_host};
use super::side::failure;
use super::watch::now;

/// Time without an answer after which a client counts a message as lost.
const LOST: Duration = Duration::from_secs(5);

/// Options that must be equal on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) connection: Connection,
    pub(crate) mtu: Mtu,
    pub(crate) gid_index: u8,
    pub(crate) size: u32,
    pub(crate) rx_depth: u32,
}

/// One side of a pingpong: a queue pair, and one buffer for all its messages.
struct Player {
    options: Options,
    pd: Pd,
    cq: Cq,
    qp: AnyQp,
    mr: Mr,
    own: Endpoint,
    target: Target,
    /// Address handle that `target` names (UD).
    ah: Option<Ah>,
}

/// Ids of work requests.
const SENT: WrId = WrId(1);
const RECEIVED: WrId = WrId(2);

impl Player {
    fn new(nic: &Nic, options: Options) -> anyhow::Result<Self> {
        let gids = nic.gids();
        let gid = *gids.get(usize::from(options.gid_index)).with_context(|| {
            format!("-x: {} has {} GIDs, counted from 0", nic.name(), gids.len())
        })?;
        ensure!(options.size <= SIZE_MAX, "-s: 0 to {SIZE_MAX} bytes");
        ensure!((1..=4096).contains(&options.rx_depth), "-r: 1 to 4096 receives");
        let pd = nic.create_pd()?;
        let cq = nic.create_cq(options.rx_depth as usize + 16)?;
        let mr = pd.allocate((options.size + GRH_BYTES) as usize, Access::LOCAL_WRITE)?;
        let qp = pd.qp(&cq).depth(8, options.rx_depth).max_sge(1, 1).max_inline_data(0);
        let qp = qp.signal_all().build_any(options.connection.qp_type())?;
        let own = Endpoint { gid, ..qp.endpoint()? };
        let (target, ah) = (Target::Peer, None);
        Ok(Self { options, pd, cq, qp, mr, own, target, ah })
    }

    /// Connects to the peer's queue pair. The receives are posted before the peer can send.
    fn connect(&mut self, peer: &Endpoint) -> anyhow::Result<()> {
        let Options { connection, mtu, gid_index, rx_depth, .. } = self.options;
        // The attributes of rdma-core's pingpongs.
        let how = Connect::default()
            .gid_index(gid_index)
            .mtu(mtu)
            .psn(self.own.psn)
            .access(Access::empty())
            .rd_atomic(1);
        if connection == Connection::Ud {
            self.qp.open_datagram(&how)?;
            let ah = self.pd.create_ah(AhAttr::new(peer.gid, gid_index))?;
            let to = UdTarget { ah: ah.handle(), qpn: peer.qpn, qkey: how.qkey };
            (self.target, self.ah) = (Target::Ud(to), Some(ah));
        } else {
            self.qp.connect(peer, &how)?;
        }
        (0..rx_depth).try_for_each(|_| self.post_receive())
    }

    fn sge(&self, offset: u32, length: u32) -> Sge {
        self.mr.sge(offset as usize, length as usize)
    }

    fn post_receive(&self) -> anyhow::Result<()> {
        let grh = self.grh();
        let sges = [self.sge(GRH_BYTES - grh, self.options.size + grh)];
        let posted = self.qp.post_recv(&RecvWr { id: RECEIVED, sges: &sges });
        posted.context("cannot post a receive")
    }

    /// Returns the length of the GRH before a received message.
    fn grh(&self) -> u32 {
        if self.options.connection == Connection::Ud { GRH_BYTES } else { 0 }
    }

    fn send(&self, bytes: u32) -> anyhow::Result<()> {
        let sges = [self.sge(GRH_BYTES, bytes)];
        let op = SendOp::Send { imm: None };
        let wr = SendWr { target: self.target, ..SendWr::new(SENT, op, Data::Gather(&sges)) };
        self.qp.post_send(&wr).context("cannot post a message")
    }

    /// Waits until `messages` sends have completed. `sent` counts them.
    fn wait_until_sent(&self, messages: u64, sent: &mut u64) -> anyhow::Result<()> {
        let since = now();
        while *sent < messages {
            let mut wcs = [Wc::default(); 1];
            if self.cq.poll_wcs(&mut wcs) > 0 {
                let [wc] = wcs;
                if !wc.is_success() {
                    return Err(failure("pingpong", &wc));
                }
                ensure!(wc.id == SENT, "a message came back that was not sent");
                *sent += 1;
                continue;
            }
            ensure!(now().duration_since(since) < LOST, "the last message was not acknowledged");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits for a message, and returns its length, or `None` after `timeout`. `sent` counts the
    /// sends that complete meanwhile.
    fn receive(&self, timeout: Duration, sent: &mut u64) -> anyhow::Result<Option<u32>> {
        let mut waiting_since: Option<Instant> = None;
        let mut in_vain = 0_u32;
        loop {
            let mut wcs = [Wc::default(); 1];
            if self.cq.poll_wcs(&mut wcs) > 0 {
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
                if let Some(error) = self.cq.context().device().broken() {
                    return Err(error.into());
                }
                let now = now();
                let since = *waiting_since.get_or_insert(now);
                if now.duration_since(since) > timeout {
                    return Ok(None);
                }
            }
        }
    }
}

/// Result of a pingpong.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) own: Endpoint,
    pub(crate) peer: Endpoint,
    pub(crate) rounds: u64,
    pub(crate) time: Duration,
}

/// Plays the client's part: sends, and waits for the answer, `rounds` times.
pub(crate) fn client(
    nic: &Nic,
    mut stream: Tcp,
    options: Options,
    rounds: u64,
    any_gid: bool,
) -> anyhow::Result<Played> {
    let remote = stream.peer()?;
    let mut player = Player::new(nic, options)?;
    let own = player.own;
    stream.send_all(&to_message(&own), LINE_WAIT).context("the server is gone")?;
    let mut message = [0; MESSAGE_BYTES];
    stream.read_all(&mut message, LINE_WAIT).context("the server sent no address")?;
    let peer = from_message(&message).context("the server's address")?;
    check_responder(address_of(peer.gid), remote, any_gid)?;
    check_addresses(address_of(own.gid), address_of(peer.gid), is_this_host(remote))?;
    player.connect(&peer)?;
    stream.send_all(b"done\0", LINE_WAIT).context("the server is gone")?;
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
    if options.connection == Connection::Rc {
        player.wait_until_sent(rounds, &mut sent)?;
    }
    Ok(Played { own, peer, rounds, time })
}

/// Limits of serving a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Maximum time without a message.
    pub(crate) idle: Duration,
    /// Maximum duration.
    pub(crate) in_all: Duration,
}

/// Plays the server's part: sends every message back, until none arrives for `limits.idle`.
pub(crate) fn server(
    nic: &Nic,
    stream: &mut Tcp,
    peer: Endpoint,
    options: Options,
    limits: ServerLimits,
) -> anyhow::Result<Played> {
    let mut player = Player::new(nic, options)?;
    player.connect(&peer)?;
    let own = player.own;
    stream.send_all(&to_message(&own), LINE_WAIT).context("the client is gone")?;
    let mut done = [0; 5];
    stream.read_all(&mut done, LINE_WAIT).context("the client did not say that it is ready")?;
    ensure!(done == *b"done\0", "the client sent something other than 'done'");
    let (started, mut sent, mut rounds) = (now(), 0, 0);
    let mut last = started;
    while let Some(bytes) = player.receive(limits.idle, &mut sent)? {
        ensure!(
            now().duration_since(started) < limits.in_all,
            "the time of the client is over after {rounds} messages; \
             roce serve --max-duration sets it"
        );
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

/// Formats an address as the pingpongs print it.
pub(crate) fn describe(endpoint: &Endpoint) -> String {
    let (qpn, psn, gid) = (endpoint.qpn.get(), endpoint.psn.get(), endpoint.gid);
    format!("LID 0x0000, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {gid}")
}

/// Formats the result as the pingpongs print it.
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
