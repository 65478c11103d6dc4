//! The argument `--threshold NAME=VALUE`: names, units and bounds of the thresholds of findings.

use std::str::FromStr;

use roce::analysis::Thresholds;

/// A threshold that the user sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    value: f64,
    apply: fn(&mut Thresholds, f64),
}

/// Unit of a value.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A time span with its unit: `10ms`.
    Duration,
    Number,
}

/// Sets a threshold to a value.
type Set = fn(&mut Thresholds, f64);

/// Name, kind and effect of each threshold.
const THRESHOLDS: &[(&str, Kind, Set)] = &[
    ("stall", Kind::Duration, |thresholds, nanos| thresholds.stall_nanos = as_nanos(nanos)),
    ("loss-share", Kind::Number, |thresholds, share| thresholds.loss_share = share),
    ("cnps-per-1000-marks", Kind::Number, |thresholds, cnps| thresholds.cnps_per_1000_marks = cnps),
    ("delay", Kind::Duration, |thresholds, nanos| thresholds.delay_nanos = as_nanos(nanos)),
];

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest integer there is"
)]
fn as_nanos(nanos: f64) -> u64 {
    nanos as u64
}

impl Threshold {
    pub(super) fn apply(&self, thresholds: &mut Thresholds) {
        (self.apply)(thresholds, self.value);
    }
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, as in stall=10ms")?;
        let found = THRESHOLDS.iter().find(|(known, ..)| *known == name);
        let &(name, kind, apply) = found.ok_or_else(|| {
            let names: Vec<_> = THRESHOLDS.iter().map(|(name, ..)| *name).collect();
            format!("no threshold is called '{name}'; there are {}", names.join(", "))
        })?;
        let (number, scale) = match kind {
            Kind::Duration => split_unit(value).ok_or_else(|| {
                format!("'{value}' has no unit of time; write {name}=10ms (ns, us, ms or s)")
            })?,
            Kind::Number => (value, 1.0),
        };
        let number: f64 = number.trim().parse().map_err(|_| format!("'{value}' is no number"))?;
        if !number.is_finite() || number < 0.0 {
            return Err(format!("'{value}' must not be negative"));
        }
        Ok(Self { value: number * scale, apply })
    }
}

/// A number and how many nanoseconds its unit is.
fn split_unit(value: &str) -> Option<(&str, f64)> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    units.iter().find_map(|(unit, scale)| Some((value.strip_suffix(unit)?, *scale)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_set_by_name() {
        let mut thresholds = Thresholds::default();
        for text in ["stall=2.5ms", "loss-share=0.01", "cnps-per-1000-marks=20"] {
            text.parse::<Threshold>().unwrap().apply(&mut thresholds);
        }
        assert_eq!(thresholds.stall_nanos, 2_500_000);
        assert_eq!((thresholds.loss_share, thresholds.cnps_per_1000_marks), (0.01, 20.0));
    }

    #[test]
    fn wrong_thresholds_say_what_is_wrong() {
        let error = |text: &str| text.parse::<Threshold>().unwrap_err();
        assert!(error("stall").contains("NAME=VALUE"));
        assert!(error("stal=3").contains("there are stall, loss-share"));
        assert!(error("stall=10").contains("stall=10ms"));
        assert!(error("loss-share=-1").contains("negative"));
        assert!(error("loss-share=many").contains("no number"));
    }
}
