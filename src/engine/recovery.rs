//! Configuration of loss recovery and of the order in which packets are received.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::config::Config;

/// Recovery from loss, as a requester does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Resend everything from the gap, as the specification has it.
    #[default]
    GoBackN,
    /// Retransmit only what is missing (IRN), on the queue pairs whose peer
    /// [agreed](super::Engine::agree_selective_repeat); go-back-N on the others.
    SelectiveRepeat(EarlyTimeouts),
}

/// Timeouts of selective repeat, after which the oldest packet in flight is retransmitted alone.
/// They count as no retry: [`timeout`](crate::verbs::QpAttr::timeout) and
/// [`retry_cnt`](crate::verbs::QpAttr::retry_cnt) keep their meaning, with go-back-N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyTimeouts {
    /// Timeout with fewer than three packets in flight, where no later packet shows a loss.
    pub low: Duration,
    /// Timeout with more packets in flight.
    pub high: Duration,
}

/// Number of packets in flight from which the high timeout applies.
pub(super) const FEW_PACKETS: u32 = 3;

impl Default for EarlyTimeouts {
    /// Timeouts that threads of an ordinary host rarely exceed.
    fn default() -> Self {
        Self { low: Duration::from_millis(1), high: Duration::from_millis(4) }
    }
}

impl EarlyTimeouts {
    /// Timeouts of the paper, for an RNIC in a data center: 100 µs and 320 µs.
    pub const IRN: Self =
        Self { low: Duration::from_micros(100), high: Duration::from_micros(320) };
}

impl Recovery {
    /// Selective repeat with the default timeouts.
    pub const SELECTIVE: Self = Self::SelectiveRepeat(EarlyTimeouts {
        low: Duration::from_millis(1),
        high: Duration::from_millis(4),
    });

    /// Whether it is selective repeat.
    pub const fn is_selective(self) -> bool {
        matches!(self, Self::SelectiveRepeat(_))
    }
}

/// Treatment of packets that come before others of the same direction. It is a matter of the
/// receiver alone: completions, immediate data, invalidations, atomics and READs are in order in
/// every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiveMode {
    /// They are dropped, as the specification has it.
    #[default]
    InOrder,
    /// They are held in bounded memory and executed in order.
    Buffer,
    /// They are held as in [`Buffer`](Self::Buffer), but the payload of a WRITE whose first packet
    /// was executed, and of a READ response, is written to its place at once. A program that polls
    /// the last byte of a WRITE may see it before bytes in front of it.
    Place,
}

/// Threshold from which a gap counts as a loss: on a network that reorders packets, as one does
/// over which they are sprayed, most gaps close by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReorderThreshold {
    /// A gap is a loss if a packet comes that is more than this many PSNs behind it. It holds for
    /// what this side receives and, with selective repeat, for what its peer reports.
    pub packets: u32,
    /// A gap is a loss if it is this old.
    pub time: Duration,
}

impl ReorderThreshold {
    /// Threshold for packets that are sprayed over several paths.
    pub const SPRAYED: Self = Self { packets: 32, time: Duration::from_micros(200) };
}

/// Recovery, receive mode and number of paths as commands and the environment name them. What is
/// not named follows from the rest: selective repeat needs a receiver that holds packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// Recovery from loss.
    pub recovery: Option<Recovery>,
    /// Treatment of packets that come before others.
    pub receive: Option<ReceiveMode>,
    /// Number of paths; 1 to 255.
    pub paths: Option<u8>,
}

