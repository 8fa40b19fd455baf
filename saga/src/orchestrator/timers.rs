//! Deadlines, requests of operators, and answers that waited make a saga due.
//!
//! A deadline is a column of the saga's row, and not a delayed message: it costs nothing when it is
//! set, moved or given up, since the row is written anyway; the row's lock decides between it and
//! an answer that comes at the same moment; and it passes also while NATS is away.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use deadpool_postgres::{Object, Pool};
use oncebox_claims::failure::text;
use oncebox_schema::Transaction;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Engine, is_refused};
use crate::{Error, error::failed, store::Found};

/// How many sagas one transaction takes.
const BATCH: i64 = 100;
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// One transaction, connecting included.
const PASS_LIMIT: Duration = Duration::from_secs(30);
/// How long a process that hangs may keep others waiting for its sagas.
const IDLE_MAX: Duration = Duration::from_secs(5);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How often a process says that it leads; `oncebox status` misses it after 90 seconds.
const LEAD_EVERY: Duration = Duration::from_secs(20);
const SWEEP_ROWS: i32 = 1000;
/// How long an answer waits whose saga is not there, and how many of them may wait.
const ORPHANS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
const ORPHANS_MAX: i64 = 100_000;
/// The inverse of the largest share of the time that goes into looking for their sagas.
const ADOPTION_SHARE: u32 = 100;
const ADOPTION_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The loop that looks at sagas that are due; see
/// [`Orchestrator::timers`](crate::Orchestrator::timers). Any number of processes may run it.
pub struct Timers {
    engine: Arc<Engine>,
    pool: Pool,
    retention: Option<Duration>,
    /// When the sagas of early answers are looked for again.
    adopts_at: Mutex<Instant>,
}

impl std::fmt::Debug for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timers").field("retention", &self.retention).finish_non_exhaustive()
    }
}

impl Timers {
    pub(super) fn new(engine: Arc<Engine>, pool: Pool, retention: Option<Duration>) -> Self {
        Self { engine, pool, retention, adopts_at: Mutex::new(Instant::now()) }
    }

