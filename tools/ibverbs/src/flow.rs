//! Rules that steer frames to queue pairs of raw packets.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use roce::ibverbs::{
    IBV_FLOW_ATTR_ALL_DEFAULT, IBV_FLOW_ATTR_MC_DEFAULT, IBV_FLOW_ATTR_NORMAL,
    IBV_FLOW_ATTR_SNIFFER, IBV_FLOW_SPEC_ETH, IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT,
    IBV_FLOW_SPEC_IPV6, IBV_FLOW_SPEC_TCP, IBV_FLOW_SPEC_UDP, ibv_flow, ibv_flow_attr,
    ibv_flow_spec_eth, ibv_flow_spec_hdr, ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext,
    ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp, ibv_qp,
};
use roce::nic::SoftNic;
use roce::raw_eth::{FlowHandle, FlowKind, FlowLayer, FlowMatch, FlowRule};

use crate::call::{Failed, Result, code, pointer};
use crate::object::{Object, given, objects};
use crate::pd::next_number;
use crate::qp::Qp;
use crate::query::check_port;

/// A rule.
#[repr(C)]
pub(crate) struct Flow {
    c: UnsafeCell<ibv_flow>,
    nic: Arc<SoftNic>,
    handle: FlowHandle,
}

objects! { Flow: ibv_flow; }

/// Makes a rule.
pub(crate) unsafe extern "C" fn create(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::live(qp.cast()) }?;
        // SAFETY: the program hands it over, and what it wants behind it.
        let rule = unsafe { rule(attr) }?;
        let handle = queue_pair.nic.create_flow(queue_pair.handle, rule)?;
        // SAFETY: it was written when the queue pair was made, and programs leave it.
        let context = unsafe { (*qp).context };
        let c = UnsafeCell::new(ibv_flow { comp_mask: 0, context, handle: next_number() });
        Ok(Flow { c, nic: Arc::clone(&queue_pair.nic), handle }.give())
    })
}

/// Destroys a rule.
pub(crate) unsafe extern "C" fn destroy(flow: *mut ibv_flow) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let rule = unsafe { Flow::to_destroy(flow) }?;
        rule.nic.destroy_flow(rule.handle)?;
        // SAFETY: and that it does not need it any more.
        unsafe { Flow::take(flow) }.map(drop)
    })
}

