//! The options of a test, and the plan they make.

use anyhow::ensure;
use clap::Args;
use roce::verbs::{Device, Mtu};

use super::plan::{ATOMIC_SIZE, Connection, Extent, Metric, Op, Plan, SIZE_MAX};
use super::report::Unit;
use crate::device::Spec;

/// perftest's port, and that of the pingpongs.
pub(crate) const PORT: u16 = 18515;

/// How the two sides find each other.
#[derive(Debug, Args)]
pub(crate) struct ReachArgs {
    /// The NIC: udp:ADDRESS, raw:INTERFACE or soft:INTERFACE, or verbs:NAME for a real one [default: UDP from the
    /// address that leads to the other side].
    #[arg(short = 'd', long = "device", alias = "ib-dev", value_name = "DEVICE")]
    pub(crate) device: Option<Spec>,

    /// The TCP port over which the two sides find each other.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    pub(crate) port: u16,

    /// Which of the NIC's addresses to use, by index [default: the one that leads to the other side, or else the
    /// first].
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
}

/// A test, with perftest's letters.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// What to measure.
    #[arg(value_enum, value_name = "bw|lat")]
    metric: Metric,

    /// Where a server (roce serve) runs.
    #[arg(value_name = "HOST")]
    pub(crate) host: String,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    /// The bytes of a message [default: 65536 for bw, 2 for lat, 8 for atomic; of UD at most the MTU].
    #[arg(short = 's', long, value_name = "BYTES", conflicts_with = "all")]
    size: Option<u32>,

    /// All sizes: 2, 4, 8 … 8388608.
    #[arg(short = 'a', long)]
    all: bool,

    /// How many messages, on each queue pair [default: 5000 for bw, 1000 for lat].
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration")]
    iters: Option<u64>,

    /// Go on for so many seconds instead.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<u64>,

    /// How many queue pairs.
    #[arg(short = 'q', long = "qp", value_name = "COUNT", default_value_t = 1)]
    qps: u32,

    /// The payload of a packet: 256, 512, 1024, 2048 or 4096 [default: the most that both sides can do].
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu)]
    pub(crate) mtu: Option<Mtu>,

    /// How many messages of a queue pair may be under way.
    #[arg(short = 't', long, value_name = "COUNT", default_value_t = 128)]
    tx_depth: u32,

    /// The kind of the queue pairs.
    #[arg(short = 'c', long, value_enum, value_name = "KIND", ignore_case = true, default_value_t)]
    connection: Connection,

    /// Both ways at once; the numbers are of both together.
    #[arg(short = 'b', long)]
    bidirectional: bool,

    /// Look at every byte that arrives. Slower; exit status 1 if one is wrong.
    #[arg(long)]
    verify: bool,

    /// Print a JSON object, with what both NICs counted.
    #[arg(long)]
    pub(crate) json: bool,

    /// Bandwidth in Gb/sec instead of MB/sec, which are 2^20 bytes.
    #[arg(long, alias = "report_gbits")]
    report_gbits: bool,

    /// For perftest's sake: nothing here minds the processor's frequency.
    #[arg(short = 'F', hide = true)]
    _frequency: bool,
}

impl TestArgs {
    pub(crate) fn unit(&self) -> Unit {
        if self.report_gbits { Unit::Gigabits } else { Unit::Megabytes }
    }

    /// What is to be measured with a NIC.
    pub(crate) fn plan(&self, op: Op, nic: &dyn Device) -> anyhow::Result<Plan> {
        let most = nic.query_port()?.active_mtu;
        let mtu = self.mtu.unwrap_or(most);
        ensure!(mtu <= most, "-m: {} can do an MTU of {most}, not {mtu}", nic.name());
        self.plan_with(op, mtu)
    }

    /// Whether it could be measured with any NIC, before one is opened or a server asked.
    pub(crate) fn check(&self, op: Op) -> anyhow::Result<()> {
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

/// An MTU by its bytes.
pub(crate) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(Mtu::from_bytes).ok_or_else(|| "one of 256, 512, 1024, 2048, 4096".to_owned())
}
