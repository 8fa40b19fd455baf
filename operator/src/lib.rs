//! The actions of operators on an outbox: status, trace, doctor; look at messages and sagas, retry
//! or give them up, replay, resend, verify, prune.
//!
//! [`Operator`] has one connection to PostgreSQL, and a method for each command; [`examine`] looks
//! at both servers with a relay's configuration. Results are plain data that serialize to JSON.
//!
//! Everything works in batches, each in a transaction of its own, so that a command that is killed
//! leaves whole batches done and can be run again. A parked message changes only under its lane's
//! lock, as in the relay; a batch holds one lock.

mod action;
mod adopt;
mod audit;
mod canaries;
mod consumption;
mod dead_letters;
mod delayed;
mod diagnosis;
mod disk;
mod doctor;
mod edit;
mod events;
mod everywhere;
mod expectations;
mod failing;
mod find;
mod history;
mod losses;
mod obstacles;
mod pace;
mod parked;
mod pause_row;
mod pauses;
mod payload;
mod proof;
mod prune;
mod quiet;
mod rates;
mod relay_settings;
mod replay;
mod resend;
mod rows;
mod sagas;
mod scopes;
mod selection;
mod shell;
mod shown;
mod statements;
mod status;
mod stored;
mod survey;
mod sweep;
mod time;
mod trace;
mod undo;
mod verify;
mod why;

use std::time::SystemTime;

use oncebox_connect::{
    config::OutboxConfig,
    error::{RelayError, StoreError},
    postgres::connect_postgres,
};
pub use oncebox_relay::facts::{Expectation, InboxStatus};
use oncebox_schema::{SchemaName, check_version};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Row, Transaction};

pub use self::{
    action::{
        Action, CHOSEN_MAX, Counted, Done, Field, GRAVE, Kind, NOTE_BYTES_MAX, Order, Payload, Verb,
        is_chosen,
    },
    adopt::{Adopted, Adoption},
    audit::AuditRow,
    canaries::{CANARY_WITHIN, Canary},
    dead_letters::{DeadLetter, DeadLetterDetails, DeadLetters},
    delayed::DelayedMessage,
    diagnosis::{Diagnosis, Severity},
    doctor::{DatabaseFacts, Examination, InboxFacts, Lacking, examine},
    edit::{DiffLine, EDITABLE_BYTES_MAX, Edit, EditOf, EditPreview, Editable},
    events::EventKind,
    everywhere::{PlacedTrace, look_elsewhere, together, within},
    expectations::{Expected, Unhandled},
    failing::{FailingMessage, FailingReason},
    find::{Found, FoundMessage, MessageContent, PAYLOAD_BYTES_MAX},
    history::{History, HistoryPoint, Mark, SubjectCount},
    losses::LossStatus,
    pace::Progress,
    parked::{ParkedDetails, ParkedMessage},
    pause_row::PauseRow,
    pauses::{Ends, PauseOf},
    payload::{ShownPayload, pretty_json},
    proof::{Proof, ProofOf, ProvenInbox, ProvenStream, ProvenSubject},
    quiet::Unrest,
    rates::Rates,
    relay_settings::RelaySettings,
    sagas::{
        Json, RefusedAnswer, Saga, SagaDefinition, SagaDetails, SagaDrawing, SagaEvent, SagaGraphStep,
        SagaNode, SagaProgress, SagaReply, SagaStep, SagasUnled,
    },
    scopes::{Keeps, ScopeChange, ScopeSettings},
    selection::{FailingId, Moment, Place, SAGA_STATES, Selection, SubjectPattern, pause_time},
    shown::{Changed, RowSet, Shown},
    status::{
        BlockedKey, Finding, Holder, LaneStatus, LinesDue, ParkedReason, RecentSubject, RelaySessions,
        SagasWaiting, Status,
    },
    survey::{ConsumerStatus, StreamStatus, Survey},
    sweep::Swept,
    time::Time,
    trace::{
        Trace, TracedEffect, TracedFailure, TracedInbox, TracedKey, TracedLease, TracedLine, TracedMessage,
        TracedParking, TracedReplay, TracedRequest, TracedSnooze,
    },
    undo::UndoRow,
    verify::{AlteredCopy, Difference, UnloggedCopy, Verification, VerificationFinding, Verified},
    why::{Explained, Looked, Outcome, Passed, Remedy, Why, WhySource, explain},
};
use self::{
    pace::Pace,
    rows::{FromRow, Parameters, all, query},
    statements::Statements,
};

/// The result of a call: its error is that of a relay or its servers, unless another is named.
type Result<T, E = RelayError> = std::result::Result<T, E>;

/// Rows that one statement looks at, and that one transaction changes, at most.
const BATCH: i64 = 1_000;

/// One connection for an operator's commands.
///
/// ```no_run
/// use oncebox_connect::config::OutboxConfig;
/// use oncebox_operator::{Operator, Order, Stamp, Verb};
///
/// # async fn example(config: &OutboxConfig) -> Result<(), Box<dyn std::error::Error>> {
/// let stamp = Stamp { operator: Some("mina".into()), note: Some("INC-7".into()) };
/// let mut operator = Operator::connect(config, stamp).await?;
/// let order = Order::new(Verb::RetryDead, false, vec![("subject".into(), "orders.>".into())])?;
/// let retried = order.run(&mut operator, None, None).await?;
/// println!("{} messages are due again", retried.done);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator {
    client: Client,
    schema: SchemaName,
    stamp: Stamp,
    sql: Statements,
    /// The name of this command in the audit.
    command: String,
    /// The `application_name` that relays with this configuration have.
    relay_name: String,
    pace: Pace,
    /// The connection; it ends with the client.
    _tasks: JoinSet<()>,
}

