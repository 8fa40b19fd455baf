//! What an operator asks at night: how far behind, who works, what holds it up. At the same cost for any backlog.

use std::time::SystemTime;

use oncebox_schema::SchemaName;
use serde::Serialize;
use tokio_postgres::{Row, Transaction};

use super::{
    DeadLetters, Operator,
    dead::{rfc3339, rfc3339_option},
    failed, query,
    rates::{Marks, Rates},
};
use crate::{
    broker::{self, Broker},
    config::Config,
    error_chain,
    findings::{Finding, findings, nats_away, of_nats},
    relay::RelayError,
    store::{
        doctor::{RelaySettings, relay_settings},
        parameter::{Parameter, typed},
    },
    subjects::RecentSubject,
};

const LAG: &str = include_str!("../sql/lag.sql");
const PARKED: &str = include_str!("../sql/parked.sql");
const RECENT_SUBJECTS: &str = include_str!("sql/recent_subjects.sql");
/// Sessions, ordering keys, reasons that a status lists, at most; lanes may be locked by one session each.
const LISTED_MAX: i64 = 10;
const LOCKS_MAX: i64 = 256;
/// Messages and ordering keys that are looked at for them, at most.
const LOOKED_AT_MAX: i32 = 1_000;
/// Subjects that are looked for in NATS, at most.
const SUBJECTS_MAX: i64 = 50;

/// How the outbox of a schema stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The database's time; `None` only in a default value.
    #[serde(serialize_with = "rfc3339_option")]
    pub at: Option<SystemTime>,
    /// The PostgreSQL schema.
    pub schema: String,
    /// Age of the oldest message due, 0 when nothing is, as in `/metrics`.
    pub lag_seconds: f64,
    /// Messages due, as in `/metrics`.
    pub backlog_messages: i64,
    /// Whether that number is exact, as it is up to 10,000; above, it is an estimate.
    pub backlog_is_exact: bool,
    /// How fast the outbox fills and empties.
    pub rates: Rates,
    /// Messages set aside to be tried again or waiting behind such; with `dead` and `replays` counted to 100,000.
    pub parked: i64,
    /// Messages given up.
    pub dead: i64,
    /// Replays still to be sent.
    pub replays: i64,
    /// Each lane.
    pub lanes: Vec<LaneStatus>,
    /// Sessions that have lanes locked.
    pub locks: Vec<Holder>,
    /// The name of relays' sessions: the `application_name` that this configuration gives.
    pub relay_name: String,
    /// Relays at work, the ten largest groups.
    pub relays: Vec<RelaySessions>,
    /// Ordering keys that dead messages hold back, among the first 1,000 ordering keys with dead messages.
    pub blocked_keys: i64,
    /// The ten whose dead messages are the oldest of these.
    pub blocked: Vec<BlockedKey>,
    /// Why messages are set aside: the ten commonest of the 1,000 that are tried next.
    pub parked_reasons: Vec<ParkedReason>,
    /// Inboxes of this database with dead letters, ten at most; `None` when this role may not look into them.
    pub dead_letters: Option<Vec<DeadLetters>>,
    /// With which settings relays were at work within the last three minutes.
    pub relay_settings: Vec<RelaySettings>,
    /// Open transactions that have enqueued messages, the ten oldest.
    pub enqueuing: Vec<Holder>,
    /// When a relay first wrote down, of what it has kept, what was settled; `None` when retention is off.
    #[serde(serialize_with = "rfc3339_option")]
    pub oldest_milestone: Option<SystemTime>,
    /// When a relay last did.
    #[serde(serialize_with = "rfc3339_option")]
    pub newest_milestone: Option<SystemTime>,
    /// Whether this role sees what sessions of other users do; if not, their state, address and times are missing.
    pub sees_all_sessions: bool,
    /// Subjects of the newest 1,000 messages, the 50 commonest.
    pub subjects: Vec<RecentSubject>,
    /// What NATS says of the streams that take them; `None` when it was not asked, or cannot be reached.
    pub nats: Option<Broker>,
    /// Why NATS cannot be reached.
    pub nats_problem: Option<String>,
    /// What holds delivery up.
    pub findings: Vec<Finding>,
}

/// How a lane stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The lane.
    pub lane: i16,
    /// Messages due; exact when the sum is.
    pub backlog_messages: i64,
    /// Age of the oldest message due.
    pub lag_seconds: f64,
    /// When its cursor last moved.
    #[serde(serialize_with = "rfc3339")]
    pub settled_at: SystemTime,
    /// The same as an age.
    pub settled_seconds: f64,
    /// The database was restored from another cluster, and what was due there is being sent.
    pub is_restored: bool,
}

