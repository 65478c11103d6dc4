//! Results of a mesh for Prometheus: counters and a histogram for each pair.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use roce::histogram::Histogram;
use roce::ping::PathStats;
use roce::ping::mesh::{Fault, Finding, Mesh, Symptom};

use super::hosts::Host;
use crate::metrics_server;

/// Upper ends of the buckets, in seconds.
const BUCKETS: [f64; 16] =
    [2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1.0];

/// Results so far.
#[derive(Debug, Default)]
struct State {
    names: Vec<String>,
    pairs: BTreeMap<(usize, usize), PathStats>,
    /// Findings of the last round, by fault, symptom and host.
    findings: BTreeMap<(Fault, Symptom, usize), u64>,
    silent: Vec<usize>,
    rounds: u64,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<State>>);

/// Metrics that a thread serves.
pub(super) struct Metrics {
    shared: Shared,
    address: SocketAddr,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// Serves metrics at an address until the process ends.
    pub(super) fn serve(at: SocketAddr, hosts: &[Host]) -> anyhow::Result<Self> {
        let shared = Shared::default();
        shared.lock().names = hosts.iter().map(|host| host.name.clone()).collect();
        let address = metrics_server::start(at, shared.clone())?;
        Ok(Self { shared, address })
    }

    /// Returns the address at which the metrics are served.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a round.
    pub(super) fn add(&self, mesh: &Mesh, findings: &[Finding]) {
        let mut state = self.shared.lock();
        for cell in &mesh.cells {
            state.pairs.entry((cell.from, cell.to)).or_default().merge(&cell.stats);
        }
        state.findings.clear();
        for finding in findings {
            for &host in &finding.hosts {
                *state.findings.entry((finding.fault, finding.symptom, host)).or_default() += 1;
            }
        }
        state.silent = mesh.silent.iter().chain(&mesh.refused).map(|(host, _)| *host).collect();
        state.rounds += 1;
    }
}

/// A family of histograms: its name, what it is, and its times.
type Family = (&'static str, &'static str, fn(&PathStats) -> &Histogram);

const FAMILIES: [Family; 3] = [
    ("roce_mesh_network_rtt", "Round trip time of the network alone", |stats| &stats.network),
    ("roce_mesh_prober_delay", "Time that the probing host took", |stats| &stats.prober),
    ("roce_mesh_responder_delay", "Time that the answering host took", |stats| &stats.responder),
];

/// A family of counters: its name, what it counts, and its count.
type CounterFamily = (&'static str, &'static str, fn(&PathStats) -> u64);

const COUNTERS: [CounterFamily; 3] = [
    ("roce_mesh_probes", "Probes that were sent and have ended", PathStats::sent),
    ("roce_mesh_lost_probes", "Probes that were not acknowledged in time", |stats| stats.lost),
    ("roce_mesh_unsent_probes", "Probes that the NIC did not send", |stats| stats.not_sent),
];

impl Collector for Shared {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let state = self.lock();
        let name = |host: usize| state.names.get(host).map_or("", String::as_str);
        for (family, help, count) in COUNTERS {
            let mut metric = encoder.encode_descriptor(family, help, None, MetricType::Counter)?;
            for (&(from, to), stats) in &state.pairs {
                let labels = [("from", name(from)), ("to", name(to))];
                metric
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&count(stats), None)?;
            }
        }
        for (family, help, times) in FAMILIES {
            let unit = Unit::Seconds;
            let mut metric =
                encoder.encode_descriptor(family, help, Some(&unit), MetricType::Histogram)?;
            for (&(from, to), stats) in &state.pairs {
                let labels = [("from", name(from)), ("to", name(to))];
                let times = times(stats);
                metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    times.sum().as_secs_f64(),
                    times.count(),
                    &buckets(times),
                    None,
                )?;
            }
        }
        let help = "Findings of the last round";
        let mut metric =
            encoder.encode_descriptor("roce_mesh_findings", help, None, MetricType::Gauge)?;
        for (&(fault, symptom, host), count) in &state.findings {
            let labels =
                [("fault", fault.name()), ("symptom", symptom.name()), ("host", name(host))];
            metric.encode_family(&labels)?.encode_gauge(&i64::try_from(*count).unwrap_or(0))?;
        }
        let help = "Whether a host took part in the last round";
        let mut metric =
            encoder.encode_descriptor("roce_mesh_host_up", help, None, MetricType::Gauge)?;
        for host in (0..state.names.len()).filter(|_| state.rounds > 0) {
            let up = i64::from(!state.silent.contains(&host));
            metric.encode_family(&[("host", name(host))])?.encode_gauge(&up)?;
        }
        let help = "Rounds so far";
        encoder
            .encode_descriptor("roce_mesh_rounds", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&state.rounds, None)
    }
}

