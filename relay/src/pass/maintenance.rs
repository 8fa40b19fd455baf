//! Retention, and the release of messages that wait in vain: `run` around `run_once`.
//!
//! A message has no time of its settlement, which would cost an update of each. Instead the log is
//! a ring of segments (`0013_segments.sql`). A turn ends after a sixth of the retention time, and
//! its segment gets no message any more; when no message in it is due it is drained, and when it
//! has been so for the retention time it is emptied. So a message is kept a sixth of the time
//! longer.
//!
//! Each step is a transaction that locks the maintenance row, with SKIP LOCKED, and no lane. Where
//! a relay stops, any other goes on. A step that PostgreSQL refuses is noted in table
//! `maintenance_fault`, which the doctor shows, and the other steps go on. Milestones say where the
//! cursors stood at some times: receipts from before the retention time are forgotten by them.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::tries::Tries;
use crate::{
    backoff::Backoff,
    error::{RelayError, StoreError, error_chain},
    postgres::{
        Peers, Store,
        integrity::Explained,
        retention::{Looked, LowIds, RepairedIds},
    },
    telemetry::Metrics,
};

const TICK_MAX: Duration = Duration::from_secs(60);
/// Turns in a retention time. With the segment that takes messages, and the one that is emptied
/// next, they are the eight of the ring.
const TURNS: u32 = 6;
/// A turn that cannot end is told of so often at most.
const TELL_AFTER: u32 = 10;
const TELL_EVERY: Duration = Duration::from_secs(60 * 60);
/// The number of milestones in a retention time: receipts are kept up to this part of it longer.
const MILESTONES: u32 = 64;
const MILESTONE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
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
    /// Messages released: they waited for dead ones, or with others of which none was tried.
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
    /// The databases in which inboxes of expectations may be.
    peers: Peers,
    tasks: VecDeque<Task>,
    /// The tries to end a turn, and when it was told that they fail.
    tries: Tries,
    told: Option<Instant>,
    /// When the row of this relay was last written.
    registered: Option<Instant>,
    looked_at_schema: Option<Instant>,
    /// The steps that PostgreSQL refused when they were last tried.
    failing: HashSet<&'static str>,
    /// A fault that an earlier run of this relay noted is gone, unless it is noted again.
    forgot_faults: bool,
}

#[derive(Clone, Debug)]
enum Task {
    /// Messages that are not in their inbox in time.
    Unhandled,
    /// The ring of segments: those past `retention` are emptied.
    Turn {
        retention: Duration,
    },
    Release {
        lane: i16,
        after: i64,
    },
    Probe {
        lane: i16,
        waits_for: String,
    },
}

