//! One worker of a relay, and its pass: claim and read, publish, settle, commit. The loop around it
//! is `runner`.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    bounded,
    bounds::Bounds,
    budget::Budget,
    claim::Claimed,
    contracts,
    publish::Published,
    settle::{Pass, Settled},
    trace_file::TraceFile,
};
use crate::{
    config::Tuning,
    delivery::{Breaker, Message, Outcome, Snapshot},
    error::{RelayError, error_chain},
    nats::{Connections, publisher::Publisher},
    postgres::{Seen, Session, Store, Wanted},
    telemetry::{Metrics, Traces, health::Heartbeat},
};

/// A sequence that is given out again ends the connection so often at most.
const DISTRUST_EVERY: Duration = Duration::from_secs(60);

/// One worker of a relay: a connection to PostgreSQL at a time, the relay's connection to NATS.
///
/// [`Relay::run`](crate::Relay::run) runs several. On its own a worker makes one bounded pass at a
/// time, or the steps of a pass one by one. To drop a step is as if the process had died there.
#[derive(Debug)]
pub struct Worker {
    pub(super) shared: Shared,
    publisher: Option<Publisher>,
    pub(super) heartbeat: Heartbeat,
    pub(super) bounds: Bounds,
    /// When a stream last gave out a sequence again.
    distrusted: Option<Instant>,
    /// The last pass that left nothing due, if nothing has happened since.
    pub(super) quiet: Option<Quiet>,
}

/// The parts of a relay that its workers share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) connections: Connections,
    pub(crate) tuning: Tuning,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Option<Traces>,
    pub(crate) trace_file: Option<TraceFile>,
    pub(crate) budget: Budget,
    pub(crate) breaker: Breaker,
}

/// A pass after which nothing was due.
#[derive(Clone, Debug)]
pub(super) struct Quiet {
    /// The snapshot of the look before it, or of its claim.
    pub(super) snapshot: Snapshot,
    /// Transactions of our own that have ended since.
    pub(super) own: Vec<u64>,
    /// When all lanes were last asked for due messages, those that are parked or sent again too.
    pub(super) claimed_at: Instant,
    /// Since when no transaction but our own has ended.
    pub(super) still_since: Instant,
}

impl Worker {
    pub(crate) fn new(shared: Shared) -> Self {
        let heartbeat = shared.metrics.health.heartbeat();
        let bounds = Bounds::new(&shared.tuning, shared.breaker.clone(), shared.budget.clone());
        Self { shared, publisher: None, heartbeat, bounds, distrusted: None, quiet: None }
    }

    /// One bounded pass.
    ///
    /// # Errors
    /// PostgreSQL refused, went away or took too long. Nothing is settled then that was not
    /// published.
    pub async fn run_once(&mut self) -> Result<Pass, RelayError> {
        self.pass(self.shared.tuning.lanes_max).await
    }

    /// One bounded pass over `lanes_max` lanes at most.
    pub(super) async fn pass(&mut self, lanes_max: i64) -> Result<Pass, RelayError> {
        self.pass_over(lanes_max, Wanted::Due).await
    }

    /// A pass over the lanes that are wanted. One that has all of them may go on for a moment, with
    /// new messages in them.
    pub(super) async fn pass_over(&mut self, lanes_max: i64, wanted: Wanted) -> Result<Pass, RelayError> {
        self.quiet = None;
        let claimed_at = Instant::now();
        let Some(claimed) = self.claim_lanes(lanes_max, wanted).await? else {
            // Another relay may have settled the messages that this one could not.
            self.shared.metrics.health.note_unwritable(None);
            return Ok(if self.publisher.is_some() { Pass::Idle } else { Pass::Away });
        };
        let begun = Instant::now();
        let mut published = self.publish(claimed).await;
        let took = begun.elapsed();
        self.go_on(&mut published, begun).await?;
        let quiet = |Seen { snapshot, xact }| Quiet {
            snapshot,
            own: vec![xact],
            claimed_at,
            still_since: Instant::now(),
        };
        if published.claimed.has_all && published.outcomes.is_empty() {
            let Claimed { session, seen, .. } = published.claimed;
            bounded(session.rollback()).await?;
            self.quiet = seen.map(quiet);
            return Ok(Pass::Idle);
        }
        let mut settled = self.settle(published).await?;
        let (seen, cut_lanes) = (settled.seen.take(), settled.cut_lanes);
        let passed = settled.commit().await?;
        if self.shared.metrics.health.note_unwritable(None) {
            info!("PostgreSQL takes writes again");
        }
        self.bounds.learn(cut_lanes, took);
        self.quiet = seen.map(quiet);
        Ok(passed)
    }

