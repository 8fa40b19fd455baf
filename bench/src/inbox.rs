//! `Inbox::run` against the bare transaction of the handler that it runs.
//!
//! Both take a connection from the same pool, begin, run the same prepared INSERT and commit. The inbox also decodes
//! the JSON payload, computes its fingerprint, claims the key and stores the outcome: that is what it is for, and what
//! the ratio shows. Every message is new, so every handler runs; the handler answers `()`. With 1, 16 and 64 messages
//! in flight, over as many connections: one waits for the disk, sixteen share its flushes, sixty-four fill the
//! processor.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, ensure};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use oncebox_inbox::{Answer, Context, Handler, HandlerError, Inbox, Outcome, Received, Verdict};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

use crate::{
    config::Config,
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Rates, Side, alternate},
};

/// Messages in flight, and under which key the ratio is reported.
const LEVELS: [(usize, &str); 3] = [(16, "inbox_ratio"), (1, "inbox_ratio_1"), (64, "inbox_ratio_64")];
const EFFECT: &str = include_str!("sql/effect.sql");

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = LEVELS.map(|_| Vec::new());
    for _ in 0..config.rounds {
        for ((in_flight, _), rounds) in LEVELS.into_iter().zip(&mut rounds) {
            let rates = take(servers, config, in_flight).await?;
            tracing::info!(
                "inbox: {in_flight} in flight, bare {:.0}/s, inbox {:.0}/s",
                rates.reference,
                rates.measured
            );
            rounds.push(rates);
        }
    }
    for ((in_flight, key), rounds) in LEVELS.into_iter().zip(&rounds) {
        let bare = median(rounds.iter().map(|round| round.reference));
        let inbox = median(rounds.iter().map(|round| round.measured));
        let behind = format!("{inbox:.0}/s, bare handler transaction {bare:.0}/s");
        report.add(key, median(rounds.iter().map(|round| round.ratio())), behind);
        report.rate(&format!("inbox_reference_{in_flight}"), bare);
        report.rate(&format!("inbox_{in_flight}"), inbox);
    }
    Ok(())
}

async fn take(servers: &Servers, config: &Config, in_flight: usize) -> anyhow::Result<Rates> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(include_str!("sql/effect_table.sql")).await?;
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(servers.database_url(&database).parse()?, NoTls, fast);
    let pool = Pool::builder(manager).max_size(in_flight).build().context("build the pool")?;
    let handled = Arc::new(AtomicU64::new(0));
    let bare = Arc::new(Bare { pool: pool.clone() });
    let inbox = Inbox::builder(pool).scope("bench:effect").single_tenant().build()?;
    let once = Arc::new(Once { inbox, handled: Arc::clone(&handled) });
    let rates = alternate(config.duration / 3, in_flight, &bare, &once).await?;
    let count = servers.schema.sql("SELECT count(*) FROM {schema}.inbox");
    let stored: i64 = session.query_one(&count, &[]).await?.get(0);
    let handled = handled.load(Ordering::Relaxed);
    ensure!(stored.cast_unsigned() == handled, "the inbox has {stored} keys instead of {handled}");
    drop((bare, once, session));
    servers.drop_database(&database).await?;
    Ok(rates)
}

/// The transaction that a consumer without an inbox would make.
struct Bare {
    pool: Pool,
}

impl Side for Bare {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let mut connection = self.pool.get().await?;
        let transaction = connection.transaction().await?;
        let statement = transaction.prepare_cached(EFFECT).await?;
        transaction.execute(&statement, &[&i64::try_from(worker)?, &100_i64]).await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// The same through the inbox.
struct Once {
    inbox: Inbox,
    /// Counts the messages, and so numbers their keys.
    handled: Arc<AtomicU64>,
}

impl Side for Once {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let number = self.handled.fetch_add(1, Ordering::Relaxed);
        let order = Order { customer: i64::try_from(worker)?, cents: 100, note: "x".repeat(200) };
        let key = format!("{:016x}-{number}", number.reverse_bits());
        let received = Received::new("bench.orders.placed", serde_json::to_vec(&order)?)
            .header("Nats-Msg-Id", key.clone())
            .header("Idempotency-Key", key)
            .header("Oncebox-Id", number.to_string());
        let verdict = self.inbox.run(&Effect, &received).await?;
        ensure!(
            matches!(verdict, Verdict::Handled(Answer::Done(()))),
            "a new message was not handled: {verdict:?}"
        );
        Ok(())
    }
}

/// About 256 bytes of JSON.
#[derive(Serialize, Deserialize)]
struct Order {
    customer: i64,
    cents: i64,
    note: String,
}

struct Effect;

impl Handler for Effect {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: &Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        let statement = cx.transaction().prepare_cached(EFFECT).await?;
        cx.transaction().execute(&statement, &[&order.customer, &order.cents]).await?;
        Ok(Outcome::done(()))
    }
}
