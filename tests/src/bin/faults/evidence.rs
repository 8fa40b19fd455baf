//! Collects the evidence when a scenario fails, since it may not fail again when a developer
//! investigates it.

use std::time::Duration;

use anyhow::Result;
use oncebox_tests::{Log, tail};
use tokio::time::timeout;

use crate::{consumer, stage::Stage};

const ASK_MAX: Duration = Duration::from_secs(10);

/// Prints where the messages are, and the last lines of relays and consumer.
pub(crate) async fn print(stage: &Stage<'_>) {
    stage.say.say(format_args!("PostgreSQL: {}", answer(database(stage)).await));
    stage.say.say(format_args!("the stream: {}", answer(stream(stage)).await));
    stage.say.say(format_args!("its consumer: {}", answer(durable(stage)).await));
    for (number, relay) in (1..).zip(&stage.relays) {
        stage.say.say(format_args!("the last lines of relay {number}:\n{}", relay.tail()));
    }
    for (number, node) in (1..).zip(stage.broker.nodes()) {
        let log = node.log();
        // A node says several times a second that another is away.
        let lines: Vec<_> =
            log.lines().filter(|line| !line.contains("Error trying to connect to route")).collect();
        stage.say.say(format_args!("the last lines of nats-server {number}:\n{}", tail(&lines.join("\n"))));
    }
    stage.say.say(format_args!("the last lines of the consumer:\n{}", tail(&Log::text(&stage.log))));
}

async fn answer(asked: impl Future<Output = Result<String>>) -> String {
    match timeout(ASK_MAX, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("no answer within {ASK_MAX:?}"),
    }
}

async fn database(stage: &Stage<'_>) -> Result<String> {
    let (committed, arrived) =
        (consumer::committed(&stage.pool).await?, consumer::arrived(&stage.pool).await?);
    let sql = "SELECT (SELECT count(*) FROM oncebox.parked), (SELECT count(*) FROM oncebox.inbox)";
    let row = stage.pool.get().await?.query_one(sql, &[]).await?;
    let (parked, handled): (i64, i64) = (row.get(0), row.get(1));
    Ok(format!(
        "{committed} messages committed, {parked} parked, {handled} keys in the inbox, {arrived} arrived"
    ))
}

async fn stream(stage: &Stage<'_>) -> Result<String> {
    let info = stage.stream.get_info().await?;
    Ok(format!("{:?}; {:?}", info.state, info.cluster))
}

async fn durable(stage: &Stage<'_>) -> Result<String> {
    Ok(format!("{:?}", stage.stream.consumer_info(consumer::DURABLE).await?))
}
