//! A line a packet, for people who read tcpdump.

use core::fmt;

use super::Context;
use super::field::put;
use super::time::TimeStyle;
use crate::wire::aeth::Answer;
use crate::wire::{
    EtherType, Frame, IcrcVerdict, Layer, Network, Operation, PKey, Packet, Vlan, view,
};

/// Style of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineStyle {
    /// Whether the frame number stands first, with the position of a packet in a train: `12.3`.
    pub number: bool,
    /// Style of the time.
    pub time: TimeStyle,
    /// Whether what matters is colored, for a terminal.
    pub color: bool,
}

/// A color of the terminal.
#[derive(Clone, Copy)]
enum Paint {
    Red,
    Yellow,
    Bold,
}

impl LineStyle {
    /// Appends the line of a frame, without its end.
    pub fn write(&self, context: &Context<'_>, out: &mut String) {
        if self.number {
            write_number(context, out);
        }
        self.time.write(context, out);
        let frame = &context.frame;
        for (layer, range) in frame.layers().iter() {
            if matches!(layer, Layer::ServiceVlan | Layer::Vlan)
                && let Ok(tag) = view::<Vlan>(frame.bytes(), range.start)
            {
                put(out, format_args!("vlan {} ", tag.vid()));
            }
        }
        write_tunnel(frame, out);
        write_route(frame, out);
        match (frame.packet(), frame.encapsulation()) {
            (Some(packet), _) => self.write_packet(context, packet, out),
            (None, Some(_)) => {
                out.push_str("cut before the BTH");
                self.write_verdict(context, out);
            }
            (None, None) => write_other(context, out),
        }
        if let Some(error) = frame.error() {
            self.paint(out, Paint::Yellow, format_args!(" [{error}]"));
        }
    }

    fn write_packet(&self, context: &Context<'_>, packet: &Packet<'_>, out: &mut String) {
        let bth = packet.bth();
        self.paint(out, Paint::Bold, format_args!("{}", bth.opcode()));
        put(out, format_args!(" qp {} psn {}", bth.dest_qp(), bth.psn()));
        for (set, word) in [
            (bth.ack_req(), " ack-req"),
            (bth.solicited(), " solicited"),
            (bth.fecn(), " fecn"),
            (bth.becn(), " becn"),
        ] {
            if set {
                out.push_str(word);
            }
        }
        if bth.pkey() != PKey::DEFAULT {
            put(out, format_args!(" pkey {}", bth.pkey()));
        }
        if bth.tver().get() != 0 {
            put(out, format_args!(" tver {}", bth.tver()));
        }
        if is_congested(&context.frame) {
            self.paint(out, Paint::Yellow, format_args!(" ce"));
        }
        self.write_extensions(packet, out);
        if let Some(Ok(mad)) = packet.mad() {
            put(out, format_args!(" {mad}"));
        }
        put(out, format_args!(" len {}", packet.payload_len()));
        if packet.pad_len() > 0 {
            put(out, format_args!(" pad {}", packet.pad_len()));
        }
        self.write_verdict(context, out);
    }

    fn write_extensions(&self, packet: &Packet<'_>, out: &mut String) {
        if let Some(rdeth) = packet.rdeth() {
            put(out, format_args!(" ee {}", rdeth.ee_context()));
        }
        if let Some(deth) = packet.deth() {
            put(out, format_args!(" src-qp {} qkey {}", deth.src_qp(), deth.qkey()));
        }
        if let Some(xrceth) = packet.xrceth() {
            put(out, format_args!(" srq {}", xrceth.xrcsrq()));
        }
        if let Some(feth) = packet.feth() {
            let what = if feth.selectivity().get() == 0 { "range" } else { "region" };
            put(out, format_args!(" flush {what} placement {}", feth.placement()));
        }
        if let Some(reth) = packet.reth() {
            let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
            put(out, format_args!(" va {va:#x} rkey {rkey} dmalen {len}"));
        }
        if let Some(atomic) = packet.atomic_eth() {
            let (va, rkey) = (atomic.va(), atomic.rkey());
            put(out, format_args!(" va {va:#x} rkey {rkey}"));
            match packet.info().map(|info| info.operation) {
                Some(Operation::FetchAdd) => {
                    put(out, format_args!(" add {}", atomic.swap_or_add()))
                }
                _ => {
                    let (compare, swap) = (atomic.compare(), atomic.swap_or_add());
                    put(out, format_args!(" compare {compare:#x} swap {swap:#x}"));
                }
            }
        }
        if let Some(aeth) = packet.aeth() {
            let answer = aeth.syndrome().answer();
            out.push(' ');
            match answer {
                Answer::Ack(_) => put(out, format_args!("{answer}")),
                _ => self.paint(out, Paint::Red, format_args!("{answer}")),
            }
            put(out, format_args!(" msn={}", aeth.msn()));
        }
        if let Some(ack) = packet.atomic_ack_eth() {
            put(out, format_args!(" was {:#x}", ack.original()));
        }
        if let Some(imm) = packet.imm_dt() {
            put(out, format_args!(" imm {:#010x}", u32::from_be_bytes(imm.data())));
        }
        if let Some(ieth) = packet.ieth() {
            put(out, format_args!(" invalidate {}", ieth.rkey()));
        }
        if let Some(sack) = packet.sack_eth() {
            let received: u32 = packet.payload().iter().map(|byte| byte.count_ones()).sum();
            put(out, format_args!(" sack {received} from {}", sack.base()));
        }
    }

