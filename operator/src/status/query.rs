//! The questions of a status to both servers: at the same cost for any backlog.

use crate::columns::columns;
use std::time::SystemTime;

use oncebox_connect::{
    config::Config,
    error::error_chain,
    postgres::{Parameter, typed},
};
use oncebox_relay::facts::{Expectation, InboxStatus, delayed_count, expectation, faults, inbox_status, sql};
use oncebox_schema::{SchemaName, wake_subject};
use tokio_postgres::{Row, Transaction};

use super::{
    super::{
        Operator,
        canaries::Canary,
        dead_letters::DeadLetters,
        disk::full_disk,
        failed,
        losses::LossStatus,
        pause_row::pause_row,
        query,
        rates::{Marks, Rates},
        relay_settings::relay_settings,
        sagas::{SagasUnled, UNLED_SECONDS},
    },
    Asleep, BlockedKey, Holder, LaneStatus, LinesDue, ParkedReason, RelaySessions, SagasWaiting, Status,
    findings::{DOWN, findings, nats_away, of_nats},
};
use crate::{
    Result,
    status::RecentSubject,
    survey::{self, Survey},
};

/// Kinds of sagas that are looked at, at most.
const SAGAS_MAX: i32 = 1_000;
/// Inboxes that are looked at, and that have a line of their own, at most.
const INBOXES_MAX: i64 = 1_000;
const INBOXES_NAMED_MAX: i64 = 100;
const RECENT_SUBJECTS: &str = include_str!("../sql/recent_subjects.sql");
/// Sessions, ordering keys, reasons that a status lists, at most; lanes may be locked by one
/// session each.
const LISTED_MAX: i64 = 10;
const LOCKS_MAX: i64 = 256;
/// Messages and ordering keys that are looked at for them, at most.
const LOOKED_AT_MAX: i32 = 1_000;
/// Subjects that are looked for in NATS, at most.
const SUBJECTS_MAX: i64 = 50;

impl Operator {
    /// How the outbox stands. Bounded work for any backlog, and a second's pause for the rates;
    /// changes nothing.
    ///
    /// # Errors
    /// PostgreSQL refused or went away, or somebody has the tables locked for longer than five
    /// seconds.
    pub async fn status(&mut self) -> Result<Status> {
        let (mut status, marks) = self.stand().await?;
        status.full_disk = full_disk(&mut self.client).await;
        status.findings = findings(&status);
        status.rates = self.rates_since(&marks).await?;
        Ok(status)
    }

