//! Known deviations of a device from the specification, with their reasons.
//!
//! ```toml
//! device = "rxe"                       # what this is a table of
//! names  = ["verbs:rxe*"]              # devices whose differences it explains
//!
//! [[deviation]]
//! scenario = "window/bounds*"          # which scenarios show it; `*` stands for anything
//! plays    = "responder"               # as whom the device shows it
//! subject  = "completion"              # what differs; anything if nothing is said
//! found    = "*success*"               # what is found instead, or a list of it; anything if nothing is said
//! reason   = "The bounds of a window are not looked at."
//! ```

use serde::Deserialize;
use thiserror::Error;

use super::diff::{Difference, Subject};
use super::{Side, fits};

/// The tables that come with the crate.
const BUILT_IN: &[(&str, &str)] = &[
    ("rxe.toml", include_str!("deviations/rxe.toml")),
    ("rawcm.toml", include_str!("deviations/rawcm.toml")),
];

/// Error in a table of deviations.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {text}")]
pub struct TableError {
    file: String,
    text: String,
}

/// Known deviations of a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Description of the device.
    pub device: String,
    /// Names of such devices.
    pub names: Vec<String>,
    /// Deviations that scenarios show.
    #[serde(default, rename = "deviation")]
    pub deviations: Vec<Deviation>,
    /// Differences that a replay of their captures finds.
    #[serde(default, rename = "replay")]
    pub replays: Vec<Replayed>,
}

/// A difference that a replay finds in captures of a device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replayed {
    /// The rule that it breaks: [`Rule::id`](crate::replay::Rule::id).
    pub rule: String,
    /// Patterns of the difference; any difference if there are none.
    pub found: Option<Found>,
    /// Reason of the deviation.
    pub reason: String,
}

/// A known deviation from the specification.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// Pattern of the scenarios that show it.
    pub scenario: String,
    /// Side that the device takes when it shows it.
    pub plays: Side,
    /// Subject of the difference.
    pub subject: Option<Subject>,
    /// Side of the difference; either if absent.
    pub side: Option<Side>,
    /// Patterns of the value that is found.
    pub found: Option<Found>,
    /// Reason of the deviation.
    pub reason: String,
}

/// One pattern or several for a value that is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Found {
    /// One pattern.
    This(String),
    /// One of these, which have one cause.
    OneOf(Vec<String>),
}

impl Found {
    fn fits(&self, found: &str) -> bool {
        match self {
            Self::This(pattern) => fits(pattern, found),
            Self::OneOf(patterns) => patterns.iter().any(|pattern| fits(pattern, found)),
        }
    }
}

impl Table {
    /// The table in a text.
    pub fn read(file: &str, text: &str) -> Result<Self, TableError> {
        let wrong =
            |error: toml::de::Error| TableError { file: file.to_owned(), text: error.to_string() };
        toml::from_str(text).map_err(wrong)
    }

    /// The table of this kind of device: `rxe`.
    pub fn named(device: &str) -> Result<Option<Self>, TableError> {
        for (file, text) in BUILT_IN {
            let table = Self::read(file, text)?;
            if table.device == device {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    /// The kinds of devices that there are tables of.
    pub fn devices() -> Vec<String> {
        let read = |(file, text): &(&str, &str)| Self::read(file, text).ok();
        BUILT_IN.iter().filter_map(read).map(|table| table.device).collect()
    }

    /// Returns the reason of a known difference that a replay finds.
    pub fn explain_replay(&self, rule: &str, found: &str) -> Option<&str> {
        let explains = |it: &&Replayed| {
            it.rule == rule && it.found.as_ref().is_none_or(|pattern| pattern.fits(found))
        };
        self.replays.iter().find(explains).map(|it| it.reason.as_str())
    }

    /// The table of a device that goes by this name, if there is one.
    pub fn of(device: &str) -> Result<Option<Self>, TableError> {
        for (file, text) in BUILT_IN {
            let table = Self::read(file, text)?;
            if table.names.iter().any(|name| fits(name, device)) {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }
}

impl Deviation {
    /// Whether this scenario shows it when the device plays this side.
    pub fn applies(&self, scenario: &str, plays: Side) -> bool {
        self.plays == plays && fits(&self.scenario, scenario)
    }

    /// Whether it explains a difference.
    pub fn explains(&self, difference: &Difference) -> bool {
        self.subject.is_none_or(|subject| subject == difference.subject)
            && self.side.is_none_or(|side| side == difference.side)
            && self.found.as_ref().is_none_or(|found| found.fits(&difference.found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::scenario;

    #[test]
    fn every_table_names_scenarios_that_there_are() {
        let all = scenario::built_in().unwrap();
        for (file, text) in BUILT_IN {
            let table = Table::read(file, text).unwrap();
            let is_empty = table.deviations.is_empty() && table.replays.is_empty();
            assert!(!table.names.is_empty() && !is_empty, "{file}");
            for entry in &table.deviations {
                assert!(all.iter().any(|it| fits(&entry.scenario, &it.name)), "{}", entry.scenario);
                assert!(entry.reason.ends_with('.'), "{}", entry.reason);
            }
        }
        assert!(Table::of("verbs:rxe0").unwrap().is_some_and(|table| table.device == "rxe"));
        assert!(Table::of("udp:127.0.0.1").unwrap().is_none());
    }

    #[test]
    fn an_entry_explains_what_it_names_and_nothing_else() {
        let text = "device = 'x'\nnames = ['x']\n[[deviation]]\nscenario = 'a/*'\nplays = 'responder'\n\
                    subject = 'completion'\nside = 'requester'\nfound = '*success*'\nreason = 'So.'";
        let table = Table::read("x.toml", text).unwrap();
        let entry = &table.deviations[0];
        assert!(entry.applies("a/b", Side::Responder) && !entry.applies("a/b", Side::Requester));
        assert!(!entry.applies("b", Side::Responder));
        let found = Difference::new(Side::Requester, Subject::Completion, "x", "send 1: success");
        assert!(entry.explains(&found));
        assert!(!entry.explains(&Difference { side: Side::Responder, ..found.clone() }));
        assert!(!entry.explains(&Difference { subject: Subject::Packet, ..found.clone() }));
        assert!(!entry.explains(&Difference { found: "failed".to_owned(), ..found.clone() }));
        let several = text.replace("'*success*'", "['none', '*success*']");
        let table = Table::read("x.toml", &several).unwrap();
        assert!(table.deviations[0].explains(&found));
        assert!(!table.deviations[0].explains(&Difference { found: "some".to_owned(), ..found }));
    }
}
