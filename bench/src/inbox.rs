//! The inbox against the bare transaction of the handler that it runs.
//!
//! Both are given the same messages, decode the JSON payload, take connections from the same pool,
//! run the same prepared INSERT and commit. The inbox also computes the fingerprint, claims the key
//! and stores the outcome: the ratio shows the cost of that. Every message is new, so every handler
//! runs; the handler answers `()`. With 1, 16 and 64 messages in flight, over as many connections:
//! one waits for the disk, sixteen share its flushes, sixty-four fill the processor. Messages wait
//! in a queue, as they do in a consumer that has work to do, and go through `Inbox::run_each`, as
//! there. The inbox's handler defers its INSERT, so that it goes out with the commit; one that
//! waits for it, as the bare transaction does, is measured as well. So are, with that one, messages
//! one at a time through `Inbox::run` and, as another reference, an inbox written by hand: the bare
//! transaction with a plain INSERT of the key, without any of the rest.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, ensure};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use oncebox_inbox::{Answer, Context, Handler, HandlerError, Inbox, Outcome, Received, Set, Source, Verdict};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_postgres::NoTls;

use crate::{
    config::Config,
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Rates, Side, alternate},
};

/// A comparison, and the key of its ratio in the report.
const LEVELS: [Level; 8] = [
    level("inbox_deferred_ratio", 16),
    level("inbox_deferred_ratio_1", 1),
    level("inbox_deferred_ratio_64", 64),
    awaited("inbox_ratio", 16),
    awaited("inbox_ratio_1", 1),
    awaited("inbox_ratio_64", 64),
    Level { queued: false, ..awaited("inbox_run_ratio", 16) },
    Level { by_hand: true, ..awaited("inbox_by_hand_ratio", 16) },
];

#[derive(Clone, Copy)]
struct Level {
    key: &'static str,
    in_flight: usize,
    /// Messages queue, or come one at a time.
    queued: bool,
    /// The reference also inserts the key, in a statement of its own.
    by_hand: bool,
    /// The inbox's handler.
    effect: Effect,
}

const fn level(key: &'static str, in_flight: usize) -> Level {
    Level { key, in_flight, queued: true, by_hand: false, effect: Effect::Deferred }
}

const fn awaited(key: &'static str, in_flight: usize) -> Level {
    Level { effect: Effect::Awaited, ..level(key, in_flight) }
}

pub(crate) const EFFECT_TABLE: &str = include_str!("sql/effect_table.sql");
const EFFECT: &str = include_str!("sql/effect.sql");
const EFFECTS: &str = include_str!("sql/effects.sql");

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = LEVELS.map(|_| Vec::new());
    for _ in 0..config.rounds {
        for (level, rounds) in LEVELS.into_iter().zip(&mut rounds) {
            let rates = take(servers, config, level).await?;
            let Level { key, in_flight, .. } = level;
            tracing::info!(
                "{key}: {in_flight} in flight, reference {:.0}/s, inbox {:.0}/s",
                rates.reference,
                rates.measured
            );
            rounds.push(rates);
        }
    }
    for (Level { key, .. }, rounds) in LEVELS.into_iter().zip(&rounds) {
        let bare = median(rounds.iter().map(|round| round.reference));
        let inbox = median(rounds.iter().map(|round| round.measured));
        let behind = format!("{inbox:.0}/s, reference {bare:.0}/s");
        report.add(key, median(rounds.iter().map(|round| round.ratio())), behind);
        report.rate(&format!("{key}_reference"), bare);
        report.rate(&format!("{key}_measured"), inbox);
    }
    Ok(())
}

async fn take(servers: &Servers, config: &Config, level: Level) -> anyhow::Result<Rates> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(EFFECT_TABLE).await?;
    let pool = pool(servers, &database, level.in_flight)?;
    let handled = Arc::new(AtomicU64::new(0));
    let bare = Arc::new(Bare {
        pool: pool.clone(),
        by_hand: level.by_hand.then(|| servers.schema.sql(include_str!("sql/by_hand.sql"))),
        sent: AtomicU64::new(0),
    });
    let inbox = Inbox::builder(pool).scope("bench:effect").single_tenant().build()?;
    let Level { queued, effect, .. } = level;
    let once = Arc::new(Once { inbox, effect, queued, handled: Arc::clone(&handled) });
    let rates = alternate(config.duration / 3, level.in_flight, &bare, &once).await?;
    let count = servers.schema.sql("SELECT count(*) FROM {schema}.inbox WHERE scope = 'bench:effect'");
    let stored: i64 = session.query_one(&count, &[]).await?.get(0);
    let handled = handled.load(Ordering::Relaxed);
    ensure!(stored.cast_unsigned() == handled, "the inbox has {stored} keys instead of {handled}");
    drop((bare, once, session));
    servers.drop_database(&database).await?;
    Ok(rates)
}

/// The first level in both of two databases, in turns. Each has the handler's table, and may have
/// keys; those of this round are numbered from `first` on.
pub(crate) async fn claims(
    servers: &Servers,
    config: &Config,
    databases: [&str; 2],
    first: u64,
) -> anyhow::Result<Rates> {
    let Level { in_flight, queued, effect, .. } = LEVELS[0];
    let handled = Arc::new(AtomicU64::new(first));
    let mut sides = Vec::new();
    for database in databases {
        let inbox = Inbox::builder(pool(servers, database, in_flight)?).scope("bench:effect");
        let inbox = inbox.single_tenant().build()?;
        sides.push(Arc::new(Once { inbox, effect, queued, handled: Arc::clone(&handled) }));
    }
    alternate(config.duration / 2, in_flight, &sides[0], &sides[1]).await
}

