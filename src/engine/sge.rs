//! Messages in scatter/gather lists.

use super::env::Env;
use super::keys::{Grant, Refusal};
use super::send_queue::Source;
use crate::memory::Payload;
use crate::verbs::{PdHandle, Sge};
use crate::wire::batch::Draft;

/// Packet or frame that payload is appended to.
pub(super) trait Outgoing {
    fn put(&mut self, bytes: &[u8]);

    /// Appends `len` bytes of registered memory, which are all of the payload or a piece of it.
    fn append(&mut self, grant: Grant<'_>, len: usize, is_all: bool) -> Result<(), Refusal>;
}

impl Outgoing for Draft<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        Draft::put(self, bytes);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn append(&mut self, grant: Grant<'_>, len: usize, is_all: bool) -> Result<(), Refusal> {
        if is_all && self.by_reference() {
            let payload = grant.region.part(grant.offset, len).map_err(|_| Refusal::Range)?;
            self.reference(payload);
            return Ok(());
        }
        let room = self.room(len).ok_or(Refusal::Range)?;
        grant.region.read(grant.offset, room).map_err(|_| Refusal::Range)
    }
}

impl Outgoing for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn append(&mut self, grant: Grant<'_>, len: usize, _: bool) -> Result<(), Refusal> {
        grant.region.append_to(grant.offset, len, self).map_err(|_| Refusal::Range)
    }
}

/// Appends `len` bytes of a message, from `offset` on, to a packet or frame.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn gather(
    source: Source<'_>,
    offset: u64,
    len: usize,
    out: &mut impl Outgoing,
    pd: PdHandle,
    env: &Env,
) -> Result<(), Refusal> {
    let sges = match source {
        Source::Inline(bytes) => {
            let start = usize::try_from(offset).map_err(|_| Refusal::Range)?;
            out.put(bytes.get(start..start + len).ok_or(Refusal::Range)?);
            return Ok(());
        }
        Source::Gather(sges) => sges,
    };
    if let [sge] = sges
        && len > 0
        && offset + len as u64 <= u64::from(sge.length)
    {
        let addr = sge.addr.wrapping_add(offset);
        return out.append(env.keys.local(pd, sge.lkey, addr, len as u64, false)?, len, true);
    }
    gather_pieces(sges, offset, len, out, pd, env)
}

#[inline(never)]
fn gather_pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
    out: &mut impl Outgoing,
    pd: PdHandle,
    env: &Env,
) -> Result<(), Refusal> {
    let mut left = len;
    for_each_piece(sges, offset, len, |sge, addr, len| {
        left -= len;
        out.append(env.keys.local(pd, sge.lkey, addr, len as u64, false)?, len, false)
    })?;
    if left == 0 { Ok(()) } else { Err(Refusal::Range) }
}

/// Calls `each` for the pieces of a scatter/gather list that make up `len` bytes from `offset` on:
/// with the entry, and the address and length of the piece.
fn for_each_piece<E>(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut each: impl FnMut(&Sge, u64, usize) -> Result<(), E>,
) -> Result<(), E> {
    for sge in sges {
        if len == 0 {
            break;
        }
        let room = u64::from(sge.length);
        if offset >= room {
            offset -= room;
            continue;
        }
        let piece = len.min(usize::try_from(room - offset).unwrap_or(usize::MAX));
        each(sge, sge.addr.wrapping_add(offset), piece)?;
        (offset, len) = (0, len - piece);
    }
    Ok(())
}

/// Writes part of a message to buffers of protection domain `pd`; returns how many bytes they had
/// room for.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn scatter_into(
    pd: PdHandle,
    sges: &[Sge],
    offset: u64,
    data: Payload<'_>,
    env: &Env,
) -> Result<usize, Refusal> {
    if let [sge] = sges
        && !data.is_empty()
        && offset + data.len() as u64 <= u64::from(sge.length)
    {
        let addr = sge.addr.wrapping_add(offset);
        let grant = env.keys.local(pd, sge.lkey, addr, data.len() as u64, true)?;
        grant.region.write_payload(grant.offset, data).map_err(|_| Refusal::Range)?;
        return Ok(data.len());
    }
    scatter_pieces(pd, sges, offset, data, env)
}

#[inline(never)]
fn scatter_pieces(
    pd: PdHandle,
    sges: &[Sge],
    offset: u64,
    data: Payload<'_>,
    env: &Env,
) -> Result<usize, Refusal> {
    let mut written = 0;
    for_each_piece(sges, offset, data.len(), |sge, addr, len| {
        let grant = env.keys.local(pd, sge.lkey, addr, len as u64, true)?;
        let part = data.part(written..written + len);
        written += len;
        grant.region.write_payload(grant.offset, part).map_err(|_| Refusal::Range)
    })?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_list_are_consecutive() {
        let sge = |addr, length| Sge { addr, length, lkey: Default::default() };
        let sges = [sge(100, 3), sge(0, 0), sge(200, 5), sge(300, 4)];
        let pieces = |offset, len| {
            let mut out = Vec::new();
            for_each_piece(&sges, offset, len, |_, addr, len| {
                out.push((addr, len));
                Ok::<(), ()>(())
            })
            .unwrap();
            out
        };
        assert_eq!(pieces(0, 12), [(100, 3), (200, 5), (300, 4)]);
        assert_eq!(pieces(2, 3), [(102, 1), (200, 2)]);
        assert_eq!(pieces(8, 2), [(300, 2)]);
        assert_eq!(pieces(12, 1), []);
    }
}
