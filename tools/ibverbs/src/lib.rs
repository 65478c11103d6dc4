//! `libibverbs.so.1` over soft NICs: a verbs program that was built for RDMA hardware runs on it
//! unchanged, without hardware, kernel module or privilege.
//!
//! `tools/ibverbs/install` makes the shared library. Which devices there are says the environment
//! (`env`); each is a [`SoftNic`](roce::nic::SoftNic), which is started when it is first opened and
//! shared by all who open it.
//!
//! What a program holds a pointer to is an object of this library whose first field is the
//! structure that C knows: `object` says how one becomes the other. Every function that C calls
//! goes through `call`, so that nothing unwinds into C, and every failure becomes an error number
//! there.
//!
//! | file | holds |
//! |---|---|
//! | `call`, `object`, `registry` | how C calls, what it holds, and whether it holds it |
//! | `env`, `device`, `context` | which devices there are, open ones, their tables of functions |
//! | `query` | what devices and ports say of themselves |
//! | `fork` | what is refused to children |
//! | `reserve` | memory for small allocations when the system has none |
//! | `events` | queues with descriptors, and where the events of a NIC go |
//! | `share` | what several contexts of a program share |
//! | `pd`, `mr`, `dm`, `mw`, `xrc` | protection domains, memory, the device's own, windows, XRC domains |
//! | `channel`, `cq`, `cq_ex` | completions |
//! | `srq`, `qp`, `post`, `wr_ex` | queues and what is posted to them |
//! | `flow`, `wq` | rules that steer raw packets, and queues that they are spread over |
//! | `ah` | address handles and multicast |
//! | `behind`, `fd_set`, `signals` | functions in front of the C library's; signal handlers of programs, behind that of registered memory |
//! | `netlink` | the answers of `NETLINK_RDMA`, by which `rdma link` lists devices |
//! | `ucm` | `/dev/infiniband/rdma_cm`, the device of librdmacm |
//! | `sysfs`, `strings`, `rate` | what programs read of devices as text; names of numbers |
//! | `kern` | structures of the kernel, for `librdmacm` |
//! | `unsupported`, `private`, `compat` | what soft NICs do not do, what drivers want, what old programs want |
#![allow(
    unsafe_code,
    reason = "C calls, and hands over pointers: each use says why it may be believed"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "of each function the manual of libibverbs says what it wants"
)]

mod ah;
mod behind;
mod call;
mod captures;
mod channel;
mod compat;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod env;
mod events;
mod fd_set;
mod flow;
mod fork;
mod kern;
mod mr;
mod mw;
mod netlink;
mod object;
mod pd;
mod post;
mod private;
mod qp;
mod query;
mod rate;
mod registry;
mod reserve;
mod share;
mod signals;
mod srq;
mod strings;
mod sysfs;
mod ucm;
mod unsupported;
mod wq;
mod wr_ex;
mod xrc;

/// Function that runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        signals::resolve();
        ucm::resolve();
        netlink::resolve();
        fork::watch();
    }
    at_load
};
