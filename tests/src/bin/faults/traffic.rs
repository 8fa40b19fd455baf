//! Producers: transactions of many sizes, ordered and unordered messages, rollbacks, and a note of what committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use oncebox_outbox::{Message, Outbox};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::Transaction;

use crate::{consumer::Job, verdict::Placed};

/// Business tables: what was committed, and which effects it had.
pub(crate) const TABLES: &str = "
    CREATE TABLE entity (id int PRIMARY KEY, place bigint NOT NULL);
    INSERT INTO entity SELECT n, 0 FROM generate_series(0, 39) AS n;
    CREATE TABLE placed (key text NOT NULL, entity int, place bigint);
    CREATE TABLE effect (id bigserial PRIMARY KEY, key text NOT NULL);";

const PRODUCERS: usize = 4;
const ENTITIES: i32 = 40;
const SUBJECT: &str = "faults.message";
/// While PostgreSQL is away.
const RETRY: Duration = Duration::from_millis(100);

/// How the producers work; may be changed while they do.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Without a pause, in large transactions: whatever goes wrong then meets full batches.
    pub(crate) rush: AtomicBool,
    stop: AtomicBool,
}

/// Producers that run until they are stopped.
#[derive(Debug)]
pub(crate) struct Producing {
    pub(crate) pace: Arc<Pace>,
    producers: JoinSet<()>,
}

impl Producing {
    /// About so many messages a second, all producers together.
    pub(crate) fn start(pool: &Pool, rate: u32) -> Self {
        let pace = Arc::new(Pace::default());
        let mut producers = JoinSet::new();
        for number in 0..PRODUCERS {
            let pace = Arc::clone(&pace);
            producers.spawn(Producer { number, pool: pool.clone(), rate, pace }.run());
        }
        Self { pace, producers }
    }

    pub(crate) fn rush(&self, on: bool) {
        self.pace.rush.store(on, Relaxed);
    }

    pub(crate) async fn stop(self) {
        self.pace.stop.store(true, Relaxed);
        self.producers.join_all().await;
    }
}

struct Producer {
    number: usize,
    pool: Pool,
    rate: u32,
    pace: Arc<Pace>,
}

impl Producer {
    async fn run(self) {
        let mut transactions = 0_u64;
        while !self.pace.stop.load(Relaxed) {
            let is_rush = self.pace.rush.load(Relaxed);
            let count = if is_rush { fastrand::usize(50..300) } else { fastrand::usize(1..12) };
            transactions += 1;
            // Whether a transaction committed whose answer was lost, the table tells.
            if self.transact(&format!("p{}-{transactions}", self.number), count).await.is_err() {
                sleep(RETRY).await;
            }
            if !is_rush {
                let share = f64::from(self.rate) / PRODUCERS as f64;
                #[expect(clippy::cast_precision_loss, reason = "a dozen messages")]
                sleep(Duration::from_secs_f64(count as f64 / share)).await;
            }
        }
    }

    async fn transact(&self, prefix: &str, count: usize) -> Result<()> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.enqueue(&transaction, prefix, count).await?;
        if fastrand::u8(..) < 26 {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn enqueue(&self, transaction: &Transaction<'_>, prefix: &str, count: usize) -> Result<()> {
        let entity = (fastrand::u8(..) < 160).then(|| fastrand::i32(0..ENTITIES));
        let first = match entity {
            None => 0,
            // The row's lock makes producers of one entity follow each other.
            Some(id) => {
                let sql = "UPDATE entity SET place = place + $2 WHERE id = $1 RETURNING place - $2";
                transaction.query_one(sql, &[&id, &(count as i64)]).await?.get::<_, i64>(0)
            }
        };
        let (mut messages, mut keys, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..count {
            let key = format!("{prefix}-{n}");
            let job = Job { filler: "x".repeat(fastrand::usize(0..2_000)) };
            let message = Message::json(key.parse()?, SUBJECT.parse()?, &job)?;
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

/// What was committed.
pub(crate) async fn placed(pool: &Pool) -> Result<Vec<Placed>> {
    let rows = pool.get().await?.query("SELECT key, entity, place FROM placed", &[]).await;
    let rows = rows.context("read what was committed")?;
    let place = |row: &tokio_postgres::Row| Some((row.get::<_, Option<i32>>(1)?, row.get::<_, i64>(2)));
    Ok(rows.iter().map(|row| Placed { key: row.get(0), place: place(row) }).collect())
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
