//! What `-d` names: the soft NIC to use.

use std::sync::Arc;

use anyhow::Context;
pub(crate) use roce::link::Spec;
use roce::nic::SoftNic;
use roce::verbs::Device;

/// Starts a device.
pub(crate) fn start(spec: &Spec) -> anyhow::Result<Arc<dyn Device>> {
    let link = spec.open(None).with_context(|| format!("-d {spec}"))?;
    let nic = SoftNic::start(link).with_context(|| format!("cannot start a NIC on {spec}"))?;
    Ok(Arc::new(nic))
}
