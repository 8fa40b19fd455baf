//! How a migration gets its locks: it gives way after half a second and tries again.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Error, Row, Transaction, error::SqlState, types::Type};

use super::{Found, MigrateError, Plan, Work, is_blocked, step::Index};

/// While we wait for a lock, others who want it wait too: no longer than this. Below PostgreSQL's
/// `deadlock_timeout`, so that in a deadlock the migration gives up.
const LOCKS: &str = "SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = 0";
/// The pause between two attempts, in which producers that wait are let through.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an attempt lasts before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// An index that is built beside others waits for transactions that were open before; no other
/// transaction waits for it.
const INDEX_PATIENCE: Duration = Duration::from_secs(600);

impl Plan<'_> {
    /// Runs a transaction that only one migrator runs at a time; again when a lock was not free.
    pub(super) async fn transact(self, client: &mut Client, work: Work<'_>) -> Result<Found, MigrateError> {
        let started = Instant::now();
        loop {
            match self.attempt(client, work).await {
                Ok(found) => return Ok(found),
                Err(error) if is_blocked(&error) => {
                    let blocked = self.blocked(client, started.elapsed()).await?;
                    if started.elapsed() > PATIENCE {
                        return Err(blocked);
                    }
                    tracing::warn!("{blocked}; trying again");
                    sleep(PAUSE).await;
                }
                Err(source) => return Err(self.failed(source)),
            }
        }
    }

    async fn attempt(self, client: &mut Client, work: Work<'_>) -> Result<Found, Error> {
        let transaction = client.transaction().await?;
        transaction.batch_execute(LOCKS).await?;
        // Released with the transaction, also with a pooler.
        let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
        let name = format!("oncebox migrate {}", self.schema);
        transaction.query_typed(lock, &[(&name, Type::TEXT)]).await?;
        let found = self.run(&transaction, work).await?;
        transaction.commit().await?;
        Ok(found)
    }

    /// Builds an index beside everybody else, unless it is there or the migration is done.
    pub(super) async fn build_index(
        self,
        client: &mut Client,
        number: i32,
        index: Index<'_>,
    ) -> Result<(), MigrateError> {
        let started = Instant::now();
        while !self.transact(client, Work::LookFor { number, index }).await?.has_index {
            tracing::info!(index = index.name, table = index.table, "building an index beside others");
            match self.create(client, index).await {
                Ok(()) => {}
                // Another process began to build it at the same moment; one of the two stepped
                // back.
                Err(error) if is_race(&error) && started.elapsed() < INDEX_PATIENCE => sleep(PAUSE).await,
                Err(error) if is_blocked(&error) => {
                    return Err(self.blocked(client, started.elapsed()).await?);
                }
                Err(source) => return Err(self.failed(source)),
            }
        }
        Ok(())
    }

    /// Whether an index is there. One that a crash has left half built is dropped. While another
    /// process builds it, its table is locked against this.
    pub(super) async fn look_for(
        self,
        transaction: &Transaction<'_>,
        index: Index<'_>,
    ) -> Result<bool, Error> {
        if self.is_valid(transaction, index).await? == Some(true) {
            return Ok(true);
        }
        let lock = format!("LOCK TABLE {{schema}}.{} IN SHARE UPDATE EXCLUSIVE MODE", index.table);
        transaction.batch_execute(&self.schema.sql(&lock)).await?;
        let known = self.is_valid(transaction, index).await?;
        if known == Some(false) {
            let drop = format!("DROP INDEX {{schema}}.{}", index.name);
            transaction.batch_execute(&self.schema.sql(&drop)).await?;
        }
        Ok(known == Some(true))
    }

    /// Whether an index is complete; `None` when it does not exist.
    async fn is_valid(self, transaction: &Transaction<'_>, index: Index<'_>) -> Result<Option<bool>, Error> {
        let sql = "SELECT i.indisvalid FROM pg_index AS i WHERE i.indexrelid = to_regclass($1)";
        let name = self.schema.sql(&format!("{{schema}}.{}", index.name));
        let rows = transaction.query_typed(sql, &[(&name, Type::TEXT)]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// Runs outside of a transaction, so the settings are the session's while it runs.
    async fn create(self, client: &Client, index: Index<'_>) -> Result<(), Error> {
        let patience = INDEX_PATIENCE.as_secs();
        client.batch_execute(&format!("SET lock_timeout = '{patience}s'; SET statement_timeout = 0")).await?;
        let created = client.batch_execute(&self.schema.sql(index.sql)).await;
        client.batch_execute("RESET lock_timeout; RESET statement_timeout").await?;
        created
    }

    /// The end of the error when a lock was not free: who may have held it.
    async fn blocked(self, client: &Client, waited: Duration) -> Result<MigrateError, MigrateError> {
        let sql = self.schema.sql(include_str!("../sql/blockers.sql"));
        let rows = client.query_typed(&sql, &[]).await.map_err(|source| self.failed(source))?;
        let blockers: Vec<String> = rows.iter().map(blocker).collect();
        let blockers = if blockers.is_empty() { "nobody is left".to_owned() } else { blockers.join("; ") };
        Ok(MigrateError::Blocked { schema: self.schema.clone(), seconds: waited.as_secs().max(1), blockers })
    }

    fn failed(self, source: Error) -> MigrateError {
        MigrateError::of(self.schema, source)
    }
}

/// Two processes built the same index.
fn is_race(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::DUPLICATE_TABLE | &SqlState::T_R_DEADLOCK_DETECTED))
}

fn blocker(row: &Row) -> String {
    let (who, seconds): (&str, Option<f64>) = (row.get(0), row.get(1));
    match seconds {
        Some(seconds) => format!("{who}, in a transaction for {seconds:.0} s"),
        None => who.to_owned(),
    }
}
