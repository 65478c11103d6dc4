//! Address handles, and multicast groups.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::sync::Arc;

use roce::device::Device as _;
use roce::ibverbs::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_qp, ibv_wc,
};
use roce::nic::SoftNic;
use roce::verbs::{AhHandle, WcFlags};
use roce::wire::Gid;

use crate::call::{Failed, Result, code, number, pointer};
use crate::context::Context;
use crate::object::{Object, answer, given, objects};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::query::{check_port, gid_index, gid_source};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    c: UnsafeCell<ibv_ah>,
    nic: Arc<SoftNic>,
    handle: AhHandle,
}

objects! { Ah: ibv_ah; }

/// Makes an address handle.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the program says that it is one.
    let domain = unsafe { Pd::live(pd) }?;
    let mut path = attr.to_ah_attr().ok_or(Failed::EINVAL)?;
    path.sgid_index = gid_source(&domain.nic, path.sgid_index)?;
    let handle = domain.nic.create_ah(domain.handle, path)?;
    let c = UnsafeCell::new(ibv_ah { context: domain.context(), pd, handle: handle.to_c() });
    Ok(Ah { c, nic: Arc::clone(&domain.nic), handle }.give())
}

/// Makes an address handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        // SAFETY: as this function's.
        unsafe { create(pd, attr) }
    })
}

/// Destroys an address handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let address = unsafe { Ah::to_destroy(ah) }?;
        address.nic.destroy_ah(address.handle)?;
        // SAFETY: and that it does not need it any more.
        unsafe { Ah::take(ah) }.map(drop)
    })
}

/// The way back to who sent a datagram.
fn way_back(open: &Context, port: u8, wc: &ibv_wc, grh: &ibv_grh) -> Result<ibv_ah_attr> {
    check_port(u32::from(port))?;
    if wc.wc_flags & u32::from(WcFlags::GRH.bits()) == 0 {
        return Err(Failed::EINVAL);
    }
    let (peer, own, traffic_class, flow_label) = addresses(grh)?;
    let gids = open.nic.gids();
    let source = gids.iter().position(|gid| *gid == own).unwrap_or(0);
    let source = u8::try_from(source).map_err(|_| Failed::EINVAL)?;
    let grh = ibv_global_route {
        dgid: peer.into(),
        flow_label,
        sgid_index: gid_index(&open.nic, source),
        hop_limit: 0xff,
        traffic_class,
    };
    // What stands in the place of a service level is none.
    Ok(ibv_ah_attr { grh, is_global: 1, port_num: port, ..ibv_ah_attr::zeroed() })
}

/// Source, destination, traffic class and flow label of a datagram: of the header of IPv6, or of
/// that of IPv4 which lies in the second half of the room for it. What lies in the first half then
/// is left from before.
fn addresses(grh: &ibv_grh) -> Result<(Gid, Gid, u8, u32)> {
    let mut ipv4 = [0_u8; 20];
    ipv4[..4].copy_from_slice(&grh.sgid.raw[12..]);
    ipv4[4..].copy_from_slice(&grh.dgid.raw);
    let first = u32::from_be(grh.version_tclass_flow);
    let is_ipv6 = first >> 28 == 6;
    if ipv4[0] == 0x45 && (!is_ipv6 || checksum_is_right(&ipv4)) {
        let [.., a, b, c, d, e, f, g, h] = ipv4;
        let [source, own] = [[a, b, c, d], [e, f, g, h]].map(|ip| Gid::from(Ipv4Addr::from(ip)));
        return Ok((source, own, ipv4[1], 0));
    }
    if !is_ipv6 {
        return Err(Failed::EINVAL);
    }
    let traffic_class = (first >> 20).to_le_bytes()[0];
    Ok((grh.sgid.into(), grh.dgid.into(), traffic_class, first & 0xf_ffff))
}

/// Whether a header of IPv4 is one, by its checksum.
fn checksum_is_right(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// The attributes of an address handle for who sent a datagram.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    number(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: the program hands it over.
        let wc = unsafe { given(wc) }?;
        // SAFETY: a receive buffer need not be aligned.
        let grh = unsafe { grh.read_unaligned() };
        // SAFETY: the program has room for it.
        unsafe { answer(attr, way_back(open, port, wc, &grh)?) }?;
        Ok(0)
    })
}

/// Makes an address handle for who sent a datagram.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let context = unsafe { Pd::live(pd) }?.context();
        // SAFETY: it was open when the domain was made, and is until that is destroyed.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: the program hands it over.
        let wc = unsafe { given(wc) }?;
        // SAFETY: a receive buffer need not be aligned.
        let grh = unsafe { grh.read_unaligned() };
        // SAFETY: as this function's.
        unsafe { create(pd, &way_back(open, port, wc, &grh)?) }
    })
}

/// Lets a datagram queue pair receive what is sent to a group.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: the program hands it over; it need not be aligned.
        let group = unsafe { gid.read_unaligned() };
        Ok(queue_pair.nic.attach_multicast(queue_pair.handle, group.into())?)
    })
}

/// Detaches a queue pair from a multicast group.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: the program hands it over; it need not be aligned.
        let group = unsafe { gid.read_unaligned() };
        Ok(queue_pair.nic.detach_multicast(queue_pair.handle, group.into())?)
    })
}

/// The Ethernet address and the VLAN that a peer has. A soft NIC leaves that to the kernel, or to
/// its link.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    number(|| Err(Failed::EOPNOTSUPP))
}
