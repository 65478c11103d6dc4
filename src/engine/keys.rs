//! Memory regions and windows: every check of a key.
//!
//! A key is a random number of 24 bits (see [`table`](crate::table)) and eight bits below it, which
//! a consumer chooses when it binds a window. Checks: the key exists and is not stale, the
//! protection domain matches, the access rights suffice, and no byte is out of range.

use crate::memory::{AccessError, Region};
use crate::secret::SecretRandom;
use crate::table::{SlotId, Table};
use crate::verbs::{
    Access, DeviceTag, Id, KeyError, LKey, MrAttr, MrHandle, MwHandle, MwType, PdHandle, Sge,
};
use crate::wire::{Qpn, RKey};

/// Reason for which a key gives no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The key is unknown, stale or of another protection domain.
    Key,
    /// The access rights do not suffice.
    Rights,
    /// Some byte is out of range.
    Range,
}

#[derive(Debug)]
enum Entry {
    Region(Mr),
    Window(Mw),
}

#[derive(Debug)]
struct Mr {
    low: u8,
    pd: PdHandle,
    region: Region,
    base: u64,
    access: Access,
    /// Number of windows that are bound to it.
    windows: u32,
}

#[derive(Debug)]
struct Mw {
    low: u8,
    pd: PdHandle,
    kind: MwType,
    bound: Option<Binding>,
}

/// The range that a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Binding {
    /// Slot of the region. It does not change while windows are bound.
    mr: SlotId,
    start: u64,
    len: u64,
    /// Whether addresses are relative to the start of the window.
    zero_based: bool,
    access: Access,
    /// Queue pair that bound a window of type 2, and alone may use it.
    qp: Option<Qpn>,
}

/// A request to bind a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bind {
    /// Any key that the window ever had: the upper 24 bits count.
    pub(super) window: RKey,
    /// Low eight bits of its new key.
    pub(super) new_low: u8,
    pub(super) mr: LKey,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    pub(super) kind: MwType,
}

/// Handle of a region: both keys are the same number.
fn both_keys(device: DeviceTag, number: u32) -> MrHandle {
    MrHandle { id: Id::new(device, number), lkey: LKey::new(number), rkey: RKey::new(number) }
}

/// All regions and windows.
#[derive(Debug)]
pub(super) struct Keys {
    device: DeviceTag,
    table: Table<Entry>,
    /// Number of changes that may have taken access away.
    version: u64,
    random: SecretRandom,
}

/// Access that was granted: bytes of a region, from an offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant<'a> {
    pub(super) region: &'a Region,
    pub(super) offset: u64,
    /// Slot of the region.
    pub(super) slot: SlotId,
}

impl Keys {
    pub(super) fn new(limit: usize, device: DeviceTag, random: &mut SecretRandom) -> Self {
        let table = Table::numbered(limit, device, random);
        Self { device, table, version: 0, random: random.split() }
    }

    /// Returns the key in a handle of this device.
    fn own_key(&self, id: Id) -> Option<u32> {
        (id.device() == self.device).then_some(id.index())
    }

    /// Returns a number that changes whenever access may be taken away.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the region in a slot.
    #[inline]
    pub(super) fn region(&self, slot: SlotId) -> Option<&Region> {
        match self.table.at(slot)? {
            Entry::Region(mr) => Some(&mr.region),
            Entry::Window(_) => None,
        }
    }

    /// Raises the maximum number of regions and windows by one.
    pub(super) fn raise_limit(&mut self) {
        self.table.raise_limit(1);
    }

    fn new_low(&mut self) -> u8 {
        self.random.next().to_le_bytes()[0]
    }

    /// Registers memory.
    pub(super) fn register(&mut self, pd: PdHandle, attr: MrAttr) -> Result<MrHandle, KeyError> {
        check_rights(attr.access)?;
        let MrAttr { region, base, access } = attr;
        base.checked_add(region.len() as u64).ok_or(KeyError::TooLong)?;
        let low = self.new_low();
        let mr = Mr { low, pd, region, base, access, windows: 0 };
        let id = self
            .table
            .insert_where(Entry::Region(mr), |number| number != 0)
            .ok_or(KeyError::Full)?;
        Ok(both_keys(self.device, self.table.number(id) << 8 | u32::from(low)))
    }

