//! Deletes rows that are older than their retention.

mod sweeper;

use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::types::Type;

use crate::{
    Error,
    database::{Database, Parameter, failed, statement},
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
    async fn sweep(&self, database: &Database) -> Result<Option<Step>, Error> {
        let transaction = database.begin().await?;
        let step = Box::pin(self.sweep_in(database, &transaction));
        let step = database.answered(WHAT, step).await.flatten()?;
        transaction.release();
        Ok(step)
    }

    async fn sweep_in(&self, database: &Database, transaction: &Transaction) -> Result<Option<Step>, Error> {
        let failed = failed(WHAT);
        let found = transaction.query_typed_opt(&self.claim_sweep, &[]).await.map_err(&failed)?;
        let Some(row) = found else { return Ok(None) };
        let (first, blocks): (i64, i64) = (row.get(0), row.get(1));
        let end = first.saturating_add(BLOCKS);
        let range: [Parameter<'_>; 2] = [(&first, Type::INT8), (&end, Type::INT8)];
        let row = transaction.query_typed_one(&self.sweep, &range).await.map_err(&failed)?;
        let count = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
        let deleted = Deleted {
            keys: count("keys"),
            dead_letters: count("dead_letters"),
            claims: count("claims"),
            unknown_effects: count("unknown_effects"),
        };
        let next = if end < blocks { end } else { 0 };
        let swept = transaction.execute_typed(&self.swept, &[(&next, Type::INT8)]).await;
        swept.map_err(&failed)?;
        database.commit(transaction).await.map_err(&failed)?;
        Ok(Some(Step { deleted, is_last: next == 0 }))
    }
}
