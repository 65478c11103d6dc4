//! Both ends of a ring, and ends that write what cannot be.

use std::sync::atomic::Ordering;

use super::*;
use crate::link::testing::PATH;
use crate::memory::{Buffer, Payload, Region};
use crate::random::Random;
use crate::wire::{Bth, BthRepr, Opcode, PACKET_MAX, Psn, Qpn};

fn ring() -> (Producer, Consumer) {
    let (producer, offer) = Producer::new().unwrap();
    assert!(!producer.is_adopted());
    let consumer = Consumer::adopt(offer, PATH.source).unwrap();
    assert!(producer.is_adopted());
    (producer, consumer)
}

fn put(producer: &mut Producer, packet: &[u8]) -> Put {
    let head = RecordHead::new(&PATH, 64, packet.len(), false);
    producer.put(&head, packet.into()).unwrap()
}

fn take(consumer: &mut Consumer) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    consumer.take().unwrap();
    consumer.for_each(&mut [0; PACKET_MAX], |head, packet| {
        assert_eq!(head.source_port, PATH.source_port);
        taken.push(packet.to_vec());
    });
    taken
}

/// A packet of a length and with a content that tell which one it is.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number).to_le_bytes()[0]).collect()
}

#[test]
fn packets_come_out_as_they_went_in_whatever_their_lengths_are() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let (mut producer, mut consumer) = ring();
        let (mut sent, mut received) = (0, 0);
        let mut lens = Vec::new();
        while received < 3000 {
            for _ in 0..below(&mut random, 40) {
                let len = Bth::LEN + below(&mut random, PACKET_MAX - Bth::LEN + 1);
                lens.push(len);
                assert_eq!(put(&mut producer, &packet(sent, len)), Put::Done);
                sent += 1;
            }
            producer.flush().unwrap();
            for _ in 0..below(&mut random, 4) {
                for taken in take(&mut consumer) {
                    assert_eq!(taken, packet(received, lens[received]), "seed {seed}");
                    received += 1;
                }
            }
        }
    }
}

#[test]
fn short_record_that_is_published_alone_is_express() {
    let spoil_record = |producer: &Producer| {
        let (place, _) = RingMemory::place(producer_memory(producer).words().handled());
        producer_memory(producer).0.write(place, &[0; 16]);
    };
    for (len, is_express) in [(Bth::LEN, true), (92, true), (96, true), (97, false), (300, false)] {
        let (mut producer, mut consumer) = ring();
        put(&mut producer, &packet(7, len));
        producer.publish();
        spoil_record(&producer);
        if is_express {
            assert_eq!(take(&mut consumer), [packet(7, len)]);
        } else {
            assert_eq!(consumer.take(), Err(Broken));
        }
    }
}

#[test]
fn express_record_that_is_another_one_is_not_taken() {
    let (mut producer, mut consumer) = ring();
    // Of two records, the first is beside the head of neither.
    put(&mut producer, &packet(1, 40));
    put(&mut producer, &packet(2, 40));
    producer.publish();
    assert_eq!(take(&mut consumer), [packet(1, 40), packet(2, 40)]);
    // The consumer is late: the second is express, and the first goes before it.
    for number in [3, 4] {
        put(&mut producer, &packet(number, 40));
        producer.publish();
    }
    assert_eq!(take(&mut consumer), [packet(3, 40), packet(4, 40)]);
    // The producer is writing it.
    put(&mut producer, &packet(5, 40));
    producer.publish();
    producer_memory(&producer).words().express.store(0, Ordering::Relaxed);
    producer_memory(&producer).0.write(EXPRESS, &[0xff; EXPRESS_ROOM]);
    assert_eq!(take(&mut consumer), [packet(5, 40)]);
    // Its head names a length that does not fit.
    for len in [60_u32, 0, u32::MAX] {
        put(&mut producer, &packet(6, 40));
        producer.publish();
        producer_memory(&producer).0.write(EXPRESS, &len.to_ne_bytes());
        assert_eq!(take(&mut consumer), [packet(6, 40)]);
    }
}

