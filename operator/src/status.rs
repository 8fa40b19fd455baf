//! How the outbox of a schema stands: how far it lags, which relays work, which obstacles hold it
//! up.

pub(crate) mod findings;
mod query;

use oncebox_relay::facts::{DelayedCount, Expectation, Fault, InboxStatus};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::query::recent_subjects;
use super::{
    canaries::Canary, dead_letters::DeadLetters, losses::LossStatus, pause_row::PauseRow, rates::Rates,
    relay_settings::RelaySettings, sagas::SagasUnled, time::Time,
};
use crate::survey::Survey;

/// How the outbox of a schema stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Status {
    /// The database's time; `None` only in a default value.
    pub at: Option<Time>,
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
    /// Messages set aside to be tried again or waiting for such; with `dead` and `replays` counted
    /// to 100,000.
    pub parked: i64,
    /// Messages given up.
    pub dead: i64,
    /// Replays still to be sent.
    pub replays: i64,
    /// Messages that wait for their time.
    pub delayed: DelayedCount,
    /// Each lane.
    pub lanes: Vec<LaneStatus>,
    /// Sessions that have lanes locked.
    pub locks: Vec<Holder>,
    /// The name of relays' sessions: the `application_name` that this configuration gives.
    pub relay_name: String,
    /// Relays at work, the ten largest groups.
    pub relays: Vec<RelaySessions>,
    /// The relays that sleep, without a session; `None` when none does.
    pub asleep: Option<Asleep>,
    /// Ordering keys that dead messages hold back, among the first 1,000 ordering keys with dead
    /// messages.
    pub blocked_keys: i64,
    /// The ten whose dead messages are the oldest of these.
    pub blocked: Vec<BlockedKey>,
    /// The pauses and throttles of operators, the ten newest.
    pub pauses: Vec<PauseRow>,
    /// Why messages are set aside: the ten commonest of the 1,000 that are tried next.
    pub parked_reasons: Vec<ParkedReason>,
    /// Inboxes of this database with dead letters, ten at most; `None` when this role may not look
    /// into them.
    pub dead_letters: Option<Vec<DeadLetters>>,
    /// Inboxes that are to run messages which waited for dead letters, ten at most.
    pub lines_due: Vec<LinesDue>,
    /// The newest ten canaries; `None` when this role may not look at them.
    pub canaries: Option<Vec<Canary>>,
    /// The inboxes of this database, the first 100 by name, and the others together; `None` when
    /// this role may not look into them.
    pub inboxes: Option<Vec<InboxStatus>>,
    /// The messages that inboxes are expected to have in time, and those that they miss.
    pub expectations: Vec<Expectation>,
    /// Sagas that wait for an operator, by type and state.
    pub sagas_waiting: Vec<SagasWaiting>,
    /// Sagas that no process leads, by type and version.
    pub sagas_unled: Vec<SagasUnled>,
    /// The losses of streams after their acknowledgement, the ten newest.
    pub losses: Vec<LossStatus>,
    /// The faults of the schema itself.
    pub faults: Vec<Fault>,
    /// The settings of the relays that worked within the last three minutes.
    pub relay_settings: Vec<RelaySettings>,
    /// Open transactions that have enqueued messages, the ten oldest.
    pub enqueuing: Vec<Holder>,
    /// The time of the oldest milestone that is kept: a relay wrote down then which messages were
    /// settled. `None` when retention is off.
    pub oldest_milestone: Option<Time>,
    /// When a relay last did.
    pub newest_milestone: Option<Time>,
    /// Whether PostgreSQL takes no writes: it is a standby, or transactions are read-only by
    /// default.
    pub is_read_only: bool,
    /// The words in which PostgreSQL says that its disk is full, if it is.
    pub full_disk: Option<String>,
    /// Whether this role sees the activity of other users' sessions; if not, their state, address
    /// and times are missing.
    pub sees_all_sessions: bool,
    /// Subjects of the newest 1,000 messages, the 50 commonest.
    pub subjects: Vec<RecentSubject>,
    /// The answers of NATS about the streams that take these subjects; `None` when it was not
    /// asked, or cannot be reached.
    pub nats: Option<Survey>,
    /// Why NATS cannot be reached.
    pub nats_problem: Option<String>,
    /// The findings: all that holds delivery up.
    pub findings: Vec<Finding>,
}

