//! The packets of the hostile peer, and those of the honest pair.

use super::*;

impl World {
    /// The last packet again, and again.
    pub(super) fn flood(&mut self, input: &mut Input<'_>) {
        let packet = core::mem::take(&mut self.last);
        for _ in 0..input.pick(&[0, 1, 2, 3, 8, 63]) {
            self.deliver(peer_gid(), PEER_PORT, own_gid(), 0, &packet);
        }
        self.last = packet;
    }

    /// A packet whose first fields are right, if nothing in the input says otherwise.
    pub(super) fn shaped(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.conns.len();
        let Conn { qp, qpn, kind, .. } = self.conns[at];
        let class: u8 = match kind {
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            QpType::XrcSend | QpType::XrcRecv => 0xa0,
            _ => 0x60,
        };
        let choice = input.byte();
        let opcode = match choice {
            0xe0..=0xef => Opcode(input.byte()),
            0xf0..=0xff => Opcode::CNP,
            _ => Opcode(class | choice & 0x1f),
        };
        let attr = self.engine.query_qp(qp).expect("it is there");
        let answers = opcode.info().is_some_and(|info| info.role == Role::Response);
        let base = if answers { attr.sq_psn } else { attr.rq_psn };
        // Mostly near; the middle of all numbers is what to get wrong.
        let far = input.pick(&[0, 0, 0, 0, 0, 0, Psn::HALF, Psn::HALF - 1]);
        let near = i32::from(input.byte().cast_signed() / 8);
        let psn = base.plus(far).plus(near.rem_euclid(1 << 24).unsigned_abs());
        let flags = input.byte();
        let everybody = flags & 1 != 0 && kind == QpType::Ud;
        let bth = BthRepr {
            solicited: flags & 2 != 0,
            ack_req: flags & 4 != 0,
            ..BthRepr::new(opcode, if everybody { Qpn::MULTICAST } else { qpn }, psn)
        };
        let mut bytes = self.body(bth, input);
        if flags & 0x30 == 0x30 {
            let place = usize::from(input.byte()) % bytes.len();
            bytes[place] ^= input.byte();
        }
        if flags & 0xc0 == 0xc0 {
            let cut = usize::from(input.byte() % 8);
            bytes.truncate(bytes.len().saturating_sub(cut));
        }
        let source = if flags & 0xf8 == 0x08 { group() } else { peer_gid() };
        let destination = if everybody { group() } else { own_gid() };
        // Mostly from the port that it has used before.
        let port = input.pick(&[PEER_PORT, PEER_PORT, PEER_PORT, PEER_PORT + 1]);
        self.deliver(source, port, destination, flags % 4, &bytes);
        self.last = bytes;
    }

