//! The actions of an operator on sagas.

use std::time::SystemTime;

use oncebox_connect::{
    error::{RelayError, StoreError},
    postgres::{Parameter, typed},
};
use tokio_postgres::error::SqlState;

use super::{FINISHED, Saga};
use crate::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    commit, next_id,
    rows::FromRow as _,
    selection::{Place, Selection},
};

/// The database's word for a saga that is not as the caller thinks.
const NOT_WAITING: &str = "OB009";

impl Listed for Saga {
    async fn scans(_: &Operator, of: &Selection, _: bool) -> Result<Vec<Scan>> {
        let mut scan = Scan::from(of);
        if of.newest_first && of.after.is_none() {
            scan.after = Place::Id(i64::MAX);
        }
        Ok(vec![scan])
    }

    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let (Selection { key, saga_type, state, newest_first, .. }, after) = (of, scan.after.id());
        let finished = state.as_deref().is_some_and(|state| FINISHED.contains(&state));
        let parameters: [&dyn Parameter; 7] =
            [&after, &BATCH, key, saga_type, state, &finished, newest_first];
        let rows = operator.query("look at sagas", &operator.sql.look_sagas, &parameters).await?;
        let selected = rows.iter().filter(|row| row.get("selected")).map(Self::from_row).collect();
        Ok(Page::new(selected, next_id(&rows).map(Place::Id)))
    }

    /// Another step, or reply, is another action.
    fn name(&self, acting: &Acting<'_>) -> String {
        let parts = [acting.of.step.as_ref(), acting.of.reply.as_ref()];
        parts.into_iter().flatten().fold(self.id.to_string(), |name, part| format!("{name} {part}"))
    }

    /// A saga that has changed since the set was shown came later.
    fn came_at(&self) -> SystemTime {
        *self.changed_at
    }

    fn can(&self, acting: &Acting<'_>) -> bool {
        match (acting.verb, &acting.of.step) {
            (Verb::AbandonSagas, _) => self.finished_at.is_none(),
            (Verb::RetrySagas, Some(step)) => self.waiting.contains(step),
            // Of one in quarantine the database says which step can be skipped.
            (_, Some(step)) => self.state == "quarantined" || self.waiting.contains(step),
            (_, None) => self.state == "quarantined" || !self.waiting.is_empty(),
        }
    }

    fn in_batches(_: Verb) -> bool {
        false
    }

    /// Each in a transaction of its own. An orchestrator applies a retry or a skip within a second.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        acting.is_one_of(&[Verb::RetrySagas, Verb::SkipStep, Verb::AbandonSagas])?;
        for saga in rows {
            operator.act_on_saga(acting, saga.id, done).await?;
        }
        Ok(())
    }
}

impl Operator {
    /// Does nothing when it is not possible any more: the saga went on meanwhile.
    async fn act_on_saga(&mut self, acting: &Acting<'_>, id: i64, done: &mut Done) -> Result<()> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.clone());
        let transaction = self.begin().await?;
        let why = stamp.note.as_deref().or(stamp.operator.as_deref()).unwrap_or("by an operator");
        let Selection { step, reply, .. } = acting.of;
        let (sql, second): (&str, &dyn Parameter) = match acting.verb {
            Verb::SkipStep => (&sql.skip_saga_step, step),
            Verb::AbandonSagas => (&sql.abandon_saga, &why),
            _ => (&sql.retry_saga, step),
        };
        let mut parameters: Vec<&dyn Parameter> = vec![&id, second, &stamp.operator, &stamp.note];
        if acting.verb == Verb::SkipStep {
            parameters.push(reply);
        }
        let rows = match transaction.query_typed(sql, &typed(&parameters)).await {
            Ok(rows) => rows,
            Err(error) if error.code().map(SqlState::code) == Some(NOT_WAITING) => return Ok(()),
            Err(source) => return Err(RelayError::store(StoreError::Statement("act on a saga", source))),
        };
        commit(transaction).await?;
        for row in &rows {
            match row.get("is_discarded") {
                Some(true) => done.letters += 1,
                Some(false) => done.commands_elsewhere.push(row.get("command")),
                None => {}
            }
        }
        done.done += u64::from(!rows.is_empty());
        Ok(())
    }
}
