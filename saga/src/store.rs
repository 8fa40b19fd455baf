//! The tables of sagas: the only module of the orchestrator that knows SQL.
//!
//! Nothing is prepared, so that all of it works behind a pooler. Statements of one step go out
//! together, without waiting for one another.

mod read;
mod row;

use std::time::Duration;

use oncebox_schema::{Key, SchemaName};
use tokio_postgres::{
    Error, GenericClient, Row, Transaction,
    types::{ToSql, Type},
};

use crate::{
    graph::Graph,
    instance::Instance,
    progress::{Direction, State, Verdict},
};
pub(crate) use read::{Found, Opening};
use row::StepRow;

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The texts of the statements, for one schema.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    start: String,
    find_started: String,
    lock: String,
    limit: String,
    claim_due: String,
    read_steps: String,
    read_events: String,
    save: String,
    save_steps: String,
    quarantine: String,
    keep_event: String,
    forget_events: String,
    adopt_orphans: String,
    sweep: String,
    register: String,
    unregistered: String,
}

/// A saga, as the caller of `start` describes it.
pub(crate) struct Beginning<'a> {
    pub(crate) business_id: &'a str,
    pub(crate) data: &'a str,
}

/// A saga that stands where a new one was to.
pub(crate) struct Standing {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) is_same_id: bool,
    pub(crate) is_same_data: bool,
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
    pub(crate) reason: Option<&'a str>,
}

/// Another transaction has changed a saga that this one holds.
#[derive(Debug, thiserror::Error)]
#[error("a saga was changed by another transaction")]
pub(crate) struct Changed;

