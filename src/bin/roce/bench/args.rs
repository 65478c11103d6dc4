//! Options of a `roce bench` test, and the [`Plan`] that they make.

use anyhow::{Context, ensure};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use roce::connect::ConnectionManager;
use roce::device::{Context as Nic, Device};
use roce::verbs::Mtu;

use super::control::plan::{ATOMIC_SIZE, Connection, Extent, Metric, Op, Plan, SIZE_MAX};
use super::report::Unit;
use super::token::TokenArgs;
use crate::device::{SoftNicArgs, Spec, forms};

/// Default TCP port: that of perftest and of rdma-core's pingpongs.
pub(crate) const PORT: u16 = 18515;

/// Addresses and ports by which the two sides find each other, and options of soft NICs.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReachArgs<S: Args = SoftNicArgs> {
    // The NIC.
    #[arg(short = 'd', long = "device", alias = "ib-dev", value_name = "DEVICE", help = concat!(
        "The NIC: ", forms!(), " [default: UDP from the address that leads to the other side]"
    ))]
    pub(crate) device: Option<Spec>,

    /// The TCP port over which the two sides find each other; for roce serve, 0 is any that is
    /// free.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    pub(crate) port: u16,

    /// Index of the NIC's address to use [default: the one that leads to the other side, or else
    /// the first].
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,

    #[command(flatten)]
    pub(crate) soft: S,
}

impl<S: Args + Clone + Into<SoftNicArgs>> ReachArgs<S> {
    /// Returns these options with all options of soft NICs: those that `S` lacks have their
    /// defaults.
    pub(crate) fn with_all(&self) -> ReachArgs {
        let Self { device, port, gid_index, soft } = self.clone();
        ReachArgs { device, port, gid_index, soft: soft.into() }
    }
}

/// Option of a client to send to any GID that a server names.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AnyGidArgs {
    /// Send to any GID that the server names, not only to the address of its TCP connection: for
    /// trusted networks on which control connections use other addresses than RDMA.
    #[arg(long)]
    pub(crate) any_gid: bool,
}

impl ValueEnum for Metric {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(match self {
            Self::Bw => "Bytes and messages per second",
            Self::Lat => "Time that a message takes",
        }))
    }
}

impl ValueEnum for Connection {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Rc => PossibleValue::new("rc").alias("RC").help("Reliable connection"),
            Self::Uc => PossibleValue::new("uc").alias("UC").help("Unreliable connection"),
            Self::Ud => PossibleValue::new("ud").alias("UD").help("Unreliable datagram"),
        })
    }
}

/// A test, with perftest's options.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Quantity to measure.
    #[arg(value_enum, value_name = "bw|lat")]
    metric: Metric,

    /// Host on which a server (roce serve) runs.
    #[arg(value_name = "HOST")]
    pub(crate) host: String,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    /// The bytes of a message, 0 to 8M; k and M are 2^10 and 2^20 [default: 64k for bw, 2 for lat,
    /// 8 for atomic; of UD at most the MTU].
    #[arg(short = 's', long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "all")]
    size: Option<u32>,

    /// All sizes: 2, 4, 8 … 8388608.
    #[arg(short = 'a', long)]
    all: bool,

    /// Number of messages on each queue pair, 1 to 2^40 [default: 5000 for bw, 1000 for lat].
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration")]
    iters: Option<u64>,

    /// Measure each size for this time instead of a number of messages, 1 to 86400.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<u64>,

    /// Number of queue pairs, 1 to 1024.
    #[arg(short = 'q', long = "qp", value_name = "COUNT", default_value_t = 1)]
    qps: u32,

    /// The payload of a packet: 256, 512, 1024, 2048 or 4096 [default: the largest that both sides
    /// support].
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu)]
    pub(crate) mtu: Option<Mtu>,

    /// Maximum number of messages of a queue pair in flight, 1 to 8192.
    #[arg(short = 't', long, value_name = "COUNT", default_value_t = 128)]
    tx_depth: u32,

    /// The kind of the queue pairs.
    #[arg(short = 'c', long, value_enum, value_name = "KIND", ignore_case = true, default_value_t)]
    connection: Connection,

    /// Send in both directions at once; the results are the sum of both.
    #[arg(short = 'b', long)]
    bidirectional: bool,

    /// Check every byte that arrives. Slower; exit status 1 if a byte is wrong.
    #[arg(long)]
    verify: bool,

    /// Print a JSON object, with the counters of both NICs.
    #[arg(long)]
    pub(crate) json: bool,

    /// Report bandwidth in Gb/sec instead of MB/sec (2^20 bytes a second).
    #[arg(long, alias = "report_gbits")]
    report_gbits: bool,

    /// Print a histogram of the latencies, with eight ranges for each power of two (lat only);
    /// --json always has it.
    #[arg(short = 'H', long, alias = "report-histogram")]
    pub(crate) histogram: bool,

    #[command(flatten)]
    pub(crate) token: TokenArgs,

    #[command(flatten)]
    pub(crate) any_gid: AnyGidArgs,

    /// Have the connection manager (rdma_cm) connect the queue pairs; the server is roce serve -R.
    /// RC only. The TCP connection carries the results; the MTU is the one that the connection
    /// manager chooses.
    #[arg(short = 'R', long = "rdma-cm", alias = "rdma_cm", conflicts_with = "mtu")]
    rdma_cm: bool,

    /// Ignored, accepted for compatibility with perftest: the processor's frequency is not used.
    #[arg(short = 'F', hide = true)]
    _frequency: bool,
}

