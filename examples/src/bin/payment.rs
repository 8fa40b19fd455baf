//! The payment service as a process: consumes orders until SIGTERM or Ctrl-C.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the tables of
//! `src/payment/schema.sql`; `NATS_URL` and `STREAM` say where the orders are. Run as many as you
//! like.

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context, Result};
use oncebox_examples::{
    config,
    payment::{self, Charge},
};
use oncebox_inbox::{Consumer, Counts, Inbox, Order};
use oncebox_outbox::Outbox;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const COUNTS_EVERY: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::new(config::variable("LOG").as_deref().unwrap_or("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let pool = config::pool(&config::required("DATABASE_URL")?, 16)?;
    let nats = config::nats().await?;
    let jetstream = async_nats::jetstream::new(nats);

    let inbox = Inbox::builder(pool.clone()).scope(payment::SCOPE).single_tenant().build()?;
    let handler = Charge { outbox: Outbox::default(), charged: config::subject("payments.charged").parse()? };
    let shutdown = CancellationToken::new();
    // Strict: of several processes one works and the others stand by, so that a customer's orders
    // are charged in order even while processes come and go.
    let consuming = Consumer::new(jetstream, config::required("STREAM")?, "payment")
        .filter_subject(config::subject("orders.placed"))
        .order(Order::Strict)
        .concurrency(8)
        .run(inbox.clone(), handler, shutdown.clone());

    // A name for this run: a process that is started again counts from zero again.
    let process = format!("{}-{}", config::variable("PROCESS").unwrap_or_default(), uuid::Uuid::new_v4());
    let counting = async {
        let mut recorded = Counts::default();
        while !shutdown.is_cancelled() {
            sleep(COUNTS_EVERY).await;
            let counts = inbox.counts();
            if counts != recorded {
                match payment::record_counts(&pool, &process, counts).await {
                    Ok(()) => recorded = counts,
                    Err(error) => tracing::debug!("counts are written down later: {error:#}"),
                }
            }
        }
        anyhow::Ok(())
    };
    // The first task that fails ends the process; SIGTERM lets the running handlers finish.
    let stopping = async {
        let name = config::stop_signal().await?;
        tracing::info!("stopping because of {name}");
        shutdown.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(async { consuming.await.context("consume orders") }, counting, stopping)?;
    // The messages handled while shutting down.
    payment::record_counts(&pool, &process, inbox.counts()).await?;
    Ok(())
}
