//! A congestion controller of one's own: each CNP halves the rate, each megabyte raises it. Two
//! NICs on loopback that mark packets: `cargo run --example congestion_controller`.
use std::{error::Error, sync::Arc, thread};

use roce::engine::{Counter, congestion::*};
use roce::link::{Spec, fault};
use roce::{net::Endpoint, nic::SoftNic, time::Instant};

#[derive(Debug)]
struct Halving;

impl Factory for Halving {
    fn start(&self, _now: Instant, info: &FlowInfo) -> Box<dyn Controller> {
        Box::new(Half { line: info.line_rate, rate: info.line_rate, acked: 0 })
    }
}

#[derive(Debug)]
struct Half {
    line: u64,
    rate: u64,
    acked: u32,
}

impl Controller for Half {
    fn on_cnp(&mut self, _now: Instant) {
        self.rate = (self.rate / 2).max(self.line / 1000);
    }
    fn on_ack(&mut self, _now: Instant, ack: &AckSample<'_>) {
        self.acked += ack.bytes;
        self.rate = self.line.min(self.rate + u64::from(self.acked >> 20) * (self.line / 100));
        self.acked %= 1 << 20;
    }
    fn advance(&mut self, _now: Instant) -> Allowance {
        Allowance::rate(self.rate)
    }
    fn state(&self) -> State {
        State { rate: self.rate, ..State::default() }
    }
}

fn start(address: &str) -> Result<Arc<SoftNic>, Box<dyn Error>> {
    let congestion = Congestion::custom(Arc::new(Halving));
    let link = address.parse::<Spec>()?.open_without_shared_memory()?;
    let link = fault::inject(link, &"mark=1%".parse()?);
    Ok(Arc::new(SoftNic::start_with(link, |config| config.congestion = congestion)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (a, b) = (start("udp:127.20.33.1")?, start("udp:127.20.33.2")?);
    let listener = Endpoint::new(Arc::clone(&b))?.listen("127.20.33.2:7000")?;
    let server = thread::spawn(move || listener.accept()?.recv());
    let connection = Endpoint::new(Arc::clone(&a))?.connect("127.20.33.2:7000")?;
    connection.send(&vec![7; 64 << 20])?;
    let received = server.join().expect("the server does not panic")?;
    assert_eq!(received.map(|message| message.len()), Some(64 << 20));
    let cnps = [&a, &b].map(|nic| nic.counters().get(Counter::CnpReceived));
    println!("64 MiB arrived; {} CNPs to the sender, {} to the receiver", cnps[0], cnps[1]);
    Ok(())
}