/// The rule in words.
///
/// # Safety
///
/// Behind the attributes there must be as many specifications as they say, each as long as it says.
unsafe fn rule(attr: *const ibv_flow_attr) -> Result<FlowRule> {
    // SAFETY: the caller vouches for it.
    let given = unsafe { given(attr) }?;
    check_port(u32::from(given.port))?;
    if given.comp_mask != 0 || given.flags != 0 {
        return Err(Failed::EOPNOTSUPP);
    }
    let kind = match given.r#type {
        IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::McDefault,
        IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
        _ => return Err(Failed::EINVAL),
    };
    let mut headers = Vec::new();
    let mut next = attr.wrapping_add(1).cast::<u8>();
    for _ in 0..given.num_of_specs {
        // SAFETY: the caller vouches for it.
        let ibv_flow_spec_hdr { r#type, size } =
            unsafe { next.cast::<ibv_flow_spec_hdr>().read_unaligned() };
        // SAFETY: the caller vouches for it.
        headers.extend(unsafe { header(r#type, usize::from(size), next) }?);
        next = next.wrapping_add(usize::from(size));
    }
    Ok(FlowRule { kind, priority: given.priority, headers })
}

/// A specification of a program's, which is as long as it should be.
unsafe fn read<T: Copy>(spec: *const u8, size: usize) -> Result<T> {
    if size < size_of::<T>() {
        return Err(Failed::EINVAL);
    }
    // SAFETY: the caller vouches for `size` bytes, and a `T` has numbers only.
    Ok(unsafe { spec.cast::<T>().read_unaligned() })
}

/// Returns the header matches of a specification. Its numbers are in the order of the wire, as they
/// lie there.
///
/// # Safety
///
/// There must be `size` bytes.
unsafe fn header(kind: c_uint, size: usize, spec: *const u8) -> Result<Vec<FlowMatch>> {
    Ok(match kind {
        IBV_FLOW_SPEC_ETH => {
            // SAFETY: the caller vouches for it.
            eth(&unsafe { read(spec, size) }?)
        }
        IBV_FLOW_SPEC_IPV4 => {
            // SAFETY: the caller vouches for it.
            let ibv_flow_spec_ipv4 { val, mask, .. } = unsafe { read(spec, size) }?;
            vec![addresses4([val.src_ip, val.dst_ip], [mask.src_ip, mask.dst_ip])]
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            // SAFETY: the caller vouches for it.
            ipv4_ext(&unsafe { read(spec, size) }?)?
        }
        IBV_FLOW_SPEC_IPV6 => {
            // SAFETY: the caller vouches for it.
            ipv6(&unsafe { read(spec, size) }?)
        }
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => {
            // SAFETY: the caller vouches for it.
            let ibv_flow_spec_tcp_udp { val, mask, .. } = unsafe { read(spec, size) }?;
            let layer = if kind == IBV_FLOW_SPEC_TCP { FlowLayer::Tcp } else { FlowLayer::Udp };
            let source = (val.src_port.to_ne_bytes(), mask.src_port.to_ne_bytes());
            let to = (val.dst_port.to_ne_bytes(), mask.dst_port.to_ne_bytes());
            vec![FlowMatch::any(layer).with(0, &source.0, &source.1).with(2, &to.0, &to.1)]
        }
        _ => return Err(Failed::EOPNOTSUPP),
    })
}

fn eth(ibv_flow_spec_eth { val, mask, .. }: &ibv_flow_spec_eth) -> Vec<FlowMatch> {
    let frame = FlowMatch::any(FlowLayer::Ethernet)
        .with(0, &val.dst_mac, &mask.dst_mac)
        .with(6, &val.src_mac, &mask.src_mac)
        .with(12, &val.ether_type.to_ne_bytes(), &mask.ether_type.to_ne_bytes());
    let (tag, tag_mask) = (val.vlan_tag.to_ne_bytes(), mask.vlan_tag.to_ne_bytes());
    let vlan = FlowMatch::any(FlowLayer::Vlan).with(0, &tag, &tag_mask);
    if mask.vlan_tag == 0 { vec![frame] } else { vec![frame, vlan] }
}

/// Source and destination of IPv4.
fn addresses4(value: [u32; 2], mask: [u32; 2]) -> FlowMatch {
    let [source, to] = value.map(u32::to_ne_bytes);
    let [source_mask, to_mask] = mask.map(u32::to_ne_bytes);
    FlowMatch::any(FlowLayer::Ipv4).with(12, &source, &source_mask).with(16, &to, &to_mask)
}

fn ipv4_ext(spec: &ibv_flow_spec_ipv4_ext) -> Result<Vec<FlowMatch>> {
    let ibv_flow_spec_ipv4_ext { val, mask, .. } = spec;
    if mask.flags != 0 {
        // What the flags of a fragment are here is not documented.
        return Err(Failed::EOPNOTSUPP);
    }
    let packet = addresses4([val.src_ip, val.dst_ip], [mask.src_ip, mask.dst_ip])
        .with(1, &[val.tos], &[mask.tos])
        .with(8, &[val.ttl, val.proto], &[mask.ttl, mask.proto]);
    Ok(vec![packet])
}

fn ipv6(ibv_flow_spec_ipv6 { val, mask, .. }: &ibv_flow_spec_ipv6) -> Vec<FlowMatch> {
    // Version, traffic class and flow label share the first four bytes.
    let first =
        |class: u8, label: u32| (u32::from(class) << 20 | u32::from_be(label)).to_be_bytes();
    let packet = FlowMatch::any(FlowLayer::Ipv6)
        .with(
            0,
            &first(val.traffic_class, val.flow_label),
            &first(mask.traffic_class, mask.flow_label),
        )
        .with(6, &[val.next_hdr, val.hop_limit], &[mask.next_hdr, mask.hop_limit])
        .with(8, &val.src_ip, &mask.src_ip)
        .with(24, &val.dst_ip, &mask.dst_ip);
    vec![packet]
}
