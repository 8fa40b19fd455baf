//! Who leads a strictly ordered consumer, and where it continues.

use std::time::Duration;

use oncebox_claims::{
    database::{Database, statement},
    identity::hash,
};
use oncebox_schema::{Driver, Value};
use tokio::time::timeout;

use crate::{Error, InvalidSettings, records::bigint};

/// How long a statement on the leader's connection may take before it counts as lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The right to consume, held by a transaction that stays open; dropping it gives the right up.
pub(super) struct LeaderLock<D: Driver>(D::Transaction);

impl<D: Driver> LeaderLock<D> {
    /// Whether the connection, and so the lock, is still there.
    pub(super) async fn is_alive(&mut self) -> bool {
        let answer = timeout(ANSWER_WITHIN, D::batch(D::connection(&mut self.0), "SELECT")).await;
        matches!(answer, Ok(Ok(())))
    }
}

/// A consumer of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'a> {
    pub(super) stream: &'a str,
    pub(super) durable: &'a str,
    pub(super) stream_created: &'a str,
}

/// Asks for the right to consume, and does not wait for it; `None` when another process has it.
pub(super) async fn ask<D: Driver>(
    database: &Database<D>,
    scope: &str,
    Position { stream, durable, .. }: Position<'_>,
) -> Result<Option<LeaderLock<D>>, Error> {
    const WHAT: &str = "take the leader lock";
    if database.connections_max() == Some(1) {
        let mistake =
            "Order::Strict keeps one connection of the pool, whose largest size is 1: make it larger by 1";
        return Err(InvalidSettings(vec![mistake.to_owned()]).into());
    }
    let lock = hash("oncebox lead 1", [database.schema().as_str(), scope, stream, durable]);
    let values = [Value::Integer(Some(lock))];
    let asked = database.begin_without_snapshot(WHAT, include_str!("leader_lock/lead.sql"), &values);
    let (transaction, row) = match timeout(ANSWER_WITHIN + database.limits().acquire_timeout, asked).await {
        Ok(asked) => asked?,
        Err(elapsed) => return Err(Error::Unavailable(WHAT, elapsed.into())),
    };
    if row.is_some_and(|row| row.is_true(0)) {
        return Ok(Some(LeaderLock(transaction)));
    }
    D::release(transaction).await;
    Ok(None)
}

/// The sequence to continue from, when one was recorded.
pub(super) async fn position<D: Driver>(
    database: &Database<D>,
    position: Position<'_>,
) -> Result<Option<u64>, Error> {
    let sql = statement(database.schema(), include_str!("leader_lock/position.sql"));
    let row = database.alone("read the consumer's position", &sql, &position.values()).await?;
    Ok(row.and_then(|row| row.number(0)))
}

/// Records the sequence to continue from; how many takeovers in a row did not get past it.
pub(super) async fn continue_from<D: Driver>(
    database: &Database<D>,
    position: Position<'_>,
    next_sequence: u64,
    took_over: bool,
) -> Result<u64, Error> {
    let sql = statement(database.schema(), include_str!("leader_lock/continue_from.sql"));
    let [stream, durable, created] = position.values();
    let next = Value::Integer(Some(bigint(next_sequence)));
    let values = [stream, durable, created, next, Value::Integer(Some(i64::from(took_over)))];
    let row = database.alone("record the consumer's position", &sql, &values).await?;
    Ok(row.and_then(|row| row.number(0)).unwrap_or(0))
}

impl<'a> Position<'a> {
    fn values(self) -> [Value<'a>; 3] {
        [self.stream, self.durable, self.stream_created].map(|text| Value::Text(Some(text)))
    }
}
