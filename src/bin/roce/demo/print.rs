//! Output of the demo.

use std::io::Write;

use anyhow::Result;
use roce::verbs::{Data, RecvWr, SendOp, SendWr, Sge, Target, Wc};

use super::stage::Stage;

/// Introduces the two NICs.
pub(super) fn introduce(stage: &Stage, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "Two soft NICs on loopback, over ordinary UDP sockets, port 4791.")?;
    for side in [&stage.a, &stage.b] {
        let port = side.nic.port();
        let (at, len) = (side.mr.addr(), side.mr.len());
        let key = side.mr.rkey();
        writeln!(
            out,
            "  {}: {}, {len} bytes of memory at {at:#x}, key {key}",
            side.name, port.name
        )?;
    }
    Ok(())
}

/// Prints the title of a scene.
pub(super) fn title(number: usize, title: &str, about: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{number}. {title}")?;
    for line in about.lines() {
        writeln!(out, "   {line}")?;
    }
    Ok(())
}

/// Prints a captured packet.
pub(super) fn packet(from_a: bool, line: &str, out: &mut dyn Write) -> Result<()> {
    let way = if from_a { "A ──► B" } else { "A ◄── B" };
    // The arrow shows the addresses, so the line begins after them.
    let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
    Ok(writeln!(out, "    {way}  {line}")?)
}

/// Prints a receive.
pub(super) fn recv(side: char, wr: &RecvWr<'_>, out: &mut dyn Write) -> Result<()> {
    Ok(writeln!(out, "{side} recv   wr_id={} {}", wr.id.0, list(wr.sges))?)
}

/// Prints a send.
pub(super) fn send(side: char, wr: &SendWr<'_>, out: &mut dyn Write) -> Result<()> {
    write!(out, "{side} send   wr_id={} {} ({})", wr.id.0, wr.opcode().name(), wr.flags)?;
    match wr.op {
        SendOp::Send { imm } => write_imm(imm, out)?,
        SendOp::SendWithInv { rkey } | SendOp::LocalInv { rkey } => write!(out, " key={rkey}")?,
        SendOp::Write { remote_addr, rkey, imm } => {
            write!(out, " to {remote_addr:#x} key={rkey}")?;
            write_imm(imm, out)?;
        }
        SendOp::Read { remote_addr, rkey } => write!(out, " from {remote_addr:#x} key={rkey}")?,
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            write!(out, " at {remote_addr:#x} key={rkey} compare={compare} swap={swap}")?;
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            write!(out, " at {remote_addr:#x} key={rkey} add={add}")?;
        }
        SendOp::AtomicWrite { remote_addr, rkey } => {
            write!(out, " at {remote_addr:#x} key={rkey}")?;
        }
        SendOp::Flush { remote_addr, rkey, length, .. } => {
            write!(out, " {length} bytes at {remote_addr:#x} key={rkey}")?;
        }
        SendOp::BindMw { rkey, bind, .. } => {
            write!(out, " {} bytes at {:#x} under key={rkey}", bind.length, bind.addr)?;
        }
    }
    if let Target::Ud(target) = wr.target {
        write!(out, " to qp {} qkey={}", target.qpn, target.qkey)?;
    }
    match wr.data {
        Data::Inline(bytes) => writeln!(out, " [{} bytes inline]", bytes.len())?,
        Data::Gather(sges) => writeln!(out, " {}", list(sges))?,
    }
    Ok(())
}

fn write_imm(imm: Option<[u8; 4]>, out: &mut dyn Write) -> Result<()> {
    if let Some(imm) = imm {
        write!(out, " imm={:#010x}", u32::from_be_bytes(imm))?;
    }
    Ok(())
}

fn list(sges: &[Sge]) -> String {
    let pieces: Vec<String> =
        sges.iter().map(|sge| format!("{} bytes at {:#x}", sge.length, sge.addr)).collect();
    format!("[{}]", pieces.join(", "))
}

/// Prints a completion; of a failed one, only the fields that are defined.
pub(super) fn completion(side: char, wc: &Wc, out: &mut dyn Write) -> Result<()> {
    write!(out, "{side} done   wr_id={} {}", wc.id.0, wc.status)?;
    if wc.is_success() {
        write!(out, " {} byte_len={}", wc.opcode.name(), wc.byte_len)?;
        if let Some(imm) = wc.imm() {
            write!(out, " imm={:#010x}", u32::from_be_bytes(imm))?;
        }
        if let Some(rkey) = wc.invalidated() {
            write!(out, " invalidated={rkey}")?;
        }
    }
    Ok(writeln!(out)?)
}
