//! Faults of the schema itself: rows that were deleted, rights that were given, settings that hide
//! messages. To everybody else they look like an empty outbox.

use std::{fmt, sync::Arc};

use oncebox_connect::{
    postgres::typed,
    words::{counted, for_one},
};
use oncebox_schema::SchemaName;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::{Error, GenericClient, Row};

use super::Store;
use crate::error::StoreError;

const ROW_SECURITY: &str = include_str!("sql/row_security.sql");
const INTEGRITY: &str = include_str!("sql/integrity.sql");

/// All faults by their names, and whether one keeps relays from delivering.
const NAMES: [(&str, bool); 17] = [
    ("lanes", true),
    ("cursors", true),
    ("identity", true),
    ("row-security", true),
    ("renamed", true),
    ("subscription", true),
    ("foreign-messages", true),
    ("copy", true),
    ("moved", true),
    ("sequence-cache", false),
    ("notify-queue", false),
    ("synchronous-standby", false),
    ("grants", false),
    ("leader", false),
    ("turn", false),
    ("turn-sequence", false),
    ("maintenance", false),
];

/// Something that is wrong with the schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema, Default)]
#[non_exhaustive]
pub struct Fault {
    /// Its name, which does not change.
    pub fault: &'static str,
    /// The object, or the number.
    pub detail: String,
}

/// The faults of the schema, found by looking at the catalogs and at a row per lane.
///
/// # Errors
/// PostgreSQL refused or went away.
pub async fn faults(
    client: &impl GenericClient,
    schema: &SchemaName,
    relay_name: &str,
) -> Result<Vec<Fault>, Error> {
    let hidden = client.query_typed(ROW_SECURITY, &typed(&[&schema.as_str()])).await?;
    if !hidden.is_empty() {
        return Ok(hidden.iter().filter_map(Fault::of).collect());
    }
    let rows = client.query_typed(&schema.sql(INTEGRITY), &typed(&[&schema.as_str(), &relay_name])).await?;
    Ok(rows.iter().filter_map(Fault::of).collect())
}

impl Store {
    /// The faults that keep relays of this outbox from delivering.
    pub(crate) async fn stopping_faults(self: &Arc<Self>) -> Result<Vec<Fault>, StoreError> {
        let session = self.begin().await?;
        let schema = self.schema().as_str();
        let mut rows = session.query("look for policies", &self.sql.row_security, &[&schema]).await?;
        if rows.is_empty() {
            rows = session.query("look for faults", &self.sql.integrity, &[&schema, &""]).await?;
        }
        session.rollback().await?;
        let mut found: Vec<Fault> = rows.iter().filter_map(Fault::of).collect();
        found.retain(Fault::stops_delivery);
        Ok(found)
    }
}

