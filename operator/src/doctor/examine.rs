//! The doctor's questions to PostgreSQL: about the server, the role, the schema, and a pooler or
//! proxy between. They change nothing.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use oncebox_connect::{
    clock::Reading,
    config::{Database, OutboxConfig},
    error::error_chain,
    postgres::{Connector, connect_postgres, shares_backends, typed},
};
use oncebox_relay::facts::{LowIds, faults, sql};
use oncebox_schema::{VersionError, check_version};
use tokio::{
    task::JoinSet,
    time::{timeout, timeout_at},
};
use tokio_postgres::{AsyncMessage, Client, Row, Transaction};

use super::DatabaseFacts;

use crate::{
    Result,
    disk::full_disk,
    relay_settings::relay_settings,
    rows::{Parameters, values},
    sagas::UNLED_SECONDS,
    status::recent_subjects,
};

/// How long all statements together may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a notification may take to arrive; the relay waits as long for its own.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(3);
/// How many tables are named at most.
const TABLES_NAMED: i64 = 5;
/// Inboxes that are looked at, at most.
const INBOXES_MAX: i64 = 100;
/// Kinds of sagas that are looked at, at most.
const SAGAS_MAX: i32 = 1_000;
/// Losses that are looked at, at most.
const LOSSES_MAX: i64 = 20;
/// A channel that no other session listens on.
const CHANNEL: &str = "oncebox doctor";

const SETTINGS: &str = include_str!("../sql/status_settings.sql");
const SERVER: &str = include_str!("sql/server.sql");
const PRIVILEGES: &str = include_str!("sql/privileges.sql");
const ROLE_PREFIX: &str = include_str!("sql/role_prefix.sql");
const INSTALLED_ROLE_PREFIX: &str = include_str!("sql/installed_role_prefix.sql");
const ROLES: &str = include_str!("sql/roles.sql");
const READABLE: &str = include_str!("sql/readable.sql");
const INBOXES: &str = include_str!("sql/inboxes.sql");
const LOSSES: &str = include_str!("../sql/losses.sql");
const UNLED: &str = include_str!("../sql/status_unled.sql");

/// Connects, looks, and hangs up.
///
/// # Errors
/// PostgreSQL cannot be reached, or does not let us in.
pub(crate) async fn examine(config: &OutboxConfig) -> Result<DatabaseFacts> {
    let mut config = config.clone();
    config.database = config.database.of_operator();
    let mut tasks = JoinSet::new();
    let mut client = connect_postgres(&config, &mut tasks).await?;
    let mut facts = DatabaseFacts {
        target: config.postgres_target(),
        schema: config.schema.as_str().to_owned(),
        role_prefix: config.schema.as_str().to_owned(),
        ..DatabaseFacts::default()
    };
    let looked = timeout(LOOK_TIMEOUT, look(&config, &mut client, &mut tasks, &mut facts)).await;
    if looked.is_err() {
        facts.unasked.push(format!("PostgreSQL did not answer everything within {LOOK_TIMEOUT:?}"));
    }
    Ok(facts)
}

async fn look(
    config: &OutboxConfig,
    client: &mut Client,
    tasks: &mut JoinSet<()>,
    facts: &mut DatabaseFacts,
) {
    let schema = config.schema.as_str();
    let before = Reading::now();
    match ask(client, SERVER, &[]).await.as_deref() {
        Ok([row]) => {
            facts.clock = Some(before.skew(row.get("now")));
            facts.version = row.get("version");
            facts.version_number = row.get("version_number");
            facts.role_name = row.get("role_name");
            facts.is_superuser = row.get("is_superuser");
            facts.is_read_only = row.get("is_read_only");
            facts.fsyncs = row.get("fsyncs");
            facts.synchronous_commit = row.get("synchronous_commit");
            facts.synchronous_standby_names = row.get("synchronous_standby_names");
            facts.awaited_standbys = row.get("awaited_standbys");
            facts.synchronous_standbys = row.get("synchronous_standbys");
            facts.unapplied_bytes = row.get("unapplied_bytes");
        }
        Ok(_) => {}
        // Then no question can be asked, nor can a relay work.
        Err(problem) if problem.contains("statement pooling") => {
            return facts.transactions_refused = Some(problem.clone());
        }
        Err(problem) => facts.unasked.push(format!("the server's settings: {problem}")),
    }
    facts.full_disk = full_disk(client).await;
    facts.schema_problem = match check_version(client, &config.schema).await {
        Ok(()) => None,
        Err(VersionError::Postgres { source, .. }) => {
            facts.unasked.push(format!("the version of schema {schema}: {}", error_chain(&*source)));
            None
        }
        Err(problem) => Some(problem.to_string()),
    };
    look_at_roles(config, client, facts).await;
    if facts.schema_problem.is_none() {
        look_at_contents(config, client, facts).await;
    }
    look_for_pooler(config, client, tasks, facts).await;
}