/// Counts by bucket, each without those before it.
fn buckets(times: &Histogram) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> =
        BUCKETS.iter().chain([&f64::INFINITY]).map(|end| (*end, 0)).collect();
    for bucket in times.buckets() {
        let start = bucket.start.as_secs_f64();
        if let Some((_, counted)) = buckets.iter_mut().find(|(upper, _)| start <= *upper) {
            *counted += bucket.count;
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use roce::ping::mesh::Cell;

    use super::*;

    fn metrics() -> Metrics {
        let hosts = ["a", "b"].map(|name| Host {
            name: name.to_owned(),
            at: "127.0.0.1:1".parse().unwrap(),
            rack: None,
        });
        Metrics::serve("127.0.0.1:0".parse().unwrap(), &hosts).unwrap()
    }

    fn ask(metrics: &Metrics, request: &str) -> String {
        let mut stream = TcpStream::connect(metrics.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pair_has_counters_and_a_cumulative_histogram() {
        let metrics = metrics();
        let mut stats = PathStats { answered: 3, lost: 1, ..PathStats::default() };
        for us in [1, 30, 3_000_000] {
            stats.network.add(Duration::from_micros(us));
        }
        let mut mesh = Mesh::new(["a", "b"].map(String::from));
        mesh.cells.push(Cell { from: 0, to: 1, source_port: 0xc001, stats });
        mesh.silent = vec![(1, "down".to_owned())];
        let finding = Finding {
            fault: Fault::Nic,
            symptom: Symptom::Loss,
            hosts: vec![1],
            paths: Vec::new(),
            evidence: String::new(),
        };
        metrics.add(&mesh, &[finding]);
        let answer =
            ask(&metrics, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n");
        for line in [
            "HTTP/1.1 200 OK\r\n",
            "roce_mesh_probes_total{from=\"a\",to=\"b\"} 4\n",
            "roce_mesh_lost_probes_total{from=\"a\",to=\"b\"} 1\n",
            "# TYPE roce_mesh_network_rtt_seconds histogram\n",
            "roce_mesh_network_rtt_seconds_bucket{le=\"0.000002\",from=\"a\",to=\"b\"} 1\n",
            "roce_mesh_network_rtt_seconds_bucket{le=\"0.00005\",from=\"a\",to=\"b\"} 2\n",
            "roce_mesh_network_rtt_seconds_bucket{le=\"1.0\",from=\"a\",to=\"b\"} 2\n",
            "roce_mesh_network_rtt_seconds_bucket{le=\"+Inf\",from=\"a\",to=\"b\"} 3\n",
            "roce_mesh_network_rtt_seconds_count{from=\"a\",to=\"b\"} 3\n",
            "roce_mesh_findings{fault=\"bad NIC\",symptom=\"loss\",host=\"b\"} 1\n",
            "roce_mesh_host_up{host=\"a\"} 1\n",
            "roce_mesh_host_up{host=\"b\"} 0\n",
            "roce_mesh_rounds_total 1\n",
        ] {
            assert!(answer.contains(line), "{line}: {answer}");
        }
        assert!(answer.ends_with("# EOF\n"));
    }

    #[test]
    fn other_requests_get_no_metrics() {
        let metrics = metrics();
        for request in ["GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n"] {
            assert!(ask(&metrics, request).starts_with("HTTP/1.1 404 "), "{request}");
        }
    }
}
