//! The one module that speaks SQL: claim, read, settle, what an operator wants to know, and what he does.

/// The text of each file in a folder below `store`, for one schema.
macro_rules! statements {
    ($folder:literal: $($name:ident),+ $(,)?) => {
        #[derive(Clone, Debug)]
        struct Statements { $($name: String),+ }

        impl Statements {
            fn new(schema: &oncebox_schema::SchemaName) -> Self {
                Self { $($name: schema.sql(include_str!(concat!($folder, stringify!($name), ".sql")))),+ }
            }
        }
    };
}
mod maintenance;
mod operator;
mod session;
mod status;

pub(crate) use maintenance::Progress;
pub use operator::{
    AuditRow, BlockedKey, DeadAction, DeadMessage, Holder, LaneStatus, Operator, ParkedMessage, ParkedReason,
    RelaySessions, Stamp, Status, Trace, TracedMessage, TracedParking, TracedReplay,
};
pub(crate) use session::{Claim, Parking, ReadLimits, Session};
pub(crate) use status::{LaneLag, ParkedCount};

use deadpool_postgres::{Object, Pool};
use oncebox_schema::SchemaName;
use tokio_postgres::Row;

use crate::message::{Message, Parked};

/// PostgreSQL refused, or is away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("connect to PostgreSQL")]
    Connect(#[source] deadpool_postgres::PoolError),
    #[error("{0}")]
    Statement(&'static str, #[source] tokio_postgres::Error),
}

/// Connections and the statements, filled in for one schema.
#[derive(Debug)]
pub(crate) struct Store {
    pool: Pool,
    schema: SchemaName,
    sql: Statements,
}

statements!(
    "store/sql/": begin,
    claim,
    cursors,
    begin_reset,
    read,
    read_reset,
    read_parked,
    settle,
    park,
    unpark,
    release,
    lag,
    parked,
    sleep,
    notify,
    claim_maintenance,
    reach,
    prune,
    forget,
    claim_lane,
    release_behind_dead,
);

impl Store {
    pub(crate) fn new(pool: Pool, schema: SchemaName) -> Self {
        let sql = Statements::new(&schema);
        Self { pool, schema, sql }
    }

    pub(crate) fn schema(&self) -> &SchemaName {
        &self.schema
    }

    async fn connection(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(StoreError::Connect)
    }

    /// Marks the relay asleep, so that the next `enqueue` sends NOTIFY.
    pub(crate) async fn sleep(&self) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let failed = |source| StoreError::Statement("mark the relay asleep", source);
        let statement = connection.prepare_cached(&self.sql.sleep).await.map_err(failed)?;
        connection.execute(&statement, &[]).await.map_err(failed)?;
        Ok(())
    }

    /// Sends a NOTIFY to ourselves, to learn whether LISTEN works here.
    pub(crate) async fn notify(&self, payload: &str) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        connection
            .execute(&self.sql.notify, &[&self.schema.as_str(), &payload])
            .await
            .map_err(|source| StoreError::Statement("notify", source))?;
        Ok(())
    }
}

fn message(row: &Row, parked: Option<Parked>, replay: i32) -> Message {
    Message {
        lane: row.get(0),
        id: row.get(1),
        key: row.get(2),
        subject: row.get(3),
        ordering_key: row.get(4),
        headers: row.get(5),
        payload: bytes::Bytes::copy_from_slice(row.get(6)),
        created_at: row.get(7),
        blocked: row.get(8),
        parked,
        replay,
    }
}
