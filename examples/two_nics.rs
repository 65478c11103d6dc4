//! Two software NICs on a cable in one process: SEND, WRITE and READ, with their completions.
//!
//! ```console
//! $ cargo run --example two_nics
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use roce::device::{Completion, Context, Cq, Init, Pd, Qp, Rc};
use roce::link::{Link, cable};
use roce::nic::SoftNic;
use roce::verbs::{Access, Connect};
use roce::wire::Gid;

mod common;

/// Objects of a program at its NIC: a protection domain, a completion queue and a QP that is not
/// connected yet.
type Objects = (Pd, Cq, Qp<Rc, Init>);

fn open(link: Link) -> Result<Objects, Box<dyn Error>> {
    let context = Context::new(SoftNic::start(link)?);
    let (pd, cq) = (context.create_pd()?, context.create_cq(16)?);
    let qp = pd.qp(&cq).build::<Rc>()?;
    Ok((pd, cq, qp))
}

/// Waits for a completion, which must be a success.
fn wait(who: &str, cq: &Cq) -> Result<Completion, Box<dyn Error>> {
    let completion = cq.wait(None)?;
    println!("{who}: {:?}", completion.wc);
    Ok(completion.into_result().map_err(|status| status.to_string())?)
}

fn run() -> Result<(), Box<dyn Error>> {
    common::none()?;
    let [here, there] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(here, there)?;
    let ((a_pd, a_cq, a), (b_pd, b_cq, b)) = (open(a)?, open(b)?);

    // Each side tells the other its address, QPN and first PSN, by any means: here both are in one
    // process.
    let (a_end, b_end) = (a.endpoint()?, b.endpoint()?);
    let a = a.connect(&b_end, &Connect::default())?;
    let b = b.connect(&a_end, &Connect::default())?;

    // SEND: needs a receive at the responder. The buffers belong to the NICs until they complete.
    b.recv(7, b_pd.create_buf(64)?)?;
    let mut message = a_pd.create_buf(5)?;
    message.write(0, b"hello")?;
    a.send(1, message)?;
    assert_eq!(wait("responder", &b_cq)?.payload(), b"hello");
    let message = wait("requester", &a_cq)?.into_buf().ok_or("the buffer comes back")?;

    // WRITE and READ: need the address and the R_Key, and the responder's program does nothing.
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let shared = b_pd.allocate(4096, rights)?;
    let published = shared.slice(1024..1029)?.remote();
    a.write(2, message, published)?;
    wait("requester", &a_cq)?;
    a.read(3, published, a_pd.create_buf(5)?)?;
    assert_eq!(wait("requester", &a_cq)?.payload(), b"hello");
    Ok(())
}

fn main() -> ExitCode {
    common::end("two_nics", run())
}
