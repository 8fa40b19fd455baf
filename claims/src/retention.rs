//! Deletes rows that are older than their retention.

mod sweeper;

use oncebox_schema::{Driver, SchemaName};

use crate::{
    Error,
    database::{Database, failed_through, statement},
};

pub use sweeper::{LOOK, Sweeper, tell_refusal};

const WHAT: &str = "delete old keys";

/// The statement, with the name of the schema filled in.
#[derive(Debug)]
struct Retention(String);

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
    fn new(schema: &SchemaName) -> Self {
        Self(statement(schema, include_str!("retention/sweep.sql")))
    }

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
        let row = database.query(transaction, &self.0, &[]).await.map_err(&failed)?;
        database.commit(transaction).await.map_err(&failed)?;
        Ok(row.map(|row| {
            let count = |column| row.number(column).unwrap_or(0);
            let deleted = Deleted {
                keys: count(0),
                dead_letters: count(1),
                claims: count(2),
                unknown_effects: count(3),
            };
            Step { deleted, is_last: row.is_true(4) }
        }))
    }
}