    fn write_verdict(&self, context: &Context<'_>, out: &mut String) {
        match context.icrc() {
            Some(IcrcVerdict::Bad) => self.paint(out, Paint::Red, format_args!(" icrc bad")),
            Some(verdict) => put(out, format_args!(" icrc {}", verdict.name())),
            None => {}
        }
    }

    fn paint(&self, out: &mut String, paint: Paint, text: fmt::Arguments<'_>) {
        let code = match paint {
            Paint::Red => "31",
            Paint::Yellow => "33",
            Paint::Bold => "1",
        };
        if self.color {
            put(out, format_args!("\x1b[{code}m{text}\x1b[0m"));
        } else {
            put(out, text);
        }
    }
}

/// Appends the number of a frame and a space.
fn write_number(context: &Context<'_>, out: &mut String) {
    const WIDTH: usize = 7;
    let start = out.len();
    put(out, format_args!("{}", context.number));
    if let Some(train) = context.train {
        put(out, format_args!(".{}", train.index));
    }
    let len = out.len() - start;
    out.insert_str(start, &" ".repeat(WIDTH.saturating_sub(len)));
    out.push(' ');
}

/// Whether a switch marked the frame on its way.
fn is_congested(frame: &Frame<'_>) -> bool {
    const CONGESTION_EXPERIENCED: u32 = 3;
    match frame.network() {
        Some(Network::Ipv4 { header, .. }) => header.ecn().get() == CONGESTION_EXPERIENCED,
        Some(Network::Ipv6 { header, .. }) => header.ecn().get() == CONGESTION_EXPERIENCED,
        Some(Network::Grh(_)) | None => false,
    }
}

/// Writes the tunnel that carries the packet, and its ends.
fn write_tunnel(frame: &Frame<'_>, out: &mut String) {
    let Some(tunnel) = frame.tunnel() else { return };
    out.push_str(tunnel.name());
    match frame.outer_network() {
        Some(Network::Ipv4 { header, .. }) => {
            put(out, format_args!(" {} > {}: ", header.source(), header.destination()));
        }
        Some(Network::Ipv6 { header, .. }) => {
            put(out, format_args!(" {} > {}: ", header.source(), header.destination()));
        }
        Some(Network::Grh(_)) | None => out.push_str(": "),
    }
}

/// Writes source and destination.
fn write_route(frame: &Frame<'_>, out: &mut String) {
    let ports = frame.udp().map(|udp| (udp.source_port(), udp.destination_port()));
    match (frame.network(), ports) {
        (Some(Network::Ipv4 { header, .. }), Some((from, to))) => {
            let (source, destination) = (header.source(), header.destination());
            put(out, format_args!("IP {source}.{from} > {destination}.{to}: "));
        }
        (Some(Network::Ipv4 { header, .. }), None) => {
            put(out, format_args!("IP {} > {}: ", header.source(), header.destination()));
        }
        (Some(Network::Ipv6 { header, .. }), Some((from, to))) => {
            let (source, destination) = (header.source(), header.destination());
            put(out, format_args!("IP6 {source}.{from} > {destination}.{to}: "));
        }
        (Some(Network::Ipv6 { header, .. }), None) => {
            put(out, format_args!("IP6 {} > {}: ", header.source(), header.destination()));
        }
        (Some(Network::Grh(grh)), _) => {
            let version = if frame.lrh().is_some() { "IB" } else { "RoCEv1" };
            put(out, format_args!("{version} {} > {}: ", grh.sgid(), grh.dgid()));
        }
        (None, _) => match (frame.lrh(), frame.ethernet()) {
            (Some(lrh), _) => {
                put(out, format_args!("IB lid {} > lid {}: ", lrh.slid(), lrh.dlid()))
            }
            (None, Some(eth)) => {
                put(out, format_args!("{} > {}: ", eth.source(), eth.destination()));
            }
            (None, None) => {}
        },
    }
}

/// Writes the kind of a frame that is not RoCE, and the length of its network layer's payload.
fn write_other(context: &Context<'_>, out: &mut String) {
    let frame = &context.frame;
    match (frame.protocol(), frame.ethertype()) {
        (Some(1), _) => out.push_str("ICMP"),
        (Some(6), _) => out.push_str("TCP"),
        (Some(17), _) => out.push_str("UDP"),
        (Some(58), _) => out.push_str("ICMP6"),
        (Some(other), _) => put(out, format_args!("protocol {other}")),
        (None, Some(EtherType(other))) => put(out, format_args!("{}", EtherType(other))),
        (None, None) => out.push_str("unknown"),
    }
    let length = match (frame.udp(), frame.network()) {
        (Some(udp), _) => u32::from(udp.length()).saturating_sub(8),
        (None, Some(Network::Ipv4 { header, options })) => {
            let headers = 20 + u32::try_from(options.len()).unwrap_or(0);
            u32::from(header.total_len()).saturating_sub(headers)
        }
        (None, Some(Network::Ipv6 { header, extensions })) => {
            let skipped = u32::try_from(extensions.len()).unwrap_or(0);
            u32::from(header.payload_len()).saturating_sub(skipped)
        }
        (None, Some(Network::Grh(_)) | None) => context.wire_len,
    };
    put(out, format_args!(", length {length}"));
}
