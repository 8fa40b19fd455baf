//! One claiming transaction: begin, claim, read, settle, commit.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use deadpool_postgres::Object;
use tokio_postgres::{Row, SimpleQueryMessage, Statement};

use super::{
    parameter::{Parameter, typed, untyped},
    store::{Store, is_anothers_session, message},
};
use crate::{
    config::ReadLimits,
    delivery::{
        cursor::{Cursor, Settlement},
        decision::Cause,
        message::{Message, Parked, Replay},
    },
    error::StoreError,
};

/// Bytes of a large payload that are read at a time.
const PIECE: i32 = 1024 * 1024;

/// A lane that this transaction has locked, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) lane: i16,
    pub(crate) cursor: Cursor,
    /// The lane's transaction ids come from another cluster, and nobody has noted it yet.
    pub(crate) is_foreign: bool,
    /// The snapshot that the lane was read in; an older one when nothing was read.
    pub(crate) snapshot: String,
    /// When, by the database's clock.
    pub(crate) read_at: SystemTime,
    /// There was more than the pass may hold.
    pub(crate) is_cut: bool,
}

/// Whether a payload of so many bytes may be held as well.
pub(crate) type Admit<'a> = &'a mut (dyn FnMut(usize) -> bool + Send);

/// What was read in lanes.
#[derive(Debug, Default)]
struct Due {
    messages: Vec<Message>,
    /// The statement that reads the rows says in which snapshot it did, lane by lane.
    snapshots: HashMap<i16, String>,
    /// The first id of a lane for which there was no room.
    cut: HashMap<i16, i64>,
    /// The sizes of payloads that are still to be read, by lane and id.
    large: HashMap<(i16, i64), usize>,
}

/// How a message is set aside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parking {
    pub(crate) attempts: i32,
    /// `None` for a message that waits behind its ordering key, or is dead.
    pub(crate) delay_seconds: Option<f64>,
    pub(crate) dead: bool,
    pub(crate) error: String,
    pub(crate) cause: Cause,
}

/// An open transaction on a connection of its own. Dropped before [`Session::commit`], it closes the connection:
/// the server rolls back and the lanes are free, as if the process had died.
#[derive(Debug)]
pub(crate) struct Session {
    store: Arc<Store>,
    connection: Option<Object>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}

impl Store {
    /// Opens a transaction and claims up to `lanes_max` lanes that seem to have something due; with each, whether
    /// parked messages are.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        lanes_max: i64,
    ) -> Result<(Session, Vec<(i16, bool)>), StoreError> {
        let session = self.session().await?;
        // Both go out together; the server runs them in order.
        let claim = async { session.query("claim lanes", &self.sql.claim, &[&lanes_max]).await };
        let ((), rows) = tokio::try_join!(session.begin(), claim)?;
        let lanes = rows.iter().map(|row| (row.get("lane"), row.get("parked_due"))).collect();
        Ok((session, lanes))
    }

    /// A connection for one transaction, which [`Session::begin`] opens.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Session, StoreError> {
        Ok(Session { store: Arc::clone(self), connection: Some(self.connection().await?) })
    }
}

impl Session {
    fn open(&self) -> &Object {
        self.connection.as_ref().expect("taken only by commit and drop, which end the session")
    }

