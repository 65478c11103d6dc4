//! Two NICs on a cable in one process: no network, no connection manager.

use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::sync::Arc;

use roce::device::Context;
use roce::link::cable;
use roce::net::{Callbacks, Connection, Endpoint, Error};
use roce::nic::SoftNic;
use roce::wire::Gid;

use crate::{WAIT, config, lengths, message, pair};

fn connected() -> (Connection, Connection) {
    let gids = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(gids[0], gids[1]).unwrap();
    let [a, b] = [a, b].map(|link| {
        let context = Context::new(SoftNic::start(link).unwrap());
        Endpoint::over_tcp(context).unwrap().with(config())
    });
    pair(&b, "127.0.0.1:0".parse().unwrap(), &a)
}

#[test]
fn messages_of_every_length_arrive_in_order_both_ways() {
    let (a, b) = connected();
    let lengths = lengths(64 << 10);
    std::thread::scope(|scope| {
        for (from, to) in [(&a, &b), (&b, &a)] {
            scope.spawn(|| {
                for (number, len) in lengths.iter().enumerate().cycle().take(60) {
                    from.send(&message(number, *len)).unwrap();
                }
                from.finish().unwrap();
            });
            scope.spawn(|| {
                for (number, len) in lengths.iter().enumerate().cycle().take(60) {
                    assert_eq!(to.recv().unwrap(), Some(message(number, *len)));
                }
                assert_eq!(to.recv().unwrap(), None);
            });
        }
    });
    assert!(matches!(a.send(b"more"), Err(Error::Finished)));
}

#[test]
fn queued_messages_go_with_one_doorbell() {
    let (a, b) = connected();
    for number in 0..200 {
        a.queue(&message(number, number)).unwrap();
    }
    let mut buffer = Vec::new();
    assert!(matches!(b.try_recv(&mut buffer), Err(Error::WouldBlock)), "nothing is posted yet");
    a.flush().unwrap();
    for number in 0..200 {
        assert!(b.recv_timeout(&mut buffer, WAIT).unwrap());
        assert_eq!(buffer, message(number, number));
    }
    let parts = [&b"one "[..], b"", b"message"].map(IoSlice::new);
    a.send_vectored(&parts).unwrap();
    assert_eq!(b.recv().unwrap().as_deref(), Some(&b"one message"[..]));
}

#[test]
fn messages_of_one_doorbell_go_in_one_write() {
    let (a, b) = connected();
    for round in 0..200 {
        let count = 1 + round % 16;
        for number in 1..count {
            a.queue(&message(round + number, 64)).unwrap();
        }
        a.send(&message(round, 64)).unwrap();
        for number in (1..count).chain([0]) {
            assert_eq!(b.recv().unwrap().unwrap(), message(round + number, 64));
        }
    }
    let counters = b.pd().context().device().statistics();
    let writes = counters.iter().find(|(name, _)| *name == "rx_write_requests").unwrap().1;
    // One for each round, and some that only tell of credits.
    assert!((200..240).contains(&writes), "{writes} WRITEs");
}

