//! Counters and rates of running NICs for Prometheus. NICs are asked at each scrape.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use roce::nic::status::{NicStatus, QpRate, published};

use super::running::{fraction, program};

/// Collector that asks all NICs.
#[derive(Debug)]
pub(super) struct RunningNics;

/// A family of gauges: its name, what it is, and the value of a queue pair, if it has one.
type Family = (&'static str, &'static str, fn(&QpRate) -> Option<f64>);

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floating point")]
const FAMILIES: [Family; 3] = [
    (
        "roce_qp_rate_bits_per_second",
        "Rate of a queue pair that congestion control slows down",
        |qp| Some(qp.state.rate as f64),
    ),
    ("roce_qp_target_bits_per_second", "Target of its increases", |qp| {
        qp.state.target.map(|target| target as f64)
    }),
    ("roce_qp_alpha", "Its \u{3b1}", |qp| qp.state.alpha.map(fraction)),
];

/// Labels of a NIC.
struct Labels {
    program: String,
    pid: String,
    device: String,
}

impl Labels {
    fn new(nic: &NicStatus) -> Self {
        Self { program: program(nic.pid), pid: nic.pid.to_string(), device: nic.device.clone() }
    }

    fn pairs(&self) -> [(&str, &str); 3] {
        [("program", &self.program), ("pid", &self.pid), ("device", &self.device)]
    }
}

impl Collector for RunningNics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Without a list of sockets there are no NICs to be found.
        encode(&published().unwrap_or_default().nics, encoder)
    }
}

fn encode(nics: &[NicStatus], mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let labels: Vec<Labels> = nics.iter().map(Labels::new).collect();
    let all = || nics.iter().zip(&labels);
    let help = "Queue pairs of a NIC";
    let mut metric = encoder.encode_descriptor("roce_qps", help, None, MetricType::Gauge)?;
    for (nic, labels) in all() {
        let qps = i64::try_from(nic.qps).unwrap_or(i64::MAX);
        metric.encode_family(&labels.pairs())?.encode_gauge(&qps)?;
    }
    for (family, help, value) in FAMILIES {
        let mut metric = encoder.encode_descriptor(family, help, None, MetricType::Gauge)?;
        for (nic, labels) in all() {
            for qp in &nic.controlled {
                let Some(value) = value(qp) else { continue };
                let [program, pid, device] = labels.pairs();
                let qpn = qp.qpn.get().to_string();
                let labels = [program, pid, device, ("qpn", &qpn)];
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
    }
    let mut counters: BTreeMap<&str, Vec<(u64, &Labels)>> = BTreeMap::new();
    for (nic, labels) in all() {
        for (name, count) in &nic.counters {
            counters.entry(name).or_default().push((*count, labels));
        }
    }
    for (name, counts) in counters {
        let family = format!("roce_{name}");
        let help = format!("Counter {name}");
        let mut metric = encoder.encode_descriptor(&family, &help, None, MetricType::Counter)?;
        for (count, labels) in counts {
            let labels = labels.pairs();
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}
