//! Congestion control as text: a name, and parameters by the names that `mlx5` has.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{Congestion, Dcqcn, Hpcc, Nvidia, Swift, Timely};

/// Which rules and parameters `dcqcn` stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As in its paper.
    #[default]
    Paper,
    /// As NVIDIA documents it.
    Nvidia,
}

impl FromStr for Profile {
    type Err = ParseCongestionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "paper" => Ok(Self::Paper),
            "nvidia" => Ok(Self::Nvidia),
            _ => Err(ParseCongestionError(format!(
                "no profile is called {text:?}; there are paper and nvidia"
            ))),
        }
    }
}

/// Error of a text that names no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseCongestionError(pub(super) String);

/// A parameter that a text can set, with its unit.
enum Field<'a> {
    Number(&'a mut u32),
    /// 1024ths that are missing to one.
    Complement(&'a mut u32),
    Flag(&'a mut bool),
    Micros(&'a mut Duration),
    /// Mb/s.
    Mega(&'a mut Option<u64>),
    /// Units of 64 bytes.
    Blocks(&'a mut u64),
}

impl Field<'_> {
    /// Sets the parameter; returns whether the value is one of its unit.
    fn set(self, value: &str) -> bool {
        let Ok(number) = value.parse::<u32>() else { return false };
        match self {
            Self::Number(field) => *field = number,
            Self::Complement(field) => *field = 1024_u32.saturating_sub(number),
            Self::Flag(field) if number < 2 => *field = number == 1,
            Self::Flag(_) => return false,
            Self::Micros(field) => *field = Duration::from_micros(number.into()),
            Self::Mega(field) => *field = Some(u64::from(number) * 1_000_000),
            Self::Blocks(field) => *field = u64::from(number) * 64,
        }
        true
    }
}

/// Parameters with names.
trait Parameters {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)>;

    /// Sets the parameters of a text `name=value,name=value`.
    fn set_all(&mut self, text: &str) -> Result<(), ParseCongestionError> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let mut fields = self.fields();
            let Some(at) = fields.iter().position(|(field, _)| *field == name) else {
                let known: Vec<&str> = fields.iter().map(|(field, _)| *field).collect();
                let known = known.join(", ");
                return Err(ParseCongestionError(format!(
                    "no parameter is called {name:?}; there are {known}"
                )));
            };
            if !fields.swap_remove(at).1.set(value) {
                return Err(ParseCongestionError(format!(
                    "{name}: {value:?} is not a number, or out of range"
                )));
            }
        }
        Ok(())
    }
}

impl Parameters for Dcqcn {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("rp_dce_tcp_g", Field::Complement(&mut self.g)),
            ("rp_dce_tcp_rtt", Field::Micros(&mut self.alpha_period)),
            ("rp_initial_alpha_value", Field::Number(&mut self.initial_alpha)),
            ("rp_time_reset", Field::Micros(&mut self.time_reset)),
            ("rp_byte_reset", Field::Blocks(&mut self.byte_reset)),
            ("rp_threshold", Field::Number(&mut self.threshold)),
            ("rp_ai_rate", Field::Mega(&mut self.ai_rate)),
            ("rp_hai_rate", Field::Mega(&mut self.hai_rate)),
            ("rp_min_rate", Field::Mega(&mut self.min_rate)),
        ]
    }
}

impl Parameters for Nvidia {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        let rate_to_set = &mut self.rp_rate_to_set_on_first_cnp;
        vec![
            ("rp_clamp_tgt_rate", Field::Flag(&mut self.rp_clamp_tgt_rate)),
            ("rp_clamp_tgt_rate_ati", Field::Flag(&mut self.rp_clamp_tgt_rate_ati)),
            ("rp_time_reset", Field::Number(&mut self.rp_time_reset)),
            ("rp_byte_reset", Field::Number(&mut self.rp_byte_reset)),
            ("rp_threshold", Field::Number(&mut self.rp_threshold)),
            ("rp_ai_rate", Field::Number(&mut self.rp_ai_rate)),
            ("rp_hai_rate", Field::Number(&mut self.rp_hai_rate)),
            ("rp_min_dec_fac", Field::Number(&mut self.rp_min_dec_fac)),
            ("rp_min_rate", Field::Number(&mut self.rp_min_rate)),
            ("rp_rate_to_set_on_first_cnp", Field::Number(rate_to_set)),
            ("rp_dce_tcp_g", Field::Number(&mut self.rp_dce_tcp_g)),
            ("rp_dce_tcp_rtt", Field::Number(&mut self.rp_dce_tcp_rtt)),
            (
                "rp_rate_reduce_monitor_period",
                Field::Number(&mut self.rp_rate_reduce_monitor_period),
            ),
            ("rp_initial_alpha_value", Field::Number(&mut self.rp_initial_alpha_value)),
            ("rp_gd", Field::Number(&mut self.rp_gd)),
        ]
    }
}

