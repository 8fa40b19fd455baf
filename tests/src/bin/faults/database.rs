//! Faults that an operator, another program or another database causes in the outbox's database.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{adversity, http_get, within};
use tokio::time::{Instant, sleep};
use tokio_postgres::GenericClient;

use crate::{
    scenarios::{ABSENCE, CALM},
    stage::Stage,
};

/// A pass takes all lanes and everything that is due in them, so that PostgreSQL has more to send
/// than the sockets hold.
pub(crate) const LARGE_PASSES: &[(&str, &str)] =
    &[("ONCEBOX_BATCH_LANES", "16"), ("ONCEBOX_BATCH_BYTES", "8388608")];
/// How soon another relay goes on, and the time that it takes to deliver.
const GOES_ON_MAX: Duration = Duration::from_secs(50);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Suspended while PostgreSQL sends it an answer; PostgreSQL itself would wait for ever.
pub(crate) async fn reader_suspended(stage: &mut Stage<'_>) -> Result<String> {
    stage.options = &[];
    stage.add_relay(false).await?;
    let second = &stage.relays[1];
    within("the second relay stands by", WAIT_MAX, async || {
        Ok(second.log().contains("another relay is the leader").then_some(()))
    })
    .await?;
    let (watching, mut locking) = (stage.connection().await?, stage.connection().await?);
    let lock = "LOCK TABLE oncebox.log IN ACCESS EXCLUSIVE MODE";
    let [relay, second] = &mut stage.relays[..] else { bail!("this scenario takes two relays") };
    // Workers of the first relay may share the lanes, and PostgreSQL must have more for each than
    // the sockets hold.
    let enqueue = async |client: &tokio_postgres::Transaction<'_>| place(client, "large", 64, 800_000).await;
    let suspend = async || relay.suspend(true);
    // Not the second relay's sessions: it would help.
    second.suspend(true)?;
    adversity::suspend_behind(&watching, &mut locking, lock, enqueue, suspend).await?;
    adversity::await_relay_session(&watching, "wait_event = 'ClientWrite'").await?;
    second.suspend(false)?;
    let suspended = Instant::now();
    let left =
        "SELECT count(*) = 0 FROM placed WHERE key LIKE 'large-%' AND key NOT IN (SELECT key FROM effect)";
    within("another relay goes on", GOES_ON_MAX, async || {
        Ok(watching.query_one(left, &[]).await?.get::<_, bool>(0).then_some(()))
    })
    .await?;
    let seconds = suspended.elapsed().as_secs();
    stage.relays[0].suspend(false)?;
    stage.delivering().await?;
    Ok(format!("SIGSTOP while PostgreSQL sends to it; another relay had delivered all after {seconds} s"))
}

/// A listener of another database, in a transaction that does not end.
pub(crate) async fn notify_queue(stage: &mut Stage<'_>) -> Result<String> {
    const KILLS: usize = 3;
    let admin = stage.connection().await?;
    let (listener, _) = adversity::fill_notify_queue(&stage.database_url(), &admin).await?;
    for kill in 0..KILLS {
        // Time for relays to fall asleep, so that a producer would wake them.
        sleep(3 * CALM).await;
        stage.mid_batch().await?;
        stage.relays[kill % 2].kill().await?;
        stage.producing.rush(false);
        stage.relays[kill % 2].restart().await?;
        stage.delivering().await?;
    }
    stage.assert_diagnosed(stage.database_url(), "notify-queue", "idle in transaction").await?;
    if let Some(error) = stage.producing.last_error() {
        bail!("a producer failed: {error}");
    }
    drop(listener);
    Ok(format!("the queue full throughout, {KILLS} times SIGKILL of a relay"))
}

/// Headers that an earlier version took, and that PostgreSQL cannot convert for any client.
pub(crate) async fn unreadable_header(stage: &mut Stage<'_>) -> Result<String> {
    const ROUNDS: usize = 5;
    const BYTE: i32 = 233;
    let mut client = stage.connection().await?;
    adversity::take_any_header(&**client).await?;
    for round in 0..ROUNDS {
        stage.mid_batch().await?;
        let ordering_key = format!("unreadable-{round}");
        let transaction = client.transaction().await?;
        adversity::enqueue_byte(&*transaction, &ordering_key, "faults.message", BYTE, &ordering_key).await?;
        let behind = format!("behind-{round}");
        transaction.execute("INSERT INTO placed (key) VALUES ($1)", &[&behind]).await?;
        adversity::enqueue_byte(&*transaction, &behind, "faults.message", 101, &ordering_key).await?;
        transaction.commit().await?;
        stage.producing.rush(false);
        stage.delivering().await?;
        sleep(CALM).await;
    }
    let dead = format!(
        "SELECT CASE WHEN count(*) = {ROUNDS} THEN 1 ELSE 0 END::bigint
                        FROM oncebox.parked WHERE dead_at IS NOT NULL"
    );
    stage.some("they are given up", &dead).await?;
    let arrived = "SELECT count(*) FROM effect WHERE key LIKE 'behind-%'";
    let arrived: i64 = client.query_one(arrived, &[]).await?.get(0);
    ensure!(arrived == 0, "{arrived} messages came before one of their ordering key");
    for round in 0..ROUNDS {
        let key = format!("unreadable-{round}");
        let (_, shown) = stage.oncebox(&["outbox", "dead", "show", &key]).await?;
        ensure!(shown.contains("cannot be converted"), "{shown}");
        let (code, said) = stage.oncebox(&["outbox", "dead", "discard", "--key", &key]).await?;
        ensure!(code == 0, "{said}");
    }
    Ok(format!("{ROUNDS} headers that are no UTF-8, in a database without encoding; discarded at the end"))
}

