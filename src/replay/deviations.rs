//! Deviations that are known of devices: the tables of `conform`, by the addresses of the devices.

use super::verdict::Difference;
use crate::conform::deviation::{Table, TableError};
use crate::wire::Gid;

/// Devices by address, as far as the user says.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    all: Option<Table>,
    by_address: Vec<(Gid, Table)>,
}

impl Profiles {
    /// Every device is one of this kind, unless another is named for its address.
    pub fn set_all(&mut self, device: &str) -> Result<(), ProfileError> {
        self.all = Some(table(device)?);
        Ok(())
    }

    /// The device at this address is one of this kind.
    pub fn set(&mut self, address: Gid, device: &str) -> Result<(), ProfileError> {
        self.by_address.push((address, table(device)?));
        Ok(())
    }

    /// Returns why a difference of the device at this address is known, if it is.
    pub fn explain(&self, address: Gid, difference: &Difference) -> Option<&str> {
        let named = self.by_address.iter().rev().find(|(known, _)| *known == address);
        let table = named.map(|(_, table)| table).or(self.all.as_ref())?;
        table.explain_replay(difference.rule.id, &difference.found)
    }
}

/// Error: a device has no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Unknown name.
    #[error("no table of known deviations for {name:?}; there are: {known}", name = .0, known = Table::devices().join(", "))]
    Unknown(String),
    /// One cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

fn table(device: &str) -> Result<Table, ProfileError> {
    Table::named(device)?.ok_or_else(|| ProfileError::Unknown(device.to_owned()))
}