    /// Changes a region: all that is given, or nothing. Its keys stay.
    pub(super) fn reregister(
        &mut self,
        handle: MrHandle,
        pd: Option<PdHandle>,
        attr: Option<MrAttr>,
        access: Option<Access>,
    ) -> Result<(), KeyError> {
        let key = self.own_key(handle.id).ok_or(KeyError::NotFound)?;
        let mr = self.mr_mut(key).ok_or(KeyError::NotFound)?;
        if mr.windows > 0 {
            return Err(KeyError::InUse);
        }
        let given = access.or_else(|| attr.as_ref().map(|attr| attr.access));
        let access = given.unwrap_or(mr.access);
        check_rights(access)?;
        if let Some(attr) = &attr {
            attr.base.checked_add(attr.region.len() as u64).ok_or(KeyError::TooLong)?;
        }
        // Everything is valid: only now anything changes.
        mr.access = access;
        if let Some(attr) = attr {
            (mr.region, mr.base) = (attr.region, attr.base);
        }
        mr.pd = pd.unwrap_or(mr.pd);
        Ok(())
    }

    /// Deregisters a region: its memory is not accessible afterwards.
    pub(super) fn deregister(&mut self, handle: MrHandle) -> Result<(), KeyError> {
        // Rule: V-03.3.
        let key = self.own_key(handle.id).ok_or(KeyError::NotFound)?;
        let mr = self.mr_mut(key).ok_or(KeyError::NotFound)?;
        if mr.windows > 0 {
            return Err(KeyError::InUse);
        }
        self.remove(key);
        Ok(())
    }

    /// Creates a window that is not bound.
    pub(super) fn allocate(&mut self, pd: PdHandle, kind: MwType) -> Result<MwHandle, KeyError> {
        let low = self.new_low();
        let window = Entry::Window(Mw { low, pd, kind, bound: None });
        let id = self.table.insert_where(window, |number| number != 0).ok_or(KeyError::Full)?;
        Ok(MwHandle(Id::new(self.device, self.table.number(id) << 8)))
    }

    /// Destroys a window, bound or not.
    pub(super) fn deallocate(&mut self, handle: MwHandle) -> Result<(), KeyError> {
        let key = self.own_key(handle.0).ok_or(KeyError::NotFound)?;
        let window = self.window(key).ok_or(KeyError::NotFound)?;
        let mr = window.bound.map(|binding| binding.mr);
        self.remove(key);
        self.unbind_from(mr);
        Ok(())
    }

    /// Returns the current key of a window.
    pub(super) fn window_key(&self, handle: MwHandle) -> Option<RKey> {
        let key = self.own_key(handle.0)?;
        let window = self.window(key)?;
        Some(RKey::new(key | u32::from(window.low)))
    }

    /// Returns the type of a window, by its key.
    pub(super) fn window_kind(&self, key: RKey) -> Option<MwType> {
        self.window(key.get()).map(|window| window.kind)
    }

    /// Number of regions and windows in a protection domain.
    pub(super) fn count_of(&self, pd: PdHandle) -> usize {
        let owner = |entry: &&Entry| match entry {
            Entry::Region(mr) => mr.pd == pd,
            Entry::Window(window) => window.pd == pd,
        };
        self.table.iter().filter(owner).count()
    }

    /// Binds a window for a queue pair of protection domain `pd`, or unbinds one of type 1 with a
    /// length of zero.
    pub(super) fn bind(&mut self, pd: PdHandle, qp: Qpn, bind: Bind) -> Result<(), Refusal> {
        let window = self.window(bind.window.get()).ok_or(Refusal::Key)?;
        if window.pd != pd || window.kind != bind.kind {
            return Err(Refusal::Key);
        }
        let old = window.bound;
        match bind.kind {
            // A window of type 2 must be unbound, and its range not empty.
            MwType::Type2 if old.is_some() => return Err(Refusal::Key),
            MwType::Type2 if bind.len == 0 => return Err(Refusal::Range),
            MwType::Type1 if bind.access.contains(Access::ZERO_BASED) => {
                return Err(Refusal::Rights);
            }
            MwType::Type1 | MwType::Type2 => {}
        }
        let binding = if bind.len == 0 { None } else { Some(self.check_bind(pd, qp, &bind)?) };
        self.unbind_from(old.map(|binding| binding.mr));
        if let Some(binding) = binding {
            let Some(Entry::Region(mr)) = self.table.at_mut(binding.mr) else {
                return Err(Refusal::Key);
            };
            mr.windows += 1;
        }
        if let Some(Entry::Window(window)) = self.entry_mut(bind.window.get()) {
            (window.bound, window.low) = (binding, bind.new_low);
        }
        Ok(())
    }

