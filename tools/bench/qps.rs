//! A capture of many queue pairs, on standard output: `qps COUNT [unanswered]`.
//!
//! Two hosts, and as many queue pairs as are asked for, each with one packet: a SEND to one queue
//! pair and its acknowledgement to another, or with `unanswered` a SEND to each. `tools/bench/qps`
//! pipes it into `roce flows`.

use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;

use roce::capture::{LinkType, PcapWriter};
use roce::time::Instant;
use roce::wire::aeth::Syndrome;
use roce::wire::{
    AethRepr, BthRepr, EtherType, EthernetRepr, Extensions, FrameRepr, Ipv4Repr, MacAddr, Msn,
    NetworkRepr, Opcode, PacketRepr, Psn, Qpn,
};

/// Queue pairs 0 and 1 are for management, and a number has 24 bits.
const FIRST_QP: u32 = 2;
const LAST_QP: u32 = (1 << 24) - 2;

/// An ACK without credits.
const ACK: Syndrome = Syndrome(0x1f);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let count: u32 = args.next().ok_or("usage: qps COUNT [unanswered]")?.parse()?;
    let is_answered = args.next().is_none_or(|word| word != "unanswered");
    if count > LAST_QP - FIRST_QP {
        return Err("there are fewer than 2^24 queue pair numbers".into());
    }
    let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let mut capture = PcapWriter::new(out, LinkType::ETHERNET)?;
    let mut frame = Vec::new();
    for number in 0..count {
        let is_ack = is_answered && number % 2 == 1;
        // A request and its answer have one PSN; connections have PSNs far from each other.
        let psn = Psn::new((number - u32::from(is_ack)).wrapping_mul(0x0001_3579));
        frame.clear();
        frame_of(FIRST_QP + number, psn, is_ack).emit(&mut frame);
        let time = Instant::from_nanos(1_700_000_000_000_000_000 + u64::from(number) * 1000);
        capture.write(time, frame.len().try_into()?, &frame)?;
    }
    capture.into_inner().flush()?;
    Ok(())
}

/// A packet to queue pair `qp`: a SEND from the first host, or its acknowledgement from the second.
fn frame_of(qp: u32, psn: Psn, is_ack: bool) -> FrameRepr<'static> {
    let hosts = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let [source, destination] = if is_ack { [hosts[1], hosts[0]] } else { hosts };
    let opcode = if is_ack { Opcode::RC_ACKNOWLEDGE } else { Opcode::RC_SEND_ONLY };
    let bth = BthRepr { ack_req: !is_ack, ..BthRepr::new(opcode, Qpn::new(qp), psn) };
    let aeth = is_ack.then(|| AethRepr { syndrome: ACK, msn: Msn::new(1) });
    let extensions = Extensions { aeth, ..Extensions::default() };
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    FrameRepr {
        ethernet: Some(EthernetRepr { destination: mac, source: mac, ethertype: EtherType::IPV4 }),
        vlan: None,
        network: NetworkRepr::Ipv4 {
            header: Ipv4Repr::new(source, destination),
            source_port: 0xc000,
        },
        packet: PacketRepr::new(bth, extensions, &[]).expect("the opcode has these headers"),
    }
}
