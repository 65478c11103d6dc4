//! Configuration of a group.

use std::time::Duration;

use super::limits::THREADS_MAX;
use super::secret::Secret;
use crate::net;
use crate::setters::setters;

/// Sizes, times and the secret of a [`Group`](super::Group).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of threads, the same at every server.
    pub threads: usize,
    /// Number of messages that are queued for a peer before the doorbell rings by itself.
    pub doorbell_batch: usize,
    /// Time until a connection that could not be made is tried once more, the first time. It
    /// doubles each time.
    pub backoff_min: Duration,
    /// Maximum of that time.
    pub backoff_max: Duration,
    /// Time that the end of a group waits for its messages to be delivered, at most.
    pub linger: Duration,
    /// Time without a connection after which a peer that was connected before counts as lost.
    pub lost_after: Duration,
    /// The secret that every member must prove to know. Without one the environment variable
    /// `ROCE_GROUP_SECRET` has it; if that is not set, either, a program that sends from the
    /// address of a server can take its place.
    pub secret: Option<Secret>,
    /// Sizes and times of connections: the circular buffers, timeouts.
    pub net: net::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 1,
            doorbell_batch: 16,
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            linger: Duration::from_secs(10),
            lost_after: Duration::from_secs(15),
            secret: None,
            // A connection that is given up too early is made again without a loss: a death may be
            // noticed soon.
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
        linger: Duration,
        lost_after: Duration,
        net: net::Config,
    }

    /// Sets [`secret`](Self#structfield.secret).
    #[must_use]
    pub fn secret(self, secret: Secret) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Threads, within their bounds.
    pub(super) fn threads_bounded(&self) -> usize {
        self.threads.clamp(1, THREADS_MAX)
    }
}
