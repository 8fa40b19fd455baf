//! What is older than its retention.

use std::time::Duration;

use deadpool_postgres::Transaction;
use tokio_postgres::types::Type;

use super::{Parameter, Store, failed, statement};
use crate::{Error, identity::Identity};

/// Blocks of 8 KiB of each table that one transaction looks at: some thousand keys.
const BLOCKS: i64 = 128;

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Retention {
    expire: String,
    claim_sweep: String,
    sweep: String,
    swept: String,
}

impl Retention {
    pub(super) fn new(schema: &oncebox_schema::SchemaName) -> Self {
        Self {
            expire: statement(schema, include_str!("retention/expire.sql")),
            claim_sweep: statement(schema, include_str!("retention/claim_sweep.sql")),
            sweep: statement(schema, include_str!("retention/sweep.sql")),
            swept: statement(schema, include_str!("retention/swept.sql")),
        }
    }
}

/// What one step of a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) deleted: Deleted,
    /// The sweep has come to the end of the table.
    pub(crate) is_last: bool,
}

/// What a step of a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deleted {
    pub(crate) keys: u64,
    pub(crate) dead_letters: u64,
    /// That nobody came back for.
    pub(crate) claims: u64,
    /// Effects of these of which nobody found out whether they happened.
    pub(crate) unknown_effects: u64,
}

/// Whose keys they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Consumer,
    #[cfg(feature = "http")]
    Http,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            #[cfg(feature = "http")]
            Self::Http => "http",
        }
    }
}

impl Deleted {
    pub(crate) fn rows(self) -> u64 {
        self.keys + self.dead_letters + self.claims
    }
}

impl Store {
    /// Deletes the row of a key that is older than its retention, unless another transaction works on the key.
    pub(super) async fn expire(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        retention: Duration,
    ) -> Result<(), Error> {
        let statement =
            self.ready(transaction, &self.retention.expire).await.map_err(failed("expire a key"))?;
        let parameters: [Parameter<'_>; 5] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&retention.as_secs_f64(), Type::FLOAT8),
        ];
        statement.execute(transaction, &parameters).await.map(drop).map_err(failed("expire a key"))
    }

    /// One step of a sweep; `None` when none is due, or another process sweeps.
    pub(crate) async fn sweep(&self) -> Result<Option<Step>, Error> {
        let failed = failed("delete old keys");
        let mut object = self.connect().await?;
        let transaction = object.transaction().await.map_err(&failed)?;
        let found = transaction.query_typed_opt(&self.retention.claim_sweep, &[]).await.map_err(&failed)?;
        let Some(row) = found else { return Ok(None) };
        let (first, blocks): (i64, i64) = (row.get(0), row.get(1));
        let end = first.saturating_add(BLOCKS);
        let range: [Parameter<'_>; 2] = [(&first, Type::INT8), (&end, Type::INT8)];
        let row = transaction.query_typed_one(&self.retention.sweep, &range).await.map_err(&failed)?;
        let count = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
        let deleted = Deleted {
            keys: count("keys"),
            dead_letters: count("dead_letters"),
            claims: count("claims"),
            unknown_effects: count("unknown_effects"),
        };
        let next = if end < blocks { end } else { 0 };
        let swept = transaction.execute_typed(&self.retention.swept, &[(&next, Type::INT8)]).await;
        swept.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(Some(Step { deleted, is_last: next == 0 }))
    }

    /// Whether a message would have to wait for a connection if one were taken now.
    pub(crate) fn is_busy(&self) -> bool {
        let status = self.pool.status();
        status.waiting > 0 || (status.available == 0 && status.size >= status.max_size)
    }
}
