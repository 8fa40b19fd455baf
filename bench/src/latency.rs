//! How long a message takes from COMMIT to a consumer, at 1,000 messages a second.
//!
//! Sixteen producers in this process enqueue by the clock, each in a transaction of its own: a message that is
//! late does not delay the time of the next, so a stall is seen by all messages that it meets. A JetStream pull
//! consumer in this process receives them. One clock times both ends: from the moment at which COMMIT has returned
//! to the producer (`latency_*`) to the moment at which the consumer has the message. A relay can be so fast that
//! the consumer is first; that counts as 0. The same from just before COMMIT was sent, so with PostgreSQL's flush to
//! the disk, is reported beside it (`latency_before_commit_*`), and so is its last part, from the stream to the
//! consumer (`latency_after_storing_*`), which no relay can change.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};
use async_nats::jetstream::{
    consumer::{AckPolicy, pull},
    stream::Stream,
};
use futures_util::StreamExt;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    backlog::PAYLOAD_BYTES,
    config::Config,
    relay::Relay,
    report::Report,
    servers::{Servers, Session, within},
    statistics::{median, percentile},
};

const PRODUCERS: usize = 16;
const INTERVAL: Duration = Duration::from_millis(1);
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..config.rounds {
        let round = Round::take(servers, config.duration).await?;
        tracing::info!(
            "latency: p50 {:.2} ms (from the stream {:.2} ms), p99 {:.2} ms, worst {:.2} ms",
            round.after_commit.p50,
            round.after_storing.p50,
            round.after_commit.p99,
            round.after_commit.worst
        );
        rounds.push(round);
    }
    let median_of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let before_p50 = median_of(|round| round.before_commit.p50);
    let before_p99 = median_of(|round| round.before_commit.p99);
    let worst = median_of(|round| round.after_commit.worst);
    report.add(
        "latency_p50_ms",
        median_of(|round| round.after_commit.p50),
        format!("from before COMMIT {before_p50:.2}; 1,000 messages/s"),
    );
    report.add(
        "latency_p99_ms",
        median_of(|round| round.after_commit.p99),
        format!("from before COMMIT {before_p99:.2}; worst {worst:.2}"),
    );
    report.add(
        "latency_relay_cpu_percent",
        median_of(|round| round.cpu_percent),
        "user and kernel time, at 1,000 messages/s".to_owned(),
    );
    report.detail("latency_after_storing_p50_ms", median_of(|round| round.after_storing.p50));
    report.detail("latency_after_storing_p99_ms", median_of(|round| round.after_storing.p99));
    report.detail("latency_before_commit_p50_ms", before_p50);
    report.detail("latency_before_commit_p99_ms", before_p99);
    report.detail("latency_worst_ms", worst);
    Ok(())
}

struct Round {
    after_commit: Latencies,
    before_commit: Latencies,
    /// The last part of it: from the moment at which the stream stored the message.
    after_storing: Latencies,
    /// Of the relay, in per cent of one core.
    cpu_percent: f64,
}

/// In milliseconds.
struct Latencies {
    p50: f64,
    p99: f64,
    worst: f64,
}

/// The arrival of one message.
#[derive(Clone, Copy)]
struct Arrival {
    at: Instant,
    /// Since the stream stored it, by the system's clock, which nats-server shares with us.
    after_storing: Duration,
}

/// The times of one message, by the clock of this process.
#[derive(Clone, Copy)]
struct Commit {
    number: usize,
    sent: Instant,
    returned: Instant,
}

