//! The tables of sagas: the only module of the orchestrator that knows SQL.
//!
//! Statements of one step go out together, without waiting for one another. The statements that
//! every answer needs are prepared once for each connection, unless connections go through a
//! pooler; the others are sent as text.

mod read;
mod row;
mod start;

use std::time::Duration;

use oncebox_claims::database::Ready;
use oncebox_schema::{Key, Parameter, SchemaName, Transaction, statements, typed};
use tokio_postgres::{Error, GenericClient, Row};

use crate::{
    graph::Graph,
    instance::Instance,
    progress::{Direction, State, Verdict},
};
pub(crate) use read::{Found, Opening};
use row::changed_steps;
pub(crate) use start::Beginning;

statements!(bare_sql "store/sql/":
    start, refuse_start, find_started, lock, lock_all, read_locked_steps, read_locked_events,
    limit, claim_due, read_steps, read_events, advance, quarantine, save, go_back, keep_event,
    forget_events, adopt_orphans, sweep, register, unregistered, lead
);

#[derive(Clone, Debug)]
pub(crate) struct Store {
    is_pooled: bool,
    sql: Statements,
}

/// Sagas in flight of one version.
pub(crate) struct Unregistered {
    pub(crate) name: String,
    pub(crate) version: i32,
    pub(crate) sagas: i64,
    /// No process goes on with them, unless this one does. Else they are newer than anything that
    /// it has, and those who started them go on.
    pub(crate) is_missing: bool,
}

/// An answer that has to wait.
pub(crate) struct Kept<'a> {
    pub(crate) key: &'a Key,
    pub(crate) is_orphan: bool,
    pub(crate) kind: &'static str,
    pub(crate) step: &'a str,
    pub(crate) attempt: u32,
    pub(crate) is_undo: bool,
    pub(crate) payload: &'a [u8],
    /// The scope that it comes from, if it says so.
    pub(crate) scope: Option<&'a str>,
    /// Of a death: the reason.
    pub(crate) reason: Option<&'a str>,
}

/// Another transaction has changed a saga that this one holds.
#[derive(Debug, thiserror::Error)]
#[error("a saga was changed by another transaction")]
pub(crate) struct Changed;

impl Store {
    /// With a transaction pooler (`is_pooled`) nothing is prepared.
    pub(crate) fn new(schema: &SchemaName, is_pooled: bool) -> Self {
        Self { is_pooled, sql: Statements::new(schema) }
    }

    /// Locks and reads the saga with this key.
    pub(crate) async fn lock(
        &self,
        transaction: &Transaction,
        key: &Key,
        opening: &Opening,
    ) -> Result<Option<Found>, Error> {
        // All are ready before the first is sent, because the reads must come after the lock.
        let lock = Ready::new(transaction, &self.sql.lock, self.is_pooled).await?;
        let read_steps = Ready::new(transaction, &self.sql.read_locked_steps, self.is_pooled).await?;
        let read_events = Ready::new(transaction, &self.sql.read_locked_events, self.is_pooled).await?;
        let key = key.as_str();
        let key = typed(&[&key]);
        let (sagas, steps, events) = futures_util::join!(
            lock.query(transaction, &key),
            read_steps.query(transaction, &key),
            read_events.query(transaction, &key),
        );
        // In this order, here and below: the first error says why, the others only that the
        // transaction is aborted.
        Ok(opening.open(&sagas?, &steps?, &events?)?.pop())
    }

    /// Locks and reads the sagas with these keys; those that are not there are left out.
    pub(crate) async fn lock_all(
        &self,
        transaction: &Transaction,
        keys: &[&str],
        opening: &Opening,
    ) -> Result<Vec<(String, Found)>, Error> {
        let lock_all = Ready::new(transaction, &self.sql.lock_all, self.is_pooled).await?;
        let rows = lock_all.query(transaction, &typed(&[&keys])).await?;
        let keys = rows.iter().map(|row| row.try_get("key")).collect::<Result<Vec<String>, _>>()?;
        Ok(keys.into_iter().zip(self.read(transaction, rows, opening).await?).collect())
    }

