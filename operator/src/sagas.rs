//! Sagas: list, show, retry, skip, abandon. The orchestrators do the work that is asked for here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AuditRow, Kind, Operator, Result,
    rows::{FromRow as _, from_row},
    selection::{SAGA_STATES, Selection},
    time::Time,
};

mod act;
mod data;
mod definitions;
mod drawing;
mod unled;

pub use self::{
    data::{Json, RefusedAnswer, SagaReply},
    definitions::SagaDefinition,
    drawing::{Drawing as SagaDrawing, Node as SagaNode},
    unled::SagasUnled,
};
pub(crate) use self::{
    data::{is_refused, saga_of_answer},
    unled::UNLED_SECONDS,
};

/// Rows that are shown beside a saga at most, of its audit and of the events that wait to be
/// applied.
const BESIDE_MAX: i64 = 1_000;
/// Sagas that a trace shows at most.
const TRACED_MAX: i64 = 100;

const FINISHED: [&str; 3] = [SAGA_STATES[4], SAGA_STATES[5], SAGA_STATES[6]];

/// A saga, without its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Saga {
    /// Its number.
    pub id: i64,
    /// The name of its definition.
    #[serde(rename = "type")]
    pub saga_type: String,
    /// The business object that it is about.
    pub business_id: String,
    /// The key that those of its commands begin with.
    pub key: String,
    /// The version of its definition.
    pub version: i32,
    /// One of [`SAGA_STATES`].
    pub state: String,
    /// `forward` until it is given up, then `backward`.
    pub direction: String,
    /// Why it is in this state.
    pub reason: Option<String>,
    /// The steps, or compensations, that wait for an operator.
    pub waiting: Vec<String>,
    /// Those, and the ones that wait for an answer: where the saga is.
    pub current: Vec<String>,
    /// When it began.
    pub created_at: Time,
    /// How many milliseconds ago that was, by the clock of PostgreSQL.
    pub age_ms: i64,
    /// When it changed last.
    pub changed_at: Time,
    /// When it is given up unless it is past its pivot.
    pub deadline_at: Option<Time>,
    /// When it finished.
    pub finished_at: Option<Time>,
}

/// A step of a saga whose command was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagaStep {
    /// Its name.
    pub step: String,
    /// `sent`, `done`, `rejected` (without effect), `failed` (its effect is unknown), `undoing`,
    /// `undo-failed`, `undone`.
    pub state: String,
    /// The newest attempt.
    pub attempt: i32,
    /// The newest attempt at its compensation, 0 before the first.
    pub undo_attempt: i32,
    /// The subject of its command.
    pub subject: String,
    /// The subject of its compensation, once one was sent.
    pub undo_subject: Option<String>,
    /// Why it failed, or who skipped it.
    pub reason: Option<String>,
    /// When the answer is late.
    pub deadline_at: Option<Time>,
    /// When its command was sent.
    pub sent_at: Time,
    /// When it was answered.
    pub answered_at: Option<Time>,
    /// When its compensation was sent.
    pub undo_sent_at: Option<Time>,
    /// When that was done.
    pub undone_at: Option<Time>,
}

/// How far a saga is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagaProgress {
    /// The saga.
    #[serde(flatten)]
    pub saga: Saga,
    /// Its steps that were sent, in that order.
    pub steps: Vec<SagaStep>,
}

/// The answers that wait to be applied to a saga.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagaEvent {
    /// An early answer, `done`, `rejected` or `dead`; or an operator's request, `retry` or `skip`.
    pub kind: String,
    /// The step that it is about.
    pub step: String,
    /// Whether it is about the step's compensation.
    pub is_undo: bool,
    /// When it came.
    pub created_at: Time,
}

/// A step of the definition that a saga goes by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
#[non_exhaustive]
pub struct SagaGraphStep {
    /// Its name.
    pub name: String,
    /// The steps that must be done before.
    pub after: Vec<String>,
    /// Whether only a way forward is left after it.
    pub is_pivot: bool,
    /// The subject of its command.
    pub subject: String,
    /// The subject of its compensation, if it has one.
    pub compensation: Option<String>,
}

