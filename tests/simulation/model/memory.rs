//! Access to memory, and its effects.

use roce::verbs::{Access, MwType, WcStatus};

use super::Verdict::{self, Failed};
use super::{Bound, Key, Local, Model, Piece, Qp, Remote, Request};

impl Model {
    /// The bytes of a message, or none if some of its memory may not be read.
    pub(super) fn gather(&self, domain: usize, local: &Local) -> Option<Vec<u8>> {
        let pieces = match local {
            Local::Inline(bytes) => return Some(bytes.clone()),
            Local::Pieces(pieces) => pieces,
        };
        let mut bytes = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            self.owned(domain, piece, Access::empty()).then_some(())?;
            bytes.extend_from_slice(&self.memory[piece.key][piece.at..piece.at + piece.len]);
        }
        Some(bytes)
    }

    /// Whether a domain may use a piece so.
    pub(super) fn owned(&self, domain: usize, piece: &Piece, needed: Access) -> bool {
        match self.keys.get(piece.key) {
            Some(Key::Region { domain: owner, rights }) => {
                *owner == domain
                    && rights.contains(needed)
                    && piece.at + piece.len <= self.memory[piece.key].len()
            }
            _ => false,
        }
    }

    /// Puts bytes where they belong, as many as there is room for; whether that is allowed.
    pub(super) fn scatter(&mut self, domain: usize, pieces: &[Piece], mut bytes: &[u8]) -> bool {
        for piece in pieces {
            let (part, rest) = bytes.split_at(bytes.len().min(piece.len));
            if !part.is_empty() && !self.owned(domain, piece, Access::LOCAL_WRITE) {
                return false;
            }
            if !part.is_empty() {
                self.memory[piece.key][piece.at..piece.at + part.len()].copy_from_slice(part);
            }
            bytes = rest;
        }
        true
    }

    /// Puts an answer where a request wants it.
    pub(super) fn answer(&mut self, domain: usize, local: &Local, bytes: &[u8]) -> Verdict {
        match local {
            Local::Pieces(pieces) if self.scatter(domain, pieces, bytes) => Verdict::Done,
            _ => Failed(WcStatus::LocProtErr),
        }
    }

    /// The place of `len` bytes at the peer, if a request may reach all of them.
    pub(super) fn reach(
        &self,
        peer: usize,
        remote: Remote,
        len: usize,
        needed: Access,
    ) -> Option<usize> {
        let Qp { domain, .. } = self.qps[peer];
        let (owner, region, start, size, rights) = match self.keys.get(remote.key)? {
            Key::Region { domain, rights } => {
                (*domain, remote.key, 0, self.memory[remote.key].len(), *rights)
            }
            Key::Window { domain, kind, bound, .. } => {
                let bound = (*bound)?;
                let for_others = *kind == MwType::Type2 && bound.qp != peer;
                (!for_others && bound.low == remote.low).then_some(())?;
                (*domain, bound.region, bound.at, bound.len, bound.rights)
            }
        };
        let within = remote.at >= start && remote.at + len <= start + size;
        (owner == domain && rights.contains(needed) && within).then_some(region)
    }

    /// Does something with bytes at the peer, or refuses it.
    #[expect(clippy::too_many_arguments, reason = "everything that is checked")]
    pub(super) fn fetch<T>(
        &mut self,
        peer: usize,
        at: Remote,
        len: usize,
        needed: Access,
        checked: bool,
        align: usize,
        with: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, WcStatus> {
        if !self.qps[peer].rights.contains(needed) || !at.at.is_multiple_of(align) {
            self.fail(peer);
            return Err(WcStatus::RemInvReqErr);
        }
        if !checked {
            return Ok(with(&mut []));
        }
        let Some(region) = self.reach(peer, at, len, needed) else {
            self.fail(peer);
            return Err(WcStatus::RemAccessErr);
        };
        Ok(with(&mut self.memory[region][at.at..at.at + len]))
    }

    /// Changes a number at the peer; returns the bytes that were there.
    pub(super) fn atomic(
        &mut self,
        peer: usize,
        at: Remote,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<[u8; 8], WcStatus> {
        self.fetch(peer, at, 8, Access::REMOTE_ATOMIC, true, 8, |place| {
            let was: [u8; 8] = (&*place).try_into().expect("eight bytes");
            place.copy_from_slice(&change(u64::from_ne_bytes(was)).to_ne_bytes());
            was
        })
    }

    /// Invalidates the key of a window of type 2 for the queue pair that bound it.
    pub(super) fn invalidate(
        &mut self,
        qp: usize,
        key: usize,
        low: u8,
        failed: impl FnOnce(WcStatus) -> Verdict,
    ) -> Verdict {
        match self.keys.get_mut(key) {
            Some(Key::Window { kind: MwType::Type2, bound: bound @ Some(_), .. })
                if bound.is_some_and(|bound| bound.qp == qp && bound.low == low) =>
            {
                *bound = None;
                Verdict::Done
            }
            _ => failed(WcStatus::MwBindErr),
        }
    }

    /// The low byte of a window's key.
    pub fn window_low(&self, window: usize) -> u8 {
        match self.keys.get(window) {
            Some(Key::Window { low, .. }) => *low,
            _ => 0,
        }
    }

    pub(super) fn bind(&mut self, qp: usize, request: &Request) -> Verdict {
        let Request::Bind { window, low, region, at, len, rights, .. } = *request else {
            unreachable!("it is a bind")
        };
        let failed = Failed(WcStatus::MwBindErr);
        let own = self.qps[qp].domain;
        let fits = match self.keys.get(region) {
            Some(Key::Region { domain, rights: of_region }) => {
                let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                *domain == own
                    && of_region.contains(Access::MW_BIND)
                    && (!writes || of_region.contains(Access::LOCAL_WRITE))
                    && at + len <= self.memory[region].len()
            }
            _ => false,
        };
        let Some(Key::Window { domain, kind, low: own_low, bound }) = self.keys.get_mut(window)
        else {
            return failed;
        };
        let free = match kind {
            MwType::Type1 => len == 0 || fits,
            MwType::Type2 => bound.is_none() && len > 0 && fits,
        };
        if *domain != own || !free {
            return failed;
        }
        *own_low = low;
        *bound = (len > 0).then_some(Bound { region, at, len, rights, low, qp });
        Verdict::Done
    }
}
