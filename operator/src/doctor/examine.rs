//! The doctor's questions to PostgreSQL: about the server, the role, the schema, and a pooler or
//! proxy between. They change nothing.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use oncebox_connect::{
    clock::Reading,
    config::{Database, OutboxConfig},
    error::error_chain,
    postgres::{Connector, Parameter, connect_postgres, shares_backends, typed},
};
use oncebox_relay::facts::{Fault, LowIds, faults, sql};
use oncebox_schema::{VersionError, check_version};
use tokio::{
    task::JoinSet,
    time::{timeout, timeout_at},
};
use tokio_postgres::{AsyncMessage, Client, Row};

use super::{DatabaseFacts, InboxFacts, Lacking};
use crate::{
    LossStatus, Result, SagasUnled,
    disk::full_disk,
    relay_settings::{RelaySettings, relay_settings},
    sagas::UNLED_SECONDS,
    status::{RecentSubject, recent_subjects},
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
/// A channel that nobody else listens on.
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
    match ask(client, ROLE_PREFIX, &[&schema]).await {
        Ok(rows) => rows.iter().for_each(|row| facts.role_prefix = row.get(0)),
        Err(problem) => facts.unasked.push(format!("the names of roles: {problem}")),
    }
    // Better, where the role may read it: it is there before any role is.
    if let Ok(rows) = ask(client, &config.schema.sql(INSTALLED_ROLE_PREFIX), &[]).await {
        rows.iter().for_each(|row| facts.role_prefix = row.get(0));
    }
    match ask(client, PRIVILEGES, &[&schema, &facts.role_prefix]).await {
        Ok(rows) => {
            let lacking = |row: &Row| Lacking { role: row.get("role"), privileges: row.get("lacking") };
            facts.lacking = rows.iter().map(lacking).collect();
        }
        Err(problem) => facts.unasked.push(format!("the privileges of relays: {problem}")),
    }
    let prefix = &facts.role_prefix;
    let roles = ["producer", "relay", "consumer", "operator"].map(|role| format!("{prefix}_{role}"));
    match ask(client, ROLES, &[&roles.as_slice()]).await {
        Ok(rows) => facts.missing_roles = rows.iter().map(|row| row.get(0)).collect(),
        Err(problem) => facts.unasked.push(format!("which roles there are: {problem}")),
    }
    match ask(client, READABLE, &[&schema, &TABLES_NAMED]).await {
        Ok(rows) => {
            facts.readable_tables = rows.first().map_or(0, |row| row.get("tables"));
            facts.readable_examples = rows.iter().map(|row| row.get("name")).collect();
        }
        Err(problem) => facts.unasked.push(format!("what else the role can read: {problem}")),
    }
}

/// The contents of the schema, where it is as this program needs it.
async fn look_at_contents(config: &OutboxConfig, client: &mut Client, facts: &mut DatabaseFacts) {
    // Privileges that the role lacks are reported already.
    if facts.lacking.iter().all(|lacking| lacking.role != facts.role_name) {
        match subjects(config, client).await {
            Ok(subjects) => facts.subjects = subjects,
            Err(problem) => facts.unasked.push(format!("the subjects of recent messages: {problem}")),
        }
        match ask(client, &config.schema.sql(sql::OUTBOX), &[]).await {
            Ok(rows) => facts.outbox = rows.first().map(|row| row.get(0)),
            Err(problem) => facts.unasked.push(format!("who the outbox is: {problem}")),
        }
        match ask(client, &config.schema.sql(LOSSES), &[&LOSSES_MAX]).await {
            Ok(rows) => facts.losses = rows.iter().map(LossStatus::new).collect(),
            Err(problem) => facts.unasked.push(format!("what streams have lost: {problem}")),
        }
        match faulty(config, client).await {
            Ok(faults) => facts.faults = faults,
            Err(problem) => facts.unasked.push(format!("whether the schema is whole: {problem}")),
        }
        match ask(client, &config.schema.sql(sql::IDS), &[]).await {
            Ok(rows) => facts.low_ids = rows.first().map(low_ids),
            Err(problem) => facts.unasked.push(format!("where the ids of messages stand: {problem}")),
        }
    }
    match ask(client, &config.schema.sql(INBOXES), &[&INBOXES_MAX]).await {
        Ok(rows) => facts.inboxes = rows.iter().map(inbox_facts).collect(),
        Err(problem) => facts.unasked.push(format!("for how long inboxes keep keys: {problem}")),
    }
    match ask(client, &config.schema.sql(UNLED), &[&SAGAS_MAX, &UNLED_SECONDS]).await {
        Ok(rows) => facts.sagas_unled = rows.iter().map(SagasUnled::new).collect(),
        Err(problem) => facts.unasked.push(format!("which sagas no process leads: {problem}")),
    }
    match settings(config, client).await {
        Ok(settings) => facts.relay_settings = settings,
        Err(problem) => facts.unasked.push(format!("with which settings relays run: {problem}")),
    }
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

fn low_ids(row: &Row) -> LowIds {
    LowIds { stood_at: row.get(0), needed: row.get(1) }
}

fn inbox_facts(row: &Row) -> InboxFacts {
    InboxFacts { scope: row.get(0), retention_seconds: row.get(1) }
}

/// In a transaction that changes nothing, and without a prepared statement, which a pooler might
/// not carry.
async fn ask(
    client: &mut Client,
    sql: &str,
    parameters: &[&(dyn Parameter + '_)],
) -> Result<Vec<Row>, String> {
    let asking = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(SETTINGS).await?;
        let rows = transaction.query_typed(sql, &typed(parameters)).await?;
        transaction.rollback().await?;
        Ok(rows)
    };
    asking.await.map_err(|error: tokio_postgres::Error| error_chain(&error))
}

async fn subjects(config: &OutboxConfig, client: &mut Client) -> Result<Vec<RecentSubject>, String> {
    let asking = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(SETTINGS).await?;
        recent_subjects(&transaction, &config.schema).await
    };
    asking.await.map_err(|error: tokio_postgres::Error| error_chain(&error))
}

async fn faulty(config: &OutboxConfig, client: &mut Client) -> Result<Vec<Fault>, String> {
    let asking = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(SETTINGS).await?;
        // Which sessions are relays, `oncebox status` knows.
        faults(&transaction, &config.schema, "").await
    };
    asking.await.map_err(|error: tokio_postgres::Error| error_chain(&error))
}

async fn settings(config: &OutboxConfig, client: &mut Client) -> Result<Vec<RelaySettings>, String> {
    let asking = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(SETTINGS).await?;
        relay_settings(&transaction, &config.schema).await
    };
    asking.await.map_err(|error: tokio_postgres::Error| error_chain(&error))
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
