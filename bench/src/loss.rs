//! A loss of acknowledged messages: how soon the relay sends them again, and the cost of the search
//! for losses.
//!
//! A hundred thousand messages are delivered after nats-server's store was copied; then the server
//! is killed, and starts again with the copy. The clock runs from the moment when it answers, so a
//! relay that waits before it connects again pays for that, until the stream has all messages.
//!
//! Every start of a relay checks all streams that it knows before it publishes. So two relays are
//! started by turns, on two databases with a hundred lanes each: in the one all lanes have
//! receipts of ten streams, in the other none has. Each start is timed until a message that waited
//! arrives; the difference is the check. It is measured with lanes that have not moved since the
//! last check, and as if all had.
//!
//! The cost of receipts is PostgreSQL's own account of a drain: the time that it took for the
//! statement that appends them, of the time that it took for all statements of the relay.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::jetstream::{self, stream::Config as StreamConfig};
use futures_util::StreamExt as _;
use oncebox_schema::Lanes;
use tokio::time::{Instant, timeout};

use crate::{
    backlog::PAYLOAD_BYTES,
    config::Config,
    relay::Relay,
    report::Report,
    servers::{STREAM, SUBJECTS, Servers, within},
    statistics::median,
};

const BEFORE: i64 = 1_000;
const LOST: i64 = 100_000;
const TRANSACTION_MESSAGES: i64 = 1_000;
const LANES: u16 = 100;
const STREAMS: usize = 10;
/// Enough for each lane to have some in each stream.
const SETTLED: i64 = 20_000;
const STARTS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);

/// Takes all rounds.
pub(crate) async fn measure(
    servers: &mut Servers,
    config: &Config,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut repairs = Vec::new();
    for _ in 0..config.rounds {
        repairs.push(repair(servers).await.context("lose the end of the stream")?);
    }
    report.add("loss_repair_seconds", median(repairs.iter().copied()), format!("{LOST} messages"));
    servers.delete_stream().await?;
    let [still, moved, without] = check(servers, config.rounds).await.context("check many lanes")?;
    for (name, with) in [("loss_check_ms", still), ("loss_check_moved_ms", moved)] {
        let behind = format!("{with:.0} ms from a start to a message, {without:.0} ms without receipts");
        report.add(name, with - without, behind);
    }
    let mut shares = Vec::new();
    for _ in 0..config.rounds {
        shares.push(cost(servers).await.context("drain with receipts")?);
    }
    report.add("receipts_percent", median(shares.iter().copied()), format!("{LOST} messages"));
    Ok(())
}

/// The part of PostgreSQL's time for the relay's statements, in percent, that receipts take in a
/// drain.
async fn cost(servers: &Servers) -> anyhow::Result<f64> {
    let database = servers.migrated().await?;
    servers.fresh_stream().await?;
    fill(servers, &database, 1, LOST).await?;
    let log = format!("ALTER DATABASE {database} SET log_min_duration_statement = 0");
    servers.admin().await?.batch_execute(&log).await?;
    let relay = Relay::start(servers, &database)?;
    await_messages(servers, LOST).await?;
    relay.stop().await?;
    servers.drop_database(&database).await?;
    servers.delete_stream().await?;
    let statements = servers.statements(&database);
    let all: f64 = statements.iter().map(|(_, milliseconds)| milliseconds).sum();
    let receipts = statements.iter().filter(|(text, _)| text.contains("-- Append receipts:"));
    let times: Vec<f64> = receipts.map(|(_, milliseconds)| *milliseconds).collect();
    ensure!(!times.is_empty(), "PostgreSQL's log has no statement that appends receipts");
    let taken: f64 = times.iter().sum();
    tracing::info!("receipts: {taken:.1} of {all:.1} ms of PostgreSQL, in {} steps", times.len());
    Ok(100.0 * taken / all)
}

