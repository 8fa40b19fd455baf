//! Connections to PostgreSQL, and the statements that deliver, filled in for one schema.

use std::{
    collections::HashMap,
    error::Error,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use deadpool_postgres::{Object, Pool};
use oncebox_connect::{
    postgres::{shares_backends, typed},
    statements,
};
use oncebox_schema::SchemaName;
use tokio::{
    sync::{Mutex as AsyncMutex, MutexGuard},
    time::{Instant, error::Elapsed, timeout},
};
use tokio_postgres::{
    Row,
    error::SqlState,
    types::{FromSql, Type},
};

use super::{fleet::Fleet, log::Log};
use crate::{
    backoff::Backoff,
    delivery::{Message, Parked, Replay},
    error::StoreError,
};

/// Connections and the statements, filled in for one schema.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) pool: Pool,
    schema: SchemaName,
    /// How many lanes the outbox has.
    pub(crate) lanes: i64,
    /// The identity of the outbox. A copy gets another one when it is adopted.
    outbox: Arc<RwLock<Arc<str>>>,
    /// The id of this relay, with which it registers.
    relay: Arc<str>,
    pub(super) sql: Statements,
    pub(super) log: Arc<Log>,
    /// A transaction pooler stands before PostgreSQL: nothing is prepared. See `pooler`.
    is_pooled: AtomicBool,
    /// When this relay last appended a receipt for a lane and a stream.
    pub(super) appended: Mutex<HashMap<(i16, Arc<str>), Instant>>,
    pub(crate) fleet: Fleet,
    /// Where a relay at rest has one connection for all its tasks; see [`Store::permit`].
    permit: Option<AsyncMutex<()>>,
}

/// The pause of a relay at rest, of one of many databases.
const REST: Backoff = Backoff { first: Duration::from_secs(2), max: Duration::from_secs(2) };
/// The longest wait for the permit: a connection more is better than a delay.
const PERMIT_MAX: Duration = Duration::from_secs(1);

/// The mark that has the next `enqueue` send NOTIFY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Producers send no NOTIFY here.
    Useless,
    /// This transaction has set it. Producers that enqueued before have sent no NOTIFY.
    New(u64),
    /// It was set already.
    Old,
}

statements!("sql/":
    begin, outbox, claim_all, begin_reset, read_reset, read_parked, payload, others, settle,
    park, unpark, release, release_waiting, look, parked, sleep, notify, lead, handled,
    note_history, end_unread, behind, claim_maintenance, reach, drain_segments, empty_segment,
    find_unsent, forget_emptied, forget_kept, note_fault, forget_faults, end_turn, forget, ids,
    repair_ids, claim_lane, release_behind_dead, hasten, unprobed, register, unregister,
    knows_relay, idle, fall_asleep, home, note_home, note_rival, integrity, row_security,
    next_delayed, move_delayed, delayed, sagas, finished_sagas, inboxes, passed,
    append_receipts, acknowledged, recent_receipts, older_receipts, take_tokens, thin_receipts,
    note_streams, saw_streams, note_loss, resend_lost, end_resends, look_for_unhandled,
    expected_messages, arrived_keys, note_unhandled, expectations, running_canaries,
    take_canary_step, note_canary_fault
);

impl Store {
    /// Reads who the outbox is, and which id this relay has.
    pub(crate) async fn new(pool: Pool, schema: SchemaName) -> Result<Self, StoreError> {
        let (sql, log) = (Statements::new(&schema), Arc::new(Log::new(&schema)));
        let connection = pool.get().await.map_err(|error| StoreError::Connect(error.into()))?;
        let row = connection.query_typed_one(&sql.outbox, &[]).await;
        let row = row.map_err(|source| StoreError::Statement("read the identity of the outbox", source))?;
        drop(connection);
        let outbox = Arc::new(RwLock::new(Arc::from(row.get::<_, &str>(0))));
        let (lanes, relay) = (row.get(1), Arc::from(row.get::<_, &str>(2)));
        Ok(Self {
            pool,
            schema,
            lanes,
            outbox,
            relay,
            sql,
            log,
            is_pooled: AtomicBool::new(false),
            appended: Mutex::default(),
            fleet: Fleet::default(),
            permit: None,
        })
    }

    /// A store of this outbox that takes its connections from another pool.
    pub(crate) fn beside(&self, pool: Pool) -> Self {
        Self {
            pool,
            schema: self.schema.clone(),
            lanes: self.lanes,
            outbox: Arc::clone(&self.outbox),
            relay: Arc::clone(&self.relay),
            sql: self.sql.clone(),
            log: Arc::clone(&self.log),
            is_pooled: AtomicBool::new(self.is_pooled()),
            appended: Mutex::default(),
            fleet: Fleet::default(),
            permit: None,
        }
    }

    /// Of one of many databases, most of which are idle: a relay at rest costs little.
    pub(crate) fn one_of_many(self) -> Self {
        Self { permit: Some(AsyncMutex::default()), ..self }
    }

