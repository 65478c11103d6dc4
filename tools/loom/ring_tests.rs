//! The words of a packet ring under the C11 memory model: every interleaving of its two ends.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::words::RingWords;

/// Bytes of a record.
const RECORD: u64 = 16;

/// Checks every interleaving with at most three preemptions: without this bound it takes minutes,
/// and finds no more.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[derive(Default)]
struct Ring {
    head: AtomicU64,
    express: AtomicU64,
    express_record: [AtomicU64; 2],
    tail: AtomicU64,
    asleep: AtomicU64,
    adopted: AtomicU64,
    /// Records, each of which the producer writes before it publishes it.
    records: [AtomicU64; 2],
    bell: Mutex<u32>,
    rung: Condvar,
}

impl Ring {
    fn words(&self) -> RingWords<'_> {
        let Self { head, express, tail, asleep, adopted, .. } = self;
        RingWords { head, express, tail, asleep, adopted }
    }

    fn publish(&self, head: u64) {
        if self.words().publish(head) {
            *self.bell.lock().unwrap() += 1;
            self.rung.notify_one();
        }
    }

    /// Sleeps until the bell rings. Without an end: loom reports a wake-up that is lost as a
    /// deadlock.
    fn sleep(&self) {
        let mut bell = self.bell.lock().unwrap();
        while *bell == 0 {
            bell = self.rung.wait(bell).unwrap();
        }
        *bell = 0;
    }
}

#[test]
fn consumer_that_sleeps_is_woken_for_every_record() {
    model(|| {
        let ring = Arc::new(Ring::default());
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for (number, record) in (1..).zip(&ring.records) {
                    record.store(number, Ordering::Relaxed);
                    ring.publish(number * RECORD);
                }
            })
        };
        let (mut taken, mut records) = (0, ring.records.iter());
        while taken < 2 {
            let published = ring.words().published();
            if published == taken * RECORD {
                if ring.words().announce_sleep(taken * RECORD) {
                    ring.sleep();
                }
                continue;
            }
            while taken * RECORD < published {
                let record = records.next().unwrap().load(Ordering::Relaxed);
                assert_eq!(record, taken + 1, "written before it was published");
                taken += 1;
            }
            ring.words().free(published);
        }
        producer.join().unwrap();
    });
}

#[test]
fn room_is_free_when_its_record_was_read() {
    model(|| {
        let ring = Arc::new(Ring::default());
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.records[0].store(1, Ordering::Relaxed);
                ring.publish(RECORD);
                // The room of one record is used again once it is free.
                if ring.words().handled() == RECORD {
                    ring.records[0].store(2, Ordering::Relaxed);
                    ring.publish(2 * RECORD);
                }
            })
        };
        if ring.words().published() == RECORD {
            assert_eq!(ring.records[0].load(Ordering::Relaxed), 1, "not yet written anew");
            ring.words().free(RECORD);
        }
        producer.join().unwrap();
    });
}

#[test]
fn express_record_is_whole() {
    model(|| {
        let ring = Arc::new(Ring::default());
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for number in 1..=2 {
                    let head = number * RECORD;
                    ring.words().put_express(head, || {
                        for part in &ring.express_record {
                            part.store(number, Ordering::Relaxed);
                        }
                    });
                    ring.publish(head);
                }
            })
        };
        let published = ring.words().published();
        let mut record = [0; 2];
        let is_whole = published > 0
            && ring.words().take_express(published, || {
                record = [0, 1].map(|at| ring.express_record[at].load(Ordering::Relaxed));
            });
        if is_whole {
            assert_eq!(record, [published / RECORD; 2]);
        }
        producer.join().unwrap();
    });
}