    /// Looks at sagas that are due twice a second, by the database's clock, until `shutdown` is
    /// cancelled. While PostgreSQL is away it tries again.
    pub async fn run(&self, shutdown: CancellationToken) {
        let (mut is_away, mut next_sweep, mut next_lead) = (false, Instant::now(), Instant::now());
        loop {
            let sweeps = Instant::now() >= next_sweep;
            let pass = async {
                if Instant::now() >= next_lead {
                    self.lead().await?;
                    next_lead = Instant::now() + LEAD_EVERY;
                }
                let looked_at = self.run_once().await?;
                let is_more_to_sweep = sweeps && self.sweep().await?;
                Ok::<_, Error>((looked_at == BATCH.unsigned_abs(), is_more_to_sweep))
            };
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                ended = pass => ended,
            };
            self.engine.counters.looks.note(ended.is_ok());
            let pause = match ended {
                Ok((is_more_due, is_more_to_sweep)) => {
                    if is_away {
                        info!("deadlines of sagas are watched again");
                    }
                    is_away = false;
                    if sweeps && !is_more_to_sweep {
                        next_sweep = Instant::now() + SWEEP_EVERY;
                    }
                    if is_more_due || is_more_to_sweep { Duration::ZERO } else { PAUSE }
                }
                Err(problem) => {
                    if !is_away {
                        warn!("deadlines of sagas cannot be watched, will retry: {}", text(&problem));
                    }
                    is_away = true;
                    PAUSE_AFTER_FAILURE
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Looks at up to 100 sagas that are due, in one transaction; returns at how many. With 100
    /// there may be more.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn run_once(&self) -> Result<u64, Error> {
        match self.pass(BATCH).await {
            Err((writing, problem)) if writing > 0 && is_refused(&problem) => {
                // One of them is the matter; alone it is seen which.
                warn!("sagas cannot be written together, each is tried alone: {}", text(&problem));
                let mut looked_at = 0;
                for _ in 0..writing {
                    looked_at += self.pass(1).await.map_err(|(_, problem)| problem)?;
                }
                Ok(looked_at)
            }
            ended => ended.map_err(|(_, problem)| problem),
        }
    }

    /// One transaction; an error comes with the number of sagas that were to be written.
    async fn pass(&self, most: i64) -> Result<u64, (usize, Error)> {
        let client = self.connect().await.map_err(|problem| (0, problem))?;
        let mut writing = 0;
        match timeout(PASS_LIMIT, self.look(client, most, &mut writing)).await {
            Ok(ended) => ended.map_err(|problem| (writing, problem)),
            Err(_) => Err((0, silent(None))),
        }
    }

    /// A saga that is looked at alone is put aside when PostgreSQL refuses it.
    async fn look(&self, client: Object, most: i64, writing: &mut usize) -> Result<u64, Error> {
        self.adopt(&client).await?;
        let transaction = Transaction::on(client);
        transaction.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(failed("begin"))?;
        let looked_at = self.look_in(&transaction, most, writing).await;
        // After an error the rows must be free for those that look at the sagas one by one.
        transaction.release();
        looked_at
    }

    async fn look_in(&self, transaction: &Transaction, most: i64, writing: &mut usize) -> Result<u64, Error> {
        let Engine { store, opening, .. } = &*self.engine;
        let due = store.claim_due(transaction, most, IDLE_MAX, opening).await;
        let due = due.map_err(failed("claim sagas that are due"))?;
        let looked_at = due.len() as u64;
        let mut advanced = Vec::new();
        for found in due {
            let (id, key, problem) = match found {
                Found::Open(mut instance, waiting) => {
                    let (id, key) = (instance.id, instance.key.clone());
                    // Answers in time count first, then deadlines.
                    let applied = instance.apply_waiting(&waiting).and_then(|ended| {
                        instance.apply_deadlines()?;
                        let rest: Vec<_> = waiting
                            .iter()
                            .filter(|one| !ended.iter().any(|(id, _)| *id == one.id))
                            .cloned()
                            .collect();
                        let mut one = self.engine.advanced(*instance, &rest)?;
                        one.ended.extend(ended);
                        Ok(one)
                    });
                    match applied {
                        Ok(one) => {
                            advanced.push(one);
                            continue;
                        }
                        Err(problem) => (id, key, problem),
                    }
                }
                Found::Unreadable(id, key, problem) => (id, key, problem),
                Found::Quarantined | Found::Finished | Found::Unknown | Found::OfAnother => continue,
            };
            self.engine.quarantine(transaction, (id, &key), &problem).await?;
        }
        *writing = advanced.len();
        match advanced.pop() {
            Some(alone) if most == 1 => {
                self.engine.write_or_quarantine(transaction, alone).await?;
            }
            last => {
                advanced.extend(last);
                self.engine.write(transaction, &advanced).await?;
            }
        }
        transaction.batch_execute("COMMIT").await.map_err(failed("commit changes of sagas"))?;
        transaction.set_over();
        Ok(looked_at)
    }

    /// Looks for the sagas of answers that came first. These may be answers to other systems, any
    /// number of them, so the more a look costs, the longer it is until the next one.
    async fn adopt(&self, client: &Object) -> Result<(), Error> {
        let begun = Instant::now();
        if begun < *self.adopts_at.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(());
        }
        let adopted = self.engine.store.adopt_orphans(&***client, BATCH).await;
        let adopted = adopted.map_err(failed("look for answers that were early"))?;
        let pause = if adopted == BATCH { Duration::ZERO } else { begun.elapsed() * ADOPTION_SHARE };
        *self.adopts_at.lock().unwrap_or_else(PoisonError::into_inner) =
            begun + pause.min(ADOPTION_PAUSE_MAX);
        Ok(())
    }

    /// Says that this process leads.
    async fn lead(&self) -> Result<(), Error> {
        let client = self.connect().await?;
        let led = timeout(PASS_LIMIT, self.engine.store.lead(&**client, &self.engine.opening)).await;
        led.map_err(|_| silent(Some(client)))?.map_err(failed("say who leads"))
    }

    /// Deletes up to 1,000 old sagas, and as many answers for which no saga came within a week, or
    /// of which too many wait. Returns whether there is more.
    async fn sweep(&self) -> Result<bool, Error> {
        let client = self.connect().await?;
        let keep = self.retention.map(|limit| limit.as_secs_f64());
        let orphans = (ORPHANS_KEPT.as_secs_f64(), ORPHANS_MAX);
        let swept = timeout(PASS_LIMIT, self.engine.store.sweep(&**client, keep, orphans, SWEEP_ROWS)).await;
        let swept = swept.map_err(|_| silent(Some(client)))?;
        let (sagas, orphans) = swept.map_err(failed("delete old sagas"))?;
        if orphans > 0 {
            warn!(orphans, "answers were deleted, since no saga ever had their keys");
            self.engine.counters.add(|counts| counts.orphans += orphans.unsigned_abs());
        }
        Ok(sagas.max(orphans) == i64::from(SWEEP_ROWS))
    }

    async fn connect(&self) -> Result<Object, Error> {
        match timeout(PASS_LIMIT, self.pool.get()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(problem)) => Err(Error::Invalid(format!("no connection to PostgreSQL: {problem}"))),
            Err(_) => Err(Error::Invalid(format!("no connection to PostgreSQL within {PASS_LIMIT:?}"))),
        }
    }
}

/// A connection that owes an answer is of no more use.
fn silent(client: Option<Object>) -> Error {
    drop(client.map(Object::take));
    Error::Invalid(format!("PostgreSQL did not answer within {PASS_LIMIT:?}"))
}
