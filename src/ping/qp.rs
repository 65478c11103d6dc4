//! A UD queue pair for probes or acknowledgements, with its buffers and address handles, on any
//! device.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::limits::{ACK_BYTES, AHS_MAX, PROBE_BYTES};
use super::packet::Bytes;
use super::responder::Source;
use crate::device::{Ah, Buf, Completion, Context, Cq, Memory, Pd, Qp, Ud};
use crate::secret::{SecretRandom, Seed};
use crate::time::Instant;
use crate::verbs::limits::GRH_BYTES;
use crate::verbs::{AhAttr, Connect, WcOpcode};
use crate::wire::{Bits, Gid, QKey, Qpn};

/// Number of receives that are posted.
const RECEIVES: u32 = 512;

/// Number of sends that can be in flight.
const SENDS: u32 = 512;

const GRH: usize = GRH_BYTES as usize;

/// Number of bytes of a receive buffer.
const RECEIVE_BYTES: usize = GRH + PROBE_BYTES;

/// Upper bound for the memory that one takes of a host.
pub const QP_MEMORY: u64 = RECEIVES as u64 * (RECEIVE_BYTES as u64 + 192)
    + SENDS as u64 * (PROBE_BYTES as u64 + 320)
    + 8192;

/// Address of a UD queue pair, as its peer must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address of its port.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: Qpn,
    /// The key that datagrams to it must have. It is random: a datagram of a sender that was not
    /// told it is dropped by the NIC.
    pub qkey: QKey,
}

impl Address {
    /// Returns what its datagrams come from.
    pub fn source(&self) -> Source {
        Source { gid: self.gid, qpn: self.qpn }
    }
}

/// Purpose of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends probes.
    Prober,
    /// Sends acknowledgements.
    Responder,
}

/// Returns a random number from the operating system, for
/// [`ProberConfig::session`](super::ProberConfig::session) and
/// [`ResponderConfig::instance`](super::ResponderConfig::instance).
pub fn random_id() -> io::Result<u64> {
    Ok(SecretRandom::new(Seed::from_system()?).next())
}

/// The clock of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(std::time::Instant);

impl Clock {
    fn start() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this part runs in real time")]
        Self(std::time::Instant::now())
    }

    pub(super) fn now(self) -> Instant {
        Instant::ZERO.saturating_add(self.0.elapsed())
    }
}

/// A completion of a [`ProbeQp`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    /// A send completed.
    Sent { id: u64, is_success: bool, at: Instant },
    /// A datagram came.
    Received { source: Source, bytes: [u8; PROBE_BYTES], len: usize, at: Instant },
    /// A datagram came whose network header is not understood.
    NoSource,
}

/// A UD queue pair for probes, whose address a peer is told before probing begins.
#[derive(Debug)]
pub struct ProbeQp {
    qp: Qp<Ud>,
    cq: Cq,
    pd: Pd,
    own: Address,
    gid_index: u8,
    /// Buffers that no send has.
    free: Vec<Buf>,
    ahs: BTreeMap<([u8; 16], u32), Ah>,
    /// Oldest first.
    ah_order: VecDeque<([u8; 16], u32)>,
    clock: Clock,
    has_device_times: bool,
}

