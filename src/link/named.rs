//! Soft NICs with the names that verbs programs know them by: `mlx5_0=soft:lo`.
//!
//! ```
//! use roce::link::NamedSpec;
//!
//! let list = NamedSpec::parse_list("mlx5_0=soft:lo, udp:192.0.2.1")?;
//! let names: Vec<String> = list.iter().enumerate().map(|(at, device)| device.name_at(at)).collect();
//! assert_eq!(names, ["mlx5_0", "roce1"]);
//! # Ok::<(), roce::link::NamedSpecError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{Spec, SpecError};

/// A soft NIC, and the name that it has in a list of verbs devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedSpec {
    /// The name that was asked for. Without one, a device is called `roce` and its position in the
    /// list.
    pub name: Option<String>,
    /// The soft NIC.
    pub spec: Spec,
}

/// Error in a text or a list of devices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NamedSpecError {
    /// The part behind the name is no soft NIC.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The part before `=` is no name.
    #[error(
        "'{0}' is no name for a device: a name consists of ASCII alphanumerics, '_', '-' and '.', begins with an alphanumeric, and has \
         at most {NAME_MAX} characters"
    )]
    Name(String),
    /// Two devices have one name.
    #[error("two devices are called {0}; give one another name with NAME=SPEC")]
    NameTwice(String),
    /// One soft NIC is there twice.
    #[error("{0} is there twice; an address belongs to one device")]
    AddressTwice(Spec),
    /// One interface is there twice without names.
    #[error("{0} is there twice; for two devices on one interface, name both: one={0} other={0}")]
    InterfaceTwice(Spec),
}

/// Maximum length of a device's name: `IBV_SYSFS_NAME_MAX` without the zero at its end.
const NAME_MAX: usize = 63;

impl NamedSpec {
    /// Reads a list, separated by spaces or commas, and checks it.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, NamedSpecError> {
        let words = text.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty());
        let list = words.map(str::parse).collect::<Result<Vec<Self>, _>>()?;
        Self::check_list(&list)?;
        Ok(list)
    }

    /// Checks that no two devices of a list have one name or one address.
    pub fn check_list(list: &[Self]) -> Result<(), NamedSpecError> {
        for (at, device) in list.iter().enumerate() {
            let name = device.name_at(at);
            for (before, other) in list.iter().enumerate().take(at) {
                if other.spec == device.spec {
                    if matches!(device.spec, Spec::Udp(_)) {
                        return Err(NamedSpecError::AddressTwice(device.spec.clone()));
                    }
                    if device.name.is_none() || other.name.is_none() {
                        return Err(NamedSpecError::InterfaceTwice(device.spec.clone()));
                    }
                }
                if other.name_at(before) == name {
                    return Err(NamedSpecError::NameTwice(name));
                }
            }
        }
        Ok(())
    }

    /// Returns the name that it has at this position of a list.
    pub fn name_at(&self, position: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("roce{position}"))
    }
}

impl From<Spec> for NamedSpec {
    fn from(spec: Spec) -> Self {
        Self { name: None, spec }
    }
}

impl FromStr for NamedSpec {
    type Err = NamedSpecError;

    fn from_str(text: &str) -> Result<Self, NamedSpecError> {
        // An interface may have a '=' in its name: then a ':' is before it.
        match text.split_once('=').filter(|(name, _)| !name.contains(':')) {
            Some((name, _)) if !is_name(name) => Err(NamedSpecError::Name(name.to_owned())),
            Some((name, spec)) => Ok(Self { name: Some(name.to_owned()), spec: spec.parse()? }),
            None => Ok(Self { name: None, spec: text.parse()? }),
        }
    }
}

impl fmt::Display for NamedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        self.spec.fmt(f)
    }
}

/// Whether it can be the name of a device, and of its directory in sysfs.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.len() <= NAME_MAX
        && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed() {
        for text in ["mlx5_0=soft:lo", "a=udp:::1", "soft:a=b", "x.1-2=raw:eth0"] {
            assert_eq!(text.parse::<NamedSpec>().unwrap().to_string(), text);
        }
        assert_eq!("soft:a=b".parse::<NamedSpec>().unwrap().name, None);
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        let long = "x".repeat(NAME_MAX + 1);
        for name in ["", ".", "..", "a/b", "../x", "%d", "-x", "ä", "a b", &long] {
            let error = format!("{name}=soft:lo").parse::<NamedSpec>().unwrap_err();
            assert_eq!(error, NamedSpecError::Name(name.to_owned()));
        }
        assert!(matches!("a=lo".parse::<NamedSpec>(), Err(NamedSpecError::Spec(_))));
    }

    #[test]
    fn duplicate_devices_are_refused() {
        let refused = |text| NamedSpec::parse_list(text).unwrap_err().to_string();
        assert!(refused("udp:127.0.0.1 udp:127.0.0.1").contains("udp:127.0.0.1 is there twice"));
        assert!(refused("a=udp:::1,b=udp:[::1]").contains("udp:::1 is there twice"));
        assert!(refused("soft:lo soft:lo").contains("one=soft:lo other=soft:lo"));
        assert!(refused("a=soft:lo soft:lo").contains("name both"));
        assert!(refused("a=soft:lo a=soft:eth0").contains("two devices are called a"));
        // By its position the second is called roce1.
        assert!(refused("roce1=soft:lo soft:eth0").contains("two devices are called roce1"));
        assert_eq!(NamedSpec::parse_list("a=soft:lo b=soft:lo udp:::1 raw:lo").unwrap().len(), 4);
        assert_eq!(NamedSpec::parse_list(" ,\n").unwrap(), []);
    }
}
