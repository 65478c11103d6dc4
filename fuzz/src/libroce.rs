//! Calls of the C library in any order, by handles, pointers, offsets and lengths that may be
//! anything.
//!
//! A call with a handle that is not open, or of another kind, is refused and touches nothing. Every
//! call returns a length, or one of the error numbers of `roce.h`, and writes nothing behind the
//! buffer that it was given.
#![allow(unsafe_code, reason = "memory is handed over as C does")]

#[path = "../../tools/libroce/src/lib.rs"]
mod calls;

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use calls::snow::connection as snow;
use calls::snow::{Opaque, server, verbs};
use calls::{connection, device, listener, remote};

/// Error numbers of `roce.h`.
const ERRORS: std::ops::RangeInclusive<i64> = -20..=-1;
const EHANDLE: i64 = -2;

/// Number of calls that an input makes, at most.
const CALLS_MAX: usize = 48;

/// Bytes of a message, at most: so few calls do not fill a ring.
const MESSAGE_MAX: usize = 4096;

/// Byte of a buffer that was not written to.
const CANARY: u8 = 0xa5;

/// The kind of an open handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Device,
    Listener,
    Connection,
    SnowConn,
}

/// Objects that are open, and the address of their listener.
struct World {
    open: BTreeMap<i64, Kind>,
    /// Handles that were open once, in the order of their creation.
    known: Vec<i64>,
    listener: i64,
    address: CString,
    devices: [i64; 2],
    /// Whether an input has used the connections.
    is_used: bool,
}

/// The devices stay open between inputs: addresses are the process's own.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The bytes of an input, as numbers.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number: small, near a power of two, or any.
    fn number(&mut self) -> u64 {
        let (kind, value) = (self.byte(), self.byte());
        match kind % 4 {
            0 | 1 => value.into(),
            2 => (1_u64 << (value % 64)).wrapping_sub(u64::from(kind >> 4)),
            _ => self.word(),
        }
    }

    /// A timeout that keeps nothing waiting for long.
    fn timeout(&mut self) -> i32 {
        i32::from(self.byte() % 2)
    }
}

/// Memory that the program hands over: real, none, or not mapped.
struct Memory {
    bytes: Vec<u8>,
    /// Bytes that the call may use.
    len: usize,
    pointer: *mut c_void,
}

impl Memory {
    fn new(input: &mut Input<'_>) -> Self {
        let len = input.number();
        let mut bytes = vec![CANARY; MESSAGE_MAX + 512];
        let room = usize::try_from(len % (MESSAGE_MAX as u64 + 1)).unwrap_or(0);
        let any = usize::try_from(len).unwrap_or(usize::MAX);
        match input.byte() % 8 {
            0 => Self { bytes, len: any, pointer: std::ptr::null_mut() },
            // The first page is not mapped, and the last addresses are not the program's.
            1 => Self { bytes, len: any, pointer: std::ptr::without_provenance_mut(64) },
            2 => {
                let pointer = std::ptr::without_provenance_mut(usize::MAX - 100);
                Self { bytes, len: any, pointer }
            }
            _ => {
                let pointer = bytes.as_mut_ptr().wrapping_add(256).cast();
                Self { bytes, len: room, pointer }
            }
        }
    }

    fn is_mapped(&self) -> bool {
        let start = self.bytes.as_ptr().addr();
        (start..start + self.bytes.len()).contains(&self.pointer.addr())
    }

    /// Checks that nothing is written but what was given.
    fn check(&self) {
        let used = if self.is_mapped() { self.len } else { 0 };
        let around = self.bytes.iter().take(256).chain(self.bytes.iter().skip(256 + used));
        assert!(around.into_iter().all(|byte| *byte == CANARY), "it writes what was not given");
    }
}

/// An address of this process's own.
fn own_address(host: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{host}", 64 + high % 128)
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no zero in it")
}

impl World {
    fn open() -> Self {
        let devices = [1, 2].map(|host| {
            let name = c(&format!("udp:{}", own_address(host)));
            let device = device::roce_open(name.as_ptr());
            assert!(device > 0, "{}: {device}", own_address(host));
            // Ends are quick: an undelivered message waits for no reader.
            assert_eq!(device::roce_set(device, 5, 1), 0);
            device
        });
        let at = c(&format!("{}:0", own_address(1)));
        let listener = listener::roce_listen(devices[0], at.as_ptr());
        assert!(listener > 0);
        let mut text = [0_u8; 64];
        let len = connection::roce_local_address(listener, text.as_mut_ptr().cast(), 64);
        let len = usize::try_from(len).expect("it has an address");
        let address = CString::new(&text[..len]).expect("no zero in it");
        let mut world = Self {
            open: BTreeMap::new(),
            known: Vec::new(),
            listener,
            address,
            devices,
            is_used: true,
        };
        world.keep(listener, Kind::Listener);
        devices.iter().for_each(|device| world.keep(*device, Kind::Device));
        world
    }

