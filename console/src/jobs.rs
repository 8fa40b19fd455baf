//! Actions under way, and the last ones that have ended: a bounded number of each. A job that is
//! stopped leaves whole batches done, as a command that is killed.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use oncebox_connect::error::error_chain;
use oncebox_operator::{Counted, Operator, Order, RowSet, Stamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{order::told, problem::Problem, settings::Member};

/// Jobs under way at a time, and those that are remembered.
const RUNNING_MAX: usize = 8;
const KEPT_MAX: usize = 100;

/// A user's action.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) database: String,
    pub(crate) by: String,
    pub(crate) order: Order,
    /// How many it was to change when it began.
    pub(crate) expected: Option<u64>,
    #[serde(serialize_with = "loaded")]
    #[schemars(with = "u64")]
    pub(crate) done: Arc<AtomicU64>,
    /// The row of the audit that undoes it; 0 when there is none.
    #[serde(serialize_with = "loaded")]
    #[schemars(with = "u64")]
    pub(crate) undo: Arc<AtomicU64>,
    #[serde(serialize_with = "locked")]
    #[schemars(with = "Option<End>")]
    pub(crate) end: Mutex<Option<End>>,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    #[schemars(with = "f64")]
    pub(crate) began: Instant,
    /// The rows that were shown and confirmed.
    #[serde(skip)]
    rows: Option<RowSet>,
    #[serde(skip)]
    stop: CancellationToken,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    Done(String),
    Stopped,
    Failed(String),
}

/// All jobs; the newest first.
#[derive(Default)]
pub(crate) struct Jobs(Mutex<Held>);

#[derive(Default)]
struct Held {
    jobs: VecDeque<Arc<Job>>,
    tasks: JoinSet<()>,
    last_id: u64,
}

impl Job {
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    async fn run(self: Arc<Self>, member: Arc<Member>) {
        let end = tokio::select! {
            end = self.act(&member) => match end {
                Ok(text) => End::Done(text),
                Err(problem) => End::Failed(problem.text().to_owned()),
            },
            () = self.stop.cancelled() => End::Stopped,
        };
        tracing::info!(
            job = self.id,
            database = self.database,
            by = self.by,
            action = self.order.verb.command,
            ?end,
            "ended"
        );
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    async fn act(&self, member: &Member) -> Result<String, Problem> {
        let stamp = Stamp { operator: Some(self.by.clone()), note: self.order.note.clone() };
        let operator = Operator::connect(&member.outbox, stamp).await;
        let operator = operator.map_err(|error| Problem::of(&member.name, &error))?;
        let done = Arc::clone(&self.done);
        let progress = Box::new(move |count| done.store(count, Ordering::Relaxed));
        let mut operator = operator.at_rate(self.order.rate, Some(progress));
        let ended = self.order.run(&mut operator, member.config.as_ref(), self.rows.as_ref()).await;
        // Also of one that failed on the way: whole batches are done.
        if let Ok(Some(id)) = operator.last_discard().await {
            self.undo.store(id.unsigned_abs(), Ordering::Relaxed);
        }
        let ended = ended.map_err(|error| Problem::told(&error, error_chain(&error)))?;
        let (text, count) = told(&self.order, &ended, self.rows.as_ref())?;
        if let Some(count) = count {
            self.done.store(count, Ordering::Relaxed);
        }
        Ok(text)
    }
}

impl Jobs {
    /// Begins one.
    pub(crate) fn begin(
        &self,
        member: &Arc<Member>,
        by: &str,
        order: Order,
        counted: Counted,
    ) -> Result<Arc<Job>, Problem> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while held.tasks.try_join_next().is_some() {}
        if held.tasks.len() >= RUNNING_MAX {
            return Err(Problem::Conflict(format!(
                "{RUNNING_MAX} jobs are under way; wait for one, or stop one"
            )));
        }
        held.last_id += 1;
        let job = Arc::new(Job {
            id: held.last_id,
            database: member.name.clone(),
            by: by.to_owned(),
            order,
            expected: counted.expected(),
            rows: counted.rows,
            done: Arc::default(),
            undo: Arc::default(),
            end: Mutex::default(),
            began: Instant::now(),
            stop: CancellationToken::new(),
        });
        tracing::info!(job = job.id, database = job.database, by, action = job.order.verb.command, "begun");
        held.jobs.push_front(Arc::clone(&job));
        held.jobs.truncate(KEPT_MAX);
        held.tasks.spawn(Arc::clone(&job).run(Arc::clone(member)));
        Ok(job)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).jobs.iter().cloned().collect()
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Job>, Problem> {
        let found = self.all().into_iter().find(|job| job.id.to_string() == id);
        found.ok_or_else(|| Problem::NotFound(format!("the console remembers no job {id:?}")))
    }
}

fn loaded<S: Serializer>(count: &AtomicU64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(count.load(Ordering::Relaxed))
}

fn locked<S: Serializer>(end: &Mutex<Option<End>>, serializer: S) -> Result<S::Ok, S::Error> {
    end.lock().unwrap_or_else(PoisonError::into_inner).serialize(serializer)
}

fn seconds<S: Serializer>(began: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(began.elapsed().as_secs_f64())
}
