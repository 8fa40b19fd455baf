//! The actions of an operator on sagas.

use oncebox_connect::{
    error::{RelayError, StoreError},
    postgres::{Parameter, typed},
};
use tokio_postgres::error::SqlState;

use super::{Saga, SagaSelection};
use crate::{Operator, RowSet, failed};

/// The database's word for a saga that is not as the caller thinks.
const NOT_WAITING: &str = "OB009";

/// The outcome of a command on sagas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActedOn {
    /// How many sagas.
    pub sagas: u64,
    /// Dead letters of participants, of this database, that were discarded: another attempt has a
    /// key of its own.
    pub letters: u64,
    /// Commands of which a new attempt was asked for, and whose dead letter is not here, or cannot
    /// be told from others with its key.
    pub commands_elsewhere: Vec<String>,
}

/// The actions on sagas.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "what an operator can do is the interface")]
pub enum SagaAction {
    /// A new attempt at this step that waits for an operator, or at all that wait; a saga in
    /// quarantine is read again.
    Retry {
        /// The step.
        step: Option<String>,
    },
    /// Go on as if this step, which waits for an operator, were done, or undone; in a saga in
    /// quarantine also one that is under way.
    Skip {
        /// The step.
        step: String,
        /// The reply that the participant would have sent, as JSON.
        reply: Option<String>,
    },
    /// Give the saga up as it stands.
    Abandon,
}

impl SagaAction {
    /// A saga in a set of this action. Another step is another action.
    fn row(&self, saga: &Saga) -> String {
        match self {
            Self::Retry { step: Some(step) } | Self::Skip { step, reply: None } => {
                format!("{} {step}", saga.id)
            }
            Self::Skip { step, reply: Some(reply) } => format!("{} {step} {reply}", saga.id),
            Self::Retry { step: None } | Self::Abandon => saga.id.to_string(),
        }
    }

    fn is_possible(&self, saga: &Saga) -> bool {
        match self {
            Self::Retry { step: None } => saga.state == "quarantined" || !saga.waiting.is_empty(),
            Self::Retry { step: Some(step) } => saga.waiting.contains(step),
            // Of one in quarantine the database says which step that can be.
            Self::Skip { step, .. } => saga.state == "quarantined" || saga.waiting.contains(step),
            Self::Abandon => saga.finished_at.is_none(),
        }
    }
}

impl Operator {
    /// Acts on the selected sagas for which that is possible, `limit` at most, each in a
    /// transaction of its own. An orchestrator applies a retry or a skip within a
    /// second. `only` leaves out all sagas but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: those so far are done, and the same call goes on.
    pub async fn act_on_sagas(
        &mut self,
        action: &SagaAction,
        selection: &SagaSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<ActedOn, RelayError> {
        let (limit, mut done, mut after) =
            (limit.unwrap_or(u64::MAX), ActedOn::default(), Some(selection.after));
        while let Some(last) = after.filter(|_| done.sagas < limit) {
            let page = self.look_sagas(selection, last).await?;
            let meant = page.selected.iter().filter(|saga| {
                action.is_possible(saga) && only.is_none_or(|only| only.has(&action.row(saga)))
            });
            for saga in meant {
                if done.sagas == limit {
                    return Ok(done);
                }
                if self.act_on_saga(action, saga.id, &mut done).await? {
                    done.sagas += 1;
                    self.pace.did(1).await;
                }
            }
            after = page.next;
        }
        Ok(done)
    }

    /// Adds the selected sagas for which an action is possible to a set, up to `limit`. A saga that
    /// has changed since the set was shown came later.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find_sagas(
        &self,
        action: &SagaAction,
        selection: &SagaSelection,
        limit: Option<u64>,
        found: &mut RowSet,
    ) -> Result<(), RelayError> {
        let (limit, mut after) = (limit.unwrap_or(u64::MAX), Some(selection.after));
        while let Some(last) = after.filter(|_| found.count() < limit) {
            let page = self.look_sagas(selection, last).await?;
            for saga in page.selected.iter().filter(|saga| action.is_possible(saga)) {
                if found.count() < limit {
                    found.add(&action.row(saga), saga.changed_at);
                }
            }
            after = page.next;
        }
        Ok(())
    }

    /// False when it is not possible any more: the saga went on meanwhile.
    async fn act_on_saga(
        &mut self,
        action: &SagaAction,
        id: i64,
        acted: &mut ActedOn,
    ) -> Result<bool, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.clone());
        let transaction = self.begin().await?;
        let why = stamp.note.as_deref().or(stamp.operator.as_deref()).unwrap_or("by an operator");
        let step;
        let (sql, second): (&str, &dyn Parameter) = match action {
            SagaAction::Retry { step } => (&sql.retry_saga, step),
            SagaAction::Skip { step, .. } => (&sql.skip_saga_step, step),
            SagaAction::Abandon => {
                step = why;
                (&sql.abandon_saga, &step)
            }
        };
        let mut parameters: Vec<&dyn Parameter> = vec![&id, second, &stamp.operator, &stamp.note];
        if let SagaAction::Skip { reply, .. } = action {
            parameters.push(reply);
        }
        let rows = match transaction.query_typed(sql, &typed(&parameters)).await {
            Ok(rows) => rows,
            Err(error) if error.code().map(SqlState::code) == Some(NOT_WAITING) => return Ok(false),
            Err(source) => return Err(RelayError::store(StoreError::Statement("act on a saga", source))),
        };
        transaction.commit().await.map_err(failed("commit"))?;
        for row in &rows {
            match row.get("is_discarded") {
                Some(true) => acted.letters += 1,
                Some(false) => acted.commands_elsewhere.push(row.get("command")),
                None => {}
            }
        }
        Ok(!rows.is_empty())
    }
}