    fn check_bind(&self, pd: PdHandle, qp: Qpn, bind: &Bind) -> Result<Binding, Refusal> {
        let mr = self.mr(bind.mr.get()).ok_or(Refusal::Key)?;
        if mr.pd != pd {
            return Err(Refusal::Key);
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !mr.access.contains(Access::MW_BIND)
            || mr.access.contains(Access::ZERO_BASED)
            || (writes && !mr.access.contains(Access::LOCAL_WRITE))
        {
            return Err(Refusal::Rights);
        }
        within(mr.base, mr.region.len() as u64, bind.start, bind.len)?;
        Ok(Binding {
            mr: self.table.find(bind.mr.get() >> 8).ok_or(Refusal::Key)?,
            start: bind.start,
            len: bind.len,
            zero_based: bind.access.contains(Access::ZERO_BASED),
            access: bind.access,
            qp: (bind.kind == MwType::Type2).then_some(qp),
        })
    }

    /// Invalidates the key of a window of type 2 for a queue pair.
    pub(super) fn invalidate(&mut self, pd: PdHandle, qp: Qpn, key: RKey) -> Result<(), Refusal> {
        let window = self.window(key.get()).ok_or(Refusal::Key)?;
        let bound = window.bound.ok_or(Refusal::Key)?;
        let ours = window.low == key.get().to_le_bytes()[0]
            && window.pd == pd
            && window.kind == MwType::Type2
            // Rule: Q-12.
            && bound.qp == Some(qp);
        if !ours {
            return Err(Refusal::Key);
        }
        if let Some(Entry::Window(window)) = self.entry_mut(key.get()) {
            window.bound = None;
        }
        self.unbind_from(Some(bound.mr));
        Ok(())
    }

    fn unbind_from(&mut self, mr: Option<SlotId>) {
        if let Some(Entry::Region(mr)) = mr.and_then(|slot| self.table.at_mut(slot)) {
            mr.windows -= 1;
        }
    }

    /// Checks an L_Key for reading `len` bytes at `addr` or, with `write`, for writing them.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn local(
        &self,
        pd: PdHandle,
        key: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<Grant<'_>, Refusal> {
        let (slot, mr) = self.find(key.get()).filter(|(_, mr)| mr.pd == pd).ok_or(Refusal::Key)?;
        if write && !mr.access.contains(Access::LOCAL_WRITE) {
            return Err(Refusal::Rights);
        }
        let offset = within(mr.base, mr.region.len() as u64, addr, len)?;
        Ok(Grant { region: &mr.region, offset, slot })
    }

    /// Faults in on-demand memory. Returns `None` if the L_Key gives no access.
    pub(super) fn fault_in(
        &self,
        pd: PdHandle,
        sge: Sge,
        write: bool,
    ) -> Option<Result<(), AccessError>> {
        let grant = self.local(pd, sge.lkey, sge.addr, sge.length.into(), write).ok()?;
        Some(grant.region.bring_in(grant.offset, sge.length as usize, write))
    }

