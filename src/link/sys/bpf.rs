//! Programs and maps of eBPF: `bpf(2)`.
#![allow(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

// Commands of `linux/bpf.h`.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_BY_ID: libc::c_int = 13;
const OBJECT_INFO: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;

const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program takes packets of several buffers, so that the interface may have a large MTU.
const HAS_FRAGMENTS: u32 = 1 << 5;

/// Kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::link) enum MapKind {
    /// Keys of any kind.
    Hash = 1,
    /// Sockets of AF_XDP by the queue of their interface.
    Sockets = 17,
}

/// Way in which a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::link) enum AttachMode {
    /// In the driver.
    Driver = 1 << 2,
    /// Behind the driver, which knows nothing of it.
    Generic = 1 << 1,
}

/// Length of a name, with the zero at its end.
const NAME_LEN: usize = 16;

fn name(text: &str) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    name.iter_mut().take(NAME_LEN - 1).zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    name
}

/// Runs a command of `bpf(2)`, whose attributes are a structure of numbers.
///
/// # Safety
///
/// Pointers in the attributes must be valid for what the command does with them.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    let (attributes, len) = (ptr::from_mut(attributes), size_of::<T>());
    // SAFETY: the attributes and their length are those of a value that lives through the call; the
    // caller has seen to the pointers in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// Runs a command that returns a descriptor.
///
/// # Safety
///
/// As for [`bpf`].
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the command has just opened it, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The number of a descriptor, as attributes have it.
fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// A map with keys and values of fixed length.
#[derive(Debug)]
pub(in crate::link) struct Map {
    fd: OwnedFd,
    key_len: usize,
}

impl Map {
    /// Length of a value.
    const VALUE_LEN: u32 = 4;

    /// Creates a map; values have four bytes.
    pub(in crate::link) fn new(kind: MapKind, key_len: u32, entries: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            key_len: u32,
            value_len: u32,
            entries: u32,
            _flags: u32,
            _inner: u32,
            _numa: u32,
            name: [u8; NAME_LEN],
        }
        let mut attributes = Attributes {
            kind: kind as u32,
            key_len,
            value_len: Self::VALUE_LEN,
            entries,
            _flags: 0,
            _inner: 0,
            _numa: 0,
            name: name("roce"),
        };
        // SAFETY: there are no pointers.
        let fd = unsafe { bpf_fd(MAP_CREATE, &mut attributes) }?;
        Ok(Self { fd, key_len: key_len as usize })
    }

    /// Puts an entry in.
    pub(in crate::link) fn insert(&self, key: &[u8], value: u32) -> io::Result<()> {
        self.change(MAP_UPDATE, key, &value)
    }

    /// Takes an entry out.
    pub(in crate::link) fn remove(&self, key: &[u8]) -> io::Result<()> {
        self.change(MAP_DELETE, key, &0)
    }

    fn change(&self, command: libc::c_int, key: &[u8], value: &u32) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            map: u32,
            _padding: u32,
            key: u64,
            value: u64,
            _flags: u64,
        }
        if key.len() != self.key_len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let value = if command == MAP_DELETE { 0 } else { ptr::from_ref(value).addr() as u64 };
        let map = self.number();
        let key = key.as_ptr().addr() as u64;
        let mut attributes = Attributes { map, _padding: 0, key, value, _flags: 0 };
        // SAFETY: key and value have the lengths of the map, and the command reads them only.
        unsafe { bpf(command, &mut attributes) }.map(drop)
    }

    /// The number by which a program names the map.
    pub(in crate::link) fn number(&self) -> u32 {
        use std::os::fd::AsFd as _;
        number(self.fd.as_fd())
    }
}

/// Loads a program of XDP.
pub(in crate::link) fn load_xdp(program: &[u64], called: &str) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        len: u32,
        program: u64,
        license: u64,
        _log: [u32; 2],
        _log_buffer: u64,
        _kernel_version: u32,
        flags: u32,
        name: [u8; NAME_LEN],
        _interface: u32,
        attach: u32,
    }
    let mut attributes = Attributes {
        kind: PROGRAM_XDP,
        len: u32::try_from(program.len()).map_err(io::Error::other)?,
        program: program.as_ptr().addr() as u64,
        license: c"Dual MIT/GPL".as_ptr().addr() as u64,
        _log: [0; 2],
        _log_buffer: 0,
        _kernel_version: 0,
        flags: HAS_FRAGMENTS,
        name: name(called),
        _interface: 0,
        attach: ATTACH_XDP,
    };
    // SAFETY: program and license live through the call, which reads them only, as far as the
    // length says and until the zero.
    let loaded = unsafe { bpf_fd(PROG_LOAD, &mut attributes) };
    if !loaded.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
        return loaded;
    }
    // Kernels before 5.18 do not know the flag.
    attributes.flags = 0;
    // SAFETY: as above.
    unsafe { bpf_fd(PROG_LOAD, &mut attributes) }
}

/// Attaches a program to an interface, for as long as the descriptor that is returned is open.
pub(in crate::link) fn attach_xdp(
    program: BorrowedFd<'_>,
    interface: u32,
    mode: AttachMode,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach: u32,
        flags: u32,
        _rest: [u64; 2],
    }
    let mut attributes = Attributes {
        program: number(program),
        interface,
        attach: ATTACH_XDP,
        flags: mode as u32,
        _rest: [0; 2],
    };
    // SAFETY: there are no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attributes) }
}

/// Returns the name of a loaded program, which may be empty.
pub(in crate::link) fn program_name(id: u32) -> io::Result<String> {
    #[repr(C)]
    struct ById {
        id: u32,
        _rest: [u32; 2],
    }
    #[repr(C)]
    struct Info {
        _before: [u64; 8],
        name: [u8; NAME_LEN],
    }
    #[repr(C)]
    struct Attributes {
        fd: u32,
        len: u32,
        info: u64,
    }
    // SAFETY: there are no pointers.
    let program = unsafe { bpf_fd(PROG_BY_ID, &mut ById { id, _rest: [0; 2] }) }?;
    let mut info = Info { _before: [0; 8], name: [0; NAME_LEN] };
    let mut attributes = Attributes {
        fd: program.as_raw_fd().unsigned_abs(),
        len: u32::try_from(size_of::<Info>()).map_err(io::Error::other)?,
        info: ptr::from_mut(&mut info).addr() as u64,
    };
    // SAFETY: the command writes as many bytes as the length says, into a structure of that length
    // which asks for nothing else to be written.
    unsafe { bpf(OBJECT_INFO, &mut attributes) }?;
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}
