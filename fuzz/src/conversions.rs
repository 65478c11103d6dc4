//! Structures of C, as programs fill them in: any contents convert to types of the crate, and those
//! converted to C again mean the same.
#![allow(
    unsafe_code,
    reason = "structures of C are made of arbitrary bytes, and point to something"
)]

use std::mem::MaybeUninit;
use std::ptr;

use roce::ibverbs::{
    convert, ibv_ah, ibv_ah_attr, ibv_device_attr, ibv_mr, ibv_mw, ibv_port_attr, ibv_qp_attr,
    ibv_qp_cap, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq_attr, ibv_wc,
};
use roce::verbs::{AttrMask, Data, QpCap, QpType, SendOp, SrqAttr, Target};

/// Types that any bytes are a value of: numbers, pointers that nothing follows, and unions of them.
///
/// # Safety
///
/// Any bytes must be a value of the type.
unsafe trait AnyBytes: Copy {}
// SAFETY: numbers, pointers and unions of them.
unsafe impl AnyBytes for ibv_ah_attr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_device_attr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_port_attr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_qp_attr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_qp_cap {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_recv_wr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_send_wr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_srq_attr {}
// SAFETY: as above.
unsafe impl AnyBytes for ibv_wc {}

/// A structure of these bytes, and of zeros behind them.
fn of<T: AnyBytes>(bytes: &[u8]) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: both have `len` bytes, and do not overlap.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), len) };
    // SAFETY: every byte is set, and any bytes are a value.
    unsafe { value.assume_init() }
}

/// Queue pairs of every kind.
const KINDS: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv, QpType::RawPacket];

/// A structure of C.
pub fn conversions(input: &[u8]) {
    let Some((&[kind, more], bytes)) = input.split_first_chunk() else { return };
    match kind % 9 {
        0 => send(bytes, more),
        1 => receive(bytes, more),
        2 => completion(bytes),
        3 => attributes(bytes),
        4 => {
            let Some(attr) = of::<ibv_ah_attr>(bytes).to_ah_attr() else { return };
            assert_eq!(ibv_ah_attr::from(attr).to_ah_attr(), Some(attr));
        }
        5 => {
            let attr = of::<ibv_device_attr>(bytes).to_device_attr();
            assert_eq!(ibv_device_attr::from(&attr).to_device_attr(), attr);
        }
        6 => {
            let Some(attr) = of::<ibv_port_attr>(bytes).to_port_attr() else { return };
            assert_eq!(ibv_port_attr::from(&attr).to_port_attr(), Some(attr));
        }
        7 => {
            let cap = QpCap::from(of::<ibv_qp_cap>(bytes));
            assert_eq!(QpCap::from(ibv_qp_cap::from(cap)), cap);
        }
        _ => {
            let attr = SrqAttr::from(of::<ibv_srq_attr>(bytes));
            assert_eq!(SrqAttr::from(ibv_srq_attr::from(attr)), attr);
        }
    }
}

/// Attributes of a queue pair: with whatever mask, and in all.
fn attributes(bytes: &[u8]) {
    let attr = of::<ibv_qp_attr>(bytes);
    let mask = bytes.first_chunk().map_or(0, |mask| u32::from_le_bytes(*mask));
    let _ = attr.to_qp_attr(AttrMask::from_bits_truncate(mask));
    let Some(words) = attr.to_all() else { return };
    let again = ibv_qp_attr::from(&words).to_all().expect("what was said once can be said again");
    assert_eq!(again, words);
}

/// A completion.
fn completion(bytes: &[u8]) {
    let Some(wc) = of::<ibv_wc>(bytes).to_wc() else { return };
    assert_eq!(ibv_wc::from(wc).to_wc(), Some(wc));
}

fn list(bytes: &[u8]) -> Vec<ibv_sge> {
    let piece = |bytes: &[u8]| {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let addr = u64::from(number(0)) << 32 | u64::from(number(4));
        ibv_sge { addr, length: number(8), lkey: number(12) }
    };
    bytes.chunks_exact(16).take(40).map(piece).collect()
}

/// A receive, with a list whose length the program may get wrong below zero.
fn receive(bytes: &[u8], more: u8) {
    let mut wr = of::<ibv_recv_wr>(bytes);
    let sges = list(bytes);
    wr.sg_list = sges.as_ptr().cast_mut();
    wr.num_sge =
        if more & 1 == 0 { i32::try_from(sges.len()).expect("few") } else { wr.num_sge.min(0) };
    // SAFETY: the list is as long as it says, or says that it has nothing.
    let words = unsafe { wr.to_recv_wr() };
    assert_eq!(words.id.0, wr.wr_id);
    assert!(words.sges.is_empty() || words.sges.len() == sges.len());
}

/// A send, on a queue pair of some kind, with objects that are there or not.
fn send(bytes: &[u8], more: u8) {
    let mut wr = of::<ibv_send_wr>(bytes);
    let sges = list(bytes);
    wr.sg_list = sges.as_ptr().cast_mut();
    wr.num_sge = i32::try_from(sges.len()).expect("few");
    wr.opcode %= 20;
    let kind = KINDS[usize::from(more >> 2) % KINDS.len()];
    let (mut ah, mut mw, mut mr) = (ibv_ah::zeroed(), ibv_mw::zeroed(), ibv_mr::zeroed());
    (ah.handle, mw.rkey, mr.lkey) = (7, 0x700, 0x800);
    let there = more & 1 == 0;
    if matches!(kind, QpType::Ud) {
        wr.wr.ud.ah = if there { &raw mut ah } else { ptr::null_mut() };
    }
    wr.more.bind_mw.mw = if there { &raw mut mw } else { ptr::null_mut() };
    wr.more.bind_mw.bind_info.mr = if there { &raw mut mr } else { ptr::null_mut() };
    // SAFETY: the list is as long as it says, and what the operation needs is there or null.
    let Ok(words) = (unsafe { wr.to_send_wr(kind) }) else { return };
    let Data::Gather(pieces) = words.data else { panic!("a list is a list") };
    assert_eq!(pieces.len(), sges.len());
    assert!(!matches!(words.target, Target::Ud(_)) || kind == QpType::Ud);
    // The address and the remote memory of a request are one union: a datagram has none of the
    // latter.
    if matches!(words.target, Target::Ud(_)) && !matches!(words.op, SendOp::Send { .. }) {
        return;
    }
    let objects = convert::SendObjects { ah: &raw mut ah, mw: &raw mut mw, mr: &raw mut mr };
    let Some(again) = convert::send_wr(&words, &sges, objects) else { return };
    // SAFETY: the same list and objects.
    let again = unsafe { again.to_send_wr(kind) }.expect("what was said once can be said again");
    if !matches!(words.op, SendOp::BindMw { .. }) {
        assert_eq!((again.id, again.op, again.flags), (words.id, words.op, words.flags));
    }
}
