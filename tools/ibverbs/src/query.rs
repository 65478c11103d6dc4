//! Attributes of devices and ports.

use std::ffi::{c_int, c_void};
use std::ptr;

use roce::device::Device as _;
use roce::ibverbs::{
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ,
    IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE,
    IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP, IBV_VALUES_MASK_RAW_CLOCK, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps,
    ibv_odp_per_transport_caps, ibv_pci_atomic_caps, ibv_port_attr, ibv_query_device_ex_input,
    ibv_rss_caps, ibv_values_ex, timespec,
};
use roce::link::{GidRow, GidTable};
use roce::nic::SoftNic;
use roce::verbs::GidType;
use roce::wire::Gid;

use crate::call::{Failed, Result, code, negative, number};
use crate::context::Context;
use crate::dm;
use crate::object::{answer, given};
use crate::wq;

/// The only port.
pub(crate) const PORT: u8 = 1;

/// Length of a port's attributes in programs that were built before they grew.
const OLD_PORT_ATTR: usize = 48;

/// Results of `ibv_query_gid_type`: the numbers of sysfs, which are not those of `ibv_gid_type`.
const SYSFS_IB_ROCE_V1: u32 = 0;
const SYSFS_ROCE_V2: u32 = 1;

/// Operations of reliable connections on memory that is paged in on demand: all, as it is the
/// processor that copies.
const ODP_RELIABLE: u32 = IBV_ODP_SUPPORT_SEND
    | IBV_ODP_SUPPORT_RECV
    | IBV_ODP_SUPPORT_WRITE
    | IBV_ODP_SUPPORT_READ
    | IBV_ODP_SUPPORT_ATOMIC
    | IBV_ODP_SUPPORT_SRQ_RECV;

/// Operations on memory that is paged in on demand.
const ODP: ibv_odp_caps = ibv_odp_caps {
    general_caps: (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT) as u64,
    per_transport_caps: ibv_odp_per_transport_caps {
        rc_odp_caps: ODP_RELIABLE,
        uc_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE,
        ud_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
    },
};

/// Returns the attributes that every device has.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is open.
        let device = &unsafe { Context::inherited(context) }?.attr;
        // SAFETY: the program has room for it.
        unsafe { answer(attr, device.into()) }
    })
}

/// Returns all attributes of a device, as far as the program has room for them.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program may hand over what it asks for.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::inherited(context) }?;
        let device = &context.attr;
        let raw = context.nic.has_raw_packets();
        let sizes = IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP;
        let extended = ibv_device_attr_ex {
            orig_attr: device.into(),
            // Nanoseconds since the NIC was started, in all 64 bits.
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            odp_caps: ODP,
            rss_caps: if raw { wq::CAPS } else { ibv_rss_caps::zeroed() },
            max_wq_type_rq: if raw { device.max_srq } else { 0 },
            xrc_odp_caps: ODP_RELIABLE,
            max_dm_size: dm::SIZE as u64,
            device_cap_flags_ex: device.device_cap_flags.bits(),
            pci_atomic_caps: ibv_pci_atomic_caps { fetch_add: sizes, swap: 0, compare_swap: sizes },
            phys_port_cnt_ex: u32::from(device.phys_port_cnt),
            ..ibv_device_attr_ex::zeroed()
        };
        // SAFETY: the program has room for `size` bytes.
        unsafe { copy_prefix(&extended, attr, size) }
    })
}

/// Returns the attributes of a port, for programs that call by name: they know fewer.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    // SAFETY: every program has room for the fields of the oldest structure.
    unsafe { query_port(context, port, attr.cast(), OLD_PORT_ATTR) }
}

/// Returns the attributes of a port, as far as the program has room for them.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        check_port(u32::from(port))?;
        let mut port = ibv_port_attr::from(&context.nic.query_port()?);
        port.gid_tbl_len = c_int::try_from(gid_table(context).len()).unwrap_or(c_int::MAX);
        // SAFETY: the program has room for `size` bytes.
        unsafe { copy_prefix(&port, attr, size) }
    })
}

/// Copies as much as there is room for; room beyond it becomes zero.
unsafe fn copy_prefix<T>(from: &T, to: *mut T, room: usize) -> Result<()> {
    if to.is_null() {
        return Err(Failed::EINVAL);
    }
    let (from, to) = (ptr::from_ref(from).cast::<u8>(), to.cast::<u8>());
    let known = room.min(size_of::<T>());
    // SAFETY: the caller vouches for the room.
    unsafe { ptr::write_bytes(to, 0, room) };
    // SAFETY: both have `known` bytes.
    unsafe { ptr::copy_nonoverlapping(from, to, known) };
    Ok(())
}

pub(crate) fn check_port(port: u32) -> Result<()> {
    if port == u32::from(PORT) { Ok(()) } else { Err(Failed::EINVAL) }
}

/// The GID table of an open device.
fn gid_table(context: &Context) -> GidTable {
    GidTable::new(&context.nic.gids())
}

