//! An echo server and its client over RDMA, as one writes them with sockets.
//!
//! ```console
//! $ cargo run --example echo                                         # both in one process
//! $ cargo run --example echo -- serve 127.0.0.1:7000 &               # or each for itself
//! $ cargo run --example echo -- connect 127.0.0.1:7000 hello world
//! $ cargo run --features tokio --example echo -- --async             # the same by futures
//! $ cargo run --example echo -- -d verbs:rxe0 serve 192.0.2.1:7000   # the same on a card
//! ```

use std::error::Error;
use std::process::ExitCode;

use roce::net::{Connection, Endpoint, Listener};

mod common;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const WORDS: [&str; 3] = ["hello", "over RDMA", "without a line of TCP"];

const USAGE: &str =
    "echo [--async | [-d DEVICE] {serve ADDRESS:PORT | connect ADDRESS:PORT WORD...}]";

/// Sends back each message until the client closes the connection.
fn echo(connection: &Connection) -> Result {
    let (mut message, mut count) = (Vec::new(), 0);
    while connection.recv_into(&mut message)? {
        connection.send(&message)?;
        count += 1;
    }
    connection.close()?;
    println!("server: {count} messages");
    Ok(())
}

/// Sends words, and prints what comes back.
fn talk(connection: &Connection, words: &[String]) -> Result {
    for word in words {
        connection.send(word.as_bytes())?;
        let answer = connection.recv()?.ok_or("the server has closed the connection")?;
        println!("client: {}", String::from_utf8(answer)?);
    }
    // A message of any size is one message.
    connection.send(&vec![7; 500_000])?;
    let answer = connection.recv()?.ok_or("the server has closed the connection")?;
    println!("client: {} bytes", answer.len());
    Ok(connection.close()?)
}

/// Each client gets a thread.
fn serve(listener: &Listener) -> Result {
    println!("listening at {}", listener.local_addr()?);
    loop {
        let connection = listener.accept()?;
        std::thread::spawn(move || {
            echo(&connection).unwrap_or_else(|error| eprintln!("server: {error}"));
        });
    }
}

/// Server and client in one process.
fn both() -> Result {
    let listener = Listener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let server = std::thread::spawn(move || echo(&listener.accept()?));
    talk(&Connection::connect(at)?, &WORDS.map(str::to_owned))?;
    server.join().map_err(|_| "the server panicked")?
}

/// Runs both sides by futures: a task for the server, and no thread.
#[cfg(feature = "tokio")]
fn both_async() -> Result {
    use roce::net::asynchronous::{Connection, Listener};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = Listener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let server = tokio::spawn(async move {
            let connection = listener.accept().await?;
            let mut message = Vec::new();
            while connection.recv_into(&mut message).await? {
                connection.send(&message).await?;
            }
            connection.close().await
        });
        let connection = Connection::connect(at).await?;
        for word in WORDS {
            connection.send(word.as_bytes()).await?;
            let answer = connection.recv().await?.ok_or("the server has closed the connection")?;
            println!("client: {}", String::from_utf8(answer)?);
        }
        connection.close().await?;
        Ok(server.await??)
    })
}

#[cfg(not(feature = "tokio"))]
fn both_async() -> Result {
    Err("--async needs the feature: cargo run --features tokio --example echo -- --async".into())
}

fn run() -> Result {
    let mut given: Vec<String> = std::env::args().skip(1).collect();
    // Which device: a soft NIC at the address, unless -d names another.
    let device = match given.iter().position(|argument| argument == "-d") {
        Some(at) if at + 1 < given.len() => given.drain(at..at + 2).nth(1),
        _ => None,
    };
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    match given.as_slice() {
        [] => both(),
        ["--async"] => both_async(),
        ["serve", at] => {
            let at = common::address(at)?;
            let listener = match device {
                Some(device) => Endpoint::open(&device)?.listen(at)?,
                None => Listener::bind(at)?,
            };
            serve(&listener)
        }
        ["connect", to, words @ ..] => {
            let to = common::address(to)?;
            let connection = match device {
                Some(device) => Endpoint::open(&device)?.connect(to)?,
                None => Connection::connect(to)?,
            };
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            talk(&connection, &words)
        }
        _ => Err(common::wrong(&given, USAGE).into()),
    }
}

fn main() -> ExitCode {
    common::end("echo", run())
}
