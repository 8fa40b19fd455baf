//! The cost of the orchestrator: its four transactions of a saga against the same four written by
//! hand, and against themselves where the tables hold many other instances.
//!
//! No messages are on the way: the worker that started a saga gives it its answers, one after
//! another. So only transactions are compared, with sixteen workers on the same processors as
//! PostgreSQL. While sagas are led beside others, deadlines are watched as well.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use super::led::{ByHand, Led};
use crate::{
    config::Config,
    inbox::pool,
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Rates, alternate},
};

const WORKERS: usize = 16;
const TRANSACTION_SAGAS: usize = 50_000;

/// Takes all rounds.
pub(super) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    let (mut by_hand, mut beside_finished, mut beside_running) = (Vec::new(), Vec::new(), Vec::new());
    // A million and 100,000 with the default sizes.
    let (finished, running) = (config.messages * 10 / 3, config.messages / 3);
    for _ in 0..config.rounds {
        by_hand.push(against_hand(servers, config.duration).await?);
        beside_finished.push(beside(servers, config.duration, finished, true).await?);
        beside_running.push(beside(servers, config.duration, running, false).await?);
    }
    let of = |rounds: &[Rates], value: fn(&Rates) -> f64| median(rounds.iter().map(value));
    let rates = |rounds: &[Rates]| {
        let (reference, measured) = (of(rounds, |rates| rates.reference), of(rounds, |rates| rates.measured));
        format!("{measured:.0}/s, reference {reference:.0}/s")
    };
    report.add("saga_cost_ratio", of(&by_hand, |rates| rates.reference / rates.measured), rates(&by_hand));
    let behind = format!("{finished} finished: {}", rates(&beside_finished));
    report.add("saga_finished_ratio", of(&beside_finished, |rates| rates.ratio()), behind);
    let behind = format!("{running} running: {}", rates(&beside_running));
    report.add("saga_running_ratio", of(&beside_running, |rates| rates.ratio()), behind);
    Ok(())
}

async fn against_hand(servers: &Servers, length: Duration) -> Result<Rates> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(include_str!("../sql/hand_tables.sql")).await?;
    let by_hand = Arc::new(ByHand::new(servers, pool(servers, &database, WORKERS)?));
    let led = Arc::new(Led::new(pool(servers, &database, WORKERS)?)?);
    let rates = alternate(length, WORKERS, &by_hand, &led).await?;
    completed(servers, &database, &led).await?;
    tracing::info!("saga cost: by hand {:.0}/s, orchestrator {:.0}/s", rates.reference, rates.measured);
    drop((by_hand, led, session));
    servers.drop_database(&database).await?;
    Ok(rates)
}

async fn beside(servers: &Servers, length: Duration, others: usize, are_finished: bool) -> Result<Rates> {
    let (empty, full) = (servers.migrated().await?, servers.migrated().await?);
    let session = servers.session(&full).await?;
    // Only the tables themselves refer to these rows: no key is checked.
    session.batch_execute("SET synchronous_commit = off; SET session_replication_role = replica").await?;
    let fill = session.prepare(&servers.schema.sql(include_str!("../sql/fill_sagas.sql"))).await?;
    for first in (1..=others).step_by(TRANSACTION_SAGAS) {
        let last = others.min(first + TRANSACTION_SAGAS - 1);
        session.execute(&fill, &[&i64::try_from(first)?, &i64::try_from(last)?, &are_finished]).await?;
    }
    for command in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        session.batch_execute(command).await?;
    }
    let alone = Arc::new(Led::new(pool(servers, &empty, WORKERS + 1)?)?);
    let beside = Arc::new(Led::new(pool(servers, &full, WORKERS + 1)?)?);
    let mut watching = JoinSet::new();
    for led in [&alone, &beside] {
        let led = Arc::clone(led);
        watching.spawn(async move { led.watch().await });
    }
    let rates = alternate(length, WORKERS, &alone, &beside).await?;
    watching.shutdown().await;
    completed(servers, &empty, &alone).await?;
    completed(servers, &full, &beside).await?;
    tracing::info!(
        "saga beside {others}, finished {are_finished}: {:.0}/s, alone {:.0}/s",
        rates.measured,
        rates.reference
    );
    drop((alone, beside, session));
    for database in [empty, full] {
        servers.drop_database(&database).await?;
    }
    Ok(rates)
}

/// Every saga that was counted is completed in the database, and no other was begun.
async fn completed(servers: &Servers, database: &str, led: &Led) -> Result<()> {
    let sql = "SELECT count(*) FILTER (WHERE state = 'completed') FROM {schema}.saga WHERE type = 'bench'";
    let session = servers.session(database).await?;
    let found: i64 = session.query_one(&servers.schema.sql(sql), &[]).await?.get(0);
    ensure!(found == led.completed(), "{found} sagas are completed instead of {}", led.completed());
    Ok(())
}
