//! Whole frames of packets: sealed, with every header before them.

use crate::wire::batch::Outbound;
use crate::wire::{
    EtherType, Ethernet, EthernetRepr, MacAddr, Path, PathHeaders, Prefixes, Train, flip_icrc,
};

/// Makes frames of the packets of a link that sends one frame a packet.
#[derive(Debug)]
pub(super) struct Framer {
    mac: MacAddr,
    /// ICRC prefixes of the last path.
    prefixes: Prefixes,
    /// Identification of the next packet.
    id: u16,
}

/// A sealed packet, and the headers that its frame begins with.
#[derive(Debug)]
pub(super) struct Framed<'a> {
    ethernet: Ethernet,
    headers: PathHeaders,
    /// Identification of IPv4 that the packet is sealed with.
    pub(super) id: u16,
    /// The packet, from its BTH through its ICRC.
    pub(super) packet: &'a [u8],
}

impl Framer {
    /// Creates a framer for frames from this hardware address.
    pub(super) fn new(mac: MacAddr) -> Self {
        Self { mac, prefixes: Prefixes::new(&Path::NOWHERE), id: 0 }
    }

    /// Seals each packet of a train and passes it on with its headers.
    pub(super) fn for_each(
        &mut self,
        train: &mut Train<'_>,
        destination: MacAddr,
        mut each: impl FnMut(&Framed<'_>),
    ) {
        let path = train.path;
        let is_ipv4 = path.is_ipv4();
        let ethertype = if is_ipv4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let ethernet = EthernetRepr { destination, source: self.mac, ethertype }.emit();
        self.prefixes.set_path(path);
        train.for_each_outbound(|Outbound { bytes: packet, icrc_flips, .. }| {
            let id = self.id;
            self.id = id.wrapping_add(1);
            let prefix = self.prefixes.of(packet.len());
            if is_ipv4 { prefix.with_identification(id) } else { prefix }.seal(packet);
            flip_icrc(packet, icrc_flips);
            let headers = path.headers_with_id(packet.len(), id);
            each(&Framed { ethernet, headers, id, packet });
        });
    }
}

impl Framed<'_> {
    /// Returns the length of the frame.
    pub(super) fn len(&self) -> usize {
        let (ip, udp) = self.headers.as_bytes();
        Ethernet::LEN + ip.len() + udp.len() + self.packet.len()
    }

    /// Writes the frame to `buffer`, which is as long as the frame or longer.
    pub(super) fn write(&self, buffer: &mut [u8]) {
        let (ip, udp) = self.headers.as_bytes();
        let mut rest = buffer;
        for piece in [self.ethernet.as_bytes().as_slice(), ip, udp, self.packet] {
            let Some((place, behind)) = rest.split_at_mut_checked(piece.len()) else { return };
            place.copy_from_slice(piece);
            rest = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{PATH, PATH_V6, batch_of, sound};

    #[test]
    fn frames_are_sealed_and_numbered() {
        let destination = MacAddr([2; 6]);
        let mut framer = Framer::new(MacAddr([4; 6]));
        for path in [PATH, PATH_V6] {
            let mut batch = batch_of(&path, &[1, 2, 3]);
            let mut frames = Vec::new();
            for mut train in batch.trains_mut() {
                framer.for_each(&mut train, destination, |framed| {
                    let mut frame = vec![0; framed.len()];
                    framed.write(&mut frame);
                    frames.push(frame);
                });
            }
            assert_eq!(frames.len(), 3);
            for (frame, id) in frames.iter().zip(0_u16..) {
                assert_eq!((&frame[..6], &frame[6..12]), (&[2; 6][..], &[4; 6][..]));
                assert!(sound(&frame[14..]), "{frame:x?}");
                assert!(path == PATH_V6 || frame[18..20] == id.to_be_bytes());
            }
        }
    }

    #[test]
    fn wrong_icrc_stays_wrong() {
        let mut batch = crate::wire::Batch::new(1);
        assert!(batch.push_as_is(&PATH, &[0; 16], 1));
        let mut framer = Framer::new(MacAddr([4; 6]));
        let mut train = batch.trains_mut().next().unwrap();
        framer.for_each(&mut train, MacAddr([2; 6]), |framed| {
            let mut frame = vec![0; framed.len()];
            framed.write(&mut frame);
            assert!(!sound(&frame[14..]));
        });
    }
}
