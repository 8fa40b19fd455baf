//! The consumer: the real inbox on a real stream, with effects that show which messages were
//! handled, how often, and in which order.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Order, Outcome, Set};
use oncebox_outbox::Message;
use oncebox_tests::Log;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber as _;

use crate::{broker::Broker, stage::STREAM};

pub(crate) const DURABLE: &str = "effects";
const SUBJECT: &str = "faults.message";
pub(crate) const SUBJECTS: &str = "faults.>";

/// The effects.
pub(crate) const TABLE: &str = "
    CREATE TABLE effect (
        id bigserial PRIMARY KEY,
        key text NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )";

/// How the consumer handles messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handling {
    pub(crate) concurrency: usize,
    /// Messages that a worker takes together.
    pub(crate) batch: usize,
    /// How long the inbox keeps keys.
    pub(crate) retention: Option<Duration>,
}

/// The payload of every message.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    /// Makes messages of many sizes.
    filler: String,
}

pub(crate) fn message(key: &str, rng: &mut fastrand::Rng) -> Result<Message> {
    message_of(key, rng.usize(0..2_000))
}

/// One message in this number has a large payload, which lies in the bucket.
const LARGE_ONE_IN: usize = 200;

/// As `message`, and now and then with a large payload.
pub(crate) fn mixed_message(key: &str, rng: &mut fastrand::Rng) -> Result<Message> {
    if rng.usize(..LARGE_ONE_IN) == 0 { large_message(key) } else { message(key, rng) }
}

/// With a payload that lies in the bucket, when relays have one for more than 64 KiB.
pub(crate) fn large_message(key: &str) -> Result<Message> {
    message_of(key, 80_000)
}

/// Of a soak: small, and one in ten times as many is large.
pub(crate) fn small_message(key: &str, rng: &mut fastrand::Rng) -> Result<Message> {
    if rng.usize(..10 * LARGE_ONE_IN) == 0 {
        return large_message(key);
    }
    message_of(key, rng.usize(100..300))
}

fn message_of(key: &str, length: usize) -> Result<Message> {
    let job = Job { filler: "x".repeat(length) };
    Ok(Message::json(key.parse()?, SUBJECT.parse()?, &job)?)
}

struct Effect;

impl Handler for Effect {
    type Message = Job;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: Job) -> Result<Outcome<()>, HandlerError> {
        cx.transaction().execute("INSERT INTO effect (key) VALUES ($1)", &[&cx.key().as_str()]).await?;
        Ok(Outcome::done(()))
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Job>) -> Result<Vec<Outcome<()>>, HandlerError> {
        let keys: Vec<&str> = set.iter().map(|(cx, _)| cx.key().as_str()).collect();
        let sql = "INSERT INTO effect (key)
                   SELECT key FROM unnest($1::text[]) WITH ORDINALITY AS k (key, place) ORDER BY place";
        set.transaction().execute(sql, &[&keys]).await?;
        Ok(keys.iter().map(|_| Outcome::done(())).collect())
    }
}

/// How many deliveries ended in which way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deliveries {
    pub(crate) handled: u64,
    /// Duplicates.
    pub(crate) absorbed: u64,
}

/// A consumer that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Consuming {
    inbox: Inbox,
    /// By those that were killed.
    before: Deliveries,
    shutdown: CancellationToken,
    task: JoinSet<Result<(), oncebox_inbox::Error>>,
}

impl Consuming {
    /// Its messages about its connection and its consumer go into the log.
    pub(crate) async fn start(
        pool: Pool,
        broker: &Broker,
        log: &Log,
        handling: Handling,
        before: Deliveries,
    ) -> Result<Self> {
        let inbox = Inbox::builder(pool).scope("faults:effect").single_tenant().retention(handling.retention);
        let inbox = inbox.build()?;
        let shutdown = CancellationToken::new();
        let consumer = Consumer::new(broker.jetstream().await?, STREAM, DURABLE)
            .filter_subject(SUBJECTS)
            .order(Order::Strict)
            .concurrency(handling.concurrency)
            .batch(handling.batch);
        let mut task = JoinSet::new();
        let consuming = consumer.run(inbox.clone(), Effect, shutdown.clone());
        task.spawn(consuming.with_subscriber(log.subscriber()));
        Ok(Self { inbox, before, shutdown, task })
    }

    /// The error that it has ended with by itself, if it has; any other end is wrong.
    pub(crate) fn ended(&mut self) -> Result<Option<oncebox_inbox::Error>> {
        match self.task.try_join_next().transpose()? {
            None => Ok(None),
            Some(Err(error)) => Ok(Some(error)),
            Some(Ok(())) => bail!("the consumer has ended by itself"),
        }
    }

    /// So far, without those whose end a killed consumer did not learn.
    pub(crate) fn deliveries(&self) -> Deliveries {
        let (before, counts) = (self.before, self.inbox.counts());
        Deliveries { handled: before.handled + counts.handled, absorbed: before.absorbed + counts.replayed }
    }

    /// Drops it where it stands, as if its process had died.
    pub(crate) async fn kill(&mut self) {
        self.task.shutdown().await;
    }

    /// Ends it, and returns how many duplicates it has absorbed.
    pub(crate) async fn stop(&mut self) -> Result<u64> {
        self.shutdown.cancel();
        while let Some(ended) = self.task.join_next().await {
            ended?.context("consume")?;
        }
        Ok(self.deliveries().absorbed)
    }
}

/// The keys of all effects, in the order in which they were written.
pub(crate) async fn effects(pool: &Pool) -> Result<Vec<String>> {
    let rows = pool.get().await?.query("SELECT key FROM effect ORDER BY id", &[]).await;
    Ok(rows.context("read the effects")?.iter().map(|row| row.get(0)).collect())
}

/// How many messages were committed.
pub(crate) async fn committed(pool: &Pool) -> Result<i64> {
    Ok(pool.get().await?.query_one("SELECT count(*) FROM placed", &[]).await?.get(0))
}

/// How many effects there are.
pub(crate) async fn arrived(pool: &Pool) -> Result<i64> {
    Ok(pool.get().await?.query_one("SELECT count(*) FROM effect", &[]).await?.get(0))
}

/// A number that grows with each effect, and is found at once however many there are.
pub(crate) async fn latest(pool: &Pool) -> Result<i64> {
    Ok(pool.get().await?.query_one("SELECT coalesce(max(id), 0) FROM effect", &[]).await?.get(0))
}