impl Status {
    /// Whether no message gets through: messages wait without a relay, or PostgreSQL takes no
    /// writes, perhaps because its disk is full.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.is_read_only || self.full_disk.is_some() || self.lacks_relay() && self.backlog_messages > 0
    }

    /// Whether no relay works, and none sleeps that will wake in time.
    #[must_use]
    pub fn lacks_relay(&self) -> bool {
        self.relays.is_empty() && self.asleep.is_none()
    }
}

/// Relays that sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Asleep {
    /// How many.
    pub relays: i64,
    /// When the first of them wakes, at the latest.
    pub wakes_at: Time,
    /// A message on this subject of NATS wakes them at once.
    pub wake_subject: String,
}

/// Sagas of one type that wait for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagasWaiting {
    /// Their type.
    pub saga_type: String,
    /// `stuck` or `quarantined`.
    pub state: String,
    /// How many, of one version counted to 10,000.
    pub sagas: i64,
}

impl SagasWaiting {
    fn needs_operator(&self) -> bool {
        ["stuck", "quarantined"].contains(&self.state.as_str())
    }
}

/// How a lane stands.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The lane.
    pub lane: i16,
    /// Messages due; exact when the sum is.
    pub backlog_messages: i64,
    /// Age of the oldest message due.
    pub lag_seconds: f64,
    /// When its cursor last moved.
    pub settled_at: Time,
    /// How long ago its cursor last moved, in seconds.
    pub settled_seconds: f64,
    /// The database was restored from another cluster, and the relays send the messages that were
    /// due there.
    pub is_restored: bool,
}

/// A session, or a prepared transaction, that holds something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
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
    /// The state as in `pg_stat_activity`, if the role may see it.
    pub state: Option<String>,
    /// How long its transaction has been open, if the role may see it.
    pub transaction_seconds: Option<f64>,
}

/// A subject of recent messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RecentSubject {
    /// The subject.
    pub subject: String,
    /// How many of the messages that were looked at have it.
    pub messages: i64,
    /// The largest of them: bytes of payload, headers and key.
    pub bytes_max: i64,
}

/// Sessions of relays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RelaySessions {
    /// The database's user.
    pub user_name: Option<String>,
    /// The client's address; none for a Unix socket, or when not to be seen.
    pub client: Option<String>,
    /// How many; a relay has one for each worker at work, and one with which it leads or asks to.
    pub sessions: i64,
    /// Whether the leader is among them; none has it while relays work through a pooler.
    pub leads: bool,
}

/// An ordering key that a dead message holds back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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
    /// When it was given up.
    pub died_at: Time,
    /// Messages set aside that wait for it, counted to 1,000.
    pub behind: i64,
}

/// Why messages of a subject are set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ParkedReason {
    /// The first line of the error of publishing.
    pub reason: String,
    /// The reason as a word that does not change, such as `no-stream`; `None` for a message that
    /// was enqueued with an id below the floor of its lane.
    pub cause: Option<String>,
    /// The subject.
    pub subject: String,
    /// How many of the messages that were looked at.
    pub messages: i64,
    /// The key of one of them.
    pub key: String,
    /// When the first of them was set aside.
    pub since: Time,
}

/// Messages of one inbox that waited for dead letters, and that its consumer is to run now: the
/// first of each ordering key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct LinesDue {
    /// Whose they are: `service:handler`.
    pub scope: String,
    /// How many, of the first 1,000 of all inboxes.
    pub messages: i64,
    /// The key of one of them.
    pub key: Option<String>,
}

/// Something that holds messages up, or will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Finding {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub remedy: String,
    /// Whether messages do not get through; else an operator should look.
    pub holds_delivery: bool,
    /// A word that findings of one kind share, where there may be many.
    pub kind: Option<&'static str>,
}