impl ProbeQp {
    /// Creates a queue pair on a device, at the address with this index, with a random Q_Key.
    pub fn new(context: &Context, gid_index: u8, role: Role) -> io::Result<Self> {
        let gids = context.gids();
        let gid = gids.get(usize::from(gid_index)).copied().unwrap_or_default();
        if gid == Gid::default() {
            let error = format!("{} has no GID with the index {gid_index}", context.name());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let pd = context.create_pd().map_err(io::Error::other)?;
        let cq = context.create_timed_cq_with_events((SENDS + RECEIVES) as usize)?;
        // Q_Keys with the highest bit are for privileged programs.
        let random = u32::try_from(random_id()? >> 33).unwrap_or(0);
        let qkey = QKey::new(random);
        let qp = pd
            .qp(&cq)
            .depth(SENDS, RECEIVES)
            .signal_all()
            .build::<Ud>()
            .map_err(io::Error::other)?;
        for buf in pd.create_bufs(RECEIVES as usize, RECEIVE_BYTES).map_err(io::Error::other)? {
            qp.recv(0, buf).map_err(|refused| io::Error::other(refused.error))?;
        }
        let len = match role {
            Role::Prober => PROBE_BYTES,
            Role::Responder => ACK_BYTES,
        };
        let free = pd.create_bufs(SENDS as usize, len).map_err(io::Error::other)?;
        let how = Connect::default().gid_index(gid_index).qkey(qkey);
        let qp = qp.open(&how).map_err(io::Error::other)?;
        let own = Address { gid, qpn: qp.number(), qkey };
        let (ahs, ah_order) = (BTreeMap::new(), VecDeque::new());
        let clock = Clock::start();
        let has_device_times = false;
        Ok(Self { qp, cq, pd, own, gid_index, free, ahs, ah_order, clock, has_device_times })
    }

    /// Returns what a peer must be told.
    pub fn address(&self) -> Address {
        self.own
    }

    /// Whether the device has told the time of a completion. Otherwise it is the time at which the
    /// program saw it.
    pub fn has_device_times(&self) -> bool {
        self.has_device_times
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sends a datagram. Its length is that of all datagrams of the role.
    pub(super) fn send(
        &mut self,
        id: u64,
        bytes: &Bytes,
        (to, flow_label): (Address, Bits<20>),
    ) -> io::Result<()> {
        let ah = self.ah(to.gid, flow_label)?;
        let full = || io::Error::other("every send is in flight");
        let mut buf = self.free.pop().ok_or_else(full)?;
        let written = buf.write(0, bytes);
        let posted = match written {
            Ok(()) => self.qp.send_to(id, buf, &ah, to.qpn, to.qkey),
            Err(error) => {
                self.free.push(buf);
                return Err(io::Error::other(error));
            }
        };
        posted.map_err(|refused| {
            if let Memory::Owned(buf) = refused.memory {
                self.free.push(buf);
            }
            io::Error::other(refused.error)
        })
    }

    fn ah(&mut self, gid: Gid, flow_label: Bits<20>) -> io::Result<Ah> {
        let key = (gid.0, flow_label.get());
        if let Some(ah) = self.ahs.get(&key) {
            return Ok(ah.clone());
        }
        if self.ahs.len() == AHS_MAX
            && let Some(oldest) = self.ah_order.pop_front()
        {
            self.ahs.remove(&oldest);
        }
        let attr = AhAttr { flow_label, ..AhAttr::new(gid, self.gid_index) };
        let ah = self.pd.create_ah(attr).map_err(io::Error::other)?;
        self.ahs.insert(key, ah.clone());
        self.ah_order.push_back(key);
        Ok(ah)
    }

    /// Waits for a completion, no longer than `wait`.
    pub(super) fn wait(&mut self, wait: Duration) -> io::Result<Option<Done>> {
        match self.cq.wait(Some(wait)) {
            Ok(completion) => self.take(completion).map(Some),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a completion that is there.
    pub(super) fn poll(&mut self) -> io::Result<Option<Done>> {
        self.cq.next().map(|completion| self.take(completion)).transpose()
    }

    fn take(&mut self, completion: Completion) -> io::Result<Done> {
        self.has_device_times |= completion.time.is_some();
        let at = completion.time.unwrap_or_else(|| self.now());
        let wc = completion.wc;
        let Some(buf) = completion.into_buf() else {
            return Err(io::Error::other("a completion without its buffer"));
        };
        if wc.opcode != WcOpcode::Recv {
            self.free.push(buf);
            return Ok(Done::Sent { id: wc.id.0, is_success: wc.is_success(), at });
        }
        if !wc.is_success() {
            return Err(io::Error::other(format!("receive: {}", wc.status)));
        }
        let mut grh = [0; GRH];
        let mut bytes = [0; PROBE_BYTES];
        let read = buf.read(0, &mut grh).and_then(|()| buf.read(GRH, &mut bytes));
        self.qp.recv(0, buf).map_err(|refused| io::Error::other(refused.error))?;
        read.map_err(io::Error::other)?;
        let len = (wc.byte_len as usize).saturating_sub(GRH).min(PROBE_BYTES);
        Ok(match source_gid(&grh, self.own.gid) {
            Some(gid) => Done::Received { source: Source { gid, qpn: wc.src_qp }, bytes, len, at },
            None => Done::NoSource,
        })
    }
}

/// Returns the source address in the area for a network header, which holds an IPv6 header, or an
/// IPv4 header in its last 20 bytes. Which of them is told by the destination, which is this side's
/// own address.
fn source_gid(area: &[u8; GRH], own: Gid) -> Option<Gid> {
    let array = |at: usize| -> [u8; 4] {
        let bytes = area.get(at..at + 4).unwrap_or_default();
        bytes.try_into().unwrap_or_default()
    };
    if let Some(own) = own.to_ipv4() {
        let is_ipv4 = area.get(20).is_some_and(|first| first >> 4 == 4);
        let [source, destination] = [array(32), array(36)].map(std::net::Ipv4Addr::from);
        return (is_ipv4 && destination == own).then(|| Gid::from(source));
    }
    let is_ipv6 = area.first().is_some_and(|first| first >> 4 == 6);
    let gid = |at: usize| {
        let bytes = area.get(at..at + 16).unwrap_or_default();
        Gid(bytes.try_into().unwrap_or_default())
    };
    (is_ipv6 && gid(24) == own).then(|| gid(8))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn source_is_that_of_the_header_to_this_address() {
        let (near, far) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let mut area = [0xee; GRH];
        area[20] = 0x45;
        area[32..36].copy_from_slice(&far.octets());
        area[36..].copy_from_slice(&near.octets());
        assert_eq!(source_gid(&area, near.into()), Some(far.into()));
        assert_eq!(source_gid(&area, far.into()), None, "to another address");
        area[20] = 0x60;
        assert_eq!(source_gid(&area, near.into()), None, "no IPv4");

        let [near, far] =
            [1, 2].map(|host| Gid([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]));
        let mut area = [0; GRH];
        area[0] = 0x60;
        area[8..24].copy_from_slice(&far.0);
        area[24..].copy_from_slice(&near.0);
        assert_eq!(source_gid(&area, near), Some(far));
        assert_eq!(source_gid(&area, far), None);
        area[0] = 0;
        assert_eq!(source_gid(&area, near), None);
    }
}
