//! librdmacm that was loaded by `dlopen` in a program that has this library neither linked nor
//! preloaded.
//!
//! The dynamic linker looks for `open` and `write` of such a librdmacm in the program's libraries
//! first, and finds those of the C library: the commands would go to the file that stands for the
//! device, where nothing answers. librdmacm lists devices before it opens its own, and that reaches
//! this library. It then enters its functions into librdmacm's table of addresses, as the dynamic
//! linker would have.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{ptr, slice};

use super::interpose;

/// Beginning of librdmacm's file name; a program may bring a copy whose name goes on otherwise.
const LIBRARY: &str = "librdmacm";

// Tags of `elf.h` in a dynamic section.
const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// Relocations that are the address of a symbol: `GLOB_DAT` and `JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u32; 2] = [1025, 1026];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESSES: [u32; 0] = [];

/// An entry of a dynamic section: `Elf64_Dyn`.
#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

/// A relocation: `Elf64_Rela`.
#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    _addend: i64,
}

/// An object of the process, as `dl_iterate_phdr` tells of it.
struct Loaded<'a> {
    base: usize,
    headers: &'a [libc::Elf64_Phdr],
}

/// The places of this library and of the C library among the objects of the process, which is the
/// order in which the dynamic linker looks into those that were there at its start.
#[derive(Default)]
struct Order {
    count: usize,
    own: Option<usize>,
    libc: Option<usize>,
}

/// Enters this library's functions into a librdmacm that would not find them.
pub(crate) fn reach_librdmacm() {
    // The dynamic linker's lock is not taken while another thread forks: no thread of the child
    // would release it.
    let _hold = super::hold();
    let mut order = Order::default();
    // SAFETY: what the function is given is an `Order`, which is there until this returns.
    unsafe { libc::dl_iterate_phdr(Some(see_order), (&raw mut order).cast()) };
    if matches!((order.own, order.libc), (Some(own), Some(libc)) if own < libc) {
        return;
    }
    // SAFETY: the function is given nothing.
    unsafe { libc::dl_iterate_phdr(Some(see_library), ptr::null_mut()) };
}

unsafe extern "C" fn see_order(
    info: *mut libc::dl_phdr_info,
    _: usize,
    order: *mut c_void,
) -> c_int {
    // SAFETY: the caller hands it over for this call.
    let order = unsafe { &mut *order.cast::<Order>() };
    // SAFETY: the dynamic linker hands it over for this call.
    let info = unsafe { &*info };
    // SAFETY: it is loaded, and stays for this call.
    let object = unsafe { Loaded::of(info) };
    let [own, libc] = interpose::own_and_libc();
    if object.contains(own) {
        order.own.get_or_insert(order.count);
    }
    if object.contains(libc) {
        order.libc.get_or_insert(order.count);
    }
    order.count += 1;
    0
}

unsafe extern "C" fn see_library(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker hands it over for this call.
    let info = unsafe { &*info };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: an object's name is a C string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if name.starts_with(LIBRARY.as_bytes()) {
        // SAFETY: it is loaded, and stays for this call.
        unsafe { Loaded::of(info).enter() };
    }
    0
}

impl<'a> Loaded<'a> {
    /// # Safety
    ///
    /// The object must stay loaded for as long as this is used.
    unsafe fn of(info: &'a libc::dl_phdr_info) -> Self {
        let headers = match info.dlpi_phdr.is_null() {
            true => &[],
            // SAFETY: the linker says that there are `dlpi_phnum` headers.
            false => unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) },
        };
        Self { base: usize::try_from(info.dlpi_addr).unwrap_or_default(), headers }
    }

    /// Start and end of a segment in memory.
    fn range(&self, header: &libc::Elf64_Phdr) -> (usize, usize) {
        let at = |value: u64| usize::try_from(value).unwrap_or_default();
        let start = self.base.wrapping_add(at(header.p_vaddr));
        (start, start.saturating_add(at(header.p_memsz)))
    }

    /// Whether an address is in one of its segments.
    fn contains(&self, address: usize) -> bool {
        let segments = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        segments
            .map(|header| self.range(header))
            .any(|(start, end)| (start..end).contains(&address))
    }

    /// Returns a value of its dynamic section.
    fn dynamic(&self, tag: i64) -> Option<usize> {
        let header = self.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let (start, end) = self.range(header);
        let count = end.saturating_sub(start) / size_of::<Dyn>();
        // SAFETY: the segment is this table.
        let table =
            unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<Dyn>(start), count) };
        let mut table = table.iter().take_while(|entry| entry.tag != DT_NULL);
        table.find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// Returns the relocations in the table with this address and this length.
    fn relocations(&self, at: i64, len: i64) -> &'a [Rela] {
        let (Some(at), Some(len)) = (self.dynamic(at), self.dynamic(len)) else { return &[] };
        let first = ptr::with_exposed_provenance::<Rela>(at);
        // SAFETY: the dynamic section says that they are there.
        unsafe { slice::from_raw_parts(first, len / size_of::<Rela>()) }
    }

    /// Enters this library's functions in place of those of the C library.
    fn enter(&self) {
        let (Some(symbols), Some(strings)) = (self.dynamic(DT_SYMTAB), self.dynamic(DT_STRTAB))
        else {
            return;
        };
        let plt = self.relocations(DT_JMPREL, DT_PLTRELSZ);
        for relocation in plt.iter().chain(self.relocations(DT_RELA, DT_RELASZ)) {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is the kind")]
            let (kind, symbol) = (relocation.info as u32, (relocation.info >> 32) as usize);
            if symbol == 0 || !ADDRESSES.contains(&kind) {
                continue;
            }
            let symbol =
                ptr::with_exposed_provenance::<libc::Elf64_Sym>(symbols).wrapping_add(symbol);
            // SAFETY: the relocation is of a symbol of this table.
            let name = strings.wrapping_add(unsafe { (*symbol).st_name } as usize);
            // SAFETY: a symbol's name is a C string of that table.
            let name = unsafe { CStr::from_ptr(ptr::with_exposed_provenance(name)) };
            if let Some(function) = interpose::function(name) {
                self.set(self.base.wrapping_add(relocation.offset), function);
            }
        }
    }

    /// Sets an entry of its table of addresses, which can be read-only since the object was loaded.
    fn set(&self, at: usize, function: *mut c_void) {
        let is_sealed = self
            .headers
            .iter()
            .filter(|header| header.p_type == libc::PT_GNU_RELRO)
            .map(|header| self.range(header))
            .any(|(start, end)| (start..end).contains(&at));
        // SAFETY: the entry is a pointer, which the dynamic linker has set, and which is read
        // whole.
        let entry = unsafe { AtomicPtr::from_ptr(ptr::with_exposed_provenance_mut(at)) };
        if entry.load(Ordering::Relaxed) == function {
            return;
        }
        if is_sealed && !protect(at, libc::PROT_READ | libc::PROT_WRITE) {
            return;
        }
        entry.store(function, Ordering::Relaxed);
        if is_sealed {
            protect(at, libc::PROT_READ);
        }
    }
}

/// Changes what can be done with the page of an address.
fn protect(at: usize, to: c_int) -> bool {
    // SAFETY: a function without a contract.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = ptr::with_exposed_provenance_mut(at & !(page - 1));
    // SAFETY: the page is one of an object's data, which stays readable.
    unsafe { libc::mprotect(start, page, to) == 0 }
}
