//! The steps of one pass, each a value: claimed, published, settled.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::warn;

use super::budget::{Budget, Share};
use crate::{
    backoff::Backoff,
    clock::Clock,
    config::{ReadLimits, Tuning},
    delivery::{
        cursor::{Read, Settlement},
        decision::{Cause, Decision, Failure},
        message::Message,
        outcome::Outcome,
    },
    error::{RelayError, StoreError},
    postgres::{
        Store,
        session::{Claim, Parking, Session},
    },
    telemetry::{metrics::Metrics, traces::Traces},
};

const ATTEMPT: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) };
const ERROR_BYTES_MAX: usize = 1000;
/// While the log alone fills the passes of a worker, it looks for parked messages so often only, and they get one place
/// of a pass in so many: each pass with parked messages costs some statements and, often, a question to NATS.
const PARKED_EVERY: Duration = Duration::from_millis(250);
const PARKED_SHARE: i64 = 16;

/// What one pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// NATS is away: nothing was claimed, no transaction is open.
    Away,
    /// Nothing was due.
    Idle,
    /// Messages were settled.
    Settled {
        /// How many, parked ones included.
        messages: usize,
        /// A limit may have cut the read: go again at once.
        full: bool,
    },
}

/// Lanes locked by an open transaction, and what is due in them.
#[derive(Debug)]
pub struct Claimed {
    session: Session,
    claims: Vec<Claim>,
    pub(crate) messages: Vec<Message>,
    clock: Clock,
    /// As many lanes, or parked messages, as asked for, or as there was room for: more may be due.
    full: bool,
    /// Room for the payloads, given back with them.
    share: Share,
}

/// Claimed messages with what became of each.
#[derive(Debug)]
pub struct Published {
    claimed: Claimed,
    outcomes: Vec<Outcome>,
}

/// Cursors moved, not committed yet.
#[derive(Debug)]
pub struct Settled {
    session: Session,
    pass: Pass,
}

impl Claimed {
    /// `looked` is when this worker last looked for parked messages.
    pub(crate) async fn new(
        store: &Arc<Store>,
        tuning: &Tuning,
        looked: &mut Option<Instant>,
        budget: &Budget,
    ) -> Result<Option<Self>, StoreError> {
        let (session, lanes) = store.claim(tuning.lanes_max).await?;
        if lanes.is_empty() {
            session.rollback().await?;
            return Ok(None);
        }
        let lanes_full = lanes.len() as i64 >= tuning.lanes_max;
        let parked_due: Vec<i16> =
            lanes.iter().filter(|(_, parked_due)| *parked_due).map(|(lane, _)| *lane).collect();
        let lanes: Vec<i16> = lanes.into_iter().map(|(lane, _)| lane).collect();
        let before = Instant::now();
        let mut share = budget.share();
        let (claims, mut messages) =
            session.read(&lanes, tuning.read, &mut |bytes| share.admit(bytes)).await?;
        // Those of the log that follow a parked one were read as blocked. Under a backlog parked messages get a
        // small share of a pass now and then: many of them, tried in vain, must not slow the others.
        let mut parked_full = false;
        let is_full = messages.len() as i64 >= tuning.read.messages_max;
        let is_time = !is_full || looked.is_none_or(|looked| looked.elapsed() >= PARKED_EVERY);
        if !parked_due.is_empty() && is_time {
            *looked = Some(Instant::now());
            let limits = parked_limits(tuning.read, is_full);
            share.begin();
            let (parked, is_full) =
                session.read_parked(&parked_due, limits, &mut |bytes| share.admit(bytes)).await?;
            parked_full = is_full;
            messages.extend(parked);
        }
        for claim in claims.iter().filter(|claim| claim.is_foreign) {
            warn!(
                lane = claim.lane,
                reset_until = claim.cursor.reset_until,
                "this database was restored from another cluster: what was due there is sent first"
            );
        }
        let clock = Clock { here: before, database: claims.iter().map(|claim| claim.read_at).min() };
        let is_cut = claims.len() < lanes.len() || claims.iter().any(|claim| claim.is_cut);
        // Without room for anything it is better to wait for the other workers a little.
        let full = lanes_full || parked_full || is_cut && !messages.is_empty();
        Ok(Some(Self { session, claims, messages, clock, full, share }))
    }

