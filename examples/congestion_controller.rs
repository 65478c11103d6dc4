//! A congestion controller of one's own: each CNP halves the rate, each megabyte raises it. Two
//! NICs on a cable that marks packets: `cargo run --example congestion_controller`.
use std::{error::Error, net::Ipv4Addr, sync::Arc, thread};

use roce::engine::{Counter, congestion::*};
use roce::link::{Link, cable, fault};
use roce::{net::Endpoint, nic::SoftNic, time::Instant, wire::Gid};

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

fn start(link: Link) -> Result<Arc<SoftNic>, Box<dyn Error>> {
    let congestion = Congestion::custom(Arc::new(Halving));
    let link = fault::inject(link, &"mark=1%".parse()?);
    Ok(Arc::new(SoftNic::start_with(link, |config| config.congestion = congestion)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(a, b)?;
    let (a, b) = (start(a)?, start(b)?);
    let listener = Endpoint::new(Arc::clone(&b))?.listen("192.0.2.2:7000")?;
    let server = thread::spawn(move || listener.accept()?.recv());
    Endpoint::new(Arc::clone(&a))?.connect("192.0.2.2:7000")?.send(&vec![7; 64 << 20])?;
    assert_eq!(server.join().unwrap()?.map(|message| message.len()), Some(64 << 20));
    let cnps = [&a, &b].map(|nic| nic.counters().get(Counter::CnpReceived));
    println!("64 MiB arrived; {} CNPs to the sender, {} to the receiver", cnps[0], cnps[1]);
    Ok(())
}
