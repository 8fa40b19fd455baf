//! Delayed messages that are all due at one moment, against as many ordinary ones.
//!
//! Both lie in the database when the relay starts, and both are timed by nats-server's clock, from
//! the first message that it stores to the last. A delayed message is moved into the log first, so
//! it is written twice more; the rest of its way is the same.

use anyhow::{Result, ensure};

use crate::{
    backlog::PAYLOAD_BYTES, config::Config, report::Report, scale, servers::Servers, statistics::median,
};

const DELAYED_MAX: usize = 100_000;
const TRANSACTION_MESSAGES: usize = 10_000;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    let messages = config.messages.min(DELAYED_MAX);
    let (ordinary, delayed) = (servers.migrated().await?, servers.migrated().await?);
    scale::fill(servers, &ordinary, messages, "bench.").await?;
    fill(servers, &delayed, messages).await?;
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let (first, second) =
            if round.is_multiple_of(2) { (&ordinary, &delayed) } else { (&delayed, &ordinary) };
        let (first, second) =
            (drained(servers, first, messages).await?, drained(servers, second, messages).await?);
        let (of_ordinary, of_delayed) =
            if round.is_multiple_of(2) { (first, second) } else { (second, first) };
        tracing::info!("delayed: {of_delayed:.0}/s, ordinary messages {of_ordinary:.0}/s");
        ratios.push(of_delayed / of_ordinary);
        rates.push(of_delayed);
    }
    let behind = format!("{:.0}/s, {messages} due at one moment", median(rates));
    report.add("delayed_drain_ratio", median(ratios), behind);
    for database in [ordinary, delayed] {
        servers.drop_database(&database).await?;
    }
    Ok(())
}

async fn drained(servers: &Servers, database: &str, messages: usize) -> Result<f64> {
    let copy = servers.copy_of(database).await?;
    let rate = scale::head(servers, &copy, messages, None).await?;
    servers.drop_database(&copy).await?;
    Ok(rate)
}

/// Enqueued for later through the API; then their time is now.
async fn fill(servers: &Servers, database: &str, messages: usize) -> Result<()> {
    let session = servers.session(database).await?;
    session.batch_execute("SET synchronous_commit = off").await?;
    let enqueue = session.prepare(&servers.schema.sql(include_str!("sql/enqueue_at.sql"))).await?;
    let payload_bytes = i32::try_from(PAYLOAD_BYTES)?;
    for first in (1..=messages).step_by(TRANSACTION_MESSAGES) {
        let last = messages.min(first + TRANSACTION_MESSAGES - 1);
        let range = (i64::try_from(first)?, i64::try_from(last)?);
        session.execute(&enqueue, &[&range.0, &range.1, &payload_bytes]).await?;
    }
    let due = servers.schema.sql("UPDATE {schema}.delayed SET not_before = (SELECT clock_timestamp())");
    ensure!(session.execute(&due, &[]).await? == messages as u64, "not all messages are delayed");
    for command in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        session.batch_execute(command).await?;
    }
    Ok(())
}