    /// How many messages were read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing was read: another relay was faster.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl Published {
    pub(crate) fn new(claimed: Claimed, mut outcomes: Vec<Outcome>) -> Self {
        outcomes.resize(claimed.messages.len(), Outcome::Unknown);
        Self { claimed, outcomes }
    }

    /// Tells the metrics how old each message was when JetStream stored it (one stored earlier was told of then), and
    /// the traces what was sent.
    pub(crate) fn observe(&self, metrics: &Metrics, traces: Option<&Traces>) {
        let Claimed { messages, clock, .. } = &self.claimed;
        if let Some(traces) = traces {
            traces.published(messages, &self.outcomes);
        }
        for (message, outcome) in messages.iter().zip(&self.outcomes) {
            if let Outcome::Stored { duplicate: false, acknowledged_at, .. } = outcome
                && message.replay.is_none()
            {
                metrics.message_lag.observe(clock.age(message.created_at, *acknowledged_at));
            }
        }
    }

    pub(crate) async fn settle(self, tuning: &Tuning, metrics: &Metrics) -> Result<Settled, StoreError> {
        let Self { claimed: Claimed { session, claims, messages, full, share: _share, .. }, outcomes } = self;
        let mut plan = Plan { full, ..Plan::default() };
        for claim in &claims {
            plan.add_lane(claim, &messages, &outcomes, tuning);
        }
        for (message, outcome) in
            messages.iter().zip(&outcomes).filter(|(message, _)| message.parked.is_some())
        {
            plan.add(message, outcome, tuning);
        }
        plan.observe(metrics);
        if !plan.parkings.is_empty() {
            session.park(&plan.parkings).await?;
        }
        if !plan.unparked.is_empty() {
            session.unpark(&plan.unparked).await?;
        }
        if !plan.freed.is_empty() {
            let freed: Vec<(i16, &str)> = plan.freed.into_iter().collect();
            session.release(&freed, tuning.read.dead_blocks).await?;
        }
        if !plan.settlements.is_empty() {
            session.settle(&plan.settlements).await?;
        }
        Ok(Settled { session, pass: Pass::Settled { messages: plan.done, full: plan.full } })
    }
}

impl Settled {
    /// Commits, which frees the lanes.
    ///
    /// # Errors
    /// PostgreSQL went away: whether the commit happened is unknown. If not, the same messages are sent again.
    pub async fn commit(self) -> Result<Pass, RelayError> {
        bounded(self.session.commit()).await?;
        Ok(self.pass)
    }
}

