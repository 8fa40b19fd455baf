//! The orders of `bench pipeline` in Rust, with the protocol that bench/peers/orders/main.go
//! describes. `orders-rust rust|rust-set` reads DATABASE_URL and NATS_URL: messages one by one, as
//! by default, or up to 64 in a transaction, with one statement for all of them.

use std::{
    io::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_nats::jetstream;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome, Set};
use oncebox_outbox::{Key, Message, Outbox};
use serde::{Deserialize, Serialize};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_postgres::NoTls;
use tokio_util::sync::CancellationToken;

const PRODUCERS: usize = 8;
const WORKERS: usize = 16;
const BATCH: usize = 64;
const EFFECTS_WITHIN: Duration = Duration::from_secs(30);
const ORDER: &str = include_str!("../sql/order.sql");
const EFFECT: &str = include_str!("../sql/order_effect.sql");
const EFFECTS: &str = include_str!("../sql/order_effects.sql");
const COUNT: &str = include_str!("../sql/order_count.sql");

#[tokio::main]
async fn main() -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this program has no other configuration")]
    let variable = |name: &str| std::env::var(name).with_context(|| format!("read {name}"));
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(variable("DATABASE_URL")?.parse()?, NoTls, fast);
    let pool = Pool::builder(manager).max_size(PRODUCERS + WORKERS).build()?;
    let jetstream = jetstream::new(async_nats::connect(variable("NATS_URL")?).await?);
    let mut consumer = Consumer::new(jetstream, "BENCH", "orders");
    if std::env::args().nth(1).as_deref() == Some("rust-set") {
        consumer = consumer.batch(BATCH);
    }
    let inbox = Inbox::builder(pool.clone()).scope("bench:orders").single_tenant().build()?;
    let (book, shutdown) = (Book::default(), CancellationToken::new());
    let (handler, token) = (book.clone(), shutdown.clone());
    let mut running = JoinSet::new();
    running.spawn(async move { consumer.run(inbox, handler, token).await });
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (orders, rate) = line.split_once(' ').context("read ORDERS RATE")?;
        writeln!(output, "{}", sell(&pool, &book, orders.parse()?, rate.parse()?).await?)?;
    }
    shutdown.cancel();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// About 256 bytes of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    order: i64,
    cents: i64,
    note: String,
}

/// Notes when the handler of each order began.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<Vec<Option<Instant>>>>);

impl Book {
    fn begins(&self, order: &Order) {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = usize::try_from(order.order).expect("orders are numbered from 0");
        started[number].get_or_insert_with(Instant::now);
    }
}

impl Handler for Book {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        self.begins(&order);
        let statement = cx.transaction().prepare_cached(EFFECT).await?;
        cx.defer(&statement, &[&order.order, &order.cents])?;
        Ok(Outcome::done(()))
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Order>) -> Result<Vec<Outcome<()>>, HandlerError> {
        set.messages().for_each(|order| self.begins(order));
        let orders: Vec<i64> = set.messages().map(|order| order.order).collect();
        let cents: Vec<i64> = set.messages().map(|order| order.cents).collect();
        let statement = set.transaction().prepare_cached(EFFECTS).await?;
        set.transaction().execute(&statement, &[&orders, &cents]).await?;
        Ok(set.messages().map(|_| Outcome::done(())).collect())
    }
}

async fn sell(pool: &Pool, book: &Book, orders: usize, rate: u32) -> Result<String> {
    let before = {
        let mut started = book.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = started.len();
        started.resize(before + orders, None);
        before
    };
    let (begun, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let (pool, next) = (pool.clone(), Arc::clone(&next));
        producers.spawn(async move {
            let mut commits = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= orders {
                    return anyhow::Ok(commits);
                }
                if rate > 0 {
                    sleep_until(begun + Duration::from_secs(1) * u32::try_from(number)? / rate).await;
                }
                place(&pool, before + number).await?;
                commits.push((before + number, Instant::now()));
            }
        });
    }
    let mut commits = Vec::with_capacity(orders);
    while let Some(ended) = producers.join_next().await {
        commits.extend(ended??);
    }
    let client = pool.get().await?;
    let started = loop {
        let started = book.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if started.iter().all(Option::is_some) {
            break started;
        }
        sleep(Duration::from_millis(1)).await;
    };
    // After that the bench says which effects are missing.
    let (deadline, all) = (Instant::now() + EFFECTS_WITHIN, i64::try_from(before + orders)?);
    while client.query_one(COUNT, &[]).await?.get::<_, i64>(0) < all && Instant::now() < deadline {}
    let took = begun.elapsed();
    let waited = |&(number, committed): &(usize, Instant)| {
        started[number].map(|started| started.saturating_duration_since(committed))
    };
    let mut waits: Vec<Duration> = commits.iter().filter_map(waited).collect();
    waits.sort();
    let percentile = |percent: usize| waits[(orders * percent).div_ceil(100) - 1].as_secs_f64() * 1e3;
    Ok(format!("{:.4} {:.3} {:.3}", took.as_secs_f64(), percentile(50), percentile(99)))
}

async fn place(pool: &Pool, number: usize) -> Result<()> {
    let order = Order { order: i64::try_from(number)?, cents: 100, note: "x".repeat(200) };
    let key = Key::root(&format!("order-{number}"))?;
    let message = Message::json(key, "bench.orders".parse()?, &order)?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let statement = transaction.prepare_cached(ORDER).await?;
    transaction.execute(&statement, &[&order.order, &order.cents]).await?;
    Outbox::default().enqueue(&transaction, &message).await?;
    transaction.commit().await?;
    Ok(())
}
