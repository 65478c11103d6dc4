//! Messages of many sizes from one registered region: a pool lends its parts to the NIC, and has
//! them back when they complete.
//!
//! ```console
//! $ cargo run --example registered_pool
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use roce::device::{Context, Rc};
use roce::link::cable;
use roce::nic::SoftNic;
use roce::pool::{Config, Pool};
use roce::verbs::Connect;
use roce::wire::Gid;

mod common;

fn run() -> Result<(), Box<dyn Error>> {
    common::none()?;
    let [here, there] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(here, there)?;
    let (a, b) = (Context::new(SoftNic::start(a)?), Context::new(SoftNic::start(b)?));
    let (a_pd, a_cq) = (a.create_pd()?, a.create_cq(16)?);
    let (b_pd, b_cq) = (b.create_pd()?, b.create_cq(16)?);
    let (a, b) = (a_pd.qp(&a_cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);
    let (a_end, b_end) = (a.endpoint()?, b.endpoint()?);
    let a = a.connect(&b_end, &Connect::default())?;
    let b = b.connect(&a_end, &Connect::default())?;

    // Each side registers one region, once.
    let sends = Pool::new(&a_pd, &Config::default())?;
    let receives = Pool::new(&b_pd, &Config::default())?;
    for (id, len) in [1, 40, 1000, 20_000].into_iter().enumerate() {
        b.recv(id as u64, receives.alloc(0, len)?)?;
        let mut message = sends.alloc(0, len)?;
        message.write(0, &vec![0x5a; len])?;
        a.send(id as u64, message)?;
        let received = b_cq.wait(None)?.into_result().map_err(|status| status.to_string())?;
        assert_eq!(received.payload(), vec![0x5a; len]);
        println!("{len} bytes in an item of {}", sends.item_bytes(len).ok_or("it is too long")?);
        // The item goes back with the completion.
        drop(a_cq.wait(None)?);
    }
    assert_eq!((sends.usage().items, receives.usage().items), (0, 0));
    Ok(())
}

fn main() -> ExitCode {
    common::end("registered_pool", run())
}