    /// A status without the rates, and without their pause.
    pub(crate) async fn stand(&mut self) -> Result<(Status, Marks)> {
        let (sql, schema, relay_name) = (self.sql.clone(), self.schema.clone(), self.relay_name.clone());
        let transaction = self.client.transaction().await.map_err(failed("begin"))?;
        transaction.batch_execute(&sql.status_settings).await.map_err(failed("begin"))?;
        let ask = Asking(transaction);
        let marks = Marks::new(&ask.all("read where lanes stand", &sql.status_marks, &[]).await?);
        let overview = ask.one("read the overview", &sql.status_overview).await?;
        let log = ask.all("find the live segments", &sql.log, &[]).await?;
        let log = log.first().map_or("log", |row| row.get(0));
        let lag = ask.all("read the lag", &schema.sql(&sql::LAG.replace("{log}", log)), &[]).await?;
        let stands = ask.all("read the lanes", &sql.status_lanes, &[]).await?;
        let parked = ask.one("count parked messages", &schema.sql(sql::PARKED)).await?;
        let relays = ask.all("find relays", &sql.status_relays, &[&relay_name, &LISTED_MAX]).await?;
        let locks = ask.all("find locks", &sql.status_locks, &[&LOCKS_MAX]).await?;
        let open = ask.all("find transactions", &sql.status_enqueuing, &[&LISTED_MAX, &relay_name]).await?;
        let looked_at = i64::from(LOOKED_AT_MAX);
        let bounds = [&LOOKED_AT_MAX as &dyn Parameter, &LISTED_MAX, &looked_at];
        let blocked = ask.all("find blocked ordering keys", &sql.status_blocked, &bounds).await?;
        let reasons = ask.all("read the reasons", &sql.status_reasons, &[&looked_at, &LISTED_MAX]).await?;
        let pauses = ask.all("list pauses", &sql.pauses, &[&LISTED_MAX]).await?;
        let losses = ask.all("read what was lost", &sql.losses, &[&LISTED_MAX]).await?;
        let faults = faults(&ask.0, &schema, &relay_name).await.map_err(failed("look for faults"))?;
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
            delayed: delayed_count(&ask.one("count delayed messages", &schema.sql(sql::DELAYED)).await?),
            locks: locks.iter().map(holder).collect(),
            relay_name,
            relays: relays.iter().map(relay_sessions).collect(),
            asleep: asleep(&ask.one("find sleeping relays", &sql.status_asleep).await?, &schema),
            blocked_keys: blocked.first().map_or(0, |row| row.get("keys")),
            blocked: blocked.iter().map(blocked_key).collect(),
            pauses: pauses.iter().map(pause_row).collect(),
            parked_reasons: reasons.iter().map(parked_reason).collect(),
            dead_letters: ask.dead_letters(&overview, &sql.status_letters).await?,
            lines_due: ask.lines_due(&overview, &sql.status_lines).await?,
            canaries: ask.canaries(&overview, &sql.canaries).await?,
            inboxes: ask.inboxes(&overview, &schema.sql(sql::INBOXES)).await?,
            expectations: ask.expectations(&schema).await?,
            sagas_waiting: ask.sagas_waiting(&schema).await?,
            sagas_unled: ask.sagas_unled(&sql.status_unled).await?,
            losses: losses.iter().map(LossStatus::new).collect(),
            faults,
            relay_settings,
            enqueuing: open.iter().map(holder).collect(),
            oldest_milestone: overview.get("oldest_milestone"),
            newest_milestone: overview.get("newest_milestone"),
            is_read_only: overview.get("is_read_only"),
            full_disk: None,
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
    /// Asks NATS for the streams that take the outbox's subjects, and adds the answers and the
    /// obstacles to delivery there. Bounded; changes nothing. When NATS cannot be reached, it adds
    /// that instead.
    pub async fn add_nats(&mut self, config: &Config) {
        let answer = self.ask_nats(config).await;
        self.add_survey(config, answer);
    }

    /// Asks NATS for the streams that take the outbox's subjects; the error says why it cannot be
    /// reached. Bounded; changes nothing.
    ///
    /// # Errors
    /// NATS cannot be reached, or does not let us in.
    pub async fn ask_nats(&self, config: &Config) -> Result<Survey, String> {
        let subjects: Vec<String> = self.subjects.iter().map(|subject| subject.subject.clone()).collect();
        survey::look(config, "oncebox status", &subjects, true).await.map_err(|error| error_chain(&error))
    }

    /// Adds such an answer, also one that is some seconds old, and the obstacles to delivery that
    /// it shows.
    pub fn add_survey(&mut self, config: &Config, answer: Result<Survey, String>) {
        let found = match answer {
            Ok(survey) => of_nats(config, self.nats.insert(survey), &self.subjects),
            Err(problem) => vec![nats_away(self.nats_problem.insert(problem))],
        };
        // The gravest first: without NATS nothing moves.
        // Before them: without a relay, or PostgreSQL, it does not matter how NATS stands.
        let place = self.findings.iter().take_while(|finding| finding.kind == Some(DOWN)).count();
        self.findings.splice(place..place, found);
        self.findings.sort_by_key(|finding| !finding.holds_delivery);
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
    ) -> Result<Vec<Row>> {
        query(&self.0, what, sql, parameters).await
    }

    async fn one(&self, what: &'static str, sql: &str) -> Result<Row> {
        self.0.query_typed_one(sql, &[]).await.map_err(failed(what))
    }

    /// `None` when this role may not look.
    async fn dead_letters(&self, overview: &Row, sql: &str) -> Result<Option<Vec<DeadLetters>>> {
        if !overview.get::<_, bool>("sees_inboxes") {
            return Ok(None);
        }
        let bounds: [&dyn Parameter; 2] = [&i64::from(LOOKED_AT_MAX), &LISTED_MAX];
        let rows = self.all("find dead letters", sql, &bounds).await?;
        Ok(Some(rows.iter().map(DeadLetters::new).collect()))
    }

    /// None when this role may not look.
    async fn lines_due(&self, overview: &Row, sql: &str) -> Result<Vec<LinesDue>> {
        if !overview.get::<_, bool>("sees_inboxes") {
            return Ok(Vec::new());
        }
        let bounds: [&dyn Parameter; 2] = [&i64::from(LOOKED_AT_MAX), &LISTED_MAX];
        let rows = self.all("find lines that go on", sql, &bounds).await?;
        let of = |row: &Row| LinesDue {
            scope: row.get("scope"),
            messages: row.get("messages"),
            key: row.get("key"),
        };
        Ok(rows.iter().map(of).collect())
    }

    /// `None` when this role may not look.
    async fn canaries(&self, overview: &Row, sql: &str) -> Result<Option<Vec<Canary>>> {
        if !overview.get::<_, bool>("sees_canaries") {
            return Ok(None);
        }
        let rows = self.all("list canaries", sql, &[&LISTED_MAX]).await?;
        Ok(Some(rows.iter().map(Canary::new).collect()))
    }

    async fn sagas_waiting(&self, schema: &SchemaName) -> Result<Vec<SagasWaiting>> {
        let rows = self.all("count sagas", &schema.sql(sql::SAGAS), &[&SAGAS_MAX]).await?;
        Ok(rows.iter().filter_map(sagas_waiting).collect())
    }

    async fn sagas_unled(&self, sql: &str) -> Result<Vec<SagasUnled>> {
        let bounds: [&dyn Parameter; 2] = [&SAGAS_MAX, &UNLED_SECONDS];
        let rows = self.all("find sagas that no process leads", sql, &bounds).await?;
        Ok(rows.iter().map(SagasUnled::new).collect())
    }

    async fn expectations(&self, schema: &SchemaName) -> Result<Vec<Expectation>> {
        let rows = self.all("list expectations", &schema.sql(sql::EXPECTATIONS), &[]).await?;
        Ok(rows.iter().map(expectation).collect())
    }

    /// `None` when this role may not count.
    async fn inboxes(&self, overview: &Row, sql: &str) -> Result<Option<Vec<InboxStatus>>> {
        if !overview.get::<_, bool>("counts_inboxes") {
            return Ok(None);
        }
        let bounds: [&dyn Parameter; 2] = [&INBOXES_MAX, &INBOXES_NAMED_MAX];
        let rows = self.all("count failing messages", sql, &bounds).await?;
        Ok(Some(rows.iter().map(inbox_status).collect()))
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
    columns!(row => Holder {
        lanes, pid, prepared, user_name, application_name, client, state, transaction_seconds
    })
}

fn asleep(row: &Row, schema: &SchemaName) -> Option<Asleep> {
    let wakes_at = row.get::<_, Option<SystemTime>>("wakes_at")?;
    let wake_subject = wake_subject(row.get("database"), schema.as_str());
    Some(Asleep { relays: row.get("relays"), wakes_at, wake_subject })
}

fn relay_sessions(row: &Row) -> RelaySessions {
    columns!(row => RelaySessions {
        user_name, client, sessions, leads
    })
}

fn blocked_key(row: &Row) -> BlockedKey {
    columns!(row => BlockedKey {
        lane, ordering_key, key, subject, behind
    } with {
        reason: row.get("error"),
        died_at: row.get("dead_at"),
    })
}

fn parked_reason(row: &Row) -> ParkedReason {
    columns!(row => ParkedReason {
        cause, subject, messages, since, key
    } with {
        reason: row.get("error"),
    })
}

fn sagas_waiting(row: &Row) -> Option<SagasWaiting> {
    let state: &str = row.get("state");
    let waits = ["stuck", "quarantined"].contains(&state);
    waits.then(|| SagasWaiting {
        saga_type: row.get("type"),
        state: state.to_owned(),
        sagas: row.get("sagas"),
    })
}