impl Fault {
    fn of(row: &Row) -> Option<Self> {
        let name: &str = row.get(0);
        let (fault, _) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Self { fault, detail: row.get::<_, Option<String>>(1).unwrap_or_default() })
    }

    /// Whether relays do not deliver, or not all, as long as it lasts.
    #[must_use]
    pub fn stops_delivery(&self) -> bool {
        NAMES.iter().any(|(name, stops)| *name == self.fault && *stops)
    }

    /// In words: the fault, its consequence, and the remedy.
    #[must_use]
    pub fn explained(&self, schema: &str) -> Explained {
        let detail = &self.detail;
        let have = |noun| format!("{} {}", counted(detail, noun), for_one(detail, "has", "have"));
        let (what, consequence, remedy) = match self.fault {
            "lanes" => (
                format!("{} no row in table lane: somebody has deleted or truncated it", have("lane")),
                "their messages are accepted and never delivered",
                "run `oncebox migrate`, which makes them again, and keep this schema out of what empties tables".to_owned(),
            ),
            "cursors" => (
                format!("{} no cursor: somebody has deleted or truncated table cursor", have("lane")),
                "their messages are accepted and never delivered",
                "run `oncebox migrate`: these lanes begin anew, and send again all that the outbox still has; inboxes absorb \
                 the copies"
                    .to_owned(),
            ),
            "identity" => (
                "table outbox has lost its row".to_owned(),
                "messages have no ids, and nothing is delivered",
                "run `oncebox migrate`, which makes it again".to_owned(),
            ),
            "row-security" => (
                format!("row level security holds for this role on {detail}"),
                "its policies hide rows from the relay: messages would never be delivered, so the relay stops instead",
                statements(detail, |table| format!("ALTER TABLE {schema}.{table} DISABLE ROW LEVEL SECURITY")),
            ),
            "sequence-cache" => (
                format!("the sequence of the messages' ids has CACHE {detail}"),
                "messages of one ordering key may overtake each other",
                format!("ALTER SEQUENCE {schema}.message_id_seq CACHE 1"),
            ),
            "renamed" => (
                format!("functions name the schema {detail:?}, but are in {schema:?}: it was renamed"),
                "every enqueue fails, or writes into another schema",
                format!("rename it back: ALTER SCHEMA {schema} RENAME TO {detail}"),
            ),
            "grants" => (
                format!("others may change the outbox's tables: {detail}"),
                "whoever has these rights can delete messages or move cursors, and nothing tells",
                "run `oncebox migrate`, which revokes all that ALTER DEFAULT PRIVILEGES has given; revoke the rest by hand"
                    .to_owned(),
            ),
            _ => return self.explained_if_moved(),
        };
        Explained { what, consequence, remedy }
    }

    /// Faults of an outbox that has come from another database or cluster.
    fn explained_if_moved(&self) -> Explained {
        let detail = &self.detail;
        let (what, consequence, remedy) = match self.fault {
            "subscription" => (
                format!("the subscription {detail} writes into table message"),
                "rows that it applies late are neither due nor settled: some messages would never be delivered",
                "let only the old cluster's relay deliver until producers have moved and the subscription is dropped; see \
                 \"Moving to another cluster\" in docs/upgrade.md"
                    .to_owned(),
            ),
            "copy" => (
                format!("this outbox is a copy: relays serve the same outbox at {detail}"),
                "relays send nothing from here, or they would publish the original's messages again",
                "if this is to be an outbox of its own: `oncebox adopt --discard-backlog`, or --send-backlog; if the original \
                 has moved here and nothing serves it there any more: `oncebox adopt --move`"
                    .to_owned(),
            ),
            "moved" => (
                format!("this is another database than the last relay of this outbox served, which was {detail}"),
                "relays send nothing until they know that the original is gone",
                "start a relay: it asks over NATS whether another one serves the original, and goes on if none does; if it \
                 may not ask, or you know: `oncebox adopt --move`"
                    .to_owned(),
            ),
            "foreign-messages" => (
                format!(
                    "{} {} from transactions of another cluster (a subscription has applied them)",
                    counted(detail, "message"),
                    for_one(detail, "comes", "come")
                ),
                "they are neither due nor settled: they are not delivered",
                "see \"Moving to another cluster\" in docs/upgrade.md".to_owned(),
            ),
            _ => return self.explained_around(),
        };
        Explained { what, consequence, remedy }
    }

    /// Faults of the cluster around the schema, and of the relays' work in it.
    fn explained_around(&self) -> Explained {
        let detail = &self.detail;
        let (what, consequence, remedy) = match self.fault {
            "notify-queue" => (
                format!("PostgreSQL's NOTIFY queue is {detail} % full: a session that listens sleeps in a transaction"),
                "relays are not notified, and poll; a NOTIFY of others may fail its transaction",
                "find the session: SELECT pid, datname, application_name, xact_start FROM pg_stat_activity WHERE state LIKE \
                 'idle in transaction%' ORDER BY xact_start; end it with pg_terminate_backend"
                    .to_owned(),
            ),
            "synchronous-standby" => (
                format!("synchronous_standby_names is {detail:?}, and no standby is connected"),
                "every COMMIT waits for it: of producers, and of commands such as `oncebox outbox replay`",
                "bring the standby back, or take it out of synchronous_standby_names and reload".to_owned(),
            ),
            "turn" => (
                format!("the turn of the message log does not end: {detail}"),
                "this table grows, and settled messages stay longer than the retention time",
                "relays try again by themselves; end the transaction that stays open (`oncebox status` names those that have \
                 enqueued), a pg_dump or a VACUUM that never ends, or see why messages are not delivered"
                    .to_owned(),
            ),
            "turn-sequence" => (
                format!("the sequence \"turn\" of the message log has been set back: {detail}"),
                "producers cannot enqueue, or keys that are taken are free again",
                "a relay sets it right within a minute; without one, run `oncebox migrate`. Keep this schema out of what \
                 restarts sequences"
                    .to_owned(),
            ),
            "maintenance" => (
                format!("a step of maintenance fails: {detail}"),
                "the other steps go on; this one is not done: the log may grow, or messages wait that need not",
                "mend the cause that PostgreSQL gives; relays try again each minute".to_owned(),
            ),
            _ => (
                format!("{detail} has the lock by which relays agree on a leader, and is no relay"),
                "relays wait for it, and deliver up to a second later",
                "end that session, and let only those roles connect to this database that need it".to_owned(),
            ),
        };
        Explained { what, consequence, remedy }
    }
}

/// A fault in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The problem.
    pub what: String,
    /// Its consequence.
    pub consequence: &'static str,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, consequence, remedy } = self;
        write!(f, "{what}; {consequence}; {remedy}")
    }
}

/// A statement for each name.
fn statements(names: &str, statement: impl Fn(&str) -> String) -> String {
    Vec::from_iter(names.split(',').map(|name| statement(name.trim()))).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_can_be_pasted() {
        let explained =
            |fault, detail: &str| Fault { fault, detail: detail.to_owned() }.explained("oncebox").remedy;
        for (fault, _) in NAMES {
            let remedy = explained(fault, "detail");
            assert!(!remedy.contains(".."), "{fault}: {remedy}");
        }
        assert_eq!(
            explained("row-security", "lane, message"),
            "ALTER TABLE oncebox.lane DISABLE ROW LEVEL SECURITY; ALTER TABLE oncebox.message DISABLE ROW LEVEL SECURITY"
        );
    }
}