#[test]
fn payload_goes_from_memory_to_memory() {
    let (mut producer, mut consumer) = ring();
    let payload: Vec<u8> = (0..4096_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
    let (from, to) = (Buffer::from_bytes(&payload), Buffer::new(4096));
    let bth = BthRepr::new(Opcode::RC_SEND_MIDDLE, Qpn::new(7), Psn::new(9)).emit();
    let room = [bth.as_bytes().as_slice(), &[0; 4096]].concat();
    let head = RecordHead::new(&PATH, 64, room.len(), false);
    let region = from.region();
    // The last ones wait for room, as copies.
    for _ in 0..80 {
        let bytes = Bytes { packet: &room, payload: Some((Bth::LEN, &region)) };
        assert_eq!(producer.put(&head, bytes).unwrap(), Put::Done);
    }
    assert!(producer.has_backlog());
    let mut count = 0;
    while count < 80 {
        producer.flush().unwrap();
        producer.publish();
        consumer.take().unwrap();
        consumer.for_each_apart(&mut [0; PACKET_MAX], |_, headers, apart| {
            assert_eq!(headers, bth.as_bytes());
            to.write(0, &[0; 4096]).unwrap();
            let apart = Payload::Shared(apart.expect("much payload"));
            to.region().write_payload(0, apart).unwrap();
            assert_eq!(to.to_vec(), payload);
            count += 1;
        });
    }
}

#[test]
fn packet_with_payload_that_is_gone_is_not_sent() {
    let (mut producer, mut consumer) = ring();
    let room = packet(0, 2000);
    let region = Region::unmapped(1000);
    let head = RecordHead::new(&PATH, 64, room.len(), false);
    let bytes = Bytes { packet: &room, payload: Some((100, &region)) };
    assert_eq!(producer.put(&head, bytes).unwrap(), Put::Unmapped);
    assert_eq!(put(&mut producer, &packet(1, 2000)), Put::Done);
    producer.publish();
    assert_eq!(take(&mut consumer), [packet(1, 2000)]);
}

#[test]
fn full_ring_keeps_packets_back_and_then_loses_them() {
    let (mut producer, mut consumer) = ring();
    let bytes = packet(0, 4096);
    let kept = (0..10_000).take_while(|_| put(&mut producer, &bytes) == Put::Done).count();
    assert!(producer.has_backlog());
    assert!((1024..1024 + 64).contains(&kept), "{kept}");
    let mut received = 0;
    while received < kept {
        received += take(&mut consumer).len();
        producer.flush().unwrap();
    }
    assert_eq!(received, kept);
    assert!(!producer.has_backlog());
    assert_eq!(put(&mut producer, &bytes), Put::Done);
}

#[test]
fn bell_rings_only_when_the_consumer_sleeps() {
    let (mut producer, mut consumer) = ring();
    let rings = |consumer: &Consumer| {
        let flags = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK;
        rustix::net::recv(consumer.fd(), &mut [0_u8; 1][..], flags).is_ok()
    };
    let bytes = packet(0, 100);
    put(&mut producer, &bytes);
    producer.publish();
    assert!(!rings(&consumer));
    assert!(!consumer.announce_sleep(), "a packet waits");
    assert_eq!(take(&mut consumer).len(), 1);
    assert!(consumer.announce_sleep());
    put(&mut producer, &bytes);
    assert!(!rings(&consumer), "not published yet");
    producer.publish();
    assert!(rings(&consumer) && consumer.silence() && !rings(&consumer));
    put(&mut producer, &bytes);
    producer.publish();
    assert!(!rings(&consumer), "it is awake");
    drop(producer);
    assert!(!consumer.silence() && !consumer.is_over());
    assert_eq!(take(&mut consumer).len(), 2);
    assert!(consumer.is_over());
}

#[test]
fn packets_with_a_wrong_icrc_are_counted_and_dropped() {
    let (mut producer, mut consumer) = ring();
    for is_icrc_wrong in [true, false, true] {
        let head = RecordHead::new(&PATH, 64, 100, is_icrc_wrong);
        producer.put(&head, (&[0; 100][..]).into()).unwrap();
    }
    producer.publish();
    assert_eq!(take(&mut consumer).len(), 1);
    assert_eq!([consumer.take_bad_icrc(), consumer.take_bad_icrc()], [2, 0]);
}

#[test]
fn indices_that_run_away_break_the_ring() {
    for head in [CAPACITY as u64 + 16, u64::MAX, 1 << 63, 7, 16] {
        let (producer, mut consumer) = ring();
        producer_memory(&producer).words().head.store(head, Ordering::Relaxed);
        assert_eq!(consumer.take(), Err(Broken), "{head}");
    }
    for tail in [u64::MAX, 1 << 40, CAPACITY as u64 + 1] {
        let (mut producer, _consumer) = ring();
        put(&mut producer, &packet(0, 4096));
        producer_memory(&producer).words().tail.store(tail, Ordering::Relaxed);
        let (head, bytes) = (RecordHead::new(&PATH, 64, 4096, false), packet(0, 4096));
        let put: Result<Vec<Put>, Broken> =
            (0..100).map(|_| producer.put(&head, bytes.as_slice().into())).collect();
        assert!(put.is_err(), "{tail}");
    }
}

#[test]
fn changed_bytes_break_the_ring_or_are_packets() {
    let (mut broken, mut packets) = (0, 0);
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let (mut producer, mut consumer) = ring();
        for number in 0..20 {
            put(&mut producer, &packet(number, Bth::LEN + below(&mut random, 400)));
        }
        producer.publish();
        let memory = producer_memory(&producer);
        for _ in 0..below(&mut random, 8) {
            memory.0.write(RECORDS + below(&mut random, 4096), &random.next().to_le_bytes()[..1]);
        }
        if below(&mut random, 4) == 0 {
            memory.words().head.store(random.next() % 4096, Ordering::Release);
        }
        for _ in 0..100 {
            match consumer.take() {
                Ok(0) => break,
                Ok(_) => consumer.for_each(&mut [0; PACKET_MAX], |head, packet| {
                    assert_eq!(head.len, packet.len());
                    packets += 1;
                }),
                Err(Broken) => {
                    broken += 1;
                    break;
                }
            }
        }
    }
    assert!(broken > 0 && packets > 0, "{broken} {packets}");
}

fn producer_memory(producer: &Producer) -> &RingMemory {
    &producer.memory
}

/// A number below `bound`.
fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.next()).unwrap() % bound
}
