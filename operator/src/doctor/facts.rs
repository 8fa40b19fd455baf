//! The facts about PostgreSQL that a doctor asks for.

use oncebox_connect::clock::Skew;
use oncebox_relay::facts::{Fault, LowIds};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{LossStatus, SagasUnled, relay_settings::RelaySettings, rows::from_row, status::RecentSubject};

/// The privileges that a relay needs and its role lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Lacking {
    /// The role.
    pub role: String,
    /// The privileges, as one text.
    pub privileges: String,
}

/// The facts about PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DatabaseFacts {
    /// Hosts and database.
    pub target: String,
    /// The server's version, such as `18.4`.
    pub version: String,
    /// The server's version as a number, such as 180004.
    pub version_number: i32,
    /// The prefix of the roles that were made for this schema.
    pub role_prefix: String,
    /// The role that this program has logged in with.
    pub role_name: String,
    /// Whether that role is a superuser.
    pub is_superuser: bool,
    /// Whether the server is a standby, or the role is set to read only.
    pub is_read_only: bool,
    /// The words in which the server says that its disk is full, if it is.
    pub full_disk: Option<String>,
    /// Whether commits are written to disk.
    pub fsyncs: bool,
    /// The setting `synchronous_commit`.
    pub synchronous_commit: String,
    /// The setting `synchronous_standby_names`.
    pub synchronous_standby_names: String,
    /// How many of these a commit waits for.
    pub awaited_standbys: i64,
    /// How many of these are connected; None where the role may not see it.
    pub synchronous_standbys: Option<i64>,
    /// How far the slowest of these lags with applying, in bytes.
    pub unapplied_bytes: Option<i64>,
    /// Why a transaction of more than one statement is refused: a pooler in statement mode.
    pub transactions_refused: Option<String>,
    /// The schema of the outbox.
    pub schema: String,
    /// The problem with its version.
    pub schema_problem: Option<String>,
    /// The roles that lack privileges of a relay: of the connected relays, and this one unless it
    /// is an operator's.
    pub lacking: Vec<Lacking>,
    /// Roles for the programs that are not there to be granted.
    pub missing_roles: Vec<String>,
    /// Tables of others that this role can read.
    pub readable_tables: i64,
    /// The first of them.
    pub readable_examples: Vec<String>,
    /// Whether two connections, or two statements of one, were served by the same and by another
    /// backend: a transaction pooler.
    pub is_pooled: bool,
    /// Whether LISTEN works; None when that could not be tried.
    pub hears: Option<bool>,
    /// The server's clock against this host's.
    pub clock: Option<Skew>,
    /// The identity of the outbox: the first part of each `Nats-Msg-Id`.
    pub outbox: Option<String>,
    /// New messages get ids that cursors have passed.
    pub low_ids: Option<LowIds>,
    /// The faults of the schema itself.
    pub faults: Vec<Fault>,
    /// Subjects of recent messages.
    pub subjects: Vec<RecentSubject>,
    /// Inboxes that forget keys, 100 at most.
    pub inboxes: Vec<InboxFacts>,
    /// With which settings relays were at work within the last three minutes, by how many they are.
    pub relay_settings: Vec<RelaySettings>,
    /// Sagas that no process leads, by type and version.
    pub sagas_unled: Vec<SagasUnled>,
    /// Losses of messages that streams had acknowledged, the newest 20 at most.
    pub losses: Vec<LossStatus>,
    /// The questions that failed, and why.
    pub unasked: Vec<String>,
}

/// A consumer that forgets keys after a time.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct InboxFacts {
    /// Who: `service:handler`.
    pub scope: String,
    /// After how many seconds.
    pub retention_seconds: f64,
}

from_row!(Lacking: role, privileges = "lacking");
from_row!(InboxFacts: scope, retention_seconds);
