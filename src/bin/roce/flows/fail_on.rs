//! `--fail-on KIND`: findings that make the exit status 1.

use std::str::FromStr;

use roce::analysis::{FindingKind, Report};

/// Name that stands for all kinds.
const ANY: &str = "any";

/// A kind of findings that makes the exit status 1; `None` stands for all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailOn(Option<FindingKind>);

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ANY {
            return Ok(Self(None));
        }
        // Names are those of JSON; dashes may stand for underscores.
        let name = text.replace('-', "_");
        let found = FindingKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.map(|kind| Self(Some(kind))).ok_or_else(|| {
            let names: Vec<_> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no kind of findings is called '{text}'; there are {ANY}, {}", names.join(", "))
        })
    }
}

/// Whether a report has findings that make the exit status 1: those of `kinds`, or any if that is
/// empty.
pub(super) fn fails(kinds: &[FailOn], report: &Report) -> bool {
    let is_met = |kind: &FailOn| match kind.0 {
        Some(kind) => report.has_finding(kind),
        None => !report.findings.is_empty(),
    };
    if kinds.is_empty() { is_met(&FailOn(None)) } else { kinds.iter().any(is_met) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_in_json() {
        assert_eq!("any".parse(), Ok(FailOn(None)));
        for kind in FindingKind::ALL {
            assert_eq!(kind.name().parse(), Ok(FailOn(Some(kind))));
        }
        assert_eq!("retry-limit".parse(), Ok(FailOn(Some(FindingKind::RetryLimit))));
        let error = "losses".parse::<FailOn>().unwrap_err();
        assert!(error.contains("any, retry_limit") && error.contains("loss,"), "{error}");
    }
}
