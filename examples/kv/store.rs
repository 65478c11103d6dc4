//! The store on `roce::group`: what a server does, and what a client does.
use std::collections::BTreeSet;
use std::time::Duration;

use roce::device::{Mr, MrSlice};
use roce::group::{Error, Group, Member, Remote};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) const SERVERS: usize = 3;
pub(crate) const TABLE: u64 = 1; // the number under which a server publishes its table
const SLOTS: usize = 512;
const SLOT: usize = 256; // version, 32 bytes of key, value, the same version
const TICK: Duration = Duration::from_millis(20);

pub(crate) fn slot(version: u64, key: &str, value: &str) -> Result<Vec<u8>> {
    if key.len() > 32 || value.len() > SLOT - 48 {
        return Err("a key has up to 32 bytes, a value up to 208".into());
    }
    let mut slot = [&version.to_le_bytes(), key.as_bytes()].concat();
    slot.resize(40, 0);
    slot.extend(value.as_bytes());
    slot.resize(SLOT - 8, 0);
    Ok([slot, version.to_le_bytes().to_vec()].concat())
}

fn version(slot: &[u8]) -> u64 {
    slot.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the offset of a key's slot in a table.
pub(crate) fn place(key: &[u8]) -> usize {
    key.iter().fold(7_usize, |hash, byte| hash.wrapping_mul(31) + usize::from(*byte)) % SLOTS * SLOT
}

/// Reads a slot of a server. The server writes the version behind it first and the one before it
/// last: if both are the same, no part of the slot is of another version.
pub(crate) fn read(table: &Remote, at: usize) -> std::result::Result<Vec<u8>, Error> {
    loop {
        let slot = table.read(at as u64, SLOT as u64)?;
        if slot[..8] == slot[SLOT - 8..] {
            return Ok(slot);
        }
    }
}

/// Writes a slot, unless a newer version is there; false if another key has the place, or the slot
/// is not whole.
fn write(table: &Mr, new: &[u8]) -> Result<bool> {
    let (at, mut old) = (place(new.get(8..40).ok_or("too short")?), [0; SLOT]);
    table.read(at, &mut old)?;
    let is_free = version(&old) == 0 || old[8..40] == new[8..40];
    let is_right = is_free && new.len() == SLOT && new[..8] == new[SLOT - 8..];
    if is_right && version(new) > version(&old) {
        table.write(at + SLOT - 8, &new[..8])?;
        table.write(at + 8, &new[8..SLOT - 8])?;
        table.write(at, &new[..8])?;
    }
    Ok(is_right)
}

/// Takes over what another server has, unless it begins itself.
fn catch_up(member: &Member, peer: usize, table: &Mr) -> Result {
    if let Some(theirs) = member.lookup(peer, TABLE)? {
        let bytes = theirs.read(0, theirs.len())?;
        for (at, slot) in bytes.chunks(SLOT).enumerate().filter(|(_, slot)| version(slot) > 0) {
            if !write(table, slot)? {
                write(table, &read(&theirs, at * SLOT)?)?;
            }
        }
    }
    Ok(())
}

/// A server. One that was killed has lost its memory: it begins with what the two others have.
pub(crate) fn serve(group: &Group) -> Result {
    let (member, table) = (group.member(0)?, group.allocate(SLOTS * SLOT)?);
    for peer in (0..SERVERS).filter(|peer| *peer != member.own()) {
        while catch_up(&member, peer, &table).is_err() {
            std::thread::sleep(TICK);
        }
    }
    group.publish(TABLE, &table.slice(..)?)?;
    println!("server {} is ready", member.own());
    loop {
        member.poll(&mut |from: usize, slot: &[u8]| {
            if write(&table, slot).unwrap_or(false) {
                member.send(from, &slot[..40]).ok(); // a client that has gone gets no answer
            }
        })?;
        member.wait(TICK)?;
    }
}

pub(crate) struct Client {
    pub(crate) member: Member,
    tables: [Option<Remote>; SERVERS],
    rooms: [MrSlice; 2],
}

impl Client {
    pub(crate) fn new(group: &Group) -> Result<Self> {
        let rooms = [group.allocate(SLOT)?.slice(..)?, group.allocate(SLOT)?.slice(..)?];
        Ok(Self { member: group.member(0)?, tables: Default::default(), rooms })
    }

    /// Waits until a server has published its table.
    pub(crate) fn wait_ready(&self, server: usize, timeout: Duration) -> Result {
        let ticks = timeout.as_millis() / TICK.as_millis();
        for _ in 0..ticks {
            if matches!(self.member.lookup(server, TABLE), Ok(Some(_))) {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
        Err(format!("server {server} was not ready within {timeout:?}").into())
    }

    /// The newest slot of a key that two servers have. The READs of both are in flight together.
    fn newest(&mut self, key: &str) -> Result<Vec<u8>> {
        let at = place(&slot(0, key, "")?[8..40]) as u64;
        for _ in 0..1000 {
            for (server, table) in self.tables.iter_mut().enumerate() {
                *table = table.take().or_else(|| self.member.lookup(server, TABLE).ok()?);
            }
            let known = self.tables.iter().flatten().zip(&self.rooms);
            let begun: Vec<_> = known.map(|(table, room)| table.begin_read(at, room)).collect();
            let ended = begun.into_iter().map(|reading| Some(reading.ok()?.wait().ok()?.to_vec()));
            let mut found: Vec<_> = ended.flatten().collect();
            found.sort_by_key(|slot| version(slot));
            if found.len() < 2 {
                self.tables = Default::default(); // one has gone, or was started again
                self.member.wait(TICK)?;
            } else if found.iter().all(|slot| slot[..8] == slot[SLOT - 8..]) {
                return Ok(found.swap_remove(1));
            }
        }
        Err("fewer than two servers answer".into())
    }

    pub(crate) fn get(&mut self, key: &str) -> Result<String> {
        let slot = self.newest(key)?;
        Ok(String::from_utf8_lossy(&slot[40..SLOT - 8]).trim_end_matches('\0').to_owned())
    }

    pub(crate) fn put(&mut self, key: &str, value: &str) -> Result {
        let slot = slot(version(&self.newest(key)?) + 1, key, value)?;
        let mut acknowledged = BTreeSet::new();
        // One of them may be gone.
        (0..SERVERS).for_each(|server| drop(self.member.send(server, &slot)));
        for _ in 0..1000 {
            self.member.poll(&mut |from: usize, message: &[u8]| {
                acknowledged.extend((message == &slot[..40]).then_some(from));
            })?;
            if acknowledged.len() >= 2 {
                return Ok(());
            }
            self.member.wait(TICK)?;
        }
        Err("fewer than two servers acknowledge, or another key has the place".into())
    }
}
