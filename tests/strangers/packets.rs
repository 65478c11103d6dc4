//! Packets that no honest program sends, made by hand: nothing of the crate checks them first.

use std::net::Ipv4Addr;

use crc::{CRC_32_ISO_HDLC, Crc};

use super::harness::ROCE_PORT;

/// Attribute of a REQ, REP and RTU of the connection manager.
pub const REQ: u16 = 0x10;
pub const REP: u16 = 0x13;
pub const RTU: u16 = 0x14;

/// Well-known Q_Key of queue pair 1.
const GSI_QKEY: u32 = 0x8001_0000;

/// Returns the payload of a UDP datagram: BTH to the last pad byte, with the ICRC that these
/// addresses have.
pub fn sealed(from: Ipv4Addr, to: Ipv4Addr, source_port: u16, body: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + body.len() + 4).unwrap();
    let mut covered = vec![0xff; 8];
    covered.extend([0x45, 0xff]);
    covered.extend((20 + udp_len).to_be_bytes());
    covered.extend([0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
    covered.extend(from.octets());
    covered.extend(to.octets());
    for word in [source_port, ROCE_PORT, udp_len, 0xffff] {
        covered.extend(word.to_be_bytes());
    }
    covered.extend(body);
    // The byte of BTH that switches may change.
    covered[36 + 4] = 0xff;
    let icrc = Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&covered);
    [body, &icrc.to_le_bytes()].concat()
}

/// Returns a management datagram to queue pair 1.
pub fn management(from: Ipv4Addr, to: Ipv4Addr, attribute: u16, message: &[u8]) -> Vec<u8> {
    let mut body = vec![0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 7];
    body.extend(GSI_QKEY.to_be_bytes());
    body.extend(1_u32.to_be_bytes());
    body.extend([1, 7, 2, 3, 0, 0, 0, 0]);
    body.extend(0x0123_4567_u64.to_be_bytes());
    body.extend(attribute.to_be_bytes());
    body.extend([0; 6]);
    body.extend(message);
    body.resize(12 + 8 + 256, 0);
    sealed(from, to, ROCE_PORT, &body)
}

/// Attribute of a management datagram, and its message.
pub fn message_of(packet: &[u8]) -> Option<(u16, &[u8])> {
    let is_management = packet.len() == 12 + 8 + 256 + 4 && packet[0] == 0x64;
    let attribute = u16::from_be_bytes([*packet.get(36)?, *packet.get(37)?]);
    is_management.then(|| (attribute, &packet[44..276]))
}

/// A request for a connection, with what a stranger may lie about.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Address that the primary path names.
    pub gid: Ipv4Addr,
    /// Address that the IP CM header names.
    pub claimed: Ipv4Addr,
    pub to: Ipv4Addr,
    pub port: u16,
    pub comm_id: u32,
    pub ca_guid: u64,
    pub qpn: u32,
    pub private_data: &'a [u8],
}

impl Request<'_> {
    /// Returns the message of a REQ.
    pub fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(self.comm_id.to_be_bytes());
        message.extend([0; 4]);
        message.extend((0x0106_0000_u64 | u64::from(self.port)).to_be_bytes());
        message.extend(self.ca_guid.to_be_bytes());
        message.extend([0; 8]);
        message.extend((self.qpn << 8 | 4).to_be_bytes());
        message.extend(4_u32.to_be_bytes());
        message.extend((20_u32 << 3).to_be_bytes());
        message.extend((7_u32 << 8 | 20 << 3 | 7).to_be_bytes());
        message.extend([0xff, 0xff, 0x57, 0xf0, 0xff, 0xff, 0xff, 0xff]);
        message.extend(self.gid.to_ipv6_mapped().octets());
        message.extend(self.to.to_ipv6_mapped().octets());
        message.extend([0, 0, 0, 0, 0, 64, 0, 8 << 3]);
        message.extend([0; 44]);
        assert_eq!(message.len(), 140);
        message.extend([0, 4 << 4]);
        message.extend(40_000_u16.to_be_bytes());
        for address in [self.claimed, self.to] {
            message.extend([0; 12]);
            message.extend(address.octets());
        }
        message.extend(self.private_data);
        message.resize(232, 0);
        message
    }
}

/// Returns the message of an RTU.
pub fn rtu(own: u32, peer: u32) -> Vec<u8> {
    [own.to_be_bytes(), peer.to_be_bytes()].concat()
}