/// All about one saga.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagaDetails {
    /// How far it is.
    #[serde(flatten)]
    pub progress: SagaProgress,
    /// The answers that wait to be applied to it, the oldest 1,000.
    pub events: Vec<SagaEvent>,
    /// Answers that moved nothing, since they contradict themselves or the saga; the newest 1,000.
    pub refused: Vec<RefusedAnswer>,
    /// The steps of its definition; `None` when no orchestrator has registered that, or in a form
    /// that this program cannot read.
    pub graph: Option<Vec<SagaGraphStep>>,
    /// Its data, if asked for; of a saga of a file that of its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
    /// The replies to its commands, with the data; a saga in Rust has them in its data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<SagaReply>,
    /// The actions of operators on it, newest first.
    pub audit: Vec<AuditRow>,
}

impl Operator {
    /// Sagas in the order of their ids, that of their beginning, `limit` at most. Finished ones
    /// only where their state, or their key, is given.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn sagas(&self, of: &Selection, limit: usize) -> Result<Vec<Saga>> {
        self.list(of, limit, |_| true).await
    }

    /// Reads everything about the saga with this key; `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn saga(&self, key: &str, with_data: bool) -> Result<Option<SagaDetails>> {
        let Some(progress) = self.saga_progress(&[key.to_owned()]).await?.pop() else { return Ok(None) };
        let events = self.all("read a saga's events", &self.sql.saga_events, &[&key, &BESIDE_MAX]).await?;
        let refused =
            self.all("read refused answers", &self.sql.refused_answers, &[&key, &BESIDE_MAX]).await?;
        let keys = vec![key];
        let audit = self.all("read the audit table", &self.sql.trace_audit, &[&keys, &BESIDE_MAX]).await?;
        let details =
            self.query("read a saga", &self.sql.saga_details, &[&progress.saga.id, &with_data]).await?;
        let text = |column| details.first().and_then(|row| row.get::<_, Option<String>>(column));
        let (data, replies) = text("data").map(data::parts).unzip();
        let mut replies: Vec<SagaReply> = replies.unwrap_or_default();
        let place = |reply: &SagaReply| progress.steps.iter().position(|step| step.step == reply.step);
        replies.sort_by_key(place);
        Ok(Some(SagaDetails {
            progress,
            events,
            refused,
            graph: text("graph").and_then(|text| serde_json::from_str(&text).ok()),
            data,
            replies,
            audit,
        }))
    }

    /// The sagas with this key, or below it, and how far they are.
    pub(super) async fn traced_sagas(&self, key: &str) -> Result<Vec<SagaProgress>> {
        let rows = self.query("trace sagas", &self.sql.trace_sagas, &[&key, &TRACED_MAX]).await?;
        let keys: Vec<String> = rows.iter().map(|row| row.get("key")).collect();
        self.saga_progress(&keys).await
    }

    async fn saga_progress(&self, keys: &[String]) -> Result<Vec<SagaProgress>> {
        let mut found: Vec<SagaProgress> = Vec::new();
        for key in keys {
            let of = Selection { key: Some(key.clone()), ..Selection::of(Kind::Sagas) };
            found.extend(
                self.sagas(&of, 1).await?.into_iter().map(|saga| SagaProgress { saga, steps: Vec::new() }),
            );
        }
        let ids: Vec<i64> = found.iter().map(|progress| progress.saga.id).collect();
        for row in &self.query("read the steps of sagas", &self.sql.saga_steps, &[&ids]).await? {
            let id: i64 = row.get("saga_id");
            let progress = found.iter_mut().find(|progress| progress.saga.id == id);
            progress.into_iter().for_each(|progress| progress.steps.push(SagaStep::from_row(row)));
        }
        Ok(found)
    }
}

from_row!(Saga:
    id, saga_type = "type", business_id, key, version, state, direction, reason, waiting, current, created_at,
    age_ms, changed_at, deadline_at, finished_at);
from_row!(SagaStep:
    step, state, attempt, undo_attempt, subject, undo_subject, reason, deadline_at, sent_at, answered_at,
    undo_sent_at, undone_at);
from_row!(SagaEvent: kind, step, is_undo, created_at);