    fn keep(&mut self, handle: i64, kind: Kind) {
        assert!(self.open.insert(handle, kind).is_none(), "two objects have one handle");
        self.known.push(handle);
        if self.known.len() > 64 {
            self.known.remove(8);
        }
    }

    /// Connects both ends anew, and a connection of SnowRDMA.
    fn reconnect(&mut self) {
        self.is_used = false;
        let ends = [Kind::Connection, Kind::SnowConn];
        let old: Vec<i64> =
            self.open.iter().filter(|(_, kind)| ends.contains(kind)).map(|(it, _)| *it).collect();
        old.into_iter().for_each(|handle| self.close(handle));
        let listener = self.listener;
        let accept = move || {
            let mut accepted = [0; 2].map(|_| listener::roce_accept(listener, 20_000));
            accepted.sort_unstable();
            accepted
        };
        let accepted = std::thread::spawn(accept);
        let client = connection::roce_connect(self.devices[1], self.address.as_ptr(), 20_000);
        let snow = snow::rdmaConn();
        let (ip, port) = self.address.to_str().expect("ASCII").split_once(':').expect("a port");
        let (ip, port) = (c(ip), port.parse().expect("a number"));
        let connected = snow::rdmaConnect(snow, ip.as_ptr(), port);
        let accepted = accepted.join().expect("it returns");
        assert!(client > 0 && connected == 0, "{client} {connected}");
        for handle in accepted.into_iter().chain([client]) {
            assert!(handle > 0, "{handle}");
            self.keep(handle, Kind::Connection);
        }
        self.keep(i64::try_from(snow.addr()).expect("a handle"), Kind::SnowConn);
    }

    fn close(&mut self, handle: i64) {
        let closed = match self.open.remove(&handle) {
            Some(Kind::SnowConn) => {
                snow::rdmaConnClose(pointer(handle));
                return;
            }
            known => (known, i64::from(connection::roce_close(handle))),
        };
        match closed {
            (None, result) => assert_eq!(result, EHANDLE),
            (Some(_), result) => assert_ne!(result, EHANDLE),
        }
    }

    /// A handle: one that was open once, one that is near it, or any number.
    fn handle(&mut self, input: &mut Input<'_>) -> i64 {
        let (kind, at) = (input.byte(), usize::from(input.byte()));
        let known = self.known.get(at % self.known.len()).copied().unwrap_or_default();
        let recent = self.known.iter().rev().nth(at % 5).copied().unwrap_or_default();
        match kind % 8 {
            0 => known,
            1 => known ^ 1 << (kind >> 3),
            2 => input.word().cast_signed(),
            _ => recent,
        }
    }