    /// Locks and reads sagas that are due, and that no other process has. A process that hangs
    /// loses them after `idle_max`.
    pub(crate) async fn claim_due(
        &self,
        transaction: &Transaction,
        most: i64,
        idle_max: Duration,
        opening: &Opening,
    ) -> Result<Vec<Found>, Error> {
        let fingerprints: Vec<&str> = opening.fingerprints().collect();
        let parameters = typed(&[&fingerprints, &most, &opening.scope]);
        let idle_max = format!("{}ms", idle_max.as_millis());
        let idle_max = typed(&[&idle_max]);
        let limited = transaction.query_typed(&self.sql.limit, &idle_max);
        let claimed = transaction.query_typed(&self.sql.claim_due, &parameters);
        let (limited, rows) = futures_util::join!(limited, claimed);
        self.read(transaction, limited.and(rows)?, opening).await
    }

    async fn read(
        &self,
        transaction: &Transaction,
        rows: Vec<Row>,
        opening: &Opening,
    ) -> Result<Vec<Found>, Error> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<i64>, _>>()?;
        let keys = rows.iter().map(|row| row.try_get("key")).collect::<Result<Vec<&str>, _>>()?;
        let (ids, keys) = (typed(&[&ids]), typed(&[&keys]));
        let steps = transaction.query_typed(&self.sql.read_steps, &ids);
        let events = transaction.query_typed(&self.sql.read_events, &keys);
        let (steps, events) = futures_util::join!(steps, events);
        opening.open(&rows, &steps?, &events?)
    }

    /// The statement that writes where a saga stands.
    pub(crate) async fn ready_to_advance(&self, transaction: &Transaction) -> Result<Ready<'_>, Error> {
        Ready::new(transaction, &self.sql.advance, self.is_pooled).await
    }

    /// Writes the state of these sagas. Without an error, this transaction still holds their locks.
    pub(crate) async fn advance(
        &self,
        transaction: &Transaction,
        advance: &Ready<'_>,
        instances: impl Iterator<Item = (&Instance, &str)>,
    ) -> Result<Result<(), Changed>, Error> {
        let (instances, data): (Vec<&Instance>, Vec<&str>) = instances.unzip();
        let steps = changed_steps(instances.iter().copied());
        let ids = column(&instances, |one| one.id);
        let revisions = column(&instances, |one| one.revision);
        let states = column(&instances, |one| one.state().as_str());
        let directions = column(&instances, |one| one.progress.direction.as_str());
        let reasons = column(&instances, |one| one.reason());
        let can_be_late = column(&instances, |one| one.late_in.is_some());
        let due_in = column(&instances, |one| one.due_in());
        let mut parameters: Vec<&dyn Parameter> =
            vec![&ids, &revisions, &states, &directions, &reasons, &data, &can_be_late, &due_in];
        parameters.extend(steps.iter().map(|column| &**column as &dyn Parameter));
        let written = advance.query(transaction, &typed(&parameters)).await?;
        Ok(if written.len() == instances.len() { Ok(()) } else { Err(Changed) })
    }

    pub(crate) async fn quarantine(
        &self,
        transaction: &Transaction,
        id: i64,
        reason: &str,
    ) -> Result<(), Error> {
        transaction.query_typed(&self.sql.quarantine, &typed(&[&id, &reason])).await?;
        Ok(())
    }

    /// Sets a savepoint for [`Store::go_back`].
    pub(crate) async fn save(&self, transaction: &Transaction) -> Result<(), Error> {
        transaction.batch_execute(&self.sql.save).await
    }

    pub(crate) async fn go_back(&self, transaction: &Transaction) -> Result<(), Error> {
        transaction.batch_execute(&self.sql.go_back).await
    }

    pub(crate) async fn keep_event(&self, transaction: &Transaction, kept: &Kept<'_>) -> Result<(), Error> {
        let attempt = i32::try_from(kept.attempt).unwrap_or(i32::MAX);
        let Kept { key, is_orphan, kind, step, is_undo, payload, scope, reason, .. } = kept;
        let key = key.as_str();
        let parameters: [&dyn Parameter; 9] =
            [&key, is_orphan, kind, step, &attempt, is_undo, payload, scope, reason];
        transaction.query_typed(&self.sql.keep_event, &typed(&parameters)).await?;
        Ok(())
    }

    pub(crate) async fn forget_events(
        &self,
        transaction: &Transaction,
        ended: &[(i64, Verdict)],
    ) -> Result<(), Error> {
        if ended.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = ended.iter().map(|(id, _)| *id).collect();
        transaction.query_typed(&self.sql.forget_events, &typed(&[&ids])).await?;
        Ok(())
    }

    /// Has sagas looked at whose answers came before they did; returns how many answers.
    pub(crate) async fn adopt_orphans(&self, client: &impl GenericClient, most: i64) -> Result<i64, Error> {
        client.query_typed_one(&self.sql.adopt_orphans, &typed(&[&most])).await?.try_get(0)
    }

    /// Deletes old sagas, and old answers without one; returns the numbers of both.
    pub(crate) async fn sweep(
        &self,
        client: &impl GenericClient,
        sagas_seconds: Option<f64>,
        (orphans_seconds, orphans_max): (f64, i64),
        most: i32,
    ) -> Result<(i64, i64), Error> {
        let parameters = typed(&[&sagas_seconds, &orphans_seconds, &most, &orphans_max]);
        let row = client.query_typed_one(&self.sql.sweep, &parameters).await?;
        Ok((row.try_get("sagas")?, row.try_get("orphans")?))
    }

    /// Writes the graphs down, and the plans of those that are files.
    pub(crate) async fn register(&self, client: &impl GenericClient, opening: &Opening) -> Result<(), Error> {
        let graphs: Vec<&Graph> = opening.graphs().collect();
        let plans: Vec<Option<&str>> = opening.definitions.values().map(|one| one.plan()).collect();
        let parameters: [&dyn Parameter; 7] = [
            &column(&graphs, |graph| graph.fingerprint()),
            &column(&graphs, |graph| graph.name()),
            &column(&graphs, |graph| i32::from(graph.version())),
            &column(&graphs, |graph| graph.json()),
            &plans,
            &opening.scope,
            &opening.reply_to.as_str(),
        ];
        client.query_typed(&self.sql.register, &typed(&parameters)).await?;
        Ok(())
    }

    /// Writes down that this process leads its sagas.
    pub(crate) async fn lead(&self, client: &impl GenericClient, opening: &Opening) -> Result<(), Error> {
        let fingerprints: Vec<&str> = opening.fingerprints().collect();
        client.query_typed(&self.sql.lead, &typed(&[&opening.scope, &fingerprints])).await?;
        Ok(())
    }

    /// Sagas in flight that this process has no definition of, though it may have to.
    pub(crate) async fn unregistered(
        &self,
        client: &impl GenericClient,
        opening: &Opening,
    ) -> Result<Vec<Unregistered>, Error> {
        let graphs: Vec<&Graph> = opening.graphs().collect();
        let parameters: [&dyn Parameter; 4] = [
            &opening.scope,
            &column(&graphs, |graph| graph.fingerprint()),
            &column(&graphs, |graph| graph.name()),
            &column(&graphs, |graph| i32::from(graph.version())),
        ];
        let rows = client.query_typed(&self.sql.unregistered, &typed(&parameters)).await?;
        let read = |row: &Row| {
            Ok(Unregistered {
                name: row.try_get("type")?,
                version: row.try_get("version")?,
                sagas: row.try_get("sagas")?,
                is_missing: row.try_get("is_missing")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Compensating => "compensating",
            Self::Stuck => "stuck",
            Self::Completed => "completed",
            Self::Compensated => "compensated",
        }
    }
}

impl Direction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}