/// The roles and their privileges.
async fn look_at_roles(config: &OutboxConfig, client: &mut Client, facts: &mut DatabaseFacts) {
    let schema = config.schema.as_str();
    let unasked = &mut facts.unasked;
    let named: Vec<Row> = noted(unasked, "the names of roles", ask(client, ROLE_PREFIX, &[&schema]).await);
    // Better, where the role may read it: it is there before any role is.
    let installed = ask(client, &config.schema.sql(INSTALLED_ROLE_PREFIX), &[]).await.unwrap_or_default();
    named.iter().chain(&installed).for_each(|row| facts.role_prefix = row.get(0));
    let prefix = &facts.role_prefix;
    let lacking = ask(client, PRIVILEGES, &[&schema, prefix]).await;
    facts.lacking = values(&noted(unasked, "the privileges of relays", lacking));
    let roles = ["producer", "relay", "consumer", "operator"].map(|role| format!("{prefix}_{role}"));
    let missing = noted(unasked, "which roles there are", ask(client, ROLES, &[&roles.as_slice()]).await);
    facts.missing_roles = missing.iter().map(|row| row.get(0)).collect();
    let readable = ask(client, READABLE, &[&schema, &TABLES_NAMED]).await;
    let readable = noted(unasked, "what else the role can read", readable);
    facts.readable_tables = readable.first().map_or(0, |row| row.get("tables"));
    facts.readable_examples = readable.iter().map(|row| row.get("name")).collect();
}

/// The contents of the schema, where it is as this program needs it.
async fn look_at_contents(config: &OutboxConfig, client: &mut Client, facts: &mut DatabaseFacts) {
    let (schema, unasked) = (&config.schema, &mut facts.unasked);
    // Privileges that the role lacks are reported already.
    if facts.lacking.iter().all(|lacking| lacking.role != facts.role_name) {
        let subjects = within(client, async |look| recent_subjects(look, schema).await).await;
        facts.subjects = noted(unasked, "the subjects of recent messages", subjects);
        let outbox = noted(unasked, "who the outbox is", ask(client, &schema.sql(sql::OUTBOX), &[]).await);
        facts.outbox = outbox.first().map(|row| row.get(0));
        let losses = ask(client, &schema.sql(LOSSES), &[&LOSSES_MAX]).await;
        facts.losses = values(&noted(unasked, "what streams have lost", losses));
        // Which sessions are relays, `oncebox status` knows.
        let faults = within(client, async |look| faults(look, schema, "").await).await;
        facts.faults = noted(unasked, "whether the schema is whole", faults);
        let ids = ask(client, &schema.sql(sql::IDS), &[]).await;
        let ids = noted(unasked, "where the ids of messages stand", ids);
        facts.low_ids = ids.first().map(|row| LowIds { stood_at: row.get(0), needed: row.get(1) });
    }
    let inboxes = ask(client, &schema.sql(INBOXES), &[&INBOXES_MAX]).await;
    facts.inboxes = values(&noted(unasked, "for how long inboxes keep keys", inboxes));
    let unled = ask(client, &schema.sql(UNLED), &[&SAGAS_MAX, &UNLED_SECONDS]).await;
    facts.sagas_unled = values(&noted(unasked, "which sagas no process leads", unled));
    let settings = within(client, async |look| relay_settings(look, schema).await).await;
    facts.relay_settings = noted(unasked, "with which settings relays run", settings);
}

/// An answer; without one this part was not checked, and the problem says so.
fn noted<T: Default>(unasked: &mut Vec<String>, what: &str, answer: Result<T, String>) -> T {
    answer.unwrap_or_else(|problem| {
        unasked.push(format!("{what}: {problem}"));
        T::default()
    })
}

/// Poolers and proxies between a relay and PostgreSQL.
async fn look_for_pooler(
    config: &OutboxConfig,
    client: &mut Client,
    tasks: &mut JoinSet<()>,
    facts: &mut DatabaseFacts,
) {
    match connect_postgres(config, tasks).await {
        Ok(other) => {
            facts.is_pooled = shares_backends(client, &other).await;
            // To LISTEN there would leave a session listening that belongs to others.
            if facts.is_pooled {
                return;
            }
            match hears(&config.database, &other).await {
                Ok(hears) => facts.hears = Some(hears),
                Err(problem) => facts.unasked.push(format!("whether LISTEN works: {problem}")),
            }
        }
        Err(error) => facts.unasked.push(format!("a second connection: {}", error_chain(&error))),
    }
}

/// In a transaction that changes nothing.
async fn within<T>(
    client: &mut Client,
    look: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, tokio_postgres::Error>,
) -> Result<T, String> {
    let looking = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(SETTINGS).await?;
        look(&transaction).await
    };
    looking.await.map_err(|error| error_chain(&error))
}

/// Without a prepared statement, which a pooler might not carry.
async fn ask(client: &mut Client, sql: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, String> {
    within(client, async |look| look.query_typed(sql, &typed(parameters)).await).await
}

/// Whether a notification arrives.
async fn hears(database: &Database, other: &Client) -> Result<bool, String> {
    let connector = Connector::new(database);
    let connecting = timeout(connector.connect_timeout(), connector.connect()).await;
    let connected = connecting.map_err(|_| "no connection in time".to_owned())?;
    let (client, mut connection) = connected.map_err(|error| error_chain(&error))?;
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context)).boxed();
    let deadline = tokio::time::Instant::now() + NOTIFY_TIMEOUT;
    let asking = async {
        client.batch_execute(&format!("LISTEN \"{CHANNEL}\"")).await?;
        other.query_typed(sql::NOTIFY, &typed(&[&CHANNEL, &""])).await.map(drop)
    };
    let listening = async {
        while let Some(message) = messages.next().await {
            if let Ok(AsyncMessage::Notification(_)) = message {
                return true;
            }
        }
        false
    };
    tokio::pin!(listening);
    // The connection is driven by listening, so both go on together.
    let asked = async {
        match asking.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error_chain(&error),
        }
    };
    tokio::select! {
        heard = timeout_at(deadline, &mut listening) => Ok(heard.unwrap_or(false)),
        problem = asked => Err(problem),
    }
}
