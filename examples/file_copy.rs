//! Copies a file to another machine by RDMA WRITE: the receiver publishes memory, and the sender
//! writes into it.
//!
//! The receiver's program does nothing while the data comes. It reads a counter that the sender
//! writes beside the data, and shows how far it is.
//!
//! ```console
//! $ cargo run --example file_copy -- FROM TO                              # both in one process
//! $ cargo run --example file_copy -- receive 127.0.0.1:7001 TO &          # or each for itself
//! $ cargo run --example file_copy -- send FROM 127.0.0.1:7001
//! $ cargo run --example file_copy -- receive 192.0.2.1:7001 TO -d verbs:rxe0   # the same on a card
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use roce::net::{Connection, Endpoint, Error as NetError, Listener, Operation};
use roce::verbs::Access;

mod common;
use common::address;

const USAGE: &str =
    "file_copy FROM TO | {receive ADDRESS:PORT TO | send FROM ADDRESS:PORT} [-d DEVICE]";
type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a WRITE, number of chunks in flight, bytes of the window that the receiver publishes.
const CHUNK: usize = 256 << 10;
const IN_FLIGHT: usize = 4;
const WINDOW: usize = 64 << 20;
const SLOT: usize = CHUNK + 8;

/// Number of the memory that the receiver publishes.
const DATA: u64 = 1;
const PROGRESS: u64 = 2;

fn bar(done: u64, total: u64) {
    let part = usize::try_from(done * 40 / total.max(1)).unwrap_or(40);
    eprint!("\r[{}{}] {done} of {total} bytes", "#".repeat(part), " ".repeat(40 - part));
}

/// Writes a file into the receiver's memory, one window after the other.
fn send(connection: &Connection, path: &str) -> Result {
    let mut file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let total = file.metadata()?.len();
    connection.send(&total.to_le_bytes())?;
    // Each slot of this memory has a chunk and the progress after it; a slot is used again once its
    // WRITEs are done.
    let memory = connection.pd().allocate(IN_FLIGHT * SLOT, Access::LOCAL_WRITE)?;
    let mut in_flight: VecDeque<Operation<'_>> = VecDeque::new();
    let (mut done, mut chunk, mut slots) = (0, vec![0; CHUNK], (0..IN_FLIGHT).cycle());
    while done < total {
        // The receiver says when its memory can be written.
        connection.recv()?.ok_or("the receiver has gone")?;
        let data = connection.lookup(DATA)?.ok_or("nothing is published")?;
        let progress = connection.lookup(PROGRESS)?.ok_or("nothing is published")?;
        let end = data.len.min(total - done);
        for at in (0..end).step_by(CHUNK) {
            if in_flight.len() == IN_FLIGHT {
                in_flight.pop_front().ok_or("four are in flight")?.wait()?;
            }
            let slot = SLOT * slots.next().unwrap_or_default();
            let len = CHUNK.min(usize::try_from(end - at)?);
            file.read_exact(&mut chunk[..len])?;
            memory.write(slot, &chunk[..len])?;
            memory.write(slot + CHUNK, &(done + at + len as u64).to_le_bytes())?;
            let to = data.part(at, len as u64).ok_or("a chunk lies in the window")?;
            // WRITEs are done in order: it is enough to wait for the second.
            drop(connection.begin_write(memory.slice(slot..slot + len)?, to)?);
            let counter = memory.slice(slot + CHUNK..slot + SLOT)?;
            in_flight.push_back(connection.begin_write(counter, progress)?);
        }
        done += end;
        // A message arrives after what was written before it.
        connection.send(&end.to_le_bytes())?;
    }
    connection.recv()?.ok_or("the receiver has gone")?;
    Ok(connection.close()?)
}

/// Publishes memory, and writes to a file what the sender put there.
fn receive(connection: &Connection, path: &str) -> Result {
    let mut file = File::create(path).map_err(|error| format!("{path}: {error}"))?;
    let total = connection.recv()?.ok_or("the sender has gone")?;
    let total = u64::from_le_bytes(total.try_into().map_err(|_| "a length has eight bytes")?);
    let window = connection.allocate(WINDOW.min(usize::try_from(total)?).max(1))?;
    let progress = connection.allocate(8)?;
    connection.publish(DATA, &window.slice(..)?)?;
    connection.publish(PROGRESS, &progress.slice(..)?)?;
    let (mut done, mut message) = (0, Vec::new());
    while done < total {
        connection.send(b"go")?;
        loop {
            match connection.recv_timeout(&mut message, Duration::from_millis(100)) {
                Ok(true) => break,
                Ok(false) => return Err("the sender has gone".into()),
                Err(NetError::TimedOut) => {
                    let mut count = [0; 8];
                    progress.read(0, &mut count)?;
                    bar(u64::from_le_bytes(count), total);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let len = message.as_slice().try_into().map_err(|_| "a length has eight bytes")?;
        let len = usize::try_from(u64::from_le_bytes(len))?;
        let mut bytes = vec![0; len.min(window.len())];
        window.read(0, &mut bytes)?;
        file.write_all(&bytes)?;
        done += bytes.len() as u64;
    }
    bar(done, total);
    eprintln!();
    file.sync_all()?;
    connection.send(b"done")?;
    Ok(connection.close()?)
}

fn accept(listener: &Listener, path: &str) -> Result {
    println!("listening at {}", listener.local_addr()?);
    receive(&listener.accept()?, path)
}

fn run() -> Result {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    match *given.as_slice() {
        ["receive", at, path] => accept(&Listener::bind(address(at)?)?, path),
        ["receive", at, path, "-d", on] => accept(&Endpoint::open(on)?.listen(address(at)?)?, path),
        ["send", path, to] => send(&Connection::connect(address(to)?)?, path),
        ["send", path, to, "-d", on] => send(&Endpoint::open(on)?.connect(address(to)?)?, path),
        [from, to] => {
            File::create(to).map_err(|error| format!("{to}: {error}"))?;
            let (listener, to) = (Listener::bind("127.0.0.1:0")?, to.to_owned());
            let at = listener.local_addr()?;
            let receiver = std::thread::spawn(move || receive(&listener.accept()?, &to));
            send(&Connection::connect(at)?, from)?;
            receiver.join().map_err(|_| "the receiver panicked")?
        }
        _ => Err(common::wrong(&given, USAGE).into()),
    }
}

fn main() -> ExitCode {
    common::end("file_copy", run())
}
