//! Adversity for a database of an outbox, which tests and the fault matrix share.

use std::time::Duration;

use anyhow::Result;
use deadpool_postgres::Object;
use tokio_postgres::{Client, Error, GenericClient, Transaction};

use crate::{eventually::within, pool::pool};

const WAIT_MAX: Duration = Duration::from_secs(30);
/// The advisory lock of [`pause_in`].
pub const WAITS_FOR: i64 = 7;

/// Counts the messages that were parked and are stored by now, and that no cursor knows of: no
/// relay would miss one that its stream loses.
pub const UNNOTED: &str =
    "SELECT count(*) FROM oncebox.late_receipt AS r JOIN oncebox.lane_cursor AS c USING (lane)
    WHERE r.sequence > coalesce((c.acknowledged -> r.stream ->> 0)::bigint, 0)";

/// Settings of a server whose NOTIFY queue [`fill_notify_queue`] can fill; as of PostgreSQL 17,
/// earlier ones have a queue of 8 GiB.
pub const SMALL_NOTIFY_QUEUE: &[(&str, &str)] = &[("max_notify_queue_pages", "64")];

/// Waits until a session of a relay is in this state, a condition on `pg_stat_activity`. Not in a
/// transaction, which would see the same answer for ever.
///
/// # Errors
/// None is after 30 seconds, or PostgreSQL refuses.
pub async fn await_relay_session(client: &Client, condition: &str) -> Result<()> {
    let sql = format!(
        "SELECT FROM pg_stat_activity WHERE application_name = 'oncebox relay' AND {condition} LIMIT 1"
    );
    within(condition, WAIT_MAX, async || Ok(client.query_opt(&sql, &[]).await?.map(drop))).await
}

/// A statement of a pass waits for a lock, as its first comment tells. Other sessions of a relay
/// wait for the same lock.
const PASS_WAITS: &str =
    "wait_event_type = 'Lock' AND query ~ '^-- (Claim|Read|Move) [a-z ]*(lanes|messages|cursors)'";

/// Has `suspend` suspend a relay while a statement of its pass waits for the lock that `lock`
/// takes. The message that `enqueue` writes under the lock is committed then, so that PostgreSQL
/// answers it.
///
/// # Errors
/// No relay waits for the lock after 30 seconds, or PostgreSQL refuses.
pub async fn suspend_behind<T>(
    watching: &Client,
    locking: &mut Client,
    lock: &str,
    enqueue: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>,
    suspend: impl AsyncFnOnce() -> Result<()>,
) -> Result<T> {
    let transaction = locking.transaction().await?;
    transaction.batch_execute(lock).await?;
    let enqueued = enqueue(&transaction).await?;
    await_relay_session(watching, PASS_WAITS).await?;
    suspend().await?;
    transaction.commit().await?;
    Ok(enqueued)
}

/// Has a function of the schema, in PL/pgSQL, wait at its beginning until no other session holds
/// the advisory lock [`WAITS_FOR`].
///
/// # Errors
/// PostgreSQL refuses: there is no function of that name, or more than one.
pub async fn pause_in(client: &Client, function: &str) -> Result<(), Error> {
    let sql = "SELECT pg_get_functiondef(('oncebox.' || $1)::regproc)";
    let definition: String = client.query_one(sql, &[&function]).await?.get(0);
    let pause =
        format!("\nBEGIN\n  PERFORM pg_advisory_lock({WAITS_FOR}), pg_advisory_unlock({WAITS_FOR});\n");
    client.batch_execute(&definition.replacen("\nBEGIN\n", &pause, 1)).await
}

/// Waits until a session waits there.
///
/// # Errors
/// None does after 30 seconds, or PostgreSQL refuses.
pub async fn await_pause(watching: &Client) -> Result<()> {
    let waits =
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1::bigint LIMIT 1";
    let waits = async || Ok(watching.query_opt(waits, &[&WAITS_FOR]).await?.map(drop));
    within("a function waits", WAIT_MAX, waits).await
}

/// Fills the server's NOTIFY queue, which all its databases share: by a listener in a database of
/// its own, whose transaction stays open as long as the returned connection. Returns PostgreSQL's
/// refusal as well.
///
/// # Errors
/// PostgreSQL is away, or the queue takes everything for 30 seconds.
pub async fn fill_notify_queue(url: &str, admin: &Client) -> Result<(Object, Error)> {
    admin.batch_execute("CREATE DATABASE elsewhere").await?;
    let elsewhere = pool(&crate::database_url(url, "elsewhere"), 2, WAIT_MAX)?;
    let (listener, other) = (elsewhere.get().await?, elsewhere.get().await?);
    listener.batch_execute("LISTEN anything").await?;
    listener.batch_execute("BEGIN; SELECT 1").await?;
    let fill = "SELECT pg_notify('anything', repeat('x', 7000) || n) FROM generate_series(1, 8) AS n";
    let full =
        within("the queue is full", WAIT_MAX, async || Ok(other.batch_execute(fill).await.err())).await?;
    Ok((listener, full))
}

/// Creates a database with an encoding that is not UTF-8, from template0.
///
/// # Errors
/// PostgreSQL refuses.
pub async fn create_database_in(admin: &Client, name: &str, encoding: &str) -> Result<(), Error> {
    let sql = format!("CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
    admin.batch_execute(&sql).await
}

/// Enqueues a message whose header ends with this byte, as a character of the database's encoding.
///
/// # Errors
/// PostgreSQL refuses; `enqueue` does when the byte cannot be converted.
pub async fn enqueue_byte(
    client: &impl GenericClient,
    key: &str,
    subject: &str,
    byte: i32,
    ordering_key: &str,
) -> Result<(), Error> {
    let headers = "jsonb_build_object('h', 'secret' || chr($3::int))";
    let sql = format!(r#"SELECT oncebox.enqueue($1, $2, '{{"filler":""}}', {headers}, $4)"#);
    client.execute(&sql, &[&key, &subject, &byte, &ordering_key]).await.map(drop)
}

/// Lets the log take headers that `enqueue` refuses, as an earlier version did.
///
/// # Errors
/// PostgreSQL refuses.
pub async fn take_any_header(client: &impl GenericClient) -> Result<(), Error> {
    let sql = "CREATE OR REPLACE FUNCTION oncebox.check_headers(headers jsonb) RETURNS boolean
               LANGUAGE sql IMMUTABLE STRICT RETURN true";
    client.batch_execute(sql).await
}

/// Subscribes the log of one outbox to another's on the same server, which has `wal_level =
/// logical`. There the slot has to be made first: CREATE SUBSCRIPTION would wait for itself.
///
/// # Errors
/// PostgreSQL refuses.
pub async fn subscribe(old: &Client, old_url: &str, new: &Client) -> Result<(), Error> {
    old.batch_execute("CREATE PUBLICATION moved FOR TABLE oncebox.message_0").await?;
    old.batch_execute("SELECT pg_create_logical_replication_slot('moved', 'pgoutput')").await?;
    let sql = format!(
        "CREATE SUBSCRIPTION moved CONNECTION '{old_url}' PUBLICATION moved WITH (create_slot = false)"
    );
    new.batch_execute(&sql).await
}
