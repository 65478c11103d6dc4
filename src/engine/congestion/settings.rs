//! Options of congestion control, as commands and environments have them.

use core::time::Duration;

use super::super::config::{CnpScope, Config, Ect};
use super::text::ParseCongestionError;
use super::{Congestion, parse_rate};

/// Options of congestion control as text, by their names in the command: `cc`, `cc-profile`,
/// `line-rate`, `ecn`, `cnp`. In an environment these are `ROCE_CC`, `ROCE_CC_PROFILE`,
/// `ROCE_LINE_RATE`, `ROCE_ECN` and `ROCE_CNP`.
///
/// ```
/// use roce::engine::Config;
/// use roce::engine::congestion::Settings;
/// use roce::wire::Gid;
///
/// let text = |name: &str| match name {
///     "cc" => Some("dcqcn".to_owned()),
///     "line-rate" => Some("10G".to_owned()),
///     "cnp" => Some("scope=peer,interval=20us".to_owned()),
///     _ => None,
/// };
/// let mut config = Config::new(Gid::default());
/// Settings::read(text)?.apply(&mut config);
/// assert_eq!(config.line_rate, Some(10_000_000_000));
/// assert!(config.congestion.is_on());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Settings {
    congestion: Option<Congestion>,
    line_rate: Option<u64>,
    ect: Option<Ect>,
    scope: Option<CnpScope>,
    interval: Option<Duration>,
    dscp: Option<u8>,
    priority: Option<u8>,
}

fn wrong(what: impl Into<String>) -> ParseCongestionError {
    ParseCongestionError(what.into())
}

impl Settings {
    /// Names of the options.
    pub const NAMES: [&'static str; 5] = ["cc", "cc-profile", "line-rate", "ecn", "cnp"];

    /// Returns the name that an option has in an environment.
    ///
    /// ```
    /// # use roce::engine::congestion::Settings;
    /// assert_eq!(Settings::variable("cc-profile"), "ROCE_CC_PROFILE");
    /// ```
    pub fn variable(name: &str) -> String {
        format!("ROCE_{}", name.to_uppercase().replace('-', "_"))
    }

    /// Reads the options that `text` returns by their names. An error begins with the name.
    pub fn read(text: impl Fn(&str) -> Option<String>) -> Result<Self, ParseCongestionError> {
        let mut settings = Self::default();
        let named = |name| move |error| wrong(format!("{name}: {error}"));
        let profile = text("cc-profile").map(|text| text.parse()).transpose();
        let profile = profile.map_err(named("cc-profile"))?.unwrap_or_default();
        if let Some(text) = text("cc") {
            let congestion = Congestion::parse(&text, profile).map_err(named("cc"))?;
            settings.congestion = Some(congestion);
        }
        let line_rate = text("line-rate").map(|text| parse_rate(&text)).transpose();
        settings.line_rate = line_rate.map_err(named("line-rate"))?;
        settings.ect = match text("ecn").as_deref() {
            None => None,
            Some("ect0") => Some(Ect::Always),
            Some("off") => Some(Ect::Never),
            Some(other) => return Err(wrong(format!("ecn: ect0 or off, and not {other:?}"))),
        };
        settings.read_cnp(&text("cnp").unwrap_or_default())?;
        Ok(settings)
    }

    fn read_cnp(&mut self, text: &str) -> Result<(), ParseCongestionError> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let below = |end: u8| value.parse().ok().filter(|number| *number < end);
            let is_known = match name {
                "scope" => {
                    self.scope = match value {
                        "qp" => Some(CnpScope::Qp),
                        "peer" => Some(CnpScope::Peer),
                        "port" => Some(CnpScope::Port),
                        _ => None,
                    };
                    self.scope.is_some()
                }
                "interval" => {
                    self.interval = parse_interval(value);
                    self.interval.is_some()
                }
                "dscp" => {
                    self.dscp = below(64);
                    self.dscp.is_some()
                }
                "priority" => {
                    self.priority = below(8);
                    self.priority.is_some()
                }
                _ => false,
            };
            if !is_known {
                return Err(wrong(format!(
                    "cnp: {pair:?} is none of scope=qp, scope=peer, scope=port, interval=50us, \
                     dscp=48 and priority=6"
                )));
            }
        }
        Ok(())
    }

    /// Sets what the options say; what they do not say stays.
    pub fn apply(&self, config: &mut Config) {
        if let Some(congestion) = &self.congestion {
            config.congestion = congestion.clone();
        }
        config.line_rate = self.line_rate.or(config.line_rate);
        config.ect = self.ect.unwrap_or(config.ect);
        config.cnp_scope = self.scope.unwrap_or(config.cnp_scope);
        config.cnp_interval = self.interval.unwrap_or(config.cnp_interval);
        config.cnp_dscp = self.dscp.unwrap_or(config.cnp_dscp);
        config.cnp_priority = self.priority.unwrap_or(config.cnp_priority);
    }
}

/// Reads a time such as `50us`, `4000ns` or `1ms`.
fn parse_interval(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u32 = text.get(..at)?.parse().ok()?;
    let unit = match text.get(at..)? {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        _ => return None,
    };
    Some(Duration::from_nanos(u64::from(number) * unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Gid;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ParseCongestionError> {
        let find = |name: &str| pairs.iter().find(|(known, _)| *known == name);
        let settings = Settings::read(|name| find(name).map(|(_, text)| (*text).to_owned()))?;
        let mut config = Config::new(Gid::default());
        settings.apply(&mut config);
        Ok(config)
    }

    #[test]
    fn options_are_read() {
        let config = read(&[
            ("cc", "dcqcn:rp_gd=10"),
            ("cc-profile", "nvidia"),
            ("line-rate", "1G"),
            ("ecn", "off"),
            ("cnp", "scope=port,interval=4us,dscp=46,priority=5"),
        ])
        .unwrap();
        assert!(matches!(config.congestion, Congestion::Nvidia(with) if with.rp_gd == 10));
        assert_eq!((config.line_rate, config.ect), (Some(1_000_000_000), Ect::Never));
        assert_eq!((config.cnp_scope, config.cnp_dscp), (CnpScope::Port, 46));
        assert_eq!((config.cnp_interval, config.cnp_priority), (Duration::from_micros(4), 5));
        assert!(!read(&[]).unwrap().congestion.is_on());
    }

    #[test]
    fn wrong_options_are_refused() {
        for (name, text) in [
            ("cc", "fast"),
            ("cc-profile", "intel"),
            ("line-rate", "quick"),
            ("ecn", "ect1"),
            ("cnp", "scope=host"),
            ("cnp", "interval=50"),
            ("cnp", "interval=5s"),
            ("cnp", "dscp=64"),
            ("cnp", "priority=8"),
            ("cnp", "color=red"),
        ] {
            let error = read(&[(name, text)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{name} {text}: {error}");
        }
    }
}
