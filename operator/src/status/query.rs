//! The questions of a status to both servers: at the same cost for any backlog.

use oncebox_connect::{
    config::Config,
    error::error_chain,
    postgres::{Parameter, typed},
};
use oncebox_relay::facts::{InboxStatus, delayed_count, faults, inbox_status, sql};
use oncebox_schema::{SchemaName, wake_subject};
use tokio_postgres::{Row, Transaction};

use super::{
    super::{
        Operator,
        disk::full_disk,
        failed,
        rates::Marks,
        relay_settings::relay_settings,
        rows::{FromRow, Parameters, all, from_row, query, values},
        sagas::UNLED_SECONDS,
        statements::Statements,
    },
    Asleep, BlockedKey, Holder, LaneStatus, LinesDue, ParkedReason, RelaySessions, SagasWaiting, Status,
    findings::{DOWN, findings, nats_away, of_nats},
};
use crate::{
    Result, Time,
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
    /// PostgreSQL refused or went away, or another session has the tables locked for longer than
    /// five seconds.
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
        let ask = Asking(self.begin_status().await?);
        let marks = Marks::new(&query(&ask.0, "read where lanes stand", &sql.status_marks, &[]).await?);
        let overview = ask.one("read the overview", &sql.status_overview).await?;
        let sees = |what: &str| overview.get::<_, bool>(what);
        let (lanes, backlog_is_exact) = ask.lanes(&sql, &schema).await?;
        let parked = ask.one("count parked messages", &schema.sql(sql::PARKED)).await?;
        let looked_at = i64::from(LOOKED_AT_MAX);
        let [of_inboxes, bounds] =
            [[&looked_at as &dyn Parameter, &LISTED_MAX], [&INBOXES_MAX, &INBOXES_NAMED_MAX]];
        let of_keys = [&LOOKED_AT_MAX as &dyn Parameter, &LISTED_MAX, &looked_at];
        let blocked = query(&ask.0, "find blocked ordering keys", &sql.status_blocked, &of_keys).await?;
        let sagas = ask.all("count sagas", &schema.sql(sql::SAGAS), &[&SAGAS_MAX]).await?;
        let unled = "find sagas that no process leads";
        let faults = faults(&ask.0, &schema, &relay_name).await.map_err(failed("look for faults"))?;
        let relay_settings =
            relay_settings(&ask.0, &schema).await.map_err(failed("read relays' settings"))?;
        let subjects = recent_subjects(&ask.0, &schema).await.map_err(failed("read recent subjects"))?;
        let mut status = Status {
            at: overview.get("now"),
            schema: schema.as_str().to_owned(),
            lag_seconds: lanes.iter().map(|lane| lane.lag_seconds).fold(0.0, f64::max),
            backlog_messages: lanes.iter().map(|lane| lane.backlog_messages).sum(),
            backlog_is_exact,
            lanes,
            parked: parked.get("parked"),
            dead: parked.get("dead"),
            replays: parked.get("replays"),
            delayed: delayed_count(&ask.one("count delayed messages", &schema.sql(sql::DELAYED)).await?),
            locks: ask.all("find locks", &sql.status_locks, &[&LOCKS_MAX]).await?,
            relays: ask.all("find relays", &sql.status_relays, &[&relay_name, &LISTED_MAX]).await?,
            asleep: asleep(&ask.one("find sleeping relays", &sql.status_asleep).await?, &schema),
            blocked_keys: blocked.first().map_or(0, |row| row.get("keys")),
            blocked: values(&blocked),
            pauses: ask.all("list pauses", &sql.pauses, &[&LISTED_MAX]).await?,
            parked_reasons: ask.all("read the reasons", &sql.status_reasons, &of_inboxes).await?,
            dead_letters: ask
                .if_seen(sees("sees_inboxes"), "find dead letters", &sql.status_letters, &of_inboxes)
                .await?,
            lines_due: ask
                .if_seen(sees("sees_inboxes"), "find lines that go on", &sql.status_lines, &of_inboxes)
                .await?
                .unwrap_or_default(),
            canaries: ask
                .if_seen(sees("sees_canaries"), "list canaries", &sql.canaries, &[&LISTED_MAX])
                .await?,
            inboxes: ask
                .if_seen(sees("counts_inboxes"), "count failing messages", &schema.sql(sql::INBOXES), &bounds)
                .await?,
            expectations: ask.all("list expectations", &schema.sql(sql::EXPECTATIONS), &[]).await?,
            sagas_waiting: sagas.into_iter().filter(SagasWaiting::needs_operator).collect(),
            sagas_unled: ask.all(unled, &sql.status_unled, &[&SAGAS_MAX, &UNLED_SECONDS]).await?,
            losses: ask.all("read what was lost", &sql.losses, &[&LISTED_MAX]).await?,
            faults,
            relay_settings,
            enqueuing: ask
                .all("find transactions", &sql.status_enqueuing, &[&LISTED_MAX, &relay_name])
                .await?,
            relay_name,
            oldest_milestone: overview.get("oldest_milestone"),
            newest_milestone: overview.get("newest_milestone"),
            is_read_only: overview.get("is_read_only"),
            sees_all_sessions: overview.get("sees_all_sessions"),
            subjects,
            ..Status::default()
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
    Ok(values(&rows))
}

/// The transaction that looks; dropped, it has changed nothing.
struct Asking<'a>(Transaction<'a>);

impl Asking<'_> {
    async fn all<T: FromRow>(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<T>> {
        all(&self.0, what, sql, parameters).await
    }

    async fn one(&self, what: &'static str, sql: &str) -> Result<Row> {
        self.0.query_typed_one(sql, &[]).await.map_err(failed(what))
    }

    /// The lanes, and whether their backlogs are exact.
    async fn lanes(&self, sql: &Statements, schema: &SchemaName) -> Result<(Vec<LaneStatus>, bool)> {
        let log = query(&self.0, "find the live segments", &sql.log, &[]).await?;
        let log = log.first().map_or("log", |row| row.get(0));
        let lag = query(&self.0, "read the lag", &schema.sql(&sql::LAG.replace("{log}", log)), &[]).await?;
        let stands = query(&self.0, "read the lanes", &sql.status_lanes, &[]).await?;
        let is_exact = lag.iter().all(|row| row.get("is_exact"));
        Ok((lag.iter().zip(&stands).map(lane).collect(), is_exact))
    }

    /// `None` when this role may not look.
    async fn if_seen<T: FromRow>(
        &self,
        is_seen: bool,
        what: &'static str,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Option<Vec<T>>> {
        Ok(if is_seen { Some(self.all(what, sql, parameters).await?) } else { None })
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

fn asleep(row: &Row, schema: &SchemaName) -> Option<Asleep> {
    let wakes_at = row.get::<_, Option<Time>>("wakes_at")?;
    let wake_subject = wake_subject(row.get("database"), schema.as_str());
    Some(Asleep { relays: row.get("relays"), wakes_at, wake_subject })
}

from_row!(Holder: lanes, pid, prepared, user_name, application_name, client, state, transaction_seconds);
from_row!(RelaySessions: user_name, client, sessions, leads);
from_row!(BlockedKey: lane, ordering_key, key, subject, behind, reason = "error", died_at = "dead_at");
from_row!(ParkedReason: cause, subject, messages, since, key, reason = "error");
from_row!(LinesDue: scope, messages, key);
from_row!(SagasWaiting: saga_type = "type", state, sagas);
from_row!(RecentSubject: subject, messages, bytes_max);

impl FromRow for InboxStatus {
    fn from_row(row: &Row) -> Self {
        inbox_status(row)
    }
}
