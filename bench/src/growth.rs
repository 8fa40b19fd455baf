//! Growth: the price of a log of `ROWS` messages for producers, the relay and retention.
//!
//! One database has the history of a week: six full segments and a half, and a plain table with as
//! many rows; another one has nothing. Producers take turns with an INSERT into the plain table, as
//! in [`crate::enqueue`], in the large one; WAL is counted right after a checkpoint, in both. The
//! relay drains equal backlogs from both, and carries a thousand messages a second. Then a segment
//! is emptied, and as much of another one is deleted and vacuumed, as it would be without the ring.
//! `turning` follows, and an inbox with as many keys.
//!
//! Filling takes minutes, and 1 GB of disk for a million rows, so this is measured only when it is
//! asked for.

mod ordinary;
mod turning;

use std::sync::{Arc, atomic::AtomicU64};

use anyhow::{Context as _, ensure};
use tokio::time::Instant;

use crate::{
    backlog::{Backlog, Ordering, PAYLOAD_BYTES},
    config::Config,
    enqueue::{PLAIN, PRODUCERS, Producers, Way},
    report::Report,
    scale::head,
    servers::{Servers, Session},
    statistics::median,
    workers::{Side as _, alternate},
};

/// Full segments, the current one counted as half of one.
const SEGMENTS: usize = 6;
/// Messages from one checkpoint to the next: the default five minutes, at a thousand a second.
const WAL_MESSAGES: usize = 300_000;
/// With small histories, one message for this number of rows.
const ROWS_A_WAL_MESSAGE: usize = 10;

/// Rows that come in the order of their keys leave as much room in the index as rows at random.
const SPARSE: &str = "ALTER INDEX plain_key_key SET (fillfactor = 70)";

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let empty = servers.migrated().await?;
    tracing::info!("growth: fill {} rows", config.rows);
    let large = history(servers, config.rows).await?;
    let counted = WAL_MESSAGES.min(config.rows / ROWS_A_WAL_MESSAGE);
    let (mut ratios, mut wal, mut drains) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let of_empty = wal_per_message(servers, &empty, counted).await?;
        let of_large = wal_per_message(servers, &large, counted).await?;
        let rates = producers(servers, config, &large).await?;
        tracing::info!(
            "growth: plain INSERT {:.0}/s, enqueue {:.0}/s; WAL {of_empty:.0}, {of_large:.0} bytes",
            rates.reference,
            rates.measured
        );
        ratios.push(rates.ratio());
        wal.push(of_large / of_empty);
        drains.push(drain(servers, config.messages, [&empty, &large], round).await?);
    }
    let behind = format!("{} rows behind them", config.rows);
    report.add("growth_enqueue_ratio", median(ratios), behind.clone());
    report.add("growth_wal_ratio", median(wal), format!("{behind}, {counted} from a checkpoint on"));
    report.add("growth_drain_ratio", median(drains), behind);
    ordinary::trickle(servers, config, [&empty, &large], report).await.context("carry messages")?;
    retention(servers, &large, report).await.context("empty a segment")?;
    turning::measure(servers, config, &large, report).await.context("turn the ring")?;
    servers.drop_database(&large).await?;
    servers.drop_database(&empty).await?;
    ordinary::claim(servers, config, report).await.context("claim keys")
}

/// A database with the history of a week.
async fn history(servers: &Servers, rows: usize) -> anyhow::Result<String> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(PLAIN).await?;
    session.batch_execute("SET synchronous_commit = off; SET work_mem = '512MB'").await?;
    let bytes = i32::try_from(PAYLOAD_BYTES)?;
    let half = i64::try_from(rows / (2 * SEGMENTS + 1))?;
    for segment in 0..=SEGMENTS {
        let sql = servers.schema.sql(include_str!("sql/history.sql"));
        let (count, order) = if segment == SEGMENTS { (half, "") } else { (2 * half, "ORDER BY 1") };
        let sql = sql.replace("{segment}", &segment.to_string()).replace("{order}", order);
        session.execute(&sql, &[&count, &bytes]).await?;
    }
    session.batch_execute(SPARSE).await?;
    session.execute(include_str!("sql/history_plain.sql"), &[&i64::try_from(rows)?, &bytes]).await?;
    session.batch_execute("ALTER INDEX plain_key_key RESET (fillfactor)").await?;
    session.batch_execute(&servers.schema.sql(include_str!("sql/history_settled.sql"))).await?;
    for command in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        session.batch_execute(command).await?;
    }
    Ok(database)
}

