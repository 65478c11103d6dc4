//! Onto what the requests of a script are mapped: addresses, queue pairs, sequence numbers, memory.

use super::outgoing::Outgoing;
use super::script::{Captured, Script};
use crate::wire::layout::{BitRange, Field};
use crate::wire::{
    AtomicEth, Bth, Deth, Gid, Headers, Ieth, MacAddr, Psn, QKey, Qpn, RKey, Reth, XrcSrqn, Xrceth,
};

/// Memory of the capture's responder, and the memory of the peer that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMap {
    /// The key in the capture; nothing stands for every key.
    pub old_rkey: Option<RKey>,
    /// The first address in the capture.
    pub old_start: u64,
    /// Number of bytes that are mapped; `None` means as far as addresses go.
    pub len: Option<u64>,
    /// The key at the peer; nothing keeps that of the capture.
    pub new_rkey: Option<RKey>,
    /// The first address at the peer.
    pub new_start: u64,
}

impl MemoryMap {
    /// Returns the offset of an access in the mapped memory, if it is of it.
    fn offset(&self, rkey: RKey, address: u64) -> Option<u64> {
        let fits = self.old_rkey.is_none_or(|old| old == rkey);
        let offset = address.checked_sub(self.old_start).filter(|_| fits)?;
        self.len.is_none_or(|len| offset < len).then_some(offset)
    }
}

/// Treatment of VLAN tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VlanMap {
    /// Frames keep the tag that they have.
    #[default]
    Keep,
    /// Frames have no tag.
    Strip,
    /// Frames have this tag: priority, drop eligibility, VLAN.
    Set(u16),
}

/// Target that the requests of one script are mapped onto. What is not given is kept as it is in
/// the capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The address that packets are sent from.
    pub source: Option<Gid>,
    /// The address of the peer.
    pub destination: Option<Gid>,
    /// The hardware address that frames are sent from.
    pub source_mac: Option<MacAddr>,
    /// The hardware address of the peer.
    pub destination_mac: Option<MacAddr>,
    /// The VLAN.
    pub vlan: VlanMap,
    /// The UDP source port.
    pub source_port: Option<u16>,
    /// The queue pair of the peer.
    pub qpn: Option<Qpn>,
    /// The queue pair that requests come from. The peer sends its answers there; datagrams name it.
    pub source_qpn: Option<Qpn>,
    /// The PSN of the first request.
    pub first_psn: Option<Psn>,
    /// The queue key of datagrams.
    pub qkey: Option<QKey>,
    /// The XRC shared receive queue.
    pub srq: Option<XrcSrqn>,
    /// Keys and addresses. Of several that fit an access, the one with the largest start counts.
    pub memory: Vec<MemoryMap>,
}

impl Target {
    /// A request of a script, mapped; its PSN is `psn_shift` later than in the first round.
    pub fn request(&self, script: &Script, captured: &Captured, psn_shift: u32) -> Outgoing {
        let mut out = Outgoing::new(captured.envelope, captured.packet.clone());
        let path = &mut out.envelope.path;
        path.source = self.source.unwrap_or(path.source);
        path.destination = self.destination.unwrap_or(path.destination);
        path.source_port = self.source_port.unwrap_or(path.source_port);
        self.map_link(&mut out, [self.destination_mac, self.source_mac]);
        if let Some(qpn) = self.qpn {
            set(&mut out.packet, Bth::LAYOUT.dest_qp, &qpn);
        }
        self.map_psn(script, &mut out.packet, psn_shift);
        self.map_extensions(&mut out.packet);
        out
    }

    /// An answer of a script, mapped the other way round.
    pub fn answer(&self, script: &Script, captured: &Captured, psn_shift: u32) -> Outgoing {
        let mut out = Outgoing::new(captured.envelope, captured.packet.clone());
        let path = &mut out.envelope.path;
        path.source = self.destination.unwrap_or(path.source);
        path.destination = self.source.unwrap_or(path.destination);
        self.map_link(&mut out, [self.source_mac, self.destination_mac]);
        if let Some(qpn) = self.source_qpn {
            set(&mut out.packet, Bth::LAYOUT.dest_qp, &qpn);
        }
        self.map_psn(script, &mut out.packet, psn_shift);
        out
    }

