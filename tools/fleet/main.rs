//! Writes a capture of a fleet with one bad host and one bad path, to look at reports of many
//! connections.
//!
//! ```sh
//! cargo run --release --example fleet-capture -- fleet.pcapng 10000
//! roce flows --html fleet.html fleet.pcapng
//! ```

#[path = "../../tests/common/fleet.rs"]
#[allow(dead_code, reason = "tests use all of it")]
mod fleet;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "fleet.pcapng".into());
    let connections = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    std::fs::write(path, fleet::capture(connections))
}