/// A session, or a prepared transaction, that holds something.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// The lanes that it has locked.
    pub lanes: Vec<i16>,
    /// Its backend; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The name of a prepared transaction.
    pub prepared: Option<String>,
    /// The database's user.
    pub user_name: Option<String>,
    /// Its `application_name`.
    pub application_name: Option<String>,
    /// The client's address; none for a Unix socket, or when not to be seen.
    pub client: Option<String>,
    /// As in `pg_stat_activity`, if it is to be seen.
    pub state: Option<String>,
    /// How long its transaction is open, if that is to be seen.
    pub transaction_seconds: Option<f64>,
}

/// Sessions of relays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RelaySessions {
    /// The database's user.
    pub user_name: Option<String>,
    /// The client's address; none for a Unix socket, or when not to be seen.
    pub client: Option<String>,
    /// How many; a relay has one for each worker, and one that listens.
    pub sessions: i64,
}

/// An ordering key that a dead message holds back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockedKey {
    /// Its lane.
    pub lane: i16,
    /// The ordering key.
    pub ordering_key: String,
    /// The key of the first dead message.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Why it was given up.
    pub reason: String,
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub died_at: SystemTime,
    /// Messages set aside behind it, counted to 1,000.
    pub behind: i64,
}

/// Why messages of a subject are set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParkedReason {
    /// What publishing failed with.
    pub reason: String,
    /// The same in a word that does not change, such as `no-stream`; `None` from a relay of an older version.
    pub cause: Option<String>,
    /// The subject.
    pub subject: String,
    /// How many of those looked at.
    pub messages: i64,
    /// Since when the first of them is.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

impl Operator {
    /// How the outbox stands. Bounded work, whatever the backlog, and a second's pause for the rates; changes nothing.
    ///
    /// # Errors
    /// PostgreSQL refused or went away, or somebody has the tables locked for longer than five seconds.
    pub async fn status(&mut self) -> Result<Status, RelayError> {
        let (mut status, marks) = self.stand().await?;
        status.rates = self.rates_since(&marks).await?;
        Ok(status)
    }

    async fn stand(&mut self) -> Result<(Status, Marks), RelayError> {
        let (sql, schema, relay_name) = (self.sql.clone(), self.schema.clone(), self.relay_name.clone());
        let transaction = self.client.transaction().await.map_err(failed("begin"))?;
        transaction.batch_execute(&sql.status_settings).await.map_err(failed("begin"))?;
        let ask = Asking(transaction);
        let marks = Marks::new(&ask.all("read where lanes stand", &sql.status_marks, &[]).await?);
        let overview = ask.one("read the overview", &sql.status_overview).await?;
        let lag = ask.all("read the lag", &schema.sql(LAG), &[]).await?;
        let stands = ask.all("read the lanes", &sql.status_lanes, &[]).await?;
        let parked = ask.one("count parked messages", &schema.sql(PARKED)).await?;
        let relays = ask.all("find relays", &sql.status_relays, &[&relay_name, &LISTED_MAX]).await?;
        let locks = ask.all("find locks", &sql.status_locks, &[&LOCKS_MAX]).await?;
        let open =
            ask.all("find open transactions", &sql.status_enqueuing, &[&LISTED_MAX, &relay_name]).await?;
        let (behind_max, looked_at) = (i64::from(LOOKED_AT_MAX), i64::from(LOOKED_AT_MAX));
        let bounds: [&dyn Parameter; 3] = [&LOOKED_AT_MAX, &LISTED_MAX, &behind_max];
        let blocked = ask.all("find blocked ordering keys", &sql.status_blocked, &bounds).await?;
        let reasons = ask.all("read the reasons", &sql.status_reasons, &[&looked_at, &LISTED_MAX]).await?;
        let dead_letters = match overview.get("sees_inboxes") {
            true => {
                Some(ask.all("find dead letters", &sql.status_letters, &[&looked_at, &LISTED_MAX]).await?)
            }
            false => None,
        };
        let relay_settings =
            relay_settings(&ask.0, &schema).await.map_err(failed("read relays' settings"))?;
        let subjects = recent_subjects(&ask.0, &schema).await.map_err(failed("read recent subjects"))?;
        let lanes: Vec<LaneStatus> = lag.iter().zip(&stands).map(lane).collect();
        let mut status = Status {
            at: overview.get("now"),
            schema: schema.as_str().to_owned(),
            lag_seconds: lanes.iter().map(|lane| lane.lag_seconds).fold(0.0, f64::max),
            backlog_messages: lanes.iter().map(|lane| lane.backlog_messages).sum(),
            backlog_is_exact: lag.iter().all(|row| row.get("is_exact")),
            rates: Rates::default(),
            lanes,
            parked: parked.get("parked"),
            dead: parked.get("dead"),
            replays: parked.get("replays"),
            locks: locks.iter().map(holder).collect(),
            relay_name,
            relays: relays.iter().map(relay_sessions).collect(),
            blocked_keys: blocked.first().map_or(0, |row| row.get("keys")),
            blocked: blocked.iter().map(blocked_key).collect(),
            parked_reasons: reasons.iter().map(parked_reason).collect(),
            dead_letters: dead_letters.map(|rows| rows.iter().map(DeadLetters::new).collect()),
            relay_settings,
            enqueuing: open.iter().map(holder).collect(),
            oldest_milestone: overview.get("oldest_milestone"),
            newest_milestone: overview.get("newest_milestone"),
            sees_all_sessions: overview.get("sees_all_sessions"),
            subjects,
            nats: None,
            nats_problem: None,
            findings: Vec::new(),
        };
        status.findings = findings(&status);
        Ok((status, marks))
    }
}

