//! A responder for one client that probes.

use std::time::Duration;

use anyhow::Context;
use roce::control::{Channel, Incoming};
use roce::device::Context as Nic;
use roce::ping::{Answerer, ProbeQp, ResponderConfig, Role, random_id};

use crate::bench::control::probe::{Goodbye, Hello, Welcome};
use crate::output::counted;

/// Interval at which it is checked that the client is still there.
const ROUND: Duration = Duration::from_millis(250);

/// Probes of this time may come at once.
const BURST_SECONDS: u32 = 4;

/// Answers the probes of a client that was admitted, until it ends.
pub(super) fn answer(
    nic: &Nic,
    gid_index: u8,
    hello: Hello,
    control: &mut Channel,
) -> anyhow::Result<String> {
    let qp = ProbeQp::new(nic, gid_index, Role::Responder).context("cannot create a responder")?;
    let welcome = Welcome { responder: qp.address(), instance: random_id()? };
    // The client may have been late for a moment.
    let burst = (hello.rate / BURST_SECONDS).max(64);
    let config = ResponderConfig::new(welcome.instance, hello.prober.source());
    let config = config.rate(hello.rate.saturating_mul(2), burst);
    let mut answerer = Answerer::with_config(qp, config, hello.prober);
    control.send(&welcome)?;
    let ended = loop {
        answerer.run(ROUND, |_| false)?;
        match control.try_receive("bye") {
            Ok(Incoming::Nothing | Incoming::Alive) => {}
            Ok(Incoming::Message(Goodbye::Bye)) => break String::new(),
            Err(error) => break format!(" ({error:#})"),
        }
    };
    let counters = answerer.counters();
    let dropped = counters.malformed + counters.foreign + counters.over_rate + counters.over_unsent;
    let dropped = if dropped > 0 { format!(", {dropped} dropped") } else { String::new() };
    Ok(format!("{} answered{dropped}{ended}", counted(counters.answered, "probe")))
}