impl Round {
    async fn take(servers: &Servers, length: Duration) -> anyhow::Result<Self> {
        let database = servers.migrated().await?;
        let mut stream = servers.fresh_stream().await?;
        let mut relay = Relay::start(servers, &database)?;
        let mut producers = Vec::new();
        for _ in 0..PRODUCERS {
            producers.push(servers.session(&database).await?);
        }
        // The probe has the number 0.
        let probe = servers.schema.sql(include_str!("sql/enqueue.sql"));
        producers[0].execute(&probe, &[&"0", &"bench.latency", &payload(0).as_slice()]).await?;
        within("the relay to deliver its first message", DELIVERY_LIMIT, async || {
            relay.check()?;
            Ok((stream.info().await?.state.messages == 1).then_some(()))
        })
        .await?;

        let warm_up = length / 5;
        let total = count(warm_up + length);
        let start = Instant::now() + Duration::from_millis(50);
        let cpu_before = relay.cpu()?;
        let mut tasks = JoinSet::new();
        for (number, session) in producers.into_iter().enumerate() {
            let enqueue = Arc::new(session.prepare(&probe).await?);
            tasks.spawn(async move { produce(session, &enqueue, number, total, start).await });
        }
        let received = receive(&stream, total).await?;
        let mut commits = Vec::with_capacity(total);
        while let Some(producer) = tasks.join_next().await {
            commits.extend(producer.context("run a producer")??);
        }
        let cpu = relay.cpu()? - cpu_before;
        let cpu_percent = 100.0 * cpu.as_secs_f64() / start.elapsed().as_secs_f64();
        relay.stop().await?;
        servers.delete_stream().await?;
        servers.drop_database(&database).await?;

        let warm = count(warm_up);
        commits.retain(|commit| commit.number > warm);
        let latencies = |from: fn(&Commit) -> Instant| {
            Latencies::of(
                commits.iter().map(|commit| received[commit.number].at.duration_since(from(commit))),
            )
        };
        Ok(Self {
            after_commit: latencies(|commit| commit.returned),
            before_commit: latencies(|commit| commit.sent),
            after_storing: Latencies::of(commits.iter().map(|commit| received[commit.number].after_storing)),
            cpu_percent,
        })
    }
}

impl Latencies {
    fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let mut milliseconds: Vec<f64> = durations.map(|duration| duration.as_secs_f64() * 1e3).collect();
        milliseconds.sort_by(f64::total_cmp);
        Self {
            p50: percentile(&milliseconds, 50),
            p99: percentile(&milliseconds, 99),
            worst: percentile(&milliseconds, 100),
        }
    }
}

/// How many messages are due in so long a time.
fn count(length: Duration) -> usize {
    usize::try_from(length.as_micros() / INTERVAL.as_micros()).unwrap_or(usize::MAX)
}

/// Message n is due n intervals after `start`; the producers take turns.
async fn produce(
    session: Session,
    enqueue: &tokio_postgres::Statement,
    producer: usize,
    total: usize,
    start: Instant,
) -> anyhow::Result<Vec<Commit>> {
    let mut commits = Vec::with_capacity(total / PRODUCERS + 1);
    for number in (producer + 1..=total).step_by(PRODUCERS) {
        sleep_until(start + INTERVAL * u32::try_from(number)?).await;
        session.batch_execute("BEGIN").await?;
        let (key, payload) = (number.to_string(), payload(number));
        session.execute(enqueue, &[&key, &"bench.latency", &payload.as_slice()]).await?;
        let sent = Instant::now();
        session.batch_execute("COMMIT").await?;
        commits.push(Commit { number, sent, returned: Instant::now() });
    }
    Ok(commits)
}

/// When each message arrived, by its number. Every message must arrive.
async fn receive(stream: &Stream, total: usize) -> anyhow::Result<Vec<Arrival>> {
    let consumer =
        pull::Config { ack_policy: AckPolicy::None, memory_storage: true, ..pull::Config::default() };
    let consumer = stream.create_consumer(consumer).await.context("create the consumer")?;
    let mut messages = consumer.messages().await.context("pull messages")?;
    let mut received = vec![None; total + 1];
    let mut missing = total + 1;
    while missing > 0 {
        let message = timeout(DELIVERY_LIMIT, messages.next())
            .await
            .with_context(|| format!("{missing} messages are missing and none came for {DELIVERY_LIMIT:?}"))?
            .context("the consumer ended")??;
        let now = Instant::now();
        let number = number(&message.payload).context("read a number from the payload")?;
        ensure!(received[number].is_none(), "message {number} was delivered twice");
        let stored: SystemTime = message.info().map_err(anyhow::Error::from_boxed)?.published.into();
        let after_storing = SystemTime::now().duration_since(stored).unwrap_or_default();
        received[number] = Some(Arrival { at: now, after_storing });
        missing -= 1;
    }
    Ok(received.into_iter().flatten().collect())
}

/// A payload that names its message.
fn payload(number: usize) -> [u8; PAYLOAD_BYTES] {
    let mut payload = [b'x'; PAYLOAD_BYTES];
    payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
    payload
}

fn number(payload: &[u8]) -> Option<usize> {
    let bytes = payload.first_chunk::<8>()?;
    usize::try_from(u64::from_be_bytes(*bytes)).ok()
}