    /// Claims lanes and reads their due messages; `None` when nothing is due, or while NATS is
    /// away: then no transaction is open.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn claim(&mut self) -> Result<Option<Claimed>, RelayError> {
        self.claim_lanes(self.shared.tuning.lanes_max, Wanted::Due).await
    }

    pub(super) async fn claim_lanes(
        &mut self,
        lanes_max: i64,
        wanted: Wanted,
    ) -> Result<Option<Claimed>, RelayError> {
        if !self.is_connected().await {
            return Ok(None);
        }
        let started = Instant::now();
        self.shared.breaker.claims();
        self.bounds.payload_max = self.publisher.as_ref().map_or(usize::MAX, Publisher::payload_max);
        if let Some(large) = &self.shared.tuning.limits.large_payloads {
            self.bounds.payload_max = self.bounds.payload_max.min(large.above);
        }
        let mut claimed =
            bounded(Claimed::new(&self.shared.store, wanted, lanes_max, &mut self.bounds)).await?;
        if let (Some(trace), Some(claimed)) = (&self.shared.trace_file, &mut claimed) {
            claimed.pass = trace.claimed(&claimed.claims, &claimed.messages);
        }
        self.shared.metrics.claim.observe(started.elapsed().as_secs_f64());
        self.note_answer();
        Ok(claimed)
    }

    /// PostgreSQL has answered.
    pub(super) fn note_answer(&self) {
        self.heartbeat.beat();
        if self.shared.metrics.health.postgres_away(false) {
            info!("PostgreSQL is back");
        }
    }

    /// Publishes the claimed messages and waits for the acknowledgements, within the configured
    /// deadlines.
    pub async fn publish(&mut self, mut claimed: Claimed) -> Published {
        let Claimed { session, messages, .. } = &mut claimed;
        let outcomes = session.keep_alive(self.send(session, messages)).await;
        let mut published = Published::new(claimed, outcomes);
        self.take_in(&mut published);
        published
    }

    /// Sends messages; returns their outcomes.
    pub(super) async fn send(&mut self, session: &Session, messages: &mut [Message]) -> Vec<Outcome> {
        if messages.is_empty() {
            return Vec::new();
        }
        let started = Instant::now();
        contracts::check(messages, session, &self.shared.tuning.limits).await;
        let outcomes = match &mut self.publisher {
            // Suspended since the claim: nothing is settled of it.
            Some(publisher) if publisher.is_awake() => {
                publisher.put_large(messages, session, &self.shared.tuning.limits).await;
                let outcomes = publisher.publish(messages, &self.shared.tuning.limits).await;
                let births = publisher.take_births();
                if let Err(error) = self.shared.store.note_streams(&births).await {
                    debug!(error = %error_chain(&error), "note which streams have acknowledged");
                    publisher.return_births(births);
                }
                outcomes
            }
            _ => Vec::new(),
        };
        self.shared.metrics.publish.observe(started.elapsed().as_secs_f64());
        self.heartbeat.beat();
        outcomes
    }

    /// Notes the last round in the metrics, and doubts a stream that gives out a sequence again.
    pub(super) fn take_in(&mut self, published: &mut Published) {
        // Delivery goes on all the same if no task would check the stream and hand out another
        // connection, or if the stream cannot be checked.
        let is_checked = self.shared.connections.has_changed().is_ok();
        let may_distrust = is_checked && self.distrusted.is_none_or(|at| at.elapsed() >= DISTRUST_EVERY);
        if let (true, Some(publisher)) = (may_distrust, &self.publisher)
            && let Some(reason) = published.distrust()
        {
            publisher.give_up(&reason);
            self.distrusted = Some(Instant::now());
        }
        let Shared { metrics, traces, trace_file, .. } = &self.shared;
        published.observe(metrics, traces.as_ref());
        if let Some(trace) = trace_file {
            let (messages, outcomes) = published.last_round();
            trace.published(published.claimed.pass, messages, outcomes);
        }
    }

    /// Parks refused messages and plans how the cursors move, in the claiming transaction.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn settle(&mut self, published: Published) -> Result<Settled, RelayError> {
        let started = Instant::now();
        let Shared { tuning, metrics, breaker, trace_file, .. } = &self.shared;
        let settled = bounded(Settled::new(published, tuning, metrics, breaker, trace_file.clone())).await;
        self.shared.metrics.settle.observe(started.elapsed().as_secs_f64());
        self.heartbeat.beat();
        settled
    }

    /// Whether the connection to NATS that the last pass had is over.
    pub(super) fn is_over(&self) -> bool {
        self.publisher.as_ref().is_some_and(Publisher::is_over)
    }

    /// Whether there is a live connection, with a publisher on it. One that was taken back is none:
    /// this database is no longer the home of its outbox, or streams are to be checked first.
    pub(super) async fn is_connected(&mut self) -> bool {
        let connection = self.shared.connections.borrow_and_update().clone();
        let connection =
            connection.filter(|connection| !connection.over.is_cancelled() && connection.is_awake());
        self.publisher = self.publisher.take().filter(|publisher| publisher.is_on(connection.as_ref()));
        if self.publisher.is_none() {
            let Some(connection) = connection else { return false };
            let publisher = Publisher::new(connection, &self.shared.tuning.limits).await;
            self.publisher = publisher.inspect_err(|error| debug!(%error, "subscribe")).ok();
        }
        self.publisher.is_some()
    }

    pub(super) async fn await_connection(&mut self, shutdown: &CancellationToken) {
        tokio::select! {
            _ = self.shared.connections.changed() => {}
            // The connection that is over may not have been taken down yet.
            () = tokio::time::sleep(self.shared.tuning.poll_max) => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Once when PostgreSQL goes away, not per attempt.
    pub(super) fn report(&self, error: &RelayError) {
        let Metrics { postgres_errors, health, .. } = &self.shared.metrics;
        postgres_errors.inc();
        let refused = if let RelayError::Postgres(error) = error { error.refused_writes() } else { None };
        // It answers claims meanwhile, so it is not away.
        if let Some(why) = refused {
            if health.note_unwritable(Some(why.clone())) {
                warn!("{why}; nothing is settled until it does; make room, or see why it is read-only");
            }
        } else if health.postgres_away(true) {
            warn!(error = %error_chain(error), "PostgreSQL failed a pass; it is tried again until it succeeds");
        }
    }
}