impl TestArgs {
    pub(crate) fn unit(&self) -> Unit {
        if self.report_gbits { Unit::Gigabits } else { Unit::Megabytes }
    }

    /// Starts the connection manager of the NIC, if it is to connect the queue pairs (`-R`).
    pub(crate) fn connection_manager(
        &self,
        nic: &Nic,
    ) -> anyhow::Result<Option<ConnectionManager>> {
        let start = || ConnectionManager::start(nic.clone());
        let started = self.rdma_cm.then(start).transpose();
        started.with_context(|| format!("-R: {} has no connection manager", nic.name()))
    }

    /// Returns the plan of a measurement with a NIC.
    pub(crate) fn plan(&self, op: Op, nic: &dyn Device) -> anyhow::Result<Plan> {
        let most = nic.query_port()?.active_mtu;
        let mtu = self.mtu.unwrap_or(most);
        ensure!(mtu <= most, "-m: {} supports an MTU of at most {most}, not {mtu}", nic.name());
        self.plan_with(op, mtu)
    }

    /// Checks all that does not depend on a NIC, before a NIC is opened or a server is asked.
    pub(crate) fn check(&self, op: Op) -> anyhow::Result<()> {
        ensure!(
            !self.histogram || self.metric == Metric::Lat,
            "-H: a histogram is of latencies: measure lat, or leave -H out"
        );
        ensure!(
            !self.rdma_cm || self.connection == Connection::Rc,
            "-R: the connection manager connects queue pairs of RC here: use -c rc, or leave -R out"
        );
        self.plan_with(op, self.mtu.unwrap_or(Mtu::M4096)).map(drop)
    }

    fn plan_with(&self, op: Op, mtu: Mtu) -> anyhow::Result<Plan> {
        let plan = Plan {
            op,
            metric: self.metric,
            connection: self.connection,
            sizes: self.sizes(op, mtu),
            extent: match (self.duration, self.iters) {
                (Some(seconds), _) => Extent::Seconds(seconds),
                (None, Some(count)) => Extent::Iterations(count),
                (None, None) => Extent::Iterations(match self.metric {
                    Metric::Bw => 5000,
                    Metric::Lat => 1000,
                }),
            },
            qps: self.qps,
            mtu,
            tx_depth: self.tx_depth,
            bidirectional: self.bidirectional,
            verify: self.verify,
        };
        plan.check()?;
        Ok(plan)
    }

    fn sizes(&self, op: Op, mtu: Mtu) -> Vec<u32> {
        let most = match self.connection {
            Connection::Ud => u32::try_from(mtu.bytes()).unwrap_or(SIZE_MAX),
            Connection::Rc | Connection::Uc => SIZE_MAX,
        };
        match (op, self.all, self.size) {
            (_, _, Some(size)) => vec![size],
            (Op::Atomic, ..) => vec![ATOMIC_SIZE],
            (_, true, None) => {
                (1..=23).map(|power| 1 << power).filter(|&size| size <= most).collect()
            }
            (_, false, None) => vec![match self.metric {
                Metric::Bw => 65536.min(most),
                Metric::Lat => 2,
            }],
        }
    }
}

/// Parses the length of a message: `65536`, `64k`, `1M`.
pub(crate) fn parse_size(text: &str) -> Result<u32, String> {
    let size = parse_bytes(text)?;
    u32::try_from(size).map_err(|_| format!("at most {SIZE_MAX}"))
}

/// Parses a number of bytes that may exceed the length of a message.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (text.get(..text.len() - 1), 10),
        Some(b'm') => (text.get(..text.len() - 1), 20),
        Some(b'g') => (text.get(..text.len() - 1), 30),
        _ => (Some(text), 0),
    };
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "a number of bytes, such as 4096, 64k or 1M".to_owned())
}

/// Parses an MTU in bytes.
pub(crate) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(Mtu::from_bytes).ok_or_else(|| "one of 256, 512, 1024, 2048, 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::control::plan::{ITERATIONS_MAX, QPS_MAX, SECONDS_MAX, TX_DEPTH_MAX};
    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        _args: TestArgs,
    }

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [("0", 0), ("64k", 65_536), ("64K", 65_536), ("1M", 1 << 20), ("7", 7)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "k", "1kB", "-1", "+1", "1.5k", "4G", "99999999999999999999", "0x10", "1 k", "ä"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn help_names_the_limits_that_are_enforced() {
        let help = Alone::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!((SIZE_MAX, ITERATIONS_MAX), (8 << 20, 1 << 40));
        for limit in [
            "0 to 8M".to_owned(),
            format!("queue pairs, 1 to {QPS_MAX}"),
            format!("in flight, 1 to {TX_DEPTH_MAX}"),
            format!("1 to {SECONDS_MAX}"),
            "1 to 2^40".to_owned(),
        ] {
            assert!(help.contains(&limit), "{limit}: {help}");
        }
    }
}
