//! Who leads a strictly ordered consumer, and where it continues.

use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Object};
use tokio_postgres::types::ToSql;

use super::{Store, dead_letter::bigint, failed, statement};
use crate::{Error, identity};

/// How long a look at the leader's connection may take before it counts as lost.
const ALIVE_WITHIN: Duration = Duration::from_secs(3);

/// The right to consume, held by a connection of its own; dropping it closes the connection and gives it up.
#[derive(Debug)]
pub(crate) struct Lead(ClientWrapper);

impl Lead {
    /// Whether the connection, and so the lock, is still there.
    pub(crate) async fn is_alive(&self) -> bool {
        let answer = tokio::time::timeout(ALIVE_WITHIN, self.0.batch_execute("")).await;
        matches!(answer, Ok(Ok(())))
    }
}

/// Which consumer of which stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<'a> {
    pub(crate) stream: &'a str,
    pub(crate) durable: &'a str,
    pub(crate) stream_created: &'a str,
}

impl Store {
    /// Tries to become the process that consumes.
    pub(crate) async fn lead(&self, scope: &str, stream: &str, durable: &str) -> Result<Option<Lead>, Error> {
        if self.is_pooled {
            let remedy = "a lock of the session does not hold behind a transaction pooler; for Order::Strict give the \
                          pool PostgreSQL's own address, without behind_pooler()";
            return Err(Error::Refused("lead the consumers", remedy.into()));
        }
        let lock = identity::hash("oncebox lead 1", [self.schema.as_str(), scope, stream, durable]);
        let client = Object::take(self.connect().await?);
        let row = client
            .query_one(include_str!("lead.sql"), &[&lock])
            .await
            .map_err(failed("lead the consumers"))?;
        Ok(row.get::<_, bool>(0).then_some(Lead(client)))
    }

    /// The sequence to continue from, when one was recorded.
    pub(crate) async fn position(&self, lead: &Lead, position: Position<'_>) -> Result<Option<u64>, Error> {
        let sql = statement(&self.schema, include_str!("position.sql"));
        let Position { stream, durable, stream_created } = position;
        let row = lead.0.query_opt(&sql, &[&stream, &durable, &stream_created]).await;
        let row = row.map_err(failed("read the consumer's position"))?;
        Ok(row.and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok()))
    }

    /// Records the sequence to continue from; how many takeovers in a row did not get past it.
    pub(crate) async fn continue_from(
        &self,
        lead: &Lead,
        position: Position<'_>,
        next_sequence: u64,
        took_over: bool,
    ) -> Result<u64, Error> {
        let sql = statement(&self.schema, include_str!("continue_from.sql"));
        let Position { stream, durable, stream_created } = position;
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&stream, &durable, &stream_created, &bigint(next_sequence), &i32::from(took_over)];
        let row =
            lead.0.query_one(&sql, &parameters).await.map_err(failed("record the consumer's position"))?;
        Ok(u64::try_from(row.get::<_, i32>(0)).unwrap_or(0))
    }
}