    /// Checks an R_Key for `len` bytes at `addr`, with all rights of `needed`, for the peer of
    /// queue pair `qp`. If `pd` is `None`, any protection domain is accepted: the caller has
    /// checked it before.
    #[inline]
    pub(super) fn remote(
        &self,
        pd: Option<PdHandle>,
        qp: Qpn,
        key: RKey,
        addr: u64,
        len: u64,
        needed: Access,
    ) -> Result<Grant<'_>, Refusal> {
        let slot = self.table.find(key.get() >> 8).ok_or(Refusal::Key)?;
        match self.table.at(slot).ok_or(Refusal::Key)? {
            Entry::Region(mr) => {
                if mr.low != key.get().to_le_bytes()[0] || pd.is_some_and(|pd| mr.pd != pd) {
                    return Err(Refusal::Key);
                }
                // Rule: V-03.1.
                if !mr.access.contains(needed) {
                    return Err(Refusal::Rights);
                }
                let offset = within(mr.base, mr.region.len() as u64, addr, len)?;
                Ok(Grant { region: &mr.region, offset, slot })
            }
            Entry::Window(window) => self.through_window(window, pd, qp, key, addr, len, needed),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parameters of the caller, and the window")]
    fn through_window(
        &self,
        window: &Mw,
        pd: Option<PdHandle>,
        qp: Qpn,
        key: RKey,
        addr: u64,
        len: u64,
        needed: Access,
    ) -> Result<Grant<'_>, Refusal> {
        let bound = window.bound.ok_or(Refusal::Key)?;
        if window.low != key.get().to_le_bytes()[0]
            || pd.is_some_and(|pd| window.pd != pd)
            // Rule: V-03.4.
            || bound.qp.is_some_and(|owner| owner != qp)
        {
            return Err(Refusal::Key);
        }
        if !bound.access.contains(needed) {
            return Err(Refusal::Rights);
        }
        let base = if bound.zero_based { 0 } else { bound.start };
        // Rule: Q-06.
        let into = within(base, bound.len, addr, len)?;
        let Some(Entry::Region(mr)) = self.table.at(bound.mr) else { return Err(Refusal::Key) };
        // The window was within the region when it was bound, and a region with windows does not
        // change.
        Ok(Grant { region: &mr.region, offset: bound.start - mr.base + into, slot: bound.mr })
    }

    /// Returns the region or window of a key, whatever its low eight bits are.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn entry(&self, key: u32) -> Option<&Entry> {
        self.table.at(self.table.find(key >> 8)?)
    }

    fn entry_mut(&mut self, key: u32) -> Option<&mut Entry> {
        self.version += 1;
        self.table.at_mut(self.table.find(key >> 8)?)
    }

    fn remove(&mut self, key: u32) {
        self.version += 1;
        if let Some(slot) = self.table.find(key >> 8) {
            self.table.remove_at(slot);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn mr(&self, key: u32) -> Option<&Mr> {
        self.find(key).map(|(_, mr)| mr)
    }

    /// Returns the region of a key, and its slot.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn find(&self, key: u32) -> Option<(SlotId, &Mr)> {
        let slot = self.table.find(key >> 8)?;
        match self.table.at(slot)? {
            Entry::Region(mr) if mr.low == key.to_le_bytes()[0] => Some((slot, mr)),
            Entry::Region(_) | Entry::Window(_) => None,
        }
    }

    fn mr_mut(&mut self, key: u32) -> Option<&mut Mr> {
        match self.entry_mut(key)? {
            Entry::Region(mr) if mr.low == key.to_le_bytes()[0] => Some(mr),
            Entry::Region(_) | Entry::Window(_) => None,
        }
    }

    fn window(&self, key: u32) -> Option<&Mw> {
        match self.entry(key)? {
            Entry::Window(window) => Some(window),
            Entry::Region(_) => None,
        }
    }
}

/// Checks access rights: remote write and atomic need local write.
fn check_rights(access: Access) -> Result<(), KeyError> {
    // Rule: V-03.2.
    let remote_writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote_writes && !access.contains(Access::LOCAL_WRITE) {
        return Err(KeyError::NeedsLocalWrite);
    }
    Ok(())
}

/// Returns the offset of `addr` from `base`, if all `len` bytes at `addr` lie within the `size`
/// bytes at `base`.
#[inline]
fn within(base: u64, size: u64, addr: u64, len: u64) -> Result<u64, Refusal> {
    let offset = addr.checked_sub(base).ok_or(Refusal::Range)?;
    let end = offset.checked_add(len).ok_or(Refusal::Range)?;
    if end > size { Err(Refusal::Range) } else { Ok(offset) }
}