    /// Checks what a call returned for a handle of the kind that it wants.
    fn check(&self, handle: i64, wanted: Kind, result: i64) {
        assert!(result >= 0 || ERRORS.contains(&result), "{result} is no error number");
        if self.open.get(&handle) != Some(&wanted) {
            assert_eq!(result, EHANDLE, "{handle:#x} is no {wanted:?}");
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let handle = self.handle(input);
        match op % 24 {
            0..=3 => self.message(op, handle, input),
            4..=9 => self.memory(op, handle, input),
            10 => self.text(handle, input),
            11 => {
                let result = device::roce_set(handle, i32::from(input.byte() % 8), input.number());
                self.check(handle, Kind::Device, result.into());
                if result == 0 {
                    assert_eq!(device::roce_set(handle, 5, 1), 0);
                }
            }
            12 => {
                // What all use stays open.
                if handle != self.listener && !self.devices.contains(&handle) {
                    self.close(handle);
                }
            }
            13 => {
                let device = device::roce_open(std::ptr::null());
                assert!(device > 0);
                self.keep(device, Kind::Device);
            }
            14 => {
                let result = listener::roce_accept(handle, 0);
                self.check(handle, Kind::Listener, result);
            }
            15 => {
                let result = connection::roce_finish(handle, input.timeout());
                self.check(handle, Kind::Connection, result.into());
            }
            _ => self.snow(op, handle, input),
        }
    }

    fn message(&mut self, op: u8, handle: i64, input: &mut Input<'_>) {
        let (memory, timeout) = (Memory::new(input), input.timeout());
        let Memory { pointer, len, .. } = memory;
        let result = match op % 4 {
            0 | 1 => connection::roce_send(handle, pointer, len, timeout).into(),
            2 => connection::roce_recv(handle, pointer, len, timeout),
            _ => connection::roce_next(handle, timeout),
        };
        memory.check();
        self.check(handle, Kind::Connection, result);
        if op % 4 < 2 && !memory.is_mapped() && len > 0 {
            assert!(result < 0, "{len} bytes that are not there were sent");
        }
    }

    fn memory(&mut self, op: u8, handle: i64, input: &mut Input<'_>) {
        /// Memory that stays as long as the process does.
        static PUBLISHED: [std::sync::atomic::AtomicU64; 64] =
            [const { std::sync::atomic::AtomicU64::new(0) }; 64];
        let (id, timeout) = (input.number() % 4, input.timeout());
        let mut found = [0_u64; 3];
        let at = found.as_mut_ptr().cast::<c_void>();
        let result = match op % 24 {
            4 => {
                let published = PUBLISHED.as_ptr().cast_mut().cast();
                let len = usize::try_from(input.number() % 513).unwrap_or(0);
                remote::roce_publish(handle, id, published, len, i32::from(input.byte() % 9))
            }
            5 => remote::roce_unpublish(handle, id),
            6 => remote::roce_lookup(handle, id, at, timeout),
            _ => {
                if remote::roce_lookup(handle, id, at, timeout) != 0
                    || input.byte().is_multiple_of(8)
                {
                    found = [input.word(), input.word(), input.word()];
                }
                let offset = input.number();
                let memory = Memory::new(input);
                let Memory { pointer, len, .. } = memory;
                let at = found.as_ptr().cast();
                let result = match op % 24 {
                    7 => remote::roce_read(handle, at, offset, pointer, len, timeout),
                    8 => remote::roce_write(handle, at, offset, pointer, len, timeout),
                    _ => remote::roce_fetch_add(handle, at, offset, 1, pointer.cast(), timeout),
                };
                if op % 24 != 9 {
                    memory.check();
                    let end = offset.checked_add(len as u64);
                    let within = end.is_some_and(|end| end <= found[1]);
                    assert!(within || result < 0, "{len} bytes at {offset} of {}", found[1]);
                }
                result
            }
        };
        self.check(handle, Kind::Connection, result.into());
    }

    fn text(&mut self, handle: i64, input: &mut Input<'_>) {
        let memory = Memory::new(input);
        let Memory { pointer, len, .. } = memory;
        let result = connection::roce_peer_address(handle, pointer.cast(), len);
        memory.check();
        self.check(handle, Kind::Connection, result.into());
        let error: *const c_char = calls::call::roce_last_error();
        assert!(!error.is_null());
        assert!(!calls::call::roce_strerror(result).is_null());
        // Whatever the index is.
        let index = u32::try_from(input.number() % (1 << 32)).unwrap_or(0) | 1 << 31;
        assert_eq!(device::roce_device_name(index, pointer.cast(), len), -16);
    }

    fn snow(&mut self, op: u8, handle: i64, input: &mut Input<'_>) {
        let conn = pointer(handle);
        let is_open = self.open.get(&handle) == Some(&Kind::SnowConn);
        let (memory, offset) = (Memory::new(input), input.number());
        let Memory { pointer, len, .. } = memory;
        let small = u32::try_from(len % (1 << 32)).unwrap_or(0);
        let failed = match op % 24 {
            16 => snow::rdmaConnSend(conn, pointer, len) == usize::MAX,
            17 => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                snow::rdmaConnReadOwn(conn, offset, pointer, len) != 0
            }
            18 => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                snow::rdmaConnWriteOwn(conn, offset, pointer, len) != 0
            }
            19 => {
                let mut keys = [0_u32; 2];
                let [lkey, rkey] = &mut keys;
                let failed = verbs::rdmaConnRegister(conn, pointer, len, lkey, rkey) != 0;
                // Memory that is not within what is registered.
                let from = pointer.addr() as u64;
                let past = from.wrapping_add(offset.max(len as u64));
                let result = verbs::rdmaSyncWriteSignaled(conn, past, keys[0], 0, 0, small.max(1));
                assert_ne!(result, 0, "memory that is not registered was sent");
                // The peer would use it when it is gone.
                if is_open {
                    self.close(handle);
                }
                failed
            }
            20 => verbs::rdmaSyncReadSignaled(conn, offset, small, offset, small, small) != 0,
            21 => snow::rdmaConnWrite(conn, pointer, len) == usize::MAX,
            22 => server::rdmaServerPort(conn) < 0,
            _ => {
                if is_open {
                    self.close(handle);
                } else {
                    snow::rdmaConnClose(conn);
                }
                true
            }
        };
        memory.check();
        assert!(is_open || failed, "{handle:#x} is no connection");
    }
}

fn pointer(handle: i64) -> *mut Opaque {
    std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or_default())
}

/// Calls of the C library.
pub fn libroce(input: &[u8]) {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    let world = world.get_or_insert_with(World::open);
    let mut input = Input(input);
    if world.is_used {
        world.reconnect();
    }
    for _ in 0..CALLS_MAX {
        if input.0.is_empty() {
            break;
        }
        world.is_used = true;
        world.call(&mut input);
    }
    // Those that only this input has opened.
    let extra: Vec<i64> = world
        .open
        .iter()
        .filter(|(handle, kind)| **kind == Kind::Device && !world.devices.contains(handle))
        .map(|(handle, _)| *handle)
        .collect();
    extra.into_iter().for_each(|handle| world.close(handle));
}
