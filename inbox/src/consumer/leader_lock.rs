//! Who leads a strictly ordered consumer, and where it continues.

use std::time::Duration;

use oncebox_claims::{
    database::{Database, failed_through, statement},
    records::bigint,
};
use oncebox_schema::{Driver, Value};
use tokio::time::timeout;

use crate::{Error, InvalidSettings};

/// How long a statement on the leader's connection may take before it counts as lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// A leader that is silent for this time is suspended, or cut off: PostgreSQL ends its session.
const SILENCE: Duration = Duration::from_secs(30);
const TAKE: &str = "take the leader lock";
const LEAD: &str = include_str!("leader_lock/lead.sql");

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

/// A transaction that asks for the right to consume, again and again.
pub(super) struct LeaderCandidate<D: Driver> {
    transaction: D::Transaction,
    is_leader: bool,
}

/// The result of a request for the leader lock.
pub(super) enum Election<D: Driver> {
    /// This process consumes.
    Won(LeaderLock<D>),
    /// Another process consumes; the candidate asks again later.
    Lost(LeaderCandidate<D>),
}

impl<D: Driver> LeaderCandidate<D> {
    /// Begins, and asks for the leader lock at once.
    pub(super) async fn begin(
        database: &Database<D>,
        scope: &str,
        position: Position<'_>,
    ) -> Result<Self, Error> {
        if database.connections_max() == Some(1) {
            let mistake = "Order::Strict keeps one connection of the pool, whose largest size is 1: make it larger by 1";
            return Err(InvalidSettings(vec![mistake.to_owned()]).into());
        }
        let (sql, values) = asking(database, scope, position);
        let (transaction, row) = database.begin_without_snapshot(TAKE, &sql, &values).await?;
        Ok(Self { transaction, is_leader: row.is_some_and(|row| row.is_true(0)) })
    }

    /// Whether the leader lock is had; if not, asks for it, and does not wait for it.
    pub(super) async fn ask(
        mut self,
        database: &Database<D>,
        scope: &str,
        position: Position<'_>,
    ) -> Result<Election<D>, Error> {
        if !self.is_leader {
            let (sql, values) = asking(database, scope, position);
            let asked = timeout(ANSWER_WITHIN, database.query(&mut self.transaction, &sql, &values));
            let row = asked.await.map_err(|elapsed| Error::Unavailable(TAKE, elapsed.into()))?;
            self.is_leader = row.map_err(failed_through::<D>(TAKE))?.is_some_and(|row| row.is_true(0));
        }
        Ok(if self.is_leader { Election::Won(LeaderLock(self.transaction)) } else { Election::Lost(self) })
    }
}

fn asking<'a, D: Driver>(
    database: &Database<D>,
    scope: &'a str,
    Position { stream, durable, .. }: Position<'a>,
) -> (String, [Value<'a>; 4]) {
    let silence = Value::Integer(Some(bigint(SILENCE.as_secs())));
    let [scope, stream, durable] = [scope, stream, durable].map(|text| Value::Text(Some(text)));
    (statement(database.schema(), LEAD), [scope, stream, durable, silence])
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