/// What a settling transaction writes.
#[derive(Default)]
struct Plan<'a> {
    settlements: Vec<(i16, Settlement)>,
    parkings: Vec<(&'a Message, Parking)>,
    unparked: Vec<&'a Message>,
    /// Ordering keys whose first parked message may be due now.
    freed: BTreeSet<(i16, &'a str)>,
    done: usize,
    stored: u64,
    duplicates: u64,
    full: bool,
}

impl<'a> Plan<'a> {
    /// Settles the longest prefix of a lane's rows that is done; what was sent beyond it is sent again.
    fn add_lane(&mut self, claim: &Claim, messages: &'a [Message], outcomes: &[Outcome], tuning: &Tuning) {
        let rows =
            || messages.iter().zip(outcomes).filter(|(m, _)| m.lane == claim.lane && m.parked.is_none());
        let ids: Vec<i64> = rows().map(|(message, _)| message.id).collect();
        let bytes: usize = rows().map(|(message, _)| message.payload.len()).sum();
        let full = claim.is_cut
            || ids.len() as i64 >= tuning.read.messages_max
            || bytes as i64 >= tuning.read.bytes_max;
        let done = rows().take_while(|(_, outcome)| **outcome != Outcome::Unknown).count();
        for (message, outcome) in rows().take(done) {
            self.add(message, outcome, tuning);
        }
        let read = Read { ids: &ids, full, snapshot: &claim.snapshot };
        self.settlements.extend(claim.cursor.advance(read, done).map(|settlement| (claim.lane, settlement)));
        // A drain or a reset that just ended has the rest of its lane before it.
        self.full |= done == ids.len()
            && (full || claim.cursor.target.is_some() || claim.cursor.reset_until.is_some());
    }

    fn add(&mut self, message: &'a Message, outcome: &Outcome, tuning: &Tuning) {
        let attempts = message.parked.map_or(0, |parked| parked.attempts);
        let parking = match outcome {
            Outcome::Unknown => return,
            Outcome::Stored { duplicate, .. } => {
                self.done += 1;
                self.stored += 1;
                self.duplicates += u64::from(*duplicate);
                if message.parked.is_some() {
                    self.unparked.push(message);
                    self.free(message);
                }
                return;
            }
            // It waits already; a due time that it need not have would have it read again and again.
            Outcome::Behind if message.parked.is_some() => {
                let is_due = message.parked.is_some_and(|parked| parked.is_due);
                self.parkings.extend(is_due.then(|| (message, behind(attempts))));
                return;
            }
            Outcome::Behind => {
                // Should the last one before it be delivered in this very pass, it is due at once.
                self.free(message);
                behind(attempts)
            }
            Outcome::Failed(decision, failure) => {
                let parking = set_aside(message, *decision, failure, tuning);
                if parking.dead && !tuning.read.dead_blocks {
                    self.free(message);
                }
                parking
            }
        };
        self.done += 1;
        self.parkings.push((message, parking));
    }

    fn free(&mut self, message: &'a Message) {
        self.freed.extend(message.ordering_key.as_deref().map(|key| (message.lane, key)));
    }

    fn observe(&self, metrics: &Metrics) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram's bucket")]
        metrics.batch_messages.observe(self.done as f64);
        metrics.published.inc_by(self.stored);
        metrics.duplicate_acks.inc_by(self.duplicates);
        metrics.parked.inc_by(self.parkings.len() as u64);
        for (message, parking) in self.parkings.iter().filter(|(_, parking)| parking.dead) {
            metrics.died.inc();
            warn!(key = message.key, subject = message.subject, error = parking.error, "message is dead");
        }
        let parked =
            self.parkings.iter().find(|(_, parking)| !parking.dead && parking.delay_seconds.is_some());
        if let Some((message, parking)) = parked.filter(|_| metrics.health.may_report_parking()) {
            warn!(
                messages = self.parkings.len(),
                key = message.key,
                subject = message.subject,
                error = parking.error,
                "messages are set aside and tried again; said once a minute at most"
            );
        }
    }
}

/// The share of a pass that parked messages get.
fn parked_limits(limits: ReadLimits, is_full: bool) -> ReadLimits {
    if !is_full {
        return limits;
    }
    let share = |limit: i64| (limit / PARKED_SHARE).max(1);
    ReadLimits { messages_max: share(limits.messages_max), bytes_max: share(limits.bytes_max), ..limits }
}

fn behind(attempts: i32) -> Parking {
    let error = "waits behind its ordering key".into();
    Parking { attempts, delay_seconds: None, dead: false, error, cause: Cause::Behind }
}

/// What the database is told. Anybody can answer on a subject, with any bytes: PostgreSQL takes no NUL, and a terminal no
/// control characters.
fn error_text(failure: &Failure) -> String {
    let mut error = failure.to_string().replace(char::is_control, " ");
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    error
}

fn set_aside(message: &Message, decision: Decision, failure: &Failure, tuning: &Tuning) -> Parking {
    let before = message.parked.map_or(0, |parked| parked.attempts);
    let error = error_text(failure);
    let attempts = before.saturating_add(1);
    let (attempts, delay_seconds) = match decision {
        // No attempt is spent, so the pause grows with the time that the message has waited already.
        Decision::Wait => {
            let waited = message.parked.map_or(0.0, |parked| parked.seconds);
            let pause = Duration::from_secs_f64((waited / 2.0).clamp(0.5, 30.0));
            (before, Some(Backoff { first: pause, max: pause }.delay(0).as_secs_f64()))
        }
        Decision::Park if attempts < tuning.attempts_max => {
            (attempts, Some(ATTEMPT.delay(before.unsigned_abs()).as_secs_f64()))
        }
        Decision::Park | Decision::Dead | Decision::Away => (attempts, None),
    };
    Parking { attempts, delay_seconds, dead: delay_seconds.is_none(), error, cause: failure.cause() }
}

/// Every statement has a deadline of the server; this one is for a server that no longer answers.
pub(super) async fn bounded<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, RelayError> {
    match timeout(Duration::from_secs(45), step).await {
        Ok(result) => result.map_err(RelayError::store),
        Err(_) => Err(RelayError::PostgresTimeout),
    }
}
