//! Producers by the clock, a consumer, and how long each message took between them.
//!
//! A message that is late does not delay the time of the next, so a stall is seen by all messages
//! that it meets. One clock times both ends: from the moment at which COMMIT has returned to the
//! producer to the moment at which the consumer has the message. A carrier can be so fast that the
//! consumer is first; that counts as 0.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream::Stream,
};
use futures_util::StreamExt;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{backlog::PAYLOAD_BYTES, servers::Session, statistics::percentile};

const SUBJECT: &str = "bench.trickle";
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// How messages are produced.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Before the numbers, in the keys.
    pub(crate) prefix: String,
    /// Takes key, subject and payload.
    pub(crate) statement: String,
    /// Publishes by itself after COMMIT.
    pub(crate) publishes: Option<jetstream::Context>,
    /// Between two messages.
    pub(crate) interval: Duration,
    /// Messages in all, without the probe, which has the number 0.
    pub(crate) total: usize,
    pub(crate) start: Instant,
}

/// The latencies, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// How the messages flowed.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Of each message, by its number, from commit to delivery.
    milliseconds: Vec<(usize, f64)>,
    /// Messages that the producers committed a second.
    pub(crate) produced: f64,
}

impl Flow {
    /// Of some messages, by their numbers.
    pub(crate) fn latencies(&self, is_counted: impl Fn(usize) -> bool) -> Latencies {
        let counted = self.milliseconds.iter().filter(|(number, _)| is_counted(*number));
        let mut milliseconds: Vec<f64> = counted.map(|(_, milliseconds)| *milliseconds).collect();
        milliseconds.sort_by(f64::total_cmp);
        Latencies { p50: percentile(&milliseconds, 50), p99: percentile(&milliseconds, 99) }
    }
}

/// When COMMIT of one message returned, by the clock of this process.
#[derive(Clone, Copy)]
struct Commit {
    number: usize,
    returned: Instant,
}

/// One message before the others: when it has arrived, everything is connected.
pub(crate) async fn probe(session: &Session, plan: &Plan) -> anyhow::Result<()> {
    commit(session, &session.prepare(&plan.statement).await?, plan, 0).await.map(drop)
}

/// Lets the messages flow.
pub(crate) async fn flow(producers: Vec<Session>, stream: &Stream, plan: &Plan) -> anyhow::Result<Flow> {
    let mut tasks = JoinSet::new();
    let step = producers.len();
    for (first, session) in producers.into_iter().enumerate() {
        let plan = plan.clone();
        tasks.spawn(async move { produce(session, &plan, first + 1, step).await });
    }
    let received = receive(stream, plan.total).await?;
    let mut commits = Vec::with_capacity(plan.total);
    while let Some(producer) = tasks.join_next().await {
        commits.extend(producer.context("run a producer")??);
    }
    let last = commits.iter().map(|commit| commit.returned).max().unwrap_or(plan.start);
    let took = |commit: &Commit| received[commit.number].saturating_duration_since(commit.returned);
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 messages")]
    let produced = plan.total as f64 / (last - plan.start).as_secs_f64();
    let milliseconds = commits.iter().map(|commit| (commit.number, took(commit).as_secs_f64() * 1e3));
    Ok(Flow { milliseconds: milliseconds.collect(), produced })
}

/// Message n is due n intervals after the start; the producers take turns.
async fn produce(session: Session, plan: &Plan, first: usize, step: usize) -> anyhow::Result<Vec<Commit>> {
    let statement = session.prepare(&plan.statement).await?;
    let mut commits = Vec::with_capacity(plan.total / step + 1);
    for number in (first..=plan.total).step_by(step) {
        sleep_until(plan.start + plan.interval * u32::try_from(number)?).await;
        commits.push(commit(&session, &statement, plan, number).await?);
    }
    Ok(commits)
}

async fn commit(
    session: &Session,
    statement: &tokio_postgres::Statement,
    plan: &Plan,
    number: usize,
) -> anyhow::Result<Commit> {
    session.batch_execute("BEGIN").await?;
    let (key, payload) = (format!("{}{number}", plan.prefix), payload(number));
    session.execute(statement, &[&key, &SUBJECT, &payload.as_slice()]).await?;
    session.batch_execute("COMMIT").await?;
    let commit = Commit { number, returned: Instant::now() };
    if let Some(jetstream) = &plan.publishes {
        jetstream.publish(SUBJECT, payload.to_vec().into()).await?.await?;
    }
    Ok(commit)
}

/// When each message arrived, by its number. Every message must arrive, and once.
async fn receive(stream: &Stream, total: usize) -> anyhow::Result<Arc<[Instant]>> {
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
        received[number] = Some(now);
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
