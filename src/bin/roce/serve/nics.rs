//! The NICs of a server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, ensure};
use roce::connect::ConnectionManager;
use roce::device::Device;

use crate::bench::ReachArgs;
use crate::device::{self, SoftNicArgs};

/// Maximum number of NICs at once, where each address has its own.
const NICS_MAX: usize = 16;

/// A NIC that clients are served with.
pub(super) struct Served {
    pub(super) nic: Arc<dyn Device>,
    /// Connection manager, if clients may use it.
    pub(super) manager: Option<ConnectionManager>,
}

impl Served {
    fn new(nic: Arc<dyn Device>, has_manager: bool) -> anyhow::Result<Arc<Self>> {
        let start = || ConnectionManager::start(Arc::clone(&nic));
        let manager = has_manager.then(start).transpose();
        let manager =
            manager.with_context(|| format!("-R: {} has no connection manager", nic.name()))?;
        Ok(Arc::new(Self { nic, manager }))
    }
}

/// The one NIC that was named, or one for each address that clients connect to, while there are
/// such clients.
pub(super) struct Nics {
    named: Option<Arc<Served>>,
    by_address: Mutex<BTreeMap<IpAddr, Weak<Served>>>,
    have_managers: bool,
    soft: SoftNicArgs,
}

impl Nics {
    pub(super) fn new(reach: &ReachArgs, have_managers: bool) -> anyhow::Result<Self> {
        let soft = reach.soft.clone();
        // Without a named NIC the options are used only when a client comes.
        soft.congestion.settings()?;
        let serve = |spec| Served::new(device::start(spec, &soft)?, have_managers);
        let named = reach.device.as_ref().map(serve).transpose()?;
        Ok(Self { named, by_address: Mutex::default(), have_managers, soft })
    }

    /// Creates a set of one NIC.
    pub(super) fn of(nic: Arc<dyn Device>) -> Self {
        let named = Some(Arc::new(Served { nic, manager: None }));
        let soft = SoftNicArgs::default();
        Self { named, by_address: Mutex::default(), have_managers: false, soft }
    }

    /// Returns the NIC that was named.
    pub(super) fn named(&self) -> Option<&dyn Device> {
        self.named.as_ref().map(|served| &*served.nic)
    }

    /// Returns the name of all NICs together.
    pub(super) fn name(&self) -> &str {
        self.named().map_or("the address that clients connect to", Device::name)
    }

    /// Whether the NICs have connection managers.
    pub(super) fn have_managers(&self) -> bool {
        self.have_managers
    }

    /// Returns the NIC for a client that connected to an address.
    pub(super) fn get(&self, address: IpAddr) -> anyhow::Result<Arc<Served>> {
        if let Some(named) = &self.named {
            return Ok(Arc::clone(named));
        }
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        by_address.retain(|_, nic| nic.strong_count() > 0);
        if let Some(nic) = by_address.get(&address).and_then(Weak::upgrade) {
            return Ok(nic);
        }
        ensure!(by_address.len() < NICS_MAX, "{NICS_MAX} addresses are in use: try again later");
        let served = Served::new(device::start_at(address, &self.soft)?, self.have_managers)?;
        by_address.insert(address, Arc::downgrade(&served));
        Ok(served)
    }
}
