//! False alarms. When the faults are over, nothing is lost, nothing dies, no command finds
//! anything, and the stream gets no copy; and a loss was found only after a restore.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use async_nats::jetstream::{consumer::DeliverPolicy, consumer::pull::OrderedConfig};
use deadpool_postgres::Pool;
use futures_util::StreamExt as _;
use oncebox_tests::pool;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::{
    arrival, consumer,
    fleet::{ARCHIVE, ARCHIVED, BESIDE, ORDERS, url_of},
    stage::{POOL_WAIT, STREAM, Stage},
};

/// Two checks of streams for losses, and a look at the schema.
const CALM: Duration = Duration::from_secs(70);
/// A loss is found within this time after a restore.
const FOUND_WITHIN: Duration = Duration::from_secs(90);
/// This number of messages leaves none of the 16 lanes without one.
const MESSAGES: usize = 100;
/// True of this stage, and no alarm: its streams are made so, and some orders are worth nothing.
const EXPECTED: [&str; 6] = [
    "nobody consumes stream SMALL",
    "nobody consumes stream ARCHIVE",
    "duplicate_window of stream",
    "nowhere.archive",
    "an order costs something",
    "dead letter",
];
/// For one message of the stream.
const READ_MAX: Duration = Duration::from_secs(10);

/// Ends the producers, and waits for a while; returns the false alarms.
pub(crate) async fn judge(stage: &mut Stage<'_>) -> Result<Vec<String>> {
    stage.producing.stop().await?;
    arrival::catch_up(&stage.pool, &mut stage.relays).await?;
    // Each lane ends with a message whose payload lies in the bucket.
    enqueue(stage).await?;
    let (_, arrived) = arrival::catch_up(&stage.pool, &mut stage.relays).await?;
    let mut quiet = Vec::new();
    for (url, stream) in databases(stage) {
        quiet.push((pool(&url, 1, POOL_WAIT)?, url, stream, last_sequence(stage, stream).await?));
    }
    stage.say.say(format_args!("{arrived} arrived; nothing should happen for {} s", CALM.as_secs()));
    sleep(CALM).await;
    let mut alarms = dead(stage).await?;
    for (pool, url, stream, last) in quiet {
        alarms.extend(losses(stage, &pool).await?);
        alarms.extend(copies(stage, stream, last).await?);
        for (command, severity) in [("status", None), ("doctor", Some("problem"))] {
            let (_, output) = stage.oncebox_of(url.clone(), &[command, "--json"]).await?;
            alarms.extend(findings(command, &output, "findings", severity)?);
        }
    }
    alarms.iter().for_each(|alarm| stage.say.say(format_args!("a false alarm: {alarm}")));
    Ok(alarms)
}

/// The databases that the relays serve, with their streams.
fn databases(stage: &Stage<'_>) -> Vec<(String, &'static str)> {
    let url = stage.database_url();
    let others = [(BESIDE, ORDERS), (ARCHIVE, ARCHIVED)].map(|(name, stream)| (url_of(&url, name), stream));
    let others = if stage.has_fleet { others.to_vec() } else { Vec::new() };
    [(url, STREAM)].into_iter().chain(others).collect()
}

async fn enqueue(stage: &Stage<'_>) -> Result<()> {
    let mut client = stage.pool.get().await?;
    let transaction = client.transaction().await?;
    let mut messages = Vec::new();
    for n in 0..MESSAGES {
        let key = format!("calm-{n}");
        transaction.execute("INSERT INTO placed (key) VALUES ($1)", &[&key]).await?;
        messages.push(consumer::large_message(&key)?);
    }
    oncebox_outbox::Outbox::default().enqueue_all(&transaction, &messages).await?;
    Ok(transaction.commit().await?)
}

/// Losses that no restore explains.
async fn losses(stage: &Stage<'_>, pool: &Pool) -> Result<Vec<String>> {
    let sql = "SELECT stream, lane, kind, found_at FROM oncebox.loss ORDER BY found_at";
    let rows = pool.get().await?.query(sql, &[]).await?;
    let is_explained = |at: SystemTime| {
        stage.restored.iter().any(|(begun, ended)| *begun <= at && at <= *ended + FOUND_WITHIN)
    };
    let strange: Vec<_> = rows.iter().filter(|row| !is_explained(row.get("found_at"))).collect();
    let Some(first) = strange.first() else { return Ok(Vec::new()) };
    let (stream, lane, kind): (&str, i16, &str) = (first.get("stream"), first.get("lane"), first.get("kind"));
    let count = strange.len();
    Ok(vec![format!(
        "{count} losses that no restore explains, the first: {kind} of stream {stream} in lane {lane}"
    )])
}

async fn dead(stage: &Stage<'_>) -> Result<Vec<String>> {
    let sql = "SELECT 'message ' || m.key || ' is dead: ' || coalesce(p.error, '')
               FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id) WHERE p.dead_at IS NOT NULL
               UNION ALL
               SELECT 'dead letter of ' || scope || ', message ' || coalesce(key, '') || ': ' || reason FROM oncebox.dead_letter";
    let rows = stage.pool.get().await?.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Messages that came into the stream when nothing was sent.
async fn copies(stage: &Stage<'_>, stream: &str, last: u64) -> Result<Vec<String>> {
    let now = last_sequence(stage, stream).await?;
    if now == last {
        return Ok(Vec::new());
    }
    let config = OrderedConfig {
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: last + 1 },
        ..OrderedConfig::default()
    };
    let found = stage.broker.jetstream().await?.get_stream(stream).await?;
    let mut messages = found.create_consumer(config).await?.messages().await?;
    let mut keys = HashSet::new();
    for _ in last..now {
        let Ok(Some(message)) = timeout(READ_MAX, messages.next()).await else { break };
        let headers = message.context("read the stream")?.headers.clone().unwrap_or_default();
        keys.insert(headers.get("Idempotency-Key").map(ToString::to_string).unwrap_or_default());
    }
    let few: Vec<&String> = keys.iter().take(5).collect();
    Ok(vec![format!("{} copies came into stream {stream} when all was calm, such as {few:?}", now - last)])
}

async fn last_sequence(stage: &Stage<'_>, stream: &str) -> Result<u64> {
    let stream = stage.broker.jetstream().await?.get_stream(stream).await.context("look at the stream")?;
    Ok(stream.cached_info().state.last_sequence)
}

/// The findings of a command, those of one severity if it tells.
fn findings(command: &str, output: &str, list: &str, severity: Option<&str>) -> Result<Vec<String>> {
    let document = output.lines().find(|line| line.starts_with('{')).context("a document")?;
    let document: Value = serde_json::from_str(document).with_context(|| format!("read {output}"))?;
    let all = document[list].as_array().with_context(|| format!("{command} has no findings: {output}"))?;
    let meant = all.iter().filter(|found| severity.is_none_or(|severity| found["severity"] == severity));
    let told = meant.map(|found| format!("{command} finds: {}", found["what"]));
    Ok(told.filter(|text| !EXPECTED.iter().any(|expected| text.contains(expected))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_read_from_both_commands() {
        let output = "log\n{\"findings\": [{\"what\": \"a\", \"severity\": \"problem\"}, {\"what\": \"b\", \"severity\": \"note\"}]}\n";
        let found = |severity| findings("x", output, "findings", severity).unwrap();
        assert_eq!(found(Some("problem")), ["x finds: \"a\""]);
        assert_eq!(found(None).len(), 2);
        assert!(findings("x", "{}", "findings", None).is_err());
    }
}
