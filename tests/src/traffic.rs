//! Producers: transactions of many sizes, ordered and unordered messages, rollbacks, and a table of
//! the committed messages.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::{consumer::pull::OrderedConfig, stream::Stream};
use deadpool_postgres::Pool;
use fastrand::Rng;
use futures_util::{Stream as Items, StreamExt};
use oncebox_outbox::{Message, Outbox};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_postgres::Transaction;

use crate::{Patience, verdict::Placed};

/// The business tables: the committed messages.
pub const TABLES: &str = "
    CREATE TABLE entity (id int PRIMARY KEY, place bigint NOT NULL);
    INSERT INTO entity SELECT n, 0 FROM generate_series(0, 39) AS n;
    CREATE TABLE placed (key text NOT NULL, entity int, place bigint);";

/// Makes the message for a key, always the same one, without an ordering key.
pub type Make = fn(&str, &mut Rng) -> Result<Message>;

const PRODUCERS: usize = 4;
const ENTITIES: i32 = 40;
/// The pause after a failed transaction: PostgreSQL may be away.
const RETRY: Duration = Duration::from_millis(100);
/// The most commits that are remembered, if they are not taken.
const COMMITS_MAX: usize = 1_000_000;
/// How long a stream that is read may give no message.
const READ_MAX: Duration = Duration::from_secs(30);

/// A load that stays the same until `messages` messages are committed.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Messages a second, of all producers together, with those that are rolled back. After an
    /// outage they hurry until they have made up for it.
    pub rate: u32,
    /// How many producers there are.
    pub producers: usize,
    /// They end when this number of messages, or a few more, are committed.
    pub messages: u64,
}

/// A transaction whose commit was answered.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Of the transaction's first message; it ends with `-0`.
    pub key: String,
    /// From the wait for a connection to the answer.
    pub took: Duration,
    /// When the answer came.
    pub at: SystemTime,
}

/// How the producers work; may be changed while they do.
#[derive(Debug, Default)]
struct Pace {
    /// No pauses, and large transactions, so that faults happen to full batches.
    rush: AtomicBool,
    /// Producers use PREPARE TRANSACTION, then COMMIT PREPARED.
    two_phase: AtomicBool,
    /// Transactions that PostgreSQL did not prepare.
    unprepared: AtomicU64,
    /// Messages of transactions whose commit was answered.
    committed: AtomicU64,
    /// These transactions, of a steady load, until the test takes them.
    commits: Mutex<Vec<Commit>>,
    /// Why the last transaction failed.
    error: Mutex<Option<String>>,
    stop: AtomicBool,
}

/// Producers that run until they are stopped.
#[derive(Debug)]
pub struct Producing {
    pace: Arc<Pace>,
    producers: JoinSet<()>,
}

impl Producing {
    /// Starts producers that together enqueue about `rate` messages a second, in transactions of at
    /// most a dozen; one transaction in ten is rolled back. Keys are `pPRODUCER-TRANSACTION-N`. All
    /// random choices follow from the seed.
    #[must_use]
    pub fn start(pool: &Pool, rate: u32, make: Make, seed: u64) -> Self {
        Self::start_all(pool, Load { rate, producers: PRODUCERS, steady: None }, make, seed)
    }

    /// Starts producers of a steady load, in transactions of 10 to 50 messages, which do not rush.
    /// Otherwise as [`Producing::start`].
    #[must_use]
    pub fn start_steady(pool: &Pool, steady: Steady, make: Make, seed: u64) -> Self {
        let Steady { rate, producers, messages } = steady;
        Self::start_all(pool, Load { rate, producers, steady: Some(messages) }, make, seed)
    }

    fn start_all(pool: &Pool, load: Load, make: Make, seed: u64) -> Self {
        let pace = Arc::new(Pace::default());
        let mut producers = JoinSet::new();
        for number in 0..load.producers {
            let pace = Arc::clone(&pace);
            let rng = Rng::with_seed(seed.wrapping_add(number as u64));
            producers.spawn(Producer { number, pool: pool.clone(), load, pace, make, rng }.run());
        }
        Self { pace, producers }
    }

