//! `roce::net` by futures: `cargo test --features tokio --test net_async`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

mod common;

use common::loopback::{device, loopback};
use roce::net::asynchronous::{Connection, Listener};
use roce::net::{Config, Endpoint, Error};

const WAIT: Duration = Duration::from_secs(60);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(WAIT, future).await });
    result.expect("it ends")
}

fn endpoint(host: u8, number: u8) -> Endpoint {
    let config = Config::default().ring(64 << 10).linger(WAIT).connect_timeout(WAIT);
    Endpoint::open(&device(host, number)).unwrap().with(config)
}

async fn pair(host: u8) -> (Connection, Connection, Endpoint) {
    let (client, server) = (endpoint(host, 1), endpoint(host, 2));
    let listener = Listener::from(server.listen((loopback(host, 2), 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await.unwrap() });
    let connection = Connection::connect_from(&client, at).await.unwrap();
    (connection, accepting.await.unwrap(), server)
}

fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((number * 31 + at * 7) % 251).unwrap()).collect()
}

#[test]
fn messages_flow_both_ways_in_one_thread() {
    block_on(async {
        let (a, b, _server) = pair(1).await;
        let lengths = [0, 1, 64, 250, 5000, 16_376, 16_377, 200_000];
        let mut tasks = Vec::new();
        for (from, to) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            tasks.push(tokio::spawn(async move {
                for (number, len) in lengths.into_iter().enumerate().cycle().take(80) {
                    from.send(&message(number, len)).await.unwrap();
                }
                from.get_ref().finish().unwrap();
            }));
            tasks.push(tokio::spawn(async move {
                let mut room = Vec::new();
                for (number, len) in lengths.into_iter().enumerate().cycle().take(80) {
                    assert!(to.recv_into(&mut room).await.unwrap());
                    assert_eq!(room, message(number, len));
                }
                assert_eq!(to.recv().await.unwrap(), None);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_future_that_is_dropped_loses_no_message() {
    block_on(async {
        let (a, b, _server) = pair(2).await;
        let sender = tokio::spawn(async move {
            for number in 0..50 {
                a.send(&message(number, 3000 * (number % 20))).await.unwrap();
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
            a.close().await.unwrap();
        });
        let mut number = 0;
        loop {
            // Most of these are given up.
            let received = tokio::time::timeout(Duration::from_micros(200), b.recv()).await;
            match received {
                Err(_) => {}
                Ok(Ok(Some(received))) => {
                    assert!(received == message(number, 3000 * (number % 20)), "{number}");
                    number += 1;
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => panic!("{error}"),
            }
        }
        assert_eq!(number, 50);
        b.close().await.unwrap();
        sender.await.unwrap();
    });
}

#[test]
fn a_full_ring_suspends_the_sender() {
    block_on(async {
        let (a, b, _server) = pair(3).await;
        let mut sent = 0;
        while a.get_ref().try_send(&message(sent, 1000)).is_ok() {
            sent += 1;
        }
        assert!(sent > 40);
        let suspended = tokio::time::timeout(Duration::from_millis(20), a.send(&[0; 1000])).await;
        assert!(suspended.is_err(), "the peer does not read");
        let resumed = tokio::spawn(async move { a.send(b"last").await.map(|()| a) });
        for number in 0..sent {
            assert_eq!(b.recv().await.unwrap(), Some(message(number, 1000)));
        }
        assert_eq!(b.recv().await.unwrap().as_deref(), Some(&b"last"[..]));
        drop(resumed.await.unwrap().unwrap());
    });
}

#[test]
fn operations_are_futures() {
    block_on(async {
        let (a, b, server) = pair(4).await;
        let memory = server.allocate(4096).unwrap();
        b.get_ref().publish(1, &memory.slice(..).unwrap()).unwrap();
        let at = a.get_ref().lookup(1).unwrap().unwrap();
        let mut buf = a.get_ref().pd().create_buf(500).unwrap();
        buf.write(0, &message(1, 500)).unwrap();
        let buf = a.write(buf, at).await.unwrap();
        assert_eq!(memory.to_vec()[..500], message(1, 500));
        let read = a.read(at.part(100, 300).unwrap(), a.get_ref().pd().create_buf(300).unwrap());
        assert_eq!(read.await.unwrap().to_vec(), message(1, 500)[100..400]);
        let short = a.write(buf, at.part(0, 10).unwrap()).await;
        assert!(matches!(short, Err(Error::TooShort { .. })));
    });
}