impl RecoveryOptions {
    /// Reads the values of `ROCE_RECOVERY`, `ROCE_RECEIVE` and `ROCE_PATHS`, or names the one that
    /// is wrong.
    pub fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        fn value<T: FromStr>(name: &str, value: Option<String>) -> Result<Option<T>, String>
        where
            T::Err: fmt::Display,
        {
            let parsed = value.map(|value| value.parse());
            parsed.transpose().map_err(|error: T::Err| format!("{name}: {error}"))
        }
        Ok(Self {
            recovery: value("ROCE_RECOVERY", variable("ROCE_RECOVERY"))?,
            receive: value("ROCE_RECEIVE", variable("ROCE_RECEIVE"))?,
            paths: value::<Paths>("ROCE_PATHS", variable("ROCE_PATHS"))?.map(|paths| paths.0),
        })
    }

    /// Changes a configuration.
    pub fn apply(&self, config: &mut Config) {
        let recovery = self.recovery.unwrap_or(config.recovery);
        let holds = if recovery.is_selective() || self.paths.is_some_and(|paths| paths > 1) {
            ReceiveMode::Buffer
        } else {
            config.receive
        };
        (config.recovery, config.receive) = (recovery, self.receive.unwrap_or(holds));
        if config.receive != ReceiveMode::InOrder {
            // The peer may spray.
            config.pin_source_port = false;
        }
        if let Some(paths) = self.paths {
            config.paths = paths.max(1);
        }
        if config.paths > 1 {
            config.reorder = ReorderThreshold::SPRAYED;
        }
    }
}

/// A number of paths: 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Paths(u8);

impl FromStr for Paths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let paths = text.parse().ok().filter(|paths| *paths > 0);
        paths.map(Self).ok_or_else(|| format!("'{text}' is not a number of paths: 1 to 255"))
    }
}

impl FromStr for Recovery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "gbn" => Ok(Self::GoBackN),
            "sr" => Ok(Self::SELECTIVE),
            _ => Err(format!("'{text}' is neither gbn (go-back-N) nor sr (selective repeat)")),
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if self.is_selective() { "sr" } else { "gbn" })
    }
}

impl FromStr for ReceiveMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "in-order" => Ok(Self::InOrder),
            "buffer" => Ok(Self::Buffer),
            "place" => Ok(Self::Place),
            _ => Err(format!("'{text}' is none of in-order, buffer and place")),
        }
    }
}

impl fmt::Display for ReceiveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InOrder => "in-order",
            Self::Buffer => "buffer",
            Self::Place => "place",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Gid;

    #[test]
    fn options_are_read_and_what_is_wrong_is_named() {
        let read = |name: &'static str, value: &'static str| {
            RecoveryOptions::parse(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(read("ROCE_RECOVERY", "sr").unwrap().recovery, Some(Recovery::SELECTIVE));
        assert_eq!(read("ROCE_RECEIVE", "place").unwrap().receive, Some(ReceiveMode::Place));
        assert_eq!(read("ROCE_PATHS", "8").unwrap().paths, Some(8));
        for (name, value) in [("ROCE_RECOVERY", "irn"), ("ROCE_PATHS", "0"), ("ROCE_PATHS", "256")]
        {
            assert!(read(name, value).unwrap_err().starts_with(name), "{value}");
        }
        for text in ["gbn", "sr"] {
            assert_eq!(text.parse::<Recovery>().unwrap().to_string(), text);
        }
        for text in ["in-order", "buffer", "place"] {
            assert_eq!(text.parse::<ReceiveMode>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn selective_repeat_holds_packets_unless_told_otherwise() {
        let apply = |options: RecoveryOptions| {
            let mut config = Config::new(Gid::default());
            options.apply(&mut config);
            (config.recovery.is_selective(), config.receive, config.paths, config.pin_source_port)
        };
        let usual = RecoveryOptions::default();
        assert_eq!(apply(usual), (false, ReceiveMode::InOrder, 1, true));
        let selective = RecoveryOptions { recovery: Some(Recovery::SELECTIVE), ..usual };
        assert_eq!(apply(selective), (true, ReceiveMode::Buffer, 1, false));
        let strict = RecoveryOptions { receive: Some(ReceiveMode::InOrder), ..selective };
        assert_eq!(apply(strict), (true, ReceiveMode::InOrder, 1, true));
        let sprayed = RecoveryOptions { paths: Some(4), ..usual };
        assert_eq!(apply(sprayed), (false, ReceiveMode::Buffer, 4, false));
    }
}