impl Maintainer {
    pub(crate) fn new(
        store: Arc<Store>,
        retention: Option<Duration>,
        dead_blocks: bool,
        metrics: Metrics,
        peers: Peers,
    ) -> Self {
        Self {
            store,
            retention,
            dead_blocks,
            metrics,
            peers,
            tasks: VecDeque::new(),
            tries: Tries::default(),
            told: None,
            registered: None,
            looked_at_schema: None,
            failing: HashSet::new(),
            forgot_faults: false,
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
            let pause = match store.in_turn(STEP_TIMEOUT, self.run_once()).await {
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
            shutdown.run_until_cancelled(sleep(pause)).await;
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
        let (store, peers) = (Arc::clone(&self.store), self.peers.clone());
        let mut done = Maintained::default();
        match self.tasks.pop_front() {
            None => self.begin_round().await?,
            Some(Task::Unhandled) => {
                if self
                    .noted("look for messages that nobody handles", store.look_for_unhandled(&peers))
                    .await?
                {
                    self.tasks.push_front(Task::Unhandled);
                }
            }
            Some(Task::Turn { retention }) => done.pruned = self.turn(retention).await?,
            Some(Task::Release { lane, after }) => {
                let releasing = store.release_behind_dead(lane, after);
                // Another relay has the lane: next time.
                if let Some(progress) = self.noted("release messages behind dead ones", releasing).await? {
                    let next = progress.next.map(|after| Task::Release { lane, after });
                    next.into_iter().for_each(|task| self.tasks.push_front(task));
                    done.released = progress.messages;
                }
            }
            Some(Task::Probe { lane, waits_for }) => {
                done.released =
                    self.noted("try messages that wait with others", store.probe(lane, &waits_for)).await?;
            }
        }
        Ok(Maintained { more: !self.tasks.is_empty(), ..done })
    }

    /// Does a step, and notes how it has ended. One that PostgreSQL refuses stops no other; without
    /// a connection none is tried.
    async fn noted<T: Default>(
        &mut self,
        step: &'static str,
        doing: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let error = match doing.await {
            Ok(done) => {
                if self.failing.remove(step) {
                    self.store.forget_faults(Some(step)).await?;
                    info!(step, "this step of maintenance is done again");
                }
                return Ok(done);
            }
            Err(error @ StoreError::Connect(_)) => return Err(error),
            Err(error) => error,
        };
        let reason = error_chain(&error).to_string();
        if self.failing.insert(step) {
            warn!(step, reason, "a step of maintenance failed; it is tried again, and the others go on");
        }
        // The connection may have gone with it: then the next step says so.
        if let Err(error) = self.store.note_fault(step, &reason).await {
            debug!(error = %error_chain(&error), "the relay could not note a fault of maintenance");
        }
        Ok(T::default())
    }

    /// Finds rows that were deleted by hand, and policies that hide messages: nothing else shows
    /// them.
    async fn look_at_schema(&mut self) -> Result<(), StoreError> {
        if self.looked_at_schema.is_some_and(|at| at.elapsed() < LOOK_AT_SCHEMA_EVERY) {
            return Ok(());
        }
        let mut found = self.store.stopping_faults().await?;
        // `home` tells of these, and more.
        found.retain(|fault| !["copy", "moved"].contains(&fault.fault));
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
        if self.registered.is_some_and(|at| at.elapsed() < REGISTER_EVERY) {
            return Ok(());
        }
        self.store.register(self.retention, self.dead_blocks).await?;
        self.registered = Some(Instant::now());
        Ok(())
    }

    async fn begin_round(&mut self) -> Result<(), StoreError> {
        // Retention does not depend on it; the doctor reports a role that may not do it.
        if let Err(error) = self.register().await {
            debug!(error = %error_chain(&error), "the relay could not write down its settings");
        }
        if let Err(error) = self.look_at_schema().await {
            debug!(error = %error_chain(&error), "the relay could not look for faults of the schema");
        }
        if !std::mem::replace(&mut self.forgot_faults, true) {
            self.store.forget_faults(None).await?;
        }
        let (store, interval) = (Arc::clone(&self.store), self.interval());
        self.noted("compare ids with cursors", mend_ids(&store)).await?;
        let reaching = async { store.reach(interval).await.map(Some) };
        let reached = self.noted("write milestones", reaching).await?;
        // Another relay maintains just now.
        let Some(lanes) = reached.unwrap_or_else(|| Some(Vec::new())) else { return Ok(()) };
        self.noted("look which segments are drained", store.drain_segments()).await?;
        self.tasks.extend(self.retention.map(|retention| Task::Turn { retention }));
        self.tasks.push_back(Task::Unhandled);
        self.noted("forget what operators discarded", store.forget_kept()).await?;
        let hastened = self.noted("correct due times", store.hasten()).await?;
        if hastened > 0 {
            warn!(
                messages = hastened,
                "messages that were set aside with a clock that was ahead are tried again now"
            );
        }
        let unprobed = self.noted("find messages that wait with others", store.unprobed()).await?;
        self.tasks.extend(unprobed.into_iter().map(|(lane, waits_for)| Task::Probe { lane, waits_for }));
        if !self.dead_blocks {
            self.tasks.extend(lanes.into_iter().map(|lane| Task::Release { lane, after: 0 }));
        }
        Ok(())
    }

    /// Empties a segment that is past retention; if there is none, ends the turn when it is time.
    /// Returns how many messages went.
    async fn turn(&mut self, retention: Duration) -> Result<u64, StoreError> {
        let store = Arc::clone(&self.store);
        if let Some(looked) = self.noted("look for messages never sent", store.find_unsent(retention)).await?
        {
            report_unsent(&looked);
            self.tasks.push_front(Task::Turn { retention });
            return Ok(0);
        }
        if let Some(messages) = self.noted("empty a segment", store.empty_segment(retention)).await? {
            self.tasks.push_front(Task::Turn { retention });
            self.metrics.pruned.inc_by(messages);
            return Ok(messages);
        }
        if self.noted("forget what is emptied", store.forget(retention)).await? {
            self.tasks.push_front(Task::Turn { retention });
            return Ok(0);
        }
        let span = retention / TURNS;
        let reason = self
            .noted("end the turn of the log", store.end_turn(span, self.tries.wait(), self.tries.pause(span)))
            .await?;
        self.tell(reason.as_deref());
        Ok(0)
    }

    /// A producer that has just enqueued is no reason to say anything: the next try is soon.
    fn tell(&mut self, reason: Option<&str>) {
        let Some(reason) = reason else {
            self.tries = Tries::default();
            return;
        };
        self.tries.note(Instant::now());
        if self.tries.failed() >= TELL_AFTER && self.told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            warn!(reason, "the turn of the message log cannot end, so its segment grows; it is tried again");
        }
    }

    /// The time between milestones. They are reached also where nothing is deleted, for `oncebox
    /// outbox resend --since`.
    fn interval(&self) -> Duration {
        let part = self.retention.map_or(MILESTONE_MAX, |retention| retention / MILESTONES);
        part.clamp(Duration::from_secs(1), MILESTONE_MAX)
    }
}

fn report_unsent(looked: &Looked) {
    if let Some(last_id) = looked.unsent_id {
        warn!(
            messages = looked.unsent,
            last_id,
            "messages were written below the floor of their lane after a restore, and perhaps never sent: they are sent, \
             some of them perhaps again"
        );
    }
}

/// Ids of new messages must stand above every cursor: a restored database, or one that was moved by
/// logical replication, may come without its sequence, and a sequence may be restarted by hand.
async fn mend_ids(store: &Arc<Store>) -> Result<(), StoreError> {
    let Some(LowIds { stood_at, needed }) = store.low_ids().await? else { return Ok(()) };
    match store.repair_ids().await {
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

fn jittered(tick: Duration) -> Duration {
    Backoff { first: tick, max: tick }.delay(0)
}
