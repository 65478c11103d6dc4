//! The second pass on all cores: some decode, some judge, one says the verdicts in order.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};

use anyhow::{Error, Result};
use roce::replay::{Judges, PacketBatch, Router, Session, Step, Survey, Verdicts};

use super::judge::Seen;
use crate::batches::{self, Part};
use crate::input::Inputs;
use crate::progress::Progress;

/// Batches that are judged or wait for it.
const INFLIGHT_MAX: usize = 4;

/// Verdicts on one batch, with numbers that tell their order.
type Steps = Vec<(u32, Step)>;

/// Judges all packets on `threads` threads. Returns what both passes found.
pub(super) fn judge_all(
    session: Session,
    inputs: &mut Inputs,
    (port, threads): (u16, usize),
    seen: &mut Seen,
) -> Result<Arc<Survey>> {
    let Session { mut router, judges, verdicts } = session;
    let bar = Progress::new(inputs.size(), false);
    let knows_damaged = verdicts.survey().knows_damaged();
    let survey = thread::scope(|scope| {
        let mut bench = Bench::new(scope, judges, threads, verdicts);
        let work = |part: &mut Part<PacketBatch>| {
            let Part { batch, decoder, made, .. } = part;
            made.clear();
            for record in batch.records() {
                let file = u16::try_from(record.file).unwrap_or(u16::MAX);
                decoder.decode_with(&record, |context| {
                    if knows_damaged {
                        made.push_unverified(context, file);
                    } else {
                        made.push(context, file);
                    }
                });
            }
        };
        let take = |part: &mut Part<PacketBatch>| {
            router.route(&mut part.made);
            bench.judge(&mut part.made, seen)?;
            bar.set_position(part.bytes_read);
            Ok::<(), Error>(())
        };
        batches::decode(threads, inputs, port, PacketBatch::default, work, take)?;
        bench.finish(router, seen)
    })?;
    bar.finish_and_clear();
    inputs.finish();
    Ok(survey)
}

/// The judges, each on a thread of its own if there are several.
struct Bench {
    verdicts: Verdicts,
    judges: Vec<Hired>,
    /// Batches that are judged, the oldest first.
    inflight: VecDeque<Arc<PacketBatch>>,
    /// Batches to use again.
    spare: Vec<PacketBatch>,
    /// Verdicts that are collected and not said yet.
    steps: Steps,
}

/// Judges, and how they are reached.
enum Hired {
    Here(Box<Judges>),
    /// On another thread: batches go there, verdicts come back in the same order. Those at the end
    /// of the capture are the last.
    There(Option<SyncSender<Arc<PacketBatch>>>, Receiver<Steps>),
}

impl Bench {
    fn new<'s>(
        scope: &'s Scope<'s, '_>,
        judges: Judges,
        threads: usize,
        verdicts: Verdicts,
    ) -> Self {
        let mut parts = judges.split(threads);
        let judges = match parts.pop() {
            Some(all) if parts.is_empty() => vec![Hired::Here(Box::new(all))],
            last => parts.into_iter().chain(last).map(|part| hire(scope, part)).collect(),
        };
        Self { verdicts, judges, inflight: VecDeque::new(), spare: Vec::new(), steps: Vec::new() }
    }

    /// Has the packets of a batch judged, which was routed, and leaves an empty one in its place.
    fn judge(&mut self, batch: &mut PacketBatch, seen: &mut Seen) -> Result<()> {
        if let [Hired::Here(judges)] = self.judges.as_mut_slice() {
            judges.judge(batch, &mut self.steps);
            return self.tell(seen);
        }
        let batch = Arc::new(mem::replace(batch, self.spare.pop().unwrap_or_default()));
        for judges in &self.judges {
            if let Hired::There(Some(batches), _) = judges {
                // Fails if the thread panicked, which is told when it is joined.
                let _ = batches.send(Arc::clone(&batch));
            }
        }
        self.inflight.push_back(batch);
        while self.inflight.len() > INFLIGHT_MAX {
            self.collect(seen)?;
        }
        Ok(())
    }

    /// Says the verdicts on the oldest batch.
    fn collect(&mut self, seen: &mut Seen) -> Result<()> {
        self.receive();
        if let Some(batch) = self.inflight.pop_front().and_then(|batch| Arc::try_unwrap(batch).ok())
        {
            self.spare.push(batch);
        }
        self.tell(seen)
    }

    /// Receives the next verdicts of all threads.
    fn receive(&mut self) {
        for judges in &self.judges {
            if let Hired::There(_, verdicts) = judges
                && let Ok(mut steps) = verdicts.recv()
            {
                self.steps.append(&mut steps);
            }
        }
    }

    /// Says the verdicts that were collected.
    fn tell(&mut self, seen: &mut Seen) -> Result<()> {
        self.verdicts.tell(&mut self.steps, seen);
        seen.print(self.verdicts.survey())
    }

    /// The capture is over.
    fn finish(mut self, router: Router, seen: &mut Seen) -> Result<Arc<Survey>> {
        let mut batch = PacketBatch::default();
        let survey = router.finish(&mut batch);
        self.judge(&mut batch, seen)?;
        while !self.inflight.is_empty() {
            self.collect(seen)?;
        }
        for judges in &mut self.judges {
            match judges {
                Hired::Here(judges) => judges.finish(&mut self.steps),
                Hired::There(batches, _) => drop(batches.take()),
            }
        }
        self.receive();
        self.tell(seen)?;
        Ok(survey)
    }
}

/// Starts a thread for some judges.
fn hire<'s>(scope: &'s Scope<'s, '_>, mut judges: Judges) -> Hired {
    let (batches, work) = sync_channel::<Arc<PacketBatch>>(INFLIGHT_MAX);
    let (done, verdicts) = sync_channel(INFLIGHT_MAX + 2);
    scope.spawn(move || {
        for batch in work {
            let mut steps = Vec::new();
            judges.judge(&batch, &mut steps);
            drop(batch);
            if done.send(steps).is_err() {
                return;
            }
        }
        let mut steps = Vec::new();
        judges.finish(&mut steps);
        let _ = done.send(steps);
    });
    Hired::There(Some(batches), verdicts)
}
