//! Behavior of an engine without memory: it refuses with an error, and continues when there is some
//! again.
//!
//! Only large allocations fail here. Small ones cannot fail in Rust; for the C library,
//! `tools/ibverbs` has a reserve of blocks of up to [`RESERVED`] bytes for them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::Ipv4Addr;

use roce::engine::{Config, Engine, MrAttr, QpCreate, SrqCreate};
use roce::memory::Buffer;
use roce::verbs::{
    Access, AttrMask, Errno, MwType, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    WrId,
};
use roce::wire::Gid;

/// The longest allocation that need not fail.
const RESERVED: usize = 8192;

/// The system's allocator, which has nothing large while a thread says so.
struct Scarce;

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

thread_local! {
    static IS_SCARCE: Cell<bool> = const { Cell::new(false) };
}

impl Scarce {
    fn refuses(layout: Layout) -> bool {
        layout.size() > RESERVED && IS_SCARCE.get()
    }
}

// SAFETY: every call goes to the system's allocator as it came, or is refused.
#[expect(unsafe_code, reason = "the trait is, and what it promises the system's allocator keeps")]
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) };
    }
}

/// Runs something while nothing large can be allocated.
fn scarcely<T>(run: impl FnOnce() -> T) -> T {
    IS_SCARCE.set(true);
    let result = run();
    IS_SCARCE.set(false);
    result
}

/// Creates objects of a kind until one is refused; then there is memory again, and one more is
/// created.
fn runs_out<T>(kind: &str, limit: usize, mut create: impl FnMut() -> Result<T, Errno>) {
    let count = scarcely(|| {
        let mut count = 0;
        loop {
            match create() {
                Ok(_) => count += 1,
                Err(error) => break (error == Errno::ENOMEM).then_some(count),
            }
        }
    });
    assert!(count.is_some_and(|count| count < limit), "{kind}: {count:?} of {limit}");
    assert!(create().is_ok(), "{kind}: nothing can be created any more");
}

#[test]
fn tables_that_cannot_grow_refuse_objects() {
    let mut config = Config::new(Gid::from(Ipv4Addr::new(192, 0, 2, 1)));
    config.limits.bytes = u64::MAX;
    let limits = config.limits;
    let mut engine = Engine::new(config, 1);
    let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(16).unwrap());
    let cap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        ..QpCap::ORDINARY
    };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
    let qp = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let srq = SrqCreate { max_wr: 1, max_sge: 1, limit: 0, xrc: None };
    let buffer = Buffer::new(64);
    let access = Access::LOCAL_WRITE;
    runs_out("pd", limits.pds, || engine.create_pd().map_err(|e| e.errno()));
    runs_out("cq", limits.cqs, || engine.create_cq(1).map_err(|e| e.errno()));
    runs_out("srq", limits.srqs, || engine.create_srq(pd, srq).map_err(|e| e.errno()));
    runs_out("qp", limits.qps, || engine.create_qp(pd, qp).map_err(|e| e.errno()));
    runs_out("mr", limits.keys, || {
        let attr = MrAttr { region: buffer.region(), base: 0, access };
        engine.register(pd, attr).map_err(|e| e.errno())
    });
    runs_out("mw", limits.keys, || engine.create_mw(pd, MwType::Type1).map_err(|e| e.errno()));
}

#[test]
fn rings_that_cannot_be_allocated_refuse_work_requests() {
    let mut engine = Engine::new(Config::new(Gid::from(Ipv4Addr::new(192, 0, 2, 1))), 1);
    let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(16).unwrap());
    assert!(scarcely(|| engine.create_cq(4096)).is_err());
    assert!(scarcely(|| engine.resize_cq(cq, 4096)).is_err());
    let cap = QpCap { max_send_wr: 4096, max_recv_wr: 4096, ..QpCap::ORDINARY };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    engine.create_qp(pd, create).unwrap();
    let qp = scarcely(|| engine.create_qp(pd, create)).unwrap();
    let attr = QpAttr { qp_state: QpState::Init, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    engine.modify_qp(qp, &attr, mask).unwrap();
    let recv = RecvWr { id: WrId(1), sges: &[] };
    assert_eq!(scarcely(|| engine.post_recv(qp, &recv)), Err(PostError::NoMemory));
    assert_eq!(engine.post_recv(qp, &recv), Ok(()));
}