/// The log moves to another database, and the relays too early; then as the documents have it, but
/// that the relays of the old one die with a backlog.
pub(crate) async fn subscription(stage: &mut Stage<'_>) -> Result<String> {
    let old = stage.connection().await?;
    old.batch_execute("CREATE DATABASE new").await?;
    let url = stage.postgres.url("new");
    let mut new = oncebox_tests::pool(&url, 2, WAIT_MAX)?.get().await?;
    migrate(&mut new, &SchemaName::default(), Lanes::default()).await?;
    adversity::subscribe(&old, &stage.database_url(), &new).await?;
    stage.mid_batch().await?;
    // Rows that come late: while relays of the new database would pass them by.
    let late = new.transaction().await?;
    late.batch_execute("LOCK TABLE oncebox.message IN SHARE MODE").await?;
    let (code, said) = stage.oncebox_of(url.clone(), &["relay"]).await?;
    ensure!(code != 0 && said.contains("subscription moved"), "{code}: {said}");
    stage.assert_diagnosed(url.clone(), "subscription", "docs/upgrade.md").await?;
    late.rollback().await?;
    stage.mid_batch().await?;
    for mut relay in std::mem::take(&mut stage.relays) {
        relay.kill().await?;
    }
    stage.producing.stop().await?;
    let count = "SELECT count(*) FROM oncebox.message";
    let all: i64 = old.query_one(count, &[]).await?.get(0);
    within("all rows are applied", WAIT_MAX, async || {
        Ok((new.query_one(count, &[]).await?.get::<_, i64>(0) >= all).then_some(()))
    })
    .await?;
    new.batch_execute("DROP SUBSCRIPTION moved").await?;
    migrate(&mut new, &SchemaName::default(), Lanes::default()).await?;
    stage.add_relay_of(url, false).await?;
    stage.running().await?;
    Ok(format!("{all} messages replicated; a relay beside the subscription refused"))
}

/// A cleaner of tests, or an operator, has emptied the table of the cursors.
pub(crate) async fn no_cursors(stage: &mut Stage<'_>) -> Result<String> {
    const TIMES: usize = 3;
    let client = stage.connection().await?;
    for _ in 0..TIMES {
        stage.mid_batch().await?;
        client.batch_execute("TRUNCATE oncebox.cursor").await?;
        stage.producing.rush(false);
        // One that starts looks at once; the other one within a minute.
        stage.relays[0].kill().await?;
        stage.relays[0].restart().await?;
        let relay = &stage.relays[0];
        within("a relay is not ready", WAIT_MAX, async || {
            let Some(address) = relay.http_address() else { return Ok(None) };
            let answer = http_get(address.port(), "/readyz").await.unwrap_or_default();
            Ok((answer.contains("503") && answer.contains("no cursor")).then_some(()))
        })
        .await?;
        stage.assert_diagnosed(stage.database_url(), "cursors", "oncebox migrate").await?;
        let (_, said) = stage.oncebox(&["status"]).await?;
        ensure!(
            said.contains("have no cursor") && said.contains("oncebox migrate"),
            "the status says: {said}"
        );
        let (code, said) = stage.oncebox(&["migrate"]).await?;
        ensure!(code == 0, "{said}");
        stage.delivering().await?;
        sleep(ABSENCE).await;
    }
    Ok(format!("{TIMES} times TRUNCATE of the cursors and SIGKILL of a relay, then `oncebox migrate`"))
}

/// Commits messages of this size.
async fn place(client: &impl GenericClient, prefix: &str, count: i32, bytes: i32) -> Result<()> {
    let keys = "SELECT $1 || '-' || n FROM generate_series(1, $2::int) AS n";
    client.execute(&format!("INSERT INTO placed (key) {keys}"), &[&prefix, &count]).await?;
    let enqueue = format!(
        "SELECT oncebox.enqueue_json(key, 'faults.message', jsonb_build_object('filler', repeat('x', $3::int)))
         FROM ({keys}) AS k (key)"
    );
    client.execute(&enqueue, &[&prefix, &count, &bytes]).await?;
    Ok(())
}
