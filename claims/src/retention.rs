//! Deletes rows that are older than their retention.

mod sweeper;

use oncebox_schema::{Driver, SchemaName, Value};

use crate::{
    Error,
    database::{Database, failed_through, statement},
};

pub use sweeper::{LOOK, Sweeper, tell_refusal};

const WHAT: &str = "delete old keys";
/// Blocks of 8 KiB of each table that one transaction looks at: some thousand keys.
const BLOCKS: i64 = 128;

/// The statements, with the name of the schema filled in.
#[derive(Debug)]
struct Retention {
    claim_sweep: String,
    sweep: String,
    swept: String,
}

impl Retention {
    fn new(schema: &SchemaName) -> Self {
        Self {
            claim_sweep: statement(schema, include_str!("retention/claim_sweep.sql")),
            sweep: statement(schema, include_str!("retention/sweep.sql")),
            swept: statement(schema, include_str!("retention/swept.sql")),
        }
    }
}

/// The result of one step of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The numbers of deleted rows.
    pub deleted: Deleted,
    /// Whether the sweep has reached the end of the table.
    pub is_last: bool,
}

/// Numbers of the rows that a step of a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Keys that have ended.
    pub keys: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Claims under a lease that were not taken up again.
    pub claims: u64,
    /// Effects of these claims for which it is not known whether they happened.
    pub unknown_effects: u64,
}

impl Deleted {
    /// How many rows were deleted, without the effects.
    #[must_use]
    pub fn rows(self) -> u64 {
        self.keys + self.dead_letters + self.claims
    }
}

impl Retention {
    /// One step of a sweep; `None` when none is due, or another process sweeps.
    async fn sweep<D: Driver>(&self, database: &Database<D>) -> Result<Option<Step>, Error> {
        let mut transaction = database.begin().await?;
        let step = Box::pin(self.sweep_in(database, &mut transaction));
        let step = database.answered(WHAT, step).await.flatten()?;
        D::release(transaction).await;
        Ok(step)
    }

    async fn sweep_in<D: Driver>(
        &self,
        database: &Database<D>,
        transaction: &mut D::Transaction,
    ) -> Result<Option<Step>, Error> {
        let failed = failed_through::<D>(WHAT);
        let found = database.query(transaction, &self.claim_sweep, &[]).await.map_err(&failed)?;
        let Some(row) = found else { return Ok(None) };
        let (first, blocks): (i64, i64) = (row.number(0).unwrap_or(0), row.number(1).unwrap_or(0));
        let end = first.saturating_add(BLOCKS);
        let range = [Value::Integer(Some(first)), Value::Integer(Some(end))];
        let row =
            database.query(transaction, &self.sweep, &range).await.map_err(&failed)?.unwrap_or_default();
        let count = |column| row.number(column).unwrap_or(0);
        let deleted =
            Deleted { keys: count(0), dead_letters: count(1), claims: count(2), unknown_effects: count(3) };
        let next = if end < blocks { end } else { 0 };
        let swept = database.query(transaction, &self.swept, &[Value::Integer(Some(next))]).await;
        swept.map_err(&failed)?;
        database.commit(transaction).await.map_err(&failed)?;
        Ok(Some(Step { deleted, is_last: next == 0 }))
    }
}
