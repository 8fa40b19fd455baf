//! Who leads a strictly ordered consumer, and where it continues.

use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Object};
use oncebox_claims::{
    database::{Database, failed, statement},
    identity::hash,
};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;

use crate::{Error, records::bigint};

/// How long a statement on the leader's connection may take before it counts as lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A connection of its own that asks for the right to consume, again and again.
#[derive(Debug)]
pub(super) struct LeaderCandidate {
    client: ClientWrapper,
    lock: i64,
}

const TAKE: &str = "take the leader lock";

/// The right to consume, held by a connection of its own; dropping it closes the connection and
/// gives it up.
#[derive(Debug)]
pub(super) struct LeaderLock(ClientWrapper);

impl LeaderLock {
    /// Whether the connection, and so the lock, is still there.
    pub(super) async fn is_alive(&self) -> bool {
        let answer = timeout(ANSWER_WITHIN, self.0.batch_execute("")).await;
        matches!(answer, Ok(Ok(())))
    }
}

/// The result of a request for the leader lock.
#[derive(Debug)]
pub(super) enum Election {
    /// This process consumes.
    Won(LeaderLock),
    /// Another process consumes; the candidate asks again later.
    Lost(LeaderCandidate),
}

impl LeaderCandidate {
    /// Asks for the leader lock, and does not wait for it.
    pub(super) async fn ask(self) -> Result<Election, Error> {
        let sql = include_str!("leader_lock/lead.sql");
        let row = answered(TAKE, self.client.query_one(sql, &[&self.lock])).await?;
        Ok(if row.get(0) { Election::Won(LeaderLock(self.client)) } else { Election::Lost(self) })
    }
}

/// A network that drops packets must not hold up the process that is to consume next.
async fn answered<T>(
    what: &'static str,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match timeout(ANSWER_WITHIN, statement).await {
        Ok(answered) => answered.map_err(failed(what)),
        Err(elapsed) => Err(Error::Unavailable(what, elapsed.into())),
    }
}

/// A consumer of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'a> {
    pub(super) stream: &'a str,
    pub(super) durable: &'a str,
    pub(super) stream_created: &'a str,
}

/// A connection that can become the leader's.
pub(super) async fn candidate(
    database: &Database,
    scope: &str,
    stream: &str,
    durable: &str,
) -> Result<LeaderCandidate, Error> {
    if database.is_pooled() {
        let remedy = "a lock of the session does not hold behind a transaction pooler; for Order::Strict give the \
                      pool PostgreSQL's own address, without behind_pooler()";
        return Err(Error::Refused(TAKE, remedy.into()));
    }
    let lock = hash("oncebox lead 1", [database.schema().as_str(), scope, stream, durable]);
    Ok(LeaderCandidate { client: Object::take(database.connect().await?), lock })
}

/// The sequence to continue from, when one was recorded.
pub(super) async fn position(
    database: &Database,
    leader_lock: &LeaderLock,
    position: Position<'_>,
) -> Result<Option<u64>, Error> {
    let sql = statement(database.schema(), include_str!("leader_lock/position.sql"));
    let Position { stream, durable, stream_created } = position;
    let parameters: [&(dyn ToSql + Sync); 3] = [&stream, &durable, &stream_created];
    let row = answered("read the consumer's position", leader_lock.0.query_opt(&sql, &parameters)).await?;
    Ok(row.and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok()))
}

/// Records the sequence to continue from; how many takeovers in a row did not get past it.
pub(super) async fn continue_from(
    database: &Database,
    leader_lock: &LeaderLock,
    position: Position<'_>,
    next_sequence: u64,
    took_over: bool,
) -> Result<u64, Error> {
    let sql = statement(database.schema(), include_str!("leader_lock/continue_from.sql"));
    let Position { stream, durable, stream_created } = position;
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&stream, &durable, &stream_created, &bigint(next_sequence), &i32::from(took_over)];
    let row = answered("record the consumer's position", leader_lock.0.query_one(&sql, &parameters)).await?;
    Ok(u64::try_from(row.get::<_, i32>(0)).unwrap_or(0))
}