    /// How many messages are committed, without those of transactions whose answer was lost.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.pace.committed.load(Relaxed)
    }

    /// The transactions of a steady load that were committed since the last call.
    #[must_use]
    pub fn take_commits(&self) -> Vec<Commit> {
        std::mem::take(&mut self.pace.commits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to enqueue without a pause and in large transactions, or ends that.
    pub fn rush(&self, on: bool) {
        self.pace.rush.store(on, Relaxed);
    }

    /// Begins to commit in two phases, for a server that has them switched on.
    pub fn commit_in_two_phases(&self) {
        self.pace.two_phase.store(true, Relaxed);
    }

    /// How many transactions PostgreSQL has refused to prepare.
    #[must_use]
    pub fn unprepared(&self) -> u64 {
        self.pace.unprepared.load(Relaxed)
    }

    /// Why the last transaction failed that did, if any has.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.pace.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the producers, and waits until each has ended its transaction.
    ///
    /// # Errors
    /// Nothing was committed, so that the counts would show nothing.
    pub async fn stop(&mut self) -> Result<()> {
        self.pace.stop.store(true, Relaxed);
        std::mem::take(&mut self.producers).join_all().await;
        let error = self.last_error().unwrap_or_else(|| "none".to_owned());
        let committed = self.pace.committed.load(Relaxed);
        ensure!(committed > 0, "the producers have committed nothing; their last error: {error}");
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Load {
    rate: u32,
    producers: usize,
    /// The messages after which a steady load ends.
    steady: Option<u64>,
}

struct Producer {
    number: usize,
    pool: Pool,
    load: Load,
    pace: Arc<Pace>,
    make: Make,
    rng: Rng,
}

impl Producer {
    async fn run(mut self) {
        let mut transactions = 0_u64;
        let mut due = Instant::now();
        while !self.is_over() {
            let is_rush = self.load.steady.is_none() && self.pace.rush.load(Relaxed);
            let count = self.rng.usize(match self.load.steady {
                Some(_) => 10..50,
                None if is_rush => 50..300,
                None => 1..12,
            });
            transactions += 1;
            // When the answer to a COMMIT is lost, the table `placed` says whether it was
            // committed.
            if let Err(error) = self.transact(&format!("p{}-{transactions}", self.number), count).await {
                let last = Some(format!("{error:#}"));
                *self.pace.error.lock().unwrap_or_else(PoisonError::into_inner) = last;
                sleep(RETRY).await;
            }
            let share = f64::from(self.load.rate) / self.load.producers as f64;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred messages")]
            let pause = Duration::from_secs_f64(count as f64 / share);
            if self.load.steady.is_some() {
                due += pause;
                sleep_until(due).await;
            } else if !is_rush {
                sleep(pause).await;
            }
        }
    }

    fn is_over(&self) -> bool {
        let committed = self.pace.committed.load(Relaxed);
        self.pace.stop.load(Relaxed) || self.load.steady.is_some_and(|messages| committed >= messages)
    }

    async fn transact(&mut self, prefix: &str, count: usize) -> Result<()> {
        let started = Instant::now();
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.enqueue(&transaction, prefix, count).await?;
        let is_kept = self.rng.u8(..) >= 26;
        if self.pace.two_phase.load(Relaxed) {
            let prepared = transaction.batch_execute(&format!("PREPARE TRANSACTION '{prefix}'")).await;
            if prepared.is_err() {
                self.pace.unprepared.fetch_add(1, Relaxed);
            }
            prepared?;
            // After PREPARE TRANSACTION the session has no transaction, so this ROLLBACK changes
            // nothing.
            transaction.rollback().await?;
            let verb = if is_kept { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(&format!("{verb} PREPARED '{prefix}'")).await?;
        } else if is_kept {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        if is_kept {
            self.pace.committed.fetch_add(count as u64, Relaxed);
            self.note(format!("{prefix}-0"), started.elapsed());
        }
        Ok(())
    }

    fn note(&self, key: String, took: Duration) {
        let mut commits = self.pace.commits.lock().unwrap_or_else(PoisonError::into_inner);
        if self.load.steady.is_some() && commits.len() < COMMITS_MAX {
            commits.push(Commit { key, took, at: SystemTime::now() });
        }
    }

    async fn enqueue(&mut self, transaction: &Transaction<'_>, prefix: &str, count: usize) -> Result<()> {
        let entity = (self.rng.u8(..) < 160).then(|| self.rng.i32(0..ENTITIES));
        let first = match entity {
            None => 0,
            // The lock on the row lets only one producer at a time enqueue for an entity.
            Some(id) => {
                let sql = "UPDATE entity SET place = place + $2 WHERE id = $1 RETURNING place - $2";
                transaction.query_one(sql, &[&id, &(count as i64)]).await?.get::<_, i64>(0)
            }
        };
        let (mut messages, mut keys, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..count {
            let key = format!("{prefix}-{n}");
            let message = (self.make)(&key, &mut self.rng)?;
            messages.push(match entity {
                Some(id) => message.ordering_key(format!("entity-{id}")),
                None => message,
            });
            keys.push(key);
            places.push(entity.map(|_| first + n as i64));
        }
        let sql = "INSERT INTO placed SELECT key, $2, place FROM unnest($1::text[], $3::bigint[]) AS p (key, place)";
        transaction.execute(sql, &[&keys, &entity, &places]).await?;
        Outbox::default().enqueue_all(transaction, &messages).await?;
        Ok(())
    }
}

/// Reads which messages were committed.
///
/// # Errors
/// PostgreSQL refused or is away.
pub async fn placed(pool: &Pool) -> Result<Vec<Placed>> {
    let rows = pool.get().await?.query("SELECT key, entity, place FROM placed", &[]).await;
    let rows = rows.context("read what was committed")?;
    let place = |row: &tokio_postgres::Row| Some((row.get::<_, Option<i32>>(1)?, row.get::<_, i64>(2)));
    Ok(rows.iter().map(|row| Placed { key: row.get(0), place: place(row) }).collect())
}

/// The keys of a stream's messages on these subjects, in its order.
///
/// # Errors
/// NATS refused or is away, or gives no more messages though the stream has more; a message has no
/// key.
pub async fn stream_keys(stream: &Stream, subjects: &str) -> Result<Vec<String>> {
    let config = OrderedConfig { filter_subject: subjects.to_owned(), ..OrderedConfig::default() };
    let consumer = stream.create_consumer(config).await.context("read the stream")?;
    let total = usize::try_from(consumer.cached_info().num_pending)?;
    if total == 0 {
        return Ok(Vec::new());
    }
    let keys = consumer.messages().await?.map(|message| {
        match message?.headers.as_ref().and_then(|headers| headers.get("Idempotency-Key")) {
            Some(key) => Ok(key.to_string()),
            None => bail!("a message without a key is in the stream"),
        }
    });
    read(keys, total, READ_MAX, &stream.cached_info().config.name).await
}

/// Reads a number of items of a stream, until it has given none for as long as the limit.
async fn read<T>(
    items: impl Items<Item = Result<T>>,
    total: usize,
    limit: Duration,
    stream: &str,
) -> Result<Vec<T>> {
    let (mut items, mut found) = (std::pin::pin!(items), Vec::with_capacity(total));
    let mut patience = Patience::new(limit);
    while found.len() < total {
        let item = match timeout(limit, items.next()).await {
            Ok(Some(item)) if !patience.is_over(found.len() as u64) => item,
            _ => bail!("stream {stream}: {} of {total} messages are missing", total - found.len()),
        };
        found.push(item.with_context(|| format!("read stream {stream}"))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_gives_no_more_is_named_with_what_is_missing() {
        let gives = |count: usize| stream::iter((0..count).map(Ok));
        assert_eq!(read(gives(3), 2, READ_MAX, "S").await.unwrap(), [0, 1]);
        for items in [gives(2).chain(stream::pending()).boxed(), gives(2).boxed()] {
            let error = read(items, 5, Duration::from_secs(1), "S").await.unwrap_err();
            assert_eq!(error.to_string(), "stream S: 3 of 5 messages are missing");
        }
    }

    #[tokio::test]
    async fn producers_that_commit_nothing_say_why() {
        let pool = crate::pool("postgres://nobody@127.0.0.1:1/none", 1, RETRY).unwrap();
        let mut producing = Producing::start(&pool, 1_000, |_, _| bail!("no message"), 1);
        crate::eventually("an error", READ_MAX, async || {
            producing.pace.error.lock().unwrap().is_some().then_some(())
        })
        .await;
        let error = producing.stop().await.unwrap_err().to_string();
        assert!(error.starts_with("the producers have committed nothing; their last error: "), "{error}");
        assert!(!error.ends_with(": none"), "{error}");
    }
}
