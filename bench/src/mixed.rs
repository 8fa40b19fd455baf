//! A hot key: one message in five has the same ordering key, at a thousand messages a second. Do
//! the others notice it?
//!
//! Both sides count the same messages, the four in five that have an ordering key of their own.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    config::Config,
    relay::Relay,
    report::Report,
    servers::{Servers, within},
    statistics::median,
    traffic::{self, Latencies, Plan},
};

const RATE: u32 = 1_000;
const PRODUCERS: usize = 16;
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Round {
    others: Latencies,
    /// Of every fifth message, hot or not.
    fifth: Latencies,
}

/// One of the figures of a round.
type Value = fn(&Round) -> f64;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let statements = [include_str!("sql/enqueue_ordered.sql"), include_str!("sql/enqueue_mixed.sql")];
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for turn in 0..config.rounds {
        for step in 0..2 {
            let side = (turn + step) % 2;
            let round = take(servers, statements[side], config.duration).await?;
            tracing::info!("{}: {round:?}", ["without a hot key", "with a hot key"][side]);
            rounds[side].push(round);
        }
    }
    let of = |side: usize, value: Value| median(rounds[side].iter().map(value));
    let (p50, p99): (Value, Value) = (|r| r.others.p50, |r| r.others.p99);
    for (key, value) in [("mixed_p50_ratio", p50), ("mixed_p99_ratio", p99)] {
        let (hot, even) = (of(1, value), of(0, value));
        report.add(key, hot / even, format!("{hot:.2} ms and {even:.2} ms"));
    }
    report.detail("mixed_hot_key_p50_ms", of(1, |round| round.fifth.p50));
    report.detail("mixed_hot_key_p99_ms", of(1, |round| round.fifth.p99));
    Ok(())
}

async fn take(servers: &Servers, statement: &str, length: Duration) -> anyhow::Result<Round> {
    let database = servers.migrated().await?;
    let mut stream = servers.fresh_stream().await?;
    let mut relay = Relay::start(servers, &database)?;
    let interval = Duration::from_secs(1) / RATE;
    let total = usize::try_from(length.as_micros() / interval.as_micros())?;
    let statement = servers.schema.sql(statement);
    let start = Instant::now();
    let mut plan = Plan { prefix: String::new(), statement, publishes: None, interval, total, start };
    let producers = servers.sessions(&database, PRODUCERS).await?;
    traffic::probe(&producers[0], &plan).await?;
    within("the first message to arrive", DELIVERY_LIMIT, async || {
        relay.check()?;
        Ok((stream.info().await?.state.messages == 1).then_some(()))
    })
    .await?;
    plan.start = Instant::now() + Duration::from_millis(50);
    let flow = traffic::flow(producers, &stream, &plan).await?;
    relay.stop().await?;
    servers.delete_stream().await?;
    servers.drop_database(&database).await?;
    let is_late = |number: usize| number > total / 5;
    Ok(Round {
        others: flow.latencies(|number| is_late(number) && number % 5 > 0),
        fifth: flow.latencies(|number| is_late(number) && number % 5 == 0),
    })
}
