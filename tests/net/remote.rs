//! Operations on published memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use roce::device::Memory;
use roce::net::{Connection, Endpoint, Error};
use roce::verbs::Access;

use crate::{endpoint, loopback, message, pair};

fn connected(host: u8) -> (Connection, Connection, Endpoint) {
    let (client, server) = (endpoint(loopback(host, 1), None), endpoint(loopback(host, 2), None));
    let (a, b) = pair(&server, (loopback(host, 2), 0).into(), &client);
    (a, b, server)
}

#[test]
fn published_memory_is_found_read_and_written() {
    let (a, b, server) = connected(1);
    assert_eq!(a.lookup(7).unwrap(), None);
    let memories: Vec<_> = (0..64).map(|_| server.allocate(1024).unwrap()).collect();
    for (id, memory) in (0..).zip(&memories) {
        b.publish(id, &memory.slice(..).unwrap()).unwrap();
    }
    let full = b.publish(64, &memories[0].slice(..).unwrap());
    assert!(matches!(full, Err(Error::DirectoryFull(64))));
    for id in [0, 7, 63] {
        let found = a.lookup(id).unwrap().unwrap();
        assert_eq!(found, memories[usize::try_from(id).unwrap()].remote());
        let bytes = message(usize::try_from(id).unwrap(), 1024);
        a.write(&bytes, found).unwrap();
        assert_eq!(memories[usize::try_from(id).unwrap()].to_vec(), bytes);
        assert_eq!(a.read(found.part(100, 50).unwrap()).unwrap(), bytes[100..150]);
    }
    // Another region under the same number.
    b.publish(7, &memories[8].slice(16..32).unwrap()).unwrap();
    assert_eq!(a.lookup(7).unwrap(), Some(memories[8].slice(16..32).unwrap().remote()));
    let short = a.lookup(7).unwrap().unwrap();
    assert!(matches!(a.write(&[0; 17], short), Err(Error::TooShort { needed: 17, len: 16 })));
    assert!(matches!(a.fetch_add(short.part(9, 7).unwrap(), 1), Err(Error::TooShort { .. })));
}

#[test]
fn withdrawn_memory_is_not_found_and_its_place_serves_another() {
    let (a, b, server) = connected(11);
    let memory = server.allocate(64).unwrap();
    for id in 0..64 {
        b.publish(id, &memory.slice(..).unwrap()).unwrap();
    }
    assert!(b.unpublish(5) && !b.unpublish(5) && !b.unpublish(64));
    assert_eq!(a.lookup(5).unwrap(), None);
    // Memory that is registered without a region of this crate's.
    let other = server.allocate(32).unwrap();
    b.publish_remote(99, other.remote()).unwrap();
    assert_eq!(a.lookup(99).unwrap(), Some(other.remote()));
    assert!(matches!(b.publish_remote(100, other.remote()), Err(Error::DirectoryFull(64))));
    assert_eq!(a.lookup(63).unwrap(), Some(memory.remote()));
}

#[test]
fn operations_wait_no_longer_than_their_timeout() {
    let (a, b, server) = connected(12);
    let memory = server.allocate(64).unwrap();
    b.publish(1, &memory.slice(..).unwrap()).unwrap();
    let at = a.lookup_timeout(1, Duration::MAX).unwrap().unwrap();
    // The bounds are checked before anything is waited for.
    let none = Duration::ZERO;
    assert!(matches!(a.write_timeout(&[0; 65], at, none), Err(Error::TooShort { .. })));
    assert!(a.read_timeout(at.part(0, 0).unwrap(), none).unwrap().is_empty());
    for _ in 0..100 {
        // Each may be done at once, or be done later: both keep its memory until then.
        let results = [
            a.write_timeout(&[7; 64], at, none),
            a.read_timeout(at, none).map(drop),
            a.fetch_add_timeout(at, 0, none).map(drop),
            a.compare_swap_timeout(at, 1, 1, none).map(drop),
            a.lookup_timeout(1, none).map(drop),
        ];
        let is_expected = |it: &Result<(), Error>| matches!(it, Ok(()) | Err(Error::TimedOut));
        assert!(results.iter().all(is_expected), "{results:?}");
    }
    assert_eq!(a.read(at).unwrap(), [7; 64]);
    a.finish_timeout(Duration::MAX).unwrap();
    assert_eq!(b.recv().unwrap(), None);
}

#[test]
fn atomics_count_from_both_sides_and_many_threads() {
    let (a, b, server) = connected(2);
    let counter = server.allocate(8).unwrap();
    b.publish(1, &counter.slice(..).unwrap()).unwrap();
    let at = a.lookup(1).unwrap().unwrap();
    let wins = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    a.fetch_add(at, 2).unwrap();
                }
            });
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let was = a.compare_swap(at, 300, 301).unwrap();
                wins.fetch_add(usize::from(was == 300), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(wins.load(Ordering::Relaxed), 1);
    assert_eq!(counter.to_vec(), 301_u64.to_ne_bytes());
}

#[test]
fn operations_are_pipelined_and_their_memory_comes_back() {
    let (a, b, server) = connected(3);
    let memory = server.allocate(200 * 512).unwrap();
    b.publish(1, &memory.slice(..).unwrap()).unwrap();
    let to = a.lookup(1).unwrap().unwrap();
    let bufs = a.pd().create_bufs(200, 512).unwrap();
    let mut begun = Vec::new();
    for (number, mut buf) in bufs.into_iter().enumerate() {
        buf.write(0, &message(number, 512)).unwrap();
        // More than may be begun at a time: the oldest are waited for, some are dropped.
        if begun.len() == 40 {
            let operation: roce::net::Operation<'_> = begun.remove(0);
            if number % 3 == 0 {
                drop(operation);
            } else {
                assert!(matches!(operation.wait().unwrap(), Memory::Owned(_)));
            }
        }
        begun.push(a.begin_write(buf, to.part(number as u64 * 512, 512).unwrap()).unwrap());
    }
    // A message arrives after what was written before.
    a.send(b"written").unwrap();
    assert_eq!(b.recv().unwrap().as_deref(), Some(&b"written"[..]));
    let expected: Vec<u8> = (0..200).flat_map(|number| message(number, 512)).collect();
    assert_eq!(memory.to_vec(), expected);
    begun.into_iter().for_each(|operation| drop(operation.wait().unwrap()));
    // A list of parts is scattered to.
    let parts = vec![a.pd().create_buf(100).unwrap(), a.pd().create_buf(412).unwrap()];
    let read = a.begin_read(to.part(0, 512).unwrap(), parts).unwrap().wait().unwrap();
    assert_eq!(read.to_vec(), message(0, 512));
}

#[test]
fn an_operation_that_the_peer_refuses_ends_the_connection() {
    let (a, b, server) = connected(4);
    let memory = server.pd().allocate(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    b.publish(1, &memory.slice(..).unwrap()).unwrap();
    let to = a.lookup(1).unwrap().unwrap();
    let refused = a.write(b"no right to it", to);
    assert!(matches!(refused, Err(Error::Lost(_))), "{refused:?}");
    assert_eq!(memory.to_vec(), [0; 64]);
    assert!(a.send(b"after").is_err());
}
