//! A packet from the BTH up: as a view over its bytes, and as something to emit.

use thiserror::Error;
use zerocopy::IntoBytes;

use super::bth::{Bth, BthRepr};
use super::ext::{
    Aeth, AethRepr, AtomicAckEth, AtomicAckEthRepr, AtomicEth, AtomicEthRepr, Deth, DethRepr, Feth,
    FethRepr, Ieth, IethRepr, ImmDt, ImmDtRepr, Rdeth, RdethRepr, Reth, RethRepr, SackEth,
    SackEthRepr, Xrceth, XrcethRepr,
};
use super::mad::Mad;
use super::num::{Bits, Qpn};
use super::opcode::{Headers, OpcodeInfo, Service};
use super::{Header, Layer, ParseError, Received, view};
use crate::memory::{Payload, SharedBytes};

/// A packet from its BTH to its last pad byte. The ICRC is the frame's affair.
///
/// The BTH is there. What else the opcode calls for may have been cut by a capture's snap length,
/// unless the packet comes from [`Packet::parse`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: &'a Bth,
    info: Option<&'static OpcodeInfo>,
    /// Length of BTH and extension headers.
    header_len: usize,
    /// Length of the payload on the wire.
    payload_len: usize,
    /// Payload that is not in `bytes`.
    shared: Option<SharedBytes<'a>>,
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`, all of it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (packet, error) = Self::parse_cut(bytes, bytes.len());
        match (packet, error) {
            (Some(packet), None) => Ok(packet),
            (_, Some(error)) => Err(error),
            (None, None) => unreachable!("a packet without a BTH is an error"),
        }
    }

    /// The packet in `bytes`, of which `wire_len` were on the wire: as much of it as there is, and
    /// what is missing.
    #[inline]
    pub fn parse_cut(bytes: &'a [u8], wire_len: usize) -> (Option<Self>, Option<ParseError>) {
        let bth = match view::<Bth>(bytes, 0) {
            Ok(bth) => bth,
            Err(error) => return (None, Some(error)),
        };
        let (info, header_len, pad_len) = lengths(bth);
        let least = header_len + pad_len;
        let payload_len = wire_len.saturating_sub(least);
        let packet = Self { bytes, bth, info, header_len, payload_len, shared: None };
        let is_whole = bytes.len() == wire_len && wire_len >= least;
        (Some(packet), if is_whole { None } else { packet.find_missing() })
    }

    /// The packet with these headers, whose payload is elsewhere and has no padding; `None` if the
    /// headers are not whole, or not all of `headers`.
    #[inline]
    fn parse_apart(headers: &'a [u8], payload: SharedBytes<'a>) -> Option<Self> {
        let bth = view::<Bth>(headers, 0).ok()?;
        let (info, header_len, pad_len) = lengths(bth);
        let (shared, payload_len) = (Some(payload), Payload::Shared(payload).len());
        let packet = Self { bytes: headers, bth, info, header_len, payload_len, shared };
        (header_len == headers.len() && pad_len == 0).then_some(packet)
    }

    /// Returns the packet that was received, unless it is cut short.
    #[inline]
    pub(crate) fn received(received: &Received<'a>) -> Option<Self> {
        match received.payload {
            None => Self::parse_whole(received.packet),
            Some(payload) => Self::parse_apart(received.packet, payload),
        }
    }

    /// The packet in `bytes`, unless it is cut short.
    #[inline(always)]
    fn parse_whole(bytes: &'a [u8]) -> Option<Self> {
        let bth = view::<Bth>(bytes, 0).ok()?;
        let (info, header_len, pad_len) = lengths(bth);
        let payload_len = bytes.len().checked_sub(header_len + pad_len)?;
        Some(Self { bytes, bth, info, header_len, payload_len, shared: None })
    }

    /// The first part of the packet that is not there in full.
    #[cold]
    fn find_missing(&self) -> Option<ParseError> {
        let headers = self.info.map_or(Headers::empty(), |info| info.headers);
        let have = |offset: usize| self.bytes.len().saturating_sub(offset);
        for (header, layer) in headers.layers() {
            let offset = headers.offset_of(header).expect("it is among them");
            if have(offset) < header.byte_len() {
                let needed = header.byte_len();
                return Some(ParseError::Truncated { layer, offset, needed, have: have(offset) });
            }
        }
        let (payload_at, payload_len) = (self.header_len(), self.payload_len());
        let rest = [
            (Layer::Payload, payload_at, payload_len),
            (Layer::Pad, payload_at + payload_len, self.pad_len().into()),
        ];
        let lacking = rest.into_iter().find(|&(_, offset, needed)| have(offset) < needed);
        lacking.map(|(layer, offset, needed)| ParseError::Truncated {
            layer,
            offset,
            needed,
            have: have(offset),
        })
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// Returns the table's entry for the opcode, or `None` if it is unassigned.
    #[inline]
    pub fn info(&self) -> Option<&'static OpcodeInfo> {
        self.info
    }

    /// Returns the captured bytes from the BTH to the last pad byte.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The length of BTH and extension headers. After an unassigned opcode everything is payload.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns the number of payload bytes that the packet had on the wire.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Returns the payload, wherever it is.
    #[inline]
    pub(crate) fn data(&self) -> Payload<'a> {
        match self.shared {
            None => Payload::Private(self.payload()),
            Some(bytes) => Payload::Shared(bytes),
        }
    }

    /// The payload, as far as it is there.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let rest = self.bytes.get(self.header_len()..).unwrap_or_default();
        rest.get(..self.payload_len()).unwrap_or(rest)
    }

    /// Returns the number of pad bytes after the payload.
    #[inline]
    pub fn pad_len(&self) -> u8 {
        #[expect(clippy::cast_possible_truncation, reason = "two bits")]
        let pad = self.bth.pad().get() as u8;
        pad
    }

    /// The extension header of this kind, if the opcode calls for it and it is there.
    #[inline]
    fn extension<H: Header>(&self, header: Headers) -> Option<&'a H> {
        let offset = self.info?.headers.offset_of(header)?;
        H::ref_from_prefix(self.bytes.get(offset..)?).ok().map(|(header, _)| header)
    }

    /// Returns the RDETH, if there is one.
    pub fn rdeth(&self) -> Option<&'a Rdeth> {
        self.extension(Headers::RDETH)
    }

    /// Returns the DETH, if there is one.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extension(Headers::DETH)
    }

    /// Returns the XRCETH, if there is one.
    pub fn xrceth(&self) -> Option<&'a Xrceth> {
        self.extension(Headers::XRCETH)
    }

    /// Returns the FETH, if there is one.
    pub fn feth(&self) -> Option<&'a Feth> {
        self.extension(Headers::FETH)
    }

    /// Returns the RETH, if there is one.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extension(Headers::RETH)
    }

    /// Returns the AtomicETH, if there is one.
    #[inline]
    pub fn atomic_eth(&self) -> Option<&'a AtomicEth> {
        self.extension(Headers::ATOMIC_ETH)
    }

    /// Returns the AETH, if there is one.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extension(Headers::AETH)
    }

    /// Returns the AtomicAckETH, if there is one.
    pub fn atomic_ack_eth(&self) -> Option<&'a AtomicAckEth> {
        self.extension(Headers::ATOMIC_ACK_ETH)
    }

    /// The immediate data, if there are any.
    pub fn imm_dt(&self) -> Option<&'a ImmDt> {
        self.extension(Headers::IMM_DT)
    }

    /// Returns the IETH, if there is one.
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.extension(Headers::IETH)
    }

    /// Returns the SackETH, if there is one.
    pub fn sack_eth(&self) -> Option<&'a SackEth> {
        self.extension(Headers::SACK_ETH)
    }

    /// The management datagram, if the packet is for one of the queue pairs that take them.
    #[inline]
    pub fn mad(&self) -> Option<Result<Mad<'a>, ParseError>> {
        let takes_mads = matches!(self.bth.dest_qp(), Qpn::SMI | Qpn::GSI);
        (takes_mads && self.info?.service == Service::Ud).then(|| Mad::parse(self.payload()))
    }
}

/// Returns what a BTH tells of its packet: the table's entry for the opcode, the length of the
/// headers, and that of the padding.
#[inline(always)]
fn lengths(bth: &Bth) -> (Option<&'static OpcodeInfo>, usize, usize) {
    let info = bth.opcode().info();
    let header_len = info.map_or(Bth::LEN, |info| info.header_len);
    (info, header_len, bth.pad().get() as usize)
}

/// The extension headers of a packet to emit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named by the header it holds")]
pub struct Extensions {
    pub rdeth: Option<RdethRepr>,
    pub deth: Option<DethRepr>,
    pub xrceth: Option<XrcethRepr>,
    pub feth: Option<FethRepr>,
    pub reth: Option<RethRepr>,
    pub atomic_eth: Option<AtomicEthRepr>,
    pub aeth: Option<AethRepr>,
    pub atomic_ack_eth: Option<AtomicAckEthRepr>,
    pub imm_dt: Option<ImmDtRepr>,
    pub ieth: Option<IethRepr>,
    pub sack_eth: Option<SackEthRepr>,
}

impl Extensions {
    /// Returns the extension headers of a packet, without reserved bits.
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            rdeth: packet.rdeth().map(Rdeth::repr),
            deth: packet.deth().map(Deth::repr),
            xrceth: packet.xrceth().map(Xrceth::repr),
            feth: packet.feth().map(Feth::repr),
            reth: packet.reth().map(Reth::repr),
            atomic_eth: packet.atomic_eth().map(AtomicEth::repr),
            aeth: packet.aeth().map(Aeth::repr),
            atomic_ack_eth: packet.atomic_ack_eth().map(AtomicAckEth::repr),
            imm_dt: packet.imm_dt().map(ImmDt::repr),
            ieth: packet.ieth().map(Ieth::repr),
            sack_eth: packet.sack_eth().map(SackEth::repr),
        }
    }

    /// Returns the set of these headers.
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::empty();
        headers.set(Headers::RDETH, self.rdeth.is_some());
        headers.set(Headers::DETH, self.deth.is_some());
        headers.set(Headers::XRCETH, self.xrceth.is_some());
        headers.set(Headers::FETH, self.feth.is_some());
        headers.set(Headers::RETH, self.reth.is_some());
        headers.set(Headers::ATOMIC_ETH, self.atomic_eth.is_some());
        headers.set(Headers::AETH, self.aeth.is_some());
        headers.set(Headers::ATOMIC_ACK_ETH, self.atomic_ack_eth.is_some());
        headers.set(Headers::IMM_DT, self.imm_dt.is_some());
        headers.set(Headers::IETH, self.ieth.is_some());
        headers.set(Headers::SACK_ETH, self.sack_eth.is_some());
        headers
    }

    /// Appends the headers in wire order.
    fn emit(&self, out: &mut Vec<u8>) {
        fn put<V: IntoBytes + zerocopy::Immutable>(out: &mut Vec<u8>, header: Option<V>) {
            out.extend_from_slice(header.as_ref().map_or(&[], V::as_bytes));
        }
        put(out, self.rdeth.map(|header| header.emit()));
        put(out, self.deth.map(|header| header.emit()));
        put(out, self.xrceth.map(|header| header.emit()));
        put(out, self.feth.map(|header| header.emit()));
        put(out, self.reth.map(|header| header.emit()));
        put(out, self.atomic_eth.map(|header| header.emit()));
        put(out, self.aeth.map(|header| header.emit()));
        put(out, self.atomic_ack_eth.map(|header| header.emit()));
        put(out, self.imm_dt.map(|header| header.emit()));
        put(out, self.ieth.map(|header| header.emit()));
        put(out, self.sack_eth.map(|header| header.emit()));
    }
}

/// A packet to emit: opcode and headers agree, and the padding is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRepr<'a> {
    bth: BthRepr,
    extensions: Extensions,
    payload: &'a [u8],
}

/// Opcode and headers do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the opcode calls for {wanted:?}, and {given:?} were given")]
pub struct HeadersMismatch {
    /// Headers that the opcode requires; none if it is unassigned.
    pub wanted: Headers,
    /// Headers that were given.
    pub given: Headers,
}

impl<'a> PacketRepr<'a> {
    /// A packet; the pad count of `bth` becomes what the payload needs.
    pub fn new(
        bth: BthRepr,
        extensions: Extensions,
        payload: &'a [u8],
    ) -> Result<Self, HeadersMismatch> {
        let wanted = bth.opcode.info().map_or(Headers::empty(), |info| info.headers);
        let given = extensions.headers();
        if wanted != given {
            return Err(HeadersMismatch { wanted, given });
        }
        #[expect(clippy::cast_possible_truncation, reason = "two bits of it are used")]
        let pad = Bits::low((payload.len() as u32).wrapping_neg());
        Ok(Self { bth: BthRepr { pad, ..bth }, extensions, payload })
    }

    /// Converts `packet`, without reserved bits; returns `None` if its payload was cut or its
    /// padding is not what the payload needs.
    pub fn of(packet: &Packet<'a>) -> Option<Self> {
        let whole = packet.payload().len() == packet.payload_len();
        let repr = Self::new(packet.bth().repr(), Extensions::of(packet), packet.payload()).ok()?;
        (whole && repr.bth.pad == packet.bth().pad()).then_some(repr)
    }

    /// The base transport header.
    pub fn bth(&self) -> &BthRepr {
        &self.bth
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The length from the BTH to the last pad byte.
    pub fn wire_len(&self) -> usize {
        Bth::LEN + self.extensions.headers().byte_len() + self.payload.len().next_multiple_of(4)
    }

    /// Appends the packet, from the BTH to the last pad byte.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.wire_len());
        out.extend_from_slice(self.bth.emit().as_bytes());
        self.extensions.emit(out);
        out.extend_from_slice(self.payload);
        out.resize(out.len() + self.bth.pad.get() as usize, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Opcode, Psn};

    /// An acknowledgement.
    const ACK: [u8; 16] = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0x1f, 0, 0, 1];

    #[test]
    fn headers_that_the_opcode_does_not_call_for_are_refused() {
        let bth = BthRepr::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), Psn::new(1));
        let error = PacketRepr::new(bth, Extensions::default(), &[]).unwrap_err();
        assert_eq!((error.wanted, error.given), (Headers::AETH, Headers::empty()));
        let imm_dt = Some(ImmDtRepr { data: *b"roce" });
        let extensions = Extensions { imm_dt, ..Extensions::of(&Packet::parse(&ACK).unwrap()) };
        let error = PacketRepr::new(bth, extensions, &[]).unwrap_err();
        assert_eq!(error.given, Headers::AETH | Headers::IMM_DT);
    }

    #[test]
    fn a_packet_that_was_cut_or_badly_padded_has_no_repr() {
        let whole = Packet::parse(&ACK).unwrap();
        let mut bytes = Vec::new();
        PacketRepr::of(&whole).unwrap().emit(&mut bytes);
        assert_eq!(bytes, ACK);
        let (cut, error) = Packet::parse_cut(&ACK, 20);
        assert_eq!(error.unwrap().to_string(), "payload: need 4 bytes at offset 16, have 0");
        assert_eq!(PacketRepr::of(&cut.unwrap()), None);
        // Two bytes of payload need two of pad, and have none.
        let mut bare = [0; 18];
        bare.split_at_mut(16).0.copy_from_slice(&ACK);
        let packet = Packet::parse(&bare).unwrap();
        assert_eq!((packet.payload_len(), packet.pad_len()), (2, 0));
        assert_eq!(PacketRepr::of(&packet), None);
    }

    #[test]
    fn pad_that_is_not_there_is_named() {
        let mut bytes = ACK;
        bytes[1] = 0x30;
        let error = Packet::parse(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "pad: need 3 bytes at offset 16, have 0");
    }

    #[test]
    fn only_a_datagram_for_queue_pair_0_or_1_is_a_mad() {
        for (opcode, qpn, is_mad) in
            [(0x64, 0, true), (0x64, 1, true), (0x65, 1, true), (0x64, 2, false), (0x04, 1, false)]
        {
            let mut bytes = [0; 64];
            (bytes[0], bytes[7]) = (opcode, qpn);
            assert_eq!(Packet::parse(&bytes).unwrap().mad().is_some(), is_mad, "{opcode:#x} {qpn}");
        }
    }
}
