//! The NICs of a server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::ensure;
use roce::device::Device;

use crate::device::{self, Spec};

/// Maximum number of NICs at once, where each address has its own.
const NICS_MAX: usize = 16;

/// The one NIC that was named, or one for each address that clients connect to, while there are such clients.
pub(super) struct Nics {
    named: Option<Arc<dyn Device>>,
    by_address: Mutex<BTreeMap<IpAddr, Weak<dyn Device>>>,
}

impl Nics {
    pub(super) fn new(spec: Option<&Spec>) -> anyhow::Result<Self> {
        let named = spec.map(device::start).transpose()?;
        Ok(Self { named, by_address: Mutex::default() })
    }

    /// One NIC, which is there already.
    pub(super) fn of(nic: Arc<dyn Device>) -> Self {
        Self { named: Some(nic), by_address: Mutex::default() }
    }

    /// The NIC that was named.
    pub(super) fn named(&self) -> Option<&dyn Device> {
        self.named.as_deref()
    }

    /// What they are called together.
    pub(super) fn name(&self) -> &str {
        self.named().map_or("the address that clients connect to", Device::name)
    }

    /// Returns the NIC for a client that connected to an address.
    pub(super) fn get(&self, address: IpAddr) -> anyhow::Result<Arc<dyn Device>> {
        if let Some(named) = &self.named {
            return Ok(Arc::clone(named));
        }
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        by_address.retain(|_, nic| nic.strong_count() > 0);
        if let Some(nic) = by_address.get(&address).and_then(Weak::upgrade) {
            return Ok(nic);
        }
        ensure!(by_address.len() < NICS_MAX, "{NICS_MAX} addresses are in use: try again later");
        let nic = device::start_at(address, None)?;
        by_address.insert(address, Arc::downgrade(&nic));
        Ok(nic)
    }
}