impl Parameters for Timely {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("low", Field::Micros(&mut self.low)),
            ("high", Field::Micros(&mut self.high)),
            ("min_rtt", Field::Micros(&mut self.min_rtt)),
            ("initial_rate", Field::Mega(&mut self.initial_rate)),
            ("ai_rate", Field::Mega(&mut self.ai_rate)),
            ("weight", Field::Number(&mut self.weight)),
            ("beta", Field::Number(&mut self.beta)),
            ("hyper_after", Field::Number(&mut self.hyper_after)),
            ("min_rate", Field::Mega(&mut self.min_rate)),
        ]
    }
}

impl Parameters for Swift {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("base", Field::Micros(&mut self.base)),
            ("hops", Field::Number(&mut self.hops)),
            ("hop", Field::Micros(&mut self.hop)),
            ("flow_range", Field::Micros(&mut self.flow_range)),
            ("min_window", Field::Number(&mut self.min_window)),
            ("max_window", Field::Number(&mut self.max_window)),
            ("ai", Field::Number(&mut self.ai)),
            ("beta", Field::Number(&mut self.beta)),
            ("max_decrease", Field::Number(&mut self.max_decrease)),
            ("retries", Field::Number(&mut self.retries)),
        ]
    }
}

impl Parameters for Hpcc {
    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("utilization", Field::Number(&mut self.utilization)),
            ("max_stage", Field::Number(&mut self.max_stage)),
            ("base_rtt", Field::Micros(&mut self.base_rtt)),
            ("ai_rate", Field::Mega(&mut self.ai_rate)),
            ("min_rate", Field::Mega(&mut self.min_rate)),
        ]
    }
}

/// Returns parameters with those of a text.
fn with<P: Parameters + Default>(text: &str) -> Result<P, ParseCongestionError> {
    let mut parameters = P::default();
    parameters.set_all(text)?;
    Ok(parameters)
}

impl Congestion {
    /// Reads `none`, `fixed:RATE`, or `dcqcn`, `timely`, `swift` or `hpcc` with parameters:
    /// `dcqcn:rp_time_reset=300,rp_ai_rate=5`.
    ///
    /// ```
    /// use roce::engine::congestion::{Congestion, Profile};
    ///
    /// let nvidia = Congestion::parse("dcqcn:rp_ai_rate=20", Profile::Nvidia)?;
    /// assert_eq!(nvidia.to_string(), "dcqcn of NVIDIA");
    /// assert_eq!("fixed:2.5G".parse::<Congestion>()?.to_string(), "fixed rate of 2500 Mb/s");
    /// let error = "dcqcn:rp_speed=1".parse::<Congestion>().unwrap_err();
    /// let start = "no parameter is called \"rp_speed\"; there are rp_dce_tcp_g, ";
    /// assert!(error.to_string().starts_with(start));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(text: &str, profile: Profile) -> Result<Self, ParseCongestionError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name {
            "none" if rest.is_empty() => Self::None,
            "fixed" => Self::Fixed(parse_rate(rest)?),
            "dcqcn" if profile == Profile::Nvidia => Self::Nvidia(with(rest)?),
            "dcqcn" => Self::Dcqcn(with(rest)?),
            "timely" => Self::Timely(with(rest)?),
            "swift" => Self::Swift(with(rest)?),
            "hpcc" => Self::Hpcc(with(rest)?),
            _ => {
                return Err(ParseCongestionError(format!(
                    "no congestion control is called {text:?}; there are none, dcqcn, timely, \
                     swift, hpcc and fixed:RATE"
                )));
            }
        })
    }
}