async fn producers(
    servers: &Servers,
    config: &Config,
    database: &str,
) -> anyhow::Result<crate::workers::Rates> {
    let sent = Arc::new(AtomicU64::new(0));
    let plain = Arc::new(Producers::connect(servers, database, Way::Insert, Arc::clone(&sent)).await?);
    let enqueue = Arc::new(Producers::connect(servers, database, Way::Enqueue, sent).await?);
    // The first time fills the caches from disk.
    alternate(config.duration / 2, PRODUCERS, &plain, &enqueue).await?;
    alternate(config.duration / 2, PRODUCERS, &plain, &enqueue).await
}

async fn wal_per_message(servers: &Servers, database: &str, messages: usize) -> anyhow::Result<f64> {
    let producers = Producers::connect(servers, database, Way::Enqueue, Arc::default()).await?;
    let producers = Arc::new(producers);
    let each = messages / PRODUCERS;
    let session = servers.session(database).await?;
    session.batch_execute("CHECKPOINT").await?;
    let last = servers.schema.sql("SELECT coalesce(pg_sequence_last_value('{schema}.message_id_seq'), 0)");
    let last: i64 = session.query_one(&last, &[]).await?.get(0);
    let before = wal_position(&session).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..PRODUCERS {
        let producers = Arc::clone(&producers);
        tasks.spawn(async move {
            for _ in 0..each {
                producers.once(worker).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("run a producer")??;
    }
    let wal = wal_position(&session).await? - before;
    let enqueued: i64 =
        session.query_one(&servers.schema.sql(include_str!("sql/since.sql")), &[&last]).await?.get(0);
    let sent = each * PRODUCERS;
    ensure!(usize::try_from(enqueued)? == sent, "{enqueued} messages are in the log instead of {sent}");
    Ok(wal / sent as f64)
}

/// Bytes of WAL so far.
async fn wal_position(session: &Session) -> anyhow::Result<f64> {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

/// How fast a relay drains a backlog in a database with a history, against one without.
async fn drain(
    servers: &Servers,
    messages: usize,
    databases: [&str; 2],
    round: usize,
) -> anyhow::Result<f64> {
    let mut rates = [0.0; 2];
    let order = if round.is_multiple_of(2) { [0, 1] } else { [1, 0] };
    for side in order {
        let database = databases[side];
        settle(servers, database).await?;
        Backlog::add(servers, database, messages, Ordering::None).await?;
        rates[side] = head(servers, database, messages, None).await?;
    }
    tracing::info!("growth: drain {:.0}/s, with a history {:.0}/s", rates[0], rates[1]);
    Ok(rates[1] / rates[0])
}

async fn settle(servers: &Servers, database: &str) -> anyhow::Result<()> {
    let session = servers.session(database).await?;
    Ok(session.batch_execute(&servers.schema.sql(include_str!("sql/settle_by_hand.sql"))).await?)
}

/// Empties a segment, and removes rows of another one as they would be without the ring.
async fn retention(servers: &Servers, database: &str, report: &mut Report) -> anyhow::Result<()> {
    settle(servers, database).await?;
    let session = servers.session(database).await?;
    session.batch_execute("CHECKPOINT").await?;
    let (begun, before) = (Instant::now(), wal_position(&session).await?);
    let sql = servers.schema.sql("SELECT messages FROM {schema}.empty_segment(0)");
    let emptied = session.query_one(&sql, &[]).await?.get::<_, i64>(0) as f64;
    let time = begun.elapsed().as_secs_f64() / emptied;
    let wal = (wal_position(&session).await? - before) / emptied;
    session.batch_execute("CHECKPOINT").await?;
    let (begun, before) = (Instant::now(), wal_position(&session).await?);
    let sql = servers.schema.sql(
        "DELETE FROM {schema}.message_1 WHERE id IN (
           SELECT m.id FROM {schema}.message_1 AS m ORDER BY m.lane, m.id LIMIT 100000)",
    );
    let deleted = session.execute(&sql, &[]).await? as f64;
    session.batch_execute(&servers.schema.sql("VACUUM {schema}.message_1")).await?;
    let time_today = begun.elapsed().as_secs_f64() / deleted;
    let wal_today = (wal_position(&session).await? - before) / deleted;
    let behind = format!("{emptied:.0} emptied, {deleted:.0} deleted");
    report.add("growth_retention_wal_ratio", wal / wal_today, behind.clone());
    report.add("growth_retention_time_ratio", time / time_today, behind);
    Ok(())
}
