//! Metrics for Prometheus over HTTP, to several clients at once, each of which has a deadline.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use roce::control::tcp::close_of;
use roce::control::{Admission, Limits, Stream, Tcp, Ticket};

/// Maximum number of bytes of a request.
const REQUEST_MAX: usize = 8 << 10;

/// Time for a client to send its whole request, and to take the answer.
const CLIENT_WAIT: Duration = Duration::from_secs(5);

/// Pause after a client could not be accepted, for want of descriptors or memory.
const RETRY: Duration = Duration::from_millis(100);

/// Limits of all clients: a newcomer takes the place of the slowest one.
const LIMITS: Limits = Limits {
    clients: 16,
    qps: 0,
    memory: 0,
    seconds: 2 * CLIENT_WAIT.as_secs(),
    share: 4,
    displaces_welcomed: true,
};

/// The stack of a thread that answers a client.
const STACK_BYTES: usize = 256 << 10;

/// Format of the metrics, as a client accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, which any client takes.
    Text,
}

impl Format {
    /// Returns the format that a request asks for.
    fn of(request: &str) -> Self {
        let accept = request.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("accept").then_some(value)
        });
        match accept.into_iter().any(|value| value.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns metrics that were encoded as OpenMetrics in this format.
    fn convert(self, metrics: String) -> String {
        match self {
            Self::OpenMetrics => metrics,
            Self::Text => to_text_format(&metrics),
        }
    }
}

/// Converts OpenMetrics to the text format: there, the name of a counter ends with `_total` in its
/// HELP and TYPE, too, and neither a unit nor an end is declared.
fn to_text_format(metrics: &str) -> String {
    let lines: Vec<&str> = metrics.lines().collect();
    let is_counter = |name: &str| {
        let declared = format!("# TYPE {name} counter");
        lines.iter().any(|line| *line == declared)
    };
    let mut text = String::new();
    for line in &lines {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT", ..] | ["#", "EOF"] => continue,
            ["#", kind @ ("HELP" | "TYPE"), name, rest] if is_counter(name) => {
                text.push_str(&format!("# {kind} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Serves what a collector has at an address, in a thread, until the process ends; returns the
/// address.
pub(crate) fn start(at: SocketAddr, collector: impl Collector) -> anyhow::Result<SocketAddr> {
    let listener =
        TcpListener::bind(at).with_context(|| format!("--metrics: cannot listen on {at}"))?;
    let address = listener.local_addr()?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let thread = std::thread::Builder::new().name("roce-metrics".to_owned());
    thread.spawn(move || serve(&listener, registry))?;
    Ok(address)
}

/// Answers clients until the process ends.
fn serve(listener: &TcpListener, registry: Registry) {
    let (admission, registry) = (Admission::new(LIMITS), Arc::new(registry));
    loop {
        if !admission.wait_for_room(CLIENT_WAIT) {
            continue;
        }
        // A connection that fails must not keep other clients out.
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(RETRY);
            continue;
        };
        let stream = Arc::new(stream);
        let Some(ticket) = admit(&admission, &stream) else { continue };
        let registry = Arc::clone(&registry);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let _ = thread.spawn(move || {
            let _ = answer(stream, &ticket, &registry);
        });
    }
}

fn admit(admission: &Arc<Admission>, stream: &Arc<TcpStream>) -> Option<Ticket> {
    let address = stream.peer_addr().ok()?.ip();
    admission.enter(address, close_of(stream)).ok()
}

/// Answers one request.
fn answer(stream: Arc<TcpStream>, ticket: &Ticket, registry: &Registry) -> io::Result<()> {
    let mut stream = Tcp::new(stream, None)?;
    let request = read_request(&mut stream)?;
    ticket.welcome();
    let (status, kind, body) = if request.starts_with("GET /metrics ") {
        let format = Format::of(&request);
        let mut body = String::new();
        encode(&mut body, registry).map_err(io::Error::other)?;
        ("200 OK", format.content_type(), format.convert(body))
    } else {
        ("404 Not Found", "text/plain; charset=utf-8", "metrics are at /metrics\n".to_owned())
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.send_all(format!("{head}{body}").as_bytes(), CLIENT_WAIT)
}

/// Receives the head of a request, within [`CLIENT_WAIT`] however many pieces it comes in.
fn read_request(stream: &mut Tcp) -> io::Result<String> {
    stream.set_wait(Some(CLIENT_WAIT))?;
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        match stream.receive(&mut piece) {
            Ok(0) => break,
            Ok(count) => request.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_the_one_that_a_client_accepts() {
        let of = |accept: &str| Format::of(&format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n"));
        assert_eq!(of("Host: x"), Format::Text);
        assert_eq!(of("Accept: text/plain"), Format::Text);
        let prometheus =
            "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
        assert_eq!(of(prometheus), Format::OpenMetrics);
    }

    #[test]
    fn text_format_declares_counters_by_the_name_of_their_samples() {
        let open = "# HELP a A.\n# TYPE a counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n\
                    # HELP c_seconds C.\n# TYPE c_seconds histogram\n# UNIT c_seconds seconds\n\
                    c_seconds_count 0\n# EOF\n";
        let text = "# HELP a_total A.\n# TYPE a_total counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n\
                    # HELP c_seconds C.\n# TYPE c_seconds histogram\nc_seconds_count 0\n";
        assert_eq!(to_text_format(open), text);
    }
}