/// Who says to act, and why: written to the audit table beside the database's user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// A person or a system, 1 to 255 bytes.
    pub operator: Option<String>,
    /// A note, for example the number of an incident, 1 to 1000 bytes.
    pub note: Option<String>,
}

impl Operator {
    /// Connects to PostgreSQL and checks the schema's version.
    ///
    /// # Errors
    /// PostgreSQL cannot be reached, or the schema has another version.
    pub async fn connect(config: &OutboxConfig, stamp: Stamp) -> Result<Self> {
        let mut tasks = JoinSet::new();
        let client = connect_postgres(config, &mut tasks).await?;
        check_version(&client, &config.schema).await?;
        let sql = Statements::new(&config.schema);
        let row = client.query_typed_one(&sql.name_session, &[]).await.map_err(failed("name the session"))?;
        let (relay_name, command) = (row.get("name"), row.get("command"));
        Ok(Self {
            client,
            schema: config.schema.clone(),
            stamp,
            sql,
            command,
            relay_name,
            pace: Pace::default(),
            _tasks: tasks,
        })
    }

    /// Limits bulk commands to `rate` changes a second, and reports progress.
    #[must_use]
    pub fn at_rate(self, rate: Option<f64>, progress: Option<Progress>) -> Self {
        Self { pace: Pace::new(rate, progress), ..self }
    }

    async fn query(&self, what: &'static str, sql: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
        query(&self.client, what, sql, parameters).await
    }

    /// The time of the database.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn now(&self) -> Result<SystemTime> {
        let rows = self.query("read the time", &self.sql.now, &[]).await?;
        Ok(rows.first().map_or(SystemTime::UNIX_EPOCH, |row| row.get("now")))
    }

    /// As `query`, with the values of the rows.
    async fn all<T: FromRow>(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<T>> {
        all(&self.client, what, sql, parameters).await
    }

    async fn lanes(&self) -> Result<Vec<i16>> {
        let rows = self.query("read the lanes", &self.sql.lanes, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The lane and id of the newest message with a key, or of the newest that is set aside.
    async fn find_key(&self, key: &str, is_set_aside: bool) -> Result<Option<(i16, i64)>> {
        let rows = self.query("find a key", &self.sql.find_key, &[&key, &is_set_aside]).await?;
        Ok(rows.first().map(|row| (row.get(0), row.get(1))))
    }

    /// Runs a statement that changes something, in a transaction of its own, and returns its rows.
    /// Who acts, and why, are its last parameters.
    async fn change(
        &mut self,
        what: &'static str,
        statement: fn(&Statements) -> &String,
        parameters: &Parameters<'_>,
        wakes: bool,
    ) -> Result<Vec<Row>> {
        let Self { client, schema, stamp, sql, command, .. } = self;
        let transaction = begin(client, sql, command).await?;
        let parameters = [parameters, &[&stamp.operator, &stamp.note]].concat();
        let changed = query(&transaction, what, statement(sql), &parameters).await?;
        if wakes {
            wake(&transaction, sql, schema).await?;
        }
        commit(transaction).await?;
        Ok(changed)
    }

    /// A transaction with an operator's settings; dropped without a commit, it changes nothing.
    async fn begin(&mut self) -> Result<Transaction<'_>> {
        begin(&mut self.client, &self.sql, &self.command).await
    }

    /// A transaction that only looks, and waits for no other.
    async fn begin_status(&mut self) -> Result<Transaction<'_>> {
        let transaction = self.client.transaction().await.map_err(failed("begin"))?;
        transaction.batch_execute(&self.sql.status_settings).await.map_err(failed("begin"))?;
        Ok(transaction)
    }
}

async fn begin<'a>(client: &'a mut Client, sql: &Statements, command: &str) -> Result<Transaction<'a>> {
    let transaction = client.transaction().await.map_err(failed("begin"))?;
    let settings = sql.settings.replace("{command}", command);
    transaction.batch_execute(&settings).await.map_err(failed("begin"))?;
    Ok(transaction)
}

async fn commit(transaction: Transaction<'_>) -> Result<()> {
    transaction.commit().await.map_err(failed("commit"))
}

/// Relays that are asleep have something to do.
async fn wake(transaction: &Transaction<'_>, sql: &Statements, schema: &SchemaName) -> Result<()> {
    query(transaction, "wake the relays", &sql.wake, &[&schema.as_str()]).await.map(drop)
}

/// Whether a page is full, so that more may come after it.
fn is_full(rows: &[Row]) -> bool {
    rows.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX)
}

/// The id after which the next page begins; `None` when these rows are the last.
fn next_id(rows: &[Row]) -> Option<i64> {
    rows.last().filter(|_| is_full(rows)).map(|row| row.get("id"))
}

/// Whether a row that was looked at is selected. SQL may answer NULL where a column has none.
fn is_selected(row: &&Row) -> bool {
    row.get::<_, Option<bool>>("selected") == Some(true)
}

fn failed(what: &'static str) -> impl Fn(tokio_postgres::Error) -> RelayError {
    move |source| RelayError::store(StoreError::Statement(what, source))
}
