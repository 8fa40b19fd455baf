//! A consumer as a process of its own: `chaos consume each|batch|sagas DATABASE_URL NATS_URL`,
//! until SIGTERM.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_nats::jetstream::Context as Jetstream;
use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_outbox::{Message, Outbox};
use oncebox_tests::pool;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    order::{COPIED, Order, RECEIPT, RECEIPT_STEP, STREAM},
    sagas,
};

/// The effects of the handlers. Deliberately without UNIQUE: that no effect happens twice is the
/// inbox's work.
pub(crate) const TABLE: &str = "
    CREATE TABLE effect (id bigserial PRIMARY KEY, scope text NOT NULL, key text NOT NULL, cents bigint NOT NULL)";
/// Each message in a transaction of its own.
pub(crate) const EACH: &str = "each";
/// Many messages in one transaction.
pub(crate) const BATCH: &str = "batch";
/// Orders led by sagas.
pub(crate) const SAGAS: &str = "sagas";

const CONNECTIONS: usize = 8;
const POOL_WAIT: Duration = Duration::from_secs(5);
/// The messages of a killed process are delivered again after this time.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(2);

struct Book {
    scope: &'static str,
    /// Whether the handler's own message goes through the outbox, in the same transaction.
    has_receipt: bool,
}

impl Handler for Book {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        if order.is_dead() {
            return Ok(Outcome::dead("an order costs something"));
        }
        let transaction = cx.transaction();
        let sql = "INSERT INTO effect (scope, key, cents) VALUES ($1, $2, $3)";
        transaction.execute(sql, &[&self.scope, &cx.key().as_str(), &order.cents]).await?;
        if self.has_receipt {
            let receipt = Message::json(cx.key().step(RECEIPT_STEP)?, RECEIPT.parse()?, &order)?;
            Outbox::default().enqueue(transaction, &receipt).await?;
        }
        Ok(Outcome::done(()))
    }
}

pub(crate) async fn consume(arguments: &[String]) -> Result<()> {
    let [mode, database_url, nats_url] = arguments else {
        bail!("usage: chaos consume each|batch|sagas DATABASE_URL NATS_URL");
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut terminate = signal(SignalKind::terminate())?;
    let pool = pool(database_url, CONNECTIONS, POOL_WAIT)?;
    let nats = async_nats::connect(nats_url).await.context("connect to NATS")?;
    let (jetstream, shutdown) = (async_nats::jetstream::new(nats), CancellationToken::new());
    let consuming = async {
        match mode.as_str() {
            SAGAS => Box::pin(sagas::run(pool, jetstream, shutdown.clone())).await,
            BATCH => book(BATCH, pool, jetstream, shutdown.clone()).await,
            _ => book(EACH, pool, jetstream, shutdown.clone()).await,
        }
    };
    let mut consuming = std::pin::pin!(consuming);
    tokio::select! {
        ended = &mut consuming => return ended,
        _ = terminate.recv() => shutdown.cancel(),
    }
    consuming.await
}

async fn book(
    scope: &'static str,
    pool: Pool,
    jetstream: Jetstream,
    shutdown: CancellationToken,
) -> Result<()> {
    let inbox = Inbox::builder(pool)
        .scope(scope)
        .single_tenant()
        .backoff(Duration::from_millis(50), Duration::from_secs(1))
        // Each process that dies costs its messages a delivery.
        .attempts_max(1_000)
        .build()?;
    let consumer =
        Consumer::new(jetstream, STREAM, scope).filter_subject(format!("{COPIED}>")).ack_wait(ACK_WAIT);
    let consumer = if scope == BATCH { consumer.concurrency(2).batch(20) } else { consumer.concurrency(4) };
    let handler = Book { scope, has_receipt: scope == EACH };
    consumer.run(inbox, handler, shutdown).await.context("consume")
}
