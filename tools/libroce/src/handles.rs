//! The table of handles: what the program has of an object is a number of its slot and the slot's
//! generation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::Connection;
use super::device::Device;
use super::error::{Code, Failure};
use super::listener::Listener;
use super::{exit, snow};

/// Number of objects that are open at a time, at most.
const SLOTS_MAX: usize = 1 << 16;

/// Bits of the number of a slot. The generation stands above them.
const SLOT_BITS: u32 = 24;

/// Handle that a program has of an object. Zero is none.
pub(crate) type Handle = i64;

/// Declares the kinds of objects.
macro_rules! objects {
    ($($variant:ident($type:ty, $name:literal),)*) => {
        /// An object that a handle names.
        #[derive(Clone, Debug)]
        pub(crate) enum Object {
            $($variant(Arc<$type>),)*
        }

        impl Object {
            fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }
        }

        $(
            impl Kind for $type {
                const NAME: &'static str = $name;

                fn wrap(object: Arc<Self>) -> Object {
                    Object::$variant(object)
                }

                fn unwrap(object: &Object) -> Option<&Arc<Self>> {
                    match object {
                        Object::$variant(object) => Some(object),
                        _ => None,
                    }
                }
            }
        )*
    };
}

objects! {
    Device(Device, "device"),
    Listener(Listener, "listener"),
    Connection(Connection, "connection"),
    SnowConn(snow::RdmaConn, "RdmaConn"),
    SnowListener(snow::RdmaListener, "RdmaListener"),
}

/// A kind of object.
pub(crate) trait Kind: Sized {
    const NAME: &'static str;

    fn wrap(object: Arc<Self>) -> Object;

    fn unwrap(object: &Object) -> Option<&Arc<Self>>;
}

#[derive(Debug, Default)]
struct Slot {
    /// Number of objects that were in it before.
    generation: u32,
    object: Option<Object>,
}

#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The process that the objects work in.
    process: u32,
}

static TABLE: Mutex<Table> = Mutex::new(Table { slots: Vec::new(), free: Vec::new(), process: 0 });

/// Locks the table. A process that was forked has none of the objects of its parent: their threads
/// are not there, and the parent still uses their sockets.
fn table() -> MutexGuard<'static, Table> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if table.process != process {
        for at in 0..table.slots.len() {
            std::mem::forget(table.take(at));
        }
        table.process = process;
    }
    table
}

impl Table {
    /// Takes the object out of a slot, whose next one has another generation.
    fn take(&mut self, at: usize) -> Option<Object> {
        let slot = self.slots.get_mut(at)?;
        let object = slot.object.take()?;
        // A slot whose generations are used up stays empty.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(at);
        }
        Some(object)
    }

    /// Returns the slot that a handle names, if its object is still there.
    fn find(&self, handle: Handle) -> Option<usize> {
        let at = usize::try_from(handle & ((1 << SLOT_BITS) - 1)).ok()?;
        let slot = self.slots.get(at)?;
        let is_there = slot.object.is_some() && number(at, slot.generation) == Some(handle);
        is_there.then_some(at)
    }

    fn get(&self, handle: Handle) -> Result<&Object, Failure> {
        let slot = self.find(handle).and_then(|at| self.slots.get(at));
        let object = slot.and_then(|slot| slot.object.as_ref());
        object.ok_or_else(|| unknown(handle))
    }
}

/// The handle of a generation of a slot.
fn number(at: usize, generation: u32) -> Option<Handle> {
    let slot = Handle::try_from(at).ok()?;
    Some((Handle::from(generation) + 1) << SLOT_BITS | slot)
}

fn unknown(handle: Handle) -> Failure {
    let text = format_args!("{handle:#x} is no handle, or is closed");
    Failure::new(Code::Handle, text)
}

/// Gives an object a handle.
pub(crate) fn insert<T: Kind>(object: Arc<T>) -> Result<Handle, Failure> {
    exit::register()?;
    let mut table = table();
    let at = match table.free.pop() {
        Some(at) => at,
        None if table.slots.len() < SLOTS_MAX => {
            table.slots.push(Slot::default());
            table.slots.len() - 1
        }
        None => {
            let text = format_args!("{SLOTS_MAX} handles are open");
            return Err(Failure::new(Code::NoMemory, text));
        }
    };
    let slot = table.slots.get_mut(at).ok_or_else(|| unknown(0))?;
    slot.object = Some(T::wrap(object));
    number(at, slot.generation).ok_or_else(|| unknown(0))
}

/// Returns the object of a handle.
pub(crate) fn object(handle: Handle) -> Result<Object, Failure> {
    table().get(handle).cloned()
}

/// Returns the object of a handle, which has to be of one kind.
pub(crate) fn get<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let table = table();
    let object = table.get(handle)?;
    T::unwrap(object).cloned().ok_or_else(|| {
        let text = format_args!("{handle:#x} is a {}, no {}", object.name(), T::NAME);
        Failure::new(Code::Handle, text)
    })
}

/// Takes the object from its handle, which names nothing afterwards. Only one caller succeeds.
pub(crate) fn remove(handle: Handle) -> Result<Object, Failure> {
    let mut table = table();
    let at = table.find(handle).ok_or_else(|| unknown(handle))?;
    table.take(at).ok_or_else(|| unknown(handle))
}

/// Takes the object from its handle if it is of one kind.
pub(crate) fn remove_kind<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let expected = get::<T>(handle)?;
    remove(handle)?;
    Ok(expected)
}

/// Returns all objects of one kind.
pub(crate) fn all<T: Kind>() -> Vec<Arc<T>> {
    let table = table();
    let objects = table.slots.iter().filter_map(|slot| slot.object.as_ref());
    objects.filter_map(T::unwrap).cloned().collect()
}