impl Status {
    /// Asks NATS for the streams that take the outbox's subjects, and adds what it says and what holds delivery up
    /// there. Bounded; changes nothing. When NATS cannot be reached, that is what it adds.
    pub async fn add_nats(&mut self, config: &Config) {
        let subjects: Vec<String> = self.subjects.iter().map(|subject| subject.subject.clone()).collect();
        let found = match broker::look(config, "oncebox status", &subjects).await {
            Ok(broker) => of_nats(config, self.nats.insert(broker), &self.subjects),
            Err(error) => vec![nats_away(self.nats_problem.insert(error_chain(&error)))],
        };
        // The gravest first: without NATS nothing moves.
        self.findings.splice(0..0, found);
    }
}

/// Subjects of the newest messages.
pub(crate) async fn recent_subjects(
    transaction: &Transaction<'_>,
    schema: &SchemaName,
) -> Result<Vec<RecentSubject>, tokio_postgres::Error> {
    let looked_at = i64::from(LOOKED_AT_MAX);
    let parameters = typed(&[&looked_at, &SUBJECTS_MAX]);
    let rows = transaction.query_typed(&schema.sql(RECENT_SUBJECTS), &parameters).await?;
    let subject = |row: &Row| RecentSubject {
        subject: row.get("subject"),
        messages: row.get("messages"),
        bytes_max: row.get("bytes_max"),
    };
    Ok(rows.iter().map(subject).collect())
}

/// The transaction that looks; dropped, it has changed nothing.
struct Asking<'a>(Transaction<'a>);

impl Asking<'_> {
    async fn all(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, RelayError> {
        query(&self.0, what, sql, parameters).await
    }

    async fn one(&self, what: &'static str, sql: &str) -> Result<Row, RelayError> {
        self.0.query_typed_one(sql, &[]).await.map_err(failed(what))
    }
}

/// Both statements return every lane, in order.
fn lane((lag, stand): (&Row, &Row)) -> LaneStatus {
    assert_eq!(lag.get::<_, i16>("lane"), stand.get::<_, i16>("lane"), "lanes are never added or removed");
    LaneStatus {
        lane: lag.get("lane"),
        backlog_messages: lag.get("backlog_messages"),
        lag_seconds: lag.get("lag_seconds"),
        settled_at: stand.get("settled_at"),
        settled_seconds: stand.get("settled_seconds"),
        is_restored: stand.get("is_restored"),
    }
}

fn holder(row: &Row) -> Holder {
    Holder {
        lanes: row.get("lanes"),
        pid: row.get("pid"),
        prepared: row.get("prepared"),
        user_name: row.get("user_name"),
        application_name: row.get("application_name"),
        client: row.get("client"),
        state: row.get("state"),
        transaction_seconds: row.get("transaction_seconds"),
    }
}

fn relay_sessions(row: &Row) -> RelaySessions {
    RelaySessions {
        user_name: row.get("user_name"),
        client: row.get("client"),
        sessions: row.get("sessions"),
    }
}

fn blocked_key(row: &Row) -> BlockedKey {
    BlockedKey {
        lane: row.get("lane"),
        ordering_key: row.get("ordering_key"),
        key: row.get("key"),
        subject: row.get("subject"),
        reason: row.get("error"),
        died_at: row.get("dead_at"),
        behind: row.get("behind"),
    }
}

fn parked_reason(row: &Row) -> ParkedReason {
    ParkedReason {
        reason: row.get("error"),
        cause: row.get("cause"),
        subject: row.get("subject"),
        messages: row.get("messages"),
        since: row.get("since"),
    }
}
