//! RDMA devices of the kernel: RNICs, and rxe.

use roce::device::Device as _;
use roce::rdma_nic::RdmaNic;
use roce::verbs::PortState;

use super::Finding;

const CHECK: &str = "RDMA device";

/// Soft NICs need none: devices that cannot be used are notes, not failures.
pub(super) fn check() -> Vec<Finding> {
    let devices = match RdmaNic::list() {
        Ok(devices) => devices,
        Err(error) => return vec![Finding::note(CHECK, format!("none can be used: {error}"))],
    };
    if devices.is_empty() {
        return vec![Finding::note(CHECK, "none; soft NICs need none")];
    }
    devices.into_iter().map(|device| one(&device.name)).collect()
}

fn one(name: &str) -> Finding {
    let state = RdmaNic::open(name).and_then(|nic| Ok(nic.query_port()?.state));
    match state {
        Ok(PortState::Active) => Finding::ok(CHECK, format!("{name} can be used: -d verbs:{name}")),
        Ok(state) => Finding::warning(
            CHECK,
            format!("the port of {name} is {}", state.name()),
            format!("plug in the cable, or `ip link set` the network interface of {name} up"),
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("{name} cannot be opened: {error}"),
            format!("let this user open /dev/infiniband/uverbs* of {name} (group rdma)"),
        ),
    }
}
