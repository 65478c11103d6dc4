//! What a group is like.

use std::time::Duration;

use super::limits::THREADS_MAX;
use crate::net;
use crate::setters::setters;

/// How a [`Group`](super::Group) behaves.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of threads, the same at every server.
    pub threads: usize,
    /// Number of messages that are queued for a peer before the doorbell rings by itself.
    pub doorbell_batch: usize,
    /// How long it takes until a connection that could not be made is tried again, the first time. It doubles each time.
    pub backoff_min: Duration,
    /// The same, at the most.
    pub backoff_max: Duration,
    /// How connections behave: the size of the circular buffers, timeouts.
    pub net: net::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 1,
            doorbell_batch: 16,
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            // A connection that is given up too early is made again without a loss: a death may be noticed soon.
            net: net::Config::default()
                .connect_timeout(Duration::from_secs(1))
                .keepalive(Duration::from_millis(200))
                .retries(3),
        }
    }
}

impl Config {
    setters! {
        threads: usize,
        doorbell_batch: usize,
        backoff_min: Duration,
        backoff_max: Duration,
        net: net::Config,
    }

    /// Threads, within their bounds.
    pub(super) fn threads_bounded(&self) -> usize {
        self.threads.clamp(1, THREADS_MAX)
    }
}