pub(crate) fn pool(servers: &Servers, database: &str, size: usize) -> anyhow::Result<Pool> {
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(servers.database_url(database).parse()?, NoTls, fast);
    Pool::builder(manager).max_size(size).build().context("build the pool")
}

/// The transaction that a consumer without an inbox would make.
pub(crate) struct Bare {
    pool: Pool,
    /// The statement that inserts the key, if that is part of it.
    by_hand: Option<String>,
    sent: AtomicU64,
}

impl Bare {
    /// The bare transaction without the INSERT of a key.
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool, by_hand: None, sent: AtomicU64::new(0) }
    }
}

impl Side for Bare {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let received = message(self.sent.fetch_add(1, Ordering::Relaxed), worker)?;
        let order: Order = serde_json::from_slice(received.payload())?;
        let mut connection = self.pool.get().await?;
        let transaction = connection.transaction().await?;
        if let Some(insert) = &self.by_hand {
            let key = received.header_value("Idempotency-Key").context("a message without a key")?;
            let statement = transaction.prepare_cached(insert).await?;
            let inserted = transaction.execute(&statement, &[&key, &[7_u8; 32].as_slice()]).await?;
            ensure!(inserted == 1, "a new key was not inserted");
        }
        let statement = transaction.prepare_cached(EFFECT).await?;
        transaction.execute(&statement, &[&order.customer, &order.cents]).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// The handler's transaction through the inbox.
struct Once {
    inbox: Inbox,
    effect: Effect,
    queued: bool,
    /// Counts the messages, and so numbers their keys.
    handled: Arc<AtomicU64>,
}

pub(crate) fn message(number: u64, worker: usize) -> anyhow::Result<Received> {
    let order = Order { customer: i64::try_from(worker)?, cents: 100, note: "x".repeat(200) };
    let key = format!("{:016x}-{number}", number.reverse_bits());
    Ok(Received::new("bench.orders.placed", serde_json::to_vec(&order)?)
        .header("Nats-Msg-Id", key.clone())
        .header("Idempotency-Key", key)
        .header("Oncebox-Id", number.to_string()))
}

impl Once {
    fn message(&self, worker: usize) -> anyhow::Result<Received> {
        message(self.handled.fetch_add(1, Ordering::Relaxed), worker)
    }
}

impl Side for Once {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let verdict = self.inbox.run(&self.effect, &self.message(worker)?).await?;
        handled(&verdict)
    }

    async fn until(&self, worker: usize, deadline: Instant) -> anyhow::Result<u32> {
        let mut completed = 0;
        if self.queued {
            let mut queue = Queue { side: self, worker, deadline, ended: Ok(0) };
            self.inbox.run_each(&self.effect, &mut queue).await;
            completed = queue.ended?;
        } else {
            while Instant::now() < deadline {
                self.once(worker).await?;
                completed += 1;
            }
        }
        Ok(completed)
    }
}

pub(crate) fn handled(verdict: &Verdict<()>) -> anyhow::Result<()> {
    ensure!(
        matches!(verdict, Verdict::Handled(Answer::Done(()))),
        "a new message was not handled: {verdict:?}"
    );
    Ok(())
}

/// There is always a message, until the deadline or a failure.
struct Queue<'a> {
    side: &'a Once,
    worker: usize,
    deadline: Instant,
    ended: anyhow::Result<u32>,
}

struct Next(Received);

impl Deref for Next {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.0
    }
}

impl Source<()> for Queue<'_> {
    type Message = Next;

    fn next(&mut self) -> Option<Next> {
        if self.ended.is_err() || Instant::now() >= self.deadline {
            return None;
        }
        match self.side.message(self.worker) {
            Ok(message) => Some(Next(message)),
            Err(error) => {
                self.ended = Err(error);
                None
            }
        }
    }

    fn ended(&mut self, _: Next, result: Result<Verdict<()>, oncebox_inbox::Error>) {
        if let Ok(count) = &mut self.ended {
            *count += 1;
        }
        if let Err(error) = result.map_err(anyhow::Error::from).and_then(|verdict| handled(&verdict)) {
            self.ended = Err(error);
        }
    }
}

/// About 256 bytes of JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) customer: i64,
    pub(crate) cents: i64,
    note: String,
}

/// The handler, by its use of the INSERT.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// It waits for the answer.
    Awaited,
    /// It leaves it to the commit.
    Deferred,
}

impl Handler for Effect {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        let statement = cx.transaction().prepare_cached(EFFECT).await?;
        let (customer, cents) = (order.customer, order.cents);
        match self {
            Self::Awaited => drop(cx.transaction().execute(&statement, &[&customer, &cents]).await?),
            Self::Deferred => cx.defer(&statement, &[&customer, &cents])?,
        }
        Ok(Outcome::done(()))
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Order>) -> Result<Vec<Outcome<()>>, HandlerError> {
        let customers: Vec<i64> = set.messages().map(|order| order.customer).collect();
        let cents: Vec<i64> = set.messages().map(|order| order.cents).collect();
        let statement = set.transaction().prepare_cached(EFFECTS).await?;
        set.transaction().execute(&statement, &[&customers, &cents]).await?;
        Ok(set.messages().map(|_| Outcome::done(())).collect())
    }
}