    /// The headers that an opcode wants, and a payload.
    pub(super) fn body(&self, bth: BthRepr, input: &mut Input<'_>) -> Vec<u8> {
        let headers = bth.opcode.info().map_or(Headers::empty(), |info| info.headers);
        let memory = &self.memories[input.pick(&[0, 0, 0, 1, 2, 3, 4, 4])];
        let into = input.pick(&[0, 0, 8, 64, 120, 2040, 2048, u64::MAX, 3]);
        let va = memory.base.wrapping_add(into);
        // Mostly the key that belongs to it.
        let rkey = match input.byte() % 4 {
            0..=2 => memory.mr.rkey(),
            _ => input.pick(&self.keys),
        };
        let dma_len = input.pick(&[0, 4, 8, 8, 256, 300, 512, SIZE, SIZE + 1, 1 << 31, u32::MAX]);
        let (swap_or_add, compare) = (input.byte().into(), 0x5a5a_5a5a_5a5a_5a5a);
        let srq = self.engine.srq_number(self.srqs[input.pick(&[1, 1, 1, 0])]);
        let qkey = input.pick(&[QKEY, QKEY, QKEY, QKey::GSI]);
        let syndrome = Syndrome(input.byte());
        // Few messages are completed: the right number is often among these.
        let msn = Msn::new(u32::from(input.byte() % 8));
        let feth = u32::from(input.byte());
        let (placement, selectivity) = (Bits::low(feth), Bits::low(feth >> 4));
        let has = |header| headers.contains(header);
        let ext = Extensions {
            rdeth: has(Headers::RDETH).then_some(RdethRepr { ee_context: EeContext::new(1) }),
            deth: has(Headers::DETH).then_some(DethRepr { qkey, src_qp: Qpn::new(5) }),
            xrceth: has(Headers::XRCETH).then_some(XrcethRepr { xrcsrq: srq }),
            feth: has(Headers::FETH).then_some(FethRepr { selectivity, placement }),
            reth: has(Headers::RETH).then_some(RethRepr { va, rkey, dma_len }),
            atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEthRepr {
                va,
                rkey,
                swap_or_add,
                compare,
            }),
            aeth: has(Headers::AETH).then_some(AethRepr { syndrome, msn }),
            atomic_ack_eth: has(Headers::ATOMIC_ACK_ETH)
                .then_some(AtomicAckEthRepr { original: swap_or_add }),
            imm_dt: has(Headers::IMM_DT).then_some(ImmDtRepr { data: [9; 4] }),
            ieth: has(Headers::IETH).then_some(IethRepr { rkey }),
            sack_eth: has(Headers::SACK_ETH)
                .then_some(SackEthRepr { base: bth.psn.plus(1), words: Bits::low(1) }),
        };
        let len = input.pick(&[256, 0, 4, 8, 16, 1, 44, 255, 257, 1024, 1025]);
        let payload = vec![0xee; len];
        let mut out = Vec::new();
        match PacketRepr::new(bth, ext, &payload) {
            Ok(repr) => repr.emit(&mut out),
            // No headers are known for it.
            Err(_) => out.extend_from_slice(bth.emit().as_bytes()),
        }
        out
    }

    /// Hands a packet to the engine: it is accepted, or dropped and counted once.
    pub(super) fn deliver(
        &mut self,
        source: Gid,
        source_port: u16,
        destination: Gid,
        ecn: u8,
        packet: &[u8],
    ) {
        let before = self.engine.counters().clone();
        let network = &[0x45; 20][..];
        let received =
            Received { source, destination, ecn, source_port, network, packet, payload: None };
        let became = self.engine.handle_packet(self.time(), &received);
        let after = self.engine.counters();
        assert_eq!(after.get(Counter::Received), before.get(Counter::Received) + 1);
        if let Disposition::Dropped(reason) = became {
            // Counters never fall: if these two and their sum are right, no other has changed.
            let total = |of: &Counters| of.iter().map(|(_, count)| count).sum::<u64>();
            assert_eq!(after.get(reason), before.get(reason) + 1, "{}", reason.name());
            // A CNP that changes nothing is counted among those, too.
            let ignored = after.get(Counter::CnpIgnored) - before.get(Counter::CnpIgnored);
            assert!(ignored <= 1);
            let expected = total(&before) + 2 + ignored;
            assert_eq!(total(after), expected, "{} is not alone", reason.name());
        }
    }

    /// The honest pair goes on until what it has posted is done: that must come.
    pub(super) fn converse(&mut self) {
        for _ in 0..100 {
            self.engine.end_ack_delays();
            self.transmit(usize::MAX);
            let now = self.time();
            let honest = self.honest.as_mut().expect("it is there");
            honest.spoke = now;
            let packets = honest.exchange(now, own_gid());
            let idle = packets.is_empty();
            for (port, packet) in packets {
                self.deliver(honest::gid(), port, own_gid(), 0, &packet);
            }
            let honest = self.honest.as_mut().expect("it is there");
            if honest.finish(&mut self.engine) && idle {
                return;
            }
        }
        panic!("the honest pair does not finish");
    }

    /// A packet to the honest pair's queue pair, from the honest peer's address, with the right PSN
    /// even, but from the stranger's port.
    pub(super) fn forge(&mut self, input: &mut Input<'_>) {
        let now = self.time();
        let honest = self.honest.as_mut().expect("it is there");
        if now >= honest.spoke.saturating_add(PORT_SILENCE / 2) {
            // A connection that is idle for long accepts other ports; this one is in use.
            honest.post(&mut self.engine);
            self.converse();
        }
        let honest = self.honest.as_ref().expect("it is there");
        let (qp, qpn) = honest.target();
        let attr = self.engine.query_qp(qp).expect("it is there");
        let opcode = Opcode(input.byte() & 0x1f);
        let answers = opcode.info().is_some_and(|info| info.role == Role::Response);
        let base = if answers { attr.sq_psn } else { attr.rq_psn };
        let near = i32::from(input.byte().cast_signed() / 8);
        let psn = base.plus(near.rem_euclid(1 << 24).unsigned_abs());
        let bytes = self.body(BthRepr::new(opcode, qpn, psn), input);
        self.deliver(honest::gid(), STRANGE_PORT, own_gid(), 0, &bytes);
    }
}
