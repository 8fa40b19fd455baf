//! The consumer: the real inbox on a real stream, with effects that show which messages were
//! handled, how often, and in which order.

use anyhow::{Context as _, Result, bail};
use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Order, Outcome};
use oncebox_outbox::Message;
use oncebox_tests::Log;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber as _;

use crate::{broker::Broker, stage::STREAM};

const CONCURRENCY: usize = 8;
pub(crate) const DURABLE: &str = "effects";
const SUBJECT: &str = "faults.message";
pub(crate) const SUBJECTS: &str = "faults.>";

/// The effects.
pub(crate) const TABLE: &str = "CREATE TABLE effect (id bigserial PRIMARY KEY, key text NOT NULL)";

/// The payload of every message.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    /// Makes messages of many sizes.
    filler: String,
}

pub(crate) fn message(key: &str, rng: &mut fastrand::Rng) -> Result<Message> {
    let job = Job { filler: "x".repeat(rng.usize(0..2_000)) };
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
}

/// A consumer that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Consuming {
    inbox: Inbox,
    /// By those that were killed.
    absorbed_before: u64,
    shutdown: CancellationToken,
    task: JoinSet<Result<(), oncebox_inbox::Error>>,
}

impl Consuming {
    /// Its messages about its connection and its consumer go into the log.
    pub(crate) async fn start(pool: Pool, broker: &Broker, log: &Log, absorbed_before: u64) -> Result<Self> {
        let inbox = Inbox::builder(pool).scope("faults:effect").single_tenant().build()?;
        let shutdown = CancellationToken::new();
        let consumer = Consumer::new(broker.jetstream().await?, STREAM, DURABLE)
            .filter_subject(SUBJECTS)
            .order(Order::Strict)
            .concurrency(CONCURRENCY);
        let mut task = JoinSet::new();
        let consuming = consumer.run(inbox.clone(), Effect, shutdown.clone());
        task.spawn(consuming.with_subscriber(log.subscriber()));
        Ok(Self { inbox, absorbed_before, shutdown, task })
    }

    /// The error that it has ended with by itself, if it has; any other end is wrong.
    pub(crate) fn ended(&mut self) -> Result<Option<oncebox_inbox::Error>> {
        match self.task.try_join_next().transpose()? {
            None => Ok(None),
            Some(Err(error)) => Ok(Some(error)),
            Some(Ok(())) => bail!("the consumer has ended by itself"),
        }
    }

    /// How many duplicates have been absorbed so far.
    pub(crate) fn absorbed(&self) -> u64 {
        self.absorbed_before + self.inbox.counts().replayed
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
        Ok(self.absorbed())
    }
}

/// The keys of all effects, in the order in which they were written.
pub(crate) async fn effects(pool: &Pool) -> Result<Vec<String>> {
    let rows = pool.get().await?.query("SELECT key FROM effect ORDER BY id", &[]).await;
    Ok(rows.context("read the effects")?.iter().map(|row| row.get(0)).collect())
}

/// How many messages were committed, and how many have had an effect.
pub(crate) async fn progress(pool: &Pool) -> Result<(i64, i64)> {
    let sql = "SELECT (SELECT count(*) FROM placed), (SELECT count(DISTINCT key) FROM effect)";
    let row = pool.get().await?.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}