async fn repair(servers: &mut Servers) -> anyhow::Result<f64> {
    let database = servers.migrated().await?;
    servers.fresh_stream().await?;
    let relay = Relay::start(servers, &database)?;
    fill(servers, &database, 1, BEFORE).await?;
    await_messages(servers, BEFORE).await?;
    servers.back_up_nats().await?;
    fill(servers, &database, BEFORE + 1, BEFORE + LOST).await?;
    await_messages(servers, BEFORE + LOST).await?;
    servers.roll_back_nats().await?;
    let start = Instant::now();
    let there = await_messages(servers, BEFORE + LOST).await?;
    let took = start.elapsed();
    ensure!(there == BEFORE + LOST, "{there} messages are in the stream instead of {}", BEFORE + LOST);
    relay.stop().await?;
    servers.drop_database(&database).await?;
    tracing::info!(
        "loss: {LOST} messages were sent again {:.2} s after nats-server was back",
        took.as_secs_f64()
    );
    Ok(took.as_secs_f64())
}

/// Returns how many there are.
async fn await_messages(servers: &Servers, messages: i64) -> anyhow::Result<i64> {
    let mut stream = jetstream::new(servers.nats().await?).get_stream(STREAM).await?;
    within("all messages", LIMIT, async || {
        let there = stream.info().await?.state.messages.cast_signed();
        Ok((there >= messages).then_some(there))
    })
    .await
}

/// Milliseconds from the start of a relay to its first message: with receipts of lanes that have
/// not moved since the last check, of lanes that have, and without receipts.
async fn check(servers: &Servers, rounds: usize) -> anyhow::Result<[f64; 3]> {
    let jetstream = jetstream::new(servers.nats().await?);
    for number in 0..STREAMS {
        // The backlog has sixteen subjects.
        let numbers = if number + 1 < STREAMS { number..=number } else { number..=15 };
        let config = StreamConfig {
            name: format!("BENCH_{number}"),
            subjects: numbers.map(|subject| format!("bench.orders.{subject}")).collect(),
            ..StreamConfig::default()
        };
        jetstream.create_stream(config).await?;
    }
    let lanes = Lanes::new(LANES).context("lanes")?;
    let databases = [servers.migrated_with(lanes).await?, servers.migrated_with(lanes).await?];
    fill(servers, &databases[0], 1, SETTLED).await?;
    let relay = Relay::start(servers, &databases[0])?;
    within("all messages", LIMIT, async || {
        let mut there = 0;
        for number in 0..STREAMS {
            there += jetstream.get_stream(format!("BENCH_{number}")).await?.cached_info().state.messages;
        }
        Ok((there >= SETTLED.cast_unsigned()).then_some(()))
    })
    .await?;
    relay.stop().await?;
    // The first start checks the messages since the one before.
    start(servers, &databases[0], "0").await?;
    let mut taken = [const { Vec::new() }; 3];
    let starts = [(&databases[0], "1 hour"), (&databases[0], "0"), (&databases[1], "0")];
    for _ in 0..rounds * STARTS {
        for ((database, ago), taken) in starts.iter().zip(&mut taken) {
            taken.push(start(servers, database, ago).await?);
        }
    }
    for database in &databases {
        servers.drop_database(database).await?;
    }
    for number in 0..STREAMS {
        jetstream.delete_stream(format!("BENCH_{number}")).await?;
    }
    Ok(taken.map(median))
}

/// Of a relay whose lanes last moved this long ago.
async fn start(servers: &Servers, database: &str, ago: &str) -> anyhow::Result<f64> {
    fill(servers, database, 1, 1).await?;
    let session = servers.session(database).await?;
    let moved = include_str!("sql/moved.sql").replace("{ago}", ago);
    session.batch_execute(&servers.schema.sql(&moved)).await?;
    let client = servers.nats().await?;
    let mut messages = client.subscribe(SUBJECTS).await?;
    client.flush().await?;
    let begun = Instant::now();
    let relay = Relay::start(servers, database)?;
    timeout(LIMIT, messages.next()).await.context("wait for the message")?;
    let took = begun.elapsed();
    relay.stop().await?;
    Ok(took.as_secs_f64() * 1e3)
}

async fn fill(servers: &Servers, database: &str, first: i64, last: i64) -> anyhow::Result<()> {
    let session = servers.session(database).await?;
    let fill = session.prepare(&servers.schema.sql(include_str!("sql/fill.sql"))).await?;
    let mut from = first;
    while from <= last {
        let to = last.min(from + TRANSACTION_MESSAGES - 1);
        session.execute(&fill, &[&from, &to, &None::<i64>, &i32::try_from(PAYLOAD_BYTES)?]).await?;
        from = to + 1;
    }
    Ok(())
}