    /// Fails when the session is another's than that in which this connection's statements were prepared: what was sent
    /// along is rolled back with the connection.
    pub(super) async fn begin(&self) -> Result<(), StoreError> {
        let answers = self.open().simple_query(&self.store.sql.begin).await;
        let answers = answers.map_err(|source| StoreError::Statement("begin", source))?;
        let backend = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
            _ => None,
        });
        let is_own = backend.is_some_and(|backend| self.store.backends.is_own(self.open(), backend));
        if is_own || self.store.is_pooled() {
            return Ok(());
        }
        self.store.note_pooler();
        Err(StoreError::Pooled)
    }

    pub(super) async fn query(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, StoreError> {
        let rows = match self.prepared(sql).await {
            Ok(Some(statement)) => self.open().query(&statement, &untyped(parameters)).await,
            Ok(None) => self.open().query_typed(sql, &typed(parameters)).await,
            Err(error) => Err(error),
        };
        rows.map_err(|source| self.failed(what, source))
    }

    async fn execute(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<u64, StoreError> {
        let done = match self.prepared(sql).await {
            Ok(Some(statement)) => self.open().execute(&statement, &untyped(parameters)).await,
            Ok(None) => self.open().execute_typed(sql, &typed(parameters)).await,
            Err(error) => Err(error),
        };
        done.map_err(|source| self.failed(what, source))
    }

    /// Prepared once for each connection; `None` where nothing may be prepared.
    async fn prepared(&self, sql: &str) -> Result<Option<Statement>, tokio_postgres::Error> {
        if self.store.is_pooled() { Ok(None) } else { self.open().prepare_cached(sql).await.map(Some) }
    }

    fn failed(&self, what: &'static str, source: tokio_postgres::Error) -> StoreError {
        if is_anothers_session(&source) {
            self.store.note_pooler();
            return StoreError::Pooled;
        }
        StoreError::Statement(what, source)
    }

    /// Reads where claimed lanes stand, and what is due in them, as far as there is room. A lane of which nothing found
    /// room is left out, as if it had not been claimed: its turn is next.
    pub(crate) async fn read(
        &self,
        lanes: &[i16],
        limits: ReadLimits,
        admit: Admit<'_>,
    ) -> Result<(Vec<Claim>, Vec<Message>), StoreError> {
        let cursors = async { self.query("read cursors", &self.store.sql.cursors, &[&lanes]).await };
        let due = self.read_lanes(&self.store.sql.read, lanes, limits, admit);
        let (rows, mut due) = tokio::try_join!(cursors, due)?;
        let mut claims: Vec<Claim> = rows.iter().map(claim).collect();
        for claim in claims.iter_mut().filter(|claim| claim.is_foreign) {
            due.messages.retain(|message| message.lane != claim.lane);
            due.cut.remove(&claim.lane);
            let parameters: [&dyn Parameter; 2] = [&claim.lane, &claim.cursor.number];
            let rows = self.query("reset a lane", &self.store.sql.begin_reset, &parameters).await?;
            claim.cursor.reset_until = rows.first().and_then(|row| row.get(0));
        }
        let resetting: Vec<i16> = claims
            .iter()
            .filter(|claim| claim.cursor.reset_until.is_some())
            .map(|claim| claim.lane)
            .collect();
        if !resetting.is_empty() {
            let old = self.read_lanes(&self.store.sql.read_reset, &resetting, limits, admit).await?;
            due.messages.extend(old.messages);
            due.snapshots.extend(old.snapshots);
            due.cut.extend(old.cut);
            due.large.extend(old.large);
        }
        for claim in &mut claims {
            claim.is_cut = due.cut.contains_key(&claim.lane);
            claim.snapshot =
                due.snapshots.remove(&claim.lane).unwrap_or_else(|| std::mem::take(&mut claim.snapshot));
        }
        claims.retain(|claim| !claim.is_cut || due.messages.iter().any(|message| message.lane == claim.lane));
        self.read_payloads(&mut due.messages, &due.large).await?;
        Ok((claims, due.messages))
    }

    async fn read_lanes(
        &self,
        sql: &str,
        lanes: &[i16],
        limits: ReadLimits,
        admit: Admit<'_>,
    ) -> Result<Due, StoreError> {
        let ReadLimits { messages_max, bytes_max, dead_blocks } = limits;
        let rows = self.query("read lanes", sql, &[&lanes, &messages_max, &bytes_max, &dead_blocks]).await?;
        let mut due = Due::default();
        for row in &rows {
            let (lane, id): (i16, i64) = (row.get(0), row.get(1));
            if let Some(snapshot) = row.get::<_, Option<String>>("snapshot") {
                due.snapshots.insert(lane, snapshot);
            }
            let bytes = payload_bytes(row);
            if !admit(bytes) {
                due.cut.entry(lane).and_modify(|first| *first = id.min(*first)).or_insert(id);
                continue;
            }
            if is_large(row) {
                due.large.insert((lane, id), bytes);
            }
            due.messages.push(message(row, &self.store.outbox, None, None));
        }
        // Only a prefix of a lane can be settled.
        due.messages.retain(|message| due.cut.get(&message.lane).is_none_or(|first| message.id < *first));
        due.messages.sort_unstable_by_key(|message| (message.lane, message.id));
        Ok(due)
    }

    /// Reads parked messages that are due in the given lanes, with those behind them; the limits are for all lanes.
    /// Also whether there are more.
    pub(crate) async fn read_parked(
        &self,
        lanes: &[i16],
        limits: ReadLimits,
        admit: Admit<'_>,
    ) -> Result<(Vec<Message>, bool), StoreError> {
        let ReadLimits { messages_max, bytes_max, dead_blocks } = limits;
        let parameters: [&dyn Parameter; 4] = [&lanes, &messages_max, &bytes_max, &dead_blocks];
        let rows = self.query("read parked", &self.store.sql.read_parked, &parameters).await?;
        let parked = |row: &Row| Parked {
            attempts: row.get("attempts"),
            seconds: row.get("parked_seconds"),
            is_due: row.get("is_due"),
        };
        let replay = |row: &Row| {
            Some(Replay { number: row.get("replay"), requested_at: row.get::<_, Option<_>>("requested_at")? })
        };
        // They are sorted by lane and id: whatever waits behind one without room has none either.
        let found = rows.iter().take_while(|row| admit(payload_bytes(row)));
        let message = |row| message(row, &self.store.outbox, Some(parked(row)), replay(row));
        let mut messages: Vec<Message> = found.map(message).collect();
        let large = rows.iter().filter(|row| is_large(row));
        let large = large.map(|row| ((row.get(0), row.get(1)), payload_bytes(row))).collect();
        self.read_payloads(&mut messages, &large).await?;
        let is_full = messages.len() < rows.len() || rows.len() as i64 >= messages_max;
        Ok((messages, is_full))
    }

    /// Reads payloads that are too large to come with their rows, in pieces: the client's buffers grow to twice the
    /// longest row, and stay so.
    async fn read_payloads(
        &self,
        messages: &mut [Message],
        large: &HashMap<(i16, i64), usize>,
    ) -> Result<(), StoreError> {
        for message in messages {
            let Some(bytes) = large.get(&(message.lane, message.id)).copied() else { continue };
            let mut payload = Vec::with_capacity(bytes);
            for from in (1..=i32::try_from(bytes).unwrap_or(i32::MAX)).step_by(PIECE as usize) {
                let parameters: [&dyn Parameter; 4] = [&message.lane, &message.id, &from, &PIECE];
                let rows = self.query("read a payload", &self.store.sql.payload, &parameters).await?;
                payload.extend_from_slice(rows.first().map(|row| row.get(0)).unwrap_or_default());
            }
            assert_eq!(payload.len(), bytes, "the log is append-only");
            message.payload = payload.into();
        }
        Ok(())
    }

    /// Sets messages aside.
    pub(crate) async fn park(&self, parkings: &[(&Message, Parking)]) -> Result<(), StoreError> {
        let lanes: Vec<i16> = parkings.iter().map(|(m, _)| m.lane).collect();
        let ids: Vec<i64> = parkings.iter().map(|(m, _)| m.id).collect();
        let ordering_keys: Vec<Option<&str>> =
            parkings.iter().map(|(m, _)| m.ordering_key.as_deref()).collect();
        let attempts: Vec<i32> = parkings.iter().map(|(_, p)| p.attempts).collect();
        let delays: Vec<Option<f64>> = parkings.iter().map(|(_, p)| p.delay_seconds).collect();
        let dead: Vec<bool> = parkings.iter().map(|(_, p)| p.dead).collect();
        let errors: Vec<&str> = parkings.iter().map(|(_, p)| p.error.as_str()).collect();
        let causes: Vec<&str> = parkings.iter().map(|(_, p)| p.cause.name()).collect();
        let parameters: [&dyn Parameter; 8] =
            [&lanes, &ids, &ordering_keys, &attempts, &delays, &dead, &errors, &causes];
        self.execute("park messages", &self.store.sql.park, &parameters).await.map(drop)
    }

    /// Forgets parked messages that the stream has stored.
    pub(crate) async fn unpark(&self, messages: &[&Message]) -> Result<(), StoreError> {
        let lanes: Vec<i16> = messages.iter().map(|m| m.lane).collect();
        let ids: Vec<i64> = messages.iter().map(|m| m.id).collect();
        self.execute("unpark messages", &self.store.sql.unpark, &[&lanes, &ids]).await.map(drop)
    }

    /// Makes the first parked message of each of these ordering keys due, when nothing before it is left.
    pub(crate) async fn release(&self, keys: &[(i16, &str)], dead_blocks: bool) -> Result<(), StoreError> {
        let (lanes, ordering_keys): (Vec<i16>, Vec<&str>) = keys.iter().copied().unzip();
        self.execute("release messages", &self.store.sql.release, &[&lanes, &ordering_keys, &dead_blocks])
            .await
            .map(drop)
    }

    /// Moves the cursors of claimed lanes.
    pub(crate) async fn settle(&self, settlements: &[(i16, Settlement)]) -> Result<(), StoreError> {
        let lanes: Vec<i16> = settlements.iter().map(|(lane, _)| *lane).collect();
        let floors: Vec<i64> = settlements.iter().map(|(_, s)| s.floor).collect();
        let highs: Vec<i64> = settlements.iter().map(|(_, s)| s.high).collect();
        let numbers: Vec<i64> = settlements.iter().map(|(_, s)| s.number).collect();
        let snaps: Vec<Option<&str>> = settlements.iter().map(|(_, s)| s.snap.as_deref()).collect();
        let targets: Vec<Option<&str>> = settlements.iter().map(|(_, s)| s.target.as_deref()).collect();
        let afters: Vec<Option<i64>> = settlements.iter().map(|(_, s)| s.after).collect();
        let resets: Vec<Option<i64>> = settlements.iter().map(|(_, s)| s.reset_until).collect();
        let parameters: [&dyn Parameter; 8] =
            [&lanes, &numbers, &floors, &highs, &snaps, &targets, &afters, &resets];
        let moved = self.execute("settle lanes", &self.store.sql.settle, &parameters).await?;
        assert_eq!(moved, settlements.len() as u64, "claimed lanes are locked, so each is there to settle");
        Ok(())
    }

    /// Commits and gives the connection back. An error leaves the outcome unknown; the next claim reads the truth.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.open()
            .batch_execute("COMMIT")
            .await
            .map_err(|source| StoreError::Statement("commit", source))?;
        drop(self.connection.take());
        Ok(())
    }

    /// Rolls back and gives the connection back: nothing was due.
    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        self.open()
            .batch_execute("ROLLBACK")
            .await
            .map_err(|source| StoreError::Statement("roll back", source))?;
        drop(self.connection.take());
        Ok(())
    }
}

fn claim(row: &Row) -> Claim {
    Claim {
        lane: row.get("lane"),
        cursor: Cursor {
            number: row.get("number"),
            floor: row.get("floor"),
            high: row.get("high"),
            target: row.get("target"),
            after: row.get("after"),
            reset_until: row.get("reset_until"),
        },
        is_foreign: row.get("is_foreign"),
        snapshot: row.get("snapshot"),
        read_at: row.get("read_at"),
        is_cut: false,
    }
}

/// Of the payload, whether it came with the row or not.
fn payload_bytes(row: &Row) -> usize {
    usize::try_from(row.get::<_, i32>("payload_bytes")).unwrap_or(0)
}

/// The payload did not come with the row.
fn is_large(row: &Row) -> bool {
    row.get::<_, Option<&[u8]>>("payload").is_none()
}
