//! RoCEv2 packets inside frames.

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;
const BTH_LEN: usize = 12;
const ICRC_LEN: usize = 4;

/// A RoCEv2 packet: where it is in its frame, and what its BTH says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Offset of the BTH.
    bth: usize,
    /// Offset behind the ICRC.
    end: usize,
    /// Length of the IP packet.
    pub(crate) ip_len: usize,
    is_ipv4: bool,
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn be24(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes([0, *bytes.get(at)?, *bytes.get(at + 1)?, *bytes.get(at + 2)?]))
}

impl Packet {
    /// Finds the RoCEv2 packet of a frame, if there is one.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let ip = ETHERNET_LEN;
        let (is_ipv4, protocol, header_len, ip_len) = match be16(frame, 12)? {
            0x0800 => {
                let header_len = usize::from(frame.get(ip)? & 0xf) * 4;
                (true, *frame.get(ip + 9)?, header_len, usize::from(be16(frame, ip + 2)?))
            }
            0x86dd => (false, *frame.get(ip + 6)?, 40, 40 + usize::from(be16(frame, ip + 4)?)),
            _ => return None,
        };
        let udp = ip + header_len;
        if protocol != 17 || be16(frame, udp + 2)? != ROCE_PORT {
            return None;
        }
        let (bth, end) = (udp + UDP_LEN, ip + ip_len);
        if end > frame.len() || end < bth + BTH_LEN + ICRC_LEN {
            return None;
        }
        let (opcode, qpn, psn) = (frame[bth], be24(frame, bth + 5)?, be24(frame, bth + 9)?);
        Some(Self { bth, end, ip_len, is_ipv4, opcode, qpn, psn })
    }

    /// Number of bits behind the BTH, which corruption may flip.
    pub(crate) fn bits(&self) -> usize {
        (self.end - self.bth - BTH_LEN) * 8
    }

    /// Flips a bit behind the BTH.
    pub(crate) fn flip(&self, frame: &mut [u8], bit: usize) {
        if let Some(byte) = frame.get_mut(self.bth + BTH_LEN + bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Whether its sender supports ECN and nothing has marked it yet.
    pub(crate) fn is_markable(&self, frame: &[u8]) -> bool {
        matches!(self.ecn(frame), 1 | 2)
    }

    /// Bits of ECN in its IP header.
    fn ecn(&self, frame: &[u8]) -> u8 {
        match self.is_ipv4 {
            true => frame[ETHERNET_LEN + 1] & 3,
            false => frame[ETHERNET_LEN + 1] >> 4 & 3,
        }
    }

    /// Sets both bits of ECN: congestion experienced.
    pub(crate) fn mark(&self, frame: &mut [u8]) {
        if !self.is_ipv4 {
            frame[ETHERNET_LEN + 1] |= 3 << 4;
            return;
        }
        frame[ETHERNET_LEN + 1] |= 3;
        let header = &mut frame[ETHERNET_LEN..self.bth - UDP_LEN];
        header[10..12].fill(0);
        let words = header.chunks_exact(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let [.., high, low] = (!sum).to_be_bytes();
        header[10..12].copy_from_slice(&[high, low]);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame with an ACK from 10.0.0.1 to 10.0.0.2, and its header checksum.
    pub(crate) fn frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0]);
        frame.extend([0x45, 0x02, 0, 48, 0, 0, 0x40, 0, 64, 17, 0x26, 0xb9]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0]);
        frame.extend([0x11, 0x40, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6]);
        frame.extend([0x1f, 0, 0, 9, 0xaa, 0xbb, 0xcc, 0xdd]);
        frame
    }

    fn checksum_is_right(frame: &[u8]) -> bool {
        let words = frame[14..34].chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn packet_is_found_by_its_port() {
        let mut frame = frame();
        let packet = Packet::of(&frame).unwrap();
        assert_eq!((packet.opcode, packet.qpn, packet.psn), (0x11, 0x010203, 0x040506));
        assert_eq!((packet.ip_len, packet.bits()), (48, 64));
        for cut in 0..frame.len() {
            assert_eq!(Packet::of(&frame[..cut]), None, "cut to {cut}");
        }
        frame[37] = 0;
        assert_eq!(Packet::of(&frame), None);
    }

    #[test]
    fn mark_keeps_the_checksum_right() {
        let mut frame = frame();
        assert!(checksum_is_right(&frame));
        let packet = Packet::of(&frame).unwrap();
        assert!(packet.is_markable(&frame));
        packet.mark(&mut frame);
        assert_eq!(packet.ecn(&frame), 3);
        assert!(checksum_is_right(&frame));
    }

    #[test]
    fn corruption_flips_one_bit_behind_the_bth() {
        let (original, mut changed) = (frame(), frame());
        let packet = Packet::of(&original).unwrap();
        packet.flip(&mut changed, packet.bits() - 1);
        assert_eq!(changed[changed.len() - 1], original[original.len() - 1] ^ 0x80);
        assert_eq!(changed[..original.len() - 1], original[..original.len() - 1]);
    }
}