#[test]
fn a_peer_that_does_not_read_holds_up_the_sender() {
    let (a, b) = connected();
    let mut sent = 0;
    loop {
        match a.try_send(&message(sent, 1000)) {
            Ok(()) => sent += 1,
            Err(Error::WouldBlock) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent >= 48 && a.backlog() <= 64 << 10, "{sent} messages, {} bytes", a.backlog());
    let nothing = std::time::Duration::from_millis(1);
    assert!(matches!(a.send_timeout(&[0; 1000], nothing), Err(Error::TimedOut)));
    // Large messages stay with their sender, and few of them.
    let large = message(1, 20_000);
    let (mut buffer, mut number) = (Vec::new(), 0);
    while number < sent {
        assert!(b.recv_timeout(&mut buffer, WAIT).unwrap());
        assert_eq!(buffer, message(number, 1000));
        number += 1;
    }
    // Waits until the sender has been told that its messages were read.
    a.send(&large).unwrap();
    let mut waiting = 1;
    while a.try_send(&large).is_ok() {
        waiting += 1;
    }
    assert_eq!(waiting, usize::from(roce::net::limits::RENDEZVOUS_MAX));
    for _ in 0..waiting {
        assert_eq!(b.recv().unwrap().as_ref(), Some(&large));
    }
    a.wait_read().unwrap();
    a.send(b"on").unwrap();
    assert_eq!(b.recv().unwrap().as_deref(), Some(&b"on"[..]));
}

#[test]
fn threads_share_a_connection() {
    let (a, b) = connected();
    let echo = b.start(Callbacks::new().on_message(|b, message| b.send(message).unwrap())).unwrap();
    let received = std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let a = &a;
            scope.spawn(move || {
                for number in 0..300_u16 {
                    let [high, low] = number.to_be_bytes();
                    a.send(&[thread, high, low]).unwrap();
                }
            });
        }
        let receivers = [0, 1].map(|_| {
            scope.spawn(|| {
                let mut messages = Vec::new();
                for _ in 0..450 {
                    messages.push(a.recv().unwrap().unwrap());
                }
                messages
            })
        });
        receivers.map(|receiver| receiver.join().unwrap())
    });
    for messages in &received {
        for thread in 0..3 {
            let of_thread: Vec<&Vec<u8>> = messages.iter().filter(|it| it[0] == thread).collect();
            assert!(of_thread.is_sorted(), "each thread's messages stay in order");
        }
    }
    let mut all: Vec<Vec<u8>> = received.into_iter().flatten().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 900, "none is lost or doubled");
    a.close().unwrap();
    echo.join();
}

#[test]
fn memory_may_change_once_it_was_sent() {
    let (a, b) = connected();
    let memory = a.pd().allocate(16_000, roce::verbs::Access::LOCAL_WRITE).unwrap();
    // Of all lengths modulo 8, and more of them than the ring holds.
    for number in 0..200 {
        let len = 4096 + number * 61 % 8000;
        memory.write(0, &message(number, len)).unwrap();
        a.send_region(&memory.slice(..len).unwrap()).unwrap();
        // A message that is copied goes behind.
        a.send(&message(number, 10)).unwrap();
        assert_eq!(b.recv().unwrap().unwrap(), message(number, len));
        assert_eq!(b.recv().unwrap().unwrap(), message(number, 10));
        a.wait_read().unwrap();
    }
    // The region is not needed any more by the program, but by the NIC.
    memory.write(0, &message(1, 5000)).unwrap();
    for _ in 0..2 {
        a.send_region(&memory.slice(..5000).unwrap()).unwrap();
    }
    drop(memory);
    for _ in 0..2 {
        assert_eq!(b.recv().unwrap().unwrap(), message(1, 5000));
    }
    let foreign = b.pd().allocate(8000, roce::verbs::Access::LOCAL_WRITE).unwrap();
    let refused = a.send_region(&foreign.slice(..).unwrap());
    assert!(matches!(refused, Err(Error::Post(roce::verbs::PostError::ForeignMemory))));
}

#[test]
fn memory_is_sent_from_where_it_lies() {
    let (a, b) = connected();
    let access = roce::verbs::Access::LOCAL_WRITE | roce::verbs::Access::REMOTE_READ;
    let memory = a.pd().allocate(200_000, access).unwrap();
    memory.write(0, &message(3, 200_000)).unwrap();
    a.send_region(&memory.slice(1000..150_000).unwrap()).unwrap();
    a.send_region(&memory.slice(0..5).unwrap()).unwrap();
    assert_eq!(b.recv().unwrap().unwrap(), message(3, 200_000)[1000..150_000]);
    assert_eq!(b.recv().unwrap().unwrap(), message(3, 5));
    a.wait_read().unwrap();
    let b = Arc::new(b);
    let waiting = std::thread::spawn({
        let b = Arc::clone(&b);
        move || b.recv().unwrap()
    });
    drop(a);
    assert_eq!(waiting.join().unwrap(), None, "the last handle closes the connection");
}
