//! The cost of a relay without work: processor time in per cent of one core.
//!
//! The relay has delivered one message, so it is connected and has been at work; then no message is
//! enqueued. After a pause in which it may calm down, its user and kernel time is read twice.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    config::Config,
    relay::Relay,
    report::Report,
    servers::{Servers, within},
    statistics::median,
};

const CALM: Duration = Duration::from_secs(2);
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..config.rounds {
        let round = take(servers, config.duration / 2).await?;
        tracing::info!("idle: {round:.2} % of a core");
        rounds.push(round);
    }
    report.add("relay_idle_cpu_percent", median(rounds), "user and kernel time".to_owned());
    Ok(())
}

async fn take(servers: &Servers, length: Duration) -> anyhow::Result<f64> {
    let database = servers.migrated().await?;
    let mut stream = servers.fresh_stream().await?;
    let mut relay = Relay::start(servers, &database)?;
    let producer = servers.session(&database).await?;
    let enqueue = servers.schema.sql(include_str!("sql/enqueue.sql"));
    producer.execute(&enqueue, &[&"probe", &"bench.idle", &b"x".as_slice()]).await?;
    within("the relay to deliver its first message", DELIVERY_LIMIT, async || {
        relay.check()?;
        Ok((stream.info().await?.state.messages == 1).then_some(()))
    })
    .await?;
    tokio::time::sleep(CALM).await;
    let (start, before) = (Instant::now(), relay.cpu()?);
    tokio::time::sleep(length).await;
    let (elapsed, used) = (start.elapsed(), relay.cpu()? - before);
    relay.stop().await?;
    servers.delete_stream().await?;
    servers.drop_database(&database).await?;
    Ok(100.0 * used.as_secs_f64() / elapsed.as_secs_f64())
}