/// The GID with this index, which must not be empty.
fn gid_row(context: &Context, index: usize) -> Result<GidRow> {
    gid_table(context).row(index).ok_or(Failed(libc::ENODATA))
}

/// The index in the NIC's own list of the GID that a program sends from.
pub(crate) fn gid_source(nic: &SoftNic, index: u8) -> Result<u8> {
    let table = GidTable::new(&nic.gids());
    let row = table.row(usize::from(index)).ok_or(Failed::EINVAL)?;
    if row.kind != GidType::RoceV2 {
        return Err(Failed::EOPNOTSUPP);
    }
    u8::try_from(row.source).map_err(|_| Failed::EINVAL)
}

/// The first index in the table of a GID of the NIC's own list.
pub(crate) fn gid_index(nic: &SoftNic, source: u8) -> u8 {
    let index = GidTable::new(&nic.gids()).index_of(usize::from(source));
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

/// An identifier of a port; one that is not there is zero as long as the table has a place for it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    number(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        check_port(u32::from(port))?;
        let index = usize::try_from(index).map_err(|_| Failed::EINVAL)?;
        let table = gid_table(context);
        if index >= table.len() {
            return Err(Failed::EINVAL);
        }
        let gid = table.row(index).map_or_else(Gid::default, |row| row.gid);
        // SAFETY: the program has room for it.
        unsafe { answer(to, gid.into()) }?;
        Ok(0)
    })
}

/// Returns the encapsulation of packets from an identifier, with the numbers of sysfs.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    to: *mut u32,
) -> c_int {
    number(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        check_port(u32::from(port))?;
        let kind = match gid_row(context, index as usize)?.kind {
            GidType::RoceV2 => SYSFS_ROCE_V2,
            _ => SYSFS_IB_ROCE_V1,
        };
        // SAFETY: the program has room for it.
        unsafe { answer(to, kind) }?;
        Ok(0)
    })
}

/// An entry of the table of identifiers.
fn gid_entry(index: usize, row: GidRow, interface: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: row.gid.into(),
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: u32::from(PORT),
        gid_type: row.kind.code(),
        ndev_ifindex: interface,
    }
}

/// The index of the interface that a NIC is on, or 0.
fn interface_index(context: &Context) -> u32 {
    let Some(name) = context.nic.port().interface.as_deref() else { return 0 };
    let all = roce::link::interface::interfaces().unwrap_or_default();
    all.iter().find(|interface| interface.name == name).map_or(0, |interface| interface.index)
}

/// An identifier of a port, with all that is known of it.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        check_port(port)?;
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(Failed::EINVAL);
        }
        let row = gid_row(context, index as usize)?;
        let found = gid_entry(index as usize, row, interface_index(context));
        // SAFETY: the program has room for it.
        unsafe { copy_prefix(&found, entry, size) }
    })
}

/// Every identifier of every port.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    negative(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(Failed::EINVAL);
        }
        let (table, interface) = (gid_table(context), interface_index(context));
        let found: Vec<_> =
            table.rows().map(|(index, row)| gid_entry(index, row, interface)).collect();
        if found.len() > most {
            return Err(Failed::EINVAL);
        }
        for (place, entry) in found.iter().enumerate() {
            let to = entries.wrapping_byte_add(place * size);
            // SAFETY: the program has room for `most` of this size.
            unsafe { copy_prefix(entry, to, size) }?;
        }
        Ok(isize::try_from(found.len()).unwrap_or(isize::MAX))
    })
}

/// A partition of a port, in the order of the wire.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    number(|| {
        // SAFETY: the program says that it is open.
        unsafe { Context::of(context) }?;
        check_port(u32::from(port))?;
        if index != 0 {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program has room for it.
        unsafe { answer(to, DEFAULT_PKEY.to_be()) }?;
        Ok(0)
    })
}

/// The only partition.
const DEFAULT_PKEY: u16 = 0xffff;

/// The index of a partition, which is in the order of the wire.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| {
        // SAFETY: the program says that it is open.
        unsafe { Context::of(context) }?;
        check_port(u32::from(port))?;
        if u16::from_be(pkey) == DEFAULT_PKEY { Ok(0) } else { Err(Failed::EINVAL) }
    })
}

/// Reads the clock of a device.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is open.
        let context = unsafe { Context::of(context) }?;
        // SAFETY: the program says what it wants there.
        let asked = unsafe { given(values) }?.comp_mask;
        if asked & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Failed::EINVAL);
        }
        let now = context.nic.now().as_nanos();
        let [tv_sec, tv_nsec] = [now / 1_000_000_000, now % 1_000_000_000].map(u64::cast_signed);
        let raw_clock = timespec { tv_sec, tv_nsec };
        // SAFETY: the program has room for it.
        unsafe { answer(values, ibv_values_ex { comp_mask: asked, raw_clock }) }
    })
}