    fn map_link(&self, out: &mut Outgoing, macs: [Option<MacAddr>; 2]) {
        let [old_destination, old_source] = out.envelope.macs.unwrap_or_default();
        let [destination, source] = macs;
        if out.envelope.macs.is_some() || destination.is_some() || source.is_some() {
            out.envelope.macs =
                Some([destination.unwrap_or(old_destination), source.unwrap_or(old_source)]);
        }
        match self.vlan {
            VlanMap::Keep => {}
            VlanMap::Strip => out.envelope.vlan = None,
            VlanMap::Set(tag) => out.envelope.vlan = Some(tag),
        }
    }

    fn map_psn(&self, script: &Script, packet: &mut [u8], psn_shift: u32) {
        let old = Bth::LAYOUT.psn.read(packet).and_then(|psn| u32::try_from(psn).ok());
        let Some(old) = old else { return };
        let first = self.first_psn.unwrap_or(script.first_psn).get();
        let moved = first.wrapping_sub(script.first_psn.get()).wrapping_add(psn_shift);
        set(packet, Bth::LAYOUT.psn, &Psn::new(old.wrapping_add(moved) & 0xff_ffff));
    }

    /// Maps keys, addresses, queue keys and queues in the extension headers.
    fn map_extensions(&self, packet: &mut [u8]) {
        let Some(&opcode) = packet.first() else { return };
        let Some(info) = crate::wire::Opcode(opcode).info() else { return };
        let at = |header: Headers| info.headers.offset_of(header);
        if let Some(header) = at(Headers::RETH).and_then(|at| packet.get_mut(at..)) {
            self.map_access(header, Reth::LAYOUT.va, Reth::LAYOUT.rkey);
        }
        if let Some(header) = at(Headers::ATOMIC_ETH).and_then(|at| packet.get_mut(at..)) {
            self.map_access(header, AtomicEth::LAYOUT.va, AtomicEth::LAYOUT.rkey);
        }
        if let Some(header) = at(Headers::IETH).and_then(|at| packet.get_mut(at..))
            && let Some(old) = read_rkey(header, Ieth::LAYOUT.rkey)
            && let Some(new) = self.key_of(old)
        {
            set(header, Ieth::LAYOUT.rkey, &new);
        }
        if let Some(header) = at(Headers::DETH).and_then(|at| packet.get_mut(at..)) {
            self.qkey.inspect(|qkey| set(header, Deth::LAYOUT.qkey, qkey));
            self.source_qpn.inspect(|qpn| set(header, Deth::LAYOUT.src_qp, qpn));
        }
        if let Some(header) = at(Headers::XRCETH).and_then(|at| packet.get_mut(at..)) {
            self.srq.inspect(|srq| set(header, Xrceth::LAYOUT.xrcsrq, srq));
        }
    }

    fn map_access(&self, header: &mut [u8], va: BitRange, rkey: BitRange) {
        let (Some(address), Some(key)) = (va.read(header), read_rkey(header, rkey)) else { return };
        let fitting = self.memory.iter().filter_map(|map| Some((map, map.offset(key, address)?)));
        // A map of one key is more exact than one of all keys.
        let best = fitting.max_by_key(|(map, _)| (map.old_rkey.is_some(), map.old_start));
        let Some((map, offset)) = best else { return };
        set(header, va, &map.new_start.wrapping_add(offset));
        map.new_rkey.inspect(|new| set(header, rkey, new));
    }

    /// The key that stands for one of the capture, where it is mapped as a whole.
    fn key_of(&self, old: RKey) -> Option<RKey> {
        self.memory.iter().find(|map| map.old_rkey == Some(old)).and_then(|map| map.new_rkey)
    }
}

fn read_rkey(header: &[u8], range: BitRange) -> Option<RKey> {
    Some(RKey::new(u32::try_from(range.read(header)?).ok()?))
}

/// Writes a field into a header, if the header is there in full.
fn set<F: Field>(header: &mut [u8], range: BitRange, value: &F) {
    if header.len() >= range.bytes().end {
        value.set(header, range.start);
    }
}