impl FromStr for Congestion {
    type Err = ParseCongestionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text, Profile::default())
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fixed(rate) => write!(f, "fixed rate of {} Mb/s", rate / 1_000_000),
            Self::Dcqcn(_) => f.write_str("dcqcn of the paper"),
            Self::Nvidia(_) => f.write_str("dcqcn of NVIDIA"),
            Self::Timely(_) => f.write_str("timely"),
            Self::Swift(_) => f.write_str("swift"),
            Self::Hpcc(_) => f.write_str("hpcc"),
            Self::Custom(_) => f.write_str("custom"),
        }
    }
}

/// Smallest rate that is read: a smaller one is a number whose unit was forgotten.
const RATE_MIN: u64 = 1_000_000;

/// Reads a rate in bit/s: a number, with `K`, `M`, `G` or `T` behind it, such as `25G` or `2.5G`;
/// at least 1 Mbit/s.
pub fn parse_rate(text: &str) -> Result<u64, ParseCongestionError> {
    let wrong =
        || ParseCongestionError(format!("{text:?} is not a rate in bit/s, such as 25G or 800M"));
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => (&text[..at], unit),
        _ => (text, ' '),
    };
    let unit: u64 = match unit.to_ascii_uppercase() {
        ' ' => 1,
        'K' => 1_000,
        'M' => 1_000_000,
        'G' => 1_000_000_000,
        'T' => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 9 {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    let rate = whole.checked_mul(unit).ok_or_else(wrong)?;
    let rate = rate.checked_add(super::scale(part, unit, 1_000_000_000)).ok_or_else(wrong)?;
    if rate < RATE_MIN {
        return Err(ParseCongestionError(format!(
            "{text:?} is {rate} bit/s, and the least is 1M: does it lack its unit, as in 10G?"
        )));
    }
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_their_units() {
        let text = "dcqcn:rp_dce_tcp_g=1020,rp_dce_tcp_rtt=60,rp_byte_reset=1000,rp_ai_rate=7";
        let Ok(Congestion::Dcqcn(with)) = text.parse() else { panic!("{text}") };
        let expected = Dcqcn {
            g: 4,
            alpha_period: Duration::from_micros(60),
            byte_reset: 64_000,
            ai_rate: Some(7_000_000),
            ..Dcqcn::default()
        };
        assert_eq!(with, expected);
        let text = "dcqcn:rp_clamp_tgt_rate=1,rp_gd=10";
        let Ok(Congestion::Nvidia(with)) = Congestion::parse(text, Profile::Nvidia) else {
            panic!("{text}")
        };
        assert_eq!(with, Nvidia { rp_clamp_tgt_rate: true, rp_gd: 10, ..Nvidia::default() });
        for name in ["timely:low=1", "swift:hops=3", "hpcc:base_rtt=9", "none", "fixed:1M"] {
            assert!(name.parse::<Congestion>().is_ok(), "{name}");
        }
    }

    #[test]
    fn wrong_texts_are_refused() {
        for text in [
            "",
            "dcqn",
            "none:a=1",
            "fixed",
            "fixed:0",
            "fixed:-1G",
            "fixed:1X",
            "fixed:1.G",
            "fixed:99999999999T",
            "timely:low",
            "timely:low=x",
            "dcqcn:rp_gd=1",
            "swift:=1",
        ] {
            assert!(text.parse::<Congestion>().is_err(), "{text}");
        }
        let flag = Congestion::parse("dcqcn:rp_clamp_tgt_rate=2", Profile::Nvidia);
        assert!(flag.is_err());
        assert!("mellanox".parse::<Profile>().is_err());
    }

    #[test]
    fn rates_are_read() {
        for (text, rate) in
            [("1M", 1_000_000), ("25G", 25_000_000_000), ("2.5g", 2_500_000_000), ("1e", 0)]
        {
            assert_eq!(parse_rate(text).unwrap_or(0), rate, "{text}");
        }
        assert_eq!(parse_rate("800000000"), Ok(800_000_000));
    }

    #[test]
    fn rate_without_its_unit_is_refused_with_the_cure() {
        for text in ["0", "10", "999K", "0.5M"] {
            let error = parse_rate(text).unwrap_err().to_string();
            assert!(error.contains("bit/s") && error.contains("10G"), "{error}");
        }
    }
}