impl Store {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        let sql = |file: &str| {
            let text: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
            schema.sql(&text.join("\n"))
        };
        Self {
            start: sql(include_str!("store/sql/start.sql")),
            find_started: sql(include_str!("store/sql/find_started.sql")),
            lock: sql(include_str!("store/sql/lock.sql")),
            limit: sql(include_str!("store/sql/limit.sql")),
            claim_due: sql(include_str!("store/sql/claim_due.sql")),
            read_steps: sql(include_str!("store/sql/read_steps.sql")),
            read_events: sql(include_str!("store/sql/read_events.sql")),
            save: sql(include_str!("store/sql/save.sql")),
            save_steps: sql(include_str!("store/sql/save_steps.sql")),
            quarantine: sql(include_str!("store/sql/quarantine.sql")),
            keep_event: sql(include_str!("store/sql/keep_event.sql")),
            forget_events: sql(include_str!("store/sql/forget_events.sql")),
            adopt_orphans: sql(include_str!("store/sql/adopt_orphans.sql")),
            sweep: sql(include_str!("store/sql/sweep.sql")),
            register: sql(include_str!("store/sql/register.sql")),
            unregistered: sql(include_str!("store/sql/unregistered.sql")),
        }
    }

    /// The id of the new saga, unless there is one already.
    pub(crate) async fn start(
        &self,
        transaction: &Transaction<'_>,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Option<i64>, Error> {
        let graph = instance.process.graph();
        let parameters: [Parameter<'_>; 8] = [
            (&graph.name(), Type::TEXT),
            (&beginning.business_id, Type::TEXT),
            (&instance.key.as_str(), Type::TEXT),
            (&i32::from(graph.version()), Type::INT4),
            (&graph.fingerprint(), Type::TEXT),
            (&beginning.data, Type::TEXT),
            (&instance.late_in, Type::FLOAT8),
            (&instance.due_in(), Type::FLOAT8),
        ];
        let row = transaction.query_typed_opt(&self.start, &parameters).await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    pub(crate) async fn find_started(
        &self,
        transaction: &Transaction<'_>,
        instance: &Instance,
        beginning: &Beginning<'_>,
    ) -> Result<Option<Standing>, Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&instance.process.graph().name(), Type::TEXT),
            (&beginning.business_id, Type::TEXT),
            (&instance.key.as_str(), Type::TEXT),
            (&beginning.data, Type::TEXT),
        ];
        let standing = |row: Row| {
            Ok(Standing {
                id: row.try_get("id")?,
                key: row.try_get("key")?,
                is_same_id: row.try_get("is_same_id")?,
                is_same_data: row.try_get("is_same_data")?,
            })
        };
        transaction.query_typed_opt(&self.find_started, &parameters).await?.map(standing).transpose()
    }

    /// Locks and reads the saga with this key.
    pub(crate) async fn lock(
        &self,
        transaction: &Transaction<'_>,
        key: &Key,
        opening: &Opening,
    ) -> Result<Option<Found>, Error> {
        let rows = transaction.query_typed(&self.lock, &[(&key.as_str(), Type::TEXT)]).await?;
        Ok(self.read(transaction, rows, opening).await?.pop())
    }

    /// Locks and reads sagas that are due, and that nobody else has. A process that hangs loses
    /// them after `idle_max`.
    pub(crate) async fn claim_due(
        &self,
        transaction: &Transaction<'_>,
        most: i64,
        idle_max: Duration,
        opening: &Opening,
    ) -> Result<Vec<Found>, Error> {
        let fingerprints: Vec<&str> = opening.fingerprints().collect();
        let parameters: [Parameter<'_>; 2] = [(&fingerprints, Type::TEXT_ARRAY), (&most, Type::INT8)];
        let idle_max = format!("{}ms", idle_max.as_millis());
        let idle_max: [Parameter<'_>; 1] = [(&idle_max, Type::TEXT)];
        let limited = transaction.query_typed(&self.limit, &idle_max);
        let claimed = transaction.query_typed(&self.claim_due, &parameters);
        let (_, rows) = futures_util::try_join!(limited, claimed)?;
        self.read(transaction, rows, opening).await
    }

    async fn read(
        &self,
        transaction: &Transaction<'_>,
        rows: Vec<Row>,
        opening: &Opening,
    ) -> Result<Vec<Found>, Error> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<i64>, _>>()?;
        let keys = rows.iter().map(|row| row.try_get("key")).collect::<Result<Vec<&str>, _>>()?;
        let ids: [Parameter<'_>; 1] = [(&ids, Type::INT8_ARRAY)];
        let keys: [Parameter<'_>; 1] = [(&keys, Type::TEXT_ARRAY)];
        let steps = transaction.query_typed(&self.read_steps, &ids);
        let events = transaction.query_typed(&self.read_events, &keys);
        let (steps, events) = futures_util::try_join!(steps, events)?;
        opening.open(&rows, &steps, &events)
    }

    /// Writes where these stand. Without an error, this transaction holds what it thinks it holds.
    pub(crate) async fn save(
        &self,
        transaction: &Transaction<'_>,
        instances: &[SavedInstance<'_>],
    ) -> Result<Result<(), Changed>, Error> {
        let parameters: [Parameter<'_>; 8] = [
            (&column(instances, |saved| saved.instance.id), Type::INT8_ARRAY),
            (&column(instances, |saved| saved.instance.revision), Type::INT8_ARRAY),
            (&column(instances, |saved| saved.instance.state().as_str()), Type::TEXT_ARRAY),
            (&column(instances, |saved| saved.instance.progress.direction.as_str()), Type::TEXT_ARRAY),
            (&column(instances, |saved| saved.instance.reason()), Type::TEXT_ARRAY),
            (&column(instances, |saved| saved.data), Type::TEXT_ARRAY),
            (&column(instances, |saved| saved.instance.late_in.is_some()), Type::BOOL_ARRAY),
            (&column(instances, |saved| saved.instance.due_in()), Type::FLOAT8_ARRAY),
        ];
        let row = transaction.query_typed_one(&self.save, &parameters).await?;
        let saved: i64 = row.try_get(0)?;
        Ok(if usize::try_from(saved) == Ok(instances.len()) { Ok(()) } else { Err(Changed) })
    }

    /// Writes the steps of these that have changed.
    pub(crate) async fn save_steps(
        &self,
        transaction: &Transaction<'_>,
        instances: impl Iterator<Item = &Instance>,
    ) -> Result<(), Error> {
        let rows: Vec<StepRow<'_>> = instances.flat_map(StepRow::changed).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let parameters: [Parameter<'_>; 12] = [
            (&column(&rows, |row| row.saga_id), Type::INT8_ARRAY),
            (&column(&rows, |row| row.name), Type::TEXT_ARRAY),
            (&column(&rows, |row| row.state), Type::TEXT_ARRAY),
            (&column(&rows, |row| row.attempt), Type::INT4_ARRAY),
            (&column(&rows, |row| row.undo_attempt), Type::INT4_ARRAY),
            (&column(&rows, |row| row.in_doubt), Type::BOOL_ARRAY),
            (&column(&rows, |row| row.subject), Type::TEXT_ARRAY),
            (&column(&rows, |row| row.payload), Type::BYTEA_ARRAY),
            (&column(&rows, |row| row.undo_subject), Type::TEXT_ARRAY),
            (&column(&rows, |row| row.undo_payload), Type::BYTEA_ARRAY),
            (&column(&rows, |row| row.reason), Type::TEXT_ARRAY),
            (&column(&rows, |row| row.late_in), Type::FLOAT8_ARRAY),
        ];
        transaction.query_typed(&self.save_steps, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn quarantine(
        &self,
        transaction: &Transaction<'_>,
        id: i64,
        reason: &str,
    ) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 2] = [(&id, Type::INT8), (&reason, Type::TEXT)];
        transaction.query_typed(&self.quarantine, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn keep_event(
        &self,
        transaction: &Transaction<'_>,
        kept: &Kept<'_>,
    ) -> Result<(), Error> {
        let attempt = i32::try_from(kept.attempt).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 8] = [
            (&kept.key.as_str(), Type::TEXT),
            (&kept.is_orphan, Type::BOOL),
            (&kept.kind, Type::TEXT),
            (&kept.step, Type::TEXT),
            (&attempt, Type::INT4),
            (&kept.is_undo, Type::BOOL),
            (&kept.payload, Type::BYTEA),
            (&kept.reason, Type::TEXT),
        ];
        transaction.query_typed(&self.keep_event, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn forget_events(
        &self,
        transaction: &Transaction<'_>,
        ended: &[(i64, Verdict)],
    ) -> Result<(), Error> {
        if ended.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = ended.iter().map(|(id, _)| *id).collect();
        transaction.query_typed(&self.forget_events, &[(&ids, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    /// Has sagas looked at whose answers came before they did; returns how many answers.
    pub(crate) async fn adopt_orphans(&self, client: &impl GenericClient, most: i64) -> Result<i64, Error> {
        client.query_typed_one(&self.adopt_orphans, &[(&most, Type::INT8)]).await?.try_get(0)
    }

    /// Deletes what is old; returns how many sagas, and how many answers without one.
    pub(crate) async fn sweep(
        &self,
        client: &impl GenericClient,
        (sagas_seconds, orphans_seconds): (Option<f64>, f64),
        most: i32,
    ) -> Result<(i64, i64), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&sagas_seconds, Type::FLOAT8), (&orphans_seconds, Type::FLOAT8), (&most, Type::INT4)];
        let row = client.query_typed_one(&self.sweep, &parameters).await?;
        Ok((row.try_get("sagas")?, row.try_get("orphans")?))
    }

    pub(crate) async fn register<'a>(
        &self,
        client: &impl GenericClient,
        graphs: impl Iterator<Item = &'a Graph>,
    ) -> Result<(), Error> {
        let graphs: Vec<&Graph> = graphs.collect();
        let parameters: [Parameter<'_>; 4] = [
            (&column(&graphs, |graph| graph.fingerprint()), Type::TEXT_ARRAY),
            (&column(&graphs, |graph| graph.name()), Type::TEXT_ARRAY),
            (&column(&graphs, |graph| i32::from(graph.version())), Type::INT4_ARRAY),
            (&column(&graphs, |graph| graph.json()), Type::TEXT_ARRAY),
        ];
        client.query_typed(&self.register, &parameters).await?;
        Ok(())
    }

    /// Type, version and number of sagas in flight that nobody here could go on with.
    pub(crate) async fn unregistered(
        &self,
        client: &impl GenericClient,
        opening: &Opening,
    ) -> Result<Vec<(String, i32, i64)>, Error> {
        let fingerprints: Vec<&str> = opening.fingerprints().collect();
        let rows = client.query_typed(&self.unregistered, &[(&fingerprints, Type::TEXT_ARRAY)]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
    }
}

/// An instance, with its data as JSON.
pub(crate) struct SavedInstance<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) data: &'a str,
}

fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

impl State {
    fn as_str(self) -> &'static str {
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
