//! The loop: claim, read, publish, settle, commit; `run` around `run_once`.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    budget::Budget,
    steps::{Claimed, Pass, Published, Settled, bounded},
};
use crate::{
    backoff::{AWAY, Backoff},
    config::Tuning,
    error::{RelayError, error_chain},
    nats::{connection::Connections, publisher::Publisher},
    postgres::Store,
    telemetry::{health::Heartbeat, metrics::Metrics, traces::Traces},
};

/// One worker of a relay: a connection to PostgreSQL at a time, the relay's connection to NATS.
///
/// [`Relay::run`](crate::Relay::run) runs several. On its own a worker makes one bounded pass at a time, or the
/// steps of a pass one by one: whatever is dropped between two steps is as if the process had died there.
#[derive(Debug)]
pub struct Worker {
    store: Arc<Store>,
    connections: Connections,
    publisher: Option<Publisher>,
    tuning: Tuning,
    metrics: Metrics,
    traces: Option<Traces>,
    heartbeat: Heartbeat,
    /// The worker that marks the relay asleep.
    marks_sleep: bool,
    /// When parked messages were last looked for.
    looked: Option<Instant>,
    budget: Budget,
}

/// The longest pause of the worker that looks for all, where producers send no NOTIFY: see
/// `sleep.sql`.
const NAP: Duration = Duration::from_millis(100);

/// PostgreSQL is there and refuses: each time it may write a line into its log.
const REFUSED: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(5) };

impl Worker {
    pub(crate) fn new(
        store: Arc<Store>,
        connections: Connections,
        tuning: Tuning,
        metrics: Metrics,
        traces: Option<Traces>,
        budget: Budget,
        marks_sleep: bool,
    ) -> Self {
        let heartbeat = metrics.health.heartbeat();
        let (publisher, looked) = (None, None);
        Self {
            store,
            connections,
            publisher,
            tuning,
            metrics,
            heartbeat,
            traces,
            marks_sleep,
            looked,
            budget,
        }
    }

    /// Makes passes until shutdown; the pass under way is finished first.
    pub(crate) async fn run(mut self, mut wake: watch::Receiver<u64>, shutdown: CancellationToken) {
        let poll = Backoff { first: self.tuning.poll_min, max: self.tuning.poll_max };
        let (mut idle_passes, mut failures) = (0_u32, 0_u32);
        while !shutdown.is_cancelled() {
            self.heartbeat.beat();
            wake.mark_unchanged();
            let pause = match self.run_once().await {
                // Its connection is over. What paces new connections is their keeper; a pause here would outlast the outage.
                Ok(Pass::Settled { .. }) if self.publisher.as_ref().is_some_and(Publisher::is_over) => {
                    failures = 0;
                    continue;
                }
                Ok(Pass::Settled { full, .. }) => {
                    (idle_passes, failures) = (0, 0);
                    if full {
                        continue;
                    }
                    poll.delay(0)
                }
                Ok(Pass::Idle) => {
                    failures = 0;
                    idle_passes = idle_passes.saturating_add(1);
                    let pause = poll.delay(idle_passes);
                    if self.may_be_woken(idle_passes).await { pause } else { pause.min(NAP) }
                }
                Ok(Pass::Away) => {
                    self.await_connection(&shutdown).await;
                    continue;
                }
                Err(error) => {
                    self.report(&error);
                    failures = failures.saturating_add(1);
                    if is_away(&error) { AWAY.delay(failures) } else { REFUSED.delay(failures) }
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = wake.changed() => idle_passes = 0,
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// One bounded pass.
    ///
    /// # Errors
    /// PostgreSQL refused, went away or took too long. Nothing is settled then that was not published.
    pub async fn run_once(&mut self) -> Result<Pass, RelayError> {
        let Some(claimed) = self.claim().await? else {
            return Ok(if self.publisher.is_some() { Pass::Idle } else { Pass::Away });
        };
        let published = self.publish(claimed).await;
        let settled = self.settle(published).await?;
        settled.commit().await
    }

    /// Claims lanes and reads what is due in them; `None` when nothing is due, or while NATS is away: then no
    /// transaction is open.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn claim(&mut self) -> Result<Option<Claimed>, RelayError> {
        if !self.is_connected().await {
            return Ok(None);
        }
        let started = Instant::now();
        let claimed =
            bounded(Claimed::new(&self.store, &self.tuning, &mut self.looked, &self.budget)).await?;
        self.metrics.claim_time.observe(started.elapsed().as_secs_f64());
        self.heartbeat.beat();
        if self.metrics.health.postgres_away(false) {
            info!("PostgreSQL is back");
        }
        Ok(claimed)
    }

    /// Publishes what was claimed and waits for the acknowledgements, within the deadlines configured.
    pub async fn publish(&mut self, claimed: Claimed) -> Published {
        let started = Instant::now();
        let outcomes = match &mut self.publisher {
            Some(publisher) => publisher.publish(&claimed.messages, &self.tuning.limits).await,
            None => Vec::new(),
        };
        self.metrics.publish_time.observe(started.elapsed().as_secs_f64());
        self.heartbeat.beat();
        let published = Published::new(claimed, outcomes);
        published.observe(&self.metrics, self.traces.as_ref());
        published
    }

    /// Moves the cursors over what was published or set aside, in the claiming transaction.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn settle(&mut self, published: Published) -> Result<Settled, RelayError> {
        let started = Instant::now();
        let settled = bounded(published.settle(&self.tuning, &self.metrics)).await;
        self.metrics.settle_time.observe(started.elapsed().as_secs_f64());
        self.heartbeat.beat();
        settled
    }

    /// Whether there is a live connection, with a publisher on it.
    async fn is_connected(&mut self) -> bool {
        if self.publisher.as_ref().is_some_and(Publisher::is_over) {
            self.publisher = None;
        }
        if self.publisher.is_none() {
            let connection = self.connections.borrow_and_update().clone();
            let Some(connection) = connection.filter(|connection| !connection.over.is_cancelled()) else {
                return false;
            };
            let publisher = Publisher::new(connection, &self.tuning.limits).await;
            self.publisher = publisher.inspect_err(|error| debug!(%error, "subscribe")).ok();
        }
        self.publisher.is_some()
    }

    async fn await_connection(&mut self, shutdown: &CancellationToken) {
        tokio::select! {
            _ = self.connections.changed() => {}
            // The connection that is over may not have been taken down yet.
            () = tokio::time::sleep(self.tuning.poll_max) => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Before the longest pauses: asks the next enqueue to wake us. False when it will not; then
    /// this worker must look often enough for all.
    async fn may_be_woken(&self, idle_passes: u32) -> bool {
        if !self.marks_sleep || idle_passes < 4 {
            return true;
        }
        let marked = timeout(self.tuning.poll_max, self.store.sleep()).await;
        debug!(?marked, "mark asleep");
        !matches!(marked, Ok(Ok(false)))
    }

    /// Once when PostgreSQL goes away, not per attempt.
    fn report(&self, error: &RelayError) {
        self.metrics.postgres_errors.inc();
        if self.metrics.health.postgres_away(true) {
            warn!(error = %error_chain(error), "PostgreSQL failed a pass; it is tried again until it succeeds");
        }
    }
}

fn is_away(error: &RelayError) -> bool {
    matches!(error, RelayError::Postgres(error) if error.is_away())
}
