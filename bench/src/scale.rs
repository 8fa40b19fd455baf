//! Loads that must not slow the relay down: a large backlog, many parked messages, and scrapes.
//!
//! Drains of the backlog by turns, alone, with a hundred thousand parked messages beside it, and
//! with a scrape of the metrics each second. Then the first hundred thousand messages of a backlog
//! of ten million, against a backlog that has no more than those. The clocks are nats-server's, as
//! in [`crate::drain`]. While the large backlog is drained the metrics are read too, and timed: a
//! scrape must not take longer beside a larger backlog.
//!
//! Filling the large backlog takes minutes and 6 GB of disk, so this is measured only when it is
//! asked for.

use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};

use crate::{
    backlog::{Backlog, Ordering, PAYLOAD_BYTES},
    config::Config,
    drain::{Beside, drain},
    inboxes,
    relay::Relay,
    report::Report,
    servers::{Servers, within},
    statistics::median,
};

const PARKED: usize = 100_000;
const TRANSACTION_MESSAGES: usize = 100_000;
const SCRAPES: usize = 20;
const SCRAPE_PAUSE: Duration = Duration::from_millis(50);

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    inboxes::measure(servers, config, report).await.context("count messages of inboxes")?;
    company(servers, config, report).await.context("drain beside something else")?;
    size(servers, config, report).await.context("drain a large backlog")
}

/// Drains beside parked messages, and beside scrapes.
async fn company(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let backlog = Backlog::fill(servers, config.messages, Ordering::None).await?;
    let database = servers.migrated().await?;
    fill(servers, &database, PARKED.min(config.messages), "lost.").await?;
    let session = servers.session(&database).await?;
    session.batch_execute(&servers.schema.sql(include_str!("sql/park.sql"))).await?;
    drop(session);
    let parked = Backlog::fill_into(servers, database, config.messages, Ordering::None).await?;
    let (mut beside_parked, mut beside_scrapes) = (Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let first = drain(servers, &backlog, Beside::Nothing).await?.rate;
        let (with_parked, with_scrapes) = if round.is_multiple_of(2) {
            let with_parked = drain(servers, &parked, Beside::ParkedMessages).await?.rate;
            (with_parked, drain(servers, &backlog, Beside::Scrapes).await?.rate)
        } else {
            let with_scrapes = drain(servers, &backlog, Beside::Scrapes).await?.rate;
            (drain(servers, &parked, Beside::ParkedMessages).await?.rate, with_scrapes)
        };
        let alone = f64::midpoint(first, drain(servers, &backlog, Beside::Nothing).await?.rate);
        tracing::info!(
            "scale: drain {alone:.0}/s, with parked messages {with_parked:.0}/s, with scrapes {with_scrapes:.0}/s"
        );
        beside_parked.push(with_parked / alone);
        beside_scrapes.push(with_scrapes / alone);
    }
    report.add("drain_parked_ratio", median(beside_parked), format!("{PARKED} parked, due within 5 minutes"));
    report.add("drain_scraped_ratio", median(beside_scrapes), "/metrics each second".to_owned());
    for database in [backlog.database, parked.database] {
        servers.drop_database(&database).await?;
    }
    Ok(())
}

/// Drains equal messages at the head of a large backlog, and alone.
async fn size(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let first = (config.backlog / 100).max(1_000);
    let (small, large) = (servers.migrated().await?, servers.migrated().await?);
    fill(servers, &small, first, "bench.").await?;
    tracing::info!("scale: enqueue {} messages", config.backlog);
    fill(servers, &large, config.backlog, "bench.").await?;
    let (mut ratios, mut scrapes) = (Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let copy = servers.copy_of(&small).await?;
        // The large one is not copied but shrinks a little with each round.
        let (of_small, of_large) = if round.is_multiple_of(2) {
            let of_small = head(servers, &copy, first, None).await?;
            (of_small, head(servers, &large, first, Some(&mut scrapes)).await?)
        } else {
            let of_large = head(servers, &large, first, Some(&mut scrapes)).await?;
            (head(servers, &copy, first, None).await?, of_large)
        };
        servers.drop_database(&copy).await?;
        tracing::info!(
            "scale: drain of {first} messages {of_small:.0}/s, in a large backlog {of_large:.0}/s"
        );
        ratios.push(of_large / of_small);
    }
    let behind = format!("the first {first} of {}, against {first}", config.backlog);
    report.add("drain_large_ratio", median(ratios), behind);
    report.add("scrape_large_ms", median(scrapes), format!("/metrics at {} messages", config.backlog));
    for database in [small, large] {
        servers.drop_database(&database).await?;
    }
    Ok(())
}

/// Messages with subjects that begin with `subject`, put into the log of a database.
pub(crate) async fn fill(
    servers: &Servers,
    database: &str,
    messages: usize,
    subject: &str,
) -> anyhow::Result<()> {
    let session = servers.session(database).await?;
    session.batch_execute("SET synchronous_commit = off").await?;
    let insert = session.prepare(&servers.schema.sql(include_str!("sql/fill_by_hand.sql"))).await?;
    let payload_bytes = i32::try_from(PAYLOAD_BYTES)?;
    for first in (1..=messages).step_by(TRANSACTION_MESSAGES) {
        let last = messages.min(first + TRANSACTION_MESSAGES - 1);
        let range = (i64::try_from(first)?, i64::try_from(last)?);
        session.execute(&insert, &[&range.0, &range.1, &payload_bytes, &subject]).await?;
    }
    for command in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        session.batch_execute(command).await?;
    }
    Ok(())
}

/// Messages per second, until the stream has a number of them; then how long each of some scrapes
/// took, in milliseconds.
pub(crate) async fn head(
    servers: &Servers,
    database: &str,
    messages: usize,
    scrapes: Option<&mut Vec<f64>>,
) -> anyhow::Result<f64> {
    let mut stream = servers.fresh_stream().await?;
    let mut relay = Relay::start(servers, database)?;
    within("the first messages", Duration::from_secs(120), async || {
        relay.check()?;
        Ok((stream.info().await?.state.messages >= messages as u64).then_some(()))
    })
    .await?;
    if let Some(scrapes) = scrapes {
        let scraper = relay.scraper();
        for _ in 0..SCRAPES {
            let start = Instant::now();
            scraper.scrape().await?;
            scrapes.push(start.elapsed().as_secs_f64() * 1e3);
            sleep(SCRAPE_PAUSE).await;
        }
    }
    relay.stop().await?;
    let stored =
        async |number: usize| stream.get_raw_message(number as u64).await.map(|message| message.time);
    let (first, last) = (stored(1).await?, stored(messages).await?);
    servers.delete_stream().await?;
    Ok((messages - 1) as f64 / (last - first).as_seconds_f64())
}
