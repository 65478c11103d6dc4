//! Messages in scatter/gather lists.

use super::env::Env;
use super::keys::Refusal;
use super::send_queue::Source;
use crate::verbs::PdHandle;
use crate::verbs::Sge;

/// Appends `len` bytes of a message, from `offset` on, to `out`.
pub(super) fn gather(
    source: Source<'_>,
    offset: u64,
    len: usize,
    out: &mut Vec<u8>,
    pd: PdHandle,
    env: &Env,
) -> Result<(), Refusal> {
    let sges = match source {
        Source::Inline(bytes) => {
            let start = usize::try_from(offset).map_err(|_| Refusal::Range)?;
            out.extend_from_slice(bytes.get(start..start + len).ok_or(Refusal::Range)?);
            return Ok(());
        }
        Source::Gather(sges) => sges,
    };
    let mut left = len;
    if let [sge] = sges
        && len > 0
        && offset + len as u64 <= u64::from(sge.length)
    {
        let grant =
            env.keys.local(pd, sge.lkey, sge.addr.wrapping_add(offset), len as u64, false)?;
        return grant.region.append_to(grant.offset, len, out).map_err(|_| Refusal::Range);
    }
    for_each_piece(sges, offset, len, |sge, addr, len| {
        let grant = env.keys.local(pd, sge.lkey, addr, len as u64, false)?;
        left -= len;
        grant.region.append_to(grant.offset, len, out).map_err(|_| Refusal::Range)
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
pub(super) fn scatter_into(
    pd: PdHandle,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
    env: &Env,
) -> Result<usize, Refusal> {
    if let [sge] = sges
        && !data.is_empty()
        && offset + data.len() as u64 <= u64::from(sge.length)
    {
        let addr = sge.addr.wrapping_add(offset);
        let grant = env.keys.local(pd, sge.lkey, addr, data.len() as u64, true)?;
        grant.region.write(grant.offset, data).map_err(|_| Refusal::Range)?;
        return Ok(data.len());
    }
    let mut written = 0;
    for_each_piece(sges, offset, data.len(), |sge, addr, len| {
        let grant = env.keys.local(pd, sge.lkey, addr, len as u64, true)?;
        let part = &data[written..written + len];
        written += len;
        grant.region.write(grant.offset, part).map_err(|_| Refusal::Range)
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