    /// The pause of a relay at rest that producers wake; `pause` is that of one which looks.
    pub(crate) fn rest(&self, pause: Duration) -> Duration {
        let is_woken = self.permit.is_some() && !self.is_pooled();
        if is_woken { pause.max(REST.delay(0)) } else { pause }
    }

    /// The permit of a task that looks whether there is anything to do: looks that overlap would
    /// take a connection each, and of many idle databases each has one. Waits a moment at most.
    pub(crate) async fn permit(&self) -> Option<MutexGuard<'_, ()>> {
        timeout(PERMIT_MAX, self.permit.as_ref()?.lock()).await.ok()
    }

    /// Does something with the permit, within a limit.
    pub(crate) async fn in_turn<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let _permit = self.permit().await;
        timeout(limit, work).await
    }

    /// The identity of the outbox.
    pub(crate) fn outbox(&self) -> Arc<str> {
        Arc::clone(&self.outbox.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The outbox has this identity from here on.
    pub(super) fn be_outbox(&self, identity: &str) {
        let mut outbox = self.outbox.write().unwrap_or_else(PoisonError::into_inner);
        if &**outbox != identity {
            *outbox = identity.into();
        }
    }

    /// The id of this relay.
    pub(crate) fn relay(&self) -> &str {
        &self.relay
    }

    pub(crate) fn schema(&self) -> &SchemaName {
        &self.schema
    }

    pub(super) async fn connection(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| StoreError::Connect(error.into()))
    }

    /// Marks the relay asleep, so that the next `enqueue` sends NOTIFY.
    pub(crate) async fn sleep(&self) -> Result<Mark, StoreError> {
        let connection = self.connection().await?;
        let row = connection.query_typed_one(&self.sql.sleep, &[]).await;
        let row = row.map_err(|source| StoreError::Statement("mark the relay asleep", source))?;
        let xact = row.get::<_, Option<&str>>("xact").and_then(|xact| xact.parse().ok());
        Ok(if row.get("notifies") { xact.map_or(Mark::Old, Mark::New) } else { Mark::Useless })
    }

    /// Sends a NOTIFY to ourselves, to learn whether LISTEN works here.
    pub(crate) async fn notify(&self, payload: &str) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let done = connection.query_typed(&self.sql.notify, &typed(&[&self.schema.as_str(), &payload])).await;
        done.map(drop).map_err(|source| StoreError::Statement("notify", source))
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.is_pooled.load(Ordering::Relaxed)
    }

    /// A transaction pooler was noticed. Said once.
    pub(crate) fn note_pooler(&self) {
        if !self.is_pooled.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "a transaction pooler stands before PostgreSQL: the relay polls instead of listening, and prepares no \
                 statements"
            );
        }
    }

    /// Looks for a pooler before anything is prepared: statements that stay in a session of a
    /// pooler are in the way of others. One that is busy may go unnoticed here.
    pub(crate) async fn look_for_pooler(&self) -> Result<(), StoreError> {
        let (one, other) = (self.connection().await?, self.connection().await?);
        if shares_backends(&one, &other).await {
            self.note_pooler();
        }
        Ok(())
    }
}

/// A time of PostgreSQL, which may be infinite: then the first or last one that there is.
pub(super) struct AnyTime(pub(super) SystemTime);

impl<'a> FromSql<'a> for AnyTime {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        /// From 1970 to 2000, where PostgreSQL's times begin.
        const BEGIN: Duration = Duration::from_secs(946_684_800);
        // One more would have no opposite, which the driver needs to write it again.
        let microseconds = i64::from_be_bytes(raw.try_into()?).max(-i64::MAX);
        let span = Duration::from_micros(microseconds.unsigned_abs());
        let begin = UNIX_EPOCH + BEGIN;
        let time = if microseconds < 0 { begin.checked_sub(span) } else { begin.checked_add(span) };
        Ok(Self(time.unwrap_or(begin)))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::TIMESTAMPTZ
    }
}

/// The session is not the one that the statement was prepared in.
pub(super) fn is_anothers_session(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT))
}

pub(super) fn message(
    row: &Row,
    outbox: &Arc<str>,
    parked: Option<Parked>,
    replay: Option<Replay>,
) -> Message {
    Message {
        outbox: Arc::clone(outbox),
        lane: row.get(0),
        id: row.get(1),
        key: row.get(2),
        subject: row.get(3),
        ordering_key: row.get(4),
        headers: row.get(5),
        payload: bytes::Bytes::copy_from_slice(row.get::<_, Option<&[u8]>>(6).unwrap_or_default()),
        created_at: row.get::<_, AnyTime>(7).0,
        payload_bytes: usize::try_from(row.get::<_, i32>("payload_bytes")).unwrap_or(0),
        object: None,
        breach: None,
        is_unchecked: false,
        blocked: row.get(8),
        is_passed: false,
        paused: None,
        parked,
        replay,
    }
}
