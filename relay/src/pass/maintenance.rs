//! Retention, and the release of messages that wait in vain: `run` around `run_once`.
//!
//! A message has no time of its settlement, which would cost an update of each. Instead maintenance
//! writes the cursors down now and then, as milestones. The cursor of a lane told the truth when
//! the milestone was reached: every message with `id <= high` that is visible in `snap` was settled
//! by then. So when a milestone is older than the retention time, maintenance deletes exactly those
//! messages, less those that are parked, dead or to be replayed. A message whose transaction was
//! open at the time is not visible in that `snap`, and stays, although its id is below `high`; nor
//! does a drain matter, which leaves `snap` as it is until it ends. All lanes are pruned together,
//! by ranges of ids, since neighbours in the table belong to any lanes.
//!
//! Each batch is a transaction that locks the maintenance row, with SKIP LOCKED, and no lane; it
//! pauses as long as it took. Where a relay stops, any other goes on.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::{
    backoff::Backoff,
    error::{RelayError, StoreError, error_chain},
    postgres::{
        Store,
        integrity::Explained,
        retention::{LowIds, Milestones, Place, Pruned, RepairedIds},
    },
    telemetry::metrics::Metrics,
};

const TICK_MAX: Duration = Duration::from_secs(60);
/// A retention time is cut into so many milestones: messages are kept up to this part of it longer.
const MILESTONES: u32 = 64;
const MILESTONE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages that were set aside when their milestone was finished get another look after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);
/// A relay says so often at most that it is at work, and with which settings.
const REGISTER_EVERY: Duration = Duration::from_secs(30);
/// How often the schema is looked at for faults, at most.
const LOOK_AT_SCHEMA_EVERY: Duration = Duration::from_secs(20);
const STEP_TIMEOUT: Duration = Duration::from_secs(45);

/// The result of one step of maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintained {
    /// Messages deleted.
    pub pruned: u64,
    /// Messages released: they waited behind dead ones, or with others of which none was tried.
    pub released: u64,
    /// More is to be done at once.
    pub more: bool,
}

/// The maintenance of one relay; of many relays one works at a time.
#[derive(Debug)]
pub struct Maintainer {
    store: Arc<Store>,
    retention: Option<Duration>,
    dead_blocks: bool,
    metrics: Metrics,
    tasks: VecDeque<Task>,
    /// The milestone of each lane up to which nothing is left to delete.
    finished: HashMap<i16, i64>,
    finished_since: Instant,
    /// The row of this relay, and when it was last written.
    registered: Option<(String, Instant)>,
    looked_at_schema: Option<Instant>,
}

#[derive(Clone, Debug)]
enum Task {
    Prune { milestones: Milestones, place: Place },
    Release { lane: i16, after: i64 },
    Probe { lane: i16, waits_for: String },
}

impl Maintainer {
    pub(crate) fn new(
        store: Arc<Store>,
        retention: Option<Duration>,
        dead_blocks: bool,
        metrics: Metrics,
    ) -> Self {
        Self {
            store,
            retention,
            dead_blocks,
            metrics,
            tasks: VecDeque::new(),
            finished: HashMap::new(),
            finished_since: Instant::now(),
            registered: None,
            looked_at_schema: None,
        }
    }

    /// Maintains until shutdown. It warns of the first of several errors in a row; the workers
    /// report an outage of PostgreSQL.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let tick = self.interval().min(TICK_MAX);
        let mut failing = false;
        while !shutdown.is_cancelled() {
            let started = Instant::now();
            let store = Arc::clone(&self.store);
            let turn = store.turn().await;
            let maintained = timeout(STEP_TIMEOUT, self.run_once()).await;
            drop(turn);
            let pause = match maintained {
                Ok(Ok(Maintained { more, .. })) => {
                    failing = false;
                    if more { started.elapsed().min(TICK_MAX) } else { jittered(tick) }
                }
                failed => {
                    match failed {
                        Ok(Err(error)) if !std::mem::replace(&mut failing, true) => {
                            warn!(error = %error_chain(&error), "maintenance failed; it is tried again");
                        }
                        _ => debug!("maintenance failed again, or took too long"),
                    }
                    self.tasks.clear();
                    jittered(tick)
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// One bounded step, in a transaction of its own: begin a round over all lanes, or a batch.
    ///
    /// # Errors
    /// PostgreSQL refused or went away; nothing is half done.
    pub async fn run_once(&mut self) -> Result<Maintained, RelayError> {
        self.step().await.map_err(RelayError::store)
    }

    async fn step(&mut self) -> Result<Maintained, StoreError> {
        let mut done = Maintained::default();
        match self.tasks.pop_front() {
            None => self.begin_round().await?,
            Some(Task::Prune { milestones, place }) => {
                // Somebody else maintains: let him.
                let Some(pruned) = self.store.prune(&milestones, place).await? else {
                    self.tasks.retain(|task| !matches!(task, Task::Prune { .. }));
                    return Ok(Maintained { more: !self.tasks.is_empty(), ..done });
                };
                report_unsent(&pruned);
                match pruned.next {
                    Some(place) => self.tasks.push_front(Task::Prune { milestones, place }),
                    None => self.finished.extend(milestones.iter()),
                }
                self.metrics.pruned.inc_by(pruned.messages);
                done.pruned = pruned.messages;
            }
            Some(Task::Release { lane, after }) => {
                // Somebody else has the lane: next time.
                if let Some(progress) = self.store.release_behind_dead(lane, after).await? {
                    let next = progress.next.map(|after| Task::Release { lane, after });
                    next.into_iter().for_each(|task| self.tasks.push_front(task));
                    done.released = progress.messages;
                }
            }
            Some(Task::Probe { lane, waits_for }) => {
                done.released = self.store.probe(lane, &waits_for).await?;
            }
        }
        Ok(Maintained { more: !self.tasks.is_empty(), ..done })
    }

    /// Finds rows that somebody has deleted, and policies that hide messages: nothing else shows
    /// them.
    async fn look_at_schema(&mut self) -> Result<(), StoreError> {
        if self.looked_at_schema.is_some_and(|at| at.elapsed() < LOOK_AT_SCHEMA_EVERY) {
            return Ok(());
        }
        let found = self.store.stopping_faults().await?;
        self.looked_at_schema = Some(Instant::now());
        let told: Vec<Explained> =
            found.iter().map(|fault| fault.explained(self.store.schema().as_str())).collect();
        let whats: Vec<&str> = told.iter().map(|told| told.what.as_str()).collect();
        if self.metrics.health.note_fault((!whats.is_empty()).then(|| whats.join("; "))) {
            told.iter().for_each(|told| error!("{told}"));
        }
        Ok(())
    }

    /// So that an operator sees relays whose settings differ.
    async fn register(&mut self) -> Result<(), StoreError> {
        if self.registered.as_ref().is_some_and(|(_, at)| at.elapsed() < REGISTER_EVERY) {
            return Ok(());
        }
        let id = self.registered.as_ref().map(|(id, _)| id.as_str());
        let id = self.store.register(id, self.retention, self.dead_blocks).await?;
        self.registered = id.map(|id| (id, Instant::now()));
        Ok(())
    }

    async fn begin_round(&mut self) -> Result<(), StoreError> {
        // Retention does not depend on it; the doctor reports a role that may not do it.
        if let Err(error) = self.register().await {
            debug!(error = %error_chain(&error), "the relay could not write down its settings");
        }
        if self.finished_since.elapsed() >= LOOK_AGAIN {
            self.finished.clear();
            self.finished_since = Instant::now();
        }
        if let Err(error) = self.look_at_schema().await {
            debug!(error = %error_chain(&error), "the relay could not look for faults of the schema");
        }
        self.mend_ids().await?;
        let Some(lanes) = self.store.reach(self.interval()).await? else { return Ok(()) };
        if let Some(retention) = self.retention {
            let is_new =
                |(lane, number): &(i16, i64)| self.finished.get(lane).is_none_or(|done| done < number);
            let milestones: Milestones =
                self.store.milestones(retention).await?.iter().filter(is_new).collect();
            if !milestones.is_empty() {
                self.tasks.push_back(Task::Prune { milestones, place: Place::default() });
            }
        }
        let hastened = self.store.hasten().await?;
        if hastened > 0 {
            warn!(
                messages = hastened,
                "messages that were set aside with a clock that was ahead are tried again now"
            );
        }
        let unprobed = self.store.unprobed().await?.into_iter();
        self.tasks.extend(unprobed.map(|(lane, waits_for)| Task::Probe { lane, waits_for }));
        if !self.dead_blocks {
            self.tasks.extend(lanes.into_iter().map(|lane| Task::Release { lane, after: 0 }));
        }
        Ok(())
    }

    /// Ids of new messages must stand above every cursor: a restored database, or one that was
    /// moved by logical replication, may come without its sequence, and anybody may restart it.
    async fn mend_ids(&self) -> Result<(), StoreError> {
        let Some(LowIds { stood_at, needed }) = self.store.low_ids().await? else { return Ok(()) };
        match self.store.repair_ids().await {
            Ok(None) => {}
            Ok(Some(RepairedIds { stood_at, raised_to, set_aside })) => warn!(
                stood_at,
                raised_to,
                set_aside,
                "the ids of new messages stood below what is settled: they are raised, and what was enqueued with such ids \
                 is sent, some of it perhaps again"
            ),
            Err(error) => error!(
                stood_at,
                needed,
                error = %error_chain(&error),
                "the ids of new messages stand below what is settled: messages wait, and nothing of them is deleted, until \
                 the ids are raised. That is tried again each minute, and waits for transactions that have enqueued to end"
            ),
        }
        Ok(())
    }

    /// The time between milestones. They are reached also where nothing is deleted, for `oncebox
    /// prune`.
    fn interval(&self) -> Duration {
        let part = self.retention.map_or(MILESTONE_MAX, |retention| retention / MILESTONES);
        part.clamp(Duration::from_secs(1), MILESTONE_MAX)
    }
}

/// These messages are neither deleted nor sent: only somebody who knows the database's history can
/// tell which of them to send.
fn report_unsent(pruned: &Pruned) {
    if let Some(last_id) = pruned.unsent_id {
        warn!(
            messages = pruned.unsent,
            last_id,
            "messages stay that were written below the floor of their lane after a restore, and were perhaps never sent: \
             `oncebox outbox replay --from-id N --to-id M` sends them, and retention deletes them then"
        );
    }
}

fn jittered(tick: Duration) -> Duration {
    Backoff { first: tick, max: tick }.delay(0)
}
